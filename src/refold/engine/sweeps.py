"""Sweeps: they mark, they never dispatch. Twice is the same as once (R9).

`interrupt_running` runs at boot, after the store is taken and before anything is accepted: a Run that is still
`running` then was left by a process that died, whatever the reason. It runs again at the end of an orderly shutdown.
`StaleSweep` runs beside the server and is the net below the supervisor: a Run without a driver that stands still.
"""

from __future__ import annotations

import asyncio
from typing import Any

from refold import diagnostics
from refold.engine.activation import Queue, close_activation
from refold.engine.clock import Clock
from refold.engine.supervisor import Supervisor
from refold.errors import RefoldError
from refold.flowir import live_rows, uncut
from refold.flowir.lifecycle import Verb
from refold.records import CutRow, DecisionRow, ReplayRow, RunRecord, RunStatus
from refold.store import Store, Tx

Json = Any
log = diagnostics.Log("refold.sweeps")

SERVER_RESTART = "server restart"
SERVER_SHUTDOWN = "server shutdown"
STALE = "stale run sweep"
_PERSONS = frozenset({"approval", "input", "operator"})
"""What a Run may wait for as long as it likes."""


def interrupt_running(tx: Tx, reason: str, at: int) -> list[tuple[RunRecord, int]]:
    """Interrupts every running Run, its Task with it; its turn closes and its open items too. With replayable rows."""
    left = tx.find(RunRecord, status=RunStatus.RUNNING)
    for run in left:
        close_activation(tx, run, Verb.INTERRUPT, Queue(), at=at, result={"error": reason}, reason=reason)
    return [(run, _replayable(tx, run)) for run in left]


def _replayable(tx: Tx, run: RunRecord) -> int:
    """How many rows a resume would answer from. They are not verified: damage stops a resume, never a boot."""
    passed = tx.count(ReplayRow, run=run.n)
    if passed == run.rows:  # no decision among them and no cut, so nothing is retired: most Runs are not read at all
        return passed
    cuts = tx.find(CutRow, run=run.n)
    rows, decisions = uncut(tx.find(ReplayRow, run=run.n), cuts), uncut(tx.find(DecisionRow, run=run.n), cuts)
    return len(live_rows(rows, decisions))


def report(recovered: list[tuple[RunRecord, int]]) -> None:
    """One log line per Run that boot recovery found: the operator's list of what can be resumed."""
    for run, replayed_steps in recovered:
        if run.input_json is None and not replayed_steps:
            log.info("run_not_resumable", run_id=run.run_id, task_id=run.task_id, replayed_steps=0)
            continue
        log.info(
            "run_resumable",
            run_id=run.run_id,
            task_id=run.task_id,
            replayed_steps=replayed_steps,
            resume_url=f"POST /v1/runs/{run.run_id}/resume",
        )


class StaleSweep:
    """Interrupts Runs that nobody drives and that stand still for longer than `threshold_secs`.

    It skips Runs with a live driver, however long their steps take, and those that wait for a person. Its faults are
    counted and logged, never raised: a hiccup of the store must not take the server down.
    """

    def __init__(self, store: Store, clock: Clock, supervisor: Supervisor, threshold_secs: int, period_secs: float):
        self._store = store
        self._clock = clock
        self._supervisor = supervisor
        self._threshold_secs = threshold_secs
        self._period_secs = period_secs
        self.faults = 0
        self.interrupted = 0

    async def run(self) -> None:
        """Sweeps for ever; at once returns if the threshold is 0."""
        while self._threshold_secs:
            await asyncio.sleep(self._period_secs)
            await self.sweep()

    async def sweep(self) -> list[RunRecord]:
        """One sweep; the Runs that it interrupted."""
        at = self._clock.now_ms()
        try:
            swept = await self._store.write(lambda tx: self._interrupt_stale(tx, at))
        except RefoldError as error:
            self.faults += 1
            log.error("stale_run_sweep_failed", error=error.message, kind=error.kind)
            return []
        self.interrupted += len(swept)
        for run in swept:
            self._supervisor.announce(run.n)
            log.warning("stale_run_interrupted", run_id=run.run_id, task_id=run.task_id)
        return swept

    def _interrupt_stale(self, tx: Tx, at: int) -> list[RunRecord]:
        stale = []
        for run in tx.find(RunRecord, status=RunStatus.RUNNING):
            idle_secs = (at - run.updated_at) // 1000
            waits = run.waiting_on in _PERSONS
            if self._supervisor.is_driving(run.n) or waits or idle_secs <= self._threshold_secs:
                continue
            result = {"error": f"orphaned: no driver progress for {idle_secs}s"}
            close_activation(tx, run, Verb.INTERRUPT, Queue(), at=at, result=result, reason=STALE)
            stale.append(run)
        return stale
