"""The records of requests as frames: a question is whole or says that it is not, and an end says who ended it."""

from __future__ import annotations

import json

import msgspec
import muse_code_msp as msp
import pytest
from hypothesis import given
from hypothesis import strategies as st
from view_schema import faults, frame_faults
from view_strategies import LONG, SHORT, Log, uuid7

from refold.canonical import decode, encode
from refold.records import FRAMES, INLINE_BYTES, AttemptStatus, RequestRow
from refold.testing.history import sample
from refold.view import Frame, Position, request_opened, request_settled, step_completed, stow

STEP = "ST-" + "1" * 32
CHOICES = [
    {"id": "ship", "label": "Ship it", "decision": "approved"},
    {"id": "hold", "label": "Hold it", "decision": "denied"},
]
QUESTIONS = [
    {
        "id": "q1",
        "header": "Colour",
        "question": "Which?",
        "options": [{"label": "red"}, {"label": "blue", "description": "like the sea"}],
        "selection": {"mode": "single"},
    }
]
KINDS = ("approval", "input")


def request(kind: str = "approval", action: object = "deploy", **members: object) -> RequestRow:
    given = {"title": "Go on?", "choices_json": encode(CHOICES), "questions_json": encode(QUESTIONS)} | members
    return sample(
        RequestRow,
        request_id=uuid7(7),
        kind=kind,
        run=1,
        step_id=STEP,
        step_ref="@approve" if kind == "approval" else "person",
        turn_id=uuid7(1),
        action_json=encode(action),
        **given,
    )


def opened(log: Log, asked: RequestRow) -> tuple[RequestRow, Frame, Frame]:
    """The request with its place, and its two frames."""
    row = log.append(request_opened(log.now, asked, stow(asked.action_json)[0]))
    item, ask = (frame for position, frame in log.placed() if position.seq == row.seq)
    return msgspec.structs.replace(asked, opened=row.seq), item, ask


def settled(log: Log, asked: RequestRow, **how: object) -> Frame:
    """The frame of a settlement."""
    row = log.append(request_settled(log.now, asked, **how))
    assert (row.frames, row.origin) == (1, asked.opened)
    return log.placed()[-1][1]


# -- asking -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_a_question_opens_the_item_of_its_step_and_asks(kind):
    log = Log()
    asked, item, ask = opened(log, request(kind))
    assert [frame_faults(item), frame_faults(ask)] == [[], []]
    assert FRAMES[log.rows[-1].type] == 2
    shown = item["params"]["item"]
    assert (item["method"], shown["itemId"], shown["status"], shown["revision"]) == (
        "item/started",
        STEP,
        "inProgress",
        1,
    )
    assert (shown["tool"], shown["args"]) == (asked.step_ref, '"deploy"')
    assert shown.get("approvalId") == (asked.request_id if kind == "approval" else None)
    name = "approvalId" if kind == "approval" else "userInputId"
    assert (ask["params"][name], ask["params"]["itemId"], ask["params"]["turnId"]) == (
        asked.request_id,
        STEP,
        asked.turn_id,
    )
    assert ask["params"]["prevCursor"] == item["params"]["viewCursor"], "so it needs nothing of what lies before it"


def test_the_event_is_what_a_client_is_asked_with():
    _, _, ask = opened(Log(), request("approval"))
    assert (ask["method"], faults(msp.ApprovalRequestParams, ask["params"])) == ("approval/requested", [])
    _, _, ask = opened(Log(), request("input"))
    assert (ask["method"], faults(msp.UserInputRequestParams, ask["params"])) == ("userInput/requested", [])
    assert ask["params"]["questions"] == QUESTIONS


def test_a_person_may_say_something_with_every_choice():
    _, _, ask = opened(Log(), request())
    assert [
        (each["choiceId"], each["decision"], each["acceptsFeedback"]) for each in ask["params"]["availableChoices"]
    ] == [
        ("ship", "approved", True),
        ("hold", "denied", True),
    ]
    assert ask["params"]["currentRequirementId"] == {"approvalId": uuid7(7), "sourceIndex": 0}


