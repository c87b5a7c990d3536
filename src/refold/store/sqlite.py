"""The embedded store: one SQLite file, WAL, `synchronous=FULL`, one owner of the write connection.

* **Group commit.** Writers queue; a flush drains the queue into one transaction, a savepoint each, one fsync for all.
  The flush is scheduled with `call_soon`, so callers of the same turn of the loop share it, and runs on the loop
  itself: a hop to a writer thread costs about a third of a sequential step, and while a commit is on its way nobody
  above has anything to do but wait for it. Steps that flush together are also written together, kind by kind.
* **Inline commit.** A step whose driver was the only writer of the turn before commits at once, and does not wait for
  the next turn. It still may have company this time: the others then share the flush after it.
* **FULL, read back at open.** WAL with NORMAL loses acknowledged commits at power loss, and no kill test shows it.
* **Fail-stop.** After an I/O error at commit the true state of the file is unknown until it is opened anew (fsync may
  have dropped the pages and says so once), so the store refuses every write from then on. What failed at the sync has
  all its pages in the WAL: kill -9 now, and the next start finds it whole. A full disk is not that: SQLite rolls the
  transaction back, the callers get the error, and later writes may succeed.
* **Only apsw ever opens the file**: two SQLite copies in one process break POSIX locks. Which files are ours: `schema`.
"""

from __future__ import annotations

import asyncio
import os
import secrets
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from itertools import groupby
from operator import attrgetter
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar, cast

import apsw
import msgspec

from refold.errors import CommitFailed, Conflict, StoreDamaged, StoreError, StoreHeld, StoreRefused
from refold.records import Head, LogRow, Row, SessionRecord
from refold.store.base import TABLES, StepCommit, Tx, apply_step, apply_steps
from refold.store.headroom import Headroom
from refold.store.schema import check_identity, migrate, refuse_copy

R = TypeVar("R", bound=Row)
T = TypeVar("T")

BUSY_MS: Final = 5000
CHECKPOINT_PAGES: Final = 8000
"""WAL pages before a checkpoint: at SQLite's default of 1000 the p99 of grouped commits is five times as high."""

KNOWN_HEADS: Final = 4096
"""Heads of logs that are kept in memory."""

_FATAL: Final = (apsw.IOError, apsw.CorruptError, apsw.NotADBError, apsw.CantOpenError)
_KEYED: Final = frozenset(kind for kind in TABLES if kind.__struct_fields__[0] == "n")
"""The kinds whose rows SQLite gives an integer key, their first member."""


class _Entry(NamedTuple):
    """What is queued, and who waits for it: a step, with what is done also with it, or any other work."""

    step: StepCommit | None
    work: Callable[[Any], Any] | None
    future: asyncio.Future[Any]

    def apply(self, tx: Any) -> Any:
        """Does it, and returns its result."""
        if self.step is not None:
            return apply_step(tx, self.step, self.work)
        assert self.work is not None, "it is a step, or work"
        return self.work(tx)

    @property
    def is_step(self) -> bool:
        return self.step is not None


