"""The fold: judged by the official client's fold, by its own laws, and by what hostile frames do to it."""

from __future__ import annotations

from itertools import pairwise

import muse_code_msp as msp
import pytest
from hypothesis import given
from hypothesis import strategies as st
from muse_code.fold import (
    IgnoredMissingParams,
    IgnoredStaleFrame,
    IgnoredStaleRevision,
    IgnoredUnrecognizedMethod,
    ItemFold,
    SessionFold,
)
from view_strategies import chained, example_log, folded, item, logs

from refold.canonical import canonical, decode
from refold.view import Outcome, ViewState, apply, apply_all, delta, fold_digest
from refold.view.families import FAMILIES
from refold.view.fold import RULES

NOT_EVENTS = {
    "computerUseSetup/changed",
    "initialized",
    "item/delta",
    "plugin/changed",
    "plugin/marketplaceChanged",
    "recap/completed",
    "session/closed",
    "session/leaveCompleted",
    "session/listChanged",
    "session/started",
    "session/statusChanged",
    "session/viewHealthChanged",
    "skill/changed",
    "usage/changed",
    "userInput/engaged",
    "view/gap",
}
"""Notifications that are no durable events of a view: broadcasts, receipts, ephemeral text, the mark of a hole."""


def meaning(state: ViewState) -> bytes:
    """Everything that a state says, as comparable bytes."""
    return canonical(
        {
            "items": list(state.items.values()),
            "active": state.active_turn,
            "turns": state.turn_count,
            "last": state.last_turn,
            "families": state.families,
            "approvals": list(state.approvals.values()),
            "inputs": list(state.inputs.values()),
            "cursor": state.cursor,
            "digest": fold_digest(state),
        }
    )


# -- judged by the official client ------------------------------------------------------------------------------------


@given(logs())
def test_the_official_client_folds_our_frames_to_the_same_state(log):
    state, oracle = ViewState(), SessionFold()
    for frame in log.frames():
        assert apply(state, frame) is Outcome.APPLIED
        outcome = oracle.apply(frame)
        assert not isinstance(outcome, IgnoredUnrecognizedMethod | IgnoredMissingParams | IgnoredStaleFrame)
        assert not (isinstance(outcome, ItemFold) and isinstance(outcome.outcome, IgnoredStaleRevision))
        assert (state.active_turn or {}).get("turnId") == oracle.active_turn_id
    assert list(state.items.values()) == list(oracle.items.list())
    assert state.turn_count == sum(turn.state == "settled" for turn in oracle.turns())
    assert oracle.session_state.families() == list(state.families)
    for method, value in state.families.items():
        assert value == FAMILIES[method].show(oracle.session_state.get(method))


def test_every_notification_of_the_protocol_is_folded_or_known_not_to_be_an_event():
    assert set(RULES) | NOT_EVENTS == set(msp.NOTIFICATIONS)
    assert not set(RULES) & NOT_EVENTS


# -- laws -------------------------------------------------------------------------------------------------------------


@given(logs(max_size=28))
def test_prefix_and_suffix_are_genesis_at_every_cut(log):
    frames = log.frames()
    whole, prefix = meaning(folded(frames)), ViewState()
    for cut, frame in enumerate(frames):
        held = meaning(prefix)
        assert meaning(apply_all(prefix.copy(), frames[cut:])) == whole
        assert meaning(prefix) == held, "what a copy folds does not reach the original"
        apply(prefix, frame)


@given(logs(), st.data())
def test_any_window_delivered_again_changes_nothing(log, data):
    frames = log.frames()
    now = data.draw(st.integers(1, len(frames)))
    state = folded(frames[:now])
    before = meaning(state)
    i = data.draw(st.integers(0, now - 1))
    again = frames[i : data.draw(st.integers(i + 1, now))]
    for frame in data.draw(st.permutations(again) | st.just(again)):
        assert apply(state, frame) is Outcome.STALE
    assert meaning(state) == before
    assert meaning(apply_all(state, frames)) == meaning(folded(frames))


@given(logs(), st.data())
def test_a_missing_frame_is_a_gap_until_it_comes(log, data):
    frames = log.frames()
    cut = data.draw(st.integers(0, len(frames) - 1))
    ahead = frames[cut + 1 :]
    state = folded(frames[:cut])
    before = meaning(state)
    for frame in ahead:
        assert apply(state, frame) is Outcome.GAP
    assert meaning(state) == before
    assert meaning(apply_all(state, frames[cut:])) == meaning(folded(frames))


