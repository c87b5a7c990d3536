"""JSON in refold's three forms: stored text, text at the edge, and the canonical bytes that are hashed.

| form | function | law |
|---|---|---|
| stored | `encode`, `decode` | what goes in comes out, integers of any size and floats included |
| stored, of what is known to be JSON | `encode_known` | the same, and nothing is looked at first |
| edge | `decode_strict` | two readers never understand the same text differently |
| canonical | `canonical`, `digest` | equal values have equal bytes, whatever wrote them and in which order |

A JSON value is None, bool, int, float, str, a list or tuple of values, or a dict from str to values. Canonical JSON is
RFC 8785 with one extension: an integer is written with all its digits (RFC 8785 would round 2**53 + 1 to 2**53, and two
questions would share one answer). Floats are written as RFC 8785 says, so 1.0 equals 1 and -0.0 equals 0. Strings are
not normalised: composed and decomposed forms differ.

Hash before storing: a database that re-formats JSON changes its bytes. Not here: what is hashed (`flowir.keys`).
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable
from typing import Any, Final, NoReturn

import msgspec
import orjson
import rfc8785

from refold.errors import InvalidJson

Json = Any

MAX_DEPTH: Final = 64
MAX_KEYS: Final = 10_000
MAX_NUMBER: Final = 64

_TYPE_NAMES: Final[dict[type, str]] = {
    type(None): "null",
    bool: "boolean",
    int: "number",
    float: "number",
    str: "string",
    list: "array",
    tuple: "array",
    dict: "object",
}
_SURROGATE: Final = re.compile("[\ud800-\udfff]")
_ESCAPED_SURROGATE: Final = re.compile(r"\\u[dD][89a-fA-F]")
_stored: Final = msgspec.json.Decoder()
_writer: Final = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"))


def type_name(value: Json) -> str:
    """Returns JSON's name for the type of `value`, as error texts use it."""
    return _TYPE_NAMES.get(type(value), type(value).__name__)


def encode(value: Json) -> str:
    """Returns `value` as compact JSON text; `decode` gives back an equal value (a tuple comes back as a list).

    Raises:
        InvalidJson: NaN, an infinity, a lone surrogate, a key that is not a string, or no JSON value at all.
    """
    try:
        if (fast := _fast(value)) is not None:
            return fast.decode()
        _check(value)
        return _writer.encode(value)
    except (TypeError, ValueError, RecursionError) as error:
        raise _unwritable(error) from None


def encode_known(value: Json) -> str:
    """Returns JSON text of `value`, on trust that it is a JSON value: one that `decode` gave, or made of such.

    For what refold itself puts together. It does not see NaN, or a UUID where a text should be: `encode` does.
    """
    try:
        return orjson.dumps(value).decode()
    except TypeError:  # an integer of more than 64 bits, or no text
        return encode(value)


def decode(text: str | bytes) -> Json:
    """Reads text that `encode` wrote. It trusts it: what comes from outside goes through `decode_strict`.

    Raises:
        InvalidJson: the text is no JSON, so it is not what was written.
    """
    try:
        return _stored.decode(text)
    except (ValueError, RecursionError) as error:
        raise InvalidJson(f"stored text is not JSON: {error}", reason="syntax") from None


def canonical(value: Json) -> bytes:
    """Returns the canonical bytes of `value`: RFC 8785, with integers of any size as exact digits.

    Raises:
        InvalidJson: as `encode`.
    """
    try:
        fast = _fast(value, orjson.OPT_SORT_KEYS)
        return _canonical_slow(value) if fast is None else fast
    except (TypeError, ValueError, RecursionError) as error:
        raise _unwritable(error) from None


def canonical_row(members: list[str | int | None]) -> bytes:
    """Returns `canonical(members)`. A flat list of such members has one spelling only, whoever writes it."""
    try:
        return orjson.dumps(members)
    except TypeError:  # an integer of more than 64 bits, or no text
        return canonical(members)


def digest(value: Json) -> str:
    """Returns the hex SHA-256 of the canonical bytes of `value`."""
    return hashlib.sha256(canonical(value)).hexdigest()


def decode_strict(
    data: str | bytes, *, max_depth: int = MAX_DEPTH, max_keys: int = MAX_KEYS, max_number: int = MAX_NUMBER
) -> Json:
    """Reads JSON from outside and refuses everything that some other reader could understand differently.

    Raises:
        InvalidJson: `data["reason"]` is `utf8`, `syntax`, `number` (NaN, an infinity, a number beyond a double such as
            `1e400`), `number_length`, `duplicate_key`, `keys`, `surrogate` or `depth`.
    """
    text = _text(data)
    try:
        value = _strict_decoder(max_keys, max_number).decode(text)
    except json.JSONDecodeError as error:
        raise InvalidJson(f"not JSON: {error}", reason="syntax") from None
    except RecursionError:
        raise _too_deep(max_depth) from None
    if _has_surrogate(text, value):
        raise InvalidJson("a lone surrogate is not text", reason="surrogate")
    if text.count("[") + text.count("{") > max_depth and _deeper(value, max_depth):
        raise _too_deep(max_depth)
    return value


# -- writing ----------------------------------------------------------------------------------------------------------


def _fast(value: Json, option: int = 0) -> bytes | None:
    """Returns what orjson writes, or None unless that is known to be exactly what the slow ways write.

    orjson goes first because it refuses what contains itself: the walk after it always ends.
    """
    try:
        text = orjson.dumps(value, option=option)
    except TypeError:
        return None
    if not _is_plain(value) or (option and not text.isascii() and not _sorts_alike(value)):
        return None
    return text


