"""Requests: what a person is asked, what an answer does, over whichever door, and that it counts once."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from request_kit import (
    approve,
    asked,
    asking,
    attempt,
    decide_over_msp,
    frames,
    items,
    judged,
    request_on,
    requests,
    shown,
    with_agent,
)
from service_kit import Crew, House, Json, Line, Refused, ended, flow, launch, lit, path, result, step, uuid7

from refold.canonical import decode, encode
from refold.engine.questions import Questions
from refold.errors import CommandConflict, CommitFailed, InvalidRequest, NotFound
from refold.records import RequestStatus, RunRecord, ValueRow
from refold.server.rpc import Rpc
from refold.service.app import App
from refold.service.requests import answered
from refold.store import Reader

pytestmark = pytest.mark.anyio

GATE = flow(step("a", 1), approve(), step("b", path("$.ok")), id="gate")


@pytest.fixture
async def app(house: House, crew: Crew) -> AsyncIterator[App]:
    yield await house.open()


async def waiting(app: App, blueprint: Json = GATE) -> tuple[RunRecord, Any]:
    """A Run that waits for a person, and its one request."""
    run = await launch(app, blueprint)
    (request,) = await asked(app, run)
    return run, request


# -- what an answer does ----------------------------------------------------------------------------------------------


async def test_the_flow_goes_on_with_what_was_decided(app: App, crew: Crew) -> None:
    run, request = await waiting(app)
    assert (await app.runs.get(run.run_id)).waiting_on == "approval"
    settled = await app.requests.decide(request.request_id, choice="approve", feedback="well done")
    assert (settled.resumed, settled.request.status) == (True, RequestStatus.RESOLVED)
    done = await ended(app, run)
    said = {"decision": "approved", "choice": "approve", "by": "user", "feedback": "well done"}
    assert (done.status, result(done)["ok"], result(done)["b"]["got"]) == ("done", said, said)
    assert [(item["tool"], item["status"]) for item in await items(app, run)] == [
        ("a", "completed"),
        ("@approve", "completed"),
        ("b", "completed"),
    ]


async def test_a_denial_blocks_the_step_or_is_read_by_the_flow(app: App, crew: Crew) -> None:
    run, request = await waiting(app)
    await app.requests.decide(request.request_id, decision="denied", feedback="not today")
    failed = await ended(app, run)
    assert failed.status == "failed"
    assert "not today" in failed.result_json
    assert [item["status"] for item in await items(app, run)] == ["completed", "rejected"]
    run, request = await waiting(app, flow(approve(on_deny="continue"), step("b", path("$.ok.decision"))))
    await app.requests.decide(request.request_id, decision="denied")
    assert result(await ended(app, run))["b"]["got"] == "denied"
    assert [item["status"] for item in await items(app, run)] == ["completed", "completed"]


async def test_only_what_is_offered_can_be_chosen(app: App, crew: Crew) -> None:
    choices = [
        {"id": "ship", "label": "Ship it", "decision": "approved"},
        {"id": "hold", "label": "Hold it", "decision": "wait for tuesday"},
    ]
    run, request = await waiting(app, flow(approve(choices=choices, on_deny="continue")))
    for wrong in ({"choice": "approve"}, {"choice": "approved"}, {"decision": "denied"}, {}):
        with pytest.raises(InvalidRequest) as no:
            await app.requests.decide(request.request_id, **wrong)
        assert no.value.kind == "approval_choice_invalid"
    with pytest.raises(InvalidRequest):
        await app.requests.answer(request.request_id, [])
    with pytest.raises(NotFound):
        await app.requests.decide(uuid7(), choice="ship")
    assert (await app.requests.get(request.request_id)).status == RequestStatus.OPEN
    await app.requests.decide(request.request_id, choice="hold")
    assert result(await ended(app, run))["ok"] == {"decision": "denied", "choice": "hold", "by": "user"}
    (resolved,) = await shown(app, run, "approval/resolved")
    assert (resolved["decision"], resolved["policyResult"]) == ("wait for tuesday", "deny")


async def test_a_long_action_is_shown_by_its_head_and_can_be_read_whole(app: App, crew: Crew) -> None:
    action = {"files": ["ünïcode/path/" + "x" * 50 for _ in range(400)], "then": "delete"}
    text = encode(action)
    await app.blueprints.add(flow(approve(action), id="long"))
    async with Line(app) as line:
        session = await line.start("long")
        await line.turn(session)
        request = await request_on(line)
        marked = json.loads(request["rawArgs"])
        assert marked.keys() == {"$ref", "digest", "byteLen", "head"}
        assert (marked["byteLen"], text.startswith(marked["head"])) == (len(text.encode()), True)
        shown_items = [frame["params"].get("item", {}) for frame in line.pushed(session)]
        (item,) = [each for each in shown_items if "approvalId" in each]
        assert item["args"] == request["rawArgs"]
        reference = {"sessionId": session, "itemId": item["itemId"], "outputRef": marked["$ref"]}
        part = await line.call("item/readOutput", **reference)
        assert (part["content"], part["eof"], part["mediaType"]) == (text, True, "application/json")
        with pytest.raises(Refused, match="outputUnavailable"):
            await line.call("item/readOutput", **reference | {"outputRef": "0" * 64})
    record = await app.requests.get(request["approvalId"])
    assert decode(record.action_json) == action


async def test_the_question_and_its_long_action_are_one_commit(app: App, crew: Crew) -> None:
    commit, seen = app.store.commit, []

    async def watched(commits: Any) -> Any:
        done = await commit(commits)
        seen.append(await app.store.read(both))
        return done

    def both(reader: Reader) -> tuple[int, int]:
        return len(reader.find(ValueRow)), len([row for row in reader.log(1, 0) if row.type == "approval.opened"])

    app.store.commit = watched
    await waiting(app, flow(approve("x" * 9000)))
    assert seen[0] == (1, 1), "never a question whose action cannot be read"


# -- input ------------------------------------------------------------------------------------------------------------

ANSWERS = {
    "single": ({"selectedLabel": "blue"}, "blue"),
    "multiple": ({"selectedLabels": ["blue", "red"]}, ["blue", "red"]),
}


@pytest.mark.parametrize("selection", ANSWERS)
async def test_an_answer_is_what_the_step_passes(app: App, crew: Crew, selection: str) -> None:
    said, value = ANSWERS[selection]
    blueprint = asking(step("person", {"about": "paint"}), step("b", path("$.person")), selection=selection)
    run, request = await waiting(app, blueprint)
    assert (await app.runs.get(run.run_id)).waiting_on == "input"
    (question,) = decode(request.questions_json)
    assert (question["selection"], [option["label"] for option in question["options"]]) == (
        {"mode": selection},
        ["red", "blue"],
    )
    await app.requests.answer(request.request_id, [{"questionId": question["id"], **said, "note": "I think"}])
    assert result(await ended(app, run))["b"]["got"] == value
    (settled,) = await shown(app, run, "userInput/settled")
    assert (settled["outcome"], settled["answers"]) == ("answered", [{"questionId": "q1", **said, "note": "I think"}])
    await judged(app, run)


async def test_a_question_without_options_takes_a_text(app: App, crew: Crew) -> None:
    run, request = await waiting(app, asking(step("person", 1), options=()))
    with pytest.raises(InvalidRequest, match="freeText"):
        await app.requests.answer(request.request_id, [{"questionId": "q1", "selectedLabel": "red"}])
    await app.requests.answer(request.request_id, [{"questionId": "q1", "freeText": "grüße"}])
    assert result(await ended(app, run))["person"] == "grüße"


async def test_a_person_who_will_not_answer_blocks_the_step(app: App, crew: Crew) -> None:
    run, request = await waiting(app, asking(attempt(step("person", 1)), step("b", path("$.err"))))
    await app.requests.withdraw(request.request_id, "cancelled", reason="no idea")
    done = await ended(app, run)
    assert done.status == "done"
    assert "cancelled" in encode(result(done)["b"]["got"])
    assert "no idea" in encode(result(done)["b"]["got"])
    (settled,) = await shown(app, run, "userInput/settled")
    assert (settled["outcome"], settled["reason"]) == ("cancelled", "no idea")
    assert [item["status"] for item in await items(app, run)] == ["cancelled", "completed"]


QUESTION = {
    "id": "q1",
    "header": "h",
    "question": "?",
    "options": [{"label": "red"}, {"label": "blue"}],
    "selection": {"mode": "single"},
}
MANY = QUESTION | {"id": "q2", "selection": {"mode": "multiple"}}
GOOD = {"questionId": "q1", "selectedLabel": "red"}
ALSO_GOOD = {"questionId": "q2", "selectedLabels": ["red"]}


@pytest.mark.parametrize(
    "answers",
    [
        [],
        [GOOD],
        [GOOD, GOOD],
        [GOOD, ALSO_GOOD, {"questionId": "q3", "freeText": ""}],
        [GOOD, "red"],
        [GOOD, {}],
        [GOOD, ALSO_GOOD | {"questionId": {"q2": 2}}],
        [GOOD, {"questionId": "q2"}],
        [GOOD, ALSO_GOOD | {"freeText": "both forms"}],
        [GOOD, ALSO_GOOD | {"attachments": []}],
        [GOOD, ALSO_GOOD | {"note": 5}],
        [GOOD, ALSO_GOOD | {"note": "x" * 501}],
        [GOOD, {"questionId": "q2", "selectedLabel": "red"}],
        [GOOD, {"questionId": "q2", "selectedLabels": []}],
        [GOOD, {"questionId": "q2", "selectedLabels": "red"}],
        [GOOD, {"questionId": "q2", "selectedLabels": ["red", "red"]}],
        [GOOD, {"questionId": "q2", "selectedLabels": ["red", {"label": "blue"}]}],
        [{"questionId": "q1", "selectedLabel": "green"}, ALSO_GOOD],
        [{"questionId": "q1", "selectedLabels": ["red"]}, ALSO_GOOD],
        [{"questionId": "q1", "freeText": "x" * 501}, ALSO_GOOD],
        [{"questionId": "q1", "freeText": None}, ALSO_GOOD],
    ],
    ids=encode,
)
def test_an_answer_that_does_not_fit_is_refused(answers: list[Json]) -> None:
    with pytest.raises(InvalidRequest) as no:
        answered([QUESTION, MANY], answers)
    assert no.value.kind == "user_input_answer_invalid"


def test_every_question_is_answered_in_the_order_in_which_it_was_asked() -> None:
    assert answered([QUESTION, MANY], [ALSO_GOOD, GOOD]) == (["red", ["red"]], [GOOD, ALSO_GOOD])
    assert answered([QUESTION], [{"questionId": "q1", "freeText": "x" * 500}])[0] == "x" * 500


_member = st.sampled_from(["questionId", "selectedLabel", "selectedLabels", "freeText", "note", "other"])
_scalar = st.sampled_from(["q1", "q2", "red", "blue", "", 1, None, True])
_value = _scalar | st.lists(_scalar, max_size=3) | st.dictionaries(_member, _scalar, max_size=2)


@given(st.lists(st.dictionaries(_member, _value, max_size=4) | _value, max_size=3))
def test_whatever_is_answered_is_taken_or_refused_typed(answers: list[Json]) -> None:
    try:
        value, kept = answered([QUESTION, MANY], answers)
    except InvalidRequest:
        return
    assert value[0] == "red" or value[0] == "blue" or isinstance(value[0], str)
    assert [each["questionId"] for each in kept] == ["q1", "q2"]
    assert sorted(map(encode, kept)) == sorted(map(encode, answers))


# -- agents that ask first --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("members", "asks"),
    [
        ({"approval": "required"}, True),
        ({"approval": "on_write", "meta": {"writes": True}}, True),
        ({"approval": "on_write", "meta": {"writes": False}}, False),
        ({"approval": "on_write"}, False),
        ({"approval": "never", "meta": {"writes": True}}, False),
        ({}, False),
    ],
)
async def test_a_step_whose_agent_asks_first_is_not_done_before(
    app: App, crew: Crew, members: Json, asks: bool
) -> None:
    run = await launch(app, with_agent(flow(step("a", {"rm": "-rf"})), "a", **members))
    if asks:
        (request,) = await asked(app, run)
        assert crew.times("a") == 0
        assert (request.source, decode(request.action_json)) == ("policy", {"agent": "a", "directive": {"rm": "-rf"}})
        await app.requests.decide(request.request_id, decision="approved")
    done = await ended(app, run)
    assert (done.status, crew.times("a"), len(await requests(app, run))) == ("done", 1, int(asks))
    (item,) = await items(app, run)
    assert (item["status"], "approvalId" in item) == ("completed", asks), "it is one item, from the question on"


async def test_what_is_denied_is_never_done(app: App, crew: Crew) -> None:
    blueprint = with_agent(flow(attempt(step("a", 1)), step("b", path("$.err"))), "a", approval="required")
    run, request = await waiting(app, blueprint)
    await app.requests.decide(request.request_id, decision="denied")
    assert "denied" in encode(result(await ended(app, run))["b"]["got"])
    assert (crew.times("a"), crew.times("b")) == (0, 1)
    assert [item["status"] for item in await items(app, run)] == ["rejected", "completed"]


async def test_a_run_that_still_works_does_not_say_that_it_waits(app: App, crew: Crew) -> None:
    lanes = {"kind": "fanout", "items": lit([0, 1]), "bind": path("$.i"), "join": "all", "out": path("$.out")}
    body = {
        "kind": "branch",
        "cond": {"op": "eq", "lhs": path("$.i"), "rhs": lit(0)},
        "then": step("a", 1),
        "else": approve(),
    }
    crew.hold("a")
    run = await launch(app, flow(lanes | {"body": body}))
    await crew.begun("a")
    assert [each.status for each in await requests(app, run)] == [RequestStatus.OPEN]
    assert (await app.runs.get(run.run_id)).waiting_on is None
    crew.free("a")
    (request,) = await asked(app, run)
    await app.requests.decide(request.request_id, decision="approved")
    assert (await ended(app, run)).status == "done"


@pytest.mark.parametrize("join", ["any", "race"])
async def test_nobody_is_asked_any_more_for_a_lane_that_lost(app: App, crew: Crew, join: str) -> None:
    """The question ends with the decision, not with the Run: a person must not ponder over what nobody waits for."""
    body = {
        "kind": "branch",
        "cond": {"op": "eq", "lhs": path("$.i"), "rhs": lit(0)},
        "then": step("a", 1),
        "else": approve(path("$.i")),
    }
    lanes = {"kind": "fanout", "items": lit([0, 1, 2]), "bind": path("$.i"), "join": join, "out": path("$.out")}
    crew.hold("a", "b")
    run = await launch(app, flow(lanes | {"body": body}, step("b", 2)))
    await crew.begun("a")
    assert len(await requests(app, run)) == 2
    crew.free("a")
    await crew.begun("b")
    assert [(each.status, each.consumed) for each in await requests(app, run)] == [(RequestStatus.VOIDED, True)] * 2
    assert [each["decision"] for each in await shown(app, run, "approval/resolved")] == ["abort", "abort"]
    state = await judged(app, run)
    assert state.approvals == {}
    assert sorted(item["status"] for item in await items(app, run)) == [
        "cancelled",
        "cancelled",
        "completed",
        "inProgress",
    ]
    crew.free("b")
    assert (await ended(app, run)).status == "done"
    await judged(app, run)


async def test_an_answer_and_the_loss_of_its_lane_may_cross(app: App, crew: Crew) -> None:
    """The answer is durable, and on its way to the driver, when the other lane wins."""
    body = {
        "kind": "branch",
        "cond": {"op": "eq", "lhs": path("$.i"), "rhs": lit(0)},
        "then": step("a", 1),
        "else": approve(),
    }
    lanes = {"kind": "fanout", "items": lit([0, 1]), "bind": path("$.i"), "join": "race", "out": path("$.out")}
    crew.hold("a")
    run = await launch(app, flow(lanes | {"body": body}))
    await crew.begun("a")
    (request,) = await requests(app, run)
    app.requests._desk.ring = lambda request: False  # lost on its way
    await app.requests.decide(request.request_id, decision="approved")
    crew.free("a")
    assert (await ended(app, run)).status == "done"
    assert [item["status"] for item in await items(app, run)] == ["completed", "cancelled"]
    (request,) = await requests(app, run)
    assert (request.status, request.consumed) == (RequestStatus.RESOLVED, True)


async def test_an_approved_step_whose_lane_lost_in_line_for_its_slot_ends_once(house: House, crew: Crew) -> None:
    """Approved, but not begun: no attempt ends its item, so the loss of its lane must."""
    app = await house.open(max_concurrent_steps=1)
    body = {
        "kind": "branch",
        "cond": {"op": "eq", "lhs": path("$.i"), "rhs": lit(0)},
        "then": step("x", 1),
        "else": step("a", 1),
    }
    lanes = {"kind": "fanout", "items": lit([0, 1]), "bind": path("$.i"), "join": "race", "out": path("$.out")}
    crew.hold("x")
    run = await launch(app, with_agent(flow(lanes | {"body": body}), "a", approval="required"))
    await crew.begun("x")
    (request,) = await requests(app, run)
    await app.requests.decide(request.request_id, decision="approved")
    crew.free("x")
    assert (await ended(app, run)).status == "done"
    assert sorted(item["status"] for item in await items(app, run)) == ["cancelled", "completed"]
    (request,) = await requests(app, run)
    assert (request.consumed, crew.times("a")) == (True, 0)


# -- many doors -------------------------------------------------------------------------------------------------------


async def test_the_first_of_many_doors_wins_and_every_other_is_told(app: App, crew: Crew) -> None:
    await app.blueprints.add(GATE)
    async with Line(app) as one, Line(app) as other:
        session = await one.start("gate")
        await other.resume(session)
        turn = (await one.turn(session))["turnId"]
        first, second = await request_on(one), await request_on(other)
        assert first == second
        calls = [
            decide_over_msp(one, first),
            decide_over_msp(other, first, approves=False),
            app.requests.decide(first["approvalId"], choice="deny", by="ada"),
            app.requests.decide(first["approvalId"], choice="approve", by="grace"),
        ]
        answers = await asyncio.gather(*calls, return_exceptions=True)
        lost = [each for each in answers if isinstance(each, Exception)]
        assert len(lost) == 3
        record = await app.requests.get(first["approvalId"])
        decision = decode(record.resolution_json)["decision"]
        for each in lost:
            data = each.data
            kind = "approvalAlreadyResolved" if isinstance(each, Refused) else "approval_already_resolved"
            cursor = "viewCursor" if isinstance(each, Refused) else "view_cursor"
            assert each.kind == kind
            assert data["resolution"]["decision"] == decision
            (resolved,) = [frame for frame in await one.page(session) if frame["method"] == "approval/resolved"]
            assert data["resolution"][cursor] == resolved["params"]["viewCursor"]
        await one.turn_ended(turn)
        await other.turn_ended(turn)
        for line in (one, other):
            assert sum(frame.get("method") == "approval/resolved" for frame in line.frames) == 1
            assert sum(frame.get("method") == "approval/request" for frame in line.frames) == 1


async def test_no_two_connections_are_asked_under_one_id(app: App, crew: Crew) -> None:
    """An answer that came to the wrong one would otherwise settle the wrong question."""
    run = await launch(app, GATE)
    await asked(app, run)
    rpc = Rpc(app, "/home")
    async with Line(app, rpc) as one, Line(app, rpc) as two:
        ids = []
        for line in (one, two):
            await line.resume(run.session_id)
            request = await line.until(lambda frame: frame.get("method") == "approval/request" and "id" in frame)
            ids.append(request["id"])
    assert len(set(ids)) == 2


async def test_a_call_must_name_a_request_of_its_kind_and_session(app: App, crew: Crew) -> None:
    await app.blueprints.add(GATE)
    await app.blueprints.add(asking(step("person", 1)) | {"id": "ask"})
    async with Line(app) as line:
        gate, ask = await line.start("gate"), await line.start("ask")
        await line.turn(gate)
        await line.turn(ask)
        approval, question = await request_on(line), await request_on(line, "userInput/request")
        foreign = approval | {"sessionId": ask}
        of_another_kind = approval | {"approvalId": question["userInputId"], "sessionId": ask}
        for wrong in (foreign, of_another_kind, approval | {"approvalId": uuid7()}):
            wrong |= {"currentRequirementId": {"approvalId": wrong["approvalId"], "sourceIndex": 0}}
            with pytest.raises(Refused, match="approvalNotFound"):
                await decide_over_msp(line, wrong)
        answer = {"answers": [{"questionId": "q1", "selectedLabel": "red"}]}
        for session, named in ((gate, question["userInputId"]), (gate, approval["approvalId"]), (ask, uuid7())):
            with pytest.raises(Refused, match="userInputNotFound"):
                await line.command("userInput/answer", sessionId=session, userInputId=named, **answer)
            with pytest.raises(Refused, match="userInputNotFound"):
                await line.command("userInput/cancel", sessionId=session, userInputId=named)
        stale = approval | {"currentRequirementId": {"approvalId": approval["approvalId"], "sourceIndex": 1}}
        with pytest.raises(Refused, match="approvalRequirementStale"):
            await decide_over_msp(line, stale)
        await line.command("userInput/answer", sessionId=ask, userInputId=question["userInputId"], **answer)
        with pytest.raises(Refused) as late:
            await line.command("userInput/cancel", sessionId=ask, userInputId=question["userInputId"])
        assert (late.value.kind, late.value.data["settlement"]["outcome"]) == ("userInputAlreadySettled", "answered")


async def test_a_decision_that_is_sent_again_is_the_same_decision(house: House, app: App, crew: Crew) -> None:
    run, request = await waiting(app)
    command, named = uuid7(), request.request_id
    first = await app.requests.decide(named, choice="approve", command_id=command)
    await ended(app, run)
    assert (await app.requests.decide(named, choice="approve", command_id=command)).resumed
    with pytest.raises(CommandConflict):
        await app.requests.decide(named, choice="deny", command_id=command)
    app = await house.reboot(app)
    again = await app.requests.decide(named, choice="approve", command_id=command)
    assert (again.resumed, again.request.status) == (first.resumed, first.request.status)
    (resolved,) = await shown(app, run, "approval/resolved")
    assert resolved["decidedByCommandId"] == command


# -- whatever happens meanwhile ---------------------------------------------------------------------------------------


async def test_a_fault_of_the_store_at_an_expiry_leaves_no_run_that_waits_for_ever(app: App, crew: Crew) -> None:
    write, full = app.store.write, iter([True])

    async def failing(fn: Any) -> Any:
        if getattr(getattr(fn, "func", None), "__name__", "") == "expire" and next(full, False):
            raise CommitFailed("the disk is full")
        return await write(fn)

    app.store.write = failing
    run = await launch(app, flow(approve(expires_secs=0.001, on_deny="continue")))
    stopped = await ended(app, run)
    assert (stopped.status, "disk is full" in stopped.result_json) == ("interrupted", True)
    await app.runs.resume(run.run_id)
    assert result(await ended(app, run))["ok"]["decision"] == "expired"
    assert len(await requests(app, run)) == 1


async def test_a_question_cannot_expire_before_it_is_on_record(app: App, crew: Crew) -> None:
    """Its time is over while its commit is under way: there is nothing yet that could be settled."""
    commit = app.store.commit

    async def slow(step: Any, also: Any = None) -> Any:
        until = time.monotonic() + 0.02
        while time.monotonic() < until:
            await asyncio.sleep(0)
        return await commit(step, also)

    app.store.commit = slow
    run = await launch(app, flow(approve(expires_secs=0.001, on_deny="continue")))
    assert result(await ended(app, run))["ok"]["decision"] == "expired"
    await judged(app, run)


async def test_an_answer_that_comes_while_the_driver_is_made_is_heard(
    house: House, app: App, crew: Crew, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It rings before anybody listens: after the driver has read that the request is open."""
    run, request = await waiting(app)
    app = await house.reboot(app)
    wait, decided = Questions.wait, asyncio.Event()

    def late(self: Questions, ticket: int, waited: Any, *, is_new: bool) -> None:
        assert waited.status == RequestStatus.OPEN
        task = asyncio.create_task(app.requests.decide(request.request_id, decision="approved"))
        task.add_done_callback(lambda _: (wait(self, ticket, waited, is_new=is_new), self.arm(), decided.set()))

    monkeypatch.setattr(Questions, "wait", late)
    await app.runs.resume(run.run_id)
    await asyncio.wait_for(decided.wait(), 20)
    assert (await ended(app, run)).status == "done"