@given(logs(max_size=16), st.randoms(use_true_random=False))
def test_whatever_the_order_of_delivery_the_state_is_a_prefix(log, random):
    frames = log.frames()
    prefixes = {meaning(folded(frames[:n])) for n in range(len(frames) + 1)}
    state = ViewState()
    for _ in range(3 * len(frames)):
        apply(state, random.choice(frames))
        assert meaning(state) in prefixes


# -- totality ---------------------------------------------------------------------------------------------------------

scalars = (
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=5)
)
anything = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
)
EXAMPLES = example_log().frames()
MEMBERS = sorted({name for frame in EXAMPLES for name in frame["params"]} | {"goal", "revision", "approvalId"})


@given(anything | st.fixed_dictionaries({"method": st.sampled_from(sorted(RULES)) | anything, "params": anything}))
def test_no_json_value_makes_the_fold_raise(value):
    state = ViewState()
    assert apply(state, value) in (Outcome.MALFORMED, Outcome.EPHEMERAL)
    assert meaning(state) == meaning(ViewState())


@given(st.sampled_from(sorted(RULES)), st.integers(0, len(EXAMPLES) - 1), st.data())
def test_no_broken_frame_makes_the_fold_raise(method, n, data):
    broken = {name: data.draw(anything) for name in data.draw(st.lists(st.sampled_from(MEMBERS), max_size=3))}
    kept = set(EXAMPLES[n]["params"]) - set(data.draw(st.lists(st.sampled_from(MEMBERS), max_size=3)))
    params = {name: EXAMPLES[n]["params"][name] for name in kept} | broken
    state = apply_all(ViewState(), EXAMPLES[:n])
    before = meaning(state)
    outcome = apply(state, {"method": method, "params": params})
    assert outcome in Outcome
    if outcome in (Outcome.STALE, Outcome.GAP, Outcome.EPHEMERAL) and state.cursor != params.get("viewCursor"):
        assert meaning(state) == before
    meaning(state.copy())


@pytest.mark.parametrize(
    "params",
    [
        {"viewCursor": 1, "sourceRange": {"last": {"sequence": 1}}},
        {"viewCursor": "c", "sourceRange": None},
        {"viewCursor": "c", "sourceRange": {"last": []}},
        {"viewCursor": "c", "sourceRange": {"last": {"sequence": True}}},
    ],
)
def test_a_frame_that_cannot_be_placed_is_malformed(params):
    state = ViewState()
    assert apply(state, {"method": "turn/started", "params": params}) is Outcome.MALFORMED
    assert state.cursor is None


@pytest.mark.parametrize(
    ("method", "members"),
    [
        ("item/started", {}),
        ("item/updated", {"item": {"itemId": "a", "revision": True}}),
        ("item/completed", {"item": {"revision": 1}}),
        ("turn/started", {"turnId": "t"}),
        ("turn/completed", {"turnId": 1, "terminal": "completed"}),
        ("session/modelChanged", {"modelId": "m", "source": "user"}),
        ("session/goalChanged", {}),
        ("approval/requested", {"approvalId": None}),
        ("userInput/settled", {}),
    ],
)
def test_a_known_event_without_its_members_is_malformed_and_the_next_one_applies(method, members):
    first, second = chained((method, members), ("turn/started", {"turnId": "t", "commandId": "c"}))
    state = ViewState()
    assert apply(state, first) is Outcome.MALFORMED
    assert apply(state, second) is Outcome.APPLIED
    assert (state.items, state.families, state.approvals, state.inputs) == ({}, {}, {}, {})


# -- what events do ---------------------------------------------------------------------------------------------------


def test_an_event_of_a_newer_host_moves_the_cursor_and_nothing_else():
    state = ViewState()
    outcomes = [apply(state, f) for f in chained(("turn/levitated", {}), ("turn/unqueued", {"turnId": "t"}))]
    assert outcomes == [Outcome.UNKNOWN, Outcome.APPLIED]
    assert state.cursor == "c2"


def test_what_is_not_durable_is_not_state():
    started = {"method": "item/started", "params": {"sessionId": "s", "viewCursor": "c1.1", **item("a", 1)}}
    piece = {"method": "item/delta", "params": {"sessionId": "s", "viewCursor": "c1.2", "itemId": "a", "delta": "x"}}
    state = ViewState()
    assert [apply(state, started), apply(state, piece)] == [Outcome.EPHEMERAL] * 2
    assert meaning(state) == meaning(ViewState())


