"""Sweeps mark what nobody drives, with the published words, and nothing else; twice is once."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from run_kit import Bench, assert_items_closed_once, bench_of, eventually, fanout, first_or, result, seq, step

from refold import view
from refold.engine.activation import begin_generation, open_activation
from refold.engine.sweeps import SERVER_RESTART, SERVER_SHUTDOWN, StaleSweep, interrupt_running, report
from refold.flowir.lifecycle import TERMINAL, Verb
from refold.records import ActivationRow, RunRecord, RunStatus, SessionRecord, TaskRecord, genesis
from refold.store.base import TABLES
from refold.testing.history import sample

pytestmark = pytest.mark.anyio
THRESHOLD = 3900
WAITS = fanout([0, 1], first_or(seq(step("a", 1), step("held")), step("b", 2)))


@pytest.fixture(params=["memory", "sqlite"])
async def bench(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Bench]:
    async with bench_of(request.param, tmp_path, monkeypatch) as bench:
        yield bench


def sweep_of(bench: Bench, threshold: int = THRESHOLD, period: float = 60.0) -> StaleSweep:
    return StaleSweep(bench.store, bench.clock, bench.supervisor, threshold, period)


async def left(bench: Bench, **members: Any) -> RunRecord:
    """A Run in the middle of its work, as it is when its driver is gone and nobody has said so."""
    bench.crew.hold("held")
    run = await bench.launch(WAITS)
    await eventually(lambda: bench.crew.times("held") and bench.crew.at_work == 1)
    await bench.supervisor.stop(run.n)
    if members:
        await bench.store.write(lambda tx: tx.update(RunRecord, (run.n,), **members))
    return await bench.get(run)


async def everything(bench: Bench) -> dict[str, list[Any]]:
    return await bench.store.read(lambda reader: {kind.__name__: reader.find(kind) for kind in TABLES})


async def trace(bench: Bench, run: RunRecord) -> list[Any]:
    def read(reader: Any) -> list[Any]:
        (*_, activation) = reader.find(ActivationRow, run=run.n)
        return view.trace(activation, reader.log(run.session, activation.opened - 1))

    return await bench.store.read(read)


# -- the stale sweep --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("idle_secs", "swept"), [(0, False), (THRESHOLD, False), (THRESHOLD + 1, True), (10**6, True)])
async def test_a_run_that_stands_still_for_longer_than_the_threshold_is_interrupted(
    bench: Bench, idle_secs: int, swept: bool
) -> None:
    run = await left(bench)
    bench.clock.ms += idle_secs * 1000
    sweep = sweep_of(bench)
    assert [each.run_id for each in await sweep.sweep()] == [run.run_id] * swept
    assert (await bench.get(run)).status == ("interrupted" if swept else "running")
    assert (sweep.interrupted, sweep.faults) == (int(swept), 0)


async def test_what_it_says_is_what_was_published(bench: Bench) -> None:
    run = await left(bench)
    bench.clock.ms += 4_000_999
    settled = bench.supervisor.settled(run.n)
    await sweep_of(bench).sweep()
    after = await bench.get(run)
    assert result(after) == {"error": "orphaned: no driver progress for 4000s"}
    assert (after.waiting_on, after.ended_at) == (None, None)
    assert (await trace(bench, run))[-1]["kind"] == "core.run_finished"
    assert (await trace(bench, run))[-1]["payload"] == {"status": "interrupted", "reason": "stale run sweep"}
    task, session = await bench.store.read(
        lambda reader: (reader.get(TaskRecord, run.task), reader.get(SessionRecord, run.session))
    )
    assert (task.status, session.active_run, session.held) == ("interrupted", None, True)
    assert_items_closed_once(await bench.log(run))
    ended = [frame["params"] for frame in await bench.frames(run) if frame["method"] == "turn/completed"]
    assert [(each["terminal"], each["reason"]) for each in ended] == [("cancelled", "stale run sweep")]
    assert settled.done()  # who waits for the Run is told


async def test_what_was_swept_resumes_without_a_restart(bench: Bench) -> None:
    run = await left(bench)
    bench.clock.ms += 4_000_000
    await sweep_of(bench).sweep()
    bench.crew.acts.clear()
    assert result(await bench.ended(await bench.resume(run)))["r"][0]["held"] is None
    assert [work.step_ref for work in bench.crew.seen] == ["a", "b", "held", "held"]


async def test_twice_is_once(bench: Bench) -> None:
    await left(bench)
    bench.clock.ms += 4_000_000
    sweep = sweep_of(bench)
    await sweep.sweep()
    before = await everything(bench)
    bench.clock.ms += 4_000_000
    assert await sweep.sweep() == []
    assert await everything(bench) == before


async def test_a_run_with_a_live_driver_is_left_alone_however_long_its_step_takes(bench: Bench) -> None:
    gate = bench.crew.hold("held")
    run = await bench.launch(WAITS)
    await eventually(lambda: bench.crew.at_work == 1)
    bench.clock.ms += 10**9
    before = await everything(bench)
    assert await sweep_of(bench).sweep() == []
    assert await everything(bench) == before
    gate.set()
    assert (await bench.ended(run)).status == "done"


@pytest.mark.parametrize(
    ("waiting_on", "swept"),
    [("approval", False), ("input", False), ("operator", False), ("timer", True), ("capacity", True), (None, True)],
)
async def test_a_run_that_waits_for_a_person_is_never_stale(bench: Bench, waiting_on: str | None, swept: bool) -> None:
    await left(bench, waiting_on=waiting_on)
    bench.clock.ms += 10**9
    assert bool(await sweep_of(bench).sweep()) is swept


@pytest.mark.parametrize("status", sorted(set(RunStatus) - {RunStatus.RUNNING}))
async def test_only_a_running_run_is_changed(bench: Bench, status: RunStatus) -> None:
    await left(bench, status=status)
    bench.clock.ms += 10**9
    before = await everything(bench)
    assert await sweep_of(bench).sweep() == []
    await bench.boot()
    assert await everything(bench) == before


async def test_a_run_that_ends_between_the_look_and_the_write_stays_as_it_ended(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The look and the write are one transaction: whatever was looked at before it may have ended meanwhile."""
    run = await left(bench)
    bench.clock.ms += 10**9
    write, end = bench.store.write, {"status": RunStatus.DONE, "result_json": '"mine"'}

    async def write_later(fn: Any) -> Any:
        await write(lambda tx: tx.update(RunRecord, (run.n,), **end))
        return await write(fn)

    sweep = sweep_of(bench)
    with monkeypatch.context() as patch:
        patch.setattr(bench.store, "write", write_later)
        assert await sweep.sweep() == []
    assert sweep.faults == 0, "it did not even try"
    after = await bench.get(run)
    assert (after.status, result(after)) == ("done", "mine")
    assert after.status in TERMINAL
    await bench.store.write(lambda tx: tx.update(RunRecord, (run.n,), status=RunStatus.RUNNING))


