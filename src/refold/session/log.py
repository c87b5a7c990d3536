"""Reading a Session's log as frames, and its present state as a fold.

Reads take a `Reader`, so that a service sees Session row, frames and state in one consistent view. Everything is read
after a position the caller names; nothing here waits.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from refold.errors import MissingAnchor
from refold.records import LogRow, SessionRecord
from refold.store import Reader
from refold.view import (
    GENESIS,
    Claim,
    Frame,
    Mint,
    Position,
    ViewState,
    apply_all,
    decode,
    frames_after,
    holds,
    last_cursor,
    minter,
    origins,
    start_of_page,
)

Frames = list[tuple[Position, Frame]]

READ_ROWS: Final = 512
"""Log rows per read: enough to share the cost of a statement, few enough to keep memory and loop time small."""

KEPT_STATES: Final = 64
"""Folded states that are kept between reads, newest use last. A state is only a cache of what the log says."""


class SessionLog:
    """The logs of a store, seen through its MAC key."""

    def __init__(self, key: bytes) -> None:
        self._key = key
        self._states: dict[int, tuple[ViewState, Position]] = {}

    def mint(self, session: SessionRecord) -> Mint:
        """What turns positions of this Session into cursors."""
        return minter(self._key, session.session_id)

    def position(self, reader: Reader, session: SessionRecord, cursor: str) -> Position:
        """The position that `cursor` names in this history of this Session; raises MissingAnchor for any other."""
        claim: Claim = decode(self._key, session.session_id, cursor)
        if not holds(claim, reader.get(LogRow, session.n, claim.position.seq)):
            raise MissingAnchor(session.session_id)
        return claim.position

    def head(self, reader: Reader, session: SessionRecord) -> str:
        """The cursor of the newest frame. Every Session has one: its creation."""
        before = session.seq + 1
        while rows := reader.log_before(session.n, before, 16):
            for row in reversed(rows):
                if row.frames:
                    return last_cursor(row, self.mint(session))
            before = rows[0].seq
        raise MissingAnchor(session.session_id)

    def frame(self, reader: Reader, session: SessionRecord, seq: int, k: int) -> Frame:
        """Frame `k` of the row at `seq`."""
        before = self.before(reader, session, Position(seq, k), 1)
        start = before[-1][0] if before else GENESIS
        return self.after(reader, session, start, 1)[0][1]

    def after(self, reader: Reader, session: SessionRecord, position: Position, limit: int | None = None) -> Frames:
        """The frames strictly after `position`, ascending: `limit` of them, or some; none only at the end of the log.

        The walk begins at the row of `position`, which is part of what it needs (see `view.page`).
        """
        wanted = READ_ROWS if limit is None else min(READ_ROWS, limit + 1)
        while True:
            rows = reader.log(session.n, max(0, position.seq - 1), wanted)
            frames = list(self._walk(reader, session, rows, position))
            if frames or len(rows) < wanted:
                return frames[:limit]
            wanted *= 2  # nothing but rows without a frame: markers of many loads

    def before(self, reader: Reader, session: SessionRecord, position: Position | None, limit: int) -> Frames:
        """The last `limit` frames strictly before `position` (None: before the end), ascending."""
        until = position if position is not None else Position(session.seq + 1, 0)
        wanted = limit + 2
        while True:
            rows = reader.log_before(session.n, until.seq + 1, wanted)
            start = start_of_page(rows, until, limit)
            if start is not None:
                break
            wanted *= 2
        first = [row for row in rows if row.seq >= start.seq]
        return list(self._walk(reader, session, first, start, until))

    def state(self, reader: Reader, session: SessionRecord) -> ViewState:
        """The fold of the whole view as `reader` sees it. Do not change it: later reads go on from it."""
        state, position = self._states.pop(session.n, (ViewState(), GENESIS))
        while frames := self.after(reader, session, position):
            apply_all(state, (frame for _, frame in frames))
            position = frames[-1][0]
        self._states[session.n] = (state, position)
        while len(self._states) > KEPT_STATES:
            del self._states[next(iter(self._states))]
        return state

    def _walk(
        self,
        reader: Reader,
        session: SessionRecord,
        rows: Sequence[LogRow],
        after: Position,
        until: Position | None = None,
    ) -> Iterator[tuple[Position, Frame]]:
        openings = {seq: row for seq in origins(rows) if (row := reader.get(LogRow, session.n, seq)) is not None}
        return frames_after(rows, openings, session.session_id, self.mint(session), after, until)
