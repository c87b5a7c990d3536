"""Walks over a log: pushes, forward and backward pages are slices of one sequence."""

from __future__ import annotations

from itertools import islice

import pytest
from hypothesis import given
from hypothesis import strategies as st
from view_strategies import SESSION, Log, example_log, logs

from refold.view import GENESIS, Position, ViewState, apply_all, frames_after, head, last_cursor, origins, start_of_page


def walk(log: Log, after: Position, until: Position | None = None, first: int | None = None) -> list:
    """What a reader gets that reads no more rows than it needs."""
    rows = log.rows[(after.seq if first is None else first) - 1 if after.seq else 0 :]
    openings = {seq: log.rows[seq - 1] for seq in origins(rows)}
    return list(frames_after(rows, openings, SESSION, log.mint, after, until))


@given(logs(max_size=24))
def test_after_every_position_comes_exactly_the_rest(log):
    placed = log.placed()
    assert walk(log, GENESIS) == placed
    for n, (position, _) in enumerate(placed, 1):
        assert walk(log, position) == placed[n:]


@given(logs(max_size=24), st.data())
def test_a_walk_stops_strictly_before_its_end(log, data):
    placed = log.placed()
    i = data.draw(st.integers(0, len(placed) - 1))
    j = data.draw(st.integers(i, len(placed) - 1))
    assert walk(log, placed[i][0], placed[j][0]) == placed[i + 1 : j]
    assert walk(log, placed[i][0], head(log.rows[-1])) == placed[i + 1 :]


@given(logs(max_size=24), st.integers(1, 9))
def test_pages_forward_join_to_the_whole_view(log, limit):
    pages, after = [], GENESIS
    while page := list(islice(walk(log, after), limit)):
        assert page[0][0] > after, "or this would never end"
        pages += page
        after = page[-1][0]
    assert pages == log.placed()


@given(logs(max_size=24), st.integers(1, 9))
def test_pages_backward_join_to_the_whole_view(log, limit):
    pages, until = [], head(log.rows[-1])
    while True:
        start = start_of_page(log.rows[: until.seq], until, limit)
        page = walk(log, start, until)
        assert page[0][0] < until, "or this would never end"
        pages = page + pages
        if start == GENESIS:
            break
        assert len(page) == limit
        until = page[0][0]
    assert pages == log.placed()


@given(logs(max_size=24), st.integers(1, 9), st.data())
def test_the_start_of_a_page_is_found_in_few_rows_or_not_at_all(log, limit, data):
    placed = log.placed()
    n = data.draw(st.integers(0, len(placed) - 1))
    until, have = placed[n][0], data.draw(st.integers(0, len(log.rows)))
    whole = start_of_page(log.rows[: until.seq], until, limit)
    assert whole == (placed[n - limit - 1][0] if n > limit else GENESIS)
    some = start_of_page(log.rows[max(0, until.seq - have) : until.seq], until, limit)
    assert some == whole or (some is None and whole.seq <= until.seq - have)
    assert start_of_page(log.rows, until, limit) == whole, "rows behind the page do not matter"


def test_an_empty_session_has_one_page_from_its_genesis():
    assert start_of_page([], Position(1, 0), 5) == GENESIS


def test_only_rows_out_of_reach_have_to_be_fetched():
    log = example_log()
    assert origins(log.rows) == set()
    assert origins(log.rows[6:9]) == {6, 5, 4}
    assert origins(log.rows[4:8]) == set()


def test_a_walk_can_go_on_from_a_fold_behind_a_row_without_frames():
    log = example_log()
    state = apply_all(ViewState(), log.frames()[:2])
    assert log.rows[1].frames == 0, "the row behind the fold has no frame to name it by"
    rest = list(frames_after(log.rows[2:], {}, SESSION, log.mint, Position(2, 255), prev=state.cursor))
    assert rest == log.placed()[2:]


def test_a_walk_never_guesses_the_frame_before_it():
    log = example_log()
    for rows in (log.rows[1:], log.rows[2:]):
        with pytest.raises(AssertionError, match="no frame before row 3 is known"):
            list(frames_after(rows, {}, SESSION, log.mint, Position(2, 255)))


def test_the_last_cursor_of_a_row_is_that_of_its_last_frame():
    log = example_log()
    by_row = {position.seq: frame["params"]["viewCursor"] for position, frame in log.placed()}
    assert {row.seq: last_cursor(row, log.mint) for row in log.rows if row.frames} == by_row
