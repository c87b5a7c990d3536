"""Operators: taking offers, holding them, submitting, and what a submission is told that comes too late."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from service_kit import (
    PATIENCE_SECS,
    Crew,
    House,
    ended,
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

from refold.engine.agents.operator import Offer
from refold.errors import CommitFailed, Conflict, InvalidId, InvalidRequest, NotFound, RefoldError, Unprocessable
from refold.records import INLINE_BYTES, AttemptRow, Json, ReplayRow, RunRecord
from refold.service.app import App
from refold.service.submissions import Submission

pytestmark = pytest.mark.anyio

UNKNOWN = "ST-00000000000000ff"


@pytest.fixture
async def app(house: House, crew: Crew) -> AsyncIterator[App]:
    app = await house.open()
    yield app
    if not app.closed:
        assert await faults(app) == []


def with_operator(*nodes: Json, **members: Json) -> Json:
    """A Blueprint of the nodes in which the agent `op` is an operator's; everybody else is one of the crew."""
    blueprint = flow(*nodes)
    crew = [agent for agent in blueprint["agents"] if agent["name"] != "op"]
    return blueprint | {"agents": [*crew, {"name": "op", "kind": "operator", "spec": {}, **members}]}


ONE = with_operator(step("op", "do it"))


async def attach(app: App, **members: Any) -> str:
    return (await app.operators.attach(**members))[0].sid


async def offered(app: App, sid: str, **members: Any) -> Offer:
    """The next offer, which must come."""
    offer = await app.operators.next(sid, PATIENCE_SECS, **members)
    assert offer is not None
    return offer


async def submit(app: App, offer: Offer, outcome: Any = "pass", value: Json = "done", **members: Any) -> Any:
    return await app.submissions.submit(said(offer, outcome, value, **members))


def said(offer: Offer, outcome: Any = "pass", value: Json = "done", **members: Any) -> Submission:
    work = offer.work
    return Submission(step_id=work.step_id, attempt=work.attempt, outcome=outcome, value=value, **members)


async def refused(submission: Any) -> RefoldError:
    """The error that a submission is answered with."""
    with pytest.raises(RefoldError) as caught:
        await submission
    return caught.value


async def attempts(app: App, run: RunRecord) -> list[AttemptRow]:
    return await app.runs.steps(run.run_id)


# -- from the offer to the answer -------------------------------------------------------------------------------------


async def test_a_step_is_on_record_before_it_is_offered_and_its_run_says_what_it_waits_for(app: App) -> None:
    run = await launch(app, with_operator(step("op", path("$.job")), spec={"instructions": "carefully"}), job={"n": 1})
    offer = await offered(app, await attach(app))
    (attempt,) = await attempts(app, run)
    work = offer.work
    assert (attempt.step_id, attempt.attempt, attempt.status) == (work.step_id, work.attempt, None)
    assert (work.run_id, work.step_ref, work.directive, work.ctx["ctx"]) == (
        run.run_id,
        "op",
        {"n": 1},
        {"job": {"n": 1}},
    )
    now = await app.runs.get(run.run_id)
    assert (now.status, now.waiting_on) == ("running", "operator")
    assert not [stale.run_id for stale in await app.sweep.sweep()]


async def test_a_submission_is_on_record_when_it_is_acknowledged(app: App) -> None:
    run = await launch(app, with_operator(step("op"), step("op", path("$.op"))))
    sid = await attach(app)
    accepted = await submit(app, await offered(app, sid), value='{"a": 1}')
    assert (accepted.run_id, accepted.status) == (run.run_id, "passed")
    (row,) = await app.store.read(lambda reader: reader.find(ReplayRow, run=run.n))
    assert row.step_output_json == '{"a":1}', "a text that holds an object is one to the flow"
    again = await offered(app, sid)
    assert again.work.directive == {"a": 1}
    await submit(app, again)
    done = await ended(app, run)
    assert (done.status, done.waiting_on, result(done)) == ("done", None, {"op": "done"})


@pytest.mark.parametrize(
    ("outcome", "value", "status", "final"),
    [
        ("pass", [1], "passed", {"op": [1]}),
        ("skip", "nothing to do", "skipped", {"op": {"__mse_skip": True, "value": "nothing to do"}}),
        ("blocked", {"why": 1}, "blocked", {"err": "dispatcher error for ref 'op': dispatcher error"}),
        ("fail", "broken", "failed", {"err": "broken"}),
    ],
)
async def test_each_outcome_reaches_the_flow(app: App, outcome: str, value: Json, status: str, final: Json) -> None:
    catch = {"kind": "try", "body": step("op"), "catch": seq(), "err_at": path("$.err")}
    run = await launch(app, with_operator(catch))
    assert (await submit(app, await offered(app, await attach(app)), outcome, value)).status == status
    came = result(await ended(app, run))
    assert came.keys() == final.keys()
    assert all(came[key] == final[key] or str(final[key]) in came[key] for key in final)


