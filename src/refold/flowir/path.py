"""Paths into the flow ctx: `$`, `$.a.b`, `$.a["p.md"]`. Reading, and writing without mutation.

A path names object keys only: no array indices, and no escapes inside brackets (so a bracketed key has no `"`).
`write` copies the objects along the path and shares the rest. A reference to a ctx is therefore a snapshot of it:
lanes, `try` and dispatches keep one for nothing, as long as nobody else mutates JSON values either, and nobody does.
"""

from __future__ import annotations

import re
from typing import Any, Final

from refold.canonical import type_name
from refold.errors import FlowError
from refold.flowir.ir import PathKeys

Json = Any

PATH_NOT_FOUND: Final = "path_not_found"
"""The `kind` of the one error that `exists` turns into false."""
MAX_KEYS: Final = 64
"""A longer path would build a document that no reader at refold's edge accepts."""

_SEGMENT: Final = re.compile(r'\.?\["(?P<quoted>[^"]+)"\]|\.(?P<bare>[^.\[]+)')
_MARKS: Final = re.compile(r"[.\[\]]")


def parse(text: str) -> PathKeys:
    """Returns the keys of a path.

    Raises:
        FlowError: `invalid path syntax: …` for what does not start with `$`, an empty segment, a bracket that is empty,
            unterminated or followed by a bare name, or more than `MAX_KEYS` segments.
    """
    if not text.startswith("$"):
        raise _invalid(text, "a path starts with $")
    keys: list[str] = []
    at = 1
    while at < len(text):
        segment = _SEGMENT.match(text, at)
        if segment is None:
            raise _invalid(text, f'expected .key or ["key"] at character {at + 1}')
        keys.append(segment["quoted"] or segment["bare"])
        at = segment.end()
    if len(keys) > MAX_KEYS:
        raise _invalid(text, f"more than {MAX_KEYS} segments")
    return tuple(keys)


def show(keys: PathKeys) -> str:
    """Returns the canonical print form: dots, and brackets only around keys with `.`, `[` or `]` in them."""
    return "$" + "".join(f'["{key}"]' if _MARKS.search(key) else f".{key}" for key in keys)


def read(doc: Json, keys: PathKeys) -> Json:
    """Returns what stands in `doc` at `keys`.

    Raises:
        FlowError: `path not found: <path>`, kind `path_not_found`, if a segment is no key of an object.
    """
    for key in keys:
        if type(doc) is not dict or key not in doc:
            raise FlowError(f"path not found: {show(keys)}", kind=PATH_NOT_FOUND)
        doc = doc[key]
    return doc


def write(doc: Json, keys: PathKeys, value: Json) -> Json:
    """Returns a document that has `value` at `keys` and shares everything else with `doc`, which stays as it is.

    Missing and null intermediates become objects; writing at `$` replaces the document.

    Raises:
        FlowError: `type error in 'path.write': …` if an intermediate is a string, number, boolean or array.
    """
    if not keys:
        return value
    root = here = _copy(doc, keys, 0)
    for depth, key in enumerate(keys[:-1], 1):
        here[key] = _copy(here.get(key), keys, depth)
        here = here[key]
    here[keys[-1]] = value
    return root


def _copy(doc: Json, keys: PathKeys, depth: int) -> dict[str, Json]:
    if type(doc) is dict:
        return doc.copy()
    if doc is None:
        return {}
    raise FlowError(f"type error in 'path.write': {show(keys[:depth])} is of type {type_name(doc)}, not an object")


def _invalid(text: str, why: str) -> FlowError:
    return FlowError(f"invalid path syntax: {text[:200]!r}: {why}")
