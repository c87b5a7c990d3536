"""Judges values by the TypedDicts of muse-code-msp: required members, types, and no nulls where none are allowed."""

from __future__ import annotations

import typing
from collections.abc import Iterator
from functools import cache
from types import NoneType, UnionType
from typing import Any

import muse_code_msp as msp

from refold.view import Frame


def frame_faults(frame: Frame) -> list[str]:
    """What is wrong with one frame of the view."""
    spec = msp.NOTIFICATIONS.get(frame["method"])
    if spec is None:
        return [f"no notification {frame['method']}"]
    return faults(getattr(msp, spec["params"]), frame["params"])


def faults(kind: Any, value: Any) -> list[str]:
    """What is wrong with `value` as a `kind`, each fault with its path."""
    return list(_faults(kind, value, "$"))


def _faults(kind: Any, value: Any, at: str) -> Iterator[str]:
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if kind is Any:
        return
    if origin in (typing.Union, UnionType):
        if all(faults(option, value) for option in arguments):
            yield f"{at}: {value!r:.60} is none of {kind}"
    elif origin is typing.Literal:
        if value not in arguments:
            yield f"{at}: {value!r:.60} is not one of {arguments}"
    elif typing.is_typeddict(kind):
        yield from _object_faults(kind, value, at)
    elif origin is list and isinstance(value, list):
        for n, item in enumerate(value):
            yield from _faults(arguments[0], item, f"{at}[{n}]")
    elif type(value) is not (NoneType if kind is None else origin or kind):
        yield f"{at}: {value!r:.60} is no {kind}"


def _object_faults(kind: Any, value: Any, at: str) -> Iterator[str]:
    if not isinstance(value, dict):
        yield f"{at}: {value!r:.60} is no object"
        return
    for name in sorted(kind.__required_keys__ - value.keys()):
        yield f"{at}.{name}: missing"
    for name, hint in _hints(kind).items():
        if name in value:
            yield from _faults(hint, value[name], f"{at}.{name}")


@cache
def _hints(kind: Any) -> dict[str, Any]:
    return typing.get_type_hints(kind)
