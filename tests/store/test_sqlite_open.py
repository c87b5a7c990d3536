"""Opening a file: what is ours is brought up to date, what is not is refused and left as it was (R10, R19)."""

from __future__ import annotations

import asyncio
import os
import shutil
import stat
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import NoneType
from typing import Any, get_args, get_type_hints

import apsw
import pytest
from store_kit import make_legacy, rows_of

from refold.errors import CommitFailed, StoreDamaged, StoreError, StoreHeld, StoreRefused
from refold.records import MetaRow, Row, RunRecord, ValueRow
from refold.store import SqliteStore, sqlite
from refold.store.audit import audit
from refold.store.base import TABLES
from refold.store.schema import APPLICATION_ID, SET_ASIDE
from refold.testing.history import advance, begin

pytestmark = pytest.mark.anyio

SQL_TYPES = {int: "INTEGER", bool: "INTEGER", str: "TEXT", bytes: "BLOB"}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "store" / "refold.db"


# -- what is refused --------------------------------------------------------------------------------------------------


def _sql(script: str) -> Callable[[Path], None]:
    """A database of some program, made by `script`; what it has in its WAL stays there, as after a crash."""

    def make(path: Path) -> None:
        with tempfile.TemporaryDirectory() as elsewhere:
            connection = apsw.Connection(f"{elsewhere}/x.db")
            list(connection.execute(script))  # a statement that answers would stop the ones after it
            for suffix in ("", "-wal"):
                if Path(f"{elsewhere}/x.db{suffix}").exists():
                    shutil.copy(f"{elsewhere}/x.db{suffix}", f"{path}{suffix}")
            connection.close()

    return make


def _ours(script: str) -> Callable[[Path], None]:
    def make(path: Path) -> None:
        connection = SqliteStore.open(path)._writer
        connection.execute(script)
        connection.close()

    return make


def _truncated(path: Path) -> None:
    _ours("INSERT INTO value VALUES ('d', hex(randomblob(99999)))")(path)
    os.truncate(path, path.stat().st_size // 2)


REFUSED: dict[str, tuple[Callable[[Path], None], type[StoreError]]] = {
    "written by a newer refold": (_ours("PRAGMA user_version = 99"), StoreRefused),
    "another application's": (_sql("PRAGMA application_id = 1234; CREATE TABLE t (x)"), StoreRefused),
    "another program's tables": (_sql("CREATE TABLE t (x); INSERT INTO t VALUES (1)"), StoreRefused),
    "another program's version": (_sql("PRAGMA user_version = 7"), StoreRefused),
    "a replay log among other tables": (_sql("CREATE TABLE replay_log (x); CREATE TABLE t (x)"), StoreRefused),
    "another program's, after its crash": (
        _sql("PRAGMA journal_mode = wal; CREATE TABLE t (x); INSERT INTO t VALUES (1)"),
        StoreRefused,
    ),
    "a short text": (lambda path: path.write_text("hello"), StoreDamaged),
    "a long text": (lambda path: path.write_text("hello\n" * 10_000), StoreDamaged),
    "half of a store": (_truncated, StoreDamaged),
}


@pytest.mark.parametrize("name", REFUSED)
async def test_what_is_not_ours_is_refused_and_left_as_it_was(path: Path, name: str) -> None:
    make, refusal = REFUSED[name]
    path.parent.mkdir()
    make(path)
    before = _files(path)
    for _ in range(2):
        with pytest.raises(refusal) as raised:
            SqliteStore.open(path)
        assert str(path) in raised.value.message
        assert not _open_files(path.parent)
        with pytest.raises(refusal):
            await SqliteStore.peek(path, audit)
        assert _files(path) == before


async def test_a_directory_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StoreRefused):
        SqliteStore.open(tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("file_mode", "directory_mode"), [(0o400, 0o700), (0o600, 0o500), (0o000, 0o700)])
async def test_what_may_not_be_written_is_refused(file_mode: int, directory_mode: int) -> None:
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "refold.db"
        SqliteStore.open(path)._writer.close()
        before = _files(path)
        path.chmod(file_mode)
        path.parent.chmod(directory_mode)
        with _nobody(path.parent, path), pytest.raises(StoreRefused):
            SqliteStore.open(path)
        path.parent.chmod(0o700)
        path.chmod(0o600)
        assert _files(path) == before


