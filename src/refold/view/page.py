"""Walking over contiguous log rows: the frames after a position, and the position that a backward page starts at.

Pushes, forward pages and backward pages are one walk, `frames_after`, so they cannot differ. A walk is anchored at a
*row*: the row of the position it starts after is part of what it is given, since that row's hash is needed to name the
position (`prevCursor` of the first frame) and it may hold more frames.

Not here: reading rows (the store), deciding which position to start from (services).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from refold.records import LogRow
from refold.view.cursor import CHAIN_BYTES, GENESIS, Mint, Position
from refold.view.record import Frame, render


def frames_after(
    rows: Sequence[LogRow],
    openings: Mapping[int, LogRow],
    session_id: str,
    mint: Mint,
    after: Position = GENESIS,
    until: Position | None = None,
    *,
    prev: str | None = None,
) -> Iterator[tuple[Position, Frame]]:
    """Yields every frame strictly after `after` (and strictly before `until`, if given), in order.

    Args:
        rows: contiguous rows that begin with the row at `after.seq`, or with the Session's first row for `GENESIS`;
            with `prev` they may begin behind `after`.
        openings: the rows of `origins(rows)`, by seq.
        session_id: the Session.
        mint: its `cursor.minter`.
        after: the position that the reader holds.
        until: where to stop; None for the end of `rows`.
        prev: the cursor of the last frame before `rows`, for a walk that goes on from a fold: a fold knows its cursor,
            but the row before may have no frame to name it by.

    Raises:
        StoreDamaged: as `render`.
    """
    at_hand = {row.seq: row for row in rows}
    for row in rows:
        if Position(row.seq, row.frames) <= Position(after.seq, after.k + 1):  # nothing of it is wanted but its cursor
            prev = last_cursor(row, mint) if row.frames else prev
            continue
        opening = None if row.origin is None else at_hand.get(row.origin) or openings.get(row.origin)
        # Of the row of `after`, earlier frames are rendered and dropped: the first one's `prevCursor` is not known, but
        # that of every later one, and so of every frame that is yielded, is.
        for k, frame in enumerate(render(row, opening, session_id, mint, prev)):
            position, prev = Position(row.seq, k), frame["params"]["viewCursor"]
            if until is not None and position >= until:
                return
            if position > after:
                assert frame["params"]["prevCursor"] or rows[0].seq == 1, f"no frame before row {row.seq} is known"
                yield position, frame


def origins(rows: Sequence[LogRow]) -> set[int]:
    """Returns the seqs of the rows that must be at hand to render `rows`, and are not among them."""
    return {row.origin for row in rows if row.origin is not None} - {row.seq for row in rows}


def start_of_page(rows: Sequence[LogRow], before: Position, limit: int) -> Position | None:
    """Returns the position after which the `limit` frames strictly before `before` begin.

    That is `GENESIS` if the Session has no frame before them, and None if `rows` do not reach back far enough to tell.

    Args:
        rows: contiguous rows, ascending, up to at least the row before `before`.
        before: where the page ends; `head(row)` of the last row for the newest page.
        limit: how many frames, at least 1.
    """
    wanted = limit + 1  # the frame before the page is the page's start
    for row in reversed(rows):
        held = row.frames if row.seq < before.seq else before.k if row.seq == before.seq else 0
        if held >= wanted:
            return Position(row.seq, held - wanted)
        wanted -= held
    reached = rows[0].seq if rows else before.seq
    return GENESIS if reached == 1 else None


def head(row: LogRow) -> Position:
    """Returns the position just behind every frame of `row`: what a walk to the end of a log stops before."""
    return Position(row.seq + 1, 0)


def last_cursor(row: LogRow, mint: Mint) -> str:
    """Returns the cursor of the last frame of `row`, which must have one."""
    return mint(Position(row.seq, row.frames - 1), row.hash[:CHAIN_BYTES])
