"""A fold that goes on over log rows: what `apply` makes of their frames, without making the frames.

Who has the rows needs no frames to fold. They are in order, so their places are not to be judged; a cursor is minted
where it is shown or where the fold stops, not for each frame on the way; and an item that is closed among the rows is
made once, as it closes.

Law: `catch_up` over rows leaves the state that `apply_all` over their frames leaves, member for member.

Not here: reading rows and checking their chain (`session.log`), the frames that readers are handed (`page`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from refold.records import LogRow, LogType
from refold.view.cursor import CHAIN_BYTES, Mint, Position
from refold.view.families import Members
from refold.view.fold import RULES, ViewState, advance
from refold.view.record import parts_of

_CLOSES_BELOW: Final[Members] = {"revision": 0}
"""Keeps the place of an item that is closed further below: items are ordered by first opening."""


def catch_up(
    state: ViewState,
    rows: Sequence[LogRow],
    openings: Mapping[int, LogRow],
    body_of: Callable[[LogRow], Members],
    after: Position,
    mint: Mint,
) -> Position:
    """Folds all of `rows` that lies after `after` into `state`, which stands there.

    Args:
        state: the fold up to `after`.
        rows: contiguous rows, beginning at or before the row of `after` or with the one behind it.
        openings: the rows of `origins(rows)`, by seq.
        body_of: the body of a row, with what it names put back (`store.bodies`).
        after: where the fold stands; `GENESIS` if it holds nothing.
        mint: the Session's `cursor.minter`.

    Returns:
        Where the fold stands now: at the last frame of `rows`, or at `after` if there is none behind it.

    Raises:
        StoreDamaged: as `render`. The state is useless then.
    """
    at_hand = {row.seq: row for row in rows}
    closing = {row.origin: row.revision for row in rows if row.type == LogType.STEP_COMPLETED}
    last = None
    for row in rows:
        first = _first_after(row, after)
        if first >= row.frames:
            continue
        last = row
        if closing.get(row.seq, 0) > row.revision and row.item_id is not None:
            state.items.setdefault(row.item_id, _CLOSES_BELOW)
            continue
        opening = None if row.origin is None else at_hand.get(row.origin) or openings.get(row.origin)
        parts = parts_of(row, body_of(row), opening, mint)
        for k, (method, members) in enumerate(parts[first:], first):
            rule = RULES[method]
            if "viewCursor" in rule.needs:
                members["viewCursor"] = mint(Position(row.seq, k), row.hash[:CHAIN_BYTES])
            rule.fold(state, members)
    if last is None:
        return after
    for k in range(_first_after(last, after), last.frames):
        advance(state, mint(Position(last.seq, k), last.hash[:CHAIN_BYTES]), last.seq)
    return Position(last.seq, last.frames - 1)


def _first_after(row: LogRow, after: Position) -> int:
    """The first frame of `row` that lies after `after`, whether or not there is one."""
    if row.seq == after.seq:
        return after.k + 1
    return 0 if row.seq > after.seq else row.frames
