"""Steps that are committed in one turn share their statements, not only their fsync."""

import asyncio
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from store_kit import SqliteFactory

from refold.store.sqlite import _SqliteTx
from refold.testing.history import advance, begin, next_step

pytestmark = pytest.mark.anyio


async def test_many_steps_of_a_turn_share_statements(ram: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written, together = Counter[int](), 0
    change_all = _SqliteTx._change_all

    def counting(tx: _SqliteTx, kind: Any, sql: str, values: Any) -> None:
        written[together] += 1
        change_all(tx, kind, sql, values)

    monkeypatch.setattr(_SqliteTx, "_change_all", counting)
    store = await SqliteFactory(ram / "refold.db").open()
    runs = [await begin(store, f"{name}") for name in range(20)]
    for run in runs:
        await advance(store, run.n)
    for together in (1, 20):
        steps = [await store.read(lambda reader, n=run.n: next_step(reader, n, values=())) for run in runs[:together]]
        await asyncio.gather(*map(store.commit, steps))
    assert 0 < written[20] <= 2 * written[1]  # the first goes at once, the others share
    await store.close()
