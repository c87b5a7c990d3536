"""What must be asked before a dispatch goes on, and by what a question is found again."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from refold.canonical import Json, decode, digest, encode
from refold.engine.asking import Asked, Query, item_status, new_request, query_of
from refold.engine.clock import Clock
from refold.flowir import AgentDef, Approve, Blocked, Choice, Dispatch, Lit, Pass, Path, ReplayKey
from refold.records import AttemptRow, RequestRow, RequestStatus, RunRecord
from refold.testing.history import sample

KEY = ReplayKey("a", "0a" * 32, 0)
CUT_OFF = sample(AttemptRow, attempt=3)
AGAIN = ["again", "fail"]


def dispatch(directive: Json = 1, node: Approve | None = None, key: ReplayKey = KEY) -> Dispatch:
    return Dispatch(ticket=1, ref=key.step_ref, directive=directive, key=key, lane=((0, 1),), ctx={}, node=node)


def agent(kind: str = "python", **members: Any) -> AgentDef:
    return AgentDef(**{"name": "a", "kind": kind, "spec": {"fn": "m:f"}} | members)


def node(**members: Any) -> Approve:
    return Approve(action=Lit("x"), out=Path(("ok",)), **members)


# -- what is asked ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("cut_off", [None, CUT_OFF], ids=["new", "cut off"])
def test_most_steps_ask_nobody(cut_off: AttemptRow | None) -> None:
    for each in (
        None,
        agent(),
        agent("subprocess"),
        agent("operator"),
        agent(approval="never"),
        agent(meta={"writes": 1}),
    ):
        assert query_of(dispatch(), each, cut_off) is None


def test_a_node_asks_what_its_author_wrote() -> None:
    choices = (Choice("ship", "Ship", "approved"), Choice("hold", "Hold", "denied"))
    asks = query_of(
        dispatch({"action": {"rm": "x"}}, node(title="Ship?", choices=choices, expires_secs=2.5, on_deny="continue")),
        None,
        None,
    )
    assert asks == Query(
        kind="approval",
        source="node",
        action={"rm": "x"},
        title="Ship?",
        choices=choices,
        expires_secs=2.5,
        on_deny="continue",
    )
    assert asks.digest == digest({"rm": "x"}), "bound to what is shown, not to how it is titled"


@pytest.mark.parametrize(
    ("members", "asks"),
    [
        ({"approval": "required"}, True),
        ({"approval": "required", "meta": {"writes": False}}, True),
        ({"approval": "on_write", "meta": {"writes": True}}, True),
        ({"approval": "on_write", "meta": {"reads": True}}, False),
        ({"approval": "on_write"}, False),
        ({"approval": "never", "meta": {"writes": True}}, False),
    ],
)
def test_a_policy_decides_whether_an_agent_asks_first(members: Json, asks: bool) -> None:
    found = query_of(dispatch({"n": 1}), agent(**members), None)
    assert (found is not None) == asks
    if found is not None:
        assert (found.source, found.action) == ("policy", {"agent": "a", "directive": {"n": 1}})
        assert [choice.id for choice in found.choices] == ["approve", "deny"]


def test_an_attempt_that_was_cut_off_is_asked_about_by_its_number() -> None:
    careful = agent(on_ambiguous="ask", approval="required")
    asks = query_of(dispatch({"n": 1}), careful, CUT_OFF)
    assert asks is not None
    assert (asks.source, asks.action) == ("ambiguous", {"agent": "a", "directive": {"n": 1}, "attempt": 3})
    assert ("Attempt 3" in asks.title, [choice.id for choice in asks.choices]) == (True, AGAIN)
    assert query_of(dispatch(), careful, None).source == "policy"
    assert query_of(dispatch(), agent(on_ambiguous="retry"), CUT_OFF) is None
    other = query_of(dispatch({"n": 1}), careful, sample(AttemptRow, attempt=4))
    assert other.digest != asks.digest


@pytest.mark.parametrize(
    ("spec", "shown"),
    [
        ({}, {"header": "a", "options": [], "selection": {"mode": "single"}}),
        (
            {"header": "H", "options": ["red", {"label": "blue", "description": "sea"}], "selection": "multiple"},
            {
                "header": "H",
                "options": [{"label": "red"}, {"label": "blue", "description": "sea"}],
                "selection": {"mode": "multiple"},
            },
        ),
    ],
)
def test_a_human_is_asked_one_question(spec: Json, shown: Json) -> None:
    asks = query_of(dispatch({"about": 1}), agent("human", spec={"question": "Which?"} | spec), None)
    assert (asks.kind, asks.source, asks.action) == ("input", "node", {"about": 1})
    assert list(asks.questions) == [{"id": "q1", "question": "Which?"} | shown]


# -- finding it again -------------------------------------------------------------------------------------------------

queries = st.builds(
    Query,
    kind=st.just("approval"),
    source=st.sampled_from(["node", "policy", "ambiguous"]),
    action=st.sampled_from([1, 1.0, 2, "1", {"a": 1}]),
    title=st.sampled_from(["one", "two"]),
)
keys = st.builds(ReplayKey, st.sampled_from(["a", "b"]), st.just("0a" * 32), st.integers(0, 1))
asks = st.tuples(keys, queries, st.sampled_from([RequestStatus.OPEN, RequestStatus.VOIDED]), st.integers(1, 2))


def recorded(key: ReplayKey, query: Query, nth: int = 0, **members: Any) -> RequestRow:
    run = sample(RunRecord, run_id="R-1", turn_id="turn", generation=members.pop("generation", 1))
    row = new_request(query, dispatch(key=key), run, Clock(), nth)
    return msgspec.structs.replace(row, **members)


def identity(key: ReplayKey, query: Query) -> Json:
    return (*key, query.source, encode(1 if query.action == 1 else query.action))


@given(st.lists(asks, max_size=8), keys, queries)
def test_a_question_finds_its_own_record_and_no_other(before: list[Any], key: ReplayKey, query: Query) -> None:
    """By run, generation, step, input, occurrence, source and action; the newest of equal ones, unless it is void."""
    rows, expected = [], []
    for asked_key, asked_query, status, generation in before:
        equal = generation == 2 and identity(asked_key, asked_query) == identity(key, query)
        row = recorded(asked_key, asked_query, len(expected) if equal else 0, status=status, generation=generation)
        rows.append(row)
        expected += [row] if equal else []
    asked = Asked(rows, generation=2)
    assert asked.times(key, query) == len(expected)
    newest = expected[-1] if expected else None
    assert asked.standing(key, query) == (None if newest is None or newest.status == RequestStatus.VOIDED else newest)


def test_a_record_holds_all_that_was_asked() -> None:
    run = sample(RunRecord, n=4, run_id="R-1", task_id="T-1", session=5, session_id="s", turn_id="turn", generation=2)
    choice = Choice("ship", "Ship", "approved")
    query = Query(kind="approval", source="node", action={"z": 1, "a": 2}, choices=(choice,), expires_secs=1.5)
    clock = Clock()
    clock.now_ms = lambda: 1_000  # type: ignore[method-assign]
    row = new_request(query, dispatch(), run, clock, 7)
    assert (row.run, row.run_id, row.task_id, row.session, row.session_id) == (4, "R-1", "T-1", 5, "s")
    assert (row.generation, row.turn_id, row.step_ref, row.input_hash, row.occurrence, row.nth) == (2, "turn", *KEY, 7)
    assert (row.opened_at, row.expires_at, row.status) == (1_000, 2_500, RequestStatus.OPEN)
    assert (decode(row.action_json), row.digest) == ({"z": 1, "a": 2}, digest({"a": 2, "z": 1}))
    assert decode(row.choices_json) == [{"id": "ship", "label": "Ship", "decision": "approved"}]
    assert (row.lane_json, row.settled, row.resolution_json, row.consumed) == ("[[0,1]]", None, None, False)
    assert new_request(query, dispatch(), run, clock, 0).request_id != row.request_id


# -- how its item ends ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("decision", "status"),
    [("denied", "rejected"), ("hold on", "rejected"), ("expired", "timedOut"), ("cancelled", "cancelled")],
)
def test_only_a_denial_is_shown_as_one(decision: str, status: str) -> None:
    answer = sample(RequestRow, resolution_json=encode({"decision": decision}))
    assert item_status(answer, Blocked({})) == status
    assert item_status(answer, Pass({})) is None, "the flow goes on from it: the step was done"
