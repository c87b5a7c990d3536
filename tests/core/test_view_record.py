"""From log records to frames: every record type, its frames, their envelope and their validity on the wire."""

from __future__ import annotations

import hashlib
from datetime import UTC, datetime

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from view_schema import faults, frame_faults
from view_strategies import EPOCH_MS, KEY, LONG, RUN_ID, SESSION, Log, example_log, logs, texts, uuid7

from refold.canonical import decode
from refold.errors import StoreDamaged
from refold.records import FRAMES, INLINE_BYTES, AttemptStatus, LogType
from refold.view import (
    ANCHOR,
    ITEM_STATUS,
    PLAIN_TEXT,
    Position,
    clip,
    mint,
    minter,
    render,
    rfc3339,
    step_completed,
    stow,
    turn_ended,
    turn_woken,
)
from refold.view.payload import HEAD_BYTES, args_text, shown
from refold.view.record import RENDERERS, delta
from refold.view.turn_log import MAX_CHILDREN

ENVELOPE = {"sessionId", "viewCursor", "prevCursor", "sourceRange"}


def own(log: Log, seq: int) -> list[tuple[str, dict]]:
    """The frames of the row at `seq` without their envelope."""
    return [
        (frame["method"], {name: value for name, value in frame["params"].items() if name not in ENVELOPE})
        for position, frame in log.placed()
        if position.seq == seq
    ]


def test_every_record_type_has_a_renderer_and_a_number_of_frames():
    assert set(RENDERERS) == set(LogType) == set(FRAMES)


def test_the_example_log_has_every_record_type():
    assert {row.type for row in example_log().rows} == set(LogType)


@pytest.mark.parametrize("frame", example_log().frames(), ids=lambda frame: frame["method"])
def test_every_frame_is_valid_on_the_wire(frame):
    assert frame_faults(frame) == []


@given(logs())
def test_frames_of_any_log_are_valid_linked_and_as_many_as_promised(log):
    placed = log.placed()
    assert [frame_faults(frame) for _, frame in placed] == [[]] * len(placed)
    assert [position for position, _ in placed] == sorted({position for position, _ in placed})
    assert len(placed) == sum(row.frames for row in log.rows)
    cursors = [frame["params"]["viewCursor"] for _, frame in placed]
    assert [frame["params"]["prevCursor"] for _, frame in placed] == [None, *cursors[:-1]]
    assert len(set(cursors)) == len(cursors)
    for _, frame in placed:
        assert frame["method"] != "item/started" or frame["params"]["item"]["revision"] == 1


@given(logs())
def test_a_frame_reports_the_records_from_its_opening_to_itself(log):
    for position, frame in log.placed():
        row = log.rows[position.seq - 1]
        first = row.origin or row.seq
        assert frame["params"]["sessionId"] == SESSION
        assert frame["params"]["sourceRange"] == {
            "stream": {"kind": "session", "id": SESSION},
            "first": {"id": f"{SESSION}:{first}", "sequence": first},
            "last": {"id": f"{SESSION}:{row.seq}", "sequence": row.seq},
        }


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        ("TurnStartedParams", {}),
        ("ItemStartedParams", {"item": {"itemId": 1}}),
        ("SourceRange", {"first": None, "last": {"id": "a", "sequence": True}, "stream": []}),
        ("SessionModelChangedParams", {"providerId": 1}),
        ("SessionApprovalModeChangedParams", {"mode": "sometimes"}),
        ("Item", {"children": [{"childId": 1}], "revision": "1"}),
    ],
)
def test_the_judge_of_frames_finds_faults(kind, value):
    import muse_code_msp as msp

    assert faults(getattr(msp, kind), value)
    assert frame_faults({"method": "no/such", "params": {}})


# -- what each type says ----------------------------------------------------------------------------------------------


def test_a_new_session_shows_its_model_and_its_approval_mode():
    approvals = {"clientName": "c", "commandId": uuid7(0), "mode": "promptUnmatched", "source": "startup"}
    assert own(example_log(), 1) == [
        ("session/modelChanged", {"modelId": "echo", "providerId": None, "source": "default"}),
        ("session/approvalModeChanged", approvals),
    ]


