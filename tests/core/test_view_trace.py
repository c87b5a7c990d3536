"""The trace tells, of one activation, what was executed, with the words of the published contract."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from view_strategies import EPOCH_MS, RUN_ID, Log, logs, uuid7

from refold import view
from refold.canonical import decode
from refold.records import ActivationRow, AttemptStatus, LogType, RunStatus

Json = Any

KINDS = {
    LogType.TURN_OPENED: "core.run_started",
    LogType.TURN_WOKEN: "core.run_started",
    LogType.STEP_DISPATCHED: "core.step_dispatched",
    LogType.STEP_REATTEMPTED: "core.step_dispatched",
    LogType.STEP_RETRIED: "core.step_completed",
    LogType.STEP_COMPLETED: "core.step_completed",
    LogType.TURN_COMPLETED: "core.run_finished",
    LogType.TURN_ENDED: "core.run_finished",
}
"""What each record is in a trace; the others are of the Session, of people, or of Runs that never ran."""


def activation(verb: str = "launch", status: str | None = RunStatus.DONE, **members: Any) -> ActivationRow:
    numbers = {"run": 1, "activation": 3, "generation": 2, "epoch": 5, "opened": 1, "opened_at": EPOCH_MS}
    ends = {"closed": None, "closed_at": None, "input_json": None, "result_json": None}
    return ActivationRow(verb=verb, turn_id=uuid7(1), status=status, **(numbers | ends | members))


class Story:
    """The log of one activation: Run 1, turn 1."""

    def __init__(self) -> None:
        self.log = Log()

    def tell(self, build: Any, **members: Any) -> int:
        """Appends what `build` makes; its seq."""
        row = self.log.append(build(self.log.now, **({"run": 1, "turn_id": uuid7(1)} | members)))
        return row.seq

    def opened(self) -> int:
        return self.tell(view.turn_woken, command=None, run_id=RUN_ID, blueprint="b", trigger="x", resume_from=None)

    def dispatched(self, step_id: str = "ST-1") -> int:
        asked = {"occurrence": 4, "lane": ((0, 1), (2, 3)), "input_hash": "0a"}
        return self.tell(view.step_dispatched, step_id=step_id, ref="worker", args="1", attempt=1, **asked)

    def traced(self, about: ActivationRow | None = None) -> list[Json]:
        return view.trace(about or activation(), self.log.rows)


def test_an_activation_that_passes_is_told_from_its_start_to_its_end() -> None:
    story = Story()
    opened = story.opened()
    origin = story.dispatched()
    passed = AttemptStatus.PASSED
    story.tell(view.step_completed, step_id="ST-1", origin=origin, outcome=passed, ms=7, output="out")
    story.tell(view.turn_completed, origin=opened, answer="bye", ms=9)
    step = {"step_ref": "worker", "attempt": 1, "step_id": "ST-1"}
    started = {"mode": "launch", "turn_id": uuid7(1), "activation": 3, "generation": 2, "epoch": 5}
    asked = {"occurrence": 4, "lane": [[0, 1], [2, 3]], "input_hash": "0a"}
    done = {"status": "passed", "duration_ms": 7, "replayed": False}
    assert [{name: each[name] for name in each if name != "ts"} for each in story.traced()] == [
        {"seq": 1, "kind": "core.run_started", "payload": started},
        {"seq": 2, "kind": "core.step_dispatched", **step, "payload": asked},
        {"seq": 3, "kind": "core.step_completed", **step, "payload": done},
        {"seq": 4, "kind": "core.run_finished", "payload": {"status": "done"}},
    ]
    assert story.traced()[0]["ts"] == "2026-09-21T14:13:20.123Z"


def test_every_try_of_a_step_is_told_with_its_number() -> None:
    story = Story()
    story.opened()
    of_step = {"step_id": "ST-1", "origin": story.dispatched()}
    timeout, passed = AttemptStatus.TIMEOUT, AttemptStatus.PASSED
    tried = {"attempt": 1, "max_attempts": 3, "delay_ms": 50, "reason": "slow"}
    story.tell(view.step_retried, outcome=timeout, ms=4, **tried, **of_step)
    story.tell(view.step_reattempted, ref="worker", attempt=2, **of_step)
    story.tell(view.step_completed, outcome=passed, ms=5, **of_step)
    _, *steps = story.traced()
    assert [(each["kind"].rpartition("_")[2], each["attempt"], each["payload"].get("status")) for each in steps] == [
        ("dispatched", 1, None),
        ("completed", 1, "timeout"),
        ("dispatched", 2, None),
        ("completed", 2, "passed"),
    ]
    assert {(each["step_id"], each["step_ref"]) for each in steps} == {("ST-1", "worker")}
    assert [each["payload"]["duration_ms"] for each in steps if "duration_ms" in each["payload"]] == [4, 5]


@pytest.mark.parametrize(
    ("status", "terminal", "reason"),
    [
        ("interrupted", "cancelled", "stale run sweep"),
        ("interrupted", "cancelled", "server restart"),
        ("cancelled", "cancelled", "cancelled"),
        ("failed", "failed", ""),
    ],
)
def test_an_end_says_how_the_run_stands_and_why(status: str, terminal: str, reason: str) -> None:
    story = Story()
    opened = story.opened()
    story.tell(view.turn_ended, origin=opened, terminal=terminal, reason=reason, ms=1, message="long text")
    expected = {"status": status} | ({"reason": reason} if reason else {})
    assert story.traced(activation(status=status))[-1]["payload"] == expected


@pytest.mark.parametrize("verb", ["launch", "resume", "rerun"])
def test_a_start_says_its_verb(verb: str) -> None:
    story = Story()
    story.opened()
    assert story.traced(activation(verb, status=None))[0]["payload"]["mode"] == verb


def test_other_runs_are_left_out() -> None:
    story = Story()
    story.opened()
    story.log.append(view.turn_refused(story.log.now, run=1, turn_id=uuid7(2), message="no"))
    story.tell(view.turn_ended, run=2, origin=1, terminal="failed", reason="", ms=1)
    assert [each["kind"] for each in story.traced()] == ["core.run_started"]
    assert story.traced(activation(run=9)) == []


@given(logs())
def test_every_record_of_what_was_executed_is_told_once_and_in_order(log: Log) -> None:
    told = [(row.seq, KINDS[LogType(row.type)]) for row in log.rows if row.type in KINDS]
    trace = view.trace(activation(), log.rows)
    assert [(each["seq"], each["kind"]) for each in trace] == told
    rows = [row for row in log.rows if row.type in KINDS]
    refs: dict[str | None, str] = {}
    for row, each in zip(rows, trace, strict=True):
        if row.type in (LogType.STEP_DISPATCHED, LogType.STEP_REATTEMPTED):
            refs[row.item_id] = decode(row.body_json)["ref"]
        assert each.get("step_ref") == refs.get(row.item_id)
        assert set(each) <= {"seq", "ts", "kind", "step_ref", "attempt", "step_id", "payload"}
