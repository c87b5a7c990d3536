"""Requests outlive what asked them: crashes, interrupts, expiry meanwhile, busy Sessions, reruns and cancels."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest
from request_kit import (
    HOUR_MS,
    Wall,
    approve,
    asked,
    asking,
    attempt,
    decide_over_msp,
    items,
    judged,
    request_on,
    requests,
    shown,
    with_agent,
)
from service_kit import (
    PATIENCE_SECS,
    Crew,
    House,
    Json,
    Line,
    Refused,
    ended,
    flow,
    launch,
    path,
    result,
    step,
    undriven,
    uuid7,
)

from refold.canonical import decode, encode
from refold.errors import Conflict
from refold.records import AttemptRow, RequestRow, RequestStatus, RunRecord
from refold.service.app import App
from refold.service.reruns import RerunFrom
from refold.store import StepCommit

pytestmark = pytest.mark.anyio

GATE = flow(step("a", 1), approve(), step("b", path("$.ok.decision")), id="gate")
DONE = {"decision": "approved", "choice": "approve", "by": "user"}


@pytest.fixture
async def app(house: House, crew: Crew) -> AsyncIterator[App]:
    yield await house.open()


@pytest.fixture
def wall() -> Iterator[Wall]:
    with Wall().as_clock() as wall:
        yield wall


async def waiting(app: App, blueprint: Json = GATE) -> tuple[RunRecord, RequestRow]:
    """A Run that waits for a person, and its one request."""
    run = await launch(app, blueprint)
    (request,) = await asked(app, run)
    return run, request


async def done_after(app: App, run: RunRecord) -> Json:
    """The final ctx of a Run that ends well; its view and its store keep the laws."""
    stopped = await ended(app, run)
    assert stopped.status == "done", stopped.result_json
    await judged(app, run)
    return result(stopped)


# -- a crash ----------------------------------------------------------------------------------------------------------


async def test_a_decision_resumes_the_run_that_a_crash_interrupted(house: House, app: App, crew: Crew) -> None:
    run, request = await waiting(app)
    before = await shown(app, run, "approval/requested")
    app = await house.reboot(app)
    assert (await app.runs.get(run.run_id)).status == "interrupted"
    assert [each.request_id for each in await requests(app, run)] == [request.request_id]
    assert (await judged(app, run)).approvals.keys() == {request.request_id}
    settled = await app.requests.decide(request.request_id, choice="approve")
    assert settled.resumed
    assert (await done_after(app, run))["b"]["got"] == "approved"
    assert crew.times("a") == 1
    assert await shown(app, run, "approval/requested") == before
    started = await shown(app, run, "turn/started")
    assert len(started) == 2, "the decision is the turn that goes on"
    (gate,) = [item for item in await items(app, run) if item["tool"] == "@approve"]
    assert (gate["turnId"], gate["status"]) == (started[0]["turnId"], "completed"), "the item keeps its turn"


async def test_a_resume_before_the_decision_asks_under_the_same_id(house: House, app: App, crew: Crew) -> None:
    run, request = await waiting(app)
    for _ in range(3):
        app = await house.reboot(app)
        await app.runs.resume(run.run_id)
        assert [each.request_id for each in await asked(app, run)] == [request.request_id]
    await app.requests.decide(request.request_id, choice="approve")
    assert (await done_after(app, run))["ok"] == DONE
    assert len(await shown(app, run, "approval/requested")) == 1


ANSWERED: dict[str, tuple[Json, Json, str]] = {
    "node": (GATE, {"decision": "approved"}, "done"),
    "denied": (GATE, {"decision": "denied"}, "failed"),
    "read": (flow(approve(on_deny="continue")), {"decision": "denied"}, "done"),
    "policy": (with_agent(flow(step("a", 1)), "a", approval="required"), {"decision": "approved"}, "done"),
    "denied policy": (with_agent(flow(step("a", 1)), "a", approval="required"), {"decision": "denied"}, "failed"),
}


@pytest.mark.parametrize("case", ANSWERED)
async def test_an_answer_whose_driver_never_heard_it_is_gone_on_from(
    house: House, app: App, crew: Crew, case: str
) -> None:
    """The server dies between the commit of the decision and what the driver makes of it."""
    blueprint, said, status = ANSWERED[case]
    run, request = await waiting(app, blueprint)
    app.requests._desk.ring = lambda request: False
    await app.requests.decide(request.request_id, **said)
    app = await house.reboot(app)
    (row,) = await requests(app, run)
    assert (row.status, row.consumed) == (RequestStatus.RESOLVED, False)
    preview = await app.reruns.preview_resume(run.run_id)
    await app.runs.resume(run.run_id)
    stopped = await ended(app, run)
    assert stopped.status == status
    (row,) = await requests(app, run)
    assert row.consumed
    assert len(await shown(app, run, "approval/requested")) == 1
    assert crew.times("a") == (0 if case == "denied policy" or case == "read" else 1)
    await judged(app, run)
    planned = [each.step_ref for each in preview.plan.steps]
    ran = [item["tool"] for item in await items(app, run)]
    assert planned == ran, "what is executed equals the preview"


BOTH = {
    "kind": "fanout",
    "items": {"op": "lit", "value": [0, 1]},
    "bind": path("$.i"),
    "join": "all",
    "out": path("$.out"),
    "body": {
        "kind": "branch",
        "cond": {"op": "eq", "lhs": path("$.i"), "rhs": {"op": "lit", "value": 0}},
        "then": approve(),
        "else": step("op", 1),
    },
}


async def test_a_run_whose_answer_is_there_never_says_that_it_waits_for_it(house: House, app: App, crew: Crew) -> None:
    """Beside it an operator's step is offered again, in the commit that also says what the Run waits for."""
    run = await launch(app, with_agent(flow(BOTH), "op", kind="operator", spec={}))
    (request,) = await asked(app, run)
    app.requests._desk.ring = lambda request: False
    await app.requests.decide(request.request_id, decision="approved")
    app = await house.reboot(app)
    commit, said = app.store.commit, []

    async def watched(step: StepCommit, also: object = None) -> tuple[int, ...]:
        said.append(step.waiting_on)
        return await commit(step, also)

    app.store.commit = watched
    await app.runs.resume(run.run_id)
    sid = (await app.operators.attach())[0].sid
    assert await app.operators.next(sid, PATIENCE_SECS) is not None
    await app.runs.cancel(run.run_id)
    await judged(app, run)
    assert said
    assert set(said) <= {None, "operator"}


