"""The contract of a store: records by key, logs that only grow, and two ways to write.

* **Hot path** `await store.commit(step)`: data, not code. One `StepCommit` is one step's Pass row, decisions, attempt
  ends, log records and next attempts, all or nothing (law 3), fenced by the Run's epoch (law 4). Concurrent callers
  share one transaction and one fsync, and undo nothing of each other. What must stand or fall with a step, such as the
  end of its Run, is handed in as code beside it.
* **Control plane** `await store.write(fn)`: `fn(tx)` is plain, synchronous and repeatable; whatever it raises undoes
  all it did. There is no compensation code anywhere above.
* **Reads** `await store.read(fn)`: one consistent view of what is committed.

An acknowledged write is durable: when the await returns, kill -9 and power loss cannot take it back (law 1).

What a back end brings is `Tx`, a handful of verbs on rows; everything that has a meaning is written once, here, on top
of them, so that back ends cannot drift. `TABLES` says how rows are found.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, Protocol, TypeVar

import msgspec

from refold.errors import Fenced, StoreDamaged
from refold.records import (
    ActivationRow,
    AttemptRow,
    BlueprintRecord,
    BoundaryRow,
    CommandRow,
    CutRow,
    DecisionRow,
    Head,
    LaunchRow,
    LogRecord,
    LogRow,
    MetaRow,
    ReplayRow,
    RequestRow,
    Row,
    RunRecord,
    RunStatus,
    SessionRecord,
    SplicedRow,
    TaskRecord,
    ValueRow,
    genesis,
    log_hash,
    replay_hash,
    seal_log,
)

R = TypeVar("R", bound=Row)
T = TypeVar("T")


class Table(msgspec.Struct, frozen=True):
    """How rows of one kind are stored and found: table name, primary key, further unique keys, plain indexes."""

    name: str
    key: tuple[str, ...] = ("n",)
    unique: tuple[tuple[str, ...], ...] = ()
    indexed: tuple[tuple[str, ...], ...] = ()


TABLES: Final[Mapping[type[Row], Table]] = {
    MetaRow: Table("meta", ("key",)),
    BlueprintRecord: Table("blueprint", indexed=(("blueprint_id",),)),
    TaskRecord: Table("task", unique=(("task_id",),)),
    SessionRecord: Table("session", unique=(("session_id",),)),
    RunRecord: Table("run", unique=(("run_id",),), indexed=(("status",), ("task",), ("session", "status"))),
    AttemptRow: Table("attempt", ("run", "ordinal")),
    ReplayRow: Table(
        "replay_log",
        ("run", "ordinal"),
        unique=(("run", "step_ref", "input_hash", "occurrence", "generation"),),
    ),
    DecisionRow: Table("decision", ("run", "ordinal"), unique=(("run", "lane_json", "fork", "generation"),)),
    CutRow: Table("cut", ("run", "ordinal")),
    ActivationRow: Table("activation", ("run", "activation")),
    LogRow: Table("log", ("session", "seq")),
    BoundaryRow: Table("boundary", ("session", "seq")),
    RequestRow: Table("request", unique=(("request_id",),), indexed=(("run",), ("status",), ("session",))),
    CommandRow: Table("command", ("command_id",)),
    ValueRow: Table("value", ("digest",)),
    SplicedRow: Table("spliced", ("digest",)),
    LaunchRow: Table("launch", ("run", "digest")),
}


class AttemptEnd(Row, frozen=True, kw_only=True):
    """The end of attempt `ordinal`, and the record that shows it. `outcome_json`, `due_at`: see `AttemptRow`."""

    ordinal: int | None
    """None where no attempt was made: a person answered, and the item of the question ends."""
    status: str
    record: LogRecord
    outcome_json: str | None = None
    due_at: int | None = None


class AttemptOpen(Row, frozen=True, kw_only=True):
    """An attempt that is granted its slot, and the record that shows it.

    The store fills in `attempt.opened`, unless it is given: a retry belongs to the item that its first try opened.
    """

    attempt: AttemptRow
    record: LogRecord


class Question(Row, frozen=True, kw_only=True):
    """A request that is opened, and the record that shows it; the store fills in `request.opened`."""

    request: RequestRow
    record: LogRecord


class StepCommit(Row, frozen=True, kw_only=True):
    """All that one advance of a Run writes. `rows_after` and `chain_after` are the Run's once `rows` are in."""

    run: int
    session: int
    epoch: int
    at: int
    passes: tuple[ReplayRow, ...] = ()
    decisions: tuple[DecisionRow, ...] = ()
    rows_after: int
    chain_after: bytes
    waiting_on: str | None = None
    ends: tuple[AttemptEnd, ...] = ()
    opens: tuple[AttemptOpen, ...] = ()
    questions: tuple[Question, ...] = ()
    consumed: tuple[int, ...] = ()
    """The integer keys of requests whose answers the flow has gone on from."""
    values: tuple[ValueRow, ...] = ()


