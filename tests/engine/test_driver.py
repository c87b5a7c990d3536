"""The driver keeps its order: on record, then done; answered, on record, then gone on from. And it leaves nothing."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from engine_kit import is_alive
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
    lit,
    passes,
    path,
    result,
    seq,
    step,
)

from refold.canonical import encode
from refold.engine import supervisor
from refold.engine.agents import Assignment, Report
from refold.engine.driver import Driver
from refold.flowir import Blocked, Failed, Skip
from refold.records import AttemptRow, AttemptStatus, DecisionRow, LogType, ReplayRow, RunRecord
from refold.store import Reader

pytestmark = pytest.mark.anyio
CHAIN = seq(step("a", 1), step("b", "$.a"), step("c", "$.b"))


@pytest.fixture(params=["memory", "sqlite"])
async def bench(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Bench]:
    async with bench_of(request.param, tmp_path, monkeypatch) as bench:
        yield bench


async def done(bench: Bench, run: RunRecord) -> Any:
    """The final ctx of a Run that has to end well."""
    after = await bench.ended(run)
    assert after.status == "done", result(after)
    return result(after)


# -- on record, then done ---------------------------------------------------------------------------------------------


def look(bench: Bench, found: list[bool]) -> Callable[[Assignment], Any]:
    """An agent that looks whether its attempt, and the record that shows it, are in the store already."""

    async def looks(work: Assignment) -> Report:
        def read(reader: Reader) -> bool:
            attempts = [row for row in reader.find(AttemptRow) if row.step_id == work.step_id]
            if [(row.attempt, row.status, row.ended_at) for row in attempts] != [(work.attempt, None, None)]:
                return False
            run = reader.get(RunRecord, attempts[0].run)
            shown = {row.seq: row for row in reader.log(run.session, 0)}.get(attempts[0].opened)
            return shown is not None and (shown.type, shown.item_id) == (LogType.STEP_DISPATCHED, work.step_id)

        found.append(await bench.store.read(read))
        return passes(work)

    return looks


async def test_an_attempt_is_on_record_before_its_agent_starts(bench: Bench) -> None:
    found: list[bool] = []
    bench.crew.acts |= dict.fromkeys("abcd", look(bench, found))
    await done(bench, await bench.launch(seq(CHAIN, fanout([1, 2, 3], step("d", "$.i")))))
    assert found == [True] * 6


async def test_a_dispatch_before_the_commit_is_noticed(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same look, at a driver with that fault planted."""

    class Hasty(Driver):
        async def _write(self) -> None:
            for opened in self._scribe.opened:
                await self._performer(opened.dispatch.ref).perform(self._assignment(opened, mock.Mock()))
            await super()._write()

    found: list[bool] = []
    bench.crew.acts |= dict.fromkeys("abc", look(bench, found))
    monkeypatch.setattr(supervisor, "Driver", Hasty)
    await done(bench, await bench.launch(CHAIN))
    assert found == [False, True] * 3


async def test_an_output_is_durable_before_anything_that_uses_it_is_dispatched(bench: Bench) -> None:
    seen: list[tuple[str, list[str]]] = []

    async def looks(work: Assignment) -> Report:
        rows = await bench.store.read(lambda reader: reader.find(ReplayRow))
        seen.append((work.step_ref, [row.step_ref for row in rows]))
        return passes(work)

    bench.crew.acts |= dict.fromkeys("abc", looks)
    await done(bench, await bench.launch(CHAIN))
    assert seen == [("a", []), ("b", ["a"]), ("c", ["a", "b"])]


async def test_a_sequential_step_costs_one_commit(bench: Bench) -> None:
    await done(bench, await bench.launch(CHAIN))
    assert [(len(each.passes), len(each.ends), len(each.opens)) for each in bench.door.steps] == [
        (0, 0, 1),
        (1, 1, 1),
        (1, 1, 1),
        (1, 1, 0),
    ]