async def test_a_denial_that_was_caught_stands_over_every_resume(house: House, app: App, crew: Crew) -> None:
    run, request = await waiting(app, flow(attempt(approve()), step("b", path("$.err")), step("c", 1)))
    crew.hold("c")
    await app.requests.decide(request.request_id, decision="denied")
    await crew.begun("c")
    app = await house.reboot(app)
    preview = await app.reruns.preview_resume(run.run_id)
    assert [(each.step_ref, each.plan) for each in preview.plan.steps] == [
        ("@approve", "replayed"),
        ("b", "replayed"),
        ("c", "runs"),
    ]
    crew.free("c")
    await app.runs.resume(run.run_id)
    assert "denied" in encode((await done_after(app, run))["err"])
    assert (len(await requests(app, run)), crew.times("b")) == (1, 1)
    assert len([item for item in await items(app, run) if item["tool"] == "@approve"]) == 1


async def test_an_approved_step_that_a_crash_cut_off_is_not_asked_about_again(
    house: House, app: App, crew: Crew
) -> None:
    run, request = await waiting(app, with_agent(flow(step("a", 1)), "a", approval="required"))
    crew.hold("a")
    await app.requests.decide(request.request_id, decision="approved")
    await crew.begun("a")
    app = await house.reboot(app)
    crew.free("a")
    await app.runs.resume(run.run_id)
    await done_after(app, run)
    assert (len(await requests(app, run)), crew.times("a")) == (1, 2)
    first, second = await items(app, run)
    assert (first["status"], second["status"]) == ("cancelled", "completed"), "what runs again is a new item"
    assert [work.idempotency_key for work in crew.of("a")] == [crew.of("a")[0].idempotency_key] * 2


# -- attempts that nobody knows the end of ----------------------------------------------------------------------------

CAREFUL = with_agent(flow(step("a", 1), step("b", 2)), "a", on_ambiguous="ask")


async def cut_off(house: House, app: App, crew: Crew, run: RunRecord, times: int) -> tuple[App, RequestRow]:
    """A crash meets attempt number `times`; the next boot's resume asks about it."""
    await crew.begun("a", times)
    app = await house.reboot(app)
    await app.runs.resume(run.run_id)
    (request,) = await asked(app, run)
    assert crew.times("a") == times, "not done again before somebody says so"
    return app, request


