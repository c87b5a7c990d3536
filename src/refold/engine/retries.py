"""Retry policies: whether an attempt that did not pass is tried again, and when. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from refold.engine.agents import Cause, Report
from refold.flowir import AgentDef, Blocked, Failed, Outcome, Pass, Skip
from refold.records import AttemptStatus

_CAUSES: Final[Mapping[type[Outcome], Cause]] = {Blocked: "blocked", Failed: "error"}
_STATUS: Final[Mapping[type[Outcome], AttemptStatus]] = {
    Pass: AttemptStatus.PASSED,
    Skip: AttemptStatus.SKIPPED,
    Blocked: AttemptStatus.BLOCKED,
    Failed: AttemptStatus.FAILED,
}


def status_of(report: Report) -> AttemptStatus:
    """How the attempt that made this report ended."""
    return AttemptStatus.TIMEOUT if report.cause == "timeout" else _STATUS[type(report.outcome)]


def pause_before_retry(agent: AgentDef | None, report: Report, attempt: int) -> float | None:
    """Seconds until the next attempt after `attempt` (from 1) reported so; None if there is none.

    Exponential without jitter: the attempts of one step never compete with each other, and a log that shows when the
    next one is due should be right.
    """
    cause = report.cause or _CAUSES.get(type(report.outcome))
    policy = agent.retry if agent is not None else None
    if policy is None or cause not in policy.retry_on or attempt >= policy.max_attempts:
        return None
    pause = min(policy.max_secs, policy.initial_secs)
    for _ in range(attempt - 1):  # turn by turn, since 1000.0 ** 999 is no float
        pause = min(policy.max_secs, pause * policy.multiplier)
    return pause