async def test_the_end_of_a_run_is_in_the_commit_of_its_last_step(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or a sync would be spent between two things of which nobody can act on the first."""
    gate = bench.crew.hold("a")
    run = await bench.launch(step("a"))
    await eventually(lambda: bench.crew.at_work == 1)
    monkeypatch.setattr(bench.door, "write", _no_write)
    gate.set()
    await done(bench, run)


async def _no_write(fn: object) -> None:
    raise AssertionError("a commit beside that of the step")


async def test_lanes_that_end_together_share_a_commit(bench: Bench) -> None:
    gate = bench.crew.hold("a")
    run = await bench.launch(fanout(list(range(5)), seq(step("a", "$.i"), step("b", "$.a"))))
    await eventually(lambda: bench.crew.at_work == 5)
    gate.set()
    await done(bench, run)
    assert [(len(each.passes), len(each.opens)) for each in bench.door.steps] == [(0, 5), (5, 5), (5, 0)]


async def test_only_passes_are_logged(bench: Bench) -> None:
    bench.crew.acts |= {
        "blocked": lambda work: Report(Blocked("no")),
        "failed": lambda work: Report(Failed("broken")),
        "skipped": lambda work: Report(Skip(1)),
    }
    run = await bench.launch(seq(guard(step("blocked")), guard(step("failed")), step("skipped"), step("passed")))
    assert (await done(bench, run))["skipped"] == {"__mse_skip": True, "value": 1}
    assert [row.step_ref for row in await bench.rows(run)] == ["passed"]
    assert [(each.step_ref, each.outcome_json) for each in await bench.attempts(run)] == [
        ("blocked", '"no"'),
        ("failed", '"broken"'),
        ("skipped", "1"),
        ("passed", None),
    ]


async def test_without_replay_nothing_is_logged_and_everything_is_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with bench_of("memory", tmp_path, monkeypatch, replay=False) as bench:
        monkeypatch.setattr(bench, "faults", no_faults)  # the audit is about Runs that keep their log
        run = await bench.launch(seq(CHAIN, fanout([1], step("d", "$.i"), "race")))
        assert (await done(bench, run))["r"]["d"] == 1
        assert (await bench.rows(run), (await bench.get(run)).rows) == ([], 0)
        assert_items_closed_once(await bench.log(run))


async def no_faults() -> list[str]:
    return []


async def test_long_pure_work_lets_others_work(bench: Bench) -> None:
    spin = {"kind": "loop", "counter": path("$.n"), "cond": lit(True), "body": seq(), "max": 100_000}
    busy = await bench.launch(seq(spin, step("late")))
    quick = await bench.launch(CHAIN)
    await done(bench, busy)
    await done(bench, quick)
    assert bench.crew.seen[0].step_ref == "a"


# -- replay -----------------------------------------------------------------------------------------------------------


async def test_a_resume_answers_from_the_log_and_shows_only_what_it_runs(bench: Bench) -> None:
    gate = bench.crew.hold("c")
    run = await bench.launch(CHAIN)
    await eventually(lambda: bench.crew.times("c"))
    bench = await bench.crash()
    gate.set()
    assert await done(bench, await bench.resume(run)) == {"a": 1, "b": 1, "c": 1}
    assert [work.step_ref for work in bench.crew.seen] == ["a", "b", "c", "c"]
    first, second = (work for work in bench.crew.seen if work.step_ref == "c")
    assert (first.idempotency_key, first.occurrence) == (second.idempotency_key, second.occurrence)
    assert ((first.attempt, first.epoch), (second.attempt, second.epoch)) == ((1, 1), (2, 2))
    assert first.step_id != second.step_id  # a new item, for the old one was closed at boot
    log = await bench.log(run)
    assert_items_closed_once(log)
    assert [row.item_id for row in log if row.type == LogType.STEP_DISPATCHED][-1] == second.step_id


async def test_what_a_crash_left_ambiguous_is_refused_where_the_agent_says_so(bench: Bench) -> None:
    gate = bench.crew.hold("a")
    run = await bench.launch(guard(step("a"), step("b")), agent("a", on_ambiguous="fail"))
    await eventually(lambda: bench.crew.at_work)
    bench = await bench.crash()
    gate.set()
    ctx = await done(bench, await bench.resume(run))
    assert ctx["err"].endswith("attempt 1 was cut off by a crash and may have acted; on_ambiguous is fail")
    assert [work.step_ref for work in bench.crew.seen] == ["a", "b"]


async def test_a_lane_that_is_refused_at_once_may_end_a_race(bench: Bench) -> None:
    """The other lane's step is commanded, and given up, before it was taken on."""
    bench.crew.hold("a", "b")
    lanes = {
        "kind": "branch",
        "cond": {"op": "eq", "lhs": {"op": "path", "at": "$.i"}, "rhs": {"op": "lit", "value": 0}},
    }
    race = fanout([0, 1], lanes | {"then": step("a"), "else": step("b")}, "race")
    run = await bench.launch(guard(race), agent("a", on_ambiguous="fail"), agent("b"))
    await eventually(lambda: bench.crew.at_work == 2)
    bench = await bench.crash()
    assert "may have acted" in (await done(bench, await bench.resume(run)))["err"]
    assert_items_closed_once(await bench.log(run))


# -- losers -----------------------------------------------------------------------------------------------------------

SLOW_AND_FAST = fanout([0, 1], seq(step("slow", "$.i", "$.x"), step("more", "$.i")), "race")


async def test_the_work_of_losers_is_stopped_and_shown_as_cancelled(bench: Bench) -> None:
    async def slow(work: Assignment) -> Report:
        return passes(work) if work.directive == 1 else await asyncio.Event().wait()

    bench.crew.acts["slow"] = slow
    run = await bench.launch(SLOW_AND_FAST)
    assert (await done(bench, run))["r"]["more"] == 1
    assert [work.lane for work in bench.crew.stopped] == [((0, 0),)]
    attempts = await bench.attempts(run)
    assert [(each.step_ref, each.status) for each in attempts] == [
        ("slow", AttemptStatus.CANCELLED),
        ("slow", AttemptStatus.PASSED),
        ("more", AttemptStatus.PASSED),
    ]
    assert_items_closed_once(await bench.log(run))
    decided = [each for each in bench.door.steps if each.decisions]
    assert [(len(each.decisions), [row.step_ref for row in each.passes]) for each in decided] == [(1, ["more"])]
    (decision,) = await bench.store.read(lambda reader: reader.find(DecisionRow, run=run.n))
    assert (decision.lane_json, decision.fork, decision.winner) == ("[]", 0, 1)


async def test_a_loser_that_was_granted_and_not_yet_begun_gives_its_slot_back(bench: Bench) -> None:
    """While its attempt is being committed, the other lane wins."""
    first, second = bench.crew.hold("slow"), asyncio.Event()

    async def more(work: Assignment) -> Report:
        await second.wait()
        return passes(work)

    bench.crew.acts["more"] = more
    bench.crew.acts["slow"] = lambda work: passes(work) if work.directive == 1 else held(first, work)
    run = await bench.launch(SLOW_AND_FAST)
    await eventually(lambda: bench.crew.times("more") == 1)
    bench.door.gate.clear()
    first.set()  # lane 0 goes on: its next attempt waits at the store
    await eventually(lambda: bench.door.at_gate)
    second.set()  # lane 1 wins meanwhile
    await eventually(lambda: bench.crew.at_work == 0)
    bench.door.gate.set()
    await done(bench, run)
    assert bench.crew.times("more") == 1
    assert free_slots(bench.capacity) == 64


async def held(gate: asyncio.Event, work: Assignment) -> Report:
    await gate.wait()
    return passes(work)


async def test_what_has_won_is_on_record_while_the_loser_takes_its_time(bench: Bench) -> None:
    """A loser may need its grace to go; a crash meanwhile must not cost what the winner was paid for."""
    leaves = asyncio.Event()

    async def slow(work: Assignment) -> Report:
        if work.directive == 1:
            return passes(work)
        try:
            return await asyncio.Event().wait()
        finally:
            await leaves.wait()

    bench.crew.acts["slow"] = slow
    run = await bench.launch(SLOW_AND_FAST)
    await eventually(lambda: bench.door.steps[-1:] and bench.door.steps[-1].decisions)
    assert [row.step_ref for row in await bench.rows(run)] == ["slow", "more"]
    assert (await bench.get(run)).status == "running"
    leaves.set()
    assert (await done(bench, run))["r"]["more"] == 1


async def test_a_process_that_lost_is_dead_when_its_run_is_done(bench: Bench, tmp_path: Path) -> None:
    pid_file = tmp_path / "pid"
    script = f"echo $$ > {pid_file}.new; mv {pid_file}.new {pid_file}; exec sleep 60"
    process = {"name": "process", "kind": "subprocess", "spec": {"program": "sh", "args": ["-c", script]}}
    gate = bench.crew.hold("fast")
    lanes = {
        "kind": "branch",
        "cond": {"op": "eq", "lhs": {"op": "path", "at": "$.i"}, "rhs": {"op": "lit", "value": 0}},
    }
    race = fanout([0, 1], lanes | {"then": step("process"), "else": step("fast")}, "race")
    run = await bench.launch(race, process)
    await eventually(pid_file.exists)
    gate.set()
    await done(bench, run)
    assert not is_alive(int(pid_file.read_text()))
    assert free_slots(bench.capacity, "subprocess") == 16


# -- commits that fail ------------------------------------------------------------------------------------------------

TREE = seq(
    step("a", 1),
    fanout([0, 1], seq(step("b", "$.i"), step("c", "$.b"))),
    fanout([0, 1], step("d", "$.i"), "any"),
    guard(step("refuses"), step("e", "$.a")),
)


@pytest.mark.parametrize("commits", range(8))  # seven of the driver, and the one that closes
async def test_wherever_a_commit_fails_the_run_is_interrupted_and_loses_nothing(bench: Bench, commits: int) -> None:
    bench.crew.acts["refuses"] = lambda work: Report(Blocked("no"))
    run = await bench.launch(TREE)
    bench.door.shuts_before = commits
    await eventually(lambda: bench.door.failures)
    acknowledged = list(bench.door.steps)
    seen = len(bench.crew.seen)
    await eventually(lambda: bench.door.failures > 2)  # the end of the driver cannot be written either
    assert (await bench.get(run)).status == "running"
    bench.door.shuts_before = None
    stopped = await bench.ended(run)
    assert (stopped.status, result(stopped)["error"]) == (
        "interrupted",
        "the driver of this run ended without a result: the disk is full",
    )
    assert bench.door.steps == acknowledged
    assert [row for each in acknowledged for row in each.passes] == await bench.rows(run)
    assert len(bench.crew.seen) == seen  # nothing is done for a driver that has fallen
    assert free_slots(bench.capacity) == 64
    await done(bench, await bench.resume(run))
    once = {idempotency_key_of(row, bench) for each in acknowledged for row in each.passes}
    assert not once & {work.idempotency_key for work in bench.crew.seen[seen:]}
    assert_items_closed_once(await bench.log(run))


async def test_a_server_that_stops_waits_for_no_store_to_recover(bench: Bench) -> None:
    run = await bench.launch(CHAIN)
    bench.door.shuts_before = 1
    await eventually(lambda: bench.door.failures > 1)
    await bench.supervisor.stop_all()
    bench.door.shuts_before = None
    names = {task.get_name() for task in asyncio.all_tasks()}
    assert not [name for name in names if run.run_id in name]
    assert (await bench.get(run)).status == "running"
    await bench.boot()
    assert (await bench.get(run)).status == "interrupted"


def idempotency_key_of(row: ReplayRow, bench: Bench) -> str:
    """The key that the agent of a logged step was given."""
    asked = (row.step_ref, row.lane_json, row.occurrence)
    return next(
        work.idempotency_key for work in bench.crew.seen if (work.step_ref, encode(work.lane), work.occurrence) == asked
    )


async def test_a_driver_that_lost_its_run_stops_and_writes_nothing(bench: Bench) -> None:
    gate = bench.crew.hold("b")
    run = await bench.launch(seq(CHAIN, fanout([0, 1], step("d"))))
    await eventually(lambda: bench.crew.times("b"))
    await bench.store.write(lambda tx: tx.update(RunRecord, (run.n,), epoch=run.epoch + 1))
    before, gone = await everything(bench, run), bench.supervisor.settled(run.n)
    gate.set()
    await gone
    assert await everything(bench, run) == before
    assert bench.crew.times("c") == 0
    assert (free_slots(bench.capacity), bench.supervisor.is_driving(run.n)) == (64, False)
    await bench.store.write(lambda tx: tx.update(RunRecord, (run.n,), epoch=run.epoch))


async def everything(bench: Bench, run: RunRecord) -> Any:
    return await bench.get(run), await bench.attempts(run), await bench.rows(run), await bench.log(run)


async def test_a_cancelled_run_leaves_no_work_and_no_slot(bench: Bench) -> None:
    bench.crew.hold("a", "b")
    run = await bench.launch(fanout(list(range(9)), first_or(step("a"), step("b"))))
    await eventually(lambda: bench.crew.at_work == 9)
    await bench.cancel(run)
    assert (bench.crew.at_work, len(bench.crew.stopped), free_slots(bench.capacity)) == (0, 9, 64)
    assert (await bench.get(run)).status == "cancelled"
    assert_items_closed_once(await bench.log(run))


async def test_a_bug_in_an_agent_interrupts_the_run_at_once_and_gives_all_slots_back(bench: Bench) -> None:
    bench.crew.hold("a")

    def bug(work: Assignment) -> Report:
        raise ZeroDivisionError("a bug")

    bench.crew.acts["b"] = bug
    run = await bench.launch(fanout(list(range(9)), first_or(step("b"), step("a"))))
    after = await bench.ended(run)
    assert (after.status, result(after)) == (
        "interrupted",
        {"error": "the driver of this run ended without a result: a bug"},
    )
    assert (bench.crew.at_work, free_slots(bench.capacity)) == (0, 64)
    assert_items_closed_once(await bench.log(run))


# -- waits ------------------------------------------------------------------------------------------------------------


def wait(**how: Any) -> Any:
    return {"kind": "wait", **{name: lit(value) for name, value in how.items()}}


async def test_a_wait_keeps_its_due_time_over_a_crash(bench: Bench) -> None:
    run = await bench.launch(seq(wait(secs=100), step("a")))
    await bench.waits_on(run, "timer")
    assert [(each.step_ref, each.due_at) for each in await bench.attempts(run)] == [("@wait", NOON + 100_000)]
    bench.clock.ms += 60_000
    bench = await bench.crash()
    run = await bench.resume(run)
    await bench.waits_on(run, "timer")
    assert [each.due_at for each in await bench.attempts(run)] == [NOON + 100_000] * 2
    bench.clock.ms += 40_000
    bench = await bench.crash()
    await done(bench, await bench.resume(run))
    assert (await bench.get(run)).waiting_on is None
    assert [row.step_ref for row in await bench.rows(run)] == ["@wait", "a"]


@pytest.mark.parametrize("until", ["2026-09-21T14:13:19Z", "2026-09-21t14:13:19.5z", "2026-09-21T16:13:20+02:00"])
async def test_a_time_that_is_over_is_not_waited_for(bench: Bench, until: str) -> None:
    await done(bench, await bench.launch(seq(wait(until=until), step("a"))))


async def test_a_time_that_is_to_come_is_waited_for(bench: Bench) -> None:
    run = await bench.launch(wait(until="2026-09-21T14:13:30Z"))
    await bench.waits_on(run, "timer")
    assert [each.due_at for each in await bench.attempts(run)] == [NOON + 10_000]


@pytest.mark.parametrize("until", ["2026-02-30T00:00:00Z", "2026-01-01T24:30:00Z", "2026-01-01T00:00:00+99:99"])
async def test_a_time_that_there_is_not_is_an_error_that_the_flow_can_catch(bench: Bench, until: str) -> None:
    ctx = await done(bench, await bench.launch(guard(wait(until=until))))
    assert ctx["err"] == f"type error in 'wait.until': expected an RFC 3339 time, got {encode(until)}"


async def test_a_wait_that_lost_a_race_ends(bench: Bench) -> None:
    run = await bench.launch(fanout([0, 1], first_or(wait(secs=1000), step("a")), "race"))
    await done(bench, run)
    assert [each.status for each in await bench.attempts(run)] == ["cancelled", "passed"]
    assert_items_closed_once(await bench.log(run))
