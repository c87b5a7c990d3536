"""Sweeps: they mark, they never dispatch. Twice is the same as once (R9).

`recover` runs at boot, after the store is taken and before anything is accepted: a Run that is still `running` then
was left by a process that died, whatever the reason.
"""

from __future__ import annotations

from typing import Any

import structlog

from refold.engine.activation import Queue, close_activation
from refold.flowir.lifecycle import Verb
from refold.records import ReplayRow, RunRecord, RunStatus
from refold.store import Tx

Json = Any
log = structlog.get_logger("refold.sweeps")

SERVER_RESTART = "server restart"
SERVER_SHUTDOWN = "server shutdown"


def interrupt_running(tx: Tx, reason: str, at: int) -> list[tuple[RunRecord, int]]:
    """Interrupts every running Run, its Task with it; its turn closes and its open items too. With replayable rows."""
    left = tx.find(RunRecord, status=RunStatus.RUNNING)
    for run in left:
        close_activation(tx, run, Verb.INTERRUPT, Queue(), at=at, result={"error": reason}, reason=reason)
    return [(run, len(tx.find(ReplayRow, run=run.n))) for run in left]


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
