"""Compaction boundaries: durable folded states, from which a resume costs what happened since, not all that ever did.

A boundary is installed with the record that shows it, in one transaction, and never changes. Its items stand in
segments of `SEGMENT` items in first-opened order, content-addressed: what has not changed since the last boundary is
not written again. An output that stands in a replay row is named in them, as it is in the log, and put back when the
segment is read. A boundary that cannot be read back whole is unusable, and said to be; it is never replaced by a fold
from genesis in its name.

A boundary goes on from the one before: of its items only those are read, and held, that have changed since.

Retention takes away what lies behind a boundary: rows that no retained event needs, and boundaries beyond the newest.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any, Final, NamedTuple

import msgspec

from refold import view
from refold.canonical import canonical, decode, digest, encode_known
from refold.errors import InvalidJson, StoreDamaged
from refold.records import (
    BoundaryRow,
    LogRecord,
    LogRow,
    LogType,
    OutputName,
    SessionRecord,
    ValueRow,
    output_name,
)
from refold.session.log import SessionLog
from refold.store import Reader, Tx, append_log, expanded, output_text, put_json, value_text
from refold.view import ANCHOR, CHAIN_BYTES, Position, Rung, ViewState

Json = Any

SEGMENT: Final = 64
"""Items per segment: a changed item costs the rewriting of so many."""

READ_ROWS: Final = 512
"""Log rows per read while old ones are taken away."""

ENDS_ROWS: Final = 32
"""Log rows per read while the end of a turn is looked for, from the head backwards."""

BOUNDARY_FRAME: Final = 1
"""Which frame of its record is the boundary: the one that completes the compaction item."""

_OPENS: Final = frozenset(
    {
        LogType.TURN_OPENED,
        LogType.TURN_WOKEN,
        LogType.STEP_DISPATCHED,
        LogType.APPROVAL_OPENED,
        LogType.INPUT_OPENED,
    }
)
_CLOSES: Final = frozenset({LogType.TURN_COMPLETED, LogType.TURN_ENDED, LogType.STEP_COMPLETED})
"""The records that open an item, and those that close one: a closing frame repeats what its opening says."""

_ENDS: Final = (LogType.TURN_COMPLETED, LogType.TURN_ENDED, LogType.TURN_REFUSED)
"""The records that end a turn."""

_OUTPUT: Final = "visibleOutput"
"""The member of an item whose text may stand in a replay row."""

_DAMAGES: Final = (InvalidJson, StoreDamaged, AttributeError, KeyError, TypeError)
"""What reading a boundary back may raise, whatever shape its damage has."""


class Boundary(msgspec.Struct, frozen=True, kw_only=True):
    """A usable boundary: where it is, the state there as a snapshot, and the last turn, which a snapshot leaves out."""

    position: Position
    snapshot: Json
    last_turn: Json
    size: int
    """The bytes of the history that serves it."""


class Grown(NamedTuple):
    """What has become of a Session since its last boundary.

    `state` goes on from there. Of the items that the boundary has it holds only those that have changed since, for to
    hold them all would cost what the Session weighs. Where no boundary can be gone on from it holds everything.
    """

    state: ViewState
    segments: list[str]
    """The segments of that boundary, by name."""
    held: Mapping[str, Place]
    """Where in them the changed items are, by id."""
    names: Mapping[str, OutputName]
    """The outputs since, by item, that stand in replay rows."""


class Place(NamedTuple):
    """Where an item stands: in which segment, counted from 0, and what it was there."""

    segment: int
    item: Json


def install(tx: Tx, log: SessionLog, session: SessionRecord, record: LogRecord) -> BoundaryRow:
    """Appends `record` and installs the boundary that it shows: the state that includes it.

    It costs what has changed since the boundary before, in time and in memory, not what the Session weighs. The first
    one that a process installs in a Session also looks whether all that the one before holds is there.
    """
    (row,) = append_log(tx, session.n, [record])
    grown = _grown(tx, log, session)
    state = grown.state
    rest = view.snapshot_state(state)
    del rest["items"]
    segments = _segments(tx, grown)
    segments_json = put_json(tx, encode_known(segments))  # beside the row if long: a cursor needs the row only
    stored = {"state": rest, "foldDigest": view.fold_digest(state), "last_turn": state.last_turn}
    without_items = _size_without_items(log, session, row, stored)
    totals = state.tally.totals(state.items)
    boundary = BoundaryRow(
        session=session.n,
        seq=row.seq,
        at=row.at,
        rest_json=encode_known(stored | {"seal": _seal(row.seq, stored, segments_json)}),
        segments_json=segments_json,
        size=without_items + totals.size,
        elided=without_items + totals.elided,
    )
    return tx.insert(boundary)


def _size_without_items(log: SessionLog, session: SessionRecord, row: LogRow, stored: Json) -> int:
    """The bytes of the history that serves a boundary, but for the array of its items."""
    return len(canonical(view.history(Rung.ANCHORED, _snapshot(log, session, row, stored, [])))) - len("[]")


def _grown(reader: Reader, log: SessionLog, session: SessionRecord) -> Grown:
    for row in reader.find(BoundaryRow, session=session.n, newest_first=True, limit=1):
        if row.pruned or row.seq <= session.floor:
            break
        with contextlib.suppress(*_DAMAGES):
            if (grown := _grown_since(reader, log, session, row)) is not None:
                return grown
    _, names = _closed(reader, session, 0)
    return Grown(log.fold(reader, session), [], {}, names)


def _grown_since(reader: Reader, log: SessionLog, session: SessionRecord, row: BoundaryRow) -> Grown | None:
    """What has become of the Session since this boundary; None if that is damaged. Raises what damage may raise."""
    shown, stored = reader.get(LogRow, session.n, row.seq), _rest(row)
    if shown is None or shown.type != LogType.COMPACTED or stored is None:
        return None
    segments = _names_of_segments(reader, row)
    if not log.has_checked(session):
        if not all(value_text(reader, name) for name in segments):
            return None
        log.note_checked(session)
    changed, names = _closed(reader, session, row.seq)
    held = _places(reader, segments, changed)
    if held.keys() != changed:
        return None
    around = _size_without_items(log, session, shown, stored)
    state = view.seed_some(
        _snapshot(log, session, shown, stored, [place.item for place in held.values()]),
        count=_count(reader, segments),
        size=row.size - around,
        elided=row.elided - around,
    )
    state.last_turn = stored["last_turn"]
    log.fold(reader, session, (state, Position(row.seq, BOUNDARY_FRAME)))
    return Grown(state, segments, held, names)


def _closed(reader: Reader, session: SessionRecord, begun: int) -> tuple[set[str], dict[str, OutputName]]:
    """The items that were open at seq `begun` and are closed since; and the outputs since, by item, that are named."""
    changed, names = set[str](), dict[str, OutputName]()
    for kind in _CLOSES:
        after = begun
        while rows := reader.find(LogRow, session=session.n, type=kind, after=after, limit=READ_ROWS):
            for row in rows:
                if row.origin is not None and row.origin <= begun:
                    changed.add(view.closed_item(row))
                if (name := output_name(row)) is not None:
                    names[view.closed_item(row)] = name
            after = rows[-1].seq
    return changed, names


def _places(reader: Reader, segments: list[str], wanted: set[str]) -> dict[str, Place]:
    """Where these items are. Looked for from the end: what changes was mostly opened lately."""
    found: dict[str, Place] = {}
    for n in reversed(range(len(segments))):
        if len(found) == len(wanted):
            break
        for item in _stored(reader, segments[n]):
            if item["itemId"] in wanted:
                found[item["itemId"]] = Place(n, _whole(reader, item))
    return found


def _count(reader: Reader, segments: list[str]) -> int:
    """How many items there are: all segments are full but the last, which holds something."""
    return (len(segments) - 1) * SEGMENT + len(_stored(reader, segments[-1])) if segments else 0


def _segments(tx: Tx, grown: Grown) -> list[str]:
    """The names of the segments that hold the items as they are now, all of them stored.

    Those in which nothing has changed are not written, and not looked at. The last one is filled up first.
    """
    segments, items = list(grown.segments), grown.state.items
    new = [_with_name(item, grown.names.get(key)) for key, item in items.items() if key not in grown.held]
    for n in {place.segment for key, place in grown.held.items() if items[key] is not place.item}:
        segments[n] = _put_segment(tx, [_changed(item, grown) for item in _stored(tx, segments[n])])
    if segments:
        last = _stored(tx, segments[-1])
        if new and len(last) < SEGMENT:
            free = SEGMENT - len(last)
            segments[-1] = _put_segment(tx, last + new[:free])
            new = new[free:]
    return segments + [_put_segment(tx, new[at : at + SEGMENT]) for at in range(0, len(new), SEGMENT)]


def _changed(item: Json, grown: Grown) -> Json:
    """An item of a segment as it is now."""
    key = item["itemId"]
    now = grown.state.items.get(key)
    return item if now is None or now is grown.held[key].item else _with_name(now, grown.names.get(key))


def _put_segment(tx: Tx, items: list[Json]) -> str:
    text = encode_known(items)
    name = hashlib.sha256(text.encode()).hexdigest()
    tx.put(ValueRow(digest=name, body=text))
    return name


def _names_of_segments(reader: Reader, row: BoundaryRow) -> list[str]:
    """Raises StoreDamaged."""
    return decode(expanded(reader, row.segments_json) or "")


def _with_name(item: Json, name: OutputName | None) -> Json:
    output = item.get(_OUTPUT)
    if name is None or output is None or hashlib.sha256(output.encode()).hexdigest() != name.ref:
        return item  # an item may have been completed anew since it was named: then its text is another
    return item | {_OUTPUT: list(name)}


def _name_in(item: Json) -> OutputName | None:
    output = item.get(_OUTPUT)
    return OutputName(*output) if isinstance(output, list) else None


def _seal(seq: int, stored: Json, segments_json: str) -> str:
    """What a boundary must carry: a flipped bit in any part of it, or a segment of another one, changes it."""
    return digest([seq, stored, segments_json])


def _snapshot(log: SessionLog, session: SessionRecord, row: LogRow, stored: Json, items: list[Json]) -> Json:
    mint, chain8, at = log.mint(session), row.hash[:CHAIN_BYTES], Position(row.seq, BOUNDARY_FRAME)
    cursor = mint(at, chain8)
    return {
        "schemaVersion": view.SCHEMA_VERSION,
        "viewCursor": cursor,
        "state": stored["state"] | {"items": items},
        "foldDigest": stored["foldDigest"],
        "anchor": {"boundaryCursor": cursor, "summarizedThrough": mint(at, chain8, ANCHOR)},
    }


# -- reading back -----------------------------------------------------------------------------------------------------


def latest(reader: Reader, session: SessionRecord) -> BoundaryRow | None:
    """The newest boundary of a Session that retention has not taken."""
    for row in reader.find(BoundaryRow, session=session.n, newest_first=True, limit=1):
        return None if row.pruned else row
    return None


def count_items(reader: Reader, session: SessionRecord) -> int:
    """How many items the fold of the Session had at its last boundary: none ever leaves it. 0 where that is damaged."""
    row = latest(reader, session)
    with contextlib.suppress(*_DAMAGES):
        return 0 if row is None or _rest(row) is None else _count(reader, _names_of_segments(reader, row))
    return 0


def cursor_of(reader: Reader, log: SessionLog, session: SessionRecord, row: BoundaryRow) -> str | None:
    """The cursor of the boundary; None if the record that shows it is lost."""
    return log.cursor(reader, session, Position(row.seq, BOUNDARY_FRAME))


def load(reader: Reader, log: SessionLog, session: SessionRecord, row: BoundaryRow) -> Boundary | None:
    """Reads a boundary back, checked; None if it is unusable."""
    shown = reader.get(LogRow, session.n, row.seq)
    if shown is None or shown.type != LogType.COMPACTED:
        return None
    stored = _rest(row)
    if stored is None:
        return None
    try:
        items = [item for name in _names_of_segments(reader, row) for item in _segment(reader, name)]
    except _DAMAGES:
        return None
    return Boundary(
        position=Position(row.seq, BOUNDARY_FRAME),
        snapshot=_snapshot(log, session, shown, stored, items),
        last_turn=stored["last_turn"],
        size=row.size,
    )


def _rest(row: BoundaryRow) -> Json:
    """What a boundary holds beside its items; None if it is damaged. Shared: do not change it."""
    return _checked(row.seq, row.rest_json, row.segments_json)


@lru_cache(maxsize=64)
def _checked(seq: int, rest_json: str, segments_json: str) -> Json:
    """Every client that comes with a cursor looks at the newest boundary, and most of them at the same one."""
    try:
        stored = decode(rest_json)
        return stored if stored.pop("seal") == _seal(seq, stored, segments_json) else None
    except _DAMAGES:
        return None


def _segment(reader: Reader, segment: str) -> list[Json]:
    """The items of a segment, whole. Raises StoreDamaged."""
    return [_whole(reader, item) for item in _stored(reader, segment)]


def _whole(reader: Reader, item: Json) -> Json:
    """An item of a segment with its output, if that is named. Raises StoreDamaged."""
    return item if (name := _name_in(item)) is None else item | {_OUTPUT: output_text(reader, name)}


def _stored(reader: Reader, segment: str) -> list[Json]:
    """The items of a segment as they are stored. Raises StoreDamaged."""
    text = value_text(reader, segment)
    if text is None:
        raise StoreDamaged(f"segment {segment} is not stored", digest=segment)
    return decode(text)


def named_texts(reader: Reader, row: BoundaryRow) -> Iterator[str]:
    """Yields the digests of the texts without which a boundary cannot be read back, or its items not be read whole.

    What is damaged is passed over: it makes this boundary unusable, and nothing else.
    """
    with contextlib.suppress(*_DAMAGES):
        segments = _names_of_segments(reader, row)
        if row.segments_json.startswith("@"):
            yield row.segments_json[1:]
        for segment in segments:
            items = _stored(reader, segment)
            yield segment
            for item in items:
                yield from view.texts_of_item(item)
                if (name := _name_in(item)) is not None:
                    yield name.ref


def seeded(boundary: Boundary) -> tuple[ViewState, Position]:
    """The fold that a boundary holds, and where it goes on from."""
    state = view.seed(boundary.snapshot)
    state.last_turn = boundary.last_turn
    return state, boundary.position


def start(reader: Reader, log: SessionLog, session: SessionRecord) -> tuple[ViewState, Position]:
    """Where a fold of this Session begins: at its latest usable boundary, so that it costs what happened since.

    Raises StoreDamaged if there is none, and the events before are not retained either.
    """
    for row in reader.find(BoundaryRow, session=session.n, pruned=False, newest_first=True):
        boundary = load(reader, log, session, row) if row.seq > session.floor else None
        if boundary is not None:
            return seeded(boundary)
    if session.floor:
        raise StoreDamaged(
            f"session {session.session_id}: its boundaries are damaged, and the events before them are not retained",
            session_id=session.session_id,
        )
    return ViewState(), view.GENESIS


def last_turn(reader: Reader, log: SessionLog, session: SessionRecord) -> Json:
    """The last turn that ended, as the fold of the whole view has it, without reading an item where that can be helped.

    A client that comes with its cursor is served no state. To fold all items for this one member would make its attach
    cost what the whole Session weighs.
    """
    if log.keeps(reader, session):
        return log.state(reader, session).last_turn
    begun, turn = log.turns.get(session.n, (0, None))
    row = latest(reader, session)
    if row is not None and row.seq > begun:
        stored = _rest(row)
        if stored is None:
            return log.state(reader, session).last_turn
        begun, turn = row.seq, stored["last_turn"]
    elif begun < session.floor:
        return log.state(reader, session).last_turn
    if (end := _last_end(reader, session, begun)) is not None:
        turn = log.shown(reader, session, end).last_turn
    log.note_turn(session, turn)
    return turn


def _last_end(reader: Reader, session: SessionRecord, after: int) -> LogRow | None:
    """The newest record that ended a turn, of those behind `after`."""
    before = session.seq + 1
    while rows := reader.log_before(session.n, before, min(ENDS_ROWS, before - 1 - after)):
        for row in reversed(rows):
            if row.type in _ENDS:
                return row
        before = rows[0].seq
    return None


# -- retention --------------------------------------------------------------------------------------------------------


def prune(tx: Tx, session: SessionRecord, *, retain_events: int, keep_boundaries: int) -> None:
    """Takes away boundaries beyond the newest, and, with `retain_events`, rows behind the oldest one that is left.

    What lies after a boundary is never taken. The row before it stays too, for its cursor is the earliest that is held;
    so do the openings of items that are still open, without which their closing could not be shown.
    """
    rows = tx.find(BoundaryRow, session=session.n, pruned=False, newest_first=True)
    floor = _new_floor(tx, session, rows[:keep_boundaries], retain_events) if retain_events else session.floor
    if floor > session.floor:
        _take_away(tx, session, floor)
    for n, row in enumerate(rows):
        if n >= keep_boundaries or row.seq < floor:
            tx.update(BoundaryRow, (row.session, row.seq), pruned=True)


def _new_floor(reader: Reader, session: SessionRecord, rows: list[BoundaryRow], retain_events: int) -> int:
    """The row before the newest boundary that has as many rows behind it as must stay; else the floor as it is."""
    for row in rows:
        before = _last_framed(reader, session, row.seq)
        if before is not None and session.floor < before.seq <= session.seq - retain_events:
            return before.seq
    return session.floor


def _take_away(tx: Tx, session: SessionRecord, floor: int) -> None:
    """Deletes the rows before `floor`, but for the openings of what is open there."""
    rows = list(_rows_to(tx, session, floor))
    closed = {origin for _, kind, origin in rows if kind in _CLOSES}
    for seq, kind, _ in rows:
        if seq < floor and (kind not in _OPENS or seq in closed):
            tx.delete(LogRow, session=session.n, seq=seq)
    tx.update(SessionRecord, (session.n,), floor=floor)


def _last_framed(reader: Reader, session: SessionRecord, before: int) -> LogRow | None:
    while rows := reader.log_before(session.n, before, 16):
        for row in reversed(rows):
            if row.frames:
                return row
        before = rows[0].seq
    return None


def _rows_to(reader: Reader, session: SessionRecord, seq: int) -> Iterator[tuple[int, str, int | None]]:
    """Seq, type and origin of the rows up to `seq`; also of openings that were kept when others were taken."""
    at = 0
    while rows := reader.find(LogRow, session=session.n, after=at, before=seq + 1, limit=READ_ROWS):
        yield from ((row.seq, row.type, row.origin) for row in rows)
        at = rows[-1].seq
