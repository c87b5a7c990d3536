"""The fold digest: equal for equal states and for no others, however it came about."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from view_strategies import chained, folded, item, logs

from refold.canonical import canonical
from refold.view import ViewState, apply, fold_digest


def domain(state: ViewState) -> bytes:
    """What the digest is of, without any incremental bookkeeping."""
    return canonical(
        [
            sorted(canonical(item).decode() for item in state.items.values()),
            state.active_turn and state.active_turn["turnId"],
            sorted(state.approvals),
            sorted(state.inputs),
            state.families,
            state.turn_count,
        ]
    )


@given(logs(), logs())
def test_digests_are_equal_if_and_only_if_states_are(one, two):
    seen: dict[bytes, str] = {}
    for log in (one, two):
        state = ViewState()
        for frame in log.frames():
            apply(state, frame)
            seen.setdefault(domain(state), fold_digest(state))
            assert seen[domain(state)] == fold_digest(state)
    assert len(set(seen.values())) == len(seen)


@given(logs(), st.data())
def test_the_digest_does_not_depend_on_when_it_is_asked_for(log, data):
    asked, never = ViewState(), ViewState()
    for frame in log.frames():
        apply(asked, frame)
        apply(never, frame)
        if data.draw(st.booleans()):
            asked = asked.copy()
            fold_digest(asked)
    assert fold_digest(asked) == fold_digest(never)


@given(st.data())
def test_any_change_of_any_part_changes_the_digest(data):
    log = data.draw(logs())
    state = folded(log.frames())
    digest = fold_digest(state)
    change = data.draw(st.sampled_from(["item", "turns", "active", "family", "approval", "input"]))
    if change == "item":
        state.items["new"] = {"itemId": "new"}
        state.tally.touch("new")
    elif change == "turns":
        state.turn_count += 1
    elif change == "active":
        state.active_turn = {"turnId": "new", "commandId": "c"}
    elif change == "family":
        state.families["session/nameChanged"] = "new"
    else:
        (state.approvals if change == "approval" else state.inputs)["new"] = {}
    assert fold_digest(state) != digest


def test_the_digest_stands():
    """Clients compute it too; it changes only together with them."""
    state = folded(chained(("item/completed", item("a", 1)), ("turn/completed", {"turnId": "t", "terminal": "x"})))
    assert fold_digest(state) == (
        "1958101b2e62d977911c9412fa6729865311f38ea2d3f556e25a57d482ddf068"
        ".63e1e357b76ce1909f10b492a8cc360c0a04adf8b23ce17a7fd1d29c37da2438"
    )


@given(logs())
def test_the_weight_is_that_of_all_items_when_they_were_weighed_last(log):
    state = ViewState()
    weighed = 0
    for frame in log.frames():
        apply(state, frame)
        assert state.tally.weight == weighed
        fold_digest(state)
        weighed = sum(len(canonical(each)) for each in state.items.values())
        assert state.tally.weight == weighed