class SqliteStore:
    """One SQLite file. Open it with `SqliteStore.open`, under a `StoreLock`."""

    def __init__(self, writer: apsw.Connection, reader: apsw.Connection, path: Path) -> None:
        self.path = path
        self._writer = writer
        self._headroom = Headroom(path)
        self._reader = _SqliteTx(reader)
        self._tx = _SqliteTx(writer)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._queue: list[_Entry] = []
        self._entries_of_turn = 0
        self._is_alone = False
        self._stopped: str | None = None
        self._wake: Callable[[Mapping[int, int]], None] = lambda heads: None

    @classmethod
    def open(cls, path: Path, *, vfs: str | None = None) -> SqliteStore:
        """Opens or makes the store at `path`, and brings its schema up to date.

        Raises StoreRefused for a newer or foreign file, a copy, or a file system without WAL, StoreDamaged for a file
        that SQLite cannot read, StoreHeld if another program has locked it: the file is as it was then. Raises
        StoreError for a disk that is full or fails.
        """
        _touch_private(path)
        inherited = path.with_name(path.name + "-wal").exists()
        with _typed(path):
            writer = apsw.Connection(str(path), vfs=vfs)
            try:
                writer.set_busy_timeout(BUSY_MS)
                if check_identity(writer, path) > 0:
                    refuse_copy(writer, path)
                _configure(writer)
                migrate(writer)
                reader = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY, vfs=vfs)
            except BaseException:
                # Closing would move what another program left in its WAL into the file that was refused.
                writer.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, int(inherited))
                writer.close()
                raise
        reader.set_busy_timeout(BUSY_MS)
        for connection in (writer, reader):
            # Otherwise a query by index is compiled anew for each value, in case the value asks for another plan.
            connection.config(apsw.SQLITE_DBCONFIG_ENABLE_QPSG, 1)
        return cls(writer, reader, path)

    @classmethod
    def make_copy(cls, path: Path, rows: Iterable[Row]) -> None:
        """Makes a file that holds exactly `rows`, under the integer keys that they have: whole, or not at all.

        It is no store to be opened, but one to be peeked into: without a WAL, so that the file is all there is of it.
        Raises Conflict if there is anything at `path`: it is left as it is. Raises StoreRefused, and StoreError for two
        rows with one key and for a disk that is full or fails.
        """
        if path.exists():
            raise _taken(path)
        draft = path.with_name(f"{path.name}.{os.getpid()}.{secrets.token_hex(4)}")
        _touch_private(draft)
        try:
            with _typed(path):
                connection = apsw.Connection(str(draft))
                try:
                    connection.pragma("synchronous", "FULL")
                    migrate(connection)
                    with connection:
                        tx = _SqliteTx(connection)
                        for row in rows:
                            tx.keep(row)
                finally:
                    connection.close()
            path.hardlink_to(draft)
        except FileExistsError:
            raise _taken(path) from None
        except OSError as error:  # a file system without hard links, or one that went away
            raise StoreRefused(f"{path} cannot be made: {error}", path=str(path)) from error
        finally:
            draft.unlink()

    @classmethod
    async def peek(cls, path: Path, fn: Callable[[Any], T]) -> T:
        """Runs `fn` on the file as it is, read only, while nobody holds it. Raises StoreDamaged, StoreRefused."""
        with _typed(path):
            connection = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY)
            try:
                if check_identity(connection, path) == 0:
                    raise StoreRefused(f"{path} holds no refold store yet; the first `refold serve` makes it")
                return fn(_SqliteTx(connection))
            finally:
                connection.close()

    @classmethod
    def quick_check(cls, path: Path) -> list[str]:
        """What SQLite's own check of the file finds. It sees broken structure, not changed content."""
        try:
            connection = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY)
            try:
                return [text for (text,) in connection.execute("PRAGMA quick_check") if text != "ok"]
            finally:
                connection.close()
        except apsw.Error as error:
            return [f"{path}: {error}"]

    async def commit(self, step: StepCommit, also: Callable[[Tx], object] | None = None) -> tuple[int, ...]:
        return await self._enqueue(step, also)

    async def write(self, fn: Callable[[Tx], T]) -> T:
        return await self._enqueue(None, fn)

    async def read(self, fn: Callable[[Any], T]) -> T:
        connection = self._reader.connection
        with _typed(self.path):
            connection.execute("BEGIN")
            try:
                return fn(self._reader)
            finally:
                connection.execute("COMMIT")

    def on_commit(self, wake: Callable[[Mapping[int, int]], None]) -> None:
        self._wake = wake

    async def close(self) -> None:
        if self._queue:
            self._flush()
        self._stopped = self._stopped or f"the store {self.path} is closed"
        self._headroom.close()
        self._reader.connection.close()
        self._writer.close()

    def _enqueue(self, step: StepCommit | None, work: Callable[[Any], Any] | None) -> asyncio.Future[Any]:
        """What becomes of it: known when this returns if it was done inline, else after this turn of the loop.

        A `write` is never done inline: who writes in a row would keep the loop from everybody else.
        """
        loop = self._loop
        if loop is None or not loop.is_running():  # a look costs a system call, in each step
            loop = self._loop = asyncio.get_running_loop()
        future: asyncio.Future[Any] = loop.create_future()
        if self._entries_of_turn == 0:
            loop.call_soon(self._end_turn)
        self._entries_of_turn += 1
        self._queue.append(_Entry(step, work, future))
        if step is not None and self._is_alone and self._entries_of_turn == 1:
            self._flush()
        return future

    def _end_turn(self) -> None:
        self._is_alone = self._entries_of_turn == 1
        self._entries_of_turn = 0
        self._flush()

    def _flush(self) -> None:
        batch, self._queue = self._queue, []
        if not batch:
            return
        try:
            if self._stopped is not None:
                raise CommitFailed(self._stopped)
            outcomes = self._apply(batch)
        except StoreError as error:
            outcomes: list[Any] = [error] * len(batch)
        for entry, outcome in zip(batch, outcomes, strict=True):
            if entry.future.done():
                continue
            if isinstance(outcome, BaseException):
                entry.future.set_exception(outcome)
            else:
                entry.future.set_result(outcome[0])
        if self._tx.heads:
            heads, self._tx.heads = self._tx.heads, {}
            self._wake(heads)

    def _apply(self, batch: Sequence[_Entry]) -> list[Any]:
        """Runs the batch in one transaction. An entry that raises undoes itself only; a failed commit, everything.

        Most batches go through, so they are tried without a savepoint each. Only if an entry raises is the transaction
        begun anew with them: work is repeatable, and nothing of the first try is left.
        """
        try:
            self._writer.execute("BEGIN IMMEDIATE")
            try:
                outcomes = self._apply_all(batch)
            except BaseException as error:
                if _is_of_the_disk(error):
                    raise
                self._writer.execute("ROLLBACK")
                self._tx.forget({})
                self._writer.execute("BEGIN IMMEDIATE")
                outcomes = [self._apply_one(entry) for entry in batch]
            self._writer.execute("COMMIT")
            self._headroom.keep()
        except apsw.Error as error:
            self._tx.forget({})
            raise self._fail(error) from error
        return outcomes

    def _apply_all(self, batch: Sequence[_Entry]) -> list[Any]:
        """Applies the batch in its order; steps with no other work between them at once, and then what they do also."""
        outcomes: list[Any] = []
        for are_steps, found in groupby(batch, attrgetter("is_step")):
            entries = list(found)
            if not are_steps or len(entries) == 1:
                outcomes += [(entry.apply(self._tx),) for entry in entries]
                continue
            seqs = apply_steps(self._tx, [entry.step for entry in entries if entry.step is not None])
            for entry in entries:
                if entry.work is not None:
                    entry.work(self._tx)
            outcomes += zip(seqs, strict=True)
        return outcomes

    def _apply_one(self, entry: _Entry) -> Any:
        heads = dict(self._tx.heads)
        self._writer.execute("SAVEPOINT entry")
        try:
            result = (entry.apply(self._tx),)
        except BaseException as error:
            if _is_of_the_disk(error):
                raise
            self._writer.execute("ROLLBACK TO entry")
            self._writer.execute("RELEASE entry")
            self._tx.forget(heads)
            return _deliverable(error)  # to the caller who queued this work
        self._writer.execute("RELEASE entry")
        return result

    def _fail(self, error: apsw.Error) -> CommitFailed:
        if self._writer.in_transaction:
            try:
                self._writer.execute("ROLLBACK")
            except apsw.Error:
                error = apsw.IOError(f"{error}; and the rollback failed")
        if not isinstance(error, _FATAL):
            return CommitFailed(f"the store {self.path} did not commit: {error}; nothing of it was written")
        self._stopped = f"the store {self.path} stopped after an I/O error at commit ({error}); restart refold"
        return CommitFailed(
            f"the store {self.path} failed at commit: {error}; all of it was written, or nothing: restart refold to see"
        )


