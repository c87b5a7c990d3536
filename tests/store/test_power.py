"""Power loss at any operation loses nothing that was acknowledged, and a store that would is caught (law 1, R12)."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from refold.errors import StoreError
from refold.records import AttemptRow, MetaRow, ValueRow
from refold.store import Reader, SqliteStore, sqlite
from refold.store.audit import audit
from refold.testing.faults import Op, PowerVFS
from refold.testing.history import advance, begin, next_step

pytestmark = pytest.mark.anyio

STEPS = 8
SIZES = (10, 300, 9_000, 40_000)
"""Bytes that a step stores beside its rows: commits of one page and of many."""


class Cuts:
    """Cuts the power before every operation of a disk, and keeps what was acknowledged by then with each image."""

    def __init__(self, disk: PowerVFS, store: Path, directory: Path, luck: random.Random | None) -> None:
        self.acknowledged = -1
        self._store = store
        self.kinds: set[str] = set()
        self._disk = disk
        self._directory = directory
        self._luck = luck
        self._images: list[tuple[int, Path]] = []
        disk.watch = self.cut

    def cut(self, op: Op) -> None:
        self.kinds.add(op.kind)
        if self._luck is None and op.kind in ("write", "truncate"):
            return  # what is not synced does not survive: the image is the one before
        image = self._directory / str(len(self._images))
        self._disk.power_loss(self._store.parent, image, self._luck)
        self._images.append((self.acknowledged, image))

    async def violations(self) -> list[str]:
        """What a start on any of the images finds wrong."""
        return [said for acknowledged, image in self._images for said in await _start(image, acknowledged)]

    def __len__(self) -> int:
        return len(self._images)


async def _start(image: Path, acknowledged: int) -> list[str]:
    try:
        store = SqliteStore.open(image / "refold.db")
    except StoreError as error:
        return [f"not opened: {error}"]

    def look(reader: Reader) -> list[str]:
        found = reader.count(MetaRow) - 1 + reader.count(AttemptRow)
        return audit(reader) + [f"lost: {acknowledged} acknowledged, {found} found"] * (found < acknowledged)

    said = await store.read(look)
    await store.close()
    return said


async def _work(disk: PowerVFS, path: Path, cuts: Cuts) -> None:
    """Eight steps in sequence; `cuts` learns of each acknowledgement."""
    store = SqliteStore.open(path, vfs=disk.name)
    run = await begin(store)
    await store.write(lambda tx: tx.insert(MetaRow(key="begun", value=b"")))
    cuts.acknowledged = 0
    for number in range(STEPS):
        stored = ValueRow(digest=str(number), body="x" * SIZES[number % len(SIZES)])
        step = await store.read(lambda reader, stored=stored: next_step(reader, run.n, values=(stored,)))
        await store.commit(step)
        cuts.acknowledged = number + 1
    cuts.cut(Op("end", path))
    disk.watch = lambda op: None
    await store.close()


@pytest.fixture(params=[8000, 8], ids=["checkpoint-never", "checkpoint-often"])
def checkpoint(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    monkeypatch.setattr(sqlite, "CHECKPOINT_PAGES", request.param)
    return request.param


@pytest.mark.parametrize("seed", [None, 1, 2])
async def test_nothing_acknowledged_is_lost(disk: PowerVFS, ram: Path, checkpoint: int, seed: int | None) -> None:
    cuts = Cuts(disk, ram / "refold.db", ram / "images", None if seed is None else random.Random(seed))
    await _work(disk, ram / "refold.db", cuts)
    assert len(cuts) > (STEPS if seed is None else 150)
    assert ("truncate" in cuts.kinds) == (checkpoint == 8), "the variant does what its name says"
    assert await cuts.violations() == []


@pytest.mark.parametrize("level", ["OFF", "NORMAL"])
async def test_planted_a_weaker_synchronous_is_caught(
    disk: PowerVFS, ram: Path, monkeypatch: pytest.MonkeyPatch, level: str
) -> None:
    configure = sqlite._configure
    monkeypatch.setattr(
        sqlite, "_configure", lambda connection: (configure(connection), connection.pragma("synchronous", level))
    )
    cuts = Cuts(disk, ram / "refold.db", ram / "images", None)
    await _work(disk, ram / "refold.db", cuts)
    assert f"lost: {STEPS} acknowledged" in "\n".join(await cuts.violations())


# -- what a commit costs ----------------------------------------------------------------------------------------------


async def test_a_sequential_step_costs_one_sync(disk: PowerVFS, ram: Path) -> None:
    store = SqliteStore.open(ram / "refold.db", vfs=disk.name)
    run = await begin(store)
    before = disk.counts["sync"]
    for _ in range(20):
        await advance(store, run.n)
    assert disk.counts["sync"] - before == 20
    await store.close()


async def test_concurrent_commits_share_one_sync(disk: PowerVFS, ram: Path) -> None:
    store = SqliteStore.open(ram / "refold.db", vfs=disk.name)
    runs = [await begin(store, str(number)) for number in range(30)]
    before = disk.counts["sync"]
    await asyncio.gather(*(store.write(_touch(n)) for n in range(30)), *(advance(store, run.n) for run in runs))
    assert disk.counts["sync"] - before == 1
    assert await store.read(lambda reader: (reader.count(AttemptRow), reader.count(MetaRow))) == (30, 30)
    await store.close()


async def test_a_step_commits_at_once_only_after_a_turn_that_it_had_for_itself(disk: PowerVFS, ram: Path) -> None:
    """What two Runs do at the same time must not cost two syncs for ever, only until they have met."""
    store = SqliteStore.open(ram / "refold.db", vfs=disk.name)
    one, two = await begin(store, "one"), await begin(store, "two")
    await advance(store, one.n)
    await asyncio.sleep(0)  # its turn of the loop is over
    alone = advance(store, one.n)
    before = disk.counts["sync"]
    with pytest.raises(StopIteration):
        while True:
            alone.send(None)  # it never has to wait for the loop
    assert disk.counts["sync"] - before == 1
    for syncs in (2, 1, 1):  # the first time nobody knew
        before = disk.counts["sync"]
        await asyncio.gather(advance(store, one.n), advance(store, two.n))
        await asyncio.sleep(0)
        assert disk.counts["sync"] - before == syncs
    await store.close()


async def test_a_read_and_a_refused_write_cost_no_sync(disk: PowerVFS, ram: Path) -> None:
    store = SqliteStore.open(ram / "refold.db", vfs=disk.name)
    run = await begin(store)
    before = disk.counts["sync"]
    await store.read(audit)
    with pytest.raises(StoreError):
        await store.write(lambda tx: tx.insert(run) and tx.insert(run))
    assert disk.counts["sync"] == before
    await store.close()


def _touch(number: int):
    return lambda tx: tx.insert(MetaRow(key=str(number), value=b""))
