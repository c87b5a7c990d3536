"""Snapshots: a transport form of a state that loses nothing the fold goes on from."""

from __future__ import annotations

import muse_code_msp as msp
import pytest
from hypothesis import given
from hypothesis import strategies as st
from view_schema import faults
from view_strategies import example_log, logs

from refold.canonical import canonical, decode, encode
from refold.errors import InvalidRequest
from refold.records import LogType
from refold.view import (
    Outcome,
    Rung,
    ViewState,
    apply,
    apply_all,
    closed_item,
    elide,
    fold_digest,
    history,
    seed,
    seed_some,
    snapshot_state,
    view_snapshot,
    weigh,
)
from refold.view.digest import ELIDED_MEMBERS
from refold.view.families import FAMILIES

QUEUED = [{"turnId": "q1", "commandId": "q1", "displayText": "later"}]
POINTERS = {"approvals": ("pendingApprovals", "approvalId"), "inputs": ("pendingUserInputs", "userInputId")}


def full_state() -> ViewState:
    """A state with something in every member."""
    state = apply_all(ViewState(), example_log().frames()[:6])
    state.families["session/goalChanged"] = {"objective": "o", "status": "active", "percentComplete": 0}
    state.families["session/nameChanged"] = "a name"
    state.families["session/contextUsage"] = {"pressure": "normal", "usedTokens": 1}
    for held, (_, name) in POINTERS.items():
        getattr(state, held)["one"] = {name: "one", "viewCursor": "c"}
    return state


@given(logs(max_size=28), st.booleans())
def test_snapshot_and_suffix_are_genesis_at_every_cut(log, over_the_wire):
    frames = log.frames()
    whole = apply_all(ViewState(), frames)
    state = ViewState()
    for cut, frame in enumerate(frames, 1):
        apply(state, frame)
        snapshot = view_snapshot(state)
        seeded = seed(decode(encode(snapshot)) if over_the_wire else snapshot)
        assert fold_digest(seeded) == fold_digest(state) == snapshot["foldDigest"]
        assert apply(seeded, frame) is Outcome.STALE, "the snapshot's own last event"
        for suffix in frames[cut:]:
            assert apply(seeded, suffix) is Outcome.APPLIED
        assert snapshot_state(seeded) == snapshot_state(whole)
        assert fold_digest(seeded) == fold_digest(whole)
        assert seeded.cursor == whole.cursor


CLOSES = {LogType.STEP_COMPLETED, LogType.TURN_COMPLETED, LogType.TURN_ENDED}


@given(logs(max_size=28))
def test_a_state_goes_on_without_the_items_that_no_later_record_closes(log):
    placed = log.placed()
    whole = apply_all(ViewState(), (frame for _, frame in placed))
    state = ViewState()
    for at, row in enumerate(log.rows, 1):
        apply_all(state, (frame for position, frame in placed if position.seq == row.seq))
        later = [each for each in log.rows[at:] if each.type in CLOSES and each.origin <= row.seq]
        changes, totals = {closed_item(each) for each in later}, state.tally.totals(state.items)
        assert changes <= state.items.keys()
        snapshot = view_snapshot(state)
        snapshot["state"]["items"] = [item for item in state.items.values() if item["itemId"] in changes]
        some = seed_some(snapshot, count=len(state.items), size=totals.size, elided=totals.elided)
        assert fold_digest(some) == fold_digest(state)
        apply_all(some, (frame for position, frame in placed if position.seq > row.seq))
        some = some.copy()
        assert fold_digest(some) == fold_digest(whole)
        assert some.tally.totals(some.items) == whole.tally.totals(whole.items)
        untouched = [key for key in state.items if key not in changes]
        assert some.items == {key: item for key, item in whole.items.items() if key not in untouched}


@given(logs(max_size=28))
def test_a_seeded_state_does_not_move_back(log):
    frames = log.frames()
    state = apply_all(ViewState(), frames)
    seeded = seed(view_snapshot(state))
    for frame in frames:
        assert apply(seeded, frame) in (Outcome.STALE, Outcome.GAP)
    assert view_snapshot(seeded) == view_snapshot(state)


@given(logs())
def test_snapshots_of_any_log_are_valid_on_the_wire(log):
    state = apply_all(ViewState(), log.frames())
    for snapshot in (view_snapshot(state, QUEUED), elide(view_snapshot(state))):
        assert faults(msp.ViewSnapshot, snapshot) == []


