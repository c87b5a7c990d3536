"""The table from error kinds to MSP codes: what it may say, and that nothing falls through it."""

import typing

import msgspec
import muse_code_msp as msp
import pytest
from hypothesis import given
from hypothesis import strategies as st

from refold import errors
from refold.errors import Conflict, MissingAnchor, NotFound, RefoldError, StoreError, ViewTruncated
from refold.protocol.codes import ECHO_CHARS, ERRORS, TEXT_CHARS, camel, error_object, row_for

WIRE = {(spec["code"], kind) for spec in msp.ERRORS for kind in (spec["kind"], *spec["overrideKinds"])}
DATA_MEMBERS = set(typing.get_type_hints(msp.ErrorData))
CLASSES = [cls for cls in vars(errors).values() if isinstance(cls, type) and issubclass(cls, RefoldError)]
SERVICE_KINDS = [
    "run_not_found",
    "task_not_found",
    "blueprint_not_found",
    "value_not_found",
    "request_not_found",
    "session_not_found",
    "session_not_loaded",
    "session_in_use",
    "approval_not_found",
    "approval_already_resolved",
    "approval_choice_invalid",
    "approval_requirement_stale",
    "user_input_not_found",
    "user_input_already_settled",
    "user_input_answer_invalid",
    "no_boundary",
    "boundary_unusable",
    "output_unavailable",
    "page_event_too_large",
    "replay_disabled",
    "divergence",
]


def data_of(error: RefoldError, asked: object = None) -> dict[str, object]:
    return error_object(error, asked)["data"]


@pytest.mark.parametrize("kind", ERRORS)
def test_every_row_is_in_the_package(kind: str) -> None:
    row = ERRORS[kind]
    assert (row.code, row.kind) in WIRE
    assert {*row.members, *row.echoed, *row.nullable, *row.fixed} <= DATA_MEMBERS


@pytest.mark.parametrize("kind", [*(cls.kind for cls in CLASSES), *SERVICE_KINDS])
def test_every_known_kind_has_a_row_of_its_own(kind: str) -> None:
    assert kind in ERRORS


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (NotFound("no such lamp", kind="lamp_not_found"), "notFound"),
        (Conflict("not now", kind="lamp_busy"), "commandRejected"),
        (StoreError("…", kind="store_on_fire"), "internal"),
        (RefoldError("…", kind="never_heard_of"), "internal"),
    ],
)
def test_a_new_kind_is_told_like_its_class(error: RefoldError, kind: str) -> None:
    assert row_for(error).kind == kind


names = st.sampled_from(sorted({"session_id", "earliest_cursor", "reason", "retryable", "paths", "x", "limit_bytes"}))
values = st.none() | st.text(max_size=8) | st.integers() | st.lists(st.text(max_size=3), max_size=2)


@given(
    st.sampled_from([*ERRORS, "never_heard_of"]),
    st.text(),
    st.dictionaries(names, values),
    st.none() | st.text() | st.dictionaries(st.sampled_from(["sessionId", "commandId", "itemId"]), values),
)
def test_whatever_the_error_the_object_is_well_formed(kind: str, text: str, data: dict, asked: object) -> None:
    told = error_object(RefoldError(text, kind=kind, **data), asked)
    assert set(told) == {"code", "message", "data"}
    assert (told["code"], told["data"]["kind"]) in WIRE
    assert len(told["message"]) <= TEXT_CHARS
    assert set(told["data"]) <= DATA_MEMBERS


def test_a_refused_anchor_says_nothing_about_why() -> None:
    assert error_object(MissingAnchor("s-1")) == {
        "code": -32011,
        "message": "unknown cursor anchor",
        "data": {"kind": "notFound", "reason": "missingAnchor", "sessionId": "s-1"},
    }