async def test_a_file_that_another_program_has_locked_is_held(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite, "BUSY_MS", 1)
    await SqliteStore.open(path).close()
    other = apsw.Connection(str(path))
    other.pragma("locking_mode", "exclusive")
    other.execute("INSERT INTO meta VALUES ('k', x'00')")
    with pytest.raises(StoreHeld):
        SqliteStore.open(path)
    other.close()
    await SqliteStore.open(path).close()


async def test_a_file_system_without_wal_is_refused(path: Path) -> None:
    with pytest.raises(StoreRefused, match="needs WAL"):
        SqliteStore.open(path, vfs="unix-dotfile")


async def test_a_weaker_synchronous_is_refused() -> None:
    class Stubborn:
        """A connection that answers NORMAL whatever it is told."""

        def pragma(self, name: str, value: Any = None) -> Any:
            return {"journal_mode": "wal", "synchronous": 1}.get(name)

    with pytest.raises(StoreRefused, match="synchronous=FULL"):
        sqlite._configure(Stubborn())


@pytest.mark.parametrize("spoil", [b"\x00" * 4096, b"\xff" * 4096], ids=["zeros", "ones"])
async def test_damaged_pages_are_found_by_reads_and_writes(path: Path, spoil: bytes) -> None:
    store = SqliteStore.open(path)
    await store.write(lambda tx: [tx.insert(ValueRow(digest=str(n), body="x" * 300)) for n in range(1000)])
    first = store._writer.execute("SELECT rootpage FROM sqlite_schema WHERE name='value'").get
    await store.close()
    with path.open("r+b") as file:
        file.seek((first - 1) * len(spoil))
        file.write(spoil)
    store = SqliteStore.open(path)
    with pytest.raises(StoreDamaged):
        await store.read(lambda reader: reader.find(ValueRow))
    with pytest.raises(CommitFailed):
        await store.write(lambda tx: tx.find(ValueRow))
    await store.close()


def _open_files(directory: Path) -> list[str]:
    """What this process has open in `directory`."""
    opened = [fd.readlink() for fd in Path("/proc/self/fd").iterdir() if fd.exists()]
    return [str(path) for path in opened if path.parent == directory]


def _files(path: Path) -> dict[str, bytes]:
    """Every file beside `path`, but those that hold nothing: shared memory, and the empty WAL of a reader."""
    files = {file.name: file.read_bytes() for file in path.parent.iterdir() if not file.name.endswith("-shm")}
    return {name: content for name, content in files.items() if content}


@contextmanager
def _nobody(*paths: Path) -> Iterator[None]:
    """Acts as a user whom permissions bind: nobody, if we are root."""
    if os.geteuid() != 0:
        yield
        return
    for path in paths:
        os.chown(path, 65534, 65534)
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)


# -- what is made of it -----------------------------------------------------------------------------------------------


async def test_the_file_says_whose_it_is_and_of_which_version(path: Path) -> None:
    await SqliteStore.open(path).close()
    connection = apsw.Connection(str(path))
    assert (connection.pragma("application_id"), connection.pragma("user_version")) == (APPLICATION_ID, 1)
    assert connection.pragma("journal_mode") == "wal"
    connection.close()


async def test_the_connections_are_as_durable_as_we_say(path: Path) -> None:
    store = SqliteStore.open(path)
    assert (store._writer.pragma("synchronous"), store._writer.pragma("mmap_size")) == (2, 0)
    await store.close()