def _is_of_the_disk(error: BaseException) -> bool:
    """Whether an error is SQLite's own: it has rolled back, or cannot, so the whole batch is off."""
    return isinstance(error, apsw.Error) and not isinstance(error, apsw.SQLError)


class _SqliteTx:
    """`Tx` on one connection. Statements are made once per shape and kept; apsw caches their compilation by text."""

    def __init__(self, connection: apsw.Connection) -> None:
        self.connection = connection
        cursor = connection.cursor()  # one for all: what is read is fetched whole before the next
        self._execute, self._execute_all = cursor.execute, cursor.executemany
        self.heads: dict[int, int] = {}
        """The logs that the transaction has appended to, and where they end."""
        self._known: dict[int, Head] = {}
        """The heads that were written here. Nobody else writes, so they need not be read before the next append."""
        self._sql: dict[Any, str] = {}

    def get(self, kind: type[R], *key: Any) -> R | None:
        sql = self._sql.get((kind, "get"))
        if sql is None:
            table = TABLES[kind]
            where = " AND ".join(f"{name}=?" for name in table.key)
            sql = self._sql[kind, "get"] = f"SELECT {_columns(kind)} FROM {table.name} WHERE {where}"
        found = self._select(kind, sql, key)
        return found[0] if found else None

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
        values, but = [*equals.values()], but or {}
        if but:
            values += but.values()
        if after:
            values.append(after)
        if before is not None:
            values.append(before)
        shape = (kind, "find", *equals, None, *but, after > 0, before is not None, limit, newest_first)
        sql = self._sql.get(shape)
        if sql is None:
            table = TABLES[kind]
            clauses = [f"{name} IS ?" for name in equals]
            clauses += [f"NOT ({' AND '.join(f'{name} IS ?' for name in but)})"] if but else []
            clauses += [f"{table.key[-1]}>?"] if after else []
            clauses += [f"{table.key[-1]}<?"] if before is not None else []
            where = f" WHERE {' AND '.join(clauses)}" if clauses else ""
            order = ", ".join(f"{name} {'DESC' if newest_first else 'ASC'}" for name in table.key)
            tail = "" if limit is None else f" LIMIT {int(limit)}"
            sql = f"SELECT {_columns(kind)} FROM {table.name}{where} ORDER BY {order}{tail}"
            self._sql[shape] = sql
        return self._select(kind, sql, values)

    def count(self, kind: type[Row], **equals: Any) -> int:
        sql = self._sql.get((kind, "count", *equals))
        if sql is None:
            where = f" WHERE {' AND '.join(f'{name} IS ?' for name in equals)}" if equals else ""
            sql = self._sql[kind, "count", *equals] = f"SELECT count(*) FROM {TABLES[kind].name}{where}"
        return self._execute(sql, tuple(equals.values())).get

    def forget(self, heads: dict[int, int]) -> None:
        """Forgets what was rolled back, but for the `heads` of before."""
        self.heads = heads
        self._known.clear()

    def head(self, session: int) -> Head | None:
        if (known := self._known.get(session)) is not None:
            return known
        try:
            found = self._execute("SELECT seq, chain, updated_at FROM session WHERE n=?", (session,)).fetchall()
            return msgspec.convert(found[0], Head) if found else None
        except msgspec.ValidationError as error:
            raise _changed(SessionRecord, error) from error

    def log(self, session: int, after: int, limit: int | None = None) -> list[LogRow]:
        sql = f"SELECT {_columns(LogRow)} FROM log WHERE session=? AND seq>? ORDER BY seq LIMIT ?"
        return self._select(LogRow, sql, (session, after, -1 if limit is None else limit))

    def log_before(self, session: int, before: int, limit: int) -> list[LogRow]:
        sql = f"SELECT {_columns(LogRow)} FROM log WHERE session=? AND seq<? ORDER BY seq DESC LIMIT ?"
        return self._select(LogRow, sql, (session, before, limit))[::-1]

    def log_bytes(self, session: int, after: int) -> int:
        # octet_length reads the header of a row only: a body in overflow pages is measured without being fetched.
        sql = "SELECT coalesce(sum(octet_length(body_json)), 0) FROM log WHERE session=? AND seq>?"
        return self._execute(sql, (session, after)).get

    def insert(self, row: R) -> R:
        kind = type(row)
        if kind in _KEYED:
            self._change_all(kind, self._insert(kind), [(None, *msgspec.structs.astuple(row)[1:])])
            return msgspec.structs.replace(row, n=self.connection.last_insert_rowid())
        self.insert_all([row])
        return row

    def keep(self, row: Row) -> None:
        """Stores a row as it is, its integer key included. Duplicate keys raise StoreError."""
        self._change_all(type(row), self._insert(type(row)), [msgspec.structs.astuple(row)])

    def insert_all(self, rows: Sequence[Row]) -> None:
        kind = type(rows[0])
        self._change_all(kind, self._insert(kind), list(map(msgspec.structs.astuple, rows)))
        if kind is LogRow:
            self.heads.update((row.session, row.seq) for row in cast("Sequence[LogRow]", rows))

    def put(self, row: Row) -> None:
        kind = type(row)
        sql = self._insert(kind) + f" ON CONFLICT ({', '.join(TABLES[kind].key)}) DO NOTHING"
        self._change_all(kind, sql, [msgspec.structs.astuple(row)])

    def update(
        self, kind: type[Row], key: Sequence[Any], *, where: Mapping[str, Any] | None = None, **changes: Any
    ) -> bool:
        guard = where or {}
        values = (*changes.values(), *key, *guard.values())
        return self.update_all(kind, tuple(changes), (*TABLES[kind].key, *guard), [values]) == 1

    def update_all(
        self, kind: type[Row], names: tuple[str, ...], where: tuple[str, ...], values: Sequence[Sequence[Any]]
    ) -> int:
        sql = self._sql.get((kind, names, where))
        if sql is None:
            table = TABLES[kind]
            sets = ", ".join(f"{name}=?" for name in names)
            tests = " AND ".join(f"{name}{'=' if name in table.key else ' IS '}?" for name in where)
            sql = self._sql[kind, names, where] = f"UPDATE {table.name} SET {sets} WHERE {tests}"
        before = self.connection.total_changes()
        self._change_all(kind, sql, values)
        if kind is SessionRecord:
            self._note_heads(names, where, values)
        return self.connection.total_changes() - before

    def _note_heads(self, names: tuple[str, ...], where: tuple[str, ...], values: Sequence[Sequence[Any]]) -> None:
        if len(self._known) > KNOWN_HEADS:
            self._known.clear()
        if names[:3] == Head._fields and where == TABLES[SessionRecord].key:
            self._known.update((each[-1], Head(*each[:3])) for each in values)
        elif not {*names}.isdisjoint(Head._fields):
            self._known.clear()

    def delete(self, kind: type[Row], **equals: Any) -> int:
        where = " AND ".join(f"{name} IS ?" for name in equals)
        self._execute(f"DELETE FROM {TABLES[kind].name} WHERE {where}", tuple(equals.values()))
        if kind is SessionRecord:
            self._known.clear()
        return self.connection.changes()

    def _select(self, kind: type[R], sql: str, values: Sequence[Any]) -> list[R]:
        try:
            return _rows(kind, self._execute(sql, values).fetchall())
        except (UnicodeDecodeError, msgspec.ValidationError) as error:
            raise _changed(kind, error) from error

    def _change_all(self, kind: type[Row], sql: str, values: Sequence[Sequence[Any]]) -> None:
        try:
            self._execute_all(sql, values)
        except apsw.ConstraintError as error:
            raise StoreError(f"a {TABLES[kind].name} row cannot be stored: {error}") from error

    def _insert(self, kind: type[Row]) -> str:
        sql = self._sql.get((kind, "insert"))
        if sql is None:
            # Columns stand in the order of members (a test says so), and are not named: apsw looks at all of a
            # statement's text to find it again, for each row.
            marks = ",".join("?" * len(kind.__struct_fields__))
            sql = self._sql[kind, "insert"] = f"INSERT INTO {TABLES[kind].name} VALUES ({marks})"
        return sql


