"""What keeps drivers: one asyncio task per activation, outliving every request, caught when it falls.

A driver ends in one of four ways, and each leaves a durable mark: a result (the Run is closed as done or failed), a
fence (somebody else closed it: a cancel, an interrupt), a stop of ours (the caller closes it), or an exception. The
last one interrupts the Run at once, or as soon as the store takes it, so that no Run stays `running` without a driver
(R16); the stale sweep is only the net below.
"""

from __future__ import annotations

import asyncio
import contextlib
import traceback
from collections.abc import Callable
from typing import Any, Final, NamedTuple

import msgspec

from refold import diagnostics
from refold.engine.activation import Closed, Queue, close_activation, snapshot
from refold.engine.agents import Tools
from refold.engine.clock import Clock
from refold.engine.driver import FOLDERS, Driver
from refold.engine.parsed import Parsed
from refold.errors import Fenced, StoreError
from refold.flowir import Done, ReplayCursor, live_rows, uncut
from refold.flowir.lifecycle import Verb
from refold.flowir.outputs import Outputs
from refold.records import AttemptRow, CutRow, DecisionRow, ReplayRow, RequestRow, RunRecord
from refold.store import Reader, StepCommit, Store, Tx, verify_replay

Json = Any
log = diagnostics.Log("refold.engine")

FIRST_PAUSE_SECS: Final = 0.05
LAST_PAUSE_SECS: Final = 30.0
"""Between two tries to write the end of a fallen driver: until then its Run says `running` and cannot be resumed."""


class Ending(NamedTuple):
    """How a drive ends: as what, with which final ctx or error, and what of its last step is still to be written."""

    verb: Verb
    result: Json
    outputs: Outputs | None = None
    """Those that a final ctx may name."""
    last: StepCommit | None = None


