"""Reading a Session's log as frames, and its present state as a fold.

Reads take a `Reader`, so that a service sees Session row, frames and state in one consistent view. Everything is read
after a position the caller names; nothing here waits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final

from refold.canonical import Json
from refold.errors import BoundaryPruned, MissingAnchor, NotFound, StoreDamaged
from refold.records import BoundaryRow, LogRow, SessionRecord
from refold.store import Reader, bodies, told, verify_log
from refold.view import (
    ANCHOR,
    CHAIN_BYTES,
    GENESIS,
    Claim,
    Frame,
    Mint,
    Position,
    ViewState,
    apply_all,
    catch_up,
    decode,
    frames_after,
    holds,
    last_cursor,
    minter,
    origins,
    render,
    start_of_page,
)

Frames = list[tuple[Position, Frame]]
Start = Callable[[Reader, "SessionLog", SessionRecord], tuple[ViewState, Position]]
"""Where a fold begins: at a boundary, or at an empty state before the first frame."""

READ_ROWS: Final = 512
"""Log rows per read: enough to share the cost of a statement, few enough to keep memory and loop time small."""

KEPT_STATES: Final = 64
"""Folded states that are kept between reads, newest use last. A state is only a cache of what the log says."""


KEPT_BYTES: Final = 128 * 1024 * 1024
"""What they may weigh together, as JSON, when last weighed: long Sessions are not kept by tens."""


class SessionLog:
    """The logs of a store, seen through its MAC key."""

    def __init__(self, key: bytes, start: Start | None = None) -> None:
        self._key = key
        self._start = start or (lambda reader, log, session: (ViewState(), GENESIS))
        self._states: dict[int, tuple[ViewState, Position]] = {}
        self._checked: dict[int, None] = {}
        self.turns: dict[int, tuple[int, Json]] = {}
        """By Session, the last turn that had ended at a seq: see `boundaries.last_turn`."""

    def mint(self, session: SessionRecord) -> Mint:
        """What turns positions of this Session into cursors."""
        return minter(self._key, session.session_id)

    def position(self, reader: Reader, session: SessionRecord, cursor: str) -> tuple[Position, bool]:
        """The position that `cursor` names in this history of this Session, and whether it is held.

        Held: every durable event after it is retained. A position behind the floor was real, for its MAC says so; its
        row is gone. Raises MissingAnchor for any cursor that never was one here, BoundaryPruned for an anchor whose
        boundary retention has taken.
        """
        claim: Claim = decode(self._key, session.session_id, cursor)
        at = claim.position
        if claim.fragment == ANCHOR:
            boundary = reader.get(BoundaryRow, session.n, at.seq)
            if boundary is not None and boundary.pruned:
                raise self._pruned(reader, session, cursor)
        row = reader.get(LogRow, session.n, at.seq)
        if at.seq < session.floor:
            return at, False
        if row is None or not holds(claim, row):
            raise MissingAnchor(session.session_id)
        return at, at.seq > session.floor or at.k == row.frames - 1

    def _pruned(self, reader: Reader, session: SessionRecord, anchor: str) -> BoundaryPruned:
        newest = reader.find(BoundaryRow, session=session.n, newest_first=True, limit=1)[0]
        row = reader.get(LogRow, session.n, newest.seq)
        latest = None if newest.pruned or row is None else last_cursor(row, self.mint(session))
        return BoundaryPruned(
            "the boundary of this anchor was pruned; anchor at the latest one",
            session_id=session.session_id,
            anchor=anchor,
            latest_boundary_cursor=latest,
        )

    def earliest(self, reader: Reader, session: SessionRecord) -> str | None:
        """The cursor of the earliest position that is held; None if everything is retained."""
        floor = self.floor(reader, session)
        return None if floor == GENESIS else self.cursor(reader, session, floor)

    def cursor(self, reader: Reader, session: SessionRecord, position: Position) -> str | None:
        """The cursor of a position; None if its row is not retained."""
        row = reader.get(LogRow, session.n, position.seq)
        return None if row is None else self.mint(session)(position, row.hash[:CHAIN_BYTES])

    def floor(self, reader: Reader, session: SessionRecord) -> Position:
        """The earliest position that is held, `GENESIS` if everything is retained."""
        row = reader.get(LogRow, session.n, session.floor) if session.floor else None
        return GENESIS if row is None else Position(row.seq, row.frames - 1)

    def head(self, reader: Reader, session: SessionRecord) -> str:
        """The cursor of the newest frame. Every Session has one: its creation."""
        before = session.seq + 1
        while rows := reader.log_before(session.n, before, 16):
            for row in reversed(rows):
                if row.frames:
                    return last_cursor(row, self.mint(session))
            before = rows[0].seq
        raise MissingAnchor(session.session_id)

    def asked(self, reader: Reader, session: SessionRecord, seq: int) -> Frame:
        """The frame that asks, of the record that opened a request.

        It is the last of its record, and the one before it is of the same record. So it is the same frame, byte for
        byte, where retention has taken all that lay before that.
        """
        row = reader.get(LogRow, session.n, seq)
        if row is None:
            raise StoreDamaged(f"log row {seq} opened a request that is still open, and is gone", seq=seq)
        return render(row, None, session.session_id, self.mint(session), None)[-1]

    def after(
        self,
        reader: Reader,
        session: SessionRecord,
        position: Position,
        limit: int | None = None,
        *,
        nbytes: int | None = None,
    ) -> Frames:
        """The frames strictly after `position`, ascending: `limit` of them, or some; none only at the end of the log.

        With `nbytes` the frames end with the row whose body makes it so many bytes. The walk begins at the row of
        `position`, which is part of what it needs (see `view.page`).
        """
        wanted = READ_ROWS if limit is None else min(READ_ROWS, limit + 1)
        while True:
            rows = reader.log(session.n, max(0, position.seq - 1), wanted)
            verify_log(session, rows, to_end=len(rows) < wanted)
            frames = list(self._walk(reader, session, _told(reader, rows, position, nbytes), position))
            if frames or len(rows) < wanted:
                return frames[:limit]
            wanted *= 2  # nothing but rows without a frame: markers of many loads

    def before(self, reader: Reader, session: SessionRecord, position: Position | None, limit: int) -> Frames:
        """The last `limit` frames strictly before `position` (None: before the end), ascending."""
        until = position if position is not None else Position(session.seq + 1, 0)
        floor, wanted = self.floor(reader, session), limit + 2
        while True:
            found = reader.log_before(session.n, until.seq + 1, wanted)
            rows = [row for row in found if row.seq >= session.floor]
            start = start_of_page(rows, until, limit)
            if start is None and rows[0].seq == session.floor:
                start = floor  # what lies before it is not retained
            if start is not None:
                break
            wanted *= 2
        start = max(start, floor)
        first = [row for row in rows if row.seq >= start.seq]
        verify_log(session, first, to_end=position is None)
        return list(self._walk(reader, session, _told(reader, first, start), start, until))

    def state(
        self, reader: Reader, session: SessionRecord, begin: Callable[[], tuple[ViewState, Position]] | None = None
    ) -> ViewState:
        """The fold of the whole view as `reader` sees it. Do not change it: later reads go on from it.

        For committed data only: inside a transaction that may yet fail, use `fold`. `begin` gives where a fold may
        begin, from what the caller has at hand anyway.
        """
        kept = self._kept(reader, session)
        self._states.pop(session.n, None)  # also the caches' order: newest use last
        state, position = kept or (self._start(reader, self, session) if begin is None else begin())
        self._states[session.n] = (state, self._caught_up(reader, session, state, position))
        while len(self._states) > 1 and (len(self._states) > KEPT_STATES or self._weight() > KEPT_BYTES):
            self.forget(next(iter(self._states)))
        return state

    def _weight(self) -> int:
        return sum(state.tally.weight for state, _ in self._states.values())

    def keeps(self, reader: Reader, session: SessionRecord) -> bool:
        """Whether `state` would go on from what it has, instead of beginning at a boundary."""
        return self._kept(reader, session) is not None

    def note_turn(self, session: SessionRecord, turn: Json) -> None:
        """Keeps the last turn that had ended when the log ended where it does, for who looks from there."""
        self.turns.pop(session.n, None)
        self.turns[session.n] = (session.seq, turn)
        while len(self.turns) > KEPT_STATES:
            del self.turns[next(iter(self.turns))]

    def has_checked(self, session: SessionRecord) -> bool:
        """Whether `note_checked` was told of it: this process has seen that all is there that its boundaries hold."""
        return session.n in self._checked

    def note_checked(self, session: SessionRecord) -> None:
        """Keeps that in mind, until the Session is unloaded."""
        self._checked.pop(session.n, None)
        self._checked[session.n] = None
        while len(self._checked) > KEPT_STATES:
            del self._checked[next(iter(self._checked))]

    def shown(self, reader: Reader, session: SessionRecord, row: LogRow) -> ViewState:
        """What the frames of one row say by themselves."""
        opening = None if row.origin is None else reader.get(LogRow, session.n, row.origin)
        return apply_all(ViewState(), render(told(reader, row), opening, session.session_id, self.mint(session), None))

    def forget(self, session_n: int) -> None:
        """Drops the state that is kept of a Session: it is unloaded."""
        self._states.pop(session_n, None)
        self._checked.pop(session_n, None)

    def fold(
        self, reader: Reader, session: SessionRecord, begin: tuple[ViewState, Position] | None = None
    ) -> ViewState:
        """The same fold as a value of the caller's own. `begin` is taken to the end of the log, if there is one."""
        state, position = begin or self._start(reader, self, session)
        self._caught_up(reader, session, state, position)
        return state

    def _kept(self, reader: Reader, session: SessionRecord) -> tuple[ViewState, Position] | None:
        """The state that is kept, unless retention has meanwhile taken what it would go on from."""
        kept = self._states.get(session.n)
        if kept is None or (session.floor and kept[1] < self.floor(reader, session)):
            return None
        return kept

    def _caught_up(self, reader: Reader, session: SessionRecord, state: ViewState, position: Position) -> Position:
        mint, body_of, seen = self.mint(session), bodies(reader), position.seq
        while True:
            rows = reader.log(session.n, max(0, seen - 1), READ_ROWS)
            is_end = len(rows) < READ_ROWS
            verify_log(session, rows, to_end=is_end)
            openings = self._openings(reader, session, rows)
            position = catch_up(state, rows, openings, body_of, position, mint)
            if is_end:
                return position
            seen = rows[-1].seq

    def _walk(
        self,
        reader: Reader,
        session: SessionRecord,
        rows: Sequence[LogRow],
        after: Position,
        until: Position | None = None,
    ) -> Iterator[tuple[Position, Frame]]:
        openings = self._openings(reader, session, rows)
        return frames_after(rows, openings, session.session_id, self.mint(session), after, until)

    def _openings(self, reader: Reader, session: SessionRecord, rows: Sequence[LogRow]) -> dict[int, LogRow]:
        """The rows that opened what `rows` close, and are not among them.

        Lanes of a fan-out open one after the other, and close that way later: such rows are read at once.
        """
        wanted = origins(rows)
        first, last = min(wanted, default=0), max(wanted, default=0)
        if last - first < 2 * len(wanted):
            found = reader.log(session.n, first - 1, last - first + 1)
        else:
            found = [row for seq in wanted if (row := reader.get(LogRow, session.n, seq)) is not None]
        return {row.seq: row for row in found if row.seq in wanted}


def find_session(reader: Reader, session_id: str) -> SessionRecord:
    """The row of a Session; raises NotFound."""
    found = reader.find(SessionRecord, session_id=session_id)
    if not found:
        raise NotFound(f"there is no session {session_id[:80]!r}", kind="session_not_found", session_id=session_id[:80])
    return found[0]


def _told(reader: Reader, rows: Sequence[LogRow], position: Position, nbytes: int | None = None) -> list[LogRow]:
    """The rows with what they name put back where it is to be shown: in those behind `position`.

    With `nbytes` the first of them up to so many bytes of bodies, and at least one that has a frame after `position`.
    """
    shown: list[LogRow] = []
    size = 0
    for row in rows:
        if row.seq > position.seq:
            row = told(reader, row)
            size += len(row.body_json)
        shown.append(row)
        if nbytes is not None and size >= nbytes and row.frames and row.seq > position.seq:
            break
    return shown