def _changed(kind: type[Row], error: Exception) -> StoreDamaged:
    return StoreDamaged(f"a {TABLES[kind].name} row is not what was stored: {error}")


def _columns(kind: type[Row]) -> str:
    return ", ".join(kind.__struct_fields__)


@cache
def _flags(kind: type[Row]) -> tuple[int, ...]:
    """Which columns are flags: SQLite has no booleans, and JSON would show 1 for true."""
    declared = kind.__annotations__  # texts: evaluating those of every kind takes longer than opening the store
    return tuple(at for at, name in enumerate(kind.__struct_fields__) if declared[name] == "bool")


def _flagged(values: Sequence[Any], flags: Iterable[int]) -> list[Any]:
    values = [*values]
    for at in flags:
        values[at] = bool(values[at])
    return values


def _rows(kind: type[R], found: Sequence[Sequence[Any]]) -> list[R]:
    if not found:  # most looks are for what is not there
        return []
    if flags := _flags(kind):
        found = [_flagged(values, flags) for values in found]
    # Not a bare call: a flipped bit in a row's header changes types. A row alone is most of what is asked for, and a
    # type made of another one costs more to look up than it takes to convert a row.
    return msgspec.convert(found, list[kind]) if len(found) > 8 else [msgspec.convert(row, kind) for row in found]


