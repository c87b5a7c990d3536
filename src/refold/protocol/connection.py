"""One MSP connection, as the server sees it, without any I/O.

A transport feeds what it received and then collects two lists: what happened, and what to send.

    connection.receive_data(data)            # or receive_frame(text), where the transport has frames
    for event in connection.events(): …
    for frame in connection.data_to_send(): …

Both lists are handed over whole and start anew. `reply`, `fail`, `notify`, `relay` and `request` also leave something
to send; `next_to_send` hands it over frame by frame, so that `unsent_bytes` tells how far behind a slow reader is.
Laws: nothing that a peer sends raises; every request is answered exactly once, here or by `reply` or `fail`; the events
do not depend on how the bytes were chunked.

    NEW ──initialize──▶ INITIALIZED ──initialized──▶ READY

In NEW every other request is refused. In INITIALIZED calls are served already, but notifications and requests of ours
are held back until the client has said that it listens (MSP, handshake). No move leads back.

Not here: reading and writing (`server.stdio`, `server.websocket`), what the methods do (`server.rpc`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final

from refold.errors import RefoldError
from refold.protocol import jsonrpc, methods
from refold.protocol.jsonrpc import FrameTooLarge, Line, Notification, Refused, Request, RequestId, Response
from refold.protocol.messages import BOOKMARKS, HostInfo, initialize_result
from refold.protocol.methods import MethodRow, Params

Json = Any


class State(Enum):
    """How far the handshake has come."""

    NEW = "new"
    INITIALIZED = "initialized"
    READY = "ready"


MOVES: Final[Mapping[tuple[State, str], State]] = {
    (State.NEW, "initialize"): State.INITIALIZED,
    (State.INITIALIZED, "initialized"): State.READY,
}


@dataclass(frozen=True, slots=True, eq=False)
class Call:
    """A request to act on. It is answered once, with `reply` or `fail`."""

    id: RequestId
    method: str
    params: Params
    row: MethodRow


@dataclass(frozen=True, slots=True)
class Notified:
    """The client said something that needs no answer."""

    method: str
    params: Params


@dataclass(frozen=True, slots=True)
class Replied:
    """The client answered a request of ours: `result`, or `error` if that is not None."""

    id: int
    result: Json
    error: Json


Event = Call | Notified | Replied


class Connection:
    """The server's side of one connection.

    Args:
        host: what `initialize` answers, and the limits.
        handlers: the methods that the server has handlers for today.
        next_request_id: gives the ids of our requests. MSP wants them strictly increasing over the life of the process,
            so all connections of one process share it.

    Raises:
        ValueError: a handler for a method that cannot be served.
    """

    def __init__(self, host: HostInfo, handlers: Collection[str], next_request_id: Callable[[], int]) -> None:
        if unknown := set(handlers) - methods.SERVABLE:
            raise ValueError(f"no such method to handle: {', '.join(sorted(unknown))}")
        self._host = host
        self._limits = host.limits
        self._handlers = frozenset(handlers)
        self._next_request_id = next_request_id
        self._splitter = jsonrpc.Splitter(host.limits.frame_bytes)
        self._state = State.NEW
        self._client: Params = {}
        self._granted: tuple[str, ...] = ()
        self._unwanted: frozenset[str] = frozenset()
        """Notifications that the client has opted out of, or lacks the grant for."""
        self._open: dict[RequestId, Call] = {}
        self._asked: set[int] = set()
        self._held: list[tuple[str | None, bytes]] = []
        self._held_bytes = 0
        self._events: list[Event] = []
        self._frames: deque[bytes] = deque()
        self._unsent = 0

    # -- what is known of the client ----------------------------------------------------------------------------------

    @property
    def state(self) -> State:
        """How far the handshake has come."""
        return self._state

    @property
    def client_info(self) -> Params:
        """`clientInfo` of `initialize`: name, version and perhaps title; empty before."""
        return self._client.get("clientInfo", {})

    @property
    def granted(self) -> tuple[str, ...]:
        """The capabilities of this connection; fixed by `initialize`."""
        return self._granted

    @property
    def bookmarks(self) -> bool:
        """True if the client wants `view/caughtUp`."""
        return BOOKMARKS in self._granted

    @property
    def user_input_dialogs(self) -> bool:
        """False if the client said that it cannot show questions to a person."""
        return self._client.get("capabilities", {}).get("userInputDialogs", True)

    # -- receiving ----------------------------------------------------------------------------------------------------

    def receive_data(self, data: bytes) -> None:
        """Takes bytes of a stream, cut anywhere. Collect `events` and `data_to_send` afterwards."""
        for line in self._splitter.feed(data):
            if isinstance(line, Line):
                self._take(jsonrpc.read(line.data, self._limits))
            else:
                self._take(jsonrpc.read_oversize(line.head, self._limits.frame_bytes))

    def receive_frame(self, frame: str | bytes) -> None:
        """Takes one whole frame. Collect `events` and `data_to_send` afterwards."""
        data = frame.encode("utf-8", "surrogatepass") if isinstance(frame, str) else frame
        if len(data) > self._limits.frame_bytes:
            self._take(jsonrpc.read_oversize(data[: jsonrpc.HEAD_BYTES], self._limits.frame_bytes))
        else:
            self._take(jsonrpc.read(data, self._limits))

    def events(self) -> list[Event]:
        """Returns what happened since the last call, in order."""
        events, self._events = self._events, []
        return events

    def data_to_send(self) -> list[bytes]:
        """Returns what to send since the last call, in order: one frame each, LF included."""
        frames = list(self._frames)
        self._frames.clear()
        self._unsent = 0
        return frames

    def next_to_send(self) -> bytes | None:
        """Returns the next frame to send, LF included; None if there is none."""
        if not self._frames:
            return None
        frame = self._frames.popleft()
        self._unsent -= len(frame)
        return frame

    @property
    def unsent_bytes(self) -> int:
        """How many bytes of frames wait to be collected."""
        return self._unsent

    # -- answering ----------------------------------------------------------------------------------------------------

    def reply(self, call: Call, result: Mapping[str, Json]) -> None:
        """Answers a call. A result above the frame cap is answered with a typed error in its place.

        Raises:
            ValueError: the call was answered before.
            InvalidJson: the result is no JSON; the call stays open.
        """
        self._require_open(call)
        try:
            frame = jsonrpc.write_result(call.id, result, self._limits.frame_bytes)
        except FrameTooLarge as error:
            self.fail(call, RefoldError(error.message, kind=call.row.too_large, **error.data))
            return
        del self._open[call.id]
        self._send(frame)

    def fail(self, call: Call, error: RefoldError) -> None:
        """Answers a call with an error. Ids that stand in its params need not be repeated in the error.

        Raises:
            ValueError: the call was answered before.
        """
        self._require_open(call)
        del self._open[call.id]
        self._refuse(call.id, error, call.params)

    # -- speaking up --------------------------------------------------------------------------------------------------

    def wants(self, method: str) -> bool:
        """Whether a notification would be sent, or held for a client that has not said yet what it wants."""
        return self._state is not State.READY or method not in self._unwanted

    def notify(self, method: str, params: Json = None, emitted_at_ms: int | None = None) -> None:
        """Sends a notification, unless the client has opted out of it or lacks the grant for it.

        Raises:
            FrameTooLarge: it is above the cap and was not sent.
            RefoldError: `backpressured`, if the client is not ready and too much is held for it already.
        """
        if self.wants(method):
            self._push(method, jsonrpc.write_notification(method, params, emitted_at_ms, self._limits.frame_bytes))

    def relay(self, method: str, text: bytes, emitted_at_ms: int) -> None:
        """As `notify`, of what many are told: `text` is the notification, `{"method":…,"params":…}`, written once."""
        if self.wants(method):
            self._push(method, jsonrpc.wrap_notification(text, emitted_at_ms, self._limits.frame_bytes))

    def request(self, method: str, params: Json = None) -> int:
        """Sends a request and returns its id, which the `Replied` event will carry. Errors as `notify`."""
        request_id = self._next_request_id()
        self._push(None, jsonrpc.write_request(request_id, method, params, self._limits.frame_bytes))
        self._asked.add(request_id)
        return request_id

    # -- inside -------------------------------------------------------------------------------------------------------

    def _take(self, message: jsonrpc.Message) -> None:
        match message:
            case Refused(request_id, error):
                self._refuse(request_id, error)
            case Request():
                try:
                    self._answer(message)
                except RefoldError as error:
                    self._refuse(message.id, error)
            case Notification(method, params):
                self._heed(method, params)
            case Response(request_id, result, error) if type(request_id) is int and request_id in self._asked:
                self._asked.remove(request_id)
                self._events.append(Replied(request_id, result, error))
            case _:
                pass  # an answer to nothing. An error in return could start an endless exchange of errors

    def _answer(self, request: Request) -> None:
        if request.method == "initialize":
            self._initialize(request)
        elif self._state is State.NEW:
            raise RefoldError("the first request is initialize", kind="not_initialized")
        else:
            self._open_call(request)

    def _initialize(self, request: Request) -> None:
        if (self._state, request.method) not in MOVES:
            raise RefoldError("initialize comes once", kind="already_initialized")
        client = methods.parse(methods.TABLE[request.method], request.params)
        wishes = client.get("capabilities", {})
        grantable = methods.grantable(self._handlers, self._host.ephemeral)
        granted = tuple(name for name in grantable if name in wishes.get("requestedCapabilities", ()))
        self._send(jsonrpc.write_result(request.id, initialize_result(self._host, granted)))
        self._client, self._granted = client, granted
        opted_out = frozenset(wishes.get("optOutNotificationMethods", ())) - methods.PROTECTED
        self._unwanted = opted_out | {
            method for method, needed in methods.NOTIFICATION_CAPABILITIES.items() if needed not in granted
        }
        self._state = MOVES[self._state, request.method]

    def _open_call(self, request: Request) -> None:
        if request.id in self._open:
            raise RefoldError("this id belongs to a request that is still open", kind="not_a_request")
        if len(self._open) >= self._limits.open_requests:
            text = f"{len(self._open)} requests of this connection are open; wait for an answer"
            raise RefoldError(text, kind="overloaded")
        row = methods.find(request.method, self._handlers, self._granted, self._host.ephemeral)
        call = Call(request.id, request.method, methods.parse(row, request.params, self._granted), row)
        self._open[call.id] = call
        self._events.append(call)

    def _heed(self, method: str, params: Json) -> None:
        if method == "initialized" and (self._state, method) in MOVES:
            self._state = MOVES[self._state, method]
            self._release()
        elif self._state is not State.NEW and (shape := methods.CLIENT_NOTIFICATIONS.get(method)) is not None:
            with suppress(RefoldError):  # a notification has no answer, not even a refusal
                self._events.append(Notified(method, methods.convert(method, shape, params)))

    def _push(self, method: str | None, frame: bytes) -> None:
        if self._state is State.READY:
            self._send(frame)
            return
        if self._held_bytes + len(frame) > self._limits.held_bytes:
            text = f"{self._held_bytes} bytes are held for a client that has not sent initialized"
            raise RefoldError(text, kind="backpressured", capacity=self._limits.held_bytes)
        self._held.append((method, frame))
        self._held_bytes += len(frame)

    def _release(self) -> None:
        # Only now is it known what the client wants: a frame may have been held since before `initialize`.
        for method, frame in self._held:
            if method not in self._unwanted:
                self._send(frame)
        self._held.clear()

    def _refuse(self, request_id: RequestId | None, error: RefoldError, asked: Json = None) -> None:
        self._send(jsonrpc.write_error(request_id, error, asked, self._limits.frame_bytes))

    def _send(self, frame: bytes) -> None:
        self._frames.append(frame)
        self._unsent += len(frame)

    def _require_open(self, call: Call) -> None:
        if self._open.get(call.id) is not call:
            raise ValueError(f"request {call.id!r} ({call.method}) has been answered")
