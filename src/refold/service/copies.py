"""A Run taken out of its store, and the copy that another store makes of it: to be looked at, never to be run.

What goes out is the Run, its Task and its whole Session: other Runs of the Session too, for its log tells of them, and
names what they put out. Beside these rows the key that seals cursors: folds hold cursors (the anchor of a compaction),
and a fold must be the same there as here. Not the ledger, the registered Blueprints, the tokens of operators: nothing
that only a holder needs. What stands in a store is without secrets already.

Law: what is looked up in the copy is what is looked up in the original, as it was when it was exported. A copy is held
by nobody (`store.schema.refuse_copy`); a Run that was running stays `running` in it.

Not here: the text form (`store.portable`), the file of the copy (`store.sqlite`).
"""

from __future__ import annotations

import asyncio
import hashlib
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

from refold import view
from refold.canonical import decode, encode
from refold.engine.clock import Clock
from refold.errors import ImportInvalid, InvalidJson, StoreDamaged, StoreError
from refold.records import (
    FRAMES,
    ActivationRow,
    AttemptRow,
    BoundaryRow,
    CutRow,
    DecisionRow,
    LaunchRow,
    LogRow,
    MetaRow,
    ReplayRow,
    RequestRow,
    Row,
    RunRecord,
    SessionRecord,
    SplicedRow,
    TaskRecord,
    ValueRow,
    output_name,
    parse_id,
)
from refold.service.runs import find_run
from refold.session import boundaries
from refold.store import MemoryStore, Reader, Store, value_text, verify_log, verify_replay
from refold.store.audit import logs_are_dense_and_chained, what_is_named_stands_where_it_is_said_to
from refold.store.base import TABLES
from refold.store.portable import Manifest, Portable, read, write
from refold.store.schema import COPY

MAC_KEY: Final = "mac_key"
"""The fact about a store that seals its cursors (docs/adr/0010)."""
MAC_KEY_BYTES: Final = 32

_OF_RUN: Final = (AttemptRow, ReplayRow, DecisionRow, CutRow, ActivationRow, RequestRow, LaunchRow)
"""What belongs to a Run, by its integer key."""
_CHAINED: Final = (ReplayRow, DecisionRow, CutRow)


class Copies:
    """Takes Runs out of the store."""

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store = store
        self._clock = clock

    async def export(self, run_id: str) -> bytes:
        """The file of a Run, in one piece: its first line has the digest of all that follows.

        Raises InvalidId, NotFound, StoreDamaged.
        """
        parse_id(run_id, "R")
        rows = await self._store.read(lambda reader: collect(reader, run_id))
        # Rows are values, so what is made of them may take its time beside the loop.
        return await asyncio.to_thread(written, rows, run_id, self._clock.now_ms())


# -- out --------------------------------------------------------------------------------------------------------------


def collect(reader: Reader, run_id: str) -> list[Row]:
    """All rows that make up a Run and its Session's view. Raises NotFound, StoreDamaged."""
    run = find_run(reader, run_id)
    task, session = reader.get(TaskRecord, run.task), reader.get(SessionRecord, run.session)
    if task is None or session is None:
        raise StoreDamaged(f"run {run_id}: its Task or its Session is gone", run_id=run_id)
    runs, log = reader.find(RunRecord, session=session.n), reader.log(session.n, 0)
    verify_log(session, [row for row in log if row.seq >= session.floor], to_end=True)
    shown = [*log, *reader.find(BoundaryRow, session=session.n)]
    owned = [row for each in runs for kind in _OF_RUN for row in reader.find(kind, run=each.n)]
    rows = [task, session, *runs, *owned, *shown]
    key = [row for row in (reader.get(MetaRow, MAC_KEY),) if row is not None]
    return [*key, *rows, *_texts(reader, rows, {each.n for each in runs})]


def _texts(reader: Reader, rows: Iterable[Row], runs: set[int]) -> Iterator[ValueRow | SplicedRow]:
    """The long texts that the rows name, each once. Raises StoreDamaged for one that is another by now.

    One that stands in pieces goes out in them if its pieces do: equal texts are stored once, so they may be those of a
    Run of another Task. One that is not stored is no loss by itself: most outputs stand in the row that is named.
    """
    for digest in dict.fromkeys(digest for row in rows for digest in _named(reader, row)):
        spliced = reader.get(SplicedRow, digest)
        if spliced is not None and spliced.run in runs:
            yield spliced
        elif (text := value_text(reader, digest)) is not None:
            yield ValueRow(digest=digest, body=text)


def _named(reader: Reader, row: Row) -> Iterator[str]:
    match row:
        case LogRow():
            yield from view.named_texts(row)
        case BoundaryRow():
            yield from boundaries.named_texts(reader, row)
        case RunRecord(result_json=str(stored)) | ActivationRow(result_json=str(stored)) if stored.startswith("@"):
            yield stored[1:]
        case _:
            pass


def written(rows: Sequence[Row], run_id: str, at: int) -> bytes:
    """The file of the rows of a Run, as exported at `at`. Raises StoreDamaged if no copy could be made of it."""
    fault = _fault(rows, run_id)
    if fault is not None:
        raise StoreDamaged(f"run {run_id} is not exported: {fault}", run_id=run_id)
    run = next(row for row in rows if isinstance(row, RunRecord) and row.run_id == run_id)
    return write(rows, run_id=run_id, session_id=run.session_id, task_id=run.task_id, exported_at=view.rfc3339(at))


# -- in ---------------------------------------------------------------------------------------------------------------