def test_what_must_be_there_is_null_when_unknown() -> None:
    assert data_of(ViewTruncated("gone", session_id="s")) == {
        "kind": "viewTruncated",
        "sessionId": "s",
        "earliestCursor": None,
    }
    assert data_of(RefoldError("none", kind="no_boundary")) == {
        "kind": "noBoundary",
        "anchor": None,
        "latestBoundaryCursor": None,
    }


def test_ids_come_from_the_error_or_else_from_the_request() -> None:
    rejected = errors.CommandRejected("…", reason="missing_run")
    told = {"kind": "commandRejected", "reason": "missing_run", "retryable": False}
    assert data_of(rejected) == told
    assert data_of(rejected, {"commandId": "c", "sessionId": "s"}) == {**told, "commandId": "c"}
    named = errors.CommandRejected("…", reason="missing_run", command_id="mine")
    assert data_of(named, {"commandId": "c"}) == {**told, "commandId": "mine"}


def test_what_is_no_short_string_is_not_echoed() -> None:
    error = RefoldError("…", kind="session_not_found")
    for asked in ({"sessionId": 7}, {"sessionId": "s" * (ECHO_CHARS + 1)}, ["sessionId"], "sessionId", None):
        assert data_of(error, asked) == {"kind": "sessionNotFound"}


def test_a_boundary_error_does_not_take_the_anchor_of_the_request() -> None:
    # view/page asks for `latestCompaction`, which is not the anchor that was pruned.
    assert data_of(errors.BoundaryPruned("gone"), {"anchor": "latestCompaction"})["anchor"] is None


def test_a_conflict_without_a_reason_is_rejected_for_its_kind() -> None:
    assert data_of(errors.SessionBusy("busy", run_id="R-1")) == {
        "kind": "commandRejected",
        "reason": "session_busy",
        "retryable": False,
        "details": {"runId": "R-1"},
    }


def test_members_are_renamed_at_every_depth() -> None:
    resolution = {"decision": "approved", "resolved_by": "user", "view_cursor": "v"}
    told = data_of(RefoldError("late", kind="approval_already_resolved", approval_id="a", resolution=resolution))
    assert told["resolution"] == {"decision": "approved", "resolvedBy": "user", "viewCursor": "v"}
    faults = [{"path": "$.flow", "step_ref": "x"}]
    told = data_of(errors.BlueprintInvalid("faults", faults=faults))
    assert told["details"] == {"faults": [{"path": "$.flow", "stepRef": "x"}]}


def test_an_error_may_know_better_whether_a_retry_helps() -> None:
    assert data_of(RefoldError("full", kind="overloaded"))["retryable"] is True
    assert data_of(RefoldError("full", kind="overloaded", retryable=False))["retryable"] is False


@pytest.mark.parametrize("cls", [RefoldError, errors.CommitFailed, errors.StoreDamaged, errors.Fenced])
def test_our_inside_stays_inside(cls: type[RefoldError]) -> None:
    told = error_object(cls("sqlite3: disk I/O error in /var/lib/refold.db", reason="SQLITE_IOERR", path="/var"))
    assert "sqlite" not in str(told).lower()
    assert "/var" not in str(told)
    assert told["data"]["reason"] == camel(cls.kind)


def test_long_texts_are_cut() -> None:
    assert error_object(RefoldError("x" * 10_000))["message"] == "internal error"
    assert error_object(RefoldError("x" * 10_000, kind="bad_input"))["message"] == "x" * TEXT_CHARS


def test_a_missing_output_is_typed_as_unavailable() -> None:
    asked = {"itemId": "i", "outputRef": "o", "sessionId": "s"}
    told = data_of(NotFound("no such value", kind="value_not_found"), asked)
    assert told == {"kind": "outputUnavailable", "availability": "missing", "itemId": "i", "outputRef": "o"}
    assert msgspec.convert(told, msp.ErrorData)


@pytest.mark.parametrize(("snake", "wire"), [("view_cursor", "viewCursor"), ("kind", "kind"), ("viewCursor",) * 2])
def test_names_of_the_wire(snake: str, wire: str) -> None:
    assert camel(snake) == wire