class Supervisor:
    """Starts, stops and awaits drivers. `drive` after the commit that made the Run running, never before."""

    def __init__(
        self, store: Store, clock: Clock, tools: Tools, queue: Queue | None = None, *, replay: bool = True
    ) -> None:
        self.queue = queue or Queue()
        self.parsed = Parsed()
        self._replay = replay
        self._store = store
        self._clock = clock
        self._tools = tools
        self._drivers: dict[int, asyncio.Task[None]] = {}
        self._unwritten: dict[int, asyncio.Task[None]] = {}
        self._tell_driven: Callable[[RunRecord], None] = lambda run: None
        self._waiters: dict[int, list[asyncio.Future[RunRecord | None]]] = {}

    def on_drive(self, tell: Callable[[RunRecord], None]) -> None:
        """Has `tell` called whenever a driver is started. It must not wait."""
        self._tell_driven = tell

    def drive(self, run: RunRecord, history: History | None = None) -> None:
        """Starts the driver of an activation that is committed as running.

        `history` is what lies behind it, as the transaction read it that made it running; else it is read again.
        """
        task = asyncio.create_task(self._supervise(run, history), name=f"driver {run.run_id}")
        self._drivers[run.n] = task
        self._tell_driven(run)

    def is_driving(self, run_n: int) -> bool:
        """Whether a driver of this process carries the Run."""
        return run_n in self._drivers

    async def stop(self, run_n: int) -> None:
        """Stops the work of a Run and returns when it is gone. Its status is the caller's to write, before."""
        tasks = [kept[run_n] for kept in (self._drivers, self._unwritten) if run_n in kept]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def stop_all(self) -> None:
        """Stops every driver."""
        await asyncio.gather(*(self.stop(run_n) for run_n in {*self._drivers, *self._unwritten}))

    def settled(self, run_n: int) -> asyncio.Future[RunRecord | None]:
        """A future that is done at the next `announce` of this Run. Take it first, then read how the Run stands.

        It brings the record that was written by then, whole, if it was a driver of this process that closed the Run.
        """
        future: asyncio.Future[RunRecord | None] = asyncio.get_running_loop().create_future()
        self._waiters.setdefault(run_n, []).append(future)
        return future

    def announce(self, run_n: int, ended: RunRecord | None = None) -> None:
        """Says that the Run's activation is closed, or that it will never have one."""
        for future in self._waiters.pop(run_n, ()):
            if not future.done():
                future.set_result(ended)

    async def _supervise(self, run: RunRecord, history: History | None) -> None:
        ended = after = None
        try:
            ended, after = await self._carry(run, history)
        except Fenced as fence:
            log.info("driver_fenced", run_id=run.run_id, reason=fence.message)
        except Exception as error:  # noqa: BLE001 - the outermost frame of a driver: nothing above could handle it
            after = await self._interrupt(run, error)
        finally:
            if self._drivers.get(run.n) is asyncio.current_task():  # a resume may have started the next one already
                del self._drivers[run.n]
            self.announce(run.n, ended)
        if after is not None:
            self.drive(after)

    async def _carry(self, run: RunRecord, history: History | None) -> Closed:
        """Drives the Run to its end and closes it, in one commit with its last step."""
        ending, at = await self._ending(run, history), self._clock.now_ms()
        closed: Closed | None = None

        def close(tx: Tx) -> None:
            nonlocal closed
            closed = close_activation(
                tx, run, ending.verb, self.queue, at=at, result=ending.result, outputs=ending.outputs
            )

        if ending.last is None:
            await self._store.write(close)
        else:
            await self._store.commit(ending.last, close)
        assert closed is not None, "the commit was acknowledged"
        return closed

    async def _ending(self, run: RunRecord, history: History | None) -> Ending:
        """How the flow ends, or that the time it had is over: then its work is stopped wherever it is."""
        launch = snapshot(run)
        left = self._secs_left(run, launch)
        if left is None:
            return await self._driven(run, launch, history)
        over = Ending(Verb.FAIL, {"error": f"its ttl of {launch.get('ttl_secs')} s is over", "kind": "ttl_exceeded"})
        if left <= 0:
            return over  # no step begins that could only be cut off
        limit = asyncio.timeout(left)
        try:
            async with limit:
                return await self._driven(run, launch, history)
        except TimeoutError:
            if not limit.expired():
                raise
            return over

    async def _driven(self, run: RunRecord, launch: Json, history: History | None) -> Ending:
        """How the flow ends."""
        driver = await self._prepare(run, launch, history)
        result, last = await driver.drive(), driver.take_last()
        if isinstance(result, Done):
            return Ending(Verb.FINISH, result.ctx, driver.outputs, last)
        return Ending(Verb.FAIL, {"error": result.text}, None, last)

    def _secs_left(self, run: RunRecord, launch: Json) -> float | None:
        """Of the time that the Run may take, from its launch or last rerun-from on, what is left; None without a limit.

        By the wall clock, so that it goes on while no server runs; within an activation it is an interval.
        """
        ttl_secs = launch.get("ttl_secs")
        if ttl_secs is None:
            return None
        since = launch.get("ttl_from") or run.started_at or run.activated_at
        return ttl_secs - (self._clock.now_ms() - since) / 1000

    async def _prepare(self, run: RunRecord, launch: Json, history: History | None) -> Driver:
        history, attempts, requests = await self._behind(run, history)
        return Driver(
            run,
            self.parsed.get(launch["blueprint"]["value"]).blueprint,
            launch["init_ctx"],
            history.cursor,
            attempts,
            requests,
            store=self._store,
            clock=self._clock,
            tools=self._tools,
            replay=self._replay,
            folders={name: launch.get(name) for name in FOLDERS},
        )

    async def _behind(
        self, run: RunRecord, history: History | None
    ) -> tuple[History, list[AttemptRow], list[RequestRow]]:
        if run.activation == 1:  # the first one has nothing behind it, and most Runs have one only
            return NOTHING, [], []

        def read(reader: Reader) -> tuple[History, list[AttemptRow], list[RequestRow]]:
            logged = history or load_history(reader, run)
            return logged, reader.find(AttemptRow, run=run.n), reader.find(RequestRow, run=run.n)

        return await self._store.read(read)

    async def _interrupt(self, run: RunRecord, error: Exception) -> RunRecord | None:
        at, redact = self._clock.now_ms(), self._tools.secrets.redact
        log.error("driver_fell", run_id=run.run_id, exception=redact("".join(traceback.format_exception(error))))
        result = redact({"error": f"the driver of this run ended without a result: {error}"})

        def close(tx: Tx) -> RunRecord | None:
            close_activation(tx, run, Verb.INTERRUPT, self.queue, at=at, result=result, reason="driver fell")
            return self.queue.launch_waiting(tx, at)

        try:
            return await self._store.write(close)
        except Fenced as fence:
            log.info("driver_fenced", run_id=run.run_id, reason=fence.message)
        except StoreError as second:  # a full disk, say: the driver may have fallen for the same reason
            log.error("driver_interrupt_not_written", run_id=run.run_id, error=repr(second))
            later = self._write_later(run.n, close)
            self._unwritten[run.n] = asyncio.create_task(later, name=f"end of {run.run_id}")
        return None

    async def _write_later(self, run_n: int, close: Callable[[Tx], RunRecord | None]) -> None:
        """Writes the end of a fallen driver when the store takes it again, unless somebody has ended the Run since."""
        after, pause = None, FIRST_PAUSE_SECS
        try:
            while True:
                await asyncio.sleep(pause)
                pause = min(2 * pause, LAST_PAUSE_SECS)
                with contextlib.suppress(StoreError):
                    after = await self._store.write(close)
                    break
        except Fenced:
            return
        finally:
            if self._unwritten.get(run_n) is asyncio.current_task():
                del self._unwritten[run_n]
        self.announce(run_n)
        if after is not None:
            self.drive(after)


class History(msgspec.Struct, frozen=True):
    """What is logged of a Run: its replay rows and decisions."""

    rows: list[ReplayRow]
    """The live ones."""
    uncut: list[ReplayRow]
    """Those that no rerun-from has retired: beside the live ones, those of lanes that lost."""
    all_rows: list[ReplayRow]
    decisions: list[DecisionRow]

    @property
    def cursor(self) -> ReplayCursor:
        """What a driver, or a dry replay, answers from."""
        return ReplayCursor(self.rows, self.decisions)


NOTHING: Final = History([], [], [], [])


def load_history(reader: Reader, run: RunRecord) -> History:
    """What is logged of a Run, checked against its chain; raises StoreDamaged."""
    rows = sorted(reader.find(ReplayRow, run=run.n), key=lambda row: row.ordinal)
    decisions, cuts = reader.find(DecisionRow, run=run.n), reader.find(CutRow, run=run.n)
    verify_replay(run, [*rows, *decisions, *cuts])
    kept, decided = uncut(rows, cuts), uncut(decisions, cuts)
    return History(live_rows(kept, decided), kept, rows, decided)
