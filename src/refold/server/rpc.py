"""MSP calls onto the services: one handler a method, and the peer that a transport feeds.

A peer handles its calls one after the other, so that answers come in the order of the questions. An answer is sent
before what it starts: a subscription begins to deliver strictly after the answer that names its position.

Not here: frames, handshake, params (`protocol`), what the verbs do (`service`), bytes (`stdio`, `websocket`).
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import Awaitable, Callable, Coroutine, Generator, Mapping
from typing import Any, Final, Self

import msgspec

from refold import __version__, diagnostics
from refold.canonical import encode
from refold.errors import CommandRejected, Conflict, NotFound, RefoldError
from refold.flowir.lifecycle import Verb
from refold.protocol import Call, Connection, HostInfo, State
from refold.records import RequestRow, SessionRecord
from refold.service.app import App
from refold.service.loads import Change
from refold.service.requests import pointer
from refold.service.sessions import Served, SessionInfo
from refold.session import Batch, Subscription
from refold.view import Position, Preference, rfc3339

Json = Any
log = diagnostics.Log("refold.rpc")
Send = Callable[[bytes], Awaitable[None]]

LIST_LIMIT: Final = 50

NOTICE_BYTES: Final = 1024 * 1024
"""How many unsent bytes a connection may have and still be told what it has not asked for."""


class PeerGone(Exception):
    """What a transport's `send` raises when nobody is at the other end any more."""


class Answer(msgspec.Struct, frozen=True):
    """What a handler answers, and after which position of which Session the connection is subscribed from then on.

    `asks` are the pending requests that the client is asked after the answer: the event that opened each, its params.
    """

    result: Mapping[str, Json]
    follow: tuple[SessionRecord, Position] | None = None
    asks: tuple[tuple[str, Json], ...] = ()
    told: tuple[tuple[str, Json], ...] = ()
    """Notifications that follow the answer: method and params."""


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
        self._told_of_changes = self._changed  # one object, so that leaving finds what listens

    def next_id(self) -> int:
        """The id of the next request of ours: increasing over all connections of the process."""
        return next(self._ids)

    async def join(self, peer: Peer) -> None:
        if not self._peers:
            await self.app.loads.listen(self._told_of_changes)
        self._peers.add(peer)
        self.app.metrics.connections = len(self._peers)

    def leave(self, peer: Peer) -> None:
        self._peers.discard(peer)
        if not self._peers:
            self.app.loads.leave(self._told_of_changes)
        self.app.metrics.connections = len(self._peers)

    def broadcast(self, method: str, params: Json) -> None:
        """Tells every connection. Nobody waits for a slow one."""
        if listeners := [peer for peer in self._peers if peer.wants(method)]:
            text = encode({"method": method, "params": params}).encode()
            for peer in listeners:
                peer.tell(method, text)

    def _changed(self, change: Change) -> None:
        """Tells every connection how a Session stands now, and those that keep a list the whole of its row."""
        info = change.info
        session_id = info.session.session_id
        if change.closed is not None:
            closed = {"sessionId": session_id, "reason": change.closed, "viewCursor": change.cursor}
            self.broadcast("session/closed", closed)
            return
        if change.flipped:
            standing = {"sessionId": session_id, "status": info.status, "attention": list(info.attention)}
            self.broadcast("session/statusChanged", standing | {"viewCursor": None})
        self.broadcast("session/listChanged", {"session": self.session(info)})

    def session(self, info: SessionInfo) -> Json:
        """The Session object of the protocol."""
        row = info.session
        shown = {
            "sessionId": row.session_id,
            "status": info.status,
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
            "attention": list(info.attention),
        }
        return shown if row.name is None else shown | {"name": row.name}


