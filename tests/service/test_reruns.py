"""Rerun-from, carried out: the Run does what its preview said, under its own id, and nothing is paid for twice."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable
from typing import Any

import anyio
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from service_kit import Crew, House, answer, ended, everything, faults, flow, launch, lit, path, result, seq, step

from refold.canonical import digest
from refold.engine.agents import Assignment, Report
from refold.errors import BlueprintInvalid, Conflict, InvalidId, NotFound, RefoldError, SessionBusy, Unprocessable
from refold.flowir import Blocked, Pass, PlannedStep, ReplayKey
from refold.records import AttemptRow, CutRow, RunRecord
from refold.service.app import App
from refold.service.reruns import Preview, RerunFrom
from refold.service.tasks import NewTask

Json = Any

CHAIN = flow(step("a", 1), step("b", path("$.a")), step("c", path("$.b")))


def fanout(items: list[Json], body: Json, join: str = "all") -> Json:
    bind, out = path("$.i"), path("$.r")
    return {"kind": "fanout", "items": lit(items), "bind": bind, "body": body, "join": join, "out": out}


def guard(body: Json, catch: Json) -> Json:
    return {"kind": "try", "body": body, "catch": catch, "err_at": path("$.err")}


@pytest.fixture
async def app(house: House, crew: Crew) -> AsyncIterator[App]:
    yield await house.open()
    for each in house._open:
        assert await faults(each) == []


async def finished(app: App, blueprint: Json, **ctx: Json) -> RunRecord:
    """A Run that was launched and is over."""
    return await ended(app, await launch(app, blueprint, **ctx))


async def refused(call: Awaitable[Any]) -> RefoldError:
    with pytest.raises(RefoldError) as error:
        await call
    return error.value


def shown(preview: Preview) -> list[str]:
    return [f"{each.step_ref}: {each.plan}" for each in preview.plan.steps]


def key_of(row: Any) -> ReplayKey:
    return ReplayKey(row.step_ref, row.input_hash, row.occurrence)


# -- what happens -----------------------------------------------------------------------------------------------------


@pytest.mark.anyio
async def test_a_step_and_what_needs_it_run_again_under_the_same_id(app: App, crew: Crew) -> None:
    run = await finished(app, CHAIN)
    crew.acts["b"] = lambda work: Report(Pass("better"))
    preview = await app.reruns.preview(run.run_id, RerunFrom(from_step="b"))
    assert shown(preview) == ["a: replayed", "b: runs", "c: runs"]
    done = await app.reruns.rerun(run.run_id, RerunFrom(from_step="b"))
    assert (done.run_id, done.task_id, done.replayed_steps, done.dropped_steps) == (run.run_id, run.task_id, 1, 2)
    assert (preview.replayed_steps, preview.dropped_steps) == (1, 2)
    after = await ended(app, run)
    assert (after.status, after.generation, after.epoch, after.activation) == ("done", 2, 2, 2)
    assert result(after) == {"a": {"by": "a", "got": 1}, "b": "better", "c": {"by": "c", "got": "better"}}
    assert [work.step_ref for work in crew.seen] == ["a", "b", "c", "b", "c"]


@pytest.mark.anyio
async def test_what_was_cut_stays_on_record_and_says_its_generation(app: App) -> None:
    run = await finished(app, CHAIN)
    await app.reruns.rerun(run.run_id, RerunFrom(from_step="b"))
    await ended(app, run)
    rows = [(each.row.step_ref, each.row.generation, each.live) for each in await app.runs.replay(run.run_id)]
    assert rows == [("a", 1, True), ("b", 2, True), ("c", 2, True)]
    everything = await app.runs.replay(run.run_id, everything=True, ctx=True)
    assert [(each.row.step_ref, each.row.generation, each.live) for each in everything] == [
        ("a", 1, True),
        ("b", 1, False),
        ("c", 1, False),
        ("b", 2, True),
        ("c", 2, True),
    ]
    assert everything[2].ctx["ctx"] == everything[4].ctx["ctx"]
    (cut,) = await app.store.read(lambda reader: reader.find(CutRow, run=run.n))
    assert (cut.retired_json, cut.generation, cut.ordinal) == ("[[2,3]]", 2, 4)


@pytest.mark.anyio
async def test_a_failed_step_is_repaired(app: App, crew: Crew) -> None:
    crew.acts["b"] = lambda work: Report(Blocked("no"))
    run = await finished(app, CHAIN)
    assert run.status == "failed"
    crew.acts.clear()
    done = await app.reruns.rerun(run.run_id, RerunFrom(from_step="b"))
    assert (done.replayed_steps, done.dropped_steps) == (1, 0)
    assert (await ended(app, run)).status == "done"
    assert [crew.times(name) for name in "abc"] == [1, 2, 1]


@pytest.mark.anyio
async def test_what_a_step_is_asked_a_second_time_is_a_new_act_to_the_world(app: App, crew: Crew) -> None:
    run = await finished(app, CHAIN)
    await app.reruns.rerun(run.run_id, RerunFrom(from_step="b"))
    await ended(app, run)
    first, second = crew.of("b")
    assert first.directive == second.directive
    assert first.idempotency_key != second.idempotency_key
    assert (second.attempt, second.occurrence, second.epoch) == (1, 0, 2)


@pytest.mark.anyio
async def test_a_preview_changes_nothing(app: App) -> None:
    run = await finished(app, CHAIN)
    before = await everything(app)
    for _ in range(2):
        await app.reruns.preview(run.run_id, RerunFrom(from_step="b"))
    assert await everything(app) == before


@pytest.mark.anyio
async def test_a_crash_in_the_new_generation_resumes_there(app: App, house: House, crew: Crew) -> None:
    run = await finished(app, CHAIN)
    crew.hold("c")
    await app.reruns.rerun(run.run_id, RerunFrom(from_step="b"))
    await crew.begun("c", 2)
    app = await house.reboot(app)
    preview = await app.reruns.preview_resume(run.run_id)
    assert (shown(preview), preview.replayed_steps) == (["a: replayed", "b: replayed", "c: runs"], 2)
    crew.free()
    assert (await app.runs.resume(run.run_id)).replayed_steps == 2
    after = await ended(app, run)
    assert (after.status, after.generation, after.epoch) == ("done", 2, 3)
    assert [crew.times(name) for name in "abc"] == [1, 2, 3]


# -- which step -------------------------------------------------------------------------------------------------------

LANES = flow(fanout([0, 1, 2], seq(step("a", path("$.i")), step("b", path("$.i")))), step("c", 1))


@pytest.mark.anyio
async def test_a_lane_is_named_by_its_indexes_and_its_siblings_stay(app: App, crew: Crew) -> None:
    run = await finished(app, LANES)
    done = await app.reruns.rerun(run.run_id, RerunFrom(from_step="b", lane=(1,)))
    assert (done.replayed_steps, done.dropped_steps) == (5, 2)
    assert (await ended(app, run)).status == "done"
    assert [(work.step_ref, work.directive) for work in crew.seen[7:]] == [("b", 1), ("c", 1)]


@pytest.mark.anyio
async def test_a_step_id_names_one_step(app: App, crew: Crew) -> None:
    run = await finished(app, LANES)
    (named,) = (work for work in crew.of("a") if work.directive == 2)
    await app.reruns.rerun(run.run_id, RerunFrom(from_step="a", step_id=named.step_id))
    await ended(app, run)
    assert [(work.step_ref, work.directive) for work in crew.seen[7:]] == [("a", 2), ("b", 2), ("c", 1)]


@pytest.mark.anyio
@pytest.mark.parametrize("by", ["occurrence", "input_hash"])
async def test_one_turn_of_a_loop_is_named_by_its_number_or_by_what_it_asks(app: App, crew: Crew, by: str) -> None:
    given = 1 if by == "occurrence" else path("$.n")
    loop = {"kind": "loop", "counter": path("$.n"), "cond": lit(True), "body": step("a", given), "max": 3}
    run = await finished(app, flow(loop))
    wanted = {"occurrence": 2} if by == "occurrence" else {"input_hash": digest(2)}
    done = await app.reruns.rerun(run.run_id, RerunFrom(from_step="a", **wanted))
    assert (done.replayed_steps, done.dropped_steps) == (2, 1)
    await ended(app, run)
    assert crew.times("a") == 4


@pytest.mark.anyio
async def test_a_race_is_decided_anew_and_what_its_losers_had_done_is_not_done_again(app: App, crew: Crew) -> None:
    async def slow(work: Assignment) -> Report:
        if work.directive == 0 and crew.times("b") < 2:
            await asyncio.Event().wait()
        return answer(work)

    crew.acts["b"] = slow
    race = flow(fanout([0, 1], seq(step("a", path("$.i")), step("b", path("$.i"))), "race"))
    run = await launch(app, race)
    assert result(await ended(app, run))["r"]["i"] == 1
    preview = await app.reruns.preview(run.run_id, RerunFrom(from_step="b", lane=(1,)))
    assert sorted(shown(preview)) == ["a: replayed", "a: replayed", "b: runs", "b: runs"]
    crew.acts["b"] = lambda work: answer(work) if work.directive == 0 else asyncio.Event().wait()
    await app.reruns.rerun(run.run_id, RerunFrom(from_step="b", lane=(1,)))
    assert result(await ended(app, run))["r"]["i"] == 0
    assert (crew.times("a"), crew.times("b")) == (2, 4)


@pytest.mark.anyio
async def test_what_must_not_be_done_twice_is_said_to_fail_by_a_resume_and_to_run_by_a_rerun(
    app: App, house: House, crew: Crew
) -> None:
    blueprint = flow(guard(step("a", 1), step("b", 1)), step("c", 1))
    blueprint["agents"][0]["on_ambiguous"] = "fail"
    crew.hold("a")
    run = await launch(app, blueprint)
    await crew.begun("a")
    app = await house.reboot(app)
    crew.free()
    preview = await app.reruns.preview_resume(run.run_id)
    assert shown(preview) == ["a: replayed", "b: runs"]
    await app.runs.resume(run.run_id)
    assert "may have acted" in result(await ended(app, run))["err"]
    assert [crew.times(name) for name in "abc"] == [1, 1, 1]
    preview = await app.reruns.preview(run.run_id, RerunFrom(from_step="c"))
    assert shown(preview) == ["a: runs", "b: replayed", "c: runs"]
    await app.reruns.rerun(run.run_id, RerunFrom(from_step="c"))
    assert "err" not in result(await ended(app, run))
    assert [crew.times(name) for name in "abc"] == [2, 1, 2]


# -- what is refused --------------------------------------------------------------------------------------------------


@pytest.mark.anyio
async def test_what_cannot_be_rerun_is_refused_by_a_preview_and_changes_nothing(app: App, crew: Crew) -> None:
    crew.acts["b"] = lambda work: Report(Blocked("no"))
    run = await finished(app, CHAIN)
    before = await everything(app)
    for wanted, kind, data in (
        (RerunFrom(from_step="nobody"), "no_such_step", {}),
        (RerunFrom(from_step="c"), "step_not_reached", {"stopped_at": []}),
        (RerunFrom(from_step="a", lane=(0,)), "step_not_reached", {"stopped_at": []}),
        (RerunFrom(from_step="a", occurrence=1), "step_not_reached", {"stopped_at": []}),
        (RerunFrom(from_step="a", input_hash="0a"), "step_not_reached", {"stopped_at": []}),
        (RerunFrom(from_step="a", blueprint="head"), "no_head", {}),
    ):
        for verb in (app.reruns.preview, app.reruns.rerun):
            error = await refused(verb(run.run_id, wanted))
            assert (type(error), error.kind, error.data) == (Unprocessable, kind, data)
    for step_id in ("ST-" + "0" * 16, crew.of("b")[0].step_id):
        error = await refused(app.reruns.rerun(run.run_id, RerunFrom(from_step="a", step_id=step_id)))
        assert (type(error), error.kind) == (NotFound, "step_not_found")
    assert isinstance(await refused(app.reruns.rerun("R-1", RerunFrom(from_step="a"))), InvalidId)
    error = await refused(app.reruns.rerun("R-" + "0" * 16, RerunFrom(from_step="a")))
    assert (type(error), error.kind) == (NotFound, "run_not_found")
    assert await everything(app) == before


@pytest.mark.anyio
async def test_a_run_that_did_not_come_so_far_says_where_it_stands(app: App, house: House, crew: Crew) -> None:
    crew.hold("b")
    run = await launch(app, CHAIN)
    await crew.begun("b")
    for verb in (app.reruns.preview, app.reruns.rerun):
        error = await refused(verb(run.run_id, RerunFrom(from_step="a")))
        assert (type(error), error.kind, error.data) == (Conflict, "run_running", {"status": "running"})
    app = await house.reboot(app)
    error = await refused(app.reruns.rerun(run.run_id, RerunFrom(from_step="c")))
    assert (error.kind, error.data) == ("step_not_reached", {"stopped_at": ["b"]})
    crew.free()
    await app.reruns.rerun(run.run_id, RerunFrom(from_step="b"))
    assert (await ended(app, run)).status == "done"


@pytest.mark.anyio
async def test_of_two_reruns_at_once_one_gets_through(app: App, crew: Crew) -> None:
    run = await finished(app, CHAIN)
    crew.hold("b")
    answers = await asyncio.gather(
        *(app.reruns.rerun(run.run_id, RerunFrom(from_step="b")) for _ in range(5)), return_exceptions=True
    )
    lost = [each for each in answers if isinstance(each, Exception)]
    assert len(lost) == 4
    assert {each.kind for each in lost if isinstance(each, SessionBusy | Conflict)} <= {"run_running", "session_busy"}
    crew.free()
    assert (await ended(app, run)).generation == 2


# -- which Blueprint --------------------------------------------------------------------------------------------------


async def registered(app: App, blueprint: Json, version: str | None = None) -> RunRecord:
    """A finished Run of a Task that was launched by id, of its head or of a version."""
    await app.blueprints.add(blueprint)
    reference = {"kind": "id", "id": blueprint["id"]} | ({"version": version} if version else {})
    return await ended(app, await app.tasks.launch(NewTask(blueprint=reference)))


@pytest.mark.anyio
async def test_a_task_that_follows_its_head_is_rerun_with_todays(app: App, crew: Crew) -> None:
    run = await registered(app, CHAIN)
    await app.blueprints.add(flow(step("a", 1), step("b", path("$.a")), step("c", 5), step("d", 6)))
    await app.reruns.rerun(run.run_id, RerunFrom(from_step="c"))
    after = await ended(app, run)
    assert [(work.step_ref, work.directive) for work in crew.seen[3:]] == [("c", 5), ("d", 6)]
    assert "d" in result(after)


@pytest.mark.anyio
@pytest.mark.parametrize("how", ["asked for", "fixed version"])
async def test_the_pinned_body_is_what_was_launched_whatever_the_head_is(app: App, crew: Crew, how: str) -> None:
    run = await registered(app, CHAIN, digest(CHAIN) if how == "fixed version" else None)
    await app.blueprints.add(flow(step("z", 1)))
    await app.reruns.rerun(run.run_id, RerunFrom(from_step="c", blueprint="pinned" if how == "asked for" else None))
    await ended(app, run)
    assert [work.step_ref for work in crew.seen] == ["a", "b", "c", "c"]


@pytest.mark.anyio
async def test_a_new_generation_is_resumed_with_the_body_that_it_took(app: App, house: House, crew: Crew) -> None:
    run = await registered(app, CHAIN)
    await app.blueprints.add(flow(step("a", 1), step("b", path("$.a")), step("x", 5)))
    crew.hold("x")
    await app.reruns.rerun(run.run_id, RerunFrom(from_step="b"))
    await crew.begun("x")
    app = await house.reboot(app)
    await app.blueprints.add(flow(step("y", 1)))
    crew.free()
    await app.runs.resume(run.run_id)
    assert set(result(await ended(app, run))) == {"a", "b", "x"}


@pytest.mark.anyio
async def test_a_body_with_faults_never_becomes_the_head_that_a_rerun_takes(app: App) -> None:
    run = await registered(app, CHAIN)
    with pytest.raises(BlueprintInvalid):
        await app.blueprints.add(CHAIN | {"flow": step("a", 1) | {"kind": "stop"}})
    assert shown(await app.reruns.preview(run.run_id, RerunFrom(from_step="c")))[-1] == "c: runs"


# -- preview = execution ----------------------------------------------------------------------------------------------

steps = st.builds(step, st.sampled_from("pqr"), st.sampled_from([lit(0), path("$.i"), path("$.p")]))
nodes = st.recursive(
    steps,
    lambda inner: st.one_of(
        st.lists(inner, min_size=2, max_size=3).map(lambda parts: seq(*parts)),
        st.builds(guard, inner, inner),
        st.builds(fanout, st.just([0, 1]), inner, st.sampled_from(["all", "race", "any", "all_settled"])),
    ),
    max_leaves=6,
)


@given(nodes, st.integers(0, 30), st.integers(0, 6), st.data())
@settings(max_examples=60)
def test_whatever_the_flow_is_a_rerun_does_what_its_preview_said(
    node: Json, salt: int, crash_at: int, data: st.DataObject
) -> None:
    anyio.run(rerun_one, flow(node, step("last", 1)), salt, crash_at, data)


async def rerun_one(blueprint: Json, salt: int, crash_at: int, data: st.DataObject) -> None:
    crew, house = Crew(), House()

    async def act(work: Assignment) -> Report:
        draw = int(digest([salt, work.step_ref, work.directive])[:4], 16)
        for _ in range(draw % 3):
            await asyncio.sleep(0)
        return Report(Blocked("no")) if draw % 5 == 0 else Report(Pass(len(crew.seen)))

    crew.acts |= dict.fromkeys("pqr", act)
    with crew.as_python(), house.without_processes():
        app = await house.open()
        run = await launch(app, blueprint, i=0, p=0)
        if crash_at:
            while len(crew.seen) < crash_at and (await app.runs.get(run.run_id)).status == "running":
                await asyncio.sleep(0)
            app = await house.reboot(app)
        await ended(app, run)
        attempts = await app.runs.steps(run.run_id)
        refs = sorted({each.step_ref for each in attempts})
        wanted = RerunFrom(from_step=data.draw(st.sampled_from(refs), label="target"))
        before = await everything(app)
        try:
            preview = await app.reruns.preview(run.run_id, wanted)
        except Unprocessable as error:
            assert error.kind == "step_not_reached"
            assert await everything(app) == before
        else:
            await assert_executed(app, run, wanted, preview)
        await house.close()


async def assert_executed(app: App, run: RunRecord, wanted: RerunFrom, preview: Preview) -> None:
    seen = len(await app.runs.steps(run.run_id))
    done = await app.reruns.rerun(run.run_id, wanted)
    assert (done.replayed_steps, done.dropped_steps) == (preview.replayed_steps, preview.dropped_steps)
    await ended(app, run)
    asked: list[AttemptRow] = (await app.runs.steps(run.run_id))[seen:]
    ran, kept = {key_of(each) for each in asked}, {key_of(row) for row in preview.plan.kept}
    assert not ran & kept
    rows = await app.runs.replay(run.run_id, everything=True)
    born_before = {each.row.ordinal for each in rows if each.live and each.row.generation < 2}
    assert born_before <= {row.ordinal for row in preview.plan.kept}
    lost = {row.ordinal for row in preview.plan.kept} - born_before
    assert all(each.row.lane_json != "[]" for each in rows if each.row.ordinal in lost)  # of lanes that lost since
    due: list[PlannedStep] = [each for each in preview.plan.steps if each.why == "the target" and each.lane == ()]
    assert {key_of(each) for each in due} <= ran
    assert await faults(app) == []
