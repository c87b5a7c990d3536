"""The audit speaks of whatever does not fit, and is silent on what does."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from store_kit import MemoryFactory

from refold.records import AttemptRow, AttemptStatus, LogRow, ReplayRow, Row, RunRecord, SessionRecord
from refold.store import Tx
from refold.store.audit import audit
from refold.testing.history import advance, begin, cut

pytestmark = pytest.mark.anyio

MISFITS: dict[str, tuple[type[Row], tuple[int, ...], dict[str, Any] | None, str]] = {
    "a log row is missing": (LogRow, (1, 2), None, "log row 3 does not follow row 1"),
    "a log row was changed": (LogRow, (1, 2), {"body_json": "{}"}, "log row 2 does not follow row 1"),
    "the log's last row is missing": (LogRow, (1, 5), None, "its log ends at 4, its head says 5"),
    "the log's head is behind": (SessionRecord, (1,), {"seq": 4}, "its head says 4"),
    "a replay row was changed": (ReplayRow, (1, 1), {"step_output_json": "2"}, "row 1 of its replay log"),
    "a replay row is missing": (ReplayRow, (1, 3), None, "row 3 of its replay log"),
    "an older driver wrote last": (AttemptRow, (1, 3), {"epoch": 0}, "rows of epochs [1, 1, 0]"),
    "a driver nobody knows wrote": (RunRecord, (1,), {"epoch": 0}, "of epoch 0: rows of epochs [1, 1, 1]"),
    "a refusal is logged": (AttemptRow, (1, 2), {"status": AttemptStatus.BLOCKED}, "1 attempts passed, 2 rows"),
    "a pass is not logged": (AttemptRow, (1, 3), {"status": AttemptStatus.PASSED}, "3 attempts passed, 2 rows"),
    "an attempt was never shown": (AttemptRow, (1, 2), {"opened": 2}, "attempt 2 is opened by no record"),
    "an attempt is another step's": (AttemptRow, (1, 2), {"step_id": "ST-x"}, "attempt 2 is opened by no record"),
    "an item closed too early": (AttemptRow, (1, 2), {"ended_at": None}, "attempt 2 is open, and its item is closed"),
    "an item never closed": (AttemptRow, (1, 3), {"status": AttemptStatus.PASSED}, "passed, and its item is open"),
}


async def _factory() -> MemoryFactory:
    """A store with a Run of three attempts, two of them passed."""
    factory = MemoryFactory()
    store = await factory.open()
    run = await begin(store)
    for _ in range(3):
        await advance(store, run.n)
    return factory


@pytest.mark.parametrize("name", MISFITS)
async def test_it_speaks_of_what_does_not_fit(name: str) -> None:
    kind, key, changes, expected = MISFITS[name]
    factory = await _factory()
    row = factory.raw_get(kind, *key)
    factory.raw_set(kind, key, None if changes is None else msgspec.structs.replace(row, **changes))
    said = await (await factory.open()).read(audit)
    assert any(expected in each for each in said), said


async def test_it_is_silent_on_what_fits() -> None:
    store = await (await _factory()).open()
    assert await store.read(audit) == []
    await cut(store, 1)
    await begin(store, "b")
    assert await store.read(audit) == []


def _retain_from(tx: Tx, floor: int) -> None:
    for seq in range(1, floor):
        tx.delete(LogRow, session=1, seq=seq)
    tx.update(SessionRecord, (1,), floor=floor)


async def test_it_does_not_miss_what_retention_took() -> None:
    store = await (await _factory()).open()
    await store.write(lambda tx: _retain_from(tx, 3))
    assert await store.read(audit) == []
    await store.write(lambda tx: tx.delete(LogRow, session=1, seq=4))
    assert any("log row 5 does not follow row 3" in each for each in await store.read(audit))