async def test_a_clock_that_ran_backwards_makes_nothing_stale(bench: Bench) -> None:
    await left(bench)
    bench.clock.ms -= 10**9
    assert await sweep_of(bench).sweep() == []


async def test_a_fault_is_counted_and_logged_and_not_raised(bench: Bench, said: list[Any]) -> None:
    await left(bench)
    bench.clock.ms += 10**9
    sweep = sweep_of(bench)
    bench.door.shuts_before = 0
    assert await sweep.sweep() == await sweep.sweep() == []
    assert (sweep.faults, sweep.interrupted) == (2, 0)
    assert [(each["event"], each["kind"], each["error"]) for each in said] == [
        ("stale_run_sweep_failed", "commit_failed", "the disk is full")
    ] * 2
    bench.door.shuts_before = None
    assert len(await sweep.sweep()) == 1


async def test_it_dispatches_nothing_and_launches_nothing(bench: Bench) -> None:
    run = await left(bench)
    unborn = {"run_id": "R-pending", "status": "pending", "epoch": 0, "rows": 0, "chain": genesis("R-pending")}
    pending = msgspec.structs.replace(await bench.get(run), **unborn)
    await bench.store.write(lambda tx: tx.insert(pending))
    bench.clock.ms += 10**9
    seen = len(bench.crew.seen)
    await sweep_of(bench).sweep()
    statuses = [row.status for row in (await everything(bench))["RunRecord"]]
    assert (statuses, len(bench.crew.seen)) == (["interrupted", "pending"], seen)
    assert not bench.supervisor.is_driving(run.n)