@pytest.mark.parametrize(("title", "shown"), [("Go on?", "Go on?"), ("", "@approve")])
def test_a_question_without_a_title_is_named_by_its_step(title, shown):
    _, _, ask = opened(Log(), request(title=title))
    assert ask["params"]["subject"] == {"kind": "tool", "toolName": shown}


@given(st.sampled_from([*SHORT, *LONG.values(), {"deep": [LONG["wide"]] * 3}, None, 5, {"$ref": "mine"}]))
def test_what_is_approved_is_shown_whole_or_marked(action):
    """A person who approves the head of something must know that there is more."""
    asked, item, ask = opened(Log(), request(action=action))
    raw = ask["params"]["rawArgs"]
    assert item["params"]["item"]["args"] == raw
    shown = json.loads(raw)
    data = asked.action_json.encode()
    if len(data) <= INLINE_BYTES:
        assert shown == action
        return
    _, value = stow(asked.action_json)
    assert value is not None
    assert shown.keys() == {"$ref", "digest", "byteLen", "head"}
    assert (shown["$ref"], shown["digest"]) == (value.digest, f"sha256:{value.digest}")
    assert shown["byteLen"] == len(data)
    assert shown["head"]
    assert value.body.startswith(shown["head"])
    assert decode(value.body) == action


# -- ends -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("decision", "policy"),
    [
        ("approved", "allow"),
        ("approvedForSession", "allow"),
        ("denied", "deny"),
        ("abort", "deny"),
        ("timedOut", "deny"),
        ("wait for tuesday", "deny"),
    ],
)
def test_an_approval_is_allowed_by_an_approving_decision_only(decision, policy):
    log = Log()
    asked, _, _ = opened(log, request())
    end = settled(log, asked, decision=decision, by="policy")
    assert frame_faults(end) == []
    told = end["params"]
    assert (end["method"], told["approvalId"], told["itemId"]) == ("approval/resolved", asked.request_id, STEP)
    assert (told["decision"], told["policyResult"], told["resolvedBy"]) == (decision, policy, "policy")
    assert "decidedByCommandId" not in told, "nobody's command"
    assert told["sourceRange"]["first"]["sequence"] == asked.opened


def test_a_decision_names_its_command():
    log = Log()
    asked, _, _ = opened(log, request())
    end = settled(log, asked, decision="approved", command_id=uuid7(9))["params"]
    assert (end["decidedByCommandId"], end["resolvedBy"]) == (uuid7(9), "user")
    assert end["decidedAt"].endswith("Z")


@pytest.mark.parametrize(
    ("how", "shown"),
    [
        ({"decision": "answered", "answers": [{"questionId": "q1", "selectedLabel": "red"}]}, {"outcome": "answered"}),
        ({"decision": "cancelled", "reason": "no idea", "command_id": uuid7(9)}, {"reason": "no idea"}),
        ({"decision": "aborted", "by": "policy"}, {"outcome": "aborted"}),
    ],
)
def test_user_input_is_settled_with_what_was_said(how, shown):
    log = Log()
    asked, _, _ = opened(log, request("input"))
    end = settled(log, asked, **how)
    assert (end["method"], frame_faults(end)) == ("userInput/settled", [])
    told = end["params"]
    assert shown.items() <= told.items()
    assert told["answers"] == how.get("answers", [])
    assert (told["decidedByCommandId"], told["reason"]) == (how.get("command_id"), how.get("reason"))


@pytest.mark.parametrize("kind", KINDS)
def test_the_item_of_a_question_ends_as_that_of_any_step(kind):
    log = Log()
    asked, item, _ = opened(log, request(kind, action=LONG["wide"]))
    settled(log, asked, decision="denied")
    done = step_completed(
        log.now,
        run=1,
        turn_id=uuid7(1),
        step_id=STEP,
        origin=asked.opened,
        outcome=AttemptStatus.BLOCKED,
        ms=5,
        status="rejected",
    )
    log.append(done)
    position, end = log.placed()[-1]
    assert (position, end["method"], frame_faults(end)) == (Position(3, 0), "item/completed", [])
    first, last = item["params"]["item"], end["params"]["item"]
    assert (last["status"], last["revision"]) == ("rejected", 2)
    same = ("itemId", "args", "tool", "turnId", "recordedAt", "approvalId")
    assert {name: last.get(name) for name in same} == {name: first.get(name) for name in same}