async def test_a_view_that_was_cut_off_while_it_waits_shows_the_question_again(
    house: House, app: App, crew: Crew
) -> None:
    await app.blueprints.add(GATE)
    async with Line(app) as line:
        session = await line.start("gate")
        await line.turn(session)
        first = await request_on(line)
    for _ in range(2):
        app = await house.reboot(app)
        async with Line(app) as line:
            answer = await line.resume(session)
            assert await request_on(line) == first
            (pointer,) = answer["pendingRequests"]
            assert (pointer["approvalId"], pointer["viewCursor"]) == (first["approvalId"], first["viewCursor"])
            asks = [at for at, frame in enumerate(line.frames) if frame.get("method") == "approval/request"]
            assert len(asks) == 1 and asks[0] > line.answered
            await line.resume(session)
            asks = [at for at, frame in enumerate(line.frames) if frame.get("method") == "approval/request"]
            assert len(asks) == 1, "once per connection"


async def test_a_list_is_read_a_page_at_a_time(app: App, crew: Crew) -> None:
    runs = [await launch(app, GATE) for _ in range(5)]
    for run in runs:
        await asked(app, run)
    page = await app.requests.page(2, status=RequestStatus.OPEN)
    rest = await app.requests.page(10, page[-1].n, status=RequestStatus.OPEN)
    assert [each.run_id for each in [*page, *rest]] == [run.run_id for run in reversed(runs)]
    await app.requests.decide(page[0].request_id, decision="approved")
    assert [each.run_id for each in await app.requests.page(10, status=RequestStatus.RESOLVED)] == [runs[-1].run_id]
    assert len(await frames(app, runs[0])) > 0