class Reader(Protocol):
    """What can be asked of a store inside one consistent view."""

    def get(self, kind: type[R], *key: Any) -> R | None:
        """The row with this primary key."""
        ...

    def find(
        self,
        kind: type[R],
        *,
        after: int = 0,
        before: int | None = None,
        limit: int | None = None,
        newest_first: bool = False,
        but: Mapping[str, Any] | None = None,
        **equals: Any,
    ) -> list[R]:
        """The rows whose members equal, ordered by primary key, whose last key member is > `after` and < `before`.

        Without those whose members equal all of `but`. With a `limit` no more rows are read than are returned.
        """
        ...

    def count(self, kind: type[Row], **equals: Any) -> int:
        """How many rows `find` would return."""
        ...

    def head(self, session: int) -> Head | None:
        """Where the log of a Session ends: what each step asks, without reading the rest of its row."""
        ...

    def log(self, session: int, after: int, limit: int | None = None) -> list[LogRow]:
        """The log rows with seq > `after`, ascending."""
        ...

    def log_before(self, session: int, before: int, limit: int) -> list[LogRow]:
        """The last `limit` log rows with seq < `before`, ascending."""
        ...

    def log_bytes(self, session: int, after: int) -> int:
        """The bytes of the bodies of the log rows with seq > `after`: what is to come, without reading it."""
        ...


class Tx(Reader, Protocol):
    """What can be done inside one transaction. Nothing may await in it."""

    def insert(self, row: R) -> R:
        """Stores a new row; returns it with its integer key where it has one. Duplicate keys raise StoreError.

        Integer keys count upwards. None is given twice, also after its row was deleted.
        """
        ...

    def insert_all(self, rows: Sequence[Row]) -> None:
        """Stores new rows, at least one and all of one kind, which has no integer key; errors as `insert`."""
        ...

    def put(self, row: Row) -> None:
        """Stores a row unless one with its primary key is there (content-addressed values)."""
        ...

    def update(
        self, kind: type[Row], key: Sequence[Any], *, where: Mapping[str, Any] | None = None, **changes: Any
    ) -> bool:
        """Changes members of the row with this primary key if `where` holds of it: a compare-and-set. False if not."""
        ...

    def update_all(
        self, kind: type[Row], names: tuple[str, ...], where: tuple[str, ...], values: Sequence[Sequence[Any]]
    ) -> int:
        """Updates many rows alike, and says how many it found.

        Each of `values` is the new values of the members `names`, and then what the members `where` have to be: the
        primary key, and what else must hold.
        """
        ...

    def delete(self, kind: type[Row], **equals: Any) -> int:
        """Deletes the rows whose members equal, and says how many. For what an operator removes, never for use."""
        ...


