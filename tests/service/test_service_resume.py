"""Resume: who may, what is answered, what runs again, and what becomes of a Run whose driver falls or is fenced."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest
from service_kit import (
    Crew,
    House,
    Json,
    answer,
    ended,
    everything,
    faults,
    flow,
    launch,
    lit,
    path,
    result,
    seq,
    step,
    undriven,
)

from refold.canonical import decode, encode
from refold.engine.agents import Assignment, Report
from refold.errors import (
    CommitFailed,
    InvalidId,
    NotFound,
    NotInterrupted,
    RefoldError,
    SessionBusy,
    StoreDamaged,
    Unprocessable,
)
from refold.flowir import Blocked, Failed, Skip
from refold.records import LogType, ReplayRow, RunRecord, RunStatus
from refold.service.app import App
from refold.service.reruns import RerunFrom
from refold.store import StepCommit

pytestmark = pytest.mark.anyio

CHAIN = flow(step("a", 1), step("b", path("$.a")), step("c", path("$.b")))


async def interrupted(house: House, crew: Crew, at: str = "b", blueprint: Json = CHAIN) -> tuple[App, RunRecord]:
    """A Run that a crash met while `at` was under way, after the next boot."""
    app = await house.open()
    crew.hold(at)
    run = await launch(app, blueprint)
    await crew.begun(at)
    app = await house.reboot(app)
    crew.free(at)
    return app, await app.runs.get(run.run_id)


async def change(app: App, run: RunRecord, **members: Any) -> None:
    """Writes members of a Run's record behind everybody's back."""
    assert await app.store.write(lambda tx: tx.update(RunRecord, (run.n,), **members))


# -- who may ----------------------------------------------------------------------------------------------------------


async def refusal(app: App, run_id: str, refused: type[RefoldError]) -> RefoldError:
    """How a resume is refused; it must have left everything as it was."""
    before = await everything(app)
    with pytest.raises(refused) as no:
        await app.runs.resume(run_id)
    assert await everything(app) == before
    return no.value


async def test_an_id_that_is_none_or_names_nothing_is_told_apart(house: House) -> None:
    app = await house.open()
    assert (await refusal(app, "nonsense", InvalidId)).kind == "invalid_id"
    assert (await refusal(app, "R-00000000000000ff", NotFound)).kind == "run_not_found"


@pytest.mark.parametrize("status", [status for status in RunStatus if status is not RunStatus.INTERRUPTED])
@pytest.mark.parametrize("input_json", [None, "as it was"])
async def test_the_status_is_looked_at_before_the_input(
    house: House, crew: Crew, status: RunStatus, input_json: str | None
) -> None:
    app, run = await interrupted(house, crew)
    await change(app, run, status=status, **({} if input_json else {"input_json": None}))
    no = await refusal(app, run.run_id, NotInterrupted)
    assert (no.kind, no.data["status"]) == ("run_not_interrupted", status)


async def test_a_run_without_launch_input_says_so(house: House, crew: Crew) -> None:
    app, run = await interrupted(house, crew)
    await change(app, run, input_json=None)
    assert (await refusal(app, run.run_id, Unprocessable)).kind == "no_launch_input"


async def test_a_busy_session_names_the_run_that_holds_it(house: House, crew: Crew) -> None:
    app, run = await interrupted(house, crew)
    crew.hold("b")
    other = await app.tasks.rekick(run.task_id)
    await crew.begun("b", 2)
    assert (await refusal(app, run.run_id, SessionBusy)).data["run_id"] == other.run_id
    crew.free("b")
    await ended(app, other)
    await app.runs.resume(run.run_id)


def spoiled(value: Json) -> Iterator[Json]:
    """Every launch snapshot that lacks a member of `value`, at any depth, or has something else in its place."""
    for name, member in value.items():
        yield {each: inside for each, inside in value.items() if each != name}
        for other in (None, 7, [], {}, "text"):
            yield value | {name: other}
        if isinstance(member, dict) and name != "init_ctx":
            yield from (value | {name: inside} for inside in spoiled(member))


async def test_a_launch_input_that_cannot_be_used_is_refused_and_never_half_used(house: House, crew: Crew) -> None:
    app, run = await interrupted(house, crew)
    whole = decode(run.input_json or "")
    texts = ["", "{", "[]", "null", '"text"', *map(encode, spoiled(whole))]
    kinds = []
    for text in texts:
        await change(app, run, input_json=text)
        before = await everything(app)
        try:
            await app.runs.resume(run.run_id)
        except Unprocessable as no:
            assert await everything(app) == before
            kinds.append(no.kind)
            continue
        after = await ended(app, run)  # what it lacks is not needed
        assert after.status in (RunStatus.DONE, RunStatus.FAILED), (text, after.result_json)
        await change(app, run, status=RunStatus.INTERRUPTED)
    assert set(kinds) == {"launch_input_undecodable"}
    assert len(kinds) > 20


async def test_a_damaged_log_is_not_resumed(house: House, crew: Crew) -> None:
    app, run = await interrupted(house, crew)
    await app.store.write(lambda tx: tx.update(ReplayRow, (run.n, 1), step_output_json='"not what was paid for"'))
    await refusal(app, run.run_id, StoreDamaged)


async def test_programs_that_were_allowed_at_launch_go_on_until_they_are_switched_off(house: House, crew: Crew) -> None:
    blueprint = flow(step("a", 1))
    blueprint["agents"].append({"name": "sh", "kind": "subprocess", "spec": {"program": "true"}})
    app = await house.open(subprocess="any")
    crew.hold("a")
    run = await launch(app, blueprint)
    await crew.begun("a")
    app = await house.reboot(app, subprocess="off")
    assert (await refusal(app, run.run_id, Unprocessable)).kind == "program_not_allowed"
    app = await house.reboot(app, subprocess="declared")
    crew.free("a")
    await app.runs.resume(run.run_id)
    assert (await ended(app, run)).status == RunStatus.DONE


async def test_without_a_replay_log_there_is_nothing_to_resume_from(house: House, crew: Crew) -> None:
    app, run = await interrupted(house, crew)
    app = await house.reboot(app, replay=False)
    assert (await refusal(app, run.run_id, RefoldError)).kind == "replay_disabled"


async def test_of_twenty_racing_resumes_one_gets_through(house: House, crew: Crew) -> None:
    app, run = await interrupted(house, crew)
    crew.hold("c")
    answers = await asyncio.gather(*(app.runs.resume(run.run_id) for _ in range(20)), return_exceptions=True)
    refused = [no for no in answers if isinstance(no, NotInterrupted)]
    assert len(refused) == 19
    assert {no.data["status"] for no in refused} == {RunStatus.RUNNING}
    crew.free("c")
    assert (await ended(app, run)).epoch == 2
    assert [crew.times(name) for name in "abc"] == [1, 2, 1]


# -- what runs again --------------------------------------------------------------------------------------------------


async def test_a_resume_runs_what_has_no_row_and_reaches_the_ctx_of_its_twin(house: House, crew: Crew) -> None:
    app, run = await interrupted(house, crew)
    assert (await app.runs.resume(run.run_id)).replayed_steps == 1
    done = await ended(app, run)
    twin = await ended(app, await launch(app, CHAIN))
    assert done.status == RunStatus.DONE
    assert done.result_json == twin.result_json
    assert [crew.times(name) for name in "abc"] == [2, 3, 2]
    assert await faults(app) == []


async def test_the_idempotency_key_is_the_steps_and_new_after_a_rerun(house: House, crew: Crew) -> None:
    app, run = await interrupted(house, crew)
    await app.runs.resume(run.run_id)
    await ended(app, run)
    await app.reruns.rerun(run.run_id, RerunFrom(from_step="b"))
    await ended(app, run)
    first, resumed, rerun = crew.of("b")
    assert first.idempotency_key == resumed.idempotency_key != rerun.idempotency_key
    assert [(work.attempt, work.epoch, work.occurrence) for work in crew.of("b")] == [(1, 1, 0), (2, 2, 0), (1, 3, 0)]
    keys = {work.idempotency_key for work in crew.seen}
    assert len(keys) == 5  # a, b, c of the first generation, b, c of the second


async def test_equal_steps_of_a_loop_have_keys_of_their_own(house: House, crew: Crew) -> None:
    app = await house.open()
    await ended(app, await launch(app, flow(step("a", 1), step("a", 1), step("a", 1))))
    assert len({work.idempotency_key for work in crew.of("a")}) == 3
    await ended(app, await launch(app, flow(step("a", 1))))
    assert len({work.idempotency_key for work in crew.of("a")}) == 4


REFUSALS: Mapping[str, Callable[[Assignment], Report]] = {
    "blocked": lambda work: Report(Blocked({"why": "not today"})),
    "failed": lambda work: Report(Failed("broken")),
    "skipped": lambda work: Report(Skip("not needed")),
}


@pytest.mark.parametrize("refused", REFUSALS)
async def test_what_did_not_pass_is_not_logged_and_runs_again(house: House, crew: Crew, refused: str) -> None:
    guarded = {
        "kind": "try",
        "body": step("shy", 1),
        "catch": {"kind": "assign", "at": path("$.caught"), "value": lit(True)},
        "err_at": path("$.err"),
    }
    crew.acts["shy"] = REFUSALS[refused]
    app, run = await interrupted(house, crew, "late", flow(step("a", 1), guarded, step("late", 2)))
    assert [logged.row.step_ref for logged in await app.runs.replay(run.run_id)] == ["a"]
    crew.acts["shy"] = answer
    await app.runs.resume(run.run_id)
    done = await ended(app, run)
    assert done.status == RunStatus.DONE
    assert "caught" not in result(done)
    assert crew.times("shy") == 2
    assert await faults(app) == []


# -- drivers that end badly -------------------------------------------------------------------------------------------


def bug(work: Assignment) -> Report:
    raise LookupError("a bug in an agent")


async def test_a_driver_that_falls_interrupts_its_run_at_once(house: House, crew: Crew) -> None:
    app = await house.open()
    crew.acts["b"] = bug
    run = await ended(app, await launch(app, CHAIN))
    assert run.status == RunStatus.INTERRUPTED
    assert "a bug in an agent" in result(run)["error"]
    rows = await app.store.read(lambda reader: reader.log(run.session, 0))
    assert (rows[-1].type, decode(rows[-1].body_json)["reason"]) == (LogType.TURN_ENDED, "driver fell")
    crew.acts["b"] = answer
    assert (await app.runs.resume(run.run_id)).replayed_steps == 1
    assert (await ended(app, run)).status == RunStatus.DONE
    assert [crew.times(name) for name in "abc"] == [1, 2, 1]


async def test_a_run_whose_commit_failed_is_interrupted_and_loses_nothing(house: House, crew: Crew) -> None:
    app = await house.open()
    crew.hold("b")
    run = await launch(app, CHAIN)
    await crew.begun("b")

    async def full(step: StepCommit, also: Any = None) -> tuple[int, ...]:
        del app.store.commit  # the next one gets through
        raise CommitFailed("the disk is full")

    app.store.commit = full
    crew.free("b")
    stopped = await ended(app, run)
    assert (stopped.status, stopped.rows) == (RunStatus.INTERRUPTED, 1)
    assert await faults(app) == []
    await app.runs.resume(run.run_id)
    assert (await ended(app, run)).status == RunStatus.DONE
    assert [crew.times(name) for name in "abc"] == [1, 2, 1]


async def test_a_fenced_driver_stops_and_writes_nothing(house: House, crew: Crew) -> None:
    app = await house.open()
    crew.hold("b")
    run = await launch(app, CHAIN)
    await crew.begun("b")
    await change(app, run, epoch=run.epoch + 1)  # another owner has taken over
    before, gone = await everything(app), undriven(app, run)
    crew.free("b")
    await gone
    assert await everything(app) == before
    assert crew.times("c") == 0


async def test_a_step_under_way_is_stopped_when_its_run_is_cancelled(house: House, crew: Crew) -> None:
    app = await house.open()
    stopped: list[str] = []

    async def patient(work: Assignment) -> Report:
        try:
            return await asyncio.get_running_loop().create_future()
        finally:
            stopped.append(work.step_ref)

    crew.acts["b"] = patient
    run = await launch(app, CHAIN)
    await crew.begun("b")
    await app.runs.cancel(run.run_id)
    assert stopped == ["b"], "cancel answers when the work is gone"
    await app.runs.cancel(run.run_id)
    assert (await app.runs.get(run.run_id)).status == RunStatus.CANCELLED


# -- room -------------------------------------------------------------------------------------------------------------


async def test_a_run_that_waits_for_room_is_launched_by_any_end(house: House, crew: Crew) -> None:
    app = await house.open(max_running_runs=1)
    crew.hold("b")
    first = await launch(app, CHAIN)
    waiting = [await launch(app, CHAIN) for _ in range(3)]
    assert [(run.status, run.waiting_on) for run in waiting] == [(RunStatus.PENDING, "capacity")] * 3
    await crew.begun("b")
    crew.acts["b"] = bug
    crew.free("b")
    for run in (first, *waiting):
        assert (await ended(app, run)).status == RunStatus.INTERRUPTED


async def test_a_lane_that_loses_before_its_step_began_gives_the_slot_back(house: House, crew: Crew) -> None:
    """Lane 0 wins while the commit that grants lane 1 its second step is under way: that step is on record already."""
    app = await house.open(max_concurrent_steps=2)
    late, win = asyncio.Event(), asyncio.Event()
    waits = {("one", 1): late, ("two", 0): win}

    async def act(work: Assignment) -> Report:
        if (gate := waits.get((work.step_ref, work.lane[0][1]))) is not None:
            await gate.wait()
        return answer(work)

    crew.acts |= {"one": act, "two": act}
    commit = app.store.commit

    async def slow(step: StepCommit, also: Any = None) -> tuple[int, ...]:
        if any(opened.attempt.step_ref == "two" and opened.attempt.lane_json == "[[0,1]]" for opened in step.opens):
            win.set()
            for _ in range(10):  # time for lane 0 to report
                await asyncio.sleep(0)
        return await commit(step, also)

    app.store.commit = slow
    race = {
        "kind": "fanout",
        "items": lit([0, 1]),
        "bind": path("$.i"),
        "join": "race",
        "out": path("$.won"),
        "body": seq(step("one", path("$.i")), step("two", path("$.i"))),
    }
    for number in range(1, 4):
        late.clear(), win.clear()
        run = await launch(app, flow(race, step("after", 1)))
        await crew.begun("two", number)
        late.set()
        assert (await ended(app, run)).status == RunStatus.DONE
        assert [work.lane for work in crew.of("two")] == [((0, 0),)] * number, "lane 1 has lost before it began"
    assert await faults(app) == []
