"""What an answer means to the step that asked: by kind of request, by who asked, and by what the node does on a no."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from refold.canonical import Json, encode
from refold.flowir import Blocked, Pass
from refold.flowir.answers import outcome_of, plain
from refold.records import RequestRow
from refold.testing.history import sample

NO = ("denied", "denied_by_author", "expired", "void", "abort")


def settled(kind: str, source: str, **said: Json) -> RequestRow:
    return sample(RequestRow, kind=kind, source=source, resolution_json=encode(said))


@pytest.mark.parametrize(
    ("decision", "read"),
    [
        ("approved", "approved"),
        ("approved_for_session", "approved"),
        ("denied", "denied"),
        ("abort", "denied"),
        ("expired", "expired"),
    ],
)
def test_a_flow_reads_one_of_three_words(decision, read):
    assert plain(decision) == read
    answer = outcome_of(settled("approval", "node", decision=decision, choice="c", by="user"), "continue")
    assert answer == Pass({"decision": read, "choice": "c", "by": "user"})


def test_an_approved_node_passes_what_the_person_said():
    said = {"decision": "approved", "choice": "yes", "by": "user", "feedback": "go on"}
    assert outcome_of(settled("approval", "node", **said, command_id="x")) == Pass(said)


@pytest.mark.parametrize("decision", NO)
def test_a_no_blocks_the_step_unless_the_node_lets_the_flow_read_it(decision):
    request = settled("approval", "node", decision=decision, by="user", feedback="not now")
    answer = {"decision": plain(decision), "by": "user", "feedback": "not now"}
    assert outcome_of(request) == outcome_of(request, "fail") == Blocked(answer)
    assert outcome_of(request, "continue") == Pass(answer)


@pytest.mark.parametrize("source", ["policy", "ambiguous"])
@given(decision=st.sampled_from(["approved", *NO]), on_deny=st.sampled_from(["fail", "continue"]))
def test_leave_to_do_a_step_is_no_answer_of_it(source, decision, on_deny):
    """A policy's `continue` would hand the flow a decision in the place of the step's output."""
    outcome = outcome_of(settled("approval", source, decision=decision, by="user"), on_deny)
    assert outcome == (None if decision == "approved" else Blocked({"decision": plain(decision), "by": "user"}))


def test_what_a_person_typed_is_the_output_of_the_step():
    said = {"decision": "answered", "by": "user", "answers": [{"questionId": "q1"}]}
    assert outcome_of(settled("input", "node", **said, value={"label": "dry"})) == Pass({"label": "dry"})
    assert outcome_of(settled("input", "node", **said, value=None)) == Pass(None)


@pytest.mark.parametrize("decision", ["cancelled", "expired", "void"])
def test_a_question_that_was_not_answered_blocks_its_step(decision):
    request = settled("input", "node", decision=decision, by="user", reason="ask Ann", command_id="x")
    assert outcome_of(request) == Blocked({"decision": decision, "by": "user", "reason": "ask Ann"})
    assert outcome_of(settled("input", "node", decision=decision)) == Blocked({"decision": decision})
