"""WebSocket `/v1/operators/{sid}/ws`: offers are pushed, submissions come as frames. One JSON object a message.

| to the operator | |
|---|---|
| `{"type": "offer", "offer": …}` | work, held from now on; at most `at_once` at a time |
| `{"type": "gone", "step_id", "attempt"}` | what was offered is over without this operator: stop working on it |
| `{"type": "accepted", "step_id", "attempt", "run_id", "status"}` | its submission is on record |
| `{"type": "refused", "code", "error", "kind", …}` | it is not; `code` is the status that HTTP would answer with |

| from the operator | |
|---|---|
| `{"type": "submit", "step_id", "attempt", "outcome", "value"?, "parts"?}` | what came of it |

An open socket is presence: what was taken over it is held until it closes, and for the operator's lease after that.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import Any, Literal

import msgspec
from starlette.websockets import WebSocket, WebSocketDisconnect

from refold.canonical import decode_strict, encode
from refold.engine.agents.operator import Key, Offer
from refold.errors import InvalidRequest, NotFound, RefoldError
from refold.server.api.operators import own
from refold.server.guard import BEARER_PROTOCOL
from refold.server.http_errors import body_of, status_of
from refold.server.operators import SocketQuery
from refold.server.operators import offer as shape_of
from refold.server.reading import ids_of, query_of
from refold.service.app import App
from refold.service.submissions import Submission

Json = Any

GOING_AWAY, ENDED = 1001, 1008
"""Close codes: the server ends; the operator was ended."""


class Submit(Submission, frozen=True, kw_only=True):
    """A submission as a frame."""

    type: Literal["submit"]


def endpoint(app: App) -> Callable[[WebSocket], Awaitable[None]]:
    """The endpoint of operators' sockets. Raises Forbidden, InvalidId, InvalidRequest, NotFound before it accepts."""

    async def serve(socket: WebSocket) -> None:
        sid = own(ids_of(socket)["sid"], socket.scope["refold.who"])
        query = query_of(socket, SocketQuery)
        with app.operators.present(sid, query.holding):
            offered = socket.scope.get("subprotocols", [])
            await socket.accept(next((name for name in offered if name.startswith(BEARER_PROTOCOL)), None))
            await _Socket(app, socket, sid, query.at_once).serve()

    return serve


class _Socket:
    """One open socket: it hears and offers at the same time, until either ends."""

    def __init__(self, app: App, socket: WebSocket, sid: str, at_once: int) -> None:
        self._app = app
        self._socket = socket
        self._sid = sid
        self._at_once = at_once
        self._watches: dict[Key, asyncio.Task[None]] = {}
        self._room = asyncio.Event()
        self._gone = False
        self._sending = asyncio.Lock()
        self._answering = asyncio.Lock()

    async def serve(self) -> None:
        """Serves until the client goes away, the operator is ended, or the server ends."""
        operators = self._app.operators
        for offer in operators.held(self._sid):
            self._watch(offer)
        work = (self._hear(), self._offer(), operators.until_ended(self._sid))
        tasks = [asyncio.create_task(each) for each in work]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            await _stop(*tasks, *self._watches.values())
        if not self._gone:
            await self._socket.close(GOING_AWAY if operators.knows(self._sid) else ENDED)

    async def _offer(self) -> None:
        """Sends one offer after the other, as long as there is room."""
        with contextlib.suppress(NotFound):  # the operator was ended
            while (offer := await self._next()) is not None:
                self._watch(offer)
                await self._send({"type": "offer", "offer": shape_of(offer)})

    async def _next(self) -> Offer | None:
        while len(self._watches) >= self._at_once:
            self._room.clear()
            await self._room.wait()
        return await self._app.operators.take(self._sid)

    def _watch(self, offer: Offer) -> None:
        if offer.key not in self._watches:  # a poll of the same operator may have given it back in between
            self._watches[offer.key] = asyncio.create_task(self._until_over(offer))

    async def _until_over(self, offer: Offer) -> None:
        await offer.ended.wait()
        async with self._answering:  # what is being submitted is acknowledged before the next offer is sent
            del self._watches[offer.key]
        self._room.set()
        if offer.submitter != self._sid:
            await self._send({"type": "gone", "step_id": offer.work.step_id, "attempt": offer.work.attempt})

    async def _hear(self) -> None:
        while (message := await self._socket.receive())["type"] != "websocket.disconnect":
            async with self._answering:
                await self._send(await self._answer(message.get("text") or message.get("bytes") or b""))
        self._gone = True

    async def _answer(self, text: str | bytes) -> Json:
        ids: Json = {}
        try:
            said = _submit(text)
            ids = {"step_id": said.step_id, "attempt": said.attempt}
            accepted = await self._app.submissions.submit(said, self._sid)
        except RefoldError as error:
            return {"type": "refused", "code": status_of(error), **ids, **body_of(error)}
        return {"type": "accepted", **msgspec.to_builtins(accepted)}

    async def _send(self, frame: Json) -> None:
        async with self._sending:
            with contextlib.suppress(WebSocketDisconnect, RuntimeError):  # it was closed; hearing ends too
                await self._socket.send_text(encode(frame))


async def _stop(*tasks: asyncio.Task[None]) -> None:
    """Ends tasks. A fault in one of them is a bug of ours, and is raised."""
    for task in tasks:
        task.cancel()
    for ended in await asyncio.gather(*tasks, return_exceptions=True):
        if isinstance(ended, Exception):
            raise ended


def _submit(text: str | bytes) -> Submit:
    try:
        return msgspec.convert(decode_strict(text), Submit)
    except msgspec.ValidationError as error:
        raise InvalidRequest(f"the frame does not fit: {error}") from None
