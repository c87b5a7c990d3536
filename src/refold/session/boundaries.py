"""Compaction boundaries: durable folded states, from which a resume costs what happened since, not all that ever did.

A boundary is installed with the record that shows it, in one transaction, and never changes. Its items stand in
segments of `SEGMENT` items in first-opened order, content-addressed: what has not changed since the last boundary is
not written again. A boundary that cannot be read back whole is unusable, and said to be; it is never replaced by a fold
from genesis in its name.

Retention takes away what lies behind a boundary: rows that no retained event needs, and boundaries beyond the newest.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Any, Final

import msgspec

from refold import view
from refold.canonical import canonical, decode, encode
from refold.errors import InvalidJson
from refold.records import BoundaryRow, LogRecord, LogRow, SessionRecord, ValueRow
from refold.session.log import SessionLog
from refold.store import Reader, Tx, append_log
from refold.view import Position, ViewState

Json = Any

SEGMENT: Final = 64
"""Items per segment: a changed item costs the rewriting of so many."""

BOUNDARY_FRAME: Final = 1
"""Which frame of its record is the boundary: the one that completes the compaction item."""


class Boundary(msgspec.Struct, frozen=True, kw_only=True):
    """A usable boundary: where it is, and the state there as a snapshot."""

    row: BoundaryRow
    cursor: str
    anchor: str
    snapshot: Json
    last_turn: Json


def install(tx: Tx, log: SessionLog, session: SessionRecord, record: LogRecord) -> BoundaryRow:
    """Appends `record` and installs the boundary that it shows: the state that includes it."""
    (row,) = append_log(tx, session.n, [record])
    return _write(tx, session, row, log.fold(tx, session))


def _write(tx: Tx, session: SessionRecord, row: LogRow, state: ViewState) -> BoundaryRow:
    rest, items = view.snapshot_state(state), list(state.items.values())
    del rest["items"]
    segments, size, elided = [], 0, 0
    for at in range(0, len(items), SEGMENT):
        text = encode(items[at : at + SEGMENT])
        digest = hashlib.sha256(text.encode()).hexdigest()
        tx.put(ValueRow(digest=digest, body=text))
        segments.append(digest)
    for item in items:
        size += len(canonical(item)) + 1
        elided += len(canonical(view.elide_item(item))) + 1
    stored = {"state": rest, "foldDigest": view.fold_digest(state), "last_turn": state.last_turn}
    boundary = BoundaryRow(
        session=session.n,
        seq=row.seq,
        at=row.at,
        rest_json=encode(stored),
        segments_json=encode(segments),
        size=size + len(canonical(rest)),
        elided=elided + len(canonical(rest)),
    )
    return tx.insert(boundary)


def latest(reader: Reader, session: SessionRecord) -> BoundaryRow | None:
    """The newest boundary of a Session that retention has not taken."""
    for row in reader.find(BoundaryRow, session=session.n, newest_first=True, limit=1):
        return None if row.pruned else row
    return None


def cursor_of(reader: Reader, log: SessionLog, session: SessionRecord, row: BoundaryRow) -> str:
    """The cursor of the boundary."""
    return log.frame(reader, session, row.seq, BOUNDARY_FRAME)["params"]["viewCursor"]


def load(reader: Reader, log: SessionLog, session: SessionRecord, row: BoundaryRow) -> Boundary | None:
    """Reads a boundary back, checked; None if it is unusable."""
    items: list[Json] = []
    try:
        for digest in decode(row.segments_json):
            items += _segment(reader, digest)
        stored = decode(row.rest_json)
    except (InvalidJson, _Unusable):
        return None
    frame = log.frame(reader, session, row.seq, BOUNDARY_FRAME)["params"]
    anchor = {"boundaryCursor": frame["viewCursor"], "summarizedThrough": frame["item"]["summarizedThrough"]}
    snapshot = {
        "schemaVersion": view.SCHEMA_VERSION,
        "viewCursor": frame["viewCursor"],
        "state": stored["state"] | {"items": items},
        "foldDigest": stored["foldDigest"],
        "anchor": anchor,
    }
    return Boundary(
        row=row,
        cursor=frame["viewCursor"],
        anchor=anchor["summarizedThrough"],
        snapshot=snapshot,
        last_turn=stored["last_turn"],
    )


class _Unusable(Exception):
    """A segment that is missing or damaged."""


def _segment(reader: Reader, digest: str) -> list[Json]:
    value = reader.get(ValueRow, digest)
    if value is None or hashlib.sha256(value.body.encode()).hexdigest() != digest:
        raise _Unusable(digest)
    return decode(value.body)


def seeded(boundary: Boundary) -> ViewState:
    """The fold that a boundary holds: frames after its cursor apply to it."""
    state = view.seed(boundary.snapshot)
    state.last_turn = boundary.last_turn
    return state


def start(reader: Reader, log: SessionLog, session: SessionRecord) -> tuple[ViewState, Position]:
    """Where a fold of this Session begins: at its latest boundary, so that it costs what happened since."""
    row = latest(reader, session)
    boundary = None if row is None else load(reader, log, session, row)
    if boundary is None:
        return ViewState(), view.GENESIS
    return seeded(boundary), Position(boundary.row.seq, BOUNDARY_FRAME)


def prune(tx: Tx, session: SessionRecord, *, retain_events: int, keep_boundaries: int) -> None:
    """Takes away boundaries beyond the newest, and, with `retain_events`, rows behind the oldest one that is left.

    What lies after a boundary is never taken. The row before it stays too, for its cursor is the earliest that is held;
    so do the openings of items that are still open, without which their closing could not be shown.
    """
    rows = [row for row in tx.find(BoundaryRow, session=session.n, newest_first=True) if not row.pruned]
    for row in rows[keep_boundaries:]:
        tx.update(BoundaryRow, (row.session, row.seq), pruned=True)
    if not retain_events:
        return
    for row in rows[:keep_boundaries]:
        before = _last_framed(tx, session, row.seq)
        if before is None or before.seq > session.seq - retain_events or before.seq <= session.floor:
            continue
        needed = set(_origins_after(tx, session, before.seq))
        for gone in _rows_before(tx, session, before.seq):
            if gone.seq not in needed:
                tx.delete(LogRow, session=session.n, seq=gone.seq)
        tx.update(SessionRecord, (session.n,), floor=before.seq)
        return


def _last_framed(reader: Reader, session: SessionRecord, before: int) -> LogRow | None:
    while rows := reader.log_before(session.n, before, 16):
        for row in reversed(rows):
            if row.frames:
                return row
        before = rows[0].seq
    return None


def _rows_before(reader: Reader, session: SessionRecord, seq: int) -> Iterator[LogRow]:
    at = session.floor - 1 if session.floor else 0
    while rows := [row for row in reader.log(session.n, at, 512) if row.seq < seq]:
        yield from rows
        at = rows[-1].seq


def _origins_after(reader: Reader, session: SessionRecord, seq: int) -> Iterator[int]:
    at = seq - 1
    while rows := reader.log(session.n, at, 512):
        yield from (row.origin for row in rows if row.origin is not None)
        at = rows[-1].seq