class Store(Protocol):
    """One durable place for everything. Used from one event loop; see the module docstring for its three verbs."""

    async def commit(self, step: StepCommit, also: Callable[[Tx], object] | None = None) -> tuple[int, ...]:
        """Applies `step`, and runs `also` in the same transaction after it; the seqs of the records in `step.opens`.

        Raises Fenced, StoreError: nothing of it was written. Raises CommitFailed: nothing of it was written, but for an
        I/O error, after which the next start finds all of it or nothing.
        """
        ...

    async def write(self, fn: Callable[[Tx], T]) -> T:
        """Runs `fn` in a transaction of its own savepoint and returns its result after the commit."""
        ...

    async def read(self, fn: Callable[[Reader], T]) -> T:
        """Runs `fn` on what is committed."""
        ...

    def on_commit(self, wake: Callable[[Mapping[int, int]], None]) -> None:
        """Registers `wake({session: head seq})`, called after every commit that appended to a log."""
        ...

    async def close(self) -> None:
        """Ends the store: what was acknowledged stays."""
        ...


_ADVANCED: Final = ("rows", "chain", "waiting_on", "updated_at")
_OWNED: Final = ("n", "epoch", "status")
_ENDED: Final = ("status", "ended_at", "outcome_json", "due_at")
_HEAD: Final = Head._fields


def apply_step(tx: Tx, step: StepCommit, also: Callable[[Tx], object] | None = None) -> tuple[int, ...]:
    """The meaning of `Store.commit`, for every back end."""
    (seqs,) = apply_steps(tx, [step])
    if also is not None:
        also(tx)
    return seqs


def apply_steps(tx: Tx, steps: Sequence[StepCommit]) -> list[tuple[int, ...]]:
    """Applies steps that share a transaction, as one after the other; for each the seqs of the records in its `opens`.

    Steps of many Runs write rows of the same few kinds, and one statement for all rows of a kind is made up and looked
    up once. Raises Fenced if any of them is: it does not say which, and none may stay.
    """
    owners = [
        (step.rows_after, step.chain_after, step.waiting_on, step.at, step.run, step.epoch, RunStatus.RUNNING)
        for step in steps
    ]
    if tx.update_all(RunRecord, _ADVANCED, _OWNED, owners) < len(steps):
        epoch = steps[0].epoch
        raise Fenced(f"a driver of epoch {epoch} no longer owns its Run; it stops", epoch=epoch)
    for step in steps:
        for value in step.values:
            tx.put(value)
    for rows in ([row for step in steps for row in step.passes], [row for step in steps for row in step.decisions]):
        if rows:
            tx.insert_all(rows)
    seqs = _append_shown(tx, steps)
    ends = [
        (end.status, end.record.at, end.outcome_json, end.due_at, step.run, end.ordinal)
        for step in steps
        for end in step.ends
        if end.ordinal is not None
    ]
    if ends:
        tx.update_all(AttemptRow, _ENDED, TABLES[AttemptRow].key, ends)
    opened: list[tuple[int, ...]] = []
    attempts: list[AttemptRow] = []
    for step, first in zip(steps, seqs, strict=True):
        first += len(step.ends)
        opened.append(tuple(range(first, first + len(step.opens))))
        attempts += map(_opened_at, step.opens, opened[-1])
        for seq, question in enumerate(step.questions, first + len(step.opens)):
            tx.insert(msgspec.structs.replace(question.request, opened=seq))
        for request in step.consumed:
            tx.update(RequestRow, (request,), consumed=True)
    if attempts:
        tx.insert_all(attempts)
    return opened


def _opened_at(opened: AttemptOpen, seq: int) -> AttemptRow:
    return msgspec.structs.replace(opened.attempt, opened=opened.attempt.opened or seq)


def _append_shown(tx: Tx, steps: Sequence[StepCommit]) -> list[int]:
    """Appends what steps show to the logs of their Sessions; for each step the seq of its first record."""
    firsts: list[int] = []
    heads: dict[int, Head] = {}
    rows: list[LogRow] = []
    for step in steps:
        session = step.session
        head = heads.get(session) or _head(tx, session)
        firsts.append(head.seq + 1)
        shown = (*step.ends, *step.opens, *step.questions)
        if shown:
            heads[session] = _seal(rows, session, head, [each.record for each in shown])
    if rows:
        tx.insert_all(rows)
        tx.update_all(SessionRecord, _HEAD, TABLES[SessionRecord].key, [(*heads[n], n) for n in heads])
    return firsts


