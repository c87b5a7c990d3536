"""The `$step_meta` envelope of a step's input: context for the worker beside the directive."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from refold.canonical import type_name
from refold.errors import FlowError

Json = Any


def unwrap(given: Json, metas: Mapping[str, Mapping[str, Json]]) -> tuple[Json, dict[str, Json] | None]:
    """Splits what `in` evaluated to into the directive and the step ctx; without an envelope the latter is None.

    `{"$step_meta": {"ref"?: name, "inline"?: {…}}, "$in"?: directive, …rest}`: the step ctx is the meta that `ref`
    names with the keys of `inline` over it. The directive is `$in` if present, else `""` if nothing is left, else the
    rest.

    Raises:
        FlowError: the envelope is malformed or names no meta. The step fails before its dispatch.
    """
    if type(given) is not dict or "$step_meta" not in given:
        return given, None
    rest = {key: value for key, value in given.items() if key != "$step_meta"}
    step_ctx = _step_ctx(given["$step_meta"], metas)
    return rest.get("$in", rest or ""), step_ctx


def _step_ctx(meta: Json, metas: Mapping[str, Mapping[str, Json]]) -> dict[str, Json]:
    if type(meta) is not dict:
        raise FlowError(f"invalid $step_meta: expected an object, got {type_name(meta)}")
    unknown = sorted(meta.keys() - {"ref", "inline"})
    if unknown:
        raise FlowError(f"invalid $step_meta: unknown key {unknown[0]!r}, expected ref or inline")
    ref, inline = meta.get("ref"), meta.get("inline", {})
    if type(inline) is not dict:
        raise FlowError(f"invalid $step_meta: inline must be an object, got {type_name(inline)}")
    if ref is None:
        return dict(inline)
    if type(ref) is not str or ref not in metas:
        raise FlowError(f"invalid $step_meta: ref {ref!r} names no entry of metas")
    return {**metas[ref], **inline}
