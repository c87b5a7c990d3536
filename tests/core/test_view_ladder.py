"""The ladder: what is tried, what is taken, and that it is what is reported."""

from __future__ import annotations

import muse_code_msp as msp
import pytest
from hypothesis import given
from hypothesis import strategies as st
from view_schema import faults

from refold.view import Anchor, Preference, Rung, attempts, choose, history

CARRIES = (Rung.ANCHORED, Rung.INLINE, Rung.SNAPSHOT, Rung.ELIDED)
preferences, anchors, excludes = st.sampled_from(Preference), st.sampled_from(Anchor), st.booleans()
sizes = st.fixed_dictionaries({rung: st.none() | st.integers(0, 100) for rung in CARRIES})
budgets = st.integers(0, 100)


@pytest.mark.parametrize(
    ("preference", "rungs"),
    [
        ("auto", ["anchored", "inline", "snapshot", "elided", "budget"]),
        ("anchored", ["anchored", "inline", "snapshot", "elided", "budget"]),
        ("inline", ["inline", "snapshot", "elided", "budget"]),
        ("snapshot", ["snapshot", "elided", "budget"]),
    ],
)
def test_without_a_cursor_the_ladder_begins_at_what_is_preferred(preference, rungs):
    assert list(attempts(preference)) == rungs


@given(preferences, excludes)
def test_a_held_cursor_asks_for_its_suffix_and_nothing_else(preference, exclude):
    assert attempts(preference, Anchor.HELD, exclude) == (Rung.SUFFIX,)


@given(preferences, excludes)
def test_a_stale_cursor_never_ends_at_a_rung_that_serves_nothing(preference, exclude):
    assert attempts(preference, Anchor.STALE, exclude) == CARRIES


@given(preferences)
def test_a_client_may_ask_for_no_history_at_all(preference):
    assert attempts(preference, Anchor.ABSENT, exclude_items=True) == (Rung.EXCLUDED,)


def test_a_preference_is_one_of_those_of_the_protocol():
    assert [str(p) for p in Preference] == ["auto", "inline", "snapshot", "anchored"]
    assert faults(msp.HistoryPreference, "auto") == []
    with pytest.raises(KeyError):
        attempts("everything")


@given(preferences, anchors, excludes, budgets, sizes)
def test_the_first_rung_that_exists_and_fits_is_taken(preference, anchor, exclude, budget, size):
    rungs = attempts(preference, anchor, exclude)
    taken = choose(rungs, budget, size.get)
    fitting = [r for r in rungs if r not in CARRIES or (size[r] is not None and size[r] <= budget)]
    assert taken == (fitting[0] if fitting else None)
    assert (taken is None) <= (anchor is Anchor.STALE), "only a stale cursor may end in a refusal"


@given(preferences, anchors, excludes, budgets, budgets, sizes)
def test_a_larger_budget_never_takes_a_later_rung(preference, anchor, exclude, one, two, size):
    rungs = attempts(preference, anchor, exclude)
    less, more = (choose(rungs, budget, size.get) for budget in sorted((one, two)))
    assert less is None or rungs.index(more) <= rungs.index(less)


@given(preferences, budgets, sizes)
def test_rungs_are_weighed_only_as_far_as_needed(preference, budget, size):
    asked: list[Rung] = []

    def weigh(rung: Rung) -> int | None:
        asked.append(rung)
        return size[rung]

    rungs = attempts(preference)
    taken = choose(rungs, budget, weigh)
    assert asked == [rung for rung in rungs[: rungs.index(taken) + 1] if rung in CARRIES]


SNAPSHOT = {"schemaVersion": 1}


@pytest.mark.parametrize(
    ("rung", "payload", "expected"),
    [
        (Rung.ANCHORED, SNAPSHOT, {"mode": "anchoredSnapshot", "items": None, "snapshot": SNAPSHOT}),
        (Rung.INLINE, [], {"mode": "inline", "items": [], "snapshot": None}),
        (Rung.SNAPSHOT, SNAPSHOT, {"mode": "snapshot", "items": None, "snapshot": SNAPSHOT}),
        (Rung.ELIDED, SNAPSHOT, {"mode": "snapshot", "items": None, "snapshot": SNAPSHOT}),
        (Rung.BUDGET, None, {"mode": "none", "items": None, "snapshot": None, "noneReason": "historyBudget"}),
        (Rung.SUFFIX, None, {"mode": "none", "items": None, "snapshot": None, "noneReason": "cursorSuffix"}),
        (Rung.EXCLUDED, None, {"mode": "none", "items": None, "snapshot": None, "noneReason": "excluded"}),
    ],
)
def test_what_is_served_is_what_is_reported(rung, payload, expected):
    assert history(rung, payload) == expected


def test_every_rung_reports_words_of_the_protocol():
    for rung in Rung:
        reported = history(rung)
        assert reported["mode"] in msp.HISTORY_MODE_KNOWN_VALUES
        assert ("noneReason" in reported) == (reported["mode"] == "none")
        assert reported.get("noneReason", "excluded") in msp.HISTORY_NONE_REASON_KNOWN_VALUES


def test_a_payload_that_would_not_be_reported_is_a_bug():
    with pytest.raises(AssertionError):
        history(Rung.SUFFIX, [])
