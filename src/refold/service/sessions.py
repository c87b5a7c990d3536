"""Sessions as clients meet them: start, resume, page, subscribe, and turns.

A cursor flows: open the wake-up first, then read in one consistent view; decode and check the cursor; ask the ladder
for all rungs at once; read only what the rung needs; answer; deliver strictly after. What is returned here are values
with refold's names; the wire's names belong to `server.rpc`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache, partial
from typing import Any, Final

import msgspec

from refold import view
from refold.canonical import canonical, decode
from refold.engine.activation import snapshot
from refold.engine.clock import Clock
from refold.engine.supervisor import Supervisor
from refold.errors import (
    BoundaryPruned,
    CommandRejected,
    Conflict,
    InvalidRequest,
    NotFound,
    ViewTruncated,
)
from refold.records import (
    LogRow,
    LogType,
    RequestRow,
    RequestStatus,
    RunRecord,
    RunStatus,
    SessionRecord,
)
from refold.service.blueprints import Blueprints
from refold.service.commands import Ledger, later
from refold.service.compaction import Compaction
from refold.service.settings import ViewSettings
from refold.service.tasks import NewTask, Tasks
from refold.session import Frames, Hub, Live, SessionLog, Subscription, Suffixes, boundaries, find_session
from refold.store import Reader, Store, Tx, append_log, value_text, with_launch
from refold.view import Anchor, Position, Rung

Json = Any

OUTPUT_BYTES: Final = 6 * 1024 * 1024
"""The most that one slice of an output may hold (MSP, item/readOutput)."""


class SessionInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A Session as a list or an answer shows it."""

    session: SessionRecord
    loaded: bool
    attention: tuple[str, ...] = ()
    """What it needs of a person: `approvalPending`, `inputPending`."""

    @property
    def status(self) -> str:
        """In the words of the protocol."""
        if self.session.active_run is not None:
            return "running"
        return "idle" if self.loaded else "notLoaded"


class Served(msgspec.Struct, frozen=True, kw_only=True):
    """What a resume or read answers. `history` is as the ladder reports it; frames after `after` are owed."""

    info: SessionInfo
    cursor: str
    history: dict[str, Json]
    last_turn: Json
    after: Position


class Page(msgspec.Struct, frozen=True, kw_only=True):
    """Frames in ascending order, and the cursor to go on from; None at the end."""

    frames: list[Json]
    next_cursor: str | None


class OutputPart(msgspec.Struct, frozen=True, kw_only=True):
    """A slice of a text. Offsets and lengths are bytes of its UTF-8 form."""

    content: str
    byte_len: int
    offset: int
    eof: bool
    media_type: str


