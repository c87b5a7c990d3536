"""Slots: never more at work than there are, nobody forgotten in line, and none lost, however the work ends."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from run_kit import (
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
    result,
    seq,
    step,
)

from refold.engine.agents import Assignment, Report
from refold.engine.capacity import Capacity
from refold.flowir import Blocked, Failed

# -- slots ------------------------------------------------------------------------------------------------------------


@given(st.integers(0, 4), st.integers(0, 4), st.lists(st.sampled_from(["take", "give"]), max_size=30), st.data())
def test_there_are_never_more_slots_out_than_there_are(
    steps: int, processes: int, moves: list[str], data: st.DataObject
) -> None:
    capacity, out = Capacity(steps, processes), []
    for move in moves:
        kind = data.draw(st.sampled_from(["python", "subprocess"]))
        if move == "give" and out:
            capacity.give(out.pop(data.draw(st.integers(0, len(out) - 1))))
            continue
        fits = len(out) < steps and (kind == "python" or out.count("subprocess") < processes)
        assert capacity.take(kind) is fits
        out += [kind] * fits


def test_a_process_needs_a_slot_of_both_kinds() -> None:
    capacity = Capacity(2, 1)
    assert capacity.take("subprocess")
    assert not capacity.take("subprocess")  # and the refusal took nothing:
    assert capacity.take("python")
    assert not capacity.take("python")


def test_everybody_in_line_is_woken_the_longest_waiting_first() -> None:
    capacity, woken = Capacity(1, 1), []
    first, second = (lambda: woken.append("first")), (lambda: woken.append("second"))
    for wake in (first, second, first):
        capacity.queue(wake)
    capacity.give("python")
    assert woken == ["first", "second"]
    capacity.leave(first)
    capacity.queue(first)  # had a slot, and waits for more
    capacity.give("python")
    assert woken[2:] == ["second", "first"]
    capacity.leave(second)
    capacity.leave(second)
    capacity.give("python")
    assert woken[4:] == ["first"]


def test_who_is_woken_may_leave_at_once() -> None:
    capacity, woken = Capacity(1, 1), []

    def wake() -> None:
        woken.append(1)
        capacity.leave(wake)

    capacity.queue(wake)
    capacity.give("python")
    capacity.give("python")
    assert woken == [1]


# -- driven -----------------------------------------------------------------------------------------------------------


@pytest.fixture(params=["memory", "sqlite"])
async def bench(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Bench]:
    async with bench_of(request.param, tmp_path, monkeypatch, capacity=Capacity(4, 2)) as bench:
        yield bench


WIDE = fanout(list(range(50)), seq(step("a", "$.i"), step("b", "$.a")))


@pytest.mark.anyio
async def test_three_runs_of_fifty_lanes_share_four_slots(bench: Bench) -> None:
    async def works(work: Assignment) -> Report:
        for _ in range(3):
            await asyncio.sleep(0)
        return passes(work)

    bench.crew.acts |= dict.fromkeys("ab", works)
    runs = [await bench.launch(WIDE) for _ in range(3)]
    for run in runs:
        after = await bench.ended(run)
        assert [lane["b"] for lane in result(after)["r"]] == list(range(50))
        assert after.waiting_on is None
    assert bench.crew.most_at_work == 4
    assert len(bench.crew.seen) == 300
    order = [[run.run_id for run in runs].index(work.run_id) for work in bench.crew.seen]
    assert set(order[:4]) == {0}  # who came first had all slots,
    assert all(set(order[at : at + 12]) == {0, 1, 2} for at in range(4, 200))  # and then everybody had turns


@pytest.mark.anyio
async def test_who_waits_has_no_attempt_and_says_what_for(bench: Bench) -> None:
    gate = bench.crew.hold("a")
    first = await bench.launch(WIDE)
    await eventually(lambda: bench.crew.at_work == 4)
    second = await bench.launch(WIDE)
    await bench.waits_on(second, "capacity")
    assert [len(await bench.attempts(run)) for run in (first, second)] == [4, 0]
    assert (await bench.get(first)).waiting_on is None  # four of its steps are being done
    gate.set()
    for run in (first, second):
        assert (await bench.ended(run)).waiting_on is None
    said = [each.waiting_on for each in bench.door.steps if each.run == second.n]
    assert (said[0], None in said) == ("capacity", True)


@pytest.mark.anyio
async def test_a_wait_takes_no_slot_and_stands_behind_nobody(bench: Bench) -> None:
    bench.crew.hold("a")
    busy = await bench.launch(fanout(list(range(9)), step("a")))
    await eventually(lambda: bench.crew.at_work == 4)
    nap = {"kind": "wait", "secs": lit(1000)}
    run = await bench.launch(fanout([0, 1], first_or(step("a"), nap)))
    await bench.waits_on(run, "capacity")
    assert [each.step_ref for each in await bench.attempts(run)] == ["@wait"]
    assert len(await bench.attempts(busy)) == 4


@pytest.mark.anyio
async def test_processes_have_fewer_slots_and_do_not_hold_up_other_steps(bench: Bench, tmp_path: Path) -> None:
    script = f"while [ ! -e {tmp_path}/go ]; do sleep 0.01; done"
    process = {"name": "p", "kind": "subprocess", "spec": {"program": "sh", "args": ["-c", script]}}
    run = await bench.launch(fanout(list(range(6)), step("p")), process)
    await eventually(lambda: len(bench.tools.reaper.told) == 2)
    other = await bench.launch(fanout([0, 1], step("a")))
    await bench.ended(other)
    assert len(await bench.attempts(run)) == 2
    (tmp_path / "go").touch()
    assert (await bench.ended(run)).status == "done"
    assert free_slots(bench.capacity, "subprocess") == 2


@pytest.mark.anyio
async def test_a_retry_waits_for_a_slot_like_everybody(bench: Bench) -> None:
    """In its pause it has none; what runs meanwhile is never more than four."""
    tried = asyncio.Event()

    def act(work: Assignment) -> Report:
        tried.set()
        return Report(Failed("x")) if work.attempt == 1 else passes(work)

    bench.crew.acts["a"] = act
    gate = bench.crew.hold("b")
    run = await bench.launch(step("a"), agent("a", retry={"initial_secs": 0.001}))
    await tried.wait()
    busy = await bench.launch(fanout(list(range(5)), step("b")))
    await eventually(lambda: bench.crew.times("b") == 4)
    gate.set()
    for each in (run, busy):
        await bench.ended(each)
    assert bench.crew.most_at_work <= 4
    assert [each.attempt for each in await bench.attempts(run)] == [1, 2]


@pytest.mark.anyio
async def test_a_lane_that_loses_in_line_was_never_there(bench: Bench) -> None:
    bench.crew.hold("a")
    gate = bench.crew.hold("b")
    run = await bench.launch(fanout(list(range(6)), first_or(step("b"), step("a")), "race"))
    await eventually(lambda: bench.crew.at_work == 4)
    gate.set()
    await bench.ended(run)
    assert [each.status for each in await bench.attempts(run)] == ["passed", *["cancelled"] * 3]
    assert_items_closed_once(await bench.log(run))
    assert free_slots(bench.capacity) == 4


ENDS: dict[str, Any] = {
    "error": lambda work: Report(Failed("x")),
    "refusal": lambda work: Report(Blocked("x")),
    "bug": lambda work: 1 / 0,
}


@pytest.mark.anyio
@pytest.mark.parametrize(("end", "status"), [("error", "failed"), ("refusal", "failed"), ("bug", "interrupted")])
@pytest.mark.parametrize("join", ["race", "all"])
async def test_all_slots_are_free_after_a_run_that_went_wrong(bench: Bench, end: str, status: str, join: str) -> None:
    bench.crew.acts |= {"a": ENDS[end], "b": passes if join == "all" else held}
    lanes = list(range(4 if join == "race" else 9))
    run = await bench.launch(fanout(lanes, first_or(seq(guard(step("c")), step("a")), step("b")), join))
    assert (await bench.ended(run)).status == status
    assert (free_slots(bench.capacity), bench.crew.at_work) == (4, 0)


async def held(work: Assignment) -> Report:
    await asyncio.Event().wait()
    return passes(work)


@pytest.mark.anyio
@pytest.mark.parametrize("stopped", ["one by one", "all at once"])
async def test_all_slots_are_free_after_runs_that_were_stopped(bench: Bench, stopped: str) -> None:
    bench.crew.acts["a"] = held
    wide, narrow = await bench.launch(fanout(list(range(9)), step("a"))), await bench.launch(step("a"))
    await bench.waits_on(narrow, "capacity")
    if stopped == "all at once":
        await bench.crash()
    else:
        await bench.cancel(wide)
        await eventually(lambda: bench.crew.at_work == 1)  # what it held went to who waited
        await bench.cancel(narrow)
    assert (free_slots(bench.capacity), bench.crew.at_work) == (4, 0)
    assert len(await bench.attempts(wide)) == 4