def _is_plain(value: Json) -> bool:
    """Tells whether all writers agree on `value`. Exact types only; one loop, since every hashed value passes here.

    Not plain, for instance: 5.0 (RFC 8785 writes 5), 1e16 and 1e-5 (exponents are written in three ways), a UUID
    (orjson makes it text).
    """
    if type(value) is str:
        return True
    parts = [value]
    for part in parts:
        kind = type(part)
        if kind is str or kind is int:  # nearly all of them
            continue
        if kind is dict:
            parts += part.values()
        elif kind is list or kind is tuple:
            parts += part
        elif kind is float:
            if part.is_integer() or not 1e-4 <= abs(part) < 1e16:
                return False
        elif kind is not bool and part is not None:
            return False
    return True


def _sorts_alike(value: Json) -> bool:
    """Tells whether all keys have one order. RFC 8785 wants UTF-16 order: from U+E000 on, code points have another."""
    parts = [value]
    for part in parts:
        if type(part) is dict:
            if any(key and max(key) >= "\ue000" for key in part):
                return False
            parts += part.values()
        elif type(part) is list or type(part) is tuple:
            parts += part
    return True


def _canonical_slow(value: Json) -> bytes:
    """Writes canonical JSON member by member; the reference that the fast path is tested against."""
    if isinstance(value, int) and not isinstance(value, bool):
        return int.__repr__(value).encode()
    if isinstance(value, dict):
        members = sorted(_keys(value), key=lambda key: key.encode("utf-16-be"))
        return b"{%b}" % b",".join(rfc8785.dumps(key) + b":" + _canonical_slow(value[key]) for key in members)
    if isinstance(value, list | tuple):
        return b"[%b]" % b",".join(map(_canonical_slow, value))
    return rfc8785.dumps(value)


def _check(value: Json) -> None:
    """Raises what the standard writer would let through: keys that are not strings, and lone surrogates."""
    if isinstance(value, str) and _SURROGATE.search(value):
        raise UnicodeError("a lone surrogate is not text")
    if isinstance(value, dict):
        for key in _keys(value):
            _check(key)
        value = list(value.values())
    if isinstance(value, list | tuple):
        for item in value:
            _check(item)


def _keys(value: dict[Json, Json]) -> Iterable[str]:
    for key in value:
        if not isinstance(key, str):
            raise TypeError(f"object key {key!r} is not a string")
    return value


def _unwritable(error: Exception) -> InvalidJson:
    if isinstance(error, RecursionError):
        return InvalidJson("the value is nested too deeply or contains itself", reason="depth")
    return InvalidJson(f"not a JSON value: {error}", reason="value")


# -- reading at the edge ----------------------------------------------------------------------------------------------


def _text(data: str | bytes) -> str:
    if isinstance(data, str):
        return data
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise InvalidJson(f"not UTF-8: {error.reason} at byte {error.start}", reason="utf8") from None


def _strict_decoder(max_keys: int, max_number: int) -> json.JSONDecoder:
    def members(pairs: list[tuple[str, Json]]) -> dict[str, Json]:
        if len(pairs) > max_keys:
            raise InvalidJson(f"an object has {len(pairs)} keys, more than {max_keys}", reason="keys")
        value = dict(pairs)
        if len(value) < len(pairs):
            seen: set[str] = set()
            twice = next(key for key, _ in pairs if key in seen or seen.add(key))
            raise InvalidJson(f"duplicate key {twice[:80]!r}", reason="duplicate_key")
        return value

    def short(token: str) -> str:
        if len(token) > max_number:
            raise InvalidJson(f"a number has {len(token)} characters, more than {max_number}", reason="number_length")
        return token

    def real(token: str) -> float:
        number = float(short(token))
        return number if abs(number) != float("inf") else _no_number(token)

    return json.JSONDecoder(
        object_pairs_hook=members,
        parse_int=lambda token: int(short(token)),
        parse_float=real,
        parse_constant=_no_number,
    )


def _no_number(token: str) -> NoReturn:
    raise InvalidJson(f"{token} is not a number that JSON can carry", reason="number")


def _too_deep(max_depth: int) -> InvalidJson:
    return InvalidJson(f"nested deeper than {max_depth}", reason="depth")


def _has_surrogate(text: str, value: Json) -> bool:
    """Tells whether a lone surrogate came through, raw or escaped. A pair of escapes is one character and fine."""
    if not text.isascii() and _SURROGATE.search(text):
        return True
    return bool(_ESCAPED_SURROGATE.search(text)) and any(map(_SURROGATE.search, _strings(value)))


def _strings(value: Json) -> Iterable[str]:
    for part in _walk([value]):
        if isinstance(part, str):
            yield part
        elif isinstance(part, dict):
            yield from part


def _walk(parts: list[Json]) -> Iterable[Json]:
    """Yields `parts` and everything inside them, without recursion: the depth is not yet known to be harmless."""
    while parts:
        part = parts.pop()
        yield part
        if isinstance(part, dict | list):
            parts.extend(part.values() if isinstance(part, dict) else part)


def _deeper(value: Json, max_depth: int) -> bool:
    """Tells whether containers are nested more than `max_depth` deep."""
    level = [value]
    for _ in range(max_depth + 1):
        level = [part for part in level if isinstance(part, dict | list)]
        if not level:
            return False
        level = [item for part in level for item in (part.values() if isinstance(part, dict) else part)]
    return True