async def test_an_answer_that_cannot_be_taken_leaves_the_step_waiting(app: App) -> None:
    contract = {"channel": "body", "values": ["PASS", "BLOCKED"]}
    run = await launch(app, with_operator(step("op"), verdict=contract))
    sid = await attach(app)
    offer = await offered(app, sid)
    error = await refused(submit(app, offer, value="PAS"))
    assert isinstance(error, Unprocessable) and error.kind == "contract_violated"
    assert [offer.work.step_id for offer in app.operators.all()[0].holds] == [offer.work.step_id]
    assert (await submit(app, offer, value="PASS")).status == "passed"
    assert result(await ended(app, run)) == {"op": "PASS"}


async def test_a_failure_is_tried_again_as_the_next_attempt_of_the_same_step(app: App) -> None:
    retry = {"max_attempts": 2, "initial_secs": 0}
    run = await launch(app, with_operator(step("op"), retry=retry))
    sid = await attach(app)
    first = await offered(app, sid)
    assert (await submit(app, first, "fail", "broken")).status == "failed"
    second = await offered(app, sid)
    assert (second.work.step_id, second.work.attempt) == (first.work.step_id, 2)
    assert second.work.idempotency_key == first.work.idempotency_key
    error = await refused(submit(app, first))
    assert (error.kind, error.data["accepted"]) == ("already_submitted", {"outcome": "fail", "value": "broken"})
    await submit(app, second)
    assert (await ended(app, run)).status == "done"


# -- who holds what ---------------------------------------------------------------------------------------------------


async def test_a_poll_waits_for_work_and_goes_home_without_it(app: App) -> None:
    sid = await attach(app)
    assert await app.operators.next(sid) is None
    assert await app.operators.next(sid, 0.01) is None
    waiting = asyncio.create_task(offered(app, sid))
    await launch(app, ONE)
    assert (await waiting).work.directive == "do it"


async def test_the_first_that_asks_gets_it_and_the_others_see_nothing(app: App) -> None:
    one, two = await attach(app), await attach(app)
    polls = [asyncio.create_task(app.operators.next(sid, PATIENCE_SECS)) for sid in (one, two)]
    run = await launch(app, ONE)
    done, waiting = await asyncio.wait(polls, return_when=asyncio.FIRST_COMPLETED)
    offer = done.pop().result()
    assert offer is not None and len(waiting) == 1
    await submit(app, offer)
    await ended(app, run)
    assert not next(iter(waiting)).done(), "the other one goes on waiting"
    for poll in waiting:
        poll.cancel()


async def test_what_an_operator_that_left_held_is_offered_again_as_the_same_attempt(app: App) -> None:
    run = await launch(app, ONE)
    gone, other = await attach(app, lease_secs=0.01), await attach(app)
    first = await offered(app, gone)
    assert await app.operators.next(other) is None
    again = await offered(app, other)
    assert again is first and again.holder == other
    assert len(await attempts(app, run)) == 1
    assert (await submit(app, first, value="late, and first")).status == "passed", "nothing that was done is lost"
    assert result(await ended(app, run)) == {"op": "late, and first"}
    error = await refused(submit(app, again, value="too late"))
    assert (error.kind, error.data["accepted"]) == ("run_over", {"outcome": "pass", "value": "late, and first"})


async def test_an_operator_that_is_present_holds_what_it_took_for_as_long_as_it_likes(app: App) -> None:
    await launch(app, ONE)
    here, other = await attach(app, lease_secs=0.05), await attach(app)
    offer = await offered(app, here)
    with app.operators.present(here, holding=(offer.work.step_id,)):
        assert await app.operators.next(other, 0.2) is None, "its lease ends when it comes back"
    assert await offered(app, other) is offer