class Sessions:
    """Every verb on Sessions. One object serves all connections."""

    def __init__(
        self,
        store: Store,
        clock: Clock,
        supervisor: Supervisor,
        blueprints: Blueprints,
        tasks: Tasks,
        ledger: Ledger,
        hub: Hub,
        live: Live,
        log: SessionLog,
        suffixes: Suffixes,
        compaction: Compaction,
        settings: ViewSettings,
    ) -> None:
        self._store = store
        self._clock = clock
        self._supervisor = supervisor
        self._blueprints = blueprints
        self._tasks = tasks
        self._ledger = ledger
        self._hub = hub
        self._live = live
        self._log = log
        self._suffixes = suffixes
        self._compaction = compaction
        self._settings = settings

    # -- opening ------------------------------------------------------------------------------------------------------

    async def start(
        self,
        command_id: str,
        params: Json,
        *,
        session_id: str | None,
        model: str | None,
        workspace_root: str | None,
        client: str,
    ) -> tuple[SessionInfo, Position, str]:
        """Creates a Task and its Session, loads it; the Session, the position and cursor that the answer covers.

        Raises NotFound for a model that is not registered, Conflict for one that is archived, CommandRejected for a
        session id that is taken.
        """
        reference = {"kind": "id", "id": model or self._blueprints.default_id}
        resolved = await later(self._blueprints.resolve(reference))
        new = NewTask(
            blueprint=reference,
            session_id=session_id,
            workspace_root=workspace_root,
            project_root=workspace_root,
            client=client,
            command_id=command_id,
            default_model=model is None,
        )

        def effect(tx: Tx) -> Json:
            if session_id is not None and tx.find(SessionRecord, session_id=session_id):
                raise CommandRejected(
                    f"session {session_id} exists already", reason="session_id_conflict", command_id=command_id
                )
            _, session = self._tasks.create(tx, new, resolved())
            return {"session_id": session.session_id}

        answer, _ = await self._ledger.apply(command_id, "session/start", params, effect, at=self._clock.now_ms())

        def read(reader: Reader) -> tuple[SessionRecord, Frames]:
            session = find_session(reader, answer["session_id"])
            return session, self._log.after(reader, session, view.GENESIS, limit=2)

        session, created = await self._store.read(read)
        self._hub.load(session.n)
        position, frame = created[-1]
        return SessionInfo(session=session, loaded=True), position, frame["params"]["viewCursor"]

    async def resume(
        self,
        command_id: str,
        params: Json,
        *,
        session_id: str,
        cursor: str | None,
        preference: str,
        exclude_items: bool,
    ) -> Served:
        """Loads a Session and answers with history as the ladder has it, or with nothing but the suffix to come.

        A cold load leaves a durable marker, under the command's id, so that a retry leaves no second one; a warm attach
        writes nothing. Raises NotFound, MissingAnchor, ViewTruncated.
        """
        if not await self._is_loaded(session_id):
            await self._compaction.prune(session_id)
        served = await self._store.read(
            lambda reader: self._serve(reader, session_id, cursor, preference, exclude_items)
        )
        session = served.info.session
        if self._hub.load(session.n):
            try:
                await self._mark_loaded(session, command_id, params)
            except BaseException:
                self._hub.unload(session.n)
                raise
        return msgspec.structs.replace(served, info=msgspec.structs.replace(served.info, loaded=True))

    async def _mark_loaded(self, session: SessionRecord, command_id: str, params: Json) -> None:
        at = self._clock.now_ms()

        def mark(tx: Tx) -> Json:
            append_log(tx, session.n, [view.session_resumed(at, command=command_id)])
            return {}

        await self._ledger.apply(command_id, "session/resume", params, mark, at=at)

    async def read(self, session_id: str, *, exclude_items: bool) -> Served:
        """As `resume`, without loading, marking or subscribing."""
        return await self._store.read(
            lambda reader: self._serve(reader, session_id, None, view.Preference.AUTO, exclude_items)
        )

    def subscription(self, session: SessionRecord, after: Position, *, hears: bool = False) -> Subscription:
        """What delivers the frames strictly after a position; `hears`: and what agents say meanwhile."""
        live = self._live if hears else None
        return Subscription(self._store, self._hub, self._log, self._suffixes, session, after, live=live)

    async def bookmark(self, session_id: str) -> Json:
        """Where the head is, and the digest of the state there: a client that folds can check that it has all."""

        def read(reader: Reader) -> Json:
            session = find_session(reader, session_id)
            state = self._log.state(reader, session)
            return {"sessionId": session_id, "viewCursor": state.cursor, "foldDigest": view.fold_digest(state)}

        return await self._store.read(read)

    async def follow(self, session_id: str, after: str | None) -> tuple[SessionRecord, Position, str | None]:
        """The Session and the position after a cursor, or before its first event. Works unloaded, and loads nothing.

        Raises NotFound, MissingAnchor, ViewTruncated.
        """

        def read(reader: Reader) -> tuple[SessionRecord, Position, str | None]:
            session = find_session(reader, session_id)
            return session, after_of(reader, self._log, session, after), after

        return await self._store.read(read)

    async def subscribe(self, session_id: str, after: str | None) -> tuple[SessionRecord, Position, str]:
        """The Session, the position to deliver after, and the head. Never loads. Raises NotFound, MissingAnchor."""

        def read(reader: Reader) -> tuple[SessionRecord, Position, str]:
            session = find_session(reader, session_id)
            head = self._log.head(reader, session)
            return session, self._held(reader, session, head if after is None else after), head

        session, position, head = await self._store.read(read)
        self.require_loaded(session)
        return session, position, head

    def _serve(
        self, reader: Reader, session_id: str, cursor: str | None, preference: str, exclude_items: bool
    ) -> Served:
        session = find_session(reader, session_id)
        head = self._log.head(reader, session)
        after, held = self._log.position(reader, session, head if cursor is None else cursor)
        anchor = Anchor.ABSENT if cursor is None else Anchor.HELD if held else Anchor.STALE
        rungs = view.attempts(preference, anchor, exclude_items)
        if rungs[0] not in _STATELESS and self._is_far_over_budget(reader, session):
            rungs = tuple(rung for rung in rungs if rung in _STATELESS)
            if not rungs:
                raise self._truncated(reader, session)
        if rungs[0] in _STATELESS:
            return Served(
                info=info_of(reader, self._hub, session),
                cursor=head,
                history=view.history(rungs[0]),
                last_turn=boundaries.last_turn(reader, self._log, session),
                after=after,
            )
        boundary = self._usable(reader, session) if Rung.ANCHORED in rungs else None
        begin = None if boundary is None else partial(boundaries.seeded, boundary)
        state = self._log.state(reader, session, begin)
        queued = queued_turns(reader, session)
        weights = cache(lambda: view.weigh(state, queued))  # asked only if no rung before it is taken

        def size(rung: Rung) -> int | None:
            if rung is not Rung.ANCHORED:
                return weights()[rung]
            return None if boundary is None else boundary.size + len(canonical(queued)) - len("[]")

        rung = view.choose(rungs, self._settings.history_budget_bytes, size)
        if rung is None:
            raise self._truncated(reader, session)
        payload: Json = _PAYLOADS[rung](state, queued) if rung in _PAYLOADS else None
        if rung is Rung.ANCHORED and boundary is not None:
            payload, after = _with_queue(boundary.snapshot, queued), boundary.position
        elif anchor is Anchor.STALE:
            after = self._log.position(reader, session, head)[0]
        return Served(
            info=info_of(reader, self._hub, session),
            cursor=head,
            history=view.history(rung, payload),
            last_turn=state.last_turn,
            after=after,
        )

    def _is_far_over_budget(self, reader: Reader, session: SessionRecord) -> bool:
        """Whether the last boundary tells that no form of history will fit.

        Else the whole Session would be folded, only to find that nothing of it is served. Items are never taken back,
        and what has changed since a boundary is little of what it holds. Nearer to the budget a fold weighs exactly; it
        is no larger than the budget allows then. Were this ever wrong, the client would be sent to pages that hold all.
        """
        row = boundaries.latest(reader, session)
        return row is not None and row.elided > FAR_OVER * self._settings.history_budget_bytes

    def _usable(self, reader: Reader, session: SessionRecord) -> boundaries.Boundary | None:
        """The latest boundary, if it fits and can be read back: a rung that does not exist is not made up for it."""
        row = boundaries.latest(reader, session)
        if row is None or row.size > self._settings.history_budget_bytes:
            return None
        return boundaries.load(reader, self._log, session, row)

    def _held(self, reader: Reader, session: SessionRecord, cursor: str) -> Position:
        """The position of a cursor that must be held; raises ViewTruncated for one behind the floor."""
        return after_of(reader, self._log, session, cursor)

    def _truncated(self, reader: Reader, session: SessionRecord) -> ViewTruncated:
        return _truncated(reader, self._log, session)

    async def _is_loaded(self, session_id: str) -> bool:
        session = await self._store.read(lambda reader: find_session(reader, session_id))
        return self._hub.is_loaded(session.n)

    # -- reading ------------------------------------------------------------------------------------------------------

    async def page_after_compaction(self, session_id: str, limit: int) -> tuple[Page, str]:
        """The frames after the latest boundary, and its cursor. Raises BoundaryPruned `no_boundary` without one."""

        def read(reader: Reader) -> str:
            session = find_session(reader, session_id)
            row = boundaries.latest(reader, session)
            cursor = None if row is None else boundaries.cursor_of(reader, self._log, session, row)
            if cursor is None:
                raise BoundaryPruned(
                    "no boundary was ever installed in this session",
                    kind="no_boundary",
                    session_id=session_id,
                    anchor=None,
                    latest_boundary_cursor=None,
                )
            return cursor

        cursor = await self._store.read(read)
        return await self.page(session_id, cursor, limit, backward=False), cursor

    async def page(self, session_id: str, cursor: str | None, limit: int, *, backward: bool) -> Page:
        """Durable frames on one side of a cursor, ascending and contiguous. Raises NotFound, MissingAnchor."""

        def read(reader: Reader) -> Page:
            session = find_session(reader, session_id)
            at = None if cursor is None else self._held(reader, session, cursor)
            if cursor is None and session.floor and not backward:
                raise self._truncated(reader, session)
            if backward:
                frames = self._log.before(reader, session, at, limit)
                earliest = self._log.earliest(reader, session)
                more = bool(frames) and frames[0][1]["params"]["prevCursor"] not in (None, earliest)
                edge = frames[0] if more else None
            else:
                frames = self._log.after(reader, session, at or view.GENESIS, limit)
                more = bool(frames) and bool(self._log.after(reader, session, frames[-1][0], 1))
                edge = frames[-1] if more else None
            return Page(
                frames=[frame for _, frame in frames],
                next_cursor=edge[1]["params"]["viewCursor"] if edge is not None else None,
            )

        return await self._store.read(read)

    async def snapshot(self, session_id: str) -> tuple[Served, list[Json]]:
        """The whole state of a Session, and the markers of its cold loads: when, and by which command."""

        def read(reader: Reader) -> tuple[Served, list[Json]]:
            served = self._serve(reader, session_id, None, view.Preference.SNAPSHOT, exclude_items=False)
            marks = reader.find(LogRow, session=served.info.session.n, type=LogType.SESSION_RESUMED)
            resumed = [{"at": view.rfc3339(mark.at), **decode(mark.body_json)} for mark in marks]
            return served, resumed

        return await self._store.read(read)

    async def read_output(
        self, session_id: str, item_id: str, ref: str, *, offset: int, length: int | None
    ) -> OutputPart:
        """A slice of a long output, or of long arguments, by the item that shows their head.

        Raises NotFound, InvalidRequest for a cut character.
        """

        def read(reader: Reader) -> tuple[str | None, str | None]:
            item = self._log.state(reader, find_session(reader, session_id)).items.get(item_id, {})
            media_type = view.texts_of_item(item).get(ref)
            return media_type, None if media_type is None else value_text(reader, ref)

        media_type, value = await self._store.read(read)
        if media_type is None or value is None:
            raise NotFound(f"item {item_id[:80]!r} shows no such output", kind="value_not_found", output_ref=ref[:80])
        return _cut(value.encode(), media_type, offset, min(length or OUTPUT_BYTES, OUTPUT_BYTES))

    async def list(self, limit: int, *, workspace_root: str | None = None) -> Sequence[SessionInfo]:
        """The Sessions, latest change first."""
        equals: dict[str, Any] = {} if workspace_root is None else {"workspace_root": workspace_root}

        def read(reader: Reader) -> list[SessionInfo]:
            rows = reader.find(SessionRecord, **equals)
            rows.sort(key=lambda row: (row.updated_at, row.n), reverse=True)
            return [info_of(reader, self._hub, row) for row in rows[:limit]]

        return await self._store.read(read)

    # -- changing -----------------------------------------------------------------------------------------------------

    async def set_model(self, command_id: str, params: Json, *, session_id: str, model: str) -> None:
        """Has later turns run another registered Blueprint. Raises NotFound, Conflict (not loaded, archived)."""
        resolved = await later(self._blueprints.resolve({"kind": "id", "id": model}))
        at = self._clock.now_ms()

        def effect(tx: Tx) -> Json:
            session = find_session(tx, session_id)
            self.require_loaded(session)
            name = resolved().name
            append_log(tx, session.n, [view.model_changed(at, model=name, source="user", command=command_id)])
            tx.update(SessionRecord, (session.n,), model_id=name)
            return {}

        await self._ledger.apply(command_id, "session/setModel", params, effect, at=at)

    async def rename(self, command_id: str, params: Json, *, session_id: str, name: str) -> None:
        """Names the Session. Raises NotFound."""
        at = self._clock.now_ms()

        def effect(tx: Tx) -> Json:
            session = find_session(tx, session_id)
            append_log(tx, session.n, [view.name_changed(at, name=name, command=command_id)])
            tx.update(SessionRecord, (session.n,), name=name)
            return {}

        await self._ledger.apply(command_id, "session/rename", params, effect, at=at)

    async def leave(self, command_id: str, params: Json, *, session_id: str) -> SessionRecord:
        """Notes that a client leaves; the Session, whose subscription its connection then ends. Raises NotFound."""

        def effect(tx: Tx) -> Json:
            self.require_loaded(find_session(tx, session_id))
            return {}

        await self._ledger.apply(command_id, "session/leave", params, effect, at=self._clock.now_ms())
        return await self._store.read(lambda reader: find_session(reader, session_id))

    # -- inside -------------------------------------------------------------------------------------------------------

    def require_loaded(self, session: SessionRecord) -> None:
        """Raises Conflict if the Session is not loaded here: no command may be given to it."""
        if not self._hub.is_loaded(session.n):
            raise Conflict(
                f"session {session.session_id} is not loaded here; resume it first",
                kind="session_not_loaded",
                session_id=session.session_id,
            )


