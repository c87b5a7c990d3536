"""MSP calls onto the services: one handler a method, and the peer that a transport feeds.

A peer handles its calls one after the other, so that answers come in the order of the questions. An answer is sent
before what it starts: a subscription begins to deliver strictly after the answer that names its position.

Not here: frames, handshake, params (`protocol`), what the verbs do (`service`), bytes (`stdio`, `websocket`).
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, Self

import msgspec
import structlog

from refold import __version__
from refold.errors import BoundaryPruned, CommandRejected, RefoldError
from refold.protocol import Call, Connection, HostInfo
from refold.records import SessionRecord
from refold.service.app import App
from refold.service.sessions import Served, SessionInfo
from refold.view import Position, Preference, rfc3339

Json = Any
log = structlog.get_logger("refold.rpc")
Send = Callable[[bytes], Awaitable[None]]

LIST_LIMIT: Final = 50


class Answer(msgspec.Struct, frozen=True):
    """What a handler answers, and what begins once it is sent."""

    result: Mapping[str, Json]
    then: Callable[[], None] | None = None


class Rpc:
    """What all connections of a process share."""

    def __init__(self, app: App, muse_home: str) -> None:
        self.app = app
        durable = app.settings.store is not None
        self.host = HostInfo(
            version=__version__,
            muse_home=muse_home,
            platform_os="linux",
            durability="durable" if durable else "ephemeral",
        )
        self.path = str(app.settings.store or "")
        self._ids = itertools.count(1)
        self._peers: set[Peer] = set()
        self._flushes: set[asyncio.Task[None]] = set()

    def next_id(self) -> int:
        """The id of the next request of ours: increasing over all connections of the process."""
        return next(self._ids)

    def join(self, peer: Peer) -> None:
        self._peers.add(peer)

    def leave(self, peer: Peer) -> None:
        self._peers.discard(peer)

    def broadcast(self, method: str, params: Json) -> None:
        """Tells every connection. Nobody waits for a slow one."""
        for peer in self._peers:
            peer.notify(method, params)
            task = asyncio.create_task(peer.flush())
            self._flushes.add(task)
            task.add_done_callback(self._flushes.discard)

    def session(self, info: SessionInfo) -> Json:
        """The Session object of the protocol."""
        row = info.session
        idle = "idle" if info.loaded else "notLoaded"
        shown = {
            "sessionId": row.session_id,
            "status": "running" if row.active_run is not None else idle,
            "activeTurnId": row.active_turn,
            "turnCount": row.turns,
            "path": self.path,
            "createdAt": rfc3339(row.created_at),
            "updatedAt": rfc3339(row.updated_at),
            "workspaceRoot": row.workspace_root,
            "providerId": None,
            "modelId": row.model_id,
            "forkedFrom": None,
            "approvalMode": {"mode": "promptUnmatched", "source": "startup", "lastCommandId": None},
        }
        return shown if row.name is None else shown | {"name": row.name}


class Peer:
    """One connection: feed it what arrived; it sends through `send`. Use it as an async context."""

    def __init__(self, rpc: Rpc, send: Send) -> None:
        self._rpc = rpc
        self._app = rpc.app
        self._send = send
        self._connection = Connection(rpc.host, HANDLERS, rpc.next_id)
        self._sending = asyncio.Lock()
        self._pumps: dict[int, asyncio.Task[None]] = {}

    async def __aenter__(self) -> Self:
        self._rpc.join(self)
        return self

    async def __aexit__(self, *_: object) -> None:
        self._rpc.leave(self)
        for session_n in list(self._pumps):
            self._unsubscribe(session_n)

    async def receive_data(self, data: bytes) -> None:
        """Takes bytes of a stream and returns once all calls in them are answered."""
        self._connection.receive_data(data)
        await self._serve()

    async def receive_frame(self, frame: str | bytes) -> None:
        """Takes one whole frame and returns once it is answered."""
        self._connection.receive_frame(frame)
        await self._serve()

    def notify(self, method: str, params: Json) -> None:
        """Leaves a notification to send with the next flush."""
        self._connection.notify(method, params, self._app.clock.now_ms())

    async def flush(self) -> None:
        """Sends what is there, in order. Whoever calls waits for a slow reader; nobody else does."""
        async with self._sending:
            for frame in self._connection.data_to_send():
                await self._send(frame)

    async def _serve(self) -> None:
        for event in self._connection.events():
            if isinstance(event, Call):
                await self._answer(event)
        await self.flush()

    async def _answer(self, call: Call) -> None:
        try:
            answer = await HANDLERS[call.method](self, call.params)
        except RefoldError as error:
            self._connection.fail(call, error)
        except Exception as error:
            log.error("call_failed", method=call.method, error=repr(error), exc_info=error)
            self._connection.fail(call, RefoldError("unexpected"))
        else:
            self._connection.reply(call, answer.result)
            await self.flush()
            if answer.then is not None:
                answer.then()

    # -- subscriptions ------------------------------------------------------------------------------------------------

    def _subscribe(self, session: SessionRecord, after: Position) -> None:
        """Starts, or moves, this connection's one subscription of the Session."""
        self._unsubscribe(session.n)
        self._pumps[session.n] = asyncio.create_task(self._pump(session, after))

    def _unsubscribe(self, session_n: int) -> None:
        pump = self._pumps.pop(session_n, None)
        if pump is not None:
            pump.cancel()

    async def _pump(self, session: SessionRecord, after: Position) -> None:
        try:
            async for batch in self._app.sessions.subscription(session, after).frames():
                for _, frame in batch:
                    self.notify(frame["method"], frame["params"])
                await self.flush()
        except Exception as error:
            log.error("subscription_ended", session_id=session.session_id, error=repr(error), exc_info=error)

    # -- handlers -----------------------------------------------------------------------------------------------------

    async def session_start(self, params: Json) -> Answer:
        client = self._connection.client_info.get("name", "unknown")
        info, position, cursor = await self._app.sessions.start(
            params["commandId"],
            params,
            session_id=params.get("sessionId"),
            model=params.get("modelId"),
            workspace_root=params.get("workspaceRoot"),
            client=client,
        )
        session = self._rpc.session(info)
        self._rpc.broadcast("session/started", {"session": session})
        return Answer({"session": session, "viewCursor": cursor}, lambda: self._subscribe(info.session, position))

    async def session_resume(self, params: Json) -> Answer:
        served = await self._app.sessions.resume(
            params["commandId"],
            params,
            session_id=params["sessionId"],
            cursor=params.get("cursor"),
            preference=params.get("history", Preference.AUTO),
            exclude_items=params.get("excludeItems", False),
        )
        return Answer(self._served(served), lambda: self._subscribe(served.info.session, served.after))

    async def session_read(self, params: Json) -> Answer:
        exclude = params.get("excludeItems", True)
        return Answer(self._served(await self._app.sessions.read(params["sessionId"], exclude_items=exclude)))

    async def session_list(self, params: Json) -> Answer:
        found = await self._app.sessions.list(
            params.get("limit", LIST_LIMIT), workspace_root=params.get("workspaceRoot")
        )
        return Answer({"sessions": [self._rpc.session(info) for info in found], "nextCursor": None})

    async def model_list(self, params: Json) -> Answer:
        heads = await self._app.blueprints.heads()
        models = [{"modelId": head.blueprint_id, "displayLabel": head.blueprint_id} for head in heads]
        return Answer({"models": models})

    async def view_subscribe(self, params: Json) -> Answer:
        session, position, head = await self._app.sessions.subscribe(params["sessionId"], params.get("after"))
        return Answer({"viewCursor": head}, lambda: self._subscribe(session, position))

    async def view_unsubscribe(self, params: Json) -> Answer:
        served = await self._app.sessions.read(params["sessionId"], exclude_items=True)
        self._unsubscribe(served.info.session.n)
        return Answer({})

    async def view_page(self, params: Json) -> Answer:
        if "anchor" in params:
            raise BoundaryPruned(
                "no boundary was ever installed in this session", kind="no_boundary", session_id=params["sessionId"]
            )
        page = await self._app.sessions.page(
            params["sessionId"],
            params.get("cursor"),
            params["limit"],
            backward=params.get("direction") == "backward",
        )
        return Answer({"events": page.frames, "nextCursor": page.next_cursor})

    async def turn_start(self, params: Json) -> Answer:
        parts = params["input"]
        if strange := [part["type"] for part in parts if part["type"] != "text"]:
            raise CommandRejected(
                f"input parts of type {strange[0]} are not taken; send text",
                reason="unsupported_input",
                command_id=params["commandId"],
            )
        ack = await self._app.sessions.start_turn(
            params["commandId"],
            params,
            session_id=params["sessionId"],
            text="\n".join(part["text"] for part in parts),
            display=params.get("displayText"),
            if_busy=params.get("ifBusy", "queue"),
        )
        return Answer(
            {
                "commandId": params["commandId"],
                "status": "accepted",
                "turnId": ack.turn_id,
                "disposition": ack.disposition,
                "startedNewTurn": ack.disposition == "started",
            }
        )

    async def item_read_output(self, params: Json) -> Answer:
        part = await self._app.sessions.read_output(
            params["sessionId"],
            params["itemId"],
            params["outputRef"],
            offset=params.get("offsetBytes", 0),
            length=params.get("lengthBytes"),
        )
        return Answer(
            {
                "content": part.content,
                "encoding": "utf8",
                "byteLen": part.byte_len,
                "offsetBytes": part.offset,
                "eof": part.eof,
                "mediaType": part.media_type,
            }
        )

    def _served(self, served: Served) -> Json:
        answer = {
            "session": self._rpc.session(served.info),
            "viewCursor": served.cursor,
            "history": served.history,
            "pendingRequests": [],
        }
        return answer if served.last_turn is None else answer | {"lastTurn": served.last_turn}


HANDLERS: Final[Mapping[str, Callable[[Peer, Json], Awaitable[Answer]]]] = {
    "session/start": Peer.session_start,
    "session/resume": Peer.session_resume,
    "session/read": Peer.session_read,
    "session/list": Peer.session_list,
    "model/list": Peer.model_list,
    "view/subscribe": Peer.view_subscribe,
    "view/unsubscribe": Peer.view_unsubscribe,
    "view/page": Peer.view_page,
    "turn/start": Peer.turn_start,
    "item/readOutput": Peer.item_read_output,
}
"""What this server serves today; every other row of `protocol.TABLE` answers methodNotFound."""