async def test_what_got_lost_on_its_way_to_an_operator_is_offered_again_at_its_next_poll(app: App) -> None:
    await launch(
        app,
        with_operator(
            {
                "kind": "fanout",
                "items": lit([1, 2]),
                "bind": path("$.i"),
                "body": step("op"),
                "join": "all",
                "out": path("$.out"),
            }
        ),
    )
    sid = await attach(app)
    first, second = await offered(app, sid), await offered(app, sid, holding=())
    assert second is first, "the poll named nothing, so the operator never got it"
    third = await offered(app, sid, holding=(first.work.step_id,))
    assert third is not first
    assert await app.operators.next(sid, holding=(first.work.step_id, third.work.step_id)) is None


async def test_an_operator_that_is_ended_holds_nothing_and_its_polls_learn_it(app: App) -> None:
    operator, token = await app.operators.attach("somebody")
    assert app.operators.sid_of(token) == operator.sid
    other = await attach(app)
    await launch(app, ONE)
    offer = await offered(app, operator.sid)
    waiting = asyncio.create_task(offered(app, operator.sid, holding=(offer.work.step_id,)))
    while not app.operators.all()[0].present:
        await asyncio.sleep(0)
    await app.operators.detach(operator.sid)
    with pytest.raises(NotFound, match="there is no operator"):
        await waiting
    assert app.operators.sid_of(token) is None
    assert await offered(app, other) is offer
    with pytest.raises(NotFound):
        await app.operators.detach(operator.sid)


async def test_an_operator_that_is_ended_stays_so_and_so_learns_a_poll_that_holds_nothing(
    house: House, crew: Crew
) -> None:
    app = await house.open()
    operator, token = await app.operators.attach()
    waiting = asyncio.create_task(offered(app, operator.sid))
    while not app.operators.all()[0].present:
        await asyncio.sleep(0)
    await app.operators.detach(operator.sid)
    with pytest.raises(NotFound, match="there is no operator"):
        await waiting
    app = await house.reboot(app)
    assert app.operators.all() == [] and app.operators.sid_of(token) is None


async def test_a_step_of_an_operator_takes_no_slot_and_waits_for_none(house: House, crew: Crew) -> None:
    app = await house.open(max_concurrent_steps=1)
    crew.hold("busy")
    await launch(app, flow(step("busy")))
    await crew.begun("busy")
    both = {
        "kind": "fanout",
        "items": lit([0, 1]),
        "bind": path("$.i"),
        "join": "all",
        "out": path("$.out"),
        "body": {
            "kind": "branch",
            "cond": {"op": "eq", "lhs": path("$.i"), "rhs": lit(0)},
            "then": step("slow"),
            "else": step("op"),
        },
    }
    run = await launch(app, with_operator(both))
    offer = await offered(app, await attach(app))
    assert (await app.runs.get(run.run_id)).waiting_on == "capacity", "that is what its other lane waits for"
    await submit(app, offer)
    crew.free("busy")
    assert (await ended(app, run)).status == "done"
    assert await faults(app) == []


async def test_a_lane_that_loses_takes_its_offer_away(app: App, crew: Crew) -> None:
    crew.hold("fast")
    race = {
        "kind": "fanout",
        "items": lit([0, 1]),
        "bind": path("$.i"),
        "join": "any",
        "out": path("$.out"),
        "body": {
            "kind": "branch",
            "cond": {"op": "eq", "lhs": path("$.i"), "rhs": lit(0)},
            "then": step("fast"),
            "else": step("op"),
        },
    }
    crew.hold("last")
    run = await launch(app, with_operator(race, step("last")))
    sid = await attach(app)
    offer = await offered(app, sid)
    assert (await app.runs.get(run.run_id)).waiting_on is None, "its other lane works"
    crew.free("fast")
    async with asyncio.timeout(PATIENCE_SECS):
        await offer.ended.wait()
    await crew.begun("last")
    error = await refused(submit(app, offer))
    assert (error.kind, error.data["status"], error.data["current"]) == ("attempt_stale", "running", None)
    assert app.operators.all()[0].holds == []
    crew.free("last")
    assert (await ended(app, run)).status == "done"


# -- too late, and elsewhere ------------------------------------------------------------------------------------------


async def test_of_submissions_at_the_same_time_one_counts_and_the_others_are_told_which(app: App) -> None:
    run = await launch(app, with_operator(step("op"), step("op", 2, "$.two")))
    offer = await offered(app, await attach(app))
    answers = await asyncio.gather(*(submit(app, offer, value=n) for n in range(5)), return_exceptions=True)
    (won,) = [n for n, answer in enumerate(answers) if not isinstance(answer, Exception)]
    for answer in answers[:won] + answers[won + 1 :]:
        assert isinstance(answer, Conflict) and answer.kind == "already_submitted"
        assert answer.data["accepted"] == {"outcome": "pass", "value": won}
    (row,) = await app.store.read(lambda reader: reader.find(ReplayRow, run=run.n))
    assert row.step_output_json == str(won)