def info_of(reader: Reader, hub: Hub, session: SessionRecord) -> SessionInfo:
    """How a Session stands."""
    asked = {each.kind for each in reader.find(RequestRow, session=session.n, status=RequestStatus.OPEN)}
    attention = tuple(flag for kind, flag in _ATTENTION.items() if kind in asked)
    return SessionInfo(session=session, loaded=hub.is_loaded(session.n), attention=attention)


_ATTENTION: Final = {"approval": "approvalPending", "input": "inputPending"}


def after_of(reader: Reader, log: SessionLog, session: SessionRecord, cursor: str | None) -> Position:
    """The position after which a reader is told events: that of a cursor, or before the first one.

    Raises MissingAnchor, ViewTruncated if it lies behind the floor.
    """
    if cursor is None:
        position, held = view.GENESIS, not session.floor
    else:
        position, held = log.position(reader, session, cursor)
    if not held:
        raise _truncated(reader, log, session)
    return position


def _truncated(reader: Reader, log: SessionLog, session: SessionRecord) -> ViewTruncated:
    return ViewTruncated(
        "requested range predates the retained view",
        session_id=session.session_id,
        earliest_cursor=log.earliest(reader, session),
    )


def _cut(data: bytes, media_type: str, offset: int, length: int) -> OutputPart:
    end = min(len(data), offset + length)
    try:
        content = data[offset:end].decode()
    except UnicodeDecodeError:
        while end < len(data) and data[end] & 0xC0 == 0x80:
            end += 1
        raise InvalidRequest(
            "the slice cuts a character in two", kind="invalid_params", aligned_next_offset=end
        ) from None
    return OutputPart(content=content, byte_len=len(data), offset=offset, eof=end >= len(data), media_type=media_type)


