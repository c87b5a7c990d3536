"""What may become of a Run: one table, and the pure decisions that read it.

Every change of a Run's status goes through `next_status`; services turn the answer into one compare-and-set inside one
transaction. The drawing in `docs/ARCHITECTURE.md` is this table.

    pending ──launch──▶ running ──finish──▶ done
       │                  │  ├────fail────▶ failed
       │                  │  ├──interrupt─▶ interrupted ──resume──▶ running
       └──cancel──▶ cancelled ◀──cancel──────┘
       done | failed | interrupted | cancelled ──rerun──▶ running
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Final

from refold.errors import Conflict, NotInterrupted, Unprocessable
from refold.records import RunRecord, RunStatus

S = RunStatus


class Verb(StrEnum):
    """What is done to a Run."""

    LAUNCH = "launch"
    FINISH = "finish"
    FAIL = "fail"
    INTERRUPT = "interrupt"
    CANCEL = "cancel"
    RESUME = "resume"
    RERUN = "rerun"


TRANSITIONS: Final[Mapping[tuple[RunStatus, Verb], RunStatus]] = {
    (S.PENDING, Verb.LAUNCH): S.RUNNING,
    (S.PENDING, Verb.CANCEL): S.CANCELLED,
    (S.PENDING, Verb.FAIL): S.FAILED,
    (S.RUNNING, Verb.FINISH): S.DONE,
    (S.RUNNING, Verb.FAIL): S.FAILED,
    (S.RUNNING, Verb.CANCEL): S.CANCELLED,
    (S.RUNNING, Verb.INTERRUPT): S.INTERRUPTED,
    (S.INTERRUPTED, Verb.RESUME): S.RUNNING,
    (S.INTERRUPTED, Verb.CANCEL): S.CANCELLED,
    (S.DONE, Verb.RERUN): S.RUNNING,
    (S.FAILED, Verb.RERUN): S.RUNNING,
    (S.INTERRUPTED, Verb.RERUN): S.RUNNING,
    (S.CANCELLED, Verb.RERUN): S.RUNNING,
}

TERMINAL: Final = frozenset({S.DONE, S.FAILED, S.CANCELLED})
"""Statuses that no sweep, late submit or cancel changes (law 8); only rerun-from leaves them."""


def next_status(status: str, verb: Verb) -> RunStatus:
    """The status that `verb` leads to from `status`; raises Conflict with the status if the table has no such step."""
    after = TRANSITIONS.get((RunStatus(status), verb))
    if after is None:
        raise Conflict(
            f"a {status} Run cannot {verb}; it can from {', '.join(_sources(verb))}",
            kind=f"run_{status}",
            status=status,
        )
    return after


def plan_resume(run: RunRecord) -> RunStatus:
    """Decides a resume: the status that follows, or NotInterrupted (409) or Unprocessable (422).

    The order is that of the published contract: the status is looked at before the launch input.
    """
    if (S(run.status), Verb.RESUME) not in TRANSITIONS:
        raise NotInterrupted(
            f"run {run.run_id} is {run.status}; only an interrupted Run can be resumed",
            run_id=run.run_id,
            status=run.status,
        )
    if run.input_json is None:
        raise Unprocessable(
            f"run {run.run_id} has no recorded launch input, so nothing to resume it from; kick its Task again",
            kind="no_launch_input",
            run_id=run.run_id,
            status=run.status,
        )
    return next_status(run.status, Verb.RESUME)


def _sources(verb: Verb) -> list[str]:
    return [str(status) for (status, each) in TRANSITIONS if each == verb]