@pytest.mark.parametrize("outcome", ["pass", "skip", "blocked", "fail"])
async def test_the_second_submission_is_told_what_was_accepted(app: App, outcome: str) -> None:
    catch = {"kind": "try", "body": step("op"), "catch": seq()}
    run = await launch(app, with_operator(catch, step("op", 2, "$.two")))
    sid = await attach(app)
    offer = await offered(app, sid)
    await submit(app, offer, outcome, "first")
    error = await refused(submit(app, offer, "pass", "second"))
    assert error.kind == "already_submitted"
    assert error.data == {
        "run_id": run.run_id,
        "step_id": offer.work.step_id,
        "attempt": 1,
        "status": "running",
        "accepted": {"outcome": outcome, "value": "first"},
    }


async def test_without_a_replay_log_it_is_told_the_word(house: House, crew: Crew) -> None:
    app = await house.open(replay=False)
    await launch(app, with_operator(step("op"), step("op", 2, "$.two")))
    offer = await offered(app, await attach(app))
    await submit(app, offer)
    assert (await refused(submit(app, offer))).data["accepted"] == {"outcome": "pass"}


async def test_nothing_is_added_to_a_run_that_is_over(app: App) -> None:
    run = await launch(app, ONE)
    offer = await offered(app, await attach(app))
    await app.runs.cancel(run.run_id)
    error = await refused(submit(app, offer))
    assert (error.kind, error.data["status"], error.data["accepted"]) == ("run_over", "cancelled", None)


async def test_a_step_or_attempt_that_is_not_there_is_not_found(app: App, crew: Crew) -> None:
    await launch(app, ONE)
    offer = await offered(app, await attach(app))
    for step_id, attempt in ((UNKNOWN, 1), (offer.work.step_id, 2), (offer.work.step_id, 0)):
        error = await refused(app.submissions.submit(Submission(step_id=step_id, attempt=attempt, outcome="pass")))
        assert isinstance(error, NotFound) and error.kind == "step_not_found"
    assert isinstance(
        await refused(app.submissions.submit(Submission(step_id="op", attempt=1, outcome="pass"))), InvalidId
    )


async def test_a_step_of_another_agent_is_not_an_operators_to_end(app: App, crew: Crew) -> None:
    crew.hold("own")
    run = await launch(app, flow(step("own")))
    await crew.begun("own")
    (attempt,) = await attempts(app, run)
    error = await refused(
        app.submissions.submit(Submission(step_id=attempt.step_id, attempt=1, outcome="pass", value="mine"))
    )
    assert error.kind == "not_offered"
    crew.free("own")
    assert result(await ended(app, run)) == {"own": {"by": "own", "got": None}}


async def test_an_attempt_that_took_too_long_is_stale_and_names_the_one_in_its_place(app: App) -> None:
    retry = {"max_attempts": 1000, "initial_secs": 0, "retry_on": ["timeout"]}
    run = await launch(app, with_operator(step("op"), timeout_secs=0.02, retry=retry))
    sid = await attach(app)
    first = await offered(app, sid)
    second = await offered(app, sid, holding=(first.work.step_id,))
    assert second.work.step_id == first.work.step_id and second.work.attempt > first.work.attempt
    error = await refused(submit(app, first))
    assert error.kind == "attempt_stale" and "timeout" in error.message
    assert error.data["current"] is None or error.data["current"]["step_id"] == first.work.step_id
    await app.runs.cancel(run.run_id)


async def test_a_crash_and_a_resume_make_the_attempt_stale_and_offer_the_step_again(house: House, crew: Crew) -> None:
    app = await house.open()
    operator, token = await app.operators.attach("somebody", 60)
    run = await launch(app, with_operator(step("before"), step("op")))
    first = await offered(app, operator.sid)
    app = await house.reboot(app)
    assert app.operators.get(operator.sid) == operator and app.operators.sid_of(token) == operator.sid
    assert await app.operators.next(operator.sid) is None, "nothing dispatches an interrupted Run"
    error = await refused(submit(app, first))
    assert (error.kind, error.data["status"], error.data["current"]) == ("attempt_stale", "interrupted", None)
    await app.runs.resume(run.run_id)
    second = await offered(app, operator.sid)
    assert (second.work.attempt, second.work.idempotency_key) == (2, first.work.idempotency_key)
    error = await refused(submit(app, first))
    assert error.data["current"] == {"step_id": second.work.step_id, "attempt": 2}, "where its work can be taken"
    await submit(app, second)
    done = await ended(app, run)
    assert result(done)["op"] == "done" and crew.times("before") == 1
    assert await faults(app) == []


