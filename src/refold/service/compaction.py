"""Compaction: a Session gets a boundary when a client asks for one, and by itself once it has grown enough.

Retention goes with it: what lies behind the boundaries that are kept is taken away when one is installed, and when a
Session is loaded.

Not here: what a boundary is and how it is read back (`session.boundaries`), which answers it serves (`sessions`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, Final

from refold import diagnostics, view
from refold.engine.clock import Clock
from refold.errors import RefoldError
from refold.records import FRAMES, BoundaryRow, LogRecord, LogType, SessionRecord
from refold.service.commands import Ledger
from refold.service.settings import ViewSettings
from refold.session import SessionLog, Suffixes, boundaries, find_session
from refold.store import Reader, Store, Tx
from refold.view import Position

Json = Any
log = diagnostics.Log("refold.sessions")

MOST_EVENTS: Final = 16_384
"""After so many events a Session compacts however little of it they changed: they are folded at once, and while that
lasts nobody else is served. A boundary beside them costs a byte an item."""


class Compaction:
    """Compacts the Sessions of a store, and prunes them."""

    def __init__(
        self, store: Store, clock: Clock, ledger: Ledger, log: SessionLog, suffixes: Suffixes, settings: ViewSettings
    ) -> None:
        self._store = store
        self._clock = clock
        self._ledger = ledger
        self._log = log
        self._suffixes = suffixes
        self._settings = settings
        self._looked_at: dict[int, int] = {}
        self._compactions: set[asyncio.Task[None]] = set()

    async def compact(self, command_id: str, params: Json, *, session_id: str) -> Json:
        """Installs a boundary; `{status: noop, reason}` if nothing happened since the last one. Raises NotFound."""
        at = self._clock.now_ms()

        def effect(tx: Tx) -> Json:
            session = find_session(tx, session_id)
            if not self._log.after(tx, session, self._compacted_to(tx, session), 1):
                return {"status": "noop", "reason": "no_compactable_history"}
            self._install(tx, session, view.compacted(at, trigger="manual", command=command_id))
            return {"status": "accepted"}

        answer, _ = await self._ledger.apply(command_id, "session/compact", params, effect, at=at)
        return answer

    def _compacted_to(self, reader: Reader, session: SessionRecord) -> Position:
        """What a new boundary must have events after: the latest one, or the record that created the Session."""
        row = boundaries.latest(reader, session)
        if row is not None:
            return Position(row.seq, boundaries.BOUNDARY_FRAME)
        return max(self._log.floor(reader, session), Position(1, FRAMES[LogType.SESSION_CREATED] - 1))

    def watch(self, heads: Mapping[int, int]) -> None:
        """Takes note of what a commit appended, and has Sessions compact that have grown enough."""
        for session_n, head in heads.items():
            if head - self._looked_at.get(session_n, 0) >= self._settings.compact_events:
                self._looked_at[session_n] = head
                task = asyncio.create_task(self._compact_quietly(session_n), name=f"compaction {session_n}")
                self._compactions.add(task)
                task.add_done_callback(self._compactions.discard)

    async def close(self) -> None:
        """Ends compactions that are under way: the store is about to go."""
        for task in self._compactions:
            task.cancel()
        await asyncio.gather(*self._compactions, return_exceptions=True)

    async def _compact_quietly(self, session_n: int) -> None:
        try:
            await self.compact_grown(session_n)
        except RefoldError as error:
            log.warning("session_not_compacted", session=session_n, kind=error.kind, error=error.message)

    async def compact_grown(self, session_n: int) -> None:
        """Compacts a Session by itself, once it has grown enough since its last boundary."""

        def looked(reader: Reader) -> tuple[int, bool] | None:
            """Where the last boundary is, and whether there is to be a new one; None: to be looked at again later."""
            session = reader.get(SessionRecord, session_n)
            if session is None:
                return None
            before = boundaries.latest(reader, session)
            since = 0 if before is None else before.seq
            events = session.seq - since
            if events < self._settings.compact_events:
                return since, False
            if events < MOST_EVENTS and events * 4 < boundaries.count_items(reader, session):
                return None
            return since, True

        def install(tx: Tx) -> int:
            session = tx.get(SessionRecord, session_n)
            assert session is not None, "Sessions are never deleted"
            before = boundaries.latest(tx, session)
            if before is not None and before.seq != since:
                return before.seq  # a client's command was faster
            return self._install(tx, session, view.compacted(self._clock.now_ms(), trigger="auto")).seq

        found = await self._store.read(looked)
        if found is None:
            return
        since, has_grown = found
        # Growth is counted from the boundary, not from when somebody looked.
        self._looked_at[session_n] = await self._store.write(install) if has_grown else since

    def _install(self, tx: Tx, session: SessionRecord, record: LogRecord) -> BoundaryRow:
        row = boundaries.install(tx, self._log, session, record)
        self._prune_in(tx, session.session_id)
        return row

    async def prune(self, session_id: str) -> None:
        if self._settings.retain_events:
            await self._store.write(lambda tx: self._prune_in(tx, session_id))

    def _prune_in(self, tx: Tx, session_id: str) -> None:
        session = find_session(tx, session_id)
        self._suffixes.forget(session.n)
        boundaries.prune(
            tx,
            session,
            retain_events=self._settings.retain_events,
            keep_boundaries=self._settings.keep_boundaries,
        )