async def test_each_attempt_that_was_cut_off_is_a_question_of_its_own(house: House, app: App, crew: Crew) -> None:
    crew.hold("a")
    run = await launch(app, CAREFUL)
    app, first = await cut_off(house, app, crew, run, 1)
    assert first.source == "ambiguous"
    assert "Attempt 1 of a" in first.title
    await app.requests.decide(first.request_id, choice="again")
    app, second = await cut_off(house, app, crew, run, 2)
    assert "Attempt 2 of a" in second.title
    assert second.request_id != first.request_id
    crew.free("a")
    await app.requests.decide(second.request_id, choice="again")
    await done_after(app, run)
    assert [work.attempt for work in crew.of("a")] == [1, 2, 3]


async def test_a_step_that_must_not_be_done_again_is_blocked_for_good(house: House, app: App, crew: Crew) -> None:
    crew.hold("a")
    blueprint = with_agent(flow(attempt(step("a", 1)), step("b", path("$.err")), step("c", 3)), "a", on_ambiguous="ask")
    run = await launch(app, blueprint)
    app, request = await cut_off(house, app, crew, run, 1)
    crew.hold("c")
    await app.requests.decide(request.request_id, choice="fail")
    await crew.begun("c")
    app = await house.reboot(app)
    crew.free("a", "c")
    await app.runs.resume(run.run_id)
    await done_after(app, run)
    assert (crew.times("a"), len(await requests(app, run))) == (1, 1)


# -- expiry -----------------------------------------------------------------------------------------------------------

EXPIRES = flow(approve(expires_secs=3600, on_deny="continue"), step("b", path("$.ok.decision")))


async def test_what_nobody_decides_in_time_expires_and_nobody_denied_it(app: App, crew: Crew) -> None:
    run = await launch(app, flow(approve(expires_secs=0.001)))
    stopped = await ended(app, run)
    assert stopped.status == "failed"
    assert ("expired" in stopped.result_json, "denied" in stopped.result_json) == (True, False)
    (resolved,) = await shown(app, run, "approval/resolved")
    assert (resolved["decision"], resolved["resolvedBy"]) == ("timedOut", "policy")
    assert [item["status"] for item in await items(app, run)] == ["timedOut"]
    (request,) = await requests(app, run)
    assert (request.status, decode(request.resolution_json)) == (
        RequestStatus.EXPIRED,
        {"decision": "expired", "by": "refold"},
    )
    with pytest.raises(Conflict) as late:
        await app.requests.decide(request.request_id, decision="approved")
    assert late.value.data["resolution"] == {
        "decision": "expired",
        "resolved_by": "policy",
        "view_cursor": resolved["viewCursor"],
    }


async def test_a_decision_that_comes_too_late_is_none_while_the_run_is_interrupted(
    house: House, app: App, crew: Crew, wall: Wall
) -> None:
    run, request = await waiting(app, EXPIRES)
    app = await house.reboot(app)
    wall.at += HOUR_MS
    command = uuid7()
    for _ in range(2):
        with pytest.raises(Conflict) as late:
            await app.requests.decide(request.request_id, decision="approved", command_id=command)
        assert late.value.kind == "approval_already_resolved"
        assert late.value.data["resolution"]["decision"] == "expired"
        assert (await app.runs.get(run.run_id)).status == "interrupted"
    await app.runs.resume(run.run_id)
    assert (await done_after(app, run))["b"]["got"] == "expired"
    assert len(await shown(app, run, "approval/resolved")) == 1


async def test_a_resume_after_the_time_is_over_goes_on_as_expired(
    house: House, app: App, crew: Crew, wall: Wall
) -> None:
    run, request = await waiting(app, EXPIRES)
    app = await house.reboot(app)
    wall.at += HOUR_MS + 1
    assert (await app.requests.get(request.request_id)).status == RequestStatus.OPEN
    await app.runs.resume(run.run_id)
    assert (await done_after(app, run))["b"]["got"] == "expired"


async def test_a_decision_just_in_time_counts(house: House, app: App, crew: Crew, wall: Wall) -> None:
    run, request = await waiting(app, EXPIRES)
    app = await house.reboot(app)
    wall.at += HOUR_MS - 1
    assert (await app.requests.decide(request.request_id, decision="approved")).resumed
    assert (await done_after(app, run))["b"]["got"] == "approved"