def checked(data: bytes) -> Portable:
    """The file, if a copy may be made of it: every chain holds, and what its rows name is there. Raises ImportInvalid.

    Nobody has to ask whether a copy is sound: what is not never becomes one.
    """
    found = read(data)
    fault = _fault(found.rows, found.manifest.run_id)
    if fault is not None:
        raise ImportInvalid(f"what this file holds does not fit together: {fault}")
    return found


def copy_of(found: Portable) -> list[Row]:
    """The rows of the copy: those of the file, and the mark that it is one."""
    return [*found.rows, MetaRow(key=COPY, value=encode(_origin(found.manifest)).encode())]


def is_copy_of(reader: Reader, found: Portable) -> bool:
    """Whether a store is the copy that this file makes."""
    mark = reader.get(MetaRow, COPY)
    return mark is not None and mark.value == encode(_origin(found.manifest)).encode()


def is_copy(reader: Reader) -> bool:
    """Whether a store is a copy."""
    return reader.get(MetaRow, COPY) is not None


def _origin(about: Manifest) -> dict[str, Any]:
    return {"run_id": about.run_id, "exported_at": about.exported_at, "digest": about.digest}


# -- whether rows are one Run's ---------------------------------------------------------------------------------------


def _fault(rows: Sequence[Row], run_id: str) -> str | None:
    """What is wrong first with the rows as those of a Run and its Session, in words; None if they are sound."""
    try:
        return next(_faults(rows, run_id), None)
    except InvalidJson as error:
        return error.message


def _faults(rows: Sequence[Row], run_id: str) -> Iterator[str]:
    """What is wrong. A check may rely on that those before it found nothing, so only the first of them is true."""
    by_kind: defaultdict[type[Row], list[Any]] = defaultdict(list)
    for row in rows:
        by_kind[type(row)].append(row)
    yield from _strangers(by_kind, run_id)
    try:
        reader = MemoryStore.of(rows).reader()
    except StoreError as error:
        yield error.message
        return
    yield from logs_are_dense_and_chained(reader)
    yield from _unsealed(by_kind)
    yield from (
        f"log row {row.seq} has no body" for row in by_kind[LogRow] if not isinstance(decode(row.body_json), dict)
    )
    yield from what_is_named_stands_where_it_is_said_to(reader)
    yield from _missing_texts(reader, by_kind)


def _strangers(by_kind: dict[type[Row], list[Any]], run_id: str) -> Iterator[str]:
    """What does not belong to one Session with this Run."""
    tasks, sessions, runs = by_kind[TaskRecord], by_kind[SessionRecord], by_kind[RunRecord]
    if len(tasks) != 1 or len(sessions) != 1 or run_id not in {run.run_id for run in runs}:
        yield f"{len(tasks)} Tasks, {len(sessions)} Sessions and {len(runs)} Runs, expected one, one and {run_id}"
        return
    (task,), (session,) = tasks, sessions
    known = {run.n for run in runs}
    for run in runs:
        if (run.task, run.task_id, run.session, run.session_id) != (
            task.n,
            task.task_id,
            session.n,
            session.session_id,
        ):
            yield f"{run.run_id} is of another Task or Session"
    for kind in (*_OF_RUN, SplicedRow):
        if any(row.run not in known for row in by_kind[kind]):
            yield f"{TABLES[kind].name}: a row of a Run that is not there"
    for kind in (LogRow, BoundaryRow):
        if any(row.session != session.n for row in by_kind[kind]):
            yield f"{TABLES[kind].name}: a row of another Session"
    if any(row.type not in FRAMES for row in by_kind[LogRow]):
        yield "a log row is of a type that this refold does not know; it was written by a newer one"
    if [(row.key, len(row.value)) for row in by_kind[MetaRow]] != [(MAC_KEY, MAC_KEY_BYTES)]:
        yield "the key that seals cursors is missing, or is not alone"


def _unsealed(by_kind: dict[type[Row], list[Any]]) -> Iterator[str]:
    """The Runs whose replay log does not match its chain."""
    logged: defaultdict[int, list[Any]] = defaultdict(list)
    for kind in _CHAINED:
        for row in by_kind[kind]:
            logged[row.run].append(row)
    for run in by_kind[RunRecord]:
        try:
            verify_replay(run, logged[run.n])
        except StoreDamaged as damage:
            yield damage.message


def _missing_texts(reader: Reader, by_kind: dict[type[Row], list[Any]]) -> Iterator[str]:
    """Long texts that are other ones by now, or that a log row shows the head of and that are not there."""
    for kind in (ValueRow, SplicedRow):
        for row in by_kind[kind]:
            try:
                value_text(reader, row.digest)
            except StoreDamaged as damage:
                yield damage.message
    rows = [row for kind in (LogRow, RunRecord, ActivationRow) for row in by_kind[kind]]
    for row in rows:
        if isinstance(row, LogRow) and output_name(row) is not None:
            continue  # it stands in the row that is named
        for digest in _named(reader, row):
            if reader.get(ValueRow, digest) is None and reader.get(SplicedRow, digest) is None:
                yield f"value {digest} is named, and is not there"
    for row in by_kind[LaunchRow]:  # those of earlier generations too, which no record names any more
        if hashlib.sha256(row.body.encode()).hexdigest() != row.digest:
            yield f"launch snapshot {row.digest} is another text by now"
    for row in by_kind[ActivationRow]:
        stored = row.input_json
        if stored and stored.startswith("@") and reader.get(LaunchRow, row.run, stored[1:]) is None:
            yield f"the launch snapshot of activation {row.activation} is not there"
