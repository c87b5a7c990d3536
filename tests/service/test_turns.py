"""The verbs on turns: each stops what it names, lets the queue go on in the same commit, and is applied once."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from request_kit import approve, judged, request_on
from service_kit import Crew, House, Json, Line, Refused, flow, launch, path, step, uuid7

from refold.records import RunRecord, RunStatus, SessionRecord
from refold.service.app import App

pytestmark = pytest.mark.anyio

TALK = flow(step("s", path("$.input"), "$.output"), id="talk")
S = RunStatus


@pytest.fixture
async def app(house: House, crew: Crew) -> AsyncIterator[App]:
    app = await house.open()
    await app.blueprints.add(TALK)
    yield app


async def runs(app: App) -> list[RunRecord]:
    return await app.store.read(lambda reader: reader.find(RunRecord))


async def statuses(app: App) -> list[str]:
    return [run.status for run in await runs(app)]


async def session_of(app: App) -> SessionRecord:
    (session,) = await app.store.read(lambda reader: reader.find(SessionRecord))
    return session


async def busy(line: Line, crew: Crew, *texts: str) -> tuple[str, list[str]]:
    """A Session whose first turn is under way and has others behind it: its id, and all turn ids."""
    crew.hold("s")
    session = await line.start("talk")
    turns = [(await line.turn(session, text))["turnId"] for text in texts]
    await crew.begun("s")
    return session, turns


async def refusal(line: Line, method: str, **params: Json) -> Json:
    """The data of the error that a call is answered with."""
    with pytest.raises(Refused) as no:
        await line.call(method, **params)
    assert no.value.kind == "commandRejected"
    return no.value.data


# -- stopping ---------------------------------------------------------------------------------------------------------

STOPS = {"turn/interrupt": S.INTERRUPTED, "turn/cancel": S.CANCELLED}


@pytest.mark.parametrize("method", STOPS)
@pytest.mark.parametrize("named", [True, False], ids=["named", "whichever"])
async def test_a_stop_ends_the_turn_and_lets_the_queue_go(app: App, crew: Crew, method: str, named: bool) -> None:
    async with Line(app) as line:
        session, (first, second) = await busy(line, crew, "one", "two")
        which = {"turnId": first} if named else {}
        stop = {"commandId": uuid7(), "sessionId": session, **which}
        ack = await line.call(method, **stop)
        assert ack == {"commandId": stop["commandId"], "status": "accepted", "turnId": first}
        assert await statuses(app) == [STOPS[method], S.RUNNING], "in the commit of the stop"
        assert (await session_of(app)).active_turn == second
        assert (await line.turn_ended(first))["terminal"] == "cancelled"
        await crew.begun("s", 2)
        assert await line.call(method, **stop) == ack, "sent again it stops nothing more"
        assert await statuses(app) == [STOPS[method], S.RUNNING]
        crew.free("s")
        assert (await line.turn_ended(second))["terminal"] == "completed"
        state = await judged(app, (await runs(app))[0])
        assert all(item["status"] != "inProgress" for item in state.items.values())


@pytest.mark.parametrize("method", STOPS)
async def test_a_stop_of_nothing_is_rejected_for_ever(house: House, app: App, crew: Crew, method: str) -> None:
    async with Line(app) as line:
        session, (turn,) = await busy(line, crew, "one")
        for which in ({"turnId": uuid7()}, {"turnId": "no such turn"}):
            assert (await refusal(line, method, commandId=uuid7(), sessionId=session, **which))["reason"] == (
                "missing_run"
            )
        crew.free("s")
        await line.turn_ended(turn)
        late = {"commandId": uuid7(), "sessionId": session}
        first = await refusal(line, method, **late)
        assert first["reason"] == "missing_run"
        crew.hold("s")
        await line.turn(session, "two")
        await crew.begun("s", 2)
        assert await refusal(line, method, **late) == first, "although something runs now"
        assert await statuses(app) == [S.DONE, S.RUNNING]
    app = await house.reboot(app)
    async with Line(app) as line:
        assert await refusal(line, method, **late) == first
        assert (await refusal(line, method, **late | {"sessionId": uuid7()}))["reason"] == "command_id_conflict"


async def test_an_interrupted_turn_can_be_gone_on_with_and_a_cancelled_one_cannot(app: App, crew: Crew) -> None:
    async with Line(app) as line:
        session, _ = await busy(line, crew, "one")
        await line.command("turn/interrupt", sessionId=session)
        (run,) = await runs(app)
        resume = {"commandId": uuid7(), "sessionId": session, "workflowRunId": run.run_id}
        crew.free("s")
        ack = await line.call("workflow/resume", **resume)
        assert ack["turnId"] == resume["commandId"]
        assert (await line.turn_ended(ack["turnId"]))["terminal"] == "completed"
        assert await line.call("workflow/resume", **resume) == ack
        assert (await refusal(line, "workflow/resume", **resume | {"commandId": uuid7()}))["reason"] == "run_done"
        cancel = {"commandId": uuid7(), "sessionId": session, "workflowRunId": run.run_id}
        assert (await refusal(line, "workflow/cancel", **cancel))["reason"] == "already_terminal"
        await busy_again(line, crew, session)
        second = (await runs(app))[1]
        await line.command("workflow/cancel", sessionId=session, workflowRunId=second.run_id)
        resume = {"commandId": uuid7(), "sessionId": session, "workflowRunId": second.run_id}
        assert (await refusal(line, "workflow/resume", **resume))["reason"] == "run_cancelled"
    assert await statuses(app) == [S.DONE, S.CANCELLED]


async def busy_again(line: Line, crew: Crew, session: str) -> None:
    crew.hold("s")
    times = crew.times("s")
    await line.turn(session, "again")
    await crew.begun("s", times + 1)


async def test_a_resume_of_a_busy_session_is_rejected_and_names_what_runs(app: App, crew: Crew) -> None:
    async with Line(app) as line:
        session, _ = await busy(line, crew, "one", "two")
        await line.command("turn/interrupt", sessionId=session)
        first, second = await runs(app)
        resume = {"commandId": uuid7(), "sessionId": session, "workflowRunId": first.run_id}
        said = await refusal(line, "workflow/resume", **resume)
        assert (said["reason"], said["details"]["runId"]) == ("session_busy", second.run_id)
        crew.free("s")
        await line.turn_ended(second.turn_id)
        assert await refusal(line, "workflow/resume", **resume) == said


async def test_a_workflow_of_another_session_is_not_found(app: App, crew: Crew) -> None:
    other = await launch(app, TALK, input="over http")
    async with Line(app) as line:
        session = await line.start("talk")
        for method in ("workflow/cancel", "workflow/resume"):
            with pytest.raises(Refused) as no:
                await line.command(method, sessionId=session, workflowRunId=other.run_id)
            assert (no.value.kind, no.value.data["reason"]) == ("notFound", "runNotFound")


async def test_a_workflow_that_waits_in_the_queue_is_cancelled_there(app: App, crew: Crew) -> None:
    async with Line(app) as line:
        session, (first, second) = await busy(line, crew, "one", "two")
        queued = (await runs(app))[1]
        await line.command("workflow/cancel", sessionId=session, workflowRunId=queued.run_id)
        await line.until(lambda frame: frame.get("method") == "turn/unqueued" and frame["params"]["turnId"] == second)
        crew.free("s")
        await line.turn_ended(first)
    assert await statuses(app) == [S.DONE, S.CANCELLED]


async def test_an_interrupt_of_a_turn_that_waits_for_a_person_leaves_the_question_open(app: App, crew: Crew) -> None:
    await app.blueprints.add(flow(approve(), id="gate"))
    async with Line(app) as line:
        session = await line.start("gate")
        turn = (await line.turn(session))["turnId"]
        request = await request_on(line)
        await line.command("turn/interrupt", sessionId=session)
        assert (await line.turn_ended(turn))["terminal"] == "cancelled"
        pending = await line.call("approval/listPending", sessionId=session)
        assert [each["approvalId"] for each in pending["approvals"]] == [request["approvalId"]]
        assert pending["approvals"] == [request]
        state = await judged(app, (await runs(app))[0])
        (gate,) = [item for item in state.items.values() if item["kind"] == "toolCall"]
        assert gate["status"] == "inProgress", "the question is still asked"


# -- the queue --------------------------------------------------------------------------------------------------------


async def test_a_queued_turn_is_taken_back_once_and_never_runs(app: App, crew: Crew) -> None:
    async with Line(app) as line:
        session, (first, second, third) = await busy(line, crew, "one", "two", "three")
        take = {"commandId": uuid7(), "sessionId": session, "turnId": second}
        ack = await line.call("turn/unqueue", **take)
        assert ack == {"commandId": take["commandId"], "status": "accepted", "turnId": second}
        unqueued = await line.until(lambda frame: frame.get("method") == "turn/unqueued")
        assert (unqueued["params"]["turnId"], unqueued["params"]["commandId"]) == (second, second)
        assert await line.call("turn/unqueue", **take) == ack
        again = await refusal(line, "turn/unqueue", **take | {"commandId": uuid7()})
        assert again["reason"] == "not_queued"
        crew.free("s")
        await line.turn_ended(third)
        assert [work.directive for work in crew.of("s")] == ["one", "three"]
        turns = [frame["params"]["turnId"] for frame in await line.page(session) if frame["method"] == "turn/started"]
        assert turns == [first, third]
    assert await statuses(app) == [S.DONE, S.CANCELLED, S.DONE]


async def test_only_what_is_queued_can_be_taken_back(app: App, crew: Crew) -> None:
    async with Line(app) as line:
        session, (first, second) = await busy(line, crew, "one", "two")
        lost = {"commandId": uuid7(), "sessionId": session, "turnId": first}
        assert (await refusal(line, "turn/unqueue", **lost))["reason"] == "not_queued"
        assert await statuses(app) == [S.RUNNING, S.PENDING], "it never becomes a cancel"
        crew.free("s")
        await line.turn_ended(second)
        for turn in (first, second, uuid7()):
            said = await refusal(line, "turn/unqueue", commandId=uuid7(), sessionId=session, turnId=turn)
            assert said["reason"] == "not_queued"
    assert await statuses(app) == [S.DONE, S.DONE]


async def test_a_turn_that_replaces_goes_ahead_of_the_queue(app: App, crew: Crew) -> None:
    async with Line(app) as line:
        session, (first, second) = await busy(line, crew, "one", "two")
        ack = await line.turn(session, "instead", ifBusy="replace")
        assert ack["disposition"] == "started"
        assert await statuses(app) == [S.CANCELLED, S.PENDING, S.RUNNING]
        assert (await line.turn_ended(first))["reason"] == "replaced"
        crew.free("s")
        await line.turn_ended(second)
        assert [work.directive for work in crew.of("s")] == ["one", "instead", "two"]
        again = {"commandId": ack["commandId"], "sessionId": session, "ifBusy": "replace"}
        assert await line.call("turn/start", **again, input=[{"type": "text", "text": "instead"}]) == ack
    assert await statuses(app) == [S.CANCELLED, S.DONE, S.DONE]


async def test_a_turn_that_replaces_nothing_just_starts(app: App, crew: Crew) -> None:
    async with Line(app) as line:
        session = await line.start("talk")
        ack = await line.turn(session, "one", ifBusy="replace")
        assert (ack["disposition"], ack["startedNewTurn"]) == ("started", True)
        await line.turn_ended(ack["turnId"])
    assert await statuses(app) == [S.DONE]