async def test_over_the_protocol_the_loser_reads_the_words_of_the_view(
    house: House, app: App, crew: Crew, wall: Wall
) -> None:
    await app.blueprints.add(EXPIRES | {"id": "expires"})
    async with Line(app) as line:
        session = await line.start("expires")
        await line.turn(session)
        request = await request_on(line)
        wall.at += HOUR_MS
        with pytest.raises(Refused) as late:
            await decide_over_msp(line, request)
        assert (late.value.kind, late.value.data["resolution"]["decision"]) == ("approvalAlreadyResolved", "timedOut")
        (resolved,) = [frame for frame in await line.page(session) if frame["method"] == "approval/resolved"]
        assert resolved["params"]["viewCursor"] == late.value.data["resolution"]["viewCursor"]


# -- waiting long -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("blueprint", [GATE, asking(step("person", 1))], ids=["approval", "input"])
async def test_a_run_that_waits_for_a_person_is_never_stale(
    house: House, app: App, crew: Crew, wall: Wall, blueprint: Json
) -> None:
    run, request = await waiting(app, blueprint)
    wall.at += 26 * HOUR_MS
    assert await app.sweep.sweep() == []
    gone = undriven(app, run)
    await app._supervisor.stop(run.n)
    await gone
    assert await app.sweep.sweep() == [], "nobody drives it, and it is a person's turn all the same"
    assert (await app.runs.get(run.run_id)).status == "running"
    app = await house.reboot(app)
    await app.runs.resume(run.run_id)
    (again,) = await asked(app, run)
    assert (again.request_id, again.opened_at) == (request.request_id, request.opened_at)


async def test_a_run_that_waits_for_nobody_is_stale(app: App, crew: Crew, wall: Wall) -> None:
    crew.hold("a")
    run = await launch(app, GATE)
    await crew.begun("a")
    gone = undriven(app, run)
    await app._supervisor.stop(run.n)
    await gone
    wall.at += 26 * HOUR_MS
    assert [each.run_id for each in await app.sweep.sweep()] == [run.run_id]


# -- a Session that is busy -------------------------------------------------------------------------------------------

TALK = flow(
    {
        "kind": "branch",
        "cond": {"op": "eq", "lhs": path("$.input"), "rhs": {"op": "lit", "value": "ask"}},
        "then": approve(path("$.turn")),
        "else": step("a", path("$.input")),
    },
    id="talk",
)


async def runs(app: App) -> list[RunRecord]:
    return await app.store.read(lambda reader: reader.find(RunRecord))


@pytest.mark.parametrize("end", ["done", "cancelled", "interrupt"])
async def test_a_decision_waits_for_its_busy_session_and_goes_before_the_queue(
    house: House, app: App, crew: Crew, end: str
) -> None:
    crew.hold("a")
    await app.blueprints.add(TALK)
    async with Line(app) as line:
        session = await line.start("talk")
        await line.turn(session, "ask")
        request = await request_on(line)
        await line.command("turn/interrupt", sessionId=session)
        busy = (await line.turn(session, "busy"))["turnId"]
        queued = (await line.turn(session, "queued"))["turnId"]
        await crew.begun("a")
        settled = await app.requests.decide(request["approvalId"], choice="approve")
        assert not settled.resumed
        first, *_ = await runs(app)
        assert (first.status, first.resume_wanted is not None) == ("interrupted", True)
        if end == "cancelled":
            await line.command("turn/cancel", sessionId=session, turnId=busy)
        elif end == "interrupt":
            await line.command("turn/interrupt", sessionId=session, turnId=busy)
        crew.free("a")
        await line.turn_ended(queued)
        assert [run.status for run in await runs(app)][::2] == ["done", "done"]
        first = (await runs(app))[0]
        assert (first.woken_by, first.resume_wanted) == ("decision", None)
        starts = [frame["params"]["turnId"] for frame in line.pushed(session) if frame["method"] == "turn/started"]
        assert starts[1:] == [busy, first.turn_id, queued]
        ack = await line.command("workflow/resume", sessionId=session, workflowRunId=first.run_id)
        assert ack["turnId"] == first.turn_id, "whoever asks for a resume now is told which turn it was"
        assert len(await shown(app, first, "approval/requested")) == 1
        await judged(app, first)


