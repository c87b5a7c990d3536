"""A fold that goes on over rows: member for member what the frames of the rows make of it."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from view_strategies import Log, folded, logs

from refold.canonical import decode
from refold.errors import StoreDamaged
from refold.records import AttemptStatus, LogRow, LogType
from refold.view import (
    GENESIS,
    Position,
    ViewState,
    apply_all,
    catch_up,
    fold_digest,
    origins,
    step_completed,
    step_dispatched,
)


def caught_up(log: Log, state: ViewState, after: Position, upto: int, first: int | None = None) -> Position:
    """What `state` becomes over the rows up to seq `upto`, read from the row of `after` or from `first` on."""
    rows = log.rows[max(0, (after.seq if first is None else first) - 1) : upto]
    openings = {seq: log.rows[seq - 1] for seq in origins(rows)}
    return catch_up(state, rows, openings, body_of, after, log.mint)


def body_of(row: LogRow) -> Any:
    return decode(row.body_json)


def whole(state: ViewState) -> dict[str, Any]:
    """Every member of a state, in order, and its digest in place of the tally."""
    shown = {each.name: getattr(state, each.name) for each in fields(state) if each.name != "tally"}
    return shown | {"items": list(state.items.items()), "digest": fold_digest(state)}


@given(logs(), st.data())
def test_rows_fold_to_what_their_frames_fold_to(log, data):
    placed, end = log.placed(), len(log.rows)
    cuts = sorted({0, end} | data.draw(st.sets(st.integers(0, end), max_size=3)))
    state, position = ViewState(), GENESIS
    for cut in cuts:
        position = caught_up(log, state, position, cut)
        seen = [frame for at, frame in placed if at.seq <= cut]
        assert whole(state) == whole(folded(seen))
        assert position == (placed[len(seen) - 1][0] if seen else GENESIS)


@given(logs())
def test_a_fold_that_stands_between_the_frames_of_a_row_goes_on_from_there(log):
    placed = log.placed()
    for n, (position, _) in enumerate(placed, 1):
        state = folded([frame for _, frame in placed[:n]])
        assert caught_up(log, state, position, len(log.rows)) == placed[-1][0]
        assert whole(state) == whole(folded(log.frames()))


@given(logs())
def test_rows_that_are_folded_already_change_nothing(log):
    state = folded(log.frames())
    before = whole(state)
    assert caught_up(log, state, log.placed()[-1][0], len(log.rows), first=1) == log.placed()[-1][0]
    assert whole(state) == before


def one_step(revision: int = 2) -> Log:
    """A step that is dispatched and passes; `revision` is that of its closing."""
    log, of_step = Log(), {"run": 1, "turn_id": "t", "step_id": "ST-0123456789abcdef"}
    asked = {"ref": "worker", "args": "1", "attempt": 1, "occurrence": 0, "lane": (), "input_hash": "0a" * 32}
    opened = log.append(step_dispatched(log.now, **of_step, **asked))
    passed = {"outcome": AttemptStatus.PASSED, "ms": 1, "output": "2", "revision": revision}
    log.append(step_completed(log.now, origin=opened.seq, **of_step, **passed))
    return log


def test_an_item_that_opens_and_closes_among_the_rows_is_made_once():
    log, state, read = one_step(), ViewState(), list[str]()

    def noted(row: LogRow) -> Any:
        read.append(row.type)
        return body_of(row)

    catch_up(state, log.rows, {}, noted, GENESIS, log.mint)
    assert read == [LogType.STEP_COMPLETED]
    assert whole(state) == whole(folded(log.frames()))


def test_a_closing_that_is_no_later_revision_stays_without_effect():
    log, state = one_step(revision=1), ViewState()
    caught_up(log, state, GENESIS, 2)
    assert whole(state) == whole(apply_all(ViewState(), log.frames()))
    assert [each["status"] for each in state.items.values()] == ["inProgress"]


def test_a_row_that_closes_what_is_not_at_hand_is_damage():
    closing = one_step().rows[1]
    with pytest.raises(StoreDamaged, match="nothing is at hand"):
        catch_up(ViewState(), [closing], {}, body_of, Position(1, 0), one_step().mint)
