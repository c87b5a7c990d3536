"""What a person answered, in a dry replay: it stands within its generation, and a rerun-from asks anew."""

from __future__ import annotations

from typing import Any

import pytest
from strategies import CTX, guard, lit, path, seq, step

from refold.canonical import encode
from refold.flowir import Blueprint, FlowMachine, ReplayKey, Target, dry_replay, parse_flow, refusals
from refold.records import AttemptRow, AttemptStatus, RequestRow, RequestStatus
from refold.testing.history import sample

ASK = {"kind": "approve", "action": lit("deploy"), "out": path("$.said")}
READS = ASK | {"on_deny": "continue"}
AGAIN = "@approve: runs, refused before, and is asked again"
STANDS = "@approve: replayed, a person has answered, or did not in time, and is not asked again"


def key_of(flow: dict[str, Any]) -> ReplayKey:
    """The question that a flow begins with."""
    (asked,) = FlowMachine(parse_flow(flow), CTX).start()
    return asked.key


def request(key: ReplayKey, decision: str, *, source: str = "node", generation: int = 0, **more: Any) -> RequestRow:
    said = {"status": RequestStatus.RESOLVED, "resolution_json": encode({"decision": decision, "by": "user"})} | more
    return sample(RequestRow, kind="approval", source=source, generation=generation, **key._asdict(), **said)


def shown(flow: dict[str, Any], *requests: RequestRow, target: Target | None = None, attempts: Any = ()) -> list[str]:
    """`ref: plan, why` of what generation 0 of a Run would do."""
    refused = refusals(attempts, (), 0, requests)
    plan = dry_replay(Blueprint(id="b", flow=parse_flow(flow)), CTX, [], [], refused, target)
    return [f"{each.step_ref}: {each.plan}, {each.why}" for each in plan.steps]


FLOW = seq(guard(ASK, step("undo", 1, "$.undone")), step("next", 1, "$.next"))
UNDOES, GOES_ON = "undo: runs, never finished", "next: runs, never finished"


@pytest.mark.parametrize(
    ("decision", "then"), [("denied", UNDOES), ("expired", UNDOES), ("approved", GOES_ON), ("approved_once", GOES_ON)]
)
def test_a_resume_goes_on_from_an_answer(decision, then):
    assert shown(FLOW, request(key_of(ASK), decision)) == [STANDS, then]


@pytest.mark.parametrize(("node", "then"), [(ASK, UNDOES), (READS, GOES_ON)])
def test_a_denial_is_what_the_node_makes_of_it(node, then):
    flow = seq(guard(node, step("undo", 1, "$.undone")), step("next", 1, "$.next"))
    assert shown(flow, request(key_of(node), "denied")) == [STANDS, then]


@pytest.mark.parametrize("status", [RequestStatus.OPEN, RequestStatus.VOIDED])
def test_what_nobody_answered_is_not_answered(status):
    open_ = request(key_of(ASK), "approved", status=status)
    assert refusals((), (), 0, [open_]) == {}
    assert shown(FLOW, open_) == ["@approve: runs, never finished"]


def test_a_rerun_asks_a_person_who_said_no_again_and_keeps_what_followed_the_no():
    denied = request(key_of(ASK), "denied")
    assert shown(FLOW, denied, target=Target(step_ref="undo")) == [AGAIN, "undo: runs, the target"]
    assert shown(FLOW, request(key_of(ASK), "denied", generation=1)) == [AGAIN, UNDOES]


@pytest.mark.parametrize(("node", "decision"), [(ASK, "approved"), (READS, "denied"), (READS, "expired")])
def test_nobody_knows_what_a_person_who_let_the_flow_go_on_says_next_time(node, decision):
    flow, asked = seq(node, step("next", 1, "$.next")), "@approve: runs, asked again"
    assert shown(flow, request(key_of(node), decision), target=Target(step_ref="next")) == [asked]
    assert shown(flow, request(key_of(node), decision, generation=1)) == [asked]


WORK = step("work", 1, "$.done")


@pytest.mark.parametrize("source", ["policy", "ambiguous"])
def test_leave_to_do_a_step_is_no_refusal_of_it(source):
    assert shown(WORK, request(key_of(WORK), "approved", source=source)) == ["work: runs, never finished"]
    (refusal,) = refusals((), (), 0, [request(key_of(WORK), "denied", source=source)]).values()
    assert not refusal.asked_again


def test_an_answer_of_an_earlier_generation_is_forgotten_once_the_step_was_tried_in_a_later_one():
    key = key_of(WORK)
    tried = sample(
        AttemptRow, **key._asdict(), generation=2, attempt=1, status=AttemptStatus.BLOCKED, outcome_json='"no"'
    )
    (earlier,) = refusals([tried], (), 2, [request(key, "denied", source="policy", generation=1)]).values()
    assert (earlier.outcome.value, earlier.asked_again) == ("no", True)
    (later,) = refusals([tried], (), 2, [request(key, "denied", source="policy", generation=2)]).values()
    assert (later.outcome.value, later.asked_again) == ({"decision": "denied", "by": "user"}, False)