@pytest.mark.parametrize(("threshold", "sweeps"), [(0, False), (1, True)])
async def test_it_goes_on_by_itself_unless_the_threshold_is_zero(bench: Bench, threshold: int, sweeps: bool) -> None:
    run = await left(bench)
    bench.clock.ms += 10**9
    sweeping = asyncio.create_task(sweep_of(bench, threshold, 0.001).run())
    if sweeps:
        await eventually(lambda: _interrupted(bench, run))
        sweeping.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await sweeping
    else:
        await sweeping
        assert (await bench.get(run)).status == "running"


async def _interrupted(bench: Bench, run: RunRecord) -> bool:
    return (await bench.get(run)).status == "interrupted"


# -- boot and shutdown ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("reason", [SERVER_RESTART, SERVER_SHUTDOWN])
async def test_boot_and_shutdown_interrupt_whatever_runs_and_twice_is_once(bench: Bench, reason: str) -> None:
    runs = [await left(bench) for _ in range(3)]
    at = bench.clock.ms + 5000

    def interrupt(tx: Any) -> list[tuple[RunRecord, int]]:
        return interrupt_running(tx, reason, at)

    found = await bench.store.write(interrupt)
    assert [(run.run_id, rows) for run, rows in found] == [(run.run_id, 2) for run in runs]
    for run in runs:
        after = await bench.get(run)
        assert (after.status, result(after)) == ("interrupted", {"error": reason})
        assert (await trace(bench, run))[-1]["payload"] == {"status": "interrupted", "reason": reason}
        assert_items_closed_once(await bench.log(run))
        (held,) = [each for each in await bench.attempts(run) if each.step_ref == "held"]
        assert (held.status, held.ended_at) == (None, at)  # ambiguous: nobody knows how far it got
    before = await everything(bench)
    assert await bench.store.write(interrupt) == []
    assert await everything(bench) == before


async def test_boot_counts_the_rows_that_a_resume_would_answer_from(bench: Bench) -> None:
    run = await left(bench)
    await bench.boot()

    def rerun(tx: Any) -> None:
        begun = begin_generation(tx, tx.get(RunRecord, run.n), [[1, 1]], run.input_json, bench.clock.ms)
        open_activation(tx, begun, Verb.RERUN, bench.opening(), bench.clock.ms)

    await bench.store.write(rerun)
    ((_, replayed),) = await bench.store.write(lambda tx: interrupt_running(tx, SERVER_RESTART, bench.clock.ms))
    assert replayed == 1


def test_every_run_that_boot_found_is_reported_with_what_to_do(said: list[Any]) -> None:
    run = sample(RunRecord, run_id="R-1", task_id="T-1", input_json="{}")
    without = sample(RunRecord, run_id="R-2", task_id="T-2", input_json=None)
    report([(run, 3), (run, 0), (without, 1), (without, 0)])
    resumable = {"event": "run_resumable", "level": "info", "run_id": "R-1", "task_id": "T-1"}
    one, two = resumable | {"resume_url": "POST /v1/runs/R-1/resume"}, {"run_id": "R-2", "task_id": "T-2"}
    assert said == [
        one | {"replayed_steps": 3},
        one | {"replayed_steps": 0},
        one | two | {"replayed_steps": 1, "resume_url": "POST /v1/runs/R-2/resume"},
        {"event": "run_not_resumable", "level": "info", "replayed_steps": 0} | two,
    ]
