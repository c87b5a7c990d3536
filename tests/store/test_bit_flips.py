"""A flipped bit anywhere in the file is refused, found by an audit, or changes nothing of what is sealed (law 10)."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import msgspec
import pytest
from store_kit import SqliteFactory

from refold.errors import StoreError
from refold.records import LogRow
from refold.store import Reader
from refold.store.audit import audit, replay_rows
from refold.testing.history import advance, begin

T = TypeVar("T")

pytestmark = pytest.mark.anyio

FLIPS = 400
STEPS = 30


async def test_no_flipped_bit_changes_a_sealed_row_unnoticed(ram: Path) -> None:
    factory = SqliteFactory(ram / "refold.db")
    store = await factory.open()
    run = await begin(store)
    for _ in range(STEPS):
        await advance(store, run.n)

    def sealed(reader: Reader) -> list[object]:
        log = [msgspec.structs.replace(row, run=None) for row in reader.find(LogRow)]  # no hash covers an integer key
        return [*replay_rows(reader, run.n), *log]

    truth = await store.read(sealed)
    await store.close()
    content, luck = factory.path.read_bytes(), random.Random(11)
    refused = noticed = harmless = 0
    for _ in range(FLIPS):
        flipped = bytearray(content)
        flipped[luck.randrange(len(content))] ^= 1 << luck.randrange(8)
        factory.path.write_bytes(flipped)
        try:
            found, said = await _read(factory, lambda reader: (sealed(reader), audit(reader)))
        except StoreError:
            refused += 1
            continue
        assert found == truth or said, "changed, and nobody noticed"
        noticed, harmless = noticed + bool(said), harmless + (not said)
    assert min(refused, noticed, harmless) > FLIPS // 50, "the flips hit structure, rows and free space"


async def _read(factory: SqliteFactory, look: Callable[[Reader], T]) -> T:
    store = await factory.open()
    try:
        return await store.read(look)
    finally:
        await store.close()