async def test_a_wanted_resume_outlives_a_crash_and_waits_for_a_kick(house: House, app: App, crew: Crew) -> None:
    crew.hold("a")
    await app.blueprints.add(TALK)
    async with Line(app) as line:
        session = await line.start("talk")
        await line.turn(session, "ask")
        request = await request_on(line)
        await line.command("turn/interrupt", sessionId=session)
        await line.turn(session, "busy")
        await line.turn(session, "queued")
        await crew.begun("a")
        await app.requests.decide(request["approvalId"], choice="approve")
    app = await house.reboot(app)
    assert [run.status for run in await runs(app)] == ["interrupted", "interrupted", "pending"]
    crew.free("a")
    async with Line(app) as line:
        await line.resume(session)
        last = (await line.turn(session, "kick"))["turnId"]
        await line.turn_ended(last)
    assert [run.status for run in await runs(app)] == ["done", "interrupted", "done", "done"]
    by_start = sorted((run for run in await runs(app) if run.status == "done"), key=lambda run: run.opened)
    assert [run.n for run in by_start] == [1, 3, 4], "the decision's Run, then the queue in its order"


async def test_a_decision_resumes_nothing_where_that_is_turned_off(house: House, app: App, crew: Crew) -> None:
    run, request = await waiting(app)
    app = await house.reboot(app, resume_on_decision=False)
    assert not (await app.requests.decide(request.request_id, choice="approve")).resumed
    assert (await app.runs.get(run.run_id)).status == "interrupted"
    await app.runs.resume(run.run_id)
    assert (await done_after(app, run))["ok"] == DONE


async def test_a_decision_is_kept_where_its_run_cannot_be_resumed(house: House, app: App, crew: Crew) -> None:
    """Nothing is resumed without a replay log, and nothing is lost by that."""
    run, request = await waiting(app)
    app = await house.reboot(app, replay=False)
    assert not (await app.requests.decide(request.request_id, choice="approve")).resumed
    app = await house.reboot(app)
    await app.runs.resume(run.run_id)
    assert (await done_after(app, run))["ok"] == DONE


# -- ends that void ---------------------------------------------------------------------------------------------------


async def test_a_rerun_voids_what_is_open_and_asks_anew(house: House, app: App, crew: Crew) -> None:
    run, first = await waiting(app)
    with pytest.raises(Conflict):
        await app.reruns.rerun(run.run_id, RerunFrom(from_step="a"))
    app = await house.reboot(app)
    await app.reruns.rerun(run.run_id, RerunFrom(from_step="a"))
    (second,) = await asked(app, run)
    old, new = await requests(app, run)
    assert (old.request_id, old.status, old.consumed) == (first.request_id, RequestStatus.VOIDED, True)
    assert (new.request_id, new.generation, new.nth) == (second.request_id, 2, 0)
    (aborted,) = await shown(app, run, "approval/resolved")
    assert (aborted["approvalId"], aborted["decision"]) == (first.request_id, "abort")
    with pytest.raises(Conflict) as late:
        await app.requests.decide(first.request_id, decision="approved")
    assert late.value.data["resolution"]["decision"] == "void"
    assert [item["status"] for item in await items(app, run) if item["tool"] == "@approve"] == [
        "cancelled",
        "inProgress",
    ]
    await app.requests.decide(second.request_id, decision="approved")
    await done_after(app, run)


async def test_a_refusal_is_asked_again_by_a_rerun(house: House, app: App, crew: Crew) -> None:
    blueprint = flow(attempt(approve()), step("b", path("$.err")), step("c", 1))
    run, first = await waiting(app, blueprint)
    await app.requests.decide(first.request_id, decision="denied")
    await done_after(app, run)
    preview = await app.reruns.preview(run.run_id, RerunFrom(from_step="c"))
    assert [(each.step_ref, each.plan, each.why) for each in preview.plan.steps] == [
        ("@approve", "runs", "refused before, and is asked again"),
        ("b", "replayed", "if it refuses again"),
        ("c", "runs", "the target"),
    ]
    await app.reruns.rerun(run.run_id, RerunFrom(from_step="c"))
    (second,) = await asked(app, run)
    assert second.request_id != first.request_id
    await app.requests.decide(second.request_id, decision="denied")
    assert (await done_after(app, run))["c"]["got"] == 1
    assert (crew.times("b"), crew.times("c")) == (1, 2)


async def test_an_approval_downstream_of_the_target_is_asked_again(app: App, crew: Crew) -> None:
    run, first = await waiting(app)
    await app.requests.decide(first.request_id, decision="approved")
    await done_after(app, run)
    preview = await app.reruns.preview(run.run_id, RerunFrom(from_step="a"))
    assert [(each.step_ref, each.plan) for each in preview.plan.steps] == [
        ("a", "runs"),
        ("@approve", "runs"),
        ("b", "runs"),
    ]
    await app.reruns.rerun(run.run_id, RerunFrom(from_step="a"))
    (second,) = await asked(app, run)
    assert second.digest == first.digest
    await app.requests.decide(second.request_id, decision="approved")
    await done_after(app, run)