@pytest.mark.parametrize("kind", TABLES, ids=lambda kind: kind.__name__)
async def test_the_schema_is_what_records_and_tables_say(path: Path, kind: type[Row]) -> None:
    store = SqliteStore.open(path)
    table, connection = TABLES[kind], store._writer
    hints = {name: get_args(hint) or (hint,) for name, hint in get_type_hints(kind).items()}
    expected = [
        (name, SQL_TYPES[types[0]], NoneType not in types)
        for name, types in hints.items()
        if name in kind.__struct_fields__
    ]
    columns = connection.execute(f"SELECT name, type, \"notnull\", pk FROM pragma_table_info('{table.name}')").get
    assert [(name, sql, bool(notnull) or table.key == (name,)) for name, sql, notnull, _ in columns] == expected
    assert tuple(name for name, *_, place in sorted(columns, key=lambda column: column[3]) if place) == table.key
    indexes = list(connection.execute(f"SELECT name, \"unique\", origin FROM pragma_index_list('{table.name}')"))
    found = {unique: set() for unique in (0, 1)}
    for name, unique, _ in indexes:
        found[unique].add(
            tuple(column for (column,) in connection.execute(f"SELECT name FROM pragma_index_info('{name}')"))
        )
    assert found == {0: set(table.indexed), 1: {*table.unique, table.key} - {("n",)}}
    await store.close()


async def test_there_are_no_other_tables(path: Path) -> None:
    store = SqliteStore.open(path)
    sql = "SELECT name FROM sqlite_schema WHERE type='table' AND name NOT LIKE 'sqlite_%'"
    assert {name for (name,) in store._writer.execute(sql)} == {table.name for table in TABLES.values()}
    await store.close()


async def test_files_are_for_their_owner_only(path: Path) -> None:
    before = os.umask(0o022)
    try:
        store = SqliteStore.open(path)
        await begin(store)
        modes = {file.name: stat.S_IMODE(file.stat().st_mode) for file in path.parent.iterdir()}
        assert modes == {"refold.db": 0o600, "refold.db-wal": 0o600, "refold.db-shm": 0o600}
        assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
        await store.close()
    finally:
        os.umask(before)


async def test_a_replay_log_of_before_is_set_aside_and_reported(path: Path, said: list[Any]) -> None:
    kept = make_legacy(path)
    store = SqliteStore.open(path)
    assert [(entry["event"], entry["rows"]) for entry in said] == [("replay_log_set_aside", len(kept))]
    await advance(store, (await begin(store)).n)
    assert await store.read(audit) == []
    await store.close()
    assert rows_of(path, SET_ASIDE) == kept
    said.clear()
    await SqliteStore.open(path).close()
    assert said == []


# -- without holding it -----------------------------------------------------------------------------------------------


async def test_a_peek_reads_what_a_dead_process_left(path: Path, tmp_path: Path) -> None:
    store = SqliteStore.open(path)
    run = await begin(store)
    copy = Path(shutil.copytree(path.parent, tmp_path / "copy")) / path.name
    assert await SqliteStore.peek(copy, lambda reader: reader.find(RunRecord)) == [run]
    await store.close()


async def test_a_peek_at_nothing_is_refused(path: Path) -> None:
    with pytest.raises(StoreRefused):
        await SqliteStore.peek(path, audit)
    path.parent.mkdir()
    path.touch()
    with pytest.raises(StoreRefused, match="no refold store yet"):
        await SqliteStore.peek(path, audit)


async def test_a_close_commits_what_is_queued(path: Path) -> None:
    store = SqliteStore.open(path)
    run, _ = await asyncio.gather(begin(store), store.close())
    assert await SqliteStore.peek(path, lambda reader: reader.find(RunRecord)) == [run]


async def test_a_quick_check_sees_broken_structure(path: Path) -> None:
    store = SqliteStore.open(path)
    await store.write(lambda tx: [tx.insert(ValueRow(digest=str(n), body="x" * 300)) for n in range(1000)])
    await store.close()
    assert SqliteStore.quick_check(path) == []
    os.truncate(path, path.stat().st_size // 2)
    assert SqliteStore.quick_check(path) != []
    path.write_text("a text")
    assert SqliteStore.quick_check(path) != []


async def test_a_closed_store_says_so(path: Path) -> None:
    store = SqliteStore.open(path)
    await store.close()
    for call in (store.write(lambda tx: tx.put(MetaRow(key="k", value=b""))), store.read(audit)):
        with pytest.raises(StoreError):
            async with asyncio.timeout(30):
                await call
    await store.close()
