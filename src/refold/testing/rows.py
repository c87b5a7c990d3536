"""The part of the conformance suite that is about rows: kept as they are, found, changed, deleted, refused."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any, Final

import msgspec
import pytest

from refold.errors import StoreError
from refold.records import (
    AttemptRow,
    MetaRow,
    Row,
    RunRecord,
    TaskRecord,
    ValueRow,
)
from refold.store import Tx
from refold.store.base import TABLES
from refold.testing.history import StoreFactory, Undone, advance, begin, fail, filled, reopened, sample

KINDS: Final = sorted(TABLES, key=lambda kind: TABLES[kind].name)
UNIQUE: Final = [
    (kind, names) for kind in KINDS for names in (TABLES[kind].key, *TABLES[kind].unique) if names != ("n",)
]


@pytest.mark.anyio
class RowConformance:
    """A part of `conformance.StoreConformance`; join that."""

    @pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
    @pytest.mark.parametrize("made", [filled, sample])
    async def test_a_row_is_kept_with_the_type_of_every_member(
        self, factory: StoreFactory, kind: type[Row], made: Callable[[type[Row]], Row]
    ) -> None:
        store = await factory.open()
        row = await store.write(lambda tx: tx.insert(made(kind)))
        key = tuple(getattr(row, name) for name in TABLES[kind].key)
        assert factory.raw_get(kind, *key) == row
        for _ in range(2):
            found = await store.read(lambda reader: reader.get(kind, *key))
            assert found is not None
            assert found == row
            assert [type(member) for member in _members(found)] == [type(member) for member in _members(row)]
            store = await reopened(factory, store)

    async def test_what_is_not_there_is_none(self, factory: StoreFactory) -> None:
        store = await factory.open()
        assert await store.read(lambda reader: [reader.get(RunRecord, 1), reader.find(RunRecord)]) == [None, []]

    async def test_integer_keys_count_from_one_and_go_on_after_undo_and_reopen(self, factory: StoreFactory) -> None:
        store, keys = await factory.open(), []
        for number in range(6):
            keys.append(await store.write(lambda tx, number=number: tx.insert(_task(number)).n))
            with pytest.raises(Undone):
                await store.write(lambda tx: (tx.insert(_task(99)), fail()))
            store = await reopened(factory, store) if number % 2 else store
        assert keys == [1, 2, 3, 4, 5, 6]

    async def test_an_integer_key_is_never_given_twice(self, factory: StoreFactory) -> None:
        store = await factory.open()
        await store.write(lambda tx: [tx.insert(_task(number)) for number in range(3)])
        with pytest.raises(Undone):
            await store.write(lambda tx: (tx.delete(TaskRecord, n=1), fail()))
        assert await store.write(lambda tx: (tx.delete(TaskRecord, n=3), tx.insert(_task(3)).n)) == (1, 4)
        await store.write(lambda tx: tx.delete(TaskRecord, n=4))
        store = await reopened(factory, store)
        assert await store.write(lambda tx: tx.insert(_task(4)).n) == 5

    async def test_find_filters_orders_pages_and_limits(self, factory: StoreFactory) -> None:
        store = await factory.open()
        rows = [sample(AttemptRow, run=n % 2, ordinal=9 - n, ended_at=n if n > 4 else None) for n in range(9)]
        await store.write(lambda tx: [tx.insert(row) for row in rows])
        ordered = sorted(rows, key=lambda row: (row.run, row.ordinal))
        windows = itertools.product((0, 1, 5, 9), (None, 0, 1, 6, 99), (None, 0, 1, 3, 99), (False, True))
        for after, before, limit, newest_first in windows:
            window: dict[str, Any] = {"after": after, "before": before, "limit": limit, "newest_first": newest_first}
            inside = [row for row in ordered if row.ordinal > after and (before is None or row.ordinal < before)]
            for equals in ({}, {"run": 1}, {"ended_at": None}, {"ended_at": 6, "run": 0}, {"run": 7}):
                expected = [row for row in inside if _has(row, equals)]
                asked: dict[str, Any] = {**window, **equals}
                found = await store.read(lambda reader, asked=asked: reader.find(AttemptRow, **asked))
                assert found == (expected[::-1] if newest_first else expected)[:limit], asked
            for but in ({"run": 1}, {"ended_at": None}, {"ended_at": 6, "run": 0}, {"run": 7}):
                expected = [row for row in inside if _has(row, {"run": 0}) and not _has(row, but)]
                asked = {**window, "but": but, "run": 0}
                found = await store.read(lambda reader, asked=asked: reader.find(AttemptRow, **asked))
                assert found == (expected[::-1] if newest_first else expected)[:limit], asked
        for equals in ({}, {"run": 1}, {"ended_at": None}, {"run": 7}):
            expected = [row for row in rows if _has(row, equals)]
            assert await store.read(lambda reader, equals=equals: reader.count(AttemptRow, **equals)) == len(expected)

    async def test_update_is_a_compare_and_set(self, factory: StoreFactory) -> None:
        store = await factory.open()
        run, other = await begin(store, "a"), await begin(store, "b")

        async def update(key: int, where: dict[str, Any] | None, **changes: Any) -> bool:
            return await store.write(lambda tx: tx.update(RunRecord, (key,), where=where, **changes))

        assert await update(run.n, {"epoch": 1, "waiting_on": None}, epoch=2, waiting_on="input")
        assert not await update(run.n, {"epoch": 1}, epoch=3)
        assert not await update(run.n, {"waiting_on": None}, epoch=3)
        assert not await update(99, None, epoch=3)
        assert await update(run.n, None, waiting_on=None)
        store = await reopened(factory, store)
        assert factory.raw_get(RunRecord, run.n) == msgspec.structs.replace(run, epoch=2)
        assert await store.read(lambda reader: reader.get(RunRecord, other.n)) == other

    async def test_delete_removes_what_it_names_and_frees_its_keys(self, factory: StoreFactory) -> None:
        store = await factory.open()
        run, other = await begin(store, "a"), await begin(store, "b")
        for owner in (run, other) * 2:
            await advance(store, owner.n)
        assert await store.write(lambda tx: tx.delete(AttemptRow, run=run.n, status=None)) == 1
        assert await store.write(lambda tx: tx.delete(AttemptRow, run=run.n)) == 1
        assert await store.write(lambda tx: tx.delete(AttemptRow, run=run.n)) == 0
        await store.write(lambda tx: tx.delete(RunRecord, n=run.n))
        store = await reopened(factory, store)
        assert await store.read(lambda reader: reader.find(RunRecord)) == [factory.raw_get(RunRecord, other.n)]
        assert await store.read(lambda reader: reader.count(AttemptRow, run=other.n)) == 2
        assert (await store.write(lambda tx: tx.insert(run))).run_id == run.run_id

    async def test_put_keeps_what_is_there(self, factory: StoreFactory) -> None:
        store = await factory.open()
        for body in ("first", "second"):
            await store.write(lambda tx, body=body: tx.put(ValueRow(digest="d", body=body)))
            store = await reopened(factory, store)
        assert await store.read(lambda reader: reader.find(ValueRow)) == [ValueRow(digest="d", body="first")]

    @pytest.mark.parametrize(
        ("kind", "names"), UNIQUE, ids=lambda value: value.__name__ if isinstance(value, type) else "-".join(value)
    )
    async def test_a_taken_key_is_refused_and_nothing_else_happens(
        self, factory: StoreFactory, kind: type[Row], names: tuple[str, ...]
    ) -> None:
        store = await factory.open()
        row = await store.write(lambda tx: tx.insert(filled(kind)))
        twin = filled(kind, 1, **{name: getattr(row, name) for name in names})
        for _ in range(2):
            with pytest.raises(StoreError):
                await store.write(lambda tx: (tx.insert(MetaRow(key="with it", value=b"")), tx.insert(twin)))
            assert factory.raw_get(MetaRow, "with it") is None
            assert await store.read(lambda reader: reader.find(kind)) == [row]
            store = await reopened(factory, store)

        def caught(tx: Tx) -> None:
            with pytest.raises(StoreError):
                tx.insert(twin)
            tx.insert(filled(kind, 2))

        await store.write(caught)
        assert len(await store.read(lambda reader: reader.find(kind))) == 2


def _task(number: int) -> TaskRecord:
    return sample(TaskRecord, task_id=f"T-{number}", session_id=f"S-{number}")


def _members(row: Row) -> tuple[Any, ...]:
    return msgspec.structs.astuple(row)


def _has(row: Row, equals: dict[str, Any]) -> bool:
    return all(getattr(row, name) == value for name, value in equals.items())