def test_a_cold_load_is_durable_and_shows_nothing():
    assert own(example_log(), 2) == []


def test_a_turn_opens_with_its_input_and_its_workflow():
    at, turn = rfc3339(EPOCH_MS + 3_000), uuid7(1)
    of_turn = {"turnId": turn, "revision": 1, "recordedAt": at}
    message = {"itemId": f"U-{turn}", "kind": "userMessage", "status": "completed", "text": "hi"}
    workflow = {"itemId": f"W-{turn}", "kind": "workflow", "status": "inProgress", "workflowRunId": RUN_ID}
    names = {"entryId": "nap", "scriptId": "nap", "triggerSource": "turn/start", "children": []}
    assert own(example_log(), 4) == [
        ("turn/started", {"turnId": turn, "commandId": turn, "displayText": "Hi!"}),
        ("item/completed", {"item": message | of_turn | {"commandId": turn, "displayText": "Hi!"}}),
        ("item/started", {"item": workflow | of_turn | names}),
    ]


def test_a_turn_that_nobody_asked_for_in_words_has_no_message_and_is_woken_by_itself():
    (started, workflow) = own(example_log(), 10)
    assert started == ("turn/started", {"turnId": uuid7(4), "commandId": uuid7(4)})
    assert workflow[1]["item"]["resumeFromRunId"] == workflow[1]["item"]["workflowRunId"] == RUN_ID


@pytest.mark.parametrize(("command", "woken_by"), [(None, "t"), ("c", "c")])
def test_a_turn_is_woken_by_a_command_or_by_itself(command, woken_by):
    log = Log()
    log.append(turn_woken(1, run=1, turn_id="t", command=command, run_id=RUN_ID, blueprint="b", trigger="resume"))
    assert own(log, 1)[0] == ("turn/started", {"turnId": "t", "commandId": woken_by})


def test_a_step_closes_as_the_whole_item_it_was_opened_as():
    log = example_log()
    ((_, opened),), ((method, closed),) = own(log, 6), own(log, 7)
    changed = {"revision": 2, "status": "completed", "durationMs": 5}
    assert method == "item/completed"
    assert {name: closed["item"][name] for name in opened["item"]} == opened["item"] | {
        "revision": 2,
        "status": "completed",
    }
    assert closed["item"].keys() - opened["item"].keys() == {"durationMs", "visibleOutput", "truncated", "outputRef"}
    assert changed.items() <= closed["item"].items()
    assert opened["item"]["taskId"] == opened["item"]["callId"] == opened["item"]["itemId"] == "ST-" + "1" * 31 + "2"


def test_a_long_output_shows_a_prefix_and_names_the_rest():
    ((_, closed),) = own(example_log(), 7)
    data = LONG["wide"].encode()
    digest = hashlib.sha256(data).hexdigest()
    assert LONG["wide"].startswith(closed["item"]["visibleOutput"])
    assert closed["item"]["truncated"] is True
    assert closed["item"]["outputRef"] == {
        "id": digest,
        "kind": "output",
        "uri": f"refold:value/{digest}",
        "byteLen": len(data),
        "availability": "available",
        "digest": f"sha256:{digest}",
        "mediaType": "application/json",
    }


def test_long_args_are_json_text_that_names_them():
    ((_, opened),) = own(example_log(), 6)
    digest = hashlib.sha256(LONG["wide"].encode()).hexdigest()
    args = decode(opened["item"]["args"])
    assert args.keys() == {"$ref", "digest", "byteLen", "head"}
    assert (args["$ref"], args["digest"], args["byteLen"]) == (digest, f"sha256:{digest}", len(LONG["wide"].encode()))
    assert own(example_log(), 5)[0][1]["item"]["args"] == '{"a":1}'


def test_a_refused_step_says_why():
    ((_, closed),) = own(example_log(), 8)
    expected = {"status": "rejected", "failureKind": "blocked", "failureReason": "no"}
    assert expected.items() <= closed["item"].items()
    assert "visibleOutput" not in closed["item"]