@given(logs(), st.data())
def test_what_is_said_between_events_changes_no_state(log, data):
    """Pieces of any item anywhere, as they come, again, or out of order: the state is the fold of the events."""
    plain, spoken = ViewState(), ViewState()
    said: list[dict] = []
    for frame in log.frames():
        apply(plain, frame)
        apply(spoken, frame)
        for item_id in data.draw(st.lists(st.sampled_from(list(plain.items)), max_size=2)) if plain.items else ():
            text = data.draw(st.text(max_size=3))
            so_far = spoken.texts.get(item_id, {}).get("output", "")
            said.append(delta("s", "c", item_id, text, len(so_far)))
            open_now = plain.items[item_id]["status"] == "inProgress"
            assert apply(spoken, said[-1]) is (Outcome.STREAMED if open_now else Outcome.EPHEMERAL)
            assert spoken.texts.get(item_id, {}).get("output", "") == (so_far + text if open_now else "")
            again = data.draw(st.sampled_from(said))
            if again["params"]["delta"]:
                texts = {item: dict(fields) for item, fields in spoken.texts.items()}
                assert apply(spoken, again) is not Outcome.APPLIED
                assert all(spoken.texts[item]["output"].startswith(texts[item]["output"]) for item in texts)
        assert meaning(plain) == meaning(spoken)
    still_open = {item_id for item_id, item in plain.items.items() if item["status"] == "inProgress"}
    assert spoken.texts.keys() <= still_open


def test_a_text_is_added_at_its_place_only_and_a_copy_goes_its_own_way():
    state = ViewState(items={"i": {"itemId": "i", "revision": 1, "status": "inProgress"}})
    assert apply(state, delta("s", "c", "i", "ab", 0)) is Outcome.STREAMED
    assert apply(state, delta("s", "c", "i", "ab", 0)) is Outcome.EPHEMERAL
    assert apply(state, delta("s", "c", "i", "d", 3)) is Outcome.EPHEMERAL
    copy = state.copy()
    assert apply(state, {"method": "item/delta", "params": {"itemId": "i", "delta": "c"}}) is Outcome.STREAMED
    assert apply(state, delta("s", "c", "i", "c", 2)) is Outcome.STREAMED
    assert (state.texts, copy.texts) == ({"i": {"output": "abc", "text": "c"}}, {"i": {"output": "ab"}})


@pytest.mark.parametrize("member", ["itemId", "delta", "field"])
def test_a_piece_that_is_none_is_malformed(member):
    state = ViewState(items={"i": {"itemId": "i", "revision": 1, "status": "inProgress"}})
    params = delta("s", "c", "i", "ab", 0)["params"] | {member: 7}
    assert apply(state, {"method": "item/delta", "params": params}) is Outcome.MALFORMED


def test_a_host_may_say_that_there_is_a_gap():
    gap = {"method": "view/gap", "params": {"sessionId": "s", "after": "c1", "next": "c9"}}
    assert apply(ViewState(), gap) is Outcome.GAP


def test_items_of_unknown_kinds_fold_and_keep_the_order_of_their_opening():
    events = [("item/started", item(i, 1, kind="hologram")) for i in ("b", "a")]
    state = folded(chained(*events, ("item/updated", item("b", 4)), ("item/completed", item("c", 1))))
    assert [(i["itemId"], i["revision"]) for i in state.items.values()] == [("b", 4), ("a", 1), ("c", 1)]


@pytest.mark.parametrize("revision", [1, 2])
def test_an_item_whose_revision_is_not_higher_is_stale(revision):
    frames = chained(("item/started", item("a", 2)), ("item/updated", item("a", revision, tool="other")))
    state = ViewState()
    assert [apply(state, frame) for frame in frames] == [Outcome.APPLIED, Outcome.STALE]
    assert state.items["a"] == item("a", 2)["item"]
    assert state.cursor == "c2"


def test_a_turn_runs_until_its_terminal():
    started, completed = ("turn/started", {"turnId": "t", "commandId": "c", "displayText": "d"}), {"turnId": "t"}
    state = folded(chained(started))
    assert state.active_turn == {"turnId": "t", "commandId": "c", "displayText": "d"}
    error = {"terminal": "failed", "error": {"kind": "runFailed", "message": "m", "retryable": False}}
    state = folded(chained(started, ("turn/completed", completed | error | {"durationMs": 1, "reason": "r"})))
    assert (state.active_turn, state.turn_count) == (None, 1)
    assert state.last_turn == completed | error | {"reason": "r"}


