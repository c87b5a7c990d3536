"""What agents say, made into outcomes: the one way in for values and texts from outside.

Laws:
- A value that leaves here can be stored, hashed and shown: finite numbers, no lone surrogates, within the limits of
  `canonical.decode_strict`, because every client must be able to read it.
- Nothing is dropped in silence: what cannot be kept as it is becomes U+FFFD and is marked, or fails the step.
"""

from __future__ import annotations

import json
import string
from typing import Final

from refold.canonical import decode_strict, encode
from refold.engine.agents.base import Report
from refold.errors import InvalidJson
from refold.flowir import Failed, Pass
from refold.records import Json

_ESCAPED: Final = 6
"""Into how many characters JSON text may turn one: `\\u0000`."""
_LANGUAGE: Final = string.ascii_letters + string.digits + "_+-"
"""What may follow the opening of a code fence."""


def passed(value: Json, limit: int) -> Report:
    """A Pass of a copy of `value`, or Failed if it is not JSON or its text has more than `limit` bytes."""
    if type(value) is str and value.isascii() and len(value) * _ESCAPED + 2 <= limit:
        return Report(Pass(value))  # most of what models say: nothing in it could be wrong
    try:
        text, mended = _text(value)
        if mended or type(value) is not str:  # a text is its own copy, and has no depth
            value = decode_strict(text)
    except InvalidJson as error:
        return Report(Failed(f"output is not JSON: {error.message}"))
    # A character has four bytes at most: a short text need not be encoded to be measured.
    if len(text) * 4 > limit and len(text.encode()) > limit:
        return Report(too_large(limit))
    return Report(Pass(value), mended)


def printed(data: bytes) -> Report:
    """A Pass of what a program printed: the JSON value if all of it is one, else the text as it is.

    `NaN`, `1e400`, a key that occurs twice and the like are not JSON, so they are text.
    """
    text, mended = decoded(data)
    try:
        return Report(Pass(decode_strict(text)), mended)
    except InvalidJson as error:
        if error.data["reason"] != "surrogate":
            return Report(Pass(text), mended)
    # JSON but for an escape such as "\\ud83d" without its other half. Text would be no better: the flow reads `$.x.y`.
    report = passed(json.loads(text), len(data) * 4)
    return report if isinstance(report.outcome, Pass) else Report(Pass(text), mended)


def folded(value: Json) -> Json:
    """What a model or a person wrote, as the flow is to read it: a string that holds an object or array becomes one.

    A code fence around it is taken off: a model that is told to leave it out writes it all the same. Scalars stay
    strings, for `"5"` and `"true"` may be meant as text. Source of the rule: mse 2.6.
    """
    if not isinstance(value, str):
        return value
    text = value.strip()
    if text.startswith("```"):
        text = text.strip("`").lstrip(_LANGUAGE).strip()
    if not text.startswith(("{", "[")):
        return value
    try:
        return decode_strict(text)
    except InvalidJson:
        return value


def too_large(limit: int) -> Failed:
    """The outcome of an agent that says more than `limit` bytes."""
    return Failed(f"output is larger than {limit} bytes")


def raised(error: BaseException, limit: int) -> Failed:
    """The outcome of a function that raised: type and text, of which at most `limit` characters are kept."""
    try:
        text = mend(str(error))
    except Exception:  # noqa: BLE001  # an error whose own text raises is still reported
        text = "(its text cannot be read)"
    return Failed(f"{type(error).__name__}: {text[:limit]}" if text else type(error).__name__)


def decoded(data: bytes | bytearray) -> tuple[str, bool]:
    """The text of `data` with U+FFFD for bytes that are not UTF-8, and whether there were any."""
    try:
        return data.decode(), False
    except UnicodeDecodeError:
        return data.decode(errors="replace"), True


def tail(data: bytes | bytearray, limit: int) -> bytes | bytearray:
    """The last `limit` bytes of `data`, less the rest of a character that the cut went through."""
    if len(data) <= limit:
        return data
    start = len(data) - limit
    while start < len(data) and data[start] & 0xC0 == 0x80 and start < len(data) - limit + 3:
        start += 1
    return data[start:]


def mend(text: str) -> str:
    """Joins surrogate pairs and replaces lone surrogates by U+FFFD: no store or frame can carry them."""
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def _text(value: Json) -> tuple[str, bool]:
    """The JSON text of `value`, and whether surrogates in it had to be mended."""
    try:
        return encode(value), False
    except InvalidJson:
        return encode(_mended(value)), True


def _mended(value: Json) -> Json:
    try:
        return _walk(value)
    except RecursionError:
        raise InvalidJson("the value is nested too deeply or contains itself", reason="depth") from None


def _walk(value: Json) -> Json:
    if isinstance(value, str):
        return mend(value)
    if isinstance(value, list | tuple):
        return [_walk(item) for item in value]
    if not isinstance(value, dict):
        return value
    members = {_walk(key): _walk(item) for key, item in value.items()}
    if len(members) < len(value):  # of "\ud800" and "\ud801" one would be lost in silence
        raise InvalidJson("two keys differ in nothing but lone surrogates", reason="duplicate_key")
    return members
