"""What may become of a Run: the table is total, closed, and the only way."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from refold.errors import Conflict, NotInterrupted, Unprocessable
from refold.flowir.lifecycle import TERMINAL, TRANSITIONS, Verb, next_status, plan_resume
from refold.records import RunRecord, RunStatus, genesis

ALLOWED = """
pending launch running · pending cancel cancelled · pending fail failed
running finish done · running fail failed · running cancel cancelled · running interrupt interrupted
interrupted resume running · interrupted cancel cancelled · interrupted rerun running
done rerun running · failed rerun running · cancelled rerun running
"""
"""The published table, in words."""


def run(status: str, input_json: str | None = "{}") -> RunRecord:
    """A Run that stands so."""
    numbers = dict.fromkeys(("task", "session", "epoch", "generation", "activation", "opened", "rows"), 1)
    times = dict.fromkeys(("created_at", "updated_at", "activated_at"), 1)
    return RunRecord(
        run_id="R-1",
        task_id="T-1",
        session_id="S-1",
        status=status,
        waiting_on=None,
        turn_id=None,
        input_json=input_json,
        result_json=None,
        chain=genesis("R-1"),
        labels_json="{}",
        started_at=None,
        ended_at=None,
        **numbers,
        **times,
    )


def test_the_table_is_the_published_one() -> None:
    published = {tuple(step.split()) for line in ALLOWED.strip().splitlines() for step in line.split(" · ")}
    assert {(str(before), str(verb), str(after)) for (before, verb), after in TRANSITIONS.items()} == published


@pytest.mark.parametrize("verb", Verb)
@pytest.mark.parametrize("status", RunStatus)
def test_every_verb_has_an_answer_for_every_status(status: RunStatus, verb: Verb) -> None:
    if (status, verb) in TRANSITIONS:
        assert next_status(status, verb) == next_status(str(status), verb) == TRANSITIONS[status, verb]
        return
    with pytest.raises(Conflict) as refused:
        next_status(status, verb)
    assert refused.value.kind == f"run_{status}"
    assert refused.value.data == {"status": status}
    sources = [str(before) for before, each in TRANSITIONS if each == verb]
    assert all(source in refused.value.message for source in sources)


def test_a_status_that_nobody_knows_is_a_bug_and_not_a_conflict() -> None:
    with pytest.raises(ValueError, match="paused"):
        next_status("paused", Verb.CANCEL)


def test_only_a_rerun_leaves_a_terminal_status() -> None:
    for status in TERMINAL:
        assert [verb for before, verb in TRANSITIONS if before == status] == [Verb.RERUN]
    assert {after for (_, verb), after in TRANSITIONS.items() if verb in (Verb.FINISH, Verb.FAIL)} < TERMINAL


@given(st.lists(st.sampled_from(Verb), max_size=30))
def test_whatever_is_tried_a_run_is_somewhere_in_the_table(verbs: list[Verb]) -> None:
    status = RunStatus.PENDING
    for verb in verbs:
        before = status
        try:
            status = next_status(status, verb)
        except Conflict:
            continue
        assert (before, verb) in TRANSITIONS
        assert status is not RunStatus.PENDING  # nobody returns to the queue
    assert {status} <= set(RunStatus)


def test_every_status_can_be_come_to() -> None:
    found = {RunStatus.PENDING}
    for _ in RunStatus:
        found |= {after for (before, _), after in TRANSITIONS.items() if before in found}
    assert found == set(RunStatus)


# -- resume -----------------------------------------------------------------------------------------------------------


def test_an_interrupted_run_with_an_input_resumes() -> None:
    assert plan_resume(run("interrupted")) == RunStatus.RUNNING


@pytest.mark.parametrize("status", sorted(set(RunStatus) - {RunStatus.INTERRUPTED}))
@pytest.mark.parametrize("input_json", ["{}", None])
def test_the_status_is_looked_at_before_the_input(status: RunStatus, input_json: str | None) -> None:
    with pytest.raises(NotInterrupted) as refused:
        plan_resume(run(status, input_json))
    assert refused.value.data == {"run_id": "R-1", "status": status}


def test_a_run_without_a_launch_input_cannot_be_resumed() -> None:
    with pytest.raises(Unprocessable) as refused:
        plan_resume(run("interrupted", None))
    assert refused.value.kind == "no_launch_input"
    assert refused.value.data == {"run_id": "R-1", "status": "interrupted"}