def test_a_snapshot_has_every_member_even_of_an_empty_state():
    shown = snapshot_state(ViewState())
    assert shown.keys() == msp.SnapshotState.__required_keys__
    assert faults(msp.SnapshotState, shown) == []
    assert shown["approvalMode"] == {"mode": "promptUnmatched", "source": "startup", "lastCommandId": None}
    assert shown["tokenUsage"] == {"promptTokens": 0, "outputTokens": 0, "totalTokens": 0}
    assert shown["goal"] is shown["todoList"] is shown["branch"] is shown["activeTurn"] is None


def test_a_full_state_survives_as_a_snapshot():
    state = full_state()
    shown = snapshot_state(state, QUEUED)
    assert shown["queuedTurns"] == QUEUED
    assert (shown["name"], shown["contextUsage"]["usedTokens"], shown["goal"]["objective"]) == ("a name", 1, "o")
    assert shown["activeTurn"]["displayText"] == "Hi!"
    for member, name in POINTERS.values():
        assert shown[member] == [{name: "one", "viewCursor": "c"}]
    seeded = seed(view_snapshot(state))
    assert (snapshot_state(seeded), fold_digest(seeded)) == (snapshot_state(state), fold_digest(state))
    assert seeded.families.keys() == state.families.keys()


def test_every_family_has_a_place_in_a_snapshot():
    hints = msp.SnapshotState.__required_keys__ | msp.SnapshotState.__optional_keys__
    assert {family.member for family in FAMILIES.values()} <= hints
    assert {f.member for f in FAMILIES.values() if f.optional} == msp.SnapshotState.__optional_keys__


def test_an_anchored_snapshot_names_its_boundary():
    anchor = {"boundaryCursor": "c1", "summarizedThrough": "s1"}
    snapshot = view_snapshot(full_state(), anchor=anchor)
    assert snapshot["anchor"] == anchor
    assert "anchor" not in view_snapshot(full_state())


@given(logs())
def test_eliding_drops_the_payload_of_items_that_can_be_read_and_nothing_else(log):
    snapshot = view_snapshot(apply_all(ViewState(), log.frames()))
    before = canonical(snapshot)
    slim = elide(snapshot)
    assert canonical(snapshot) == before, "the full snapshot is left as it is"
    assert slim["foldDigest"] == snapshot["foldDigest"]
    assert slim["state"] | {"items": None} == snapshot["state"] | {"items": None}
    for one, two in zip(snapshot["state"]["items"], slim["state"]["items"], strict=True):
        dropped = one.keys() - two.keys()
        assert dropped == (one.keys() & ELIDED_MEMBERS if "outputRef" in one else set())
        assert {name: one[name] for name in two} == two


def test_a_long_text_makes_the_elided_snapshot_smaller():
    state = apply_all(ViewState(), example_log().frames())
    assert weigh(state)[Rung.SNAPSHOT] - weigh(state)[Rung.ELIDED] > 1_000


class Unlisted(dict):
    """Items that can be looked up, and not gone through."""

    def __iter__(self):
        raise AssertionError("somebody goes through all items")

    values = items = __iter__


def test_to_weigh_is_to_look_at_what_has_changed() -> None:
    state = full_state()
    before = weigh(state)
    state.items = Unlisted(state.items)
    assert weigh(state) == before


@given(logs(), st.data())
def test_a_rung_weighs_what_its_history_weighs(log, data):
    state = ViewState()
    for frame in log.frames():
        apply(state, frame)
        if data.draw(st.booleans()):
            weigh(state)
    queued = data.draw(st.sampled_from([[], QUEUED]))
    snapshot = view_snapshot(state, queued)
    expected = {
        Rung.INLINE: history(Rung.INLINE, snapshot["state"]["items"]),
        Rung.SNAPSHOT: history(Rung.SNAPSHOT, snapshot),
        Rung.ELIDED: history(Rung.ELIDED, elide(snapshot)),
    }
    assert weigh(state, queued) == {rung: len(canonical(answer)) for rung, answer in expected.items()}


def test_an_unknown_schema_version_is_not_guessed_at():
    with pytest.raises(InvalidRequest, match="page the view instead"):
        seed(view_snapshot(full_state()) | {"schemaVersion": 2})