async def test_a_rerun_makes_the_attempt_stale(app: App) -> None:
    from refold.service.reruns import RerunFrom

    run = await launch(app, with_operator(step("op"), step("op", 2, "$.two")))
    sid = await attach(app)
    first = await offered(app, sid)
    await submit(app, first)
    second = await offered(app, sid)
    await app.runs.cancel(run.run_id)
    await app.reruns.rerun(run.run_id, RerunFrom(from_step="op"))
    third = await offered(app, sid)
    assert third.work.idempotency_key != first.work.idempotency_key
    assert (await refused(submit(app, first))).kind == "already_submitted"
    assert (await refused(submit(app, second))).kind == "attempt_stale"
    await submit(app, third, value="again")
    await submit(app, await offered(app, sid))
    assert result(await ended(app, run)) == {"op": "again", "two": "done"}


async def test_an_answer_that_cannot_be_written_is_not_acknowledged(
    house: House, crew: Crew, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = await house.open()
    run = await launch(app, ONE)
    offer = await offered(app, await attach(app))

    async def full(*_: object) -> None:
        raise CommitFailed("the disk is full")

    gone = undriven(app, run)
    with monkeypatch.context() as broken:
        broken.setattr(app.store, "commit", full)
        error = await refused(submit(app, offer))
    assert (error.kind, error.data["status"]) == ("attempt_stale", "interrupted")
    await gone
    await app.runs.resume(run.run_id)
    offer = await offered(app, await attach(app))
    with monkeypatch.context() as broken:
        broken.setattr(app.store, "commit", full)
        broken.setattr(app.store, "write", full)
        assert isinstance(await refused(submit(app, offer)), CommitFailed), "nobody is left who could write it"
    app = await house.reboot(app)
    assert (await app.runs.get(run.run_id)).status == "interrupted"
    assert not await app.store.read(lambda reader: reader.find(ReplayRow, run=run.n))


# -- the server's boot and end ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("given", ["x", "x" * INLINE_BYTES], ids=["short", "long"])
async def test_auto_resume_leaves_alone_what_only_an_operator_could_do(house: House, crew: Crew, given: str) -> None:
    app = await house.open()
    crew.hold("own")
    theirs = await launch(app, with_operator(step("before"), step("op")), given=given)
    ours = await launch(app, with_operator(step("own"), step("op")), given=given)
    await offered(app, await attach(app))
    await crew.begun("own")
    app = await house.reboot(app, auto_resume=True)
    assert (await app.runs.get(theirs.run_id)).status == "interrupted"
    await crew.begun("own", 2)
    assert (await app.runs.get(ours.run_id)).status == "running"


async def test_polls_go_home_when_the_server_ends(app: App) -> None:
    sid = await attach(app)
    await launch(app, ONE)
    offer = await offered(app, sid)
    waiting = asyncio.create_task(app.operators.next(sid, PATIENCE_SECS, holding=(offer.work.step_id,)))
    await asyncio.sleep(0)
    await app.drain()
    assert await waiting is None
    error = await refused(submit(app, offer))
    assert (error.kind, error.data["status"]) == ("attempt_stale", "interrupted")


async def test_what_cannot_be_asked_for_is_refused(app: App) -> None:
    sid = await attach(app)
    for secs in (-1, 60.5, float("nan")):
        with pytest.raises(InvalidRequest):
            await app.operators.next(sid, secs)
    for secs in (0, -1, 86401, float("nan")):
        with pytest.raises(InvalidRequest):
            await attach(app, lease_secs=secs)
    with pytest.raises(InvalidId):
        await app.operators.next("somebody")
    with pytest.raises(NotFound) as unknown:
        await app.operators.next("O-00000000000000ff")
    assert unknown.value.kind == "operator_not_found"


async def test_the_store_holds_no_token(house: House, crew: Crew) -> None:
    app = await house.open()
    _, token = await app.operators.attach("somebody")
    await house.crash(app)
    assert house.path is not None
    for file in house.path.parent.iterdir():
        assert token.encode() not in file.read_bytes()