def begin_log(tx: Tx, session: SessionRecord, record: LogRecord) -> SessionRecord:
    """Stores a new Session with the first record of its log, and returns its row, which says so."""
    first = seal_log(0, 1, session.chain, record)  # no hash covers the integer key, which is known once it is stored
    session = tx.insert(msgspec.structs.replace(session, seq=first.seq, chain=first.hash, updated_at=record.at))
    tx.insert(msgspec.structs.replace(first, session=session.n))
    return session


def append_log(
    tx: Tx, session: int, records: Iterable[LogRecord], *, head: Head | None = None, **changes: Any
) -> list[LogRow]:
    """Appends to a Session's log under its row: insert order is commit order, seqs are dense, the chain goes on.

    `head` is where the log ends, from callers that have just read it; `changes` of the Session's other members are
    written with its new end.
    """
    rows: list[LogRow] = []
    head = _seal(rows, session, head or _head(tx, session), records)
    if rows:
        tx.insert_all(rows)
        changes = head._asdict() | changes
    if changes:
        tx.update(SessionRecord, (session,), **changes)
    return rows


def _head(tx: Tx, session: int) -> Head:
    head = tx.head(session)
    if head is None:
        raise StoreDamaged(f"no session row {session} to append to", session=session)
    return head


def _seal(rows: list[LogRow], session: int, head: Head, records: Iterable[LogRecord]) -> Head:
    """Adds the rows of `records`, which follow `head`, to `rows`; returns the head after them."""
    seq, chain, at = head
    for record in records:
        seq += 1
        row = seal_log(session, seq, chain, record)
        rows.append(row)
        chain, at = row.hash, record.at
    return Head(seq, chain, at)


def verify_replay(run: RunRecord, rows: Sequence[ReplayRow | DecisionRow | CutRow]) -> None:
    """Checks all rows of a Run's replay log against the chain in its record; raises StoreDamaged with what is wrong.

    A cursor built from a damaged log would hand a wrong answer to the flow as if it had been paid for (law 10).
    """
    chain, ordinal = genesis(run.run_id), 0
    for row in sorted(rows, key=lambda row: row.ordinal):
        ordinal += 1
        if row.ordinal != ordinal or replay_hash(chain, row) != row.hash:
            raise StoreDamaged(
                f"run {run.run_id}: row {ordinal} of its replay log does not match its hash; the Run is not resumed",
                run_id=run.run_id,
                ordinal=ordinal,
            )
        chain = row.hash
    if (ordinal, chain) != (run.rows, run.chain):
        raise StoreDamaged(
            f"run {run.run_id}: its replay log ends at row {ordinal}, expected {run.rows}; the Run is not resumed",
            run_id=run.run_id,
            ordinal=ordinal,
        )


def verify_log(session: SessionRecord, rows: Sequence[LogRow], *, to_end: bool = False) -> None:
    """Checks that rows of a Session's log follow each other; raises StoreDamaged with the first that does not.

    A changed row would be folded by every client that comes back, and no later event would say otherwise (law 10). The
    first row is taken as it is, unless it is the Session's first: its own hash is checked by who reads from before it.
    `to_end`: nothing was found behind them, so they must reach to the head.
    """
    seq, chain = 0, genesis(session.session_id)
    for row in rows:
        if (row.seq != seq + 1 or log_hash(chain, row) != row.hash) and (seq or row.seq == 1):
            raise StoreDamaged(
                f"session {session.session_id}: row {row.seq} of its log does not follow row {seq}; it is not shown",
                session_id=session.session_id,
                seq=row.seq,
            )
        seq, chain = row.seq, row.hash
    if to_end and seq < session.seq:
        raise StoreDamaged(
            f"session {session.session_id}: its log ends at row {seq}, expected {session.seq}",
            session_id=session.session_id,
            seq=seq,
        )