def queued_turns(reader: Reader, session: SessionRecord) -> list[Json]:
    """The turns that wait in the Session's queue, in launch order, as snapshots show them."""
    pending = reader.find(RunRecord, session=session.n, status=RunStatus.PENDING)
    shown = []
    for run in pending:
        kick = snapshot(with_launch(reader, run))["kick"]
        turn = {"turnId": kick["turn_id"], "commandId": kick["command_id"]}
        text = kick.get("display") or kick.get("text")
        shown.append(turn | ({"displayText": view.clip(text)} if text else {}))
    return shown


def _with_queue(snapshot: Json, queued: list[Json]) -> Json:
    """The snapshot of a boundary with the turns that wait today: they are no events, so no suffix would tell them."""
    return snapshot | {"state": snapshot["state"] | {"queuedTurns": queued}}


_PAYLOADS: Mapping[Rung, Any] = {
    Rung.INLINE: lambda state, queued: list(state.items.values()),
    Rung.SNAPSHOT: lambda state, queued: view.view_snapshot(state, queued),
    Rung.ELIDED: lambda state, queued: view.elide(view.view_snapshot(state, queued)),
}
"""What each rung serves that a fold alone can serve; an anchored snapshot is that of its boundary."""

_STATELESS: Final = frozenset({Rung.SUFFIX, Rung.EXCLUDED, Rung.BUDGET})
"""The rungs that serve nothing of the state."""

FAR_OVER: Final = 2
"""How many times the budget the shortest form has to be, at the last boundary, for no fold to be asked."""