@pytest.mark.parametrize(
    ("method", "members", "runs_on"),
    [
        ("turn/completed", {"turnId": "other", "terminal": "failed"}, True),
        ("turn/unqueued", {"turnId": "other"}, True),
        ("turn/retracted", {"turnId": "t", "outcome": "declined"}, True),
        ("turn/retracted", {"turnId": "t", "outcome": "accepted"}, False),
        ("turn/retracted", {"turnId": "t"}, False),
    ],
)
def test_only_what_ends_the_running_turn_ends_it(method, members, runs_on):
    state = folded(chained(("turn/started", {"turnId": "t", "commandId": "c"}), (method, members)))
    assert (state.active_turn is not None) == runs_on
    assert state.turn_count == (method == "turn/completed")


@pytest.mark.parametrize(
    ("opens", "closes", "name", "held"),
    [
        ("approval/requested", "approval/resolved", "approvalId", "approvals"),
        ("userInput/requested", "userInput/settled", "userInputId", "inputs"),
    ],
)
def test_a_request_is_pending_at_its_opening_cursor_until_it_is_settled(opens, closes, name, held):
    opening = [(opens, {name: "one", "itemId": "ST-1", "toolName": "x"}), (opens, {name: "two"})]
    state = folded(chained(*opening))
    assert list(getattr(state, held).values()) == [
        {name: "one", "itemId": "ST-1", "viewCursor": "c1"},
        {name: "two", "viewCursor": "c2"},
    ]
    state = folded(chained(*opening, (closes, {name: "one"}), (closes, {name: "never opened"})))
    assert list(getattr(state, held)) == ["two"]


FAMILY_EVENTS = {
    "session/approvalModeChanged": (
        {"clientName": "c", "commandId": "x", "mode": "onRequest", "source": "approvalReconfigure"},
        {"mode": "onRequest", "source": "approvalReconfigure", "lastCommandId": "x"},
    ),
    "session/branchChanged": ({"branch": None, "workspaceRoot": "/w", "vcs": "git"},) * 2,
    "session/contextUsage": ({"pressure": "normal", "usedTokens": 5, "windowTokens": 9},) * 2,
    "session/goalChanged": ({"goal": {"objective": "o", "status": "active"}}, {"objective": "o", "status": "active"}),
    "session/modelChanged": ({"modelId": "m", "providerId": None, "source": "user"},) * 2,
    "session/nameChanged": ({"name": "n", "nameOrigin": "custom"}, "n"),
    "session/reasoningEffortChanged": ({"reasoningEffort": "low", "source": "user"},) * 2,
    "session/todoListChanged": ({"items": [], "revision": 2, "sourceTool": "t"},) * 2,
    "session/tokenUsage": (
        {"cumulative": {"promptTokens": 1, "outputTokens": 2, "totalTokens": 3}, "turnId": "t"},
        {"promptTokens": 1, "outputTokens": 2, "totalTokens": 3},
    ),
}


@pytest.mark.parametrize("method", FAMILIES)
def test_a_family_holds_its_newest_value_and_forgets_a_default(method):
    members, shown = FAMILY_EVENTS[method]
    state = folded(chained(*[(m, e) for m, (e, _) in FAMILY_EVENTS.items()], (method, members)))
    assert state.families == {m: value for m, (_, value) in FAMILY_EVENTS.items()}
    assert state.families[method] == shown


def test_a_goal_that_is_cleared_is_no_goal():
    event = ("session/goalChanged", FAMILY_EVENTS["session/goalChanged"][0])
    cleared = folded(chained(event, ("session/goalChanged", {"goal": None})))
    assert cleared.families == {}
    assert fold_digest(cleared) == fold_digest(folded(chained(("session/goalChanged", {"goal": None}))))


# -- a host that does not link its frames -----------------------------------------------------------------------------


def test_without_links_events_apply_in_order_and_an_exact_repeat_is_stale():
    events = [
        ("turn/started", {"turnId": "t", "commandId": "c"}),
        ("item/started", item("a", 1)),
        ("turn/retryScheduled", {"turnId": "t"}),
        ("turn/completed", {"turnId": "t", "terminal": "completed"}),
    ]
    frames = chained(*events, linked=False)
    state = ViewState()
    for frame in frames:
        assert apply(state, frame) is Outcome.APPLIED
        assert apply(state, frame) is Outcome.STALE
    assert (state.turn_count, state.active_turn, list(state.items)) == (1, None, ["a"])
    assert meaning(state) == meaning(folded(chained(*events)))


def test_frames_that_went_over_the_wire_fold_to_the_same_state():
    frames = example_log().frames()
    assert meaning(folded(decode(canonical(frames)))) == meaning(folded(frames))
    for one, two in pairwise(frames):
        assert two["params"]["prevCursor"] == one["params"]["viewCursor"]
