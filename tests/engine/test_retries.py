"""Retries: the policy as arithmetic, and what a driver makes of it: numbered attempts of one step, under one item."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from run_kit import (
    NOON,
    Bench,
    agent,
    assert_items_closed_once,
    bench_of,
    eventually,
    fanout,
    first_or,
    free_slots,
    guard,
    passes,
    result,
    seq,
    step,
)

from refold.engine.agents import Assignment, Report
from refold.engine.retries import pause_before_retry, status_of
from refold.flowir import AgentDef, Blocked, Failed, Pass, Retry, Skip
from refold.records import AttemptStatus, LogType, RunRecord

# -- the policy -------------------------------------------------------------------------------------------------------

BLOCKED, ERROR, TIMEOUT = (
    Report(Blocked("no")),
    Report(Failed("broken")),
    Report(Failed("timed out after 1 s"), cause="timeout"),
)
EXITED = Report(Blocked({"exit_code": 1}), cause="error")


def pause(report: Report, attempt: int = 1, **policy: Any) -> float | None:
    return pause_before_retry(AgentDef(name="a", kind="python", spec={}, retry=Retry(**policy)), report, attempt)


@pytest.mark.parametrize(
    ("retry_on", "again"),
    [
        (("error", "timeout"), [ERROR, EXITED, TIMEOUT]),
        (("blocked",), [BLOCKED]),
        (("timeout",), [TIMEOUT]),
        (("error",), [ERROR, EXITED]),
        ((), []),
    ],
)
def test_only_what_the_policy_names_is_tried_again(retry_on: tuple[str, ...], again: list[Report]) -> None:
    reports = [BLOCKED, ERROR, EXITED, TIMEOUT, Report(Pass(1)), Report(Skip(1))]
    tried = [report for report in reports if pause(report, retry_on=retry_on) is not None]
    assert tried == [report for report in reports if report in again]


def test_what_is_not_named_is_tried_again_after_an_error_and_a_timeout_only() -> None:
    assert [pause(report) for report in (ERROR, EXITED, TIMEOUT, BLOCKED)] == [1.0, 1.0, 1.0, None]


def test_without_a_policy_or_an_agent_nothing_is_tried_again() -> None:
    plain = AgentDef(name="a", kind="python", spec={})
    assert pause_before_retry(plain, ERROR, 1) is pause_before_retry(None, ERROR, 1) is None


def test_pauses_grow_up_to_a_limit_and_attempts_are_counted_from_one() -> None:
    policy = {"max_attempts": 6, "initial_secs": 0.5, "multiplier": 3, "max_secs": 10}
    assert [pause(ERROR, attempt, **policy) for attempt in range(1, 8)] == [0.5, 1.5, 4.5, 10, 10, None, None]


@given(
    st.integers(1, 1000),
    st.floats(0, 1e9),
    st.one_of(st.floats(1, 1000), st.integers(1, 1000)),
    st.floats(0, 1e9),
)
@example(999, 1.0, 1000.0, 60.0)  # 1000.0 ** 998 is no float
@example(999, 0.0, 1000.0, 60.0)
@example(999, 1e9, 1000, 1e9)
def test_no_policy_makes_a_pause_that_no_clock_takes(attempt: int, initial: float, factor: float, most: float) -> None:
    policy = {"max_attempts": 1000, "initial_secs": initial, "multiplier": factor, "max_secs": most}
    found = pause(ERROR, attempt, **policy)
    assert (found is None) is (attempt == 1000)
    if found is not None:
        assert min(initial, most) <= found <= most
        assert found == 0 or initial > 0


@pytest.mark.parametrize(
    ("report", "status"),
    [
        (Report(Pass(1)), "passed"),
        (Report(Skip(1)), "skipped"),
        (BLOCKED, "blocked"),
        (EXITED, "blocked"),
        (ERROR, "failed"),
        (TIMEOUT, "timeout"),
    ],
)
def test_a_report_says_how_its_attempt_ended(report: Report, status: str) -> None:
    assert status_of(report) == AttemptStatus(status)


# -- driven -----------------------------------------------------------------------------------------------------------

AT_ONCE = {"initial_secs": 0, "max_attempts": 3}
FAR_AWAY = {"initial_secs": 10_000, "max_secs": 10_000}


@pytest.fixture(params=["memory", "sqlite"])
async def bench(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Bench]:
    async with bench_of(request.param, tmp_path, monkeypatch) as bench:
        yield bench


def fails(times: int, report: Report = ERROR) -> Any:
    return lambda work: report if work.attempt <= times else passes(work)


async def ends(bench: Bench, run: RunRecord) -> list[tuple[int, str | None]]:
    return [(each.attempt, each.status) for each in await bench.attempts(run)]


@pytest.mark.anyio
async def test_a_step_is_tried_again_under_its_own_name(bench: Bench) -> None:
    bench.crew.acts["a"] = fails(2)
    run = await bench.launch(seq(step("a", 1), step("b", "$.a")), agent("a", retry=AT_ONCE))
    assert result(await bench.ended(run)) == {"a": 1, "b": 1}
    tries = [work for work in bench.crew.seen if work.step_ref == "a"]
    assert [work.attempt for work in tries] == [1, 2, 3]
    assert len({(work.step_id, work.idempotency_key, work.occurrence, work.lane) for work in tries}) == 1
    assert await ends(bench, run) == [(1, "failed"), (2, "failed"), (3, "passed"), (1, "passed")]
    assert [row.step_ref for row in await bench.rows(run)] == ["a", "b"]


@pytest.mark.anyio
async def test_clients_see_one_item_and_each_retry_announced(bench: Bench) -> None:
    bench.crew.acts["a"] = fails(2)
    run = await bench.launch(step("a", 1), agent("a", retry=AT_ONCE))
    await bench.ended(run)
    log, frames = await bench.log(run), await bench.frames(run)
    assert_items_closed_once(log)
    told = [frame["params"] for frame in frames if frame["method"] == "turn/retryScheduled"]
    members = ("attempt", "nextAttempt", "maxAttempts", "retryDelayMs", "reason", "errorKind", "turnId")
    assert [[each[name] for name in members] for each in told] == [
        [1, 2, 3, 0, "broken", "failed", run.turn_id],
        [2, 3, 3, 0, "broken", "failed", run.turn_id],
    ]
    items = [frame["params"]["item"] for frame in frames if frame["params"].get("item", {}).get("kind") == "toolCall"]
    assert [item["status"] for item in items] == ["inProgress", "completed"]
    closed = [frame["params"]["item"] for frame in frames if frame["method"] == "item/completed"]
    assert [item["children"] for item in closed if item["kind"] == "workflow"] == [
        []
    ]  # what passed at last is no failure


@pytest.mark.anyio
async def test_attempts_end_and_the_last_answer_counts(bench: Bench) -> None:
    bench.crew.acts["a"] = fails(99)
    run = await bench.launch(guard(step("a")), agent("a", retry=AT_ONCE))
    assert "broken" in result(await bench.ended(run))["err"]
    assert await ends(bench, run) == [(1, "failed"), (2, "failed"), (3, "failed")]
    assert [each.due_at for each in await bench.attempts(run)] == [NOON, NOON, None]
    frames = await bench.frames(run)
    assert [frame["method"] for frame in frames].count("turn/retryScheduled") == 2
    assert_items_closed_once(await bench.log(run))


@pytest.mark.anyio
async def test_a_refusal_is_not_tried_again_unless_the_policy_says_so(bench: Bench) -> None:
    bench.crew.acts |= {"a": fails(1, BLOCKED), "b": fails(1, BLOCKED)}
    policies = agent("a", retry=AT_ONCE), agent("b", retry=AT_ONCE | {"retry_on": ["blocked"]})
    run = await bench.launch(seq(guard(step("a")), step("b")), *policies)
    await bench.ended(run)
    assert await ends(bench, run) == [(1, "blocked"), (1, "blocked"), (2, "passed")]


@pytest.mark.anyio
async def test_an_attempt_that_takes_too_long_is_stopped_and_tried_again_as_a_timeout(bench: Bench) -> None:
    async def slow(work: Assignment) -> Report:
        return passes(work) if work.attempt > 1 else await asyncio.Event().wait()

    bench.crew.acts["a"] = slow
    policy = agent("a", timeout_secs=0.01, retry=AT_ONCE | {"retry_on": ["timeout"]})
    run = await bench.launch(step("a", 1), policy)
    assert result(await bench.ended(run)) == {"a": 1}
    assert await ends(bench, run) == [(1, "timeout"), (2, "passed")]
    assert [work.attempt for work in bench.crew.stopped] == [1]
    assert (await bench.attempts(run))[0].outcome_json == '"timed out after 0.01 s"'


@pytest.mark.anyio
async def test_an_agent_that_raises_a_timeout_of_its_own_has_a_bug_and_did_not_take_too_long(bench: Bench) -> None:
    def raises(work: Assignment) -> Report:
        raise TimeoutError("of its own")

    bench.crew.acts["a"] = raises
    after = await bench.ended(await bench.launch(step("a"), agent("a", timeout_secs=1000)))
    assert (after.status, result(after)["error"].rpartition(": ")[2]) == ("interrupted", "of its own")


@pytest.mark.anyio
async def test_a_timeout_without_a_retry_fails_the_step(bench: Bench) -> None:
    bench.crew.hold("a")
    run = await bench.launch(guard(step("a")), agent("a", timeout_secs=0.01))
    assert result(await bench.ended(run))["err"].endswith("timed out after 0.01 s")
    items = [frame["params"]["item"] for frame in await bench.frames(run) if frame["method"] == "item/completed"]
    assert [item["status"] for item in items if item["kind"] == "toolCall"] == ["timedOut"]


@pytest.mark.anyio
async def test_between_two_tries_a_run_waits_for_time_and_holds_no_slot(bench: Bench) -> None:
    bench.crew.acts["a"] = fails(99)
    run = await bench.launch(step("a"), agent("a", retry=FAR_AWAY))
    await bench.waits_on(run, "timer")
    assert free_slots(bench.capacity) == 64
    (attempt,) = await bench.attempts(run)
    assert (attempt.status, attempt.due_at) == ("failed", NOON + 10_000_000)


@pytest.mark.anyio
async def test_a_crash_between_two_tries_closes_the_item_and_a_resume_tries_again(bench: Bench) -> None:
    bench.crew.acts["a"] = fails(1)
    run = await bench.launch(seq(step("a", 1)), agent("a", retry=FAR_AWAY))
    await bench.waits_on(run, "timer")
    bench = await bench.crash()
    log = await bench.log(run)
    assert_items_closed_once(log)
    assert log[-1].type == LogType.TURN_ENDED
    closed = [frame["params"]["item"] for frame in await bench.frames(run) if frame["method"] == "item/completed"]
    assert [item["status"] for item in closed if item["kind"] == "toolCall"] == ["cancelled"]
    listed = [item["children"] for item in closed if item["kind"] == "workflow"][-1]
    assert [(child["label"], child["status"]) for child in listed] == [("a", "cancelled")]
    assert result(await bench.ended(await bench.resume(run))) == {"a": 1}
    assert await ends(bench, run) == [(1, "failed"), (2, "passed")]
    first, second = bench.crew.seen
    assert (first.idempotency_key, first.attempt, second.attempt) == (second.idempotency_key, 1, 2)
    assert_items_closed_once(await bench.log(run))


@pytest.mark.anyio
async def test_a_loser_between_two_tries_ends_once_and_is_not_tried_again(bench: Bench) -> None:
    bench.crew.acts["a"] = fails(99)
    gate = bench.crew.hold("b")
    race = fanout([0, 1], first_or(step("a"), step("b")), "race")
    run = await bench.launch(race, agent("a", retry=FAR_AWAY))
    await eventually(lambda: bench.crew.at_work == 1 and bench.crew.times("a"))
    gate.set()
    await bench.ended(run)
    assert sorted(await ends(bench, run)) == [(1, "failed"), (1, "passed")]
    assert_items_closed_once(await bench.log(run))


@pytest.mark.anyio
async def test_a_cancel_between_two_tries_ends_it(bench: Bench) -> None:
    bench.crew.acts["a"] = fails(99)
    run = await bench.launch(step("a"), agent("a", retry=FAR_AWAY))
    await bench.waits_on(run, "timer")
    await bench.cancel(run)
    assert await ends(bench, run) == [(1, "failed")]
    assert_items_closed_once(await bench.log(run))
