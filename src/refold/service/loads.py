"""Which Sessions are loaded, and how each of them stands: what every client is told without having asked.

A Session is loaded by a start, a resume or the launch of a Run. It stays loaded while anybody is subscribed to it,
while a Run of it runs or is queued, and while a person is asked something; after that for `idle_secs`. Unloaded it can
be read and paged; commands are refused until it is resumed, which then leaves its durable marker.

Standings are looked up after commits, one read for all that one turn of the loop appended, and only while somebody
listens. So what is told is how things stood at the end of such a turn: of two flips within one nobody hears.

Not here: which of those told are slow (`server.rpc`), the loads themselves (`session.hub`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Literal

import msgspec

from refold import diagnostics
from refold.engine.clock import Clock
from refold.errors import RefoldError
from refold.records import RequestRow, RequestStatus, RunRecord, RunStatus, SessionRecord
from refold.service.sessions import SessionInfo, info_of
from refold.session import Hub, SessionLog
from refold.store import Reader, Store

log = diagnostics.Log("refold.loads")

Reason = Literal["idle", "hostShutdown"]


class Change(msgspec.Struct, frozen=True, kw_only=True):
    """Something about a loaded Session changed: how it stands, or another member that lists show."""

    info: SessionInfo
    cursor: str | None = None
    """The head, of one that was closed because nobody was there. Never the head of a Session that somebody follows: who
    keeps every cursor that he sees would keep one ahead of the events that he has."""
    flipped: bool = False
    """Whether its status or what it needs of a person is another."""
    closed: Reason | None = None
    """Why it is loaded no more."""


class Loads:
    """The loaded Sessions of this process."""

    def __init__(
        self, store: Store, clock: Clock, hub: Hub, log: SessionLog, *, idle_secs: float, period_secs: float
    ) -> None:
        self._store = store
        self._clock = clock
        self._hub = hub
        self._log = log
        self._idle_secs = idle_secs
        self._period_secs = period_secs
        self._listeners: list[Callable[[Change], None]] = []
        self._known: dict[int, SessionInfo] = {}
        self._used_at: dict[int, float] = {}
        self._grown: set[int] = set()
        self._looking: asyncio.Task[None] | None = None

    # -- telling ------------------------------------------------------------------------------------------------------

    async def listen(self, tell: Callable[[Change], None]) -> None:
        """Has `tell` called of every change from now on. It must not wait."""
        if not self._listeners:  # nobody looked meanwhile: what stands now is no change
            self._known = {each.session.n: each for each in await self._infos(self._hub.loaded)}
        self._listeners.append(tell)

    def leave(self, tell: Callable[[Change], None]) -> None:
        """Ends that."""
        if tell in self._listeners:
            self._listeners.remove(tell)

    def born(self, info: SessionInfo) -> None:
        """A Session was started, and everybody is told of it in another way."""
        self._known[info.session.n] = info

    def appended(self, heads: Mapping[int, int]) -> None:
        """Takes note of what a commit appended. It reads nothing where all are loaded and nobody listens."""
        if self._listeners or not self._hub.are_loaded(heads):
            self._grown.update(heads)
            if self._looking is None:
                self._looking = asyncio.create_task(self._look(), name="standings")

    def driven(self, run: RunRecord) -> None:
        """A Run is driven here, so its Session is loaded."""
        self._hub.load(run.session)

    async def _look(self) -> None:
        try:
            while self._grown:
                grown, self._grown = self._grown, set()
                if not self._listeners:  # what a launch has loaded meanwhile is all that there was to find out
                    grown = {n for n in grown if not self._hub.is_loaded(n)}
                for info in await self._infos(grown):
                    self._compare(info)
        except RefoldError as error:  # damage; whoever reads the Session is told
            log.warning("standings_not_read", kind=error.kind, error=error.message)
        finally:
            self._looking = None

    def _compare(self, info: SessionInfo) -> None:
        n = info.session.n
        if info.session.active_run is not None and self._hub.load(n):
            info = msgspec.structs.replace(info, loaded=True)  # a launch loads
        if not info.loaded or not self._listeners:
            return
        before, self._known[n] = self._known.get(n), info
        if before is None or _shown(before) != _shown(info):
            flipped = before is None or _standing(before) != _standing(info)
            self._tell(Change(info=info, flipped=flipped))

    def _tell(self, change: Change) -> None:
        for tell in list(self._listeners):
            tell(change)

    async def _infos(self, sessions: Collection[int]) -> list[SessionInfo]:
        if not sessions:
            return []

        def read(reader: Reader) -> list[SessionInfo]:
            rows = [row for n in sessions if (row := reader.get(SessionRecord, n)) is not None]
            return [info_of(reader, self._hub, row) for row in rows]

        return await self._store.read(read)

    # -- unloading ----------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Unloads for ever what has been idle for long enough."""
        while True:
            await asyncio.sleep(self._period_secs)
            try:
                await self.sweep()
            except RefoldError as error:
                log.warning("sessions_not_unloaded", kind=error.kind, error=error.message)

    async def sweep(self) -> None:
        """Unloads what has been idle since `idle_secs` before now, as far as sweeps have seen."""
        now, used = self._clock.monotonic(), self._hub.take_used()
        for n in self._hub.loaded:
            if n in used or n not in self._used_at:
                self._used_at[n] = now
        idle = [n for n in self._hub.loaded if now - self._used_at[n] >= self._idle_secs]
        if not idle:
            return
        busy = await self._store.read(lambda reader: {n for n in idle if _is_busy(reader, n)})
        for n in busy:
            self._used_at[n] = now
        await self._unload([n for n in idle if n not in busy and not self._hub.is_heard(n)], "idle")

    async def close(self, reason: Reason | None = None) -> None:
        """Unloads everything; with a reason, everybody is told."""
        if self._looking is not None:
            await asyncio.gather(self._looking, return_exceptions=True)
        if reason is not None:
            await self._unload(self._hub.loaded, reason)

    async def _unload(self, sessions: Collection[int], reason: Reason) -> None:
        heads = await self._store.read(lambda reader: self._heads(reader, sessions))
        for info in await self._infos(sessions):  # read, then without a pause: nobody can come in between
            n = info.session.n
            self._hub.unload(n)
            self._log.forget(n)
            self._known.pop(n, None)
            self._used_at.pop(n, None)
            cursor = heads[n] if reason == "idle" else None
            self._tell(Change(info=msgspec.structs.replace(info, loaded=False), cursor=cursor, closed=reason))

    def _heads(self, reader: Reader, sessions: Iterable[int]) -> dict[int, str]:
        rows = [row for n in sessions if (row := reader.get(SessionRecord, n)) is not None]
        return {row.n: self._log.head(reader, row) for row in rows}


def _is_busy(reader: Reader, n: int) -> bool:
    """Whether a Run of the Session runs or waits in its queue, or a person is asked something."""
    session = reader.get(SessionRecord, n)
    if session is None or session.active_run is not None:
        return session is not None
    waits = reader.count(RunRecord, session=n, status=RunStatus.PENDING)
    return bool(waits or reader.count(RequestRow, session=n, status=RequestStatus.OPEN))


def _standing(info: SessionInfo) -> tuple[object, ...]:
    return info.status, info.attention


def _shown(info: SessionInfo) -> tuple[object, ...]:
    """What a list shows of a Session, but for the time of its last event: that is told by the event."""
    row = info.session
    return *_standing(info), row.active_turn, row.turns, row.model_id, row.name, row.workspace_root