@pytest.mark.parametrize("interrupted", [False, True], ids=["running", "interrupted"])
async def test_a_cancel_voids_what_is_open(house: House, app: App, crew: Crew, interrupted: bool) -> None:
    run, request = await waiting(app)
    if interrupted:
        app = await house.reboot(app)
    await app.runs.cancel(run.run_id)
    (row,) = await requests(app, run)
    assert (row.status, row.consumed) == (RequestStatus.VOIDED, True)
    state = await judged(app, run)
    assert state.approvals == {}
    assert [item["status"] for item in await items(app, run)] == ["completed", "cancelled"]
    with pytest.raises(Conflict) as late:
        await app.requests.decide(request.request_id, decision="approved")
    assert late.value.data["resolution"]["decision"] == "void"
    assert (await app.runs.get(run.run_id)).status == "cancelled"
    await app.reruns.rerun(run.run_id, RerunFrom(from_step="a"))
    (again,) = await asked(app, run)
    await app.requests.decide(again.request_id, decision="approved")
    await done_after(app, run)


async def test_an_approved_step_that_never_got_its_slot_ends_with_its_run(house: House, crew: Crew) -> None:
    """Approved, in line for capacity, and cancelled: its item is open, and nothing else would close it."""
    app = await house.open(max_concurrent_steps=1)
    crew.hold("x")
    blocker = await launch(app, flow(step("x", 1)))
    await crew.begun("x")
    run, request = await waiting(app, with_agent(flow(step("a", 1)), "a", approval="required"))
    await app.requests.decide(request.request_id, decision="approved")
    await app.runs.cancel(run.run_id)
    assert [item["status"] for item in await items(app, run)] == ["cancelled"]
    attempts = await app.store.read(lambda reader: reader.find(AttemptRow, run=run.n))
    assert attempts == []
    crew.free("x")
    await ended(app, blocker)
    await judged(app, run)


# -- a question that its reader takes back -----------------------------------------------------------------------------


async def test_an_interrupted_question_leaves_its_run_resumable_and_is_asked_anew(app: App, crew: Crew) -> None:
    """The turn ends in the commit that settles the question; nobody goes on from what was half answered."""
    await app.blueprints.add(asking(step("person", 1, "$.said")) | {"id": "ask"})
    async with Line(app) as line:
        session = await line.start("ask")
        turn = (await line.turn(session))["turnId"]
        question = await request_on(line, "userInput/request")
        named = {"sessionId": session, "userInputId": question["userInputId"]}
        for wrong in ([{"questionId": "q2", "selectedLabel": "red"}], [{"questionId": "q1", "selectedLabel": "green"}]):
            with pytest.raises(Refused, match="userInputAnswerInvalid"):
                await line.command("userInput/interrupt", **named, answers=wrong)
        answers, command = [{"questionId": "q1", "selectedLabel": "red"}], uuid7()
        before = len(line.frames)
        for _ in range(2):
            acked = await line.call("userInput/interrupt", commandId=command, **named, answers=answers)
            assert (acked["status"], acked["userInputId"]) == ("accepted", question["userInputId"])
        settled = await line.until(lambda frame: frame.get("method") == "userInput/settled", before)
        told = settled["params"]
        assert (told["outcome"], told["answers"], told["decidedByCommandId"]) == ("interrupted", answers, command)
        assert (await line.turn_ended(turn, before))["terminal"] == "cancelled"
        with pytest.raises(Refused) as late:
            await line.command("userInput/answer", **named, answers=answers)
        assert (late.value.kind, late.value.data["settlement"]["outcome"]) == ("userInputAlreadySettled", "interrupted")
        (run,) = await app.store.read(lambda reader: reader.find(RunRecord))
        assert (run.status, await app.requests.pending(session)) == ("interrupted", [])
        assert [item["status"] for item in await items(app, run)] == ["cancelled"]
        since = len(line.frames)
        await line.command("workflow/resume", sessionId=session, workflowRunId=run.run_id)
        again = await request_on(line, "userInput/request", since)
        assert again["userInputId"] != question["userInputId"]
        answer = [{"questionId": "q1", "selectedLabel": "blue"}]
        await line.command("userInput/answer", sessionId=session, userInputId=again["userInputId"], answers=answer)
    assert result(await ended(app, run))["said"] == "blue"
    await judged(app, run)