@pytest.mark.parametrize("outcome", AttemptStatus)
def test_the_status_of_an_item_follows_from_how_its_last_attempt_ended(outcome):
    record = step_completed(1, run=1, turn_id="t", step_id="ST-1", origin=1, outcome=outcome, ms=0)
    assert record.body == {"status": ITEM_STATUS[outcome], "outcome": outcome, "ms": 0}


def test_a_retry_is_announced_and_leaves_the_item_open():
    scheduled = {"attempt": 1, "maxAttempts": 3, "nextAttempt": 2, "retryDelayMs": 50, "reason": "too slow"}
    assert own(example_log(), 16) == [("turn/retryScheduled", {"turnId": uuid7(7), "errorKind": "timeout"} | scheduled)]
    assert own(example_log(), 17) == []


def test_a_turn_closes_with_its_workflow_then_its_answer_then_itself():
    workflow, answer, turn = own(example_log(), 9)
    assert (workflow[0], answer[0]) == ("item/completed", "item/completed")
    assert {"revision": 2, "status": "completed", "durationMs": 9, "workflowRunId": RUN_ID}.items() <= workflow[1][
        "item"
    ].items()
    assert answer[1]["item"] == {
        "itemId": f"A-{uuid7(1)}",
        "kind": "agentMessage",
        "turnId": uuid7(1),
        "revision": 1,
        "status": "completed",
        "recordedAt": rfc3339(EPOCH_MS + 8_000),
        "messagePhase": "finalAnswer",
        "text": "bye",
    }
    assert turn == ("turn/completed", {"turnId": uuid7(1), "terminal": "completed", "durationMs": 9})


def test_a_failed_turn_carries_an_error_and_lists_what_failed():
    workflow, turn = own(example_log(), 11)
    listed = {"attempt": 2, "status": "failed", "label": "worker", "failureKind": "failed", "failureReason": "boom"}
    assert workflow[1]["item"]["children"] == [{"childId": "ST-" + "1" * 32} | listed]
    assert {"status": "failed", "message": "boom", "revision": 2}.items() <= workflow[1]["item"].items()
    error = {"kind": "runFailed", "message": "boom", "retryable": False}
    assert turn == (
        "turn/completed",
        {"turnId": uuid7(4), "terminal": "failed", "error": error, "reason": "flow error", "durationMs": 3},
    )


def test_a_cancelled_turn_has_a_reason_and_no_error():
    log = example_log()
    close = {"run": 1, "turn_id": uuid7(4), "origin": 10, "ms": 1}
    log.append(turn_ended(log.now, terminal="cancelled", reason="server restart", **close))
    workflow, turn = own(log, len(log.rows))
    assert workflow[1]["item"]["message"] == turn[1]["reason"] == "server restart"
    assert "error" not in turn[1]


def test_a_turn_that_could_not_launch_ends_without_having_started():
    error = {"kind": "launchError", "message": "no such agent", "retryable": False}
    assert own(example_log(), 12) == [("turn/completed", {"turnId": uuid7(5), "terminal": "failed", "error": error})]
    assert own(example_log(), 13) == [("turn/unqueued", {"turnId": uuid7(6), "commandId": uuid7(6)})]


def test_a_session_is_named_by_a_person():
    assert own(example_log(), 18) == [("session/nameChanged", {"name": "a name", "nameOrigin": "custom"})]


def test_a_compaction_is_an_item_that_names_the_anchor_of_its_boundary():
    log = example_log()
    opened, closed = own(log, 19)
    assert opened[1]["item"] == {
        "itemId": "C-19",
        "kind": "compaction",
        "turnId": None,
        "revision": 1,
        "status": "inProgress",
        "recordedAt": rfc3339(EPOCH_MS + 18_000),
        "trigger": "manual",
    }
    anchor = mint(KEY, SESSION, Position(19, 1), log.rows[18].hash[:8], ANCHOR)
    done = {"revision": 2, "status": "completed", "outcome": "compacted", "strategyId": "fold"}
    counts = {"tokensBefore": 0, "tokensAfter": 0, "summarizedThrough": anchor}
    assert closed == ("item/completed", {"item": opened[1]["item"] | done | counts})


