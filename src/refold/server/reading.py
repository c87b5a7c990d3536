"""Reading a request: path ids, query and body, each checked against its row before any service is called.

A query is text, so its members are read by their declared type, strictly: `limit=5` is a number, `limit=5.0x` and
`limit=null` are not, `preview=true` is a boolean and `preview=yes` is not. A name that the route does not know is
refused: a mistyped filter that is silently ignored would answer with everything.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from types import NoneType, UnionType
from typing import Annotated, Any, Final, TypeVar, Union, get_args, get_origin, get_type_hints

import msgspec
from starlette.requests import HTTPConnection, Request

from refold.canonical import decode_strict
from refold.errors import BadInput, InvalidJson, InvalidRequest
from refold.server.contract import PATH_IDS, Row

Json = Any
S = TypeVar("S", bound=msgspec.Struct)

BODY_BYTES: Final = 10 * 1024 * 1024
PATIENCE_BYTES: Final = 4 * BODY_BYTES
"""How much of a body that is too long is read before it is cut off."""
_JSON_TYPES: Final = ("application/json", "text/json")


class BodyTooLarge(BadInput):
    """A body beyond the cap."""

    kind = "body_too_large"

    def __init__(self) -> None:
        super().__init__(f"the body is longer than {BODY_BYTES} bytes", limit=BODY_BYTES)


class UnsupportedMediaType(BadInput):
    """A body that says it is no JSON."""

    kind = "unsupported_media_type"


def ids_of(request: HTTPConnection) -> Mapping[str, str]:
    """The parameters of the path. Raises InvalidId."""
    for name, text in request.path_params.items():
        PATH_IDS[name].check(text)
    return request.path_params


# -- bodies -----------------------------------------------------------------------------------------------------------


async def body_of(request: Request, row: Row) -> Any:
    """The body in its struct. Raises BodyTooLarge, UnsupportedMediaType, InvalidJson, InvalidRequest."""
    if row.body is None:
        return None
    data = await _bytes(request)
    if not data and row.body_may_be_absent:
        data = b"{}"
    else:
        _check_media_type(request.headers.get("content-type"))
    try:
        return msgspec.convert(decode_strict(data), row.body)
    except msgspec.ValidationError as error:
        raise InvalidRequest(f"the body does not fit: {error}") from None


async def _bytes(request: Request) -> bytes:
    """All of the body. Of one that is too long the rest is thrown away unkept, up to a bound.

    Most clients send first and read later: closed on in the middle, they would see a broken pipe and never the 413.
    """
    data, length = bytearray(), 0
    async for chunk in request.stream():
        length += len(chunk)
        if length > PATIENCE_BYTES:
            break
        if length <= BODY_BYTES:
            data += chunk
    if length > BODY_BYTES:
        raise BodyTooLarge
    return bytes(data)


def _check_media_type(told: str | None) -> None:
    """A client that does not say what it sends is believed to send JSON; one that says something else is not."""
    if told is None:
        return
    media_type = told.partition(";")[0].strip().lower()
    if media_type not in _JSON_TYPES and not media_type.endswith("+json"):
        raise UnsupportedMediaType(f"the body is {media_type[:80]!r}, expected application/json")


# -- queries ----------------------------------------------------------------------------------------------------------


def query_of(request: HTTPConnection, shape: type[S]) -> S:
    """The query in its struct. Raises InvalidRequest, whose `data["member"]` names what is wrong."""
    readers, given = _readers(shape), request.query_params
    members: dict[str, Json] = {}
    for name in dict.fromkeys(key for key, _ in given.multi_items()):
        if name not in readers:
            known = ", ".join(readers) or "none"
            raise InvalidRequest(f"unknown query name {name[:80]!r}; this route knows {known}", member=name[:80])
        members[name] = readers[name](name, given.getlist(name))
    try:
        return msgspec.convert(members, shape)
    except msgspec.ValidationError as error:
        raise InvalidRequest(f"the query does not fit: {error}", member=_member_of(error)) from None


def _member_of(error: msgspec.ValidationError) -> str | None:
    """The member that msgspec names at the end of its text: `Expected … - at `$.limit``."""
    _, _, path = str(error).rpartition("`$.")
    return path.rstrip("`").partition("[")[0] or None


def _text(name: str, texts: Sequence[str]) -> str:
    if len(texts) > 1:
        raise InvalidRequest(f"{name} is given {len(texts)} times", member=name)
    return texts[0]


def _number(name: str, texts: Sequence[str]) -> Json:
    text = _text(name, texts)
    try:
        number = decode_strict(text)
    except InvalidJson:
        number = None
    if not isinstance(number, int | float):  # a boolean is one here; its struct refuses it
        raise InvalidRequest(f"{name} is {text[:80]!r}, expected a number", member=name)
    return number


def _boolean(name: str, texts: Sequence[str]) -> bool:
    text = _text(name, texts)
    if text not in ("true", "false"):
        raise InvalidRequest(f"{name} is {text[:80]!r}, expected true or false", member=name)
    return text == "true"


def _texts(name: str, texts: Sequence[str]) -> list[str]:
    return list(texts)


_READERS: Final[Mapping[Any, Callable[[str, Sequence[str]], Json]]] = {
    bool: _boolean,
    int: _number,
    float: _number,
    list: _texts,
}
"""How the text of a member becomes JSON, by its declared type; whatever is not listed is text."""


@cache
def _readers(shape: type[msgspec.Struct]) -> Mapping[str, Callable[[str, Sequence[str]], Json]]:
    hints = get_type_hints(shape, include_extras=False)
    return {name: _READERS.get(_bare(hint), _text) for name, hint in hints.items()}


def _bare(hint: Any) -> Any:
    """The type behind `Annotated[…]`, `… | None` and type arguments."""
    origin = get_origin(hint)
    if origin is Annotated:
        return _bare(get_args(hint)[0])
    if origin in (Union, UnionType):
        return _bare(next(each for each in get_args(hint) if each is not NoneType))
    return origin or hint