def _deliverable(error: BaseException) -> BaseException:
    """`error` as a Future takes it: a StopIteration, such as that of a bare `next()`, would end the loop's own."""
    if not isinstance(error, StopIteration):
        return error
    wrapped = RuntimeError("a write raised StopIteration")
    wrapped.__cause__ = error
    return wrapped


@contextmanager
def _typed(path: Path) -> Generator[None]:
    """Turns what SQLite raises about the file as a whole into what the callers of a store know."""
    try:
        yield
    except (apsw.NotADBError, apsw.CorruptError) as error:
        raise StoreDamaged(f"{path} cannot be read as a refold store: {error}", path=str(path)) from error
    except (apsw.CantOpenError, apsw.ReadOnlyError, apsw.PermissionsError) as error:
        raise StoreRefused(f"{path} cannot be opened for writing: {error}", path=str(path)) from error
    except (apsw.BusyError, apsw.LockedError) as error:
        raise StoreHeld(f"another program has locked {path}: {error}; end it, or name another store") from error
    except apsw.Error as error:
        raise StoreError(f"{path} cannot be used: {error}", path=str(path)) from error


def _taken(path: Path) -> Conflict:
    return Conflict(f"{path} is there already, and stays as it is; name another file with --store", path=str(path))


def _touch_private(path: Path) -> None:
    """Makes a missing file with mode 0600; SQLite gives its -wal and -shm the mode of the main file."""
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
    except OSError as error:
        raise StoreRefused(f"{path} cannot be opened for writing: {error}", path=str(path)) from error


def _configure(connection: apsw.Connection) -> None:
    connection.pragma("mmap_size", 0)  # a write through a mapping would bypass the error handling of pwrite
    mode = connection.pragma("journal_mode", "wal")
    connection.pragma("synchronous", "FULL")
    connection.pragma("wal_autocheckpoint", CHECKPOINT_PAGES)
    if (mode, connection.pragma("synchronous")) != ("wal", 2):
        raise StoreRefused(
            f"the store needs WAL with synchronous=FULL and got {mode}, {connection.pragma('synchronous')}; "
            "an acknowledged step could be lost, so it is not opened (a network file system?)"
        )