def test_a_workflow_lists_a_bounded_number_of_children():
    members = {"run": 1, "turn_id": "t", "origin": 1, "ms": 0, "children": [{}] * 1_000}
    record = turn_ended(1, terminal="failed", reason="r", **members)
    assert len(record.body["children"]) == MAX_CHILDREN


# -- damage -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seq", [7, 8, 9, 11])
@pytest.mark.parametrize("opening", [None, 0])
def test_a_closing_record_without_its_opening_is_damage(seq, opening):
    log = example_log()
    with pytest.raises(StoreDamaged) as caught:
        render(log.rows[seq - 1], opening if opening is None else log.rows[opening], SESSION, log.mint, None)
    assert caught.value.data == {"seq": seq}


def test_a_record_of_an_unknown_type_is_damage():
    log = example_log()
    with pytest.raises(StoreDamaged, match=r"unknown type 'turn\.vanished'"):
        render(msgspec.structs.replace(log.rows[1], type="turn.vanished"), None, SESSION, log.mint, None)


def test_a_renderer_that_breaks_the_promised_number_of_frames_is_a_bug(monkeypatch):
    log = example_log()
    monkeypatch.setitem(RENDERERS, LogType.SESSION_RESUMED, lambda row, body, opening: [("x", {})])
    with pytest.raises(AssertionError):
        render(log.rows[1], None, SESSION, log.mint, None)


def test_rendered_twice_a_row_has_the_same_frames():
    log = example_log()
    again = [
        frame
        for row in log.rows
        for frame in render(row, log.rows[row.origin - 1] if row.origin else None, SESSION, minter(KEY, SESSION), None)
    ]
    for one, two in zip(log.frames(), again, strict=True):
        assert one["params"] | {"prevCursor": None} == two["params"] | {"prevCursor": None}


def test_the_cursor_of_a_frame_is_the_one_that_mint_gives_its_position():
    for position, frame in example_log().placed():
        row = example_log().rows[position.seq - 1]
        assert frame["params"]["viewCursor"] == mint(KEY, SESSION, position, row.hash[:8])


def test_a_piece_of_text_is_a_notification_of_the_protocol_and_no_frame_of_the_view():
    piece = delta(SESSION, "cursor", "ST-1", "text", 7)
    assert frame_faults(piece) == []
    assert "sourceRange" not in piece["params"] and "prevCursor" not in piece["params"]


# -- texts ------------------------------------------------------------------------------------------------------------


@given(texts)
def test_a_text_stands_in_its_record_or_in_a_value_row(text):
    payload, value = stow(text, PLAIN_TEXT)
    if len(text.encode()) <= INLINE_BYTES:
        assert (payload, value) == (text, None)
        assert shown("text", payload) == {"text": text}
        assert args_text(payload) == text
    else:
        assert value.body == text and value.digest == payload["ref"] == hashlib.sha256(text.encode()).hexdigest()
        assert (payload["len"], payload["media"]) == (len(text.encode()), PLAIN_TEXT)
        assert shown("text", payload)["text"] == payload["head"] == clip(text, HEAD_BYTES)


def test_nothing_is_shown_for_no_text():
    assert shown("visibleOutput", None) == {}


@given(st.text(max_size=40), st.integers(0, 60))
def test_clip_keeps_the_longest_whole_prefix(text, limit):
    kept = clip(text, limit)
    assert text.startswith(kept) and len(kept.encode()) <= limit
    assert kept == text or len(text[: len(kept) + 1].encode()) > limit


@given(st.integers(0, 253_402_300_799_999))
def test_times_are_rfc_3339_and_lose_no_millisecond(ms):
    text = rfc3339(ms)
    assert text.endswith("Z") and len(text) == len("2026-11-30T10:00:00.000Z")
    parsed = datetime.fromisoformat(text)
    assert (parsed - datetime(1970, 1, 1, tzinfo=UTC)) // (parsed.resolution * 1000) == ms
