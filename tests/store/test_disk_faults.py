"""A full disk and an I/O error, at every operation: typed, all or nothing, and nothing acknowledged is lost (R11).

After a full disk the store works on. After an I/O error at commit it refuses every write until it is opened again: what
the disk holds is not known before.
"""

from __future__ import annotations

import asyncio
import itertools
import shutil
from collections.abc import Awaitable
from pathlib import Path
from typing import Any

import apsw
import pytest
from store_kit import make_legacy, rows_of

from refold.errors import CommitFailed, StoreError
from refold.records import MetaRow, RunRecord, ValueRow
from refold.store import Reader, SqliteStore, Tx, sqlite
from refold.store.audit import audit
from refold.store.schema import SET_ASIDE
from refold.testing.faults import PowerVFS
from refold.testing.history import advance, begin, next_step

pytestmark = pytest.mark.anyio

ERRORS = pytest.mark.parametrize("error", [apsw.FullError, apsw.IOError], ids=lambda error: error.__name__)


class Trial:
    """A small workload on a store whose disk fails once. Every commit leaves a mark of its own."""

    def __init__(self, store: SqliteStore, runs: list[RunRecord]) -> None:
        self.acknowledged: set[str] = set()
        self.failed: set[str] = set()
        self._store = store
        self._first, self._second = runs
        self._marks = map(str, itertools.count())

    async def work(self) -> set[str]:
        """A step, a group of three writers, another step. Returns the marks of the group."""
        await self.step(self._first)
        group = await asyncio.gather(self.note(), self.step(self._first), self.step(self._second))
        await self.step(self._second)
        return set(group)

    async def step(self, run: RunRecord) -> str:
        mark = next(self._marks)
        values = (ValueRow(digest=mark, body="x" * 6000),)
        step = await self._store.read(lambda reader: next_step(reader, run.n, values=values))
        return await self._told(mark, self._store.commit(step))

    async def note(self) -> str:
        mark = next(self._marks)
        return await self._told(mark, self._store.write(lambda tx: tx.put(ValueRow(digest=mark, body="note"))))

    async def _told(self, mark: str, commit: Awaitable[Any]) -> str:
        try:
            await commit
        except CommitFailed:
            self.failed.add(mark)
        else:
            self.acknowledged.add(mark)
        return mark


@ERRORS
@pytest.mark.parametrize("pages", [8000, 8], ids=["checkpoint-never", "checkpoint-often"])
async def test_a_fault_at_every_operation(
    disk: PowerVFS, ram: Path, monkeypatch: pytest.MonkeyPatch, error: type[apsw.Error], pages: int
) -> None:
    monkeypatch.setattr(sqlite, "CHECKPOINT_PAGES", pages)
    runs = await _template(ram / "template")
    for operation in itertools.count(1):
        path = Path(shutil.copytree(ram / "template", ram / str(operation))) / "refold.db"
        store = SqliteStore.open(path, vfs=disk.name)
        trial = Trial(store, runs)
        disk.fail_at(operation, error)
        group = await trial.work()
        disk.heal()
        if disk.hit is None:
            break
        assert group <= trial.acknowledged or group <= trial.failed, "a batch has one fate"
        failed = set(trial.failed)
        last = await trial.note()
        assert (last in trial.acknowledged) == (error is apsw.FullError or not failed), "works on, or is stopped"
        disk.power_loss(path.parent, path.parent / "lost")
        await store.close()
        for found in (await _marks(path.parent / "lost" / path.name), await _marks(path)):
            assert trial.acknowledged <= found
        if disk.hit.path.name.endswith("-wal") and disk.hit.kind == "write":
            # A commit whose pages are all in the WAL may come back: when the sync failed nobody knows, and when the
            # checkpoint after it failed, it was done (apsw raises then what SQLite rightly ignores).
            assert not trial.failed & found
    assert operation > 50


@ERRORS
@pytest.mark.parametrize("legacy", [False, True])
async def test_a_fault_at_every_operation_of_the_first_start(
    disk: PowerVFS, ram: Path, error: type[apsw.Error], legacy: bool
) -> None:
    for operation in itertools.count(1):
        path = ram / str(operation) / "refold.db"
        kept = make_legacy(path) if legacy else []
        disk.fail_at(operation, error)
        try:
            store = SqliteStore.open(path, vfs=disk.name)
        except StoreError:
            store = None
        disk.heal()
        if store is not None:
            await store.close()
        if disk.hit is None:
            break
        store = SqliteStore.open(path)
        await advance(store, (await begin(store)).n)
        assert await store.read(audit) == []
        await store.close()
        assert not legacy or rows_of(path, SET_ASIDE) == kept
    assert operation > 50


async def test_a_disk_that_stays_full_and_is_freed(disk: PowerVFS, ram: Path) -> None:
    store = SqliteStore.open(ram / "refold.db", vfs=disk.name)
    run = await begin(store)
    await advance(store, run.n)
    disk.fail_at(1, apsw.FullError, times=10**9)
    for _ in range(3):
        with pytest.raises(CommitFailed, match="nothing of it was written"):
            await advance(store, run.n)
        assert await store.read(audit) == []
    disk.heal()
    await advance(store, run.n)
    await store.close()
    assert await _marks(ram / "refold.db") is not None


async def test_a_database_that_may_not_grow_fails_the_whole_batch_and_works_on(ram: Path) -> None:
    store = SqliteStore.open(ram / "refold.db")
    limit = store._writer.pragma("max_page_count", store._writer.pragma("page_count"))
    small, big = MetaRow(key="small", value=b""), MetaRow(key="big", value=bytes(100_000))
    writes = [store.write(lambda tx, row=row: tx.insert(row)) for row in (small, big)]
    assert [type(each) for each in await asyncio.gather(*writes, return_exceptions=True)] == [CommitFailed] * 2
    assert await store.read(lambda reader: reader.find(MetaRow)) == []
    store._writer.pragma("max_page_count", limit + 1000)
    await store.write(lambda tx: (tx.insert(small), tx.insert(big)))
    assert await store.read(lambda reader: reader.count(MetaRow)) == 2
    await store.close()


async def test_what_sqlite_says_of_the_disk_inside_a_write_fails_the_whole_batch(ram: Path) -> None:
    store = SqliteStore.open(ram / "refold.db")

    def on_a_disk_that_became_read_only(tx: Tx) -> None:
        raise apsw.ReadOnlyError("attempt to write a readonly database")

    writes = [lambda tx: tx.insert(MetaRow(key="k", value=b"")), on_a_disk_that_became_read_only]
    outcomes = await asyncio.gather(*(store.write(write) for write in writes), return_exceptions=True)
    assert [type(each) for each in outcomes] == [CommitFailed] * 2
    assert await store.read(lambda reader: reader.count(MetaRow)) == 0
    await store.write(writes[0])
    await store.close()


async def _template(directory: Path) -> list[RunRecord]:
    """Makes a store with two Runs that have begun."""
    store = SqliteStore.open(directory / "refold.db")
    runs = [await begin(store, name) for name in "ab"]
    await store.close()
    return runs


async def _marks(path: Path) -> set[str]:
    """The marks that a start on this file finds; everything else in it must fit together."""
    store = SqliteStore.open(path)

    def look(reader: Reader) -> set[str]:
        assert audit(reader) == []
        return {row.digest for row in reader.find(ValueRow)}

    found = await store.read(look)
    await store.close()
    return found
