"""Room ahead of the WAL: commits overwrite it, no reader of the file sees it, and nothing depends on it."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import apsw
import pytest

from refold.records import RunRecord
from refold.store import SqliteStore
from refold.store.audit import audit
from refold.store.headroom import BYTES
from refold.testing.history import advance, begin

pytestmark = pytest.mark.anyio

COMMITS = 30


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[SqliteStore]:
    opened = SqliteStore.open(tmp_path / "refold.db")
    yield opened
    await opened.close()


def wal(store: SqliteStore) -> Path:
    return store.path.with_name(store.path.name + "-wal")


async def sizes(store: SqliteStore, commits: int, name: str = "a") -> list[int]:
    """How long the WAL is after each of some commits."""
    run, found = await begin(store, name), list[int]()
    for _ in range(commits):
        await advance(store, run.n)
        found.append(wal(store).stat().st_size)
    return found


async def test_a_commit_seldom_makes_the_wal_longer(store: SqliteStore) -> None:
    found = await sizes(store, COMMITS)
    used = COMMITS * 20_000  # a commit of the history takes more than half of that
    assert len(set(found)) <= 2 + used // BYTES, found


async def test_without_room_every_commit_does(store: SqliteStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the test above is worth; and a disk that has no room for zeros may still have some for a commit."""

    def full(*args: Any) -> int:
        raise OSError(errno.ENOSPC, "no space left on device")

    monkeypatch.setattr(os, "pwrite", full)
    found = await sizes(store, COMMITS)
    assert len(set(found)) == COMMITS, found
    assert await store.read(audit) == []


async def test_a_copy_of_the_files_at_any_commit_has_what_was_acknowledged(store: SqliteStore, tmp_path: Path) -> None:
    """As they are found after kill -9, or after power was lost: zeros and all."""
    run = await begin(store)
    for n in range(COMMITS):
        await advance(store, run.n)
        copy = tmp_path / f"copy{n}" / "refold.db"
        copy.parent.mkdir()
        for suffix in ("", "-wal"):
            shutil.copy(f"{store.path}{suffix}", f"{copy}{suffix}")
        assert not any(wal(store).read_bytes()[-1000:]), "there is room at the end"
        assert SqliteStore.quick_check(copy) == []
        again = SqliteStore.open(copy)
        assert await again.read(audit) == []
        assert await again.read(lambda reader: reader.get(RunRecord, run.n)) == await store.read(
            lambda reader: reader.get(RunRecord, run.n)
        )
        await advance(again, run.n)
        await again.close()


async def test_a_wal_that_a_checkpoint_cuts_off_gets_room_again(store: SqliteStore) -> None:
    before = await sizes(store, 3)
    store._writer.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
    assert wal(store).stat().st_size == 0
    after = await sizes(store, COMMITS, "b")
    assert len(set(after)) <= len(set(before)) + 3
    assert not any(wal(store).read_bytes()[-1000:])
    assert await store.read(audit) == []


async def test_the_room_goes_with_the_store(tmp_path: Path) -> None:
    store = SqliteStore.open(tmp_path / "refold.db")
    await sizes(store, 2)
    await store.close()
    assert [each.name for each in tmp_path.iterdir()] == ["refold.db"]
