"""NDJSON frames and JSON-RPC 2.0: bytes into frames, frames into messages, messages into bytes.

    bytes ──Splitter──▶ Line | Oversize ──read──▶ Request | Notification | Response | Refused
    values ──write_*──▶ one frame of bytes, LF included, never a CR, never above the cap

Nothing here raises because of what a peer sent: what cannot be accepted becomes a `Refused`, the error to answer.

Not here: the codes of errors (`codes`), which methods exist (`methods`), in which order frames may come (`connection`).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Final, TypeGuard

from refold import canonical
from refold.errors import InvalidJson, RefoldError
from refold.protocol.codes import error_object

Json = Any
RequestId = int | str

FRAME_LIMIT: Final = 10 * 1024 * 1024
"""MSP's cap on one frame, in bytes, either way."""
HEAD_BYTES: Final = 4096
"""How much of an oversize frame is kept to look for its request id."""
ID_CHARS: Final = 128
"""A longer request id is refused: every answer repeats it, so one of 10 MiB could not be answered below the cap."""


# -- bytes into frames ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Line:
    """One frame as it came, without its line end."""

    data: bytes


@dataclass(frozen=True, slots=True)
class Oversize:
    """A line over the cap. Only its head was kept."""

    head: bytes


class Splitter:
    """Cuts a stream of bytes into lines. Law: how the stream was chunked changes nothing.

    Lines end with LF; one CR before it is tolerated, empty lines are skipped (MSP). A line over `limit` is reported
    as soon as it is too long and then skipped up to its LF, so that memory stays bounded. What follows the last LF is
    never reported: it may be half a command.
    """

    def __init__(self, limit: int = FRAME_LIMIT) -> None:
        self._limit = limit
        self._head = min(limit, HEAD_BYTES)
        self._line = bytearray()
        self._skipping = False

    @property
    def buffered(self) -> int:
        """How many bytes of an unfinished line are held; never more than the limit."""
        return len(self._line)

    def feed(self, data: bytes) -> list[Line | Oversize]:
        """Takes the next bytes and returns the lines that they complete."""
        found: list[Line | Oversize] = []
        *ended, rest = data.split(b"\n")
        for part in ended:
            self._extend(part, found)
            self._end(found)
        self._extend(rest, found)
        return found

    def _extend(self, part: bytes, found: list[Line | Oversize]) -> None:
        if self._skipping:
            return
        if len(self._line) + len(part) <= self._limit:
            self._line += part
            return
        self._line += part[: self._head]
        found.append(Oversize(bytes(self._line[: self._head])))
        self._line.clear()
        self._skipping = True

    def _end(self, found: list[Line | Oversize]) -> None:
        if line := bytes(self._line).removesuffix(b"\r"):
            found.append(Line(line))
        self._line.clear()
        self._skipping = False


# -- frames into messages ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Request:
    """A call of the peer. `params` are as they came; None if there were none."""

    id: RequestId
    method: str
    params: Json


@dataclass(frozen=True, slots=True)
class Notification:
    """A message that wants no answer."""

    method: str
    params: Json


@dataclass(frozen=True, slots=True)
class Response:
    """The peer's answer to a request of ours. Exactly one of `result` and `error` means something."""

    id: Json
    result: Json
    error: Json


@dataclass(frozen=True, slots=True)
class Refused:
    """A frame that is answered with an error; `id` is None when the frame does not say whose it is."""

    id: RequestId | None
    error: RefoldError


Message = Request | Notification | Response | Refused


@dataclass(frozen=True, slots=True)
class Caps:
    """What the JSON of one inbound frame may be."""

    depth: int = canonical.MAX_DEPTH
    keys: int = canonical.MAX_KEYS
    number_chars: int = canonical.MAX_NUMBER


def read(frame: bytes | str, caps: Caps) -> Message:
    """Reads one frame. Total: every text gives a message, those that are none give `Refused`."""
    try:
        value = canonical.decode_strict(frame, max_depth=caps.depth, max_keys=caps.keys, max_number=caps.number_chars)
    except InvalidJson as error:
        return Refused(None, RefoldError(error.message, kind="parse_error", reason=error.data.get("reason")))
    return _classify(value)


def read_oversize(head: bytes, limit: int) -> Refused:
    """Tells what to answer to a frame over the cap, of which only the head is known."""
    kind, request_id = ("parse_error", None) if (found := _id_in(head)) is None else ("input_too_large", found)
    return Refused(request_id, RefoldError(f"a frame has at most {limit} bytes", kind=kind, limit_bytes=limit))