class Peer:
    """One connection: feed it what arrived; it sends through `send`. Use it as an async context."""

    def __init__(self, rpc: Rpc, send: Send) -> None:
        self._rpc = rpc
        self._app = rpc.app
        self._send = send
        self._connection = Connection(rpc.host, HANDLERS, rpc.next_id)
        self._speaking = asyncio.Lock()
        """Held by whoever has something to say until it is sent: an answer and what it starts, a batch, notices."""
        self._noticing: asyncio.Task[None] | None = None
        self._listens = asyncio.Event()
        self._subscriptions: dict[int, Subscription] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._has_asked: set[str] = set()

    async def __aenter__(self) -> Self:
        await self._rpc.join(self)
        return self

    async def __aexit__(self, *_: object) -> None:
        self._rpc.leave(self)
        for session_n in list(self._subscriptions):
            self._unsubscribe(session_n)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def receive_data(self, data: bytes) -> None:
        """Takes bytes of a stream and returns once all calls in them are answered. Raises PeerGone."""
        self._connection.receive_data(data)
        await self._serve()

    async def receive_frame(self, frame: str | bytes) -> None:
        """Takes one whole frame and returns once it is answered. Raises PeerGone."""
        self._connection.receive_frame(frame)
        await self._serve()

    def wants(self, method: str) -> bool:
        """As `Connection.wants`."""
        return self._connection.wants(method)

    def tell(self, method: str, text: bytes) -> None:
        """Sends a notification that the peer has not asked for, and waits for nothing. `text` as `Connection.relay`.

        Such notices are not protected: a peer that does not read what it was sent before is not told, and they cost no
        more than `NOTICE_BYTES`. What they say stands in the Session objects of `session/list` as well.
        """
        if self._connection.unsent_bytes > NOTICE_BYTES:
            self._app.metrics.notices_dropped += 1
            return
        try:
            self._connection.relay(method, text, self._app.clock.now_ms())
        except RefoldError as error:
            log.info("peer_not_told", method=method, reason=str(error))
        if self._noticing is None or self._noticing.done():  # else it takes along what comes meanwhile
            self._noticing = self._spawn(self._send_notices())

    async def _send_notices(self) -> None:
        with contextlib.suppress(PeerGone):  # its transport knows, and ends it
            async with self._speaking:
                await self._flush()

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def _notify(self, method: str, params: Json) -> None:
        self._connection.notify(method, params, self._app.clock.now_ms())

    async def _flush(self) -> None:
        """Sends what is there, in order, for one who is speaking. He waits for a slow reader; nobody else does.

        Frame by frame: what is not sent yet counts as unsent, and a frame that is put in while another is stuck goes
        out by the same hand.
        """
        while (frame := self._connection.next_to_send()) is not None:
            await self._send(frame)

    async def _serve(self) -> None:
        for event in self._connection.events():
            if isinstance(event, Call):
                async with self._speaking:  # what a command causes is shown after its answer
                    await self._answer(event)
            await asyncio.sleep(0)  # a peer that asks without pause must not keep the others waiting
        if self._connection.state is State.READY:
            self._listens.set()
        async with self._speaking:
            await self._flush()

    async def _answer(self, call: Call) -> None:
        try:
            answer = await HANDLERS[call.method](self, call.params)
            if answer.follow is not None:
                await self._retire(*answer.follow)
        except PeerGone:
            raise
        except RefoldError as error:
            self._connection.fail(call, error)
        except Exception as error:
            log.error("call_failed", method=call.method, error=repr(error), exc_info=error)
            self._connection.fail(call, RefoldError("unexpected"))
        else:
            self._connection.reply(call, answer.result)
            for opened, params in answer.asks:
                self._ask(opened, params)
            for method, params in answer.told:
                self._notify(method, params)
            await self._flush()
            if answer.follow is not None:
                self._subscribe(*answer.follow)

    # -- subscriptions ------------------------------------------------------------------------------------------------

    def _subscribe(self, session: SessionRecord, after: Position) -> None:
        """Starts this connection's one subscription of the Session."""
        subscription = self._subscriptions[session.n] = self._app.sessions.subscription(session, after, hears=True)
        self._spawn(self._pump(session, subscription))

    def _unsubscribe(self, session_n: int) -> Subscription | None:
        """Ends the subscription of a Session. It is closed, not cancelled: frames that it handed out are on their way,
        and a cancelled send would take one away."""
        subscription = self._subscriptions.pop(session_n, None)
        if subscription is not None:
            subscription.close()
        return subscription

    async def _retire(self, session: SessionRecord, after: Position) -> None:
        """Makes room for a subscription after `after`: the one before it delivers up to there, and ends.

        Otherwise what is appended while a resume is answered would be in the answer only, and whoever still folds this
        connection's events had a hole in them.
        """
        subscription = self._unsubscribe(session.n)
        if subscription is not None:
            async for batch in subscription.rest(after):
                await self._deliver(session, batch)

    async def _pump(self, session: SessionRecord, subscription: Subscription) -> None:
        """Delivers while the subscription lasts.

        It looks only when it is its turn to send, so all subscriptions of a connection together hold one batch; and
        only once the client listens, for what is held until then is bounded, and an event must not be lost to that.
        """
        try:
            await self._listens.wait()
            while not subscription.closed:
                async with self._speaking:
                    batch = await subscription.look()
                    if batch is not None:
                        await self._deliver(session, batch)
                        subscription.take(batch)
                is_idle = subscription.is_idle
                if batch is None or (is_idle and not self._connection.bookmarks):
                    await subscription.rung()
                elif not is_idle:  # who has much to catch up with keeps nobody waiting, and stays in step with others
                    await asyncio.sleep(0)
        except PeerGone:
            subscription.close()
        except Exception as error:
            subscription.close()
            log.error("subscription_ended", error=repr(error), exc_info=error)

    async def _deliver(self, session: SessionRecord, batch: Batch) -> None:
        for _, notice in batch.said:
            self._notify(notice["method"], notice["params"])
        if batch.gap is not None:
            self._app.metrics.reader_gaps += 1
            self._notify(batch.gap["method"], batch.gap["params"])
            for request, opened in await self._app.requests.pending(session.session_id):
                self._ask(_OPENED[request.kind], opened)  # the event may lie in the gap; the question may not
        now = self._app.clock.now_ms()
        for _, frame, text in itertools.chain(batch.kept, batch.frames):
            method = frame["method"]
            self._connection.relay(method, text, now)
            if method in _ASKED:
                self._ask(method, frame["params"])
        if self._connection.bookmarks and batch.is_empty:
            self._notify("view/caughtUp", await self._app.sessions.bookmark(session.session_id))
        await self._flush()

    def _ask(self, opened: str, params: Json) -> None:
        """Asks this client, once: the server request repeats what the event said, its cursor included."""
        name, method = _ASKED[opened]
        if params[name] not in self._has_asked:
            self._has_asked.add(params[name])
            self._connection.request(method, params)

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
        self._app.loads.born(info)
        session = self._rpc.session(info)
        self._rpc.broadcast("session/started", {"session": session})
        return Answer({"session": session, "viewCursor": cursor}, (info.session, position))

    async def session_resume(self, params: Json) -> Answer:
        served = await self._app.sessions.resume(
            params["commandId"],
            params,
            session_id=params["sessionId"],
            cursor=params.get("cursor"),
            preference=params.get("history", Preference.AUTO),
            exclude_items=params.get("excludeItems", False),
        )
        pending = await self._app.requests.pending(params["sessionId"])
        asks = tuple((_OPENED[request.kind], opened) for request, opened in pending)
        return Answer(self._served(served, pending), (served.info.session, served.after), asks)

    async def session_read(self, params: Json) -> Answer:
        exclude = params.get("excludeItems", True)
        served = await self._app.sessions.read(params["sessionId"], exclude_items=exclude)
        return Answer(self._served(served, await self._app.requests.pending(params["sessionId"])))

    async def session_list(self, params: Json) -> Answer:
        if self._rpc.host.durability == "ephemeral":  # a Session that nobody can resume is not offered
            return Answer({"sessions": [], "nextCursor": None})
        found = await self._app.sessions.list(
            params.get("limit", LIST_LIMIT), workspace_root=params.get("workspaceRoot")
        )
        return Answer({"sessions": [self._rpc.session(info) for info in found], "nextCursor": None})

    async def model_list(self, params: Json) -> Answer:
        heads = await self._app.blueprints.heads()
        default = self._app.blueprints.default_id
        models = [_model(head.blueprint_id, is_default=head.blueprint_id == default) for head in heads]
        return Answer({"models": models, "providerId": "refold", "profileId": None, "source": "configCatalog"})

    async def view_subscribe(self, params: Json) -> Answer:
        session, position, head = await self._app.sessions.subscribe(params["sessionId"], params.get("after"))
        return Answer({"viewCursor": head}, (session, position))

    async def view_unsubscribe(self, params: Json) -> Answer:
        served = await self._app.sessions.read(params["sessionId"], exclude_items=True)
        self._unsubscribe(served.info.session.n)
        return Answer({})

    async def view_page(self, params: Json) -> Answer:
        if "anchor" in params:
            page, boundary = await self._app.sessions.page_after_compaction(params["sessionId"], params["limit"])
            shown = {"events": page.frames, "nextCursor": page.next_cursor}
            return Answer(shown | {"resolvedAnchor": {"boundaryCursor": boundary}})
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
        ack = await self._app.turns.start(
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

    async def turn_interrupt(self, params: Json) -> Answer:
        return await self._stop(params, Verb.INTERRUPT)

    async def turn_cancel(self, params: Json) -> Answer:
        return await self._stop(params, Verb.CANCEL)

    async def _stop(self, params: Json, verb: Verb) -> Answer:
        command_id, session_id, turn_id = params["commandId"], params["sessionId"], params.get("turnId")
        stopped = await self._app.turns.stop(command_id, params, session_id=session_id, turn_id=turn_id, verb=verb)
        return Answer(_accepted(params) | {"turnId": stopped})

    async def turn_steer(self, params: Json) -> Answer:
        raise CommandRejected(
            "the running agent takes no input; queue a turn",
            reason="steer_unsupported",
            command_id=params["commandId"],
        )

    async def turn_unqueue(self, params: Json) -> Answer:
        session_id, turn_id = params["sessionId"], params["turnId"]
        await self._app.turns.unqueue(params["commandId"], params, session_id=session_id, turn_id=turn_id)
        return Answer(_accepted(params) | {"turnId": turn_id})

    async def workflow_cancel(self, params: Json) -> Answer:
        session_id, run_id = params["sessionId"], params["workflowRunId"]
        await self._app.turns.cancel_workflow(params["commandId"], params, session_id=session_id, run_id=run_id)
        return Answer(_accepted(params))

    async def workflow_resume(self, params: Json) -> Answer:
        command_id, session_id, run_id = params["commandId"], params["sessionId"], params["workflowRunId"]
        turn_id = await self._app.turns.resume_workflow(command_id, params, session_id=session_id, run_id=run_id)
        return Answer(_accepted(params) | {"turnId": turn_id})

    async def session_compact(self, params: Json) -> Answer:
        done = await self._app.compaction.compact(params["commandId"], params, session_id=params["sessionId"])
        return Answer({"commandId": params["commandId"], **done})

    async def session_set_model(self, params: Json) -> Answer:
        model = params["model"]["modelId"]
        await self._app.sessions.set_model(params["commandId"], params, session_id=params["sessionId"], model=model)
        return Answer(_accepted(params))

    async def session_rename(self, params: Json) -> Answer:
        name = params["name"]
        await self._app.sessions.rename(params["commandId"], params, session_id=params["sessionId"], name=name)
        return Answer(_accepted(params) | {"name": name})

    async def session_leave(self, params: Json) -> Answer:
        session = await self._app.sessions.leave(params["commandId"], params, session_id=params["sessionId"])
        self._unsubscribe(session.n)
        done = {"commandId": params["commandId"], "sessionId": params["sessionId"], "outcome": "released"}
        return Answer(_accepted(params), told=(("session/leaveCompleted", done),))

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

    async def approval_list_pending(self, params: Json) -> Answer:
        pending = await self._app.requests.pending(params["sessionId"])
        of = {kind: [opened for request, opened in pending if request.kind == kind] for kind in _OPENED}
        return Answer({"approvals": of["approval"], "userInputs": of["input"]})

    async def approval_decide(self, params: Json) -> Answer:
        approval_id = await self._requested(params, "approval")
        named = params["requirementId"]
        if named != (now := {"approvalId": approval_id, "sourceIndex": 0}):
            raise Conflict(
                "that requirement is not the current one", kind="approval_requirement_stale", current_requirement_id=now
            )
        with _in_words_of_the_view("resolution", "decision", _APPROVALS):
            await self._app.requests.decide(
                approval_id,
                choice=params["choiceId"],
                feedback=params.get("feedback"),
                command_id=params["commandId"],
            )
        return Answer(_accepted(params) | {"approvalId": approval_id, "terminal": True})

    async def user_input_answer(self, params: Json) -> Answer:
        input_id = await self._requested(params, "input")
        with _in_words_of_the_view("settlement", "outcome", _INPUTS):
            await self._app.requests.answer(input_id, params["answers"], command_id=params["commandId"])
        return Answer(_accepted(params) | {"userInputId": input_id})

    async def user_input_cancel(self, params: Json) -> Answer:
        input_id, command_id = await self._requested(params, "input"), params["commandId"]
        with _in_words_of_the_view("settlement", "outcome", _INPUTS):
            await self._app.requests.withdraw(input_id, "cancelled", reason=params.get("reason"), command_id=command_id)
        return Answer(_accepted(params) | {"userInputId": input_id})

    async def user_input_interrupt(self, params: Json) -> Answer:
        input_id, command_id = await self._requested(params, "input"), params["commandId"]
        where = {"session_id": params["sessionId"], "request_id": input_id}
        with _in_words_of_the_view("settlement", "outcome", _INPUTS):
            await self._app.turns.interrupt_input(command_id, params, **where, answers=params.get("answers", []))
        return Answer(_accepted(params) | {"userInputId": input_id})

    async def _requested(self, params: Json, kind: str) -> str:
        """The id of the request that a call names. Raises NotFound unless it is one of its kind and Session."""
        member, unknown = _NAMED[kind]
        request_id = params[member]
        try:
            request = await self._app.requests.get(request_id)
        except NotFound as error:
            raise NotFound(error.message, kind=unknown) from None
        if (request.session_id, request.kind) != (params["sessionId"], kind):
            raise NotFound(f"there is no such request {request_id!r} in this session", kind=unknown)
        return request_id

    def _served(self, served: Served, pending: list[tuple[RequestRow, Json]]) -> Json:
        answer = {
            "session": self._rpc.session(served.info),
            "viewCursor": served.cursor,
            "history": served.history,
            "pendingRequests": [pointer(request, opened) for request, opened in pending],
        }
        return answer if served.last_turn is None else answer | {"lastTurn": served.last_turn}


def _model(blueprint_id: str, *, is_default: bool) -> Json:
    """A Blueprint as the protocol lists a model: what only a language model has is null."""
    unknown = ("contextLimit", "cost", "description", "outputLimit", "profileId", "releaseDate")
    shown = {"modelId": blueprint_id, "displayLabel": blueprint_id, "providerId": "refold"}
    return shown | {"isDefault": is_default, "isActive": is_default} | dict.fromkeys(unknown)


def _accepted(params: Json) -> dict[str, Json]:
    return {"commandId": params["commandId"], "status": "accepted"}


_NAMED: Final[Mapping[str, tuple[str, str]]] = {
    "approval": ("approvalId", "approval_not_found"),
    "input": ("userInputId", "user_input_not_found"),
}
"""The member that names a request of a kind, and the error if it names none."""

_APPROVALS: Final[Mapping[str, str]] = {"expired": "timedOut", "void": "abort"}
_INPUTS: Final[Mapping[str, str]] = {"expired": "timedOut", "void": "aborted"}
"""How the view names an end that nobody decided."""


@contextlib.contextmanager
def _in_words_of_the_view(member: str, name: str, words: Mapping[str, str]) -> Generator[None]:
    """Tells the loser in an error what the winner's event says: both are shown to one person."""
    try:
        yield
    except Conflict as lost:
        said = lost.data.get(member)
        if said is not None:
            lost.data[member] = said | {name: words.get(said[name], said[name])}
        raise


_OPENED: Final[Mapping[str, str]] = {"approval": "approval/requested", "input": "userInput/requested"}
"""The event that opens a request of a kind."""

_ASKED: Final[Mapping[str, tuple[str, str]]] = {
    "approval/requested": ("approvalId", "approval/request"),
    "userInput/requested": ("userInputId", "userInput/request"),
}
"""The event that opens a request: the member that names it, and the server request that asks a client."""

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
    "turn/interrupt": Peer.turn_interrupt,
    "turn/cancel": Peer.turn_cancel,
    "turn/steer": Peer.turn_steer,
    "turn/unqueue": Peer.turn_unqueue,
    "workflow/cancel": Peer.workflow_cancel,
    "workflow/resume": Peer.workflow_resume,
    "session/compact": Peer.session_compact,
    "session/setModel": Peer.session_set_model,
    "session/rename": Peer.session_rename,
    "session/leave": Peer.session_leave,
    "item/readOutput": Peer.item_read_output,
    "approval/listPending": Peer.approval_list_pending,
    "approval/decide": Peer.approval_decide,
    "userInput/answer": Peer.user_input_answer,
    "userInput/cancel": Peer.user_input_cancel,
    "userInput/interrupt": Peer.user_input_interrupt,
}
"""What this server serves today; every other row of `protocol.TABLE` answers methodNotFound."""