def _classify(value: Json) -> Message:
    if not isinstance(value, dict):
        return _refused(None, "a frame is one JSON object; MSP has no batches")
    is_answer = "method" not in value and ("result" in value or "error" in value)
    # An answer's id is one of ours: repeated in an error it would end a request of the peer that has the same number.
    echo = value.get("id") if _is_id(value.get("id")) and not is_answer else None
    if value.get("jsonrpc") != "2.0":
        return _refused(echo, 'every frame has "jsonrpc": "2.0"')
    if is_answer:
        return Response(value.get("id"), value.get("result"), value.get("error"))
    if not isinstance(method := value.get("method"), str):
        return _refused(echo, "a request has a method, and it is a string")
    if "id" not in value:
        return Notification(method, value.get("params"))
    if echo is None:
        return _refused(None, f"a request id is an integer or a string of at most {ID_CHARS} characters")
    return Request(echo, method, value.get("params"))


def _refused(request_id: RequestId | None, text: str) -> Refused:
    return Refused(request_id, RefoldError(text, kind="not_a_request"))


def _is_id(value: Json) -> TypeGuard[RequestId]:
    # type(), not isinstance(): True is an int, and would be answered as the request 1.
    return type(value) is int or (isinstance(value, str) and len(value) <= ID_CHARS)


_TEXT = rb'"(?:[^"\\\x00-\x1f]|\\.)*+"'
_MEMBER: Final = re.compile(
    rb'\s*+[{,]\s*+"(?P<name>\w++)"\s*+:\s*+(?P<value>' + _TEXT + rb"|-?\d++(?=\s*+[,}])|true|false|null)"
)


def _id_in(head: bytes) -> RequestId | None:
    """Finds the id of a request whose tail is missing: members are read from the left while they are plain.

    Without a method it may as well be an answer to a request of ours, and its id must not be repeated.
    """
    members: dict[bytes, bytes] = {}
    at = 0
    while member := _MEMBER.match(head, at):
        members[member["name"]] = member["value"]
        at = member.end()
    if b"method" not in members:
        return None
    try:
        found = canonical.decode_strict(members.get(b"id", b"null"))
    except InvalidJson:
        return None
    return found if _is_id(found) else None


# -- messages into bytes ----------------------------------------------------------------------------------------------


class FrameTooLarge(RefoldError):
    """A frame of ours would exceed the cap; it was not sent. Clients drop such a line and wait for ever."""

    kind = "frame_too_large"


def write_request(request_id: int, method: str, params: Json, limit: int = FRAME_LIMIT) -> bytes:
    """Encodes a request of ours. Raises FrameTooLarge."""
    return _write(_present({"id": request_id, "method": method, "params": params}), limit)


def write_notification(method: str, params: Json, emitted_at_ms: int | None, limit: int = FRAME_LIMIT) -> bytes:
    """Encodes a notification. `emitted_at_ms` stands beside `params`, not inside. Raises FrameTooLarge."""
    return _write(_present({"method": method, "params": params, "emittedAtMs": emitted_at_ms}), limit)


def wrap_notification(text: bytes, emitted_at_ms: int, limit: int = FRAME_LIMIT) -> bytes:
    """As `write_notification`, byte for byte, of what many are told: `text` is `{"method":…,"params":…}`, written once.

    Raises FrameTooLarge.
    """
    return _checked(b'{"jsonrpc":"2.0",%b,"emittedAtMs":%d}\n' % (text[1:-1], emitted_at_ms), limit)


def write_result(request_id: RequestId, result: Json, limit: int = FRAME_LIMIT) -> bytes:
    """Encodes the answer to a request. Raises FrameTooLarge."""
    return _write({"id": request_id, "result": result}, limit)


def write_error(
    request_id: RequestId | None, error: RefoldError, asked: Json = None, limit: int = FRAME_LIMIT
) -> bytes:
    """Encodes a refusal. Total: if its data cannot be sent, its code and kind still are.

    Args:
        request_id: whose answer it is; None if the frame could not be read.
        error: what `codes.ERRORS` maps.
        asked: the params of the refused request; they say which session, command or item it was about.
        limit: the cap on the frame.
    """
    said = error_object(error, asked)
    try:
        return _write({"id": request_id, "error": said}, limit)
    except (FrameTooLarge, InvalidJson):
        kind = said["data"]["kind"]
        return _write({"id": request_id, "error": {"code": said["code"], "message": kind, "data": {"kind": kind}}})


def _present(frame: dict[str, Json]) -> dict[str, Json]:
    return {name: value for name, value in frame.items() if value is not None}


def _write(frame: dict[str, Json], limit: int = FRAME_LIMIT) -> bytes:
    return _checked(canonical.encode({"jsonrpc": "2.0", **frame}).encode() + b"\n", limit)


def _checked(data: bytes, limit: int) -> bytes:
    if len(data) > limit:
        raise FrameTooLarge(f"the frame would have {len(data)} bytes, the cap is {limit}", limit_bytes=limit)
    return data
