"""What every store has to do: one suite, written once, joined by each back end in five lines.

    class TestMyStore(StoreConformance):
        @pytest.fixture
        def factory(self) -> StoreFactory:
            return MyFactory(...)

A factory opens the same store again and again, so that *reopen* is part of every test that speaks of durability, and it
looks past the store, so that writing and reading are tested apart. Tests are async: the joining project needs anyio's
pytest plugin and an `anyio_backend` fixture, and `pytest.register_assert_rewrite("refold.testing.conformance")` to see
what differed. Numbered laws are those of the design (§3).

Not here: what only one back end can promise or suffer (power loss, a full disk, a foreign file).
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, Final, Protocol, TypeVar

import msgspec
import pytest

from refold.errors import Fenced, StoreDamaged, StoreError
from refold.records import (
    AttemptRow,
    AttemptStatus,
    DecisionRow,
    LogRecord,
    LogRow,
    LogType,
    MetaRow,
    ReplayRow,
    Row,
    RunRecord,
    RunStatus,
    SessionRecord,
    TaskRecord,
    ValueRow,
)
from refold.store import Reader, Store, Tx, append_log, verify_replay
from refold.store.base import TABLES
from refold.testing.history import SHARED, advance, audit, begin, begin_in, next_step, replay_rows, sample

R = TypeVar("R", bound=Row)

KINDS: Final = sorted(TABLES, key=lambda kind: TABLES[kind].name)
UNIQUE: Final = [
    (kind, names) for kind in KINDS for names in (TABLES[kind].key, *TABLES[kind].unique) if names != ("n",)
]
REPLAY_MEMBERS: Final = [
    (kind, name) for kind in (ReplayRow, DecisionRow) for name in kind.__struct_fields__ if name != "run"
]
_VALUES: Final[Mapping[type, Any]] = {int: 2**53 + 1, str: 'é\0"𝕏', bytes: b"\x00\xff", bool: True}


class StoreFactory(Protocol):
    """Opens one and the same store, and reaches around it."""

    async def open(self) -> Store:
        """The store as it stands. The one opened before was closed, or its process died."""
        ...

    def raw_get(self, kind: type[R], *key: Any) -> R | None:
        """The row with this primary key as it lies on the disk, not asking the store."""
        ...

    def raw_set(self, kind: type[Row], key: tuple[Any, ...], row: Row | None) -> None:
        """Puts `row` in the place of the row with this primary key, behind the store's back; None removes that row."""
        ...


async def reopened(factory: StoreFactory, store: Store) -> Store:
    """Closes `store` and opens it again."""
    await store.close()
    return await factory.open()


def filled(kind: type[R], salt: int = 0, **members: Any) -> R:
    """A row with something hard to keep in every member; another `salt` is another row in all of them."""
    empty = sample(kind)
    return msgspec.structs.replace(
        empty, **{name: _hard(getattr(empty, name), salt) for name in kind.__struct_fields__} | members
    )


def _hard(value: Any, salt: int) -> Any:
    hard = _VALUES.get(type(value))
    if isinstance(hard, str | bytes):
        return hard + type(hard)(str(salt), "ascii") if isinstance(hard, bytes) else hard + str(salt)
    return hard if isinstance(hard, bool) or hard is None else hard + salt


def note(text: str) -> LogRecord:
    """A log record that says `text`."""
    return LogRecord(type=LogType.SESSION_RESUMED, at=7, body={"text": text})


@pytest.mark.anyio
class StoreConformance:
    """Join it with a `factory` fixture that gives a new, empty StoreFactory for each test."""

    # -- rows ---------------------------------------------------------------------------------------------------------

    @pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
    async def test_a_row_is_kept_with_the_type_of_every_member(self, factory: StoreFactory, kind: type[Row]) -> None:
        store = await factory.open()
        row = await store.write(lambda tx: tx.insert(filled(kind)))
        key = tuple(getattr(row, name) for name in TABLES[kind].key)
        assert factory.raw_get(kind, *key) == row
        for _ in range(2):
            found = await store.read(lambda reader: reader.get(kind, *key))
            assert found == row
            assert [type(member) for member in _members(found)] == [type(member) for member in _members(row)]
            store = await reopened(factory, store)

    async def test_what_is_not_there_is_none(self, factory: StoreFactory) -> None:
        store = await factory.open()
        assert await store.read(lambda reader: [reader.get(RunRecord, 1), reader.find(RunRecord)]) == [None, []]

    async def test_integer_keys_count_from_one_and_go_on_after_undo_and_reopen(self, factory: StoreFactory) -> None:
        store, keys = await factory.open(), []
        for _ in range(3):
            for _ in range(2):
                keys.append(await store.write(lambda tx, key=len(keys): tx.insert(_task(key)).n))
            with pytest.raises(_Undo):
                await store.write(lambda tx: (tx.insert(_task(99)), _raise(_Undo())))
            store = await reopened(factory, store)
        assert keys == [1, 2, 3, 4, 5, 6]

    async def test_find_filters_orders_pages_and_limits(self, factory: StoreFactory) -> None:
        store = await factory.open()
        rows = [sample(AttemptRow, run=n % 2, ordinal=9 - n, ended_at=n if n > 4 else None) for n in range(9)]
        await store.write(lambda tx: [tx.insert(row) for row in rows])
        ordered = sorted(rows, key=lambda row: (row.run, row.ordinal))
        for after in (0, 1, 5, 9):
            for limit in (None, 0, 1, 3, 99):
                for newest_first in (False, True):
                    for equals in ({}, {"run": 1}, {"ended_at": None}, {"ended_at": 6, "run": 0}, {"run": 7}):
                        expected = [row for row in ordered if row.ordinal > after and _has(row, equals)]
                        asked = {"after": after, "limit": limit, "newest_first": newest_first, **equals}
                        found = await store.read(lambda reader, asked=asked: reader.find(AttemptRow, **asked))
                        assert found == (expected[::-1] if newest_first else expected)[:limit], asked

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

    # -- transactions -------------------------------------------------------------------------------------------------

    @pytest.mark.parametrize(
        ("raised", "seen"),
        [(ValueError, ValueError), (StopIteration, RuntimeError), (asyncio.CancelledError, asyncio.CancelledError)],
    )
    async def test_an_exception_undoes_everything(
        self, factory: StoreFactory, raised: type[BaseException], seen: type[BaseException]
    ) -> None:
        store = await factory.open()
        run = await begin(store)
        before = await store.read(_everything)

        def work(tx: Tx) -> None:
            begin_in(tx, "b")
            tx.put(SHARED)
            tx.update(RunRecord, (run.n,), epoch=9)
            append_log(tx, run.session, [note("never")])
            raise raised

        with pytest.raises(seen):
            await store.write(work)
        assert await store.read(_everything) == before
        await advance(store, run.n)
        store = await reopened(factory, store)
        assert await store.read(lambda reader: (reader.get(TaskRecord, 2), audit(reader))) == (None, [])

    async def test_writers_of_one_turn_do_not_undo_each_other(self, factory: StoreFactory) -> None:
        store = await factory.open()
        run = await begin(store)
        stale = await store.read(lambda reader: next_step(reader, run.n, epoch=0))
        outcomes = await asyncio.gather(
            store.write(lambda tx: append_log(tx, run.session, [note("first")])[0].seq),
            store.write(lambda tx: (append_log(tx, run.session, [note("lost")]), _raise(_Undo()))),
            store.commit(stale),
            store.write(lambda tx: append_log(tx, run.session, [note("second")])[0].seq),
            return_exceptions=True,
        )
        assert [type(each) for each in outcomes] == [int, _Undo, Fenced, int]
        assert (outcomes[0], outcomes[3]) == (1, 2)
        store = await reopened(factory, store)
        log, faults = await store.read(lambda reader: (reader.log(run.session, 0), audit(reader)))
        assert [row.body_json for row in log] == ['{"text":"first"}', '{"text":"second"}']
        assert faults == []

    async def test_a_write_answers_with_its_result(self, factory: StoreFactory) -> None:
        store = await factory.open()
        results = await asyncio.gather(*(store.write(lambda tx, n=n: n) for n in (None, 1, ValueError)))
        assert results == [None, 1, ValueError]

    # -- the commit of a step -----------------------------------------------------------------------------------------

    async def test_a_commit_writes_all_of_its_step(self, factory: StoreFactory) -> None:
        store = await factory.open()
        run = await begin(store)
        await advance(store, run.n)
        step = await store.read(lambda reader: next_step(reader, run.n))
        seqs = await store.commit(step)
        assert seqs == (3,)
        (opened,) = step.opens
        store = await reopened(factory, store)
        assert factory.raw_get(ReplayRow, run.n, 1) == step.passes[0]
        assert factory.raw_get(DecisionRow, run.n, 2) == step.decisions[0]
        assert factory.raw_get(ValueRow, SHARED.digest) == SHARED
        assert factory.raw_get(AttemptRow, run.n, 2) == msgspec.structs.replace(opened.attempt, opened=3)
        ended = await store.read(lambda reader: reader.get(AttemptRow, run.n, 1))
        assert (ended.status, ended.ended_at) == (AttemptStatus.PASSED, step.at)
        log = await store.read(lambda reader: reader.log(run.session, 1))
        assert [row.item_id for row in log] == [step.ends[0].record.item_id, opened.record.item_id]
        head = await store.read(lambda reader: reader.get(RunRecord, run.n))
        assert (head.rows, head.chain, head.updated_at) == (2, step.chain_after, step.at)
        assert await store.read(audit) == []

    @pytest.mark.parametrize("part", ["passes", "decisions", "opens"])
    async def test_a_commit_that_cannot_write_a_part_writes_nothing(self, factory: StoreFactory, part: str) -> None:
        store = await factory.open()
        run = await begin(store)
        for _ in range(2):
            await advance(store, run.n)
        before = await store.read(_everything)
        again = await store.read(lambda reader: next_step(reader, run.n))
        twice = msgspec.structs.replace(again, **{part: getattr(again, part) * 2}, values=(filled(ValueRow),))
        with pytest.raises(StoreError):
            await store.commit(twice)
        assert await store.read(_everything) == before
        store = await reopened(factory, store)
        assert await store.read(_everything) == before
        await store.commit(again)
        assert await store.read(audit) == []

    @pytest.mark.parametrize(
        "standing",
        [{"epoch": 2}, {"epoch": 0}, *({"status": status} for status in RunStatus if status != RunStatus.RUNNING)],
        ids=str,
    )
    async def test_a_driver_that_lost_its_run_writes_nothing(
        self, factory: StoreFactory, standing: dict[str, Any]
    ) -> None:
        store = await factory.open()
        run = await begin(store)
        await advance(store, run.n)
        late = await store.read(lambda reader: next_step(reader, run.n))
        await store.write(lambda tx: tx.update(RunRecord, (run.n,), **standing))
        before = await store.read(_everything)
        with pytest.raises(Fenced):
            await store.commit(late)
        assert await store.read(_everything) == before

    async def test_of_two_drivers_the_later_one_goes_on_alone(self, factory: StoreFactory) -> None:
        store = await factory.open()
        run = await begin(store)
        await advance(store, run.n)
        late = await store.read(lambda reader: next_step(reader, run.n))
        await store.write(lambda tx: tx.update(RunRecord, (run.n,), where={"epoch": 1}, epoch=2))
        await advance(store, run.n)
        with pytest.raises(Fenced):
            await store.commit(late)
        await advance(store, run.n)
        store = await reopened(factory, store)
        assert await store.read(audit) == []

    # -- the log ------------------------------------------------------------------------------------------------------

    async def test_insert_order_is_commit_order_and_a_tailing_reader_misses_nothing(
        self, factory: StoreFactory
    ) -> None:
        store = await factory.open()
        run = await begin(store)
        acked: list[int] = []
        tailed: list[LogRow] = []

        async def write(name: str) -> None:
            for n in range(20):
                rows = await store.write(lambda tx, n=n: append_log(tx, run.session, [note(f"{name}{n}")] * (n % 3)))
                acked.extend(row.seq for row in rows)
                for _ in range(n % 4):  # the two writers meet in every order of turns
                    await asyncio.sleep(0)

        async def tail() -> None:
            while len(tailed) < 38:
                after = tailed[-1].seq if tailed else 0
                tailed.extend(await store.read(lambda reader: reader.log(run.session, after)))
                assert set(acked) <= {row.seq for row in tailed}, "acknowledged, and not there to be read"
                await asyncio.sleep(0)

        await asyncio.wait_for(asyncio.gather(write("a"), write("b"), tail()), 30)
        assert [row.seq for row in tailed] == acked == list(range(1, 39))
        store = await reopened(factory, store)
        log, faults = await store.read(lambda reader: (reader.log(run.session, 0), audit(reader)))
        assert (log, faults) == (tailed, [])

    async def test_log_and_log_before_are_windows(self, factory: StoreFactory) -> None:
        store = await factory.open()
        run, other = await begin(store, "a"), await begin(store, "b")
        for owner in (run, other) * 2:
            await store.write(lambda tx, owner=owner: append_log(tx, owner.session, [note("x")] * 3))
        rows = await store.read(lambda reader: reader.log(run.session, 0))
        assert [(row.session, row.seq) for row in rows] == [(run.session, seq) for seq in range(1, 7)]
        for edge in range(9):
            for limit in (0, 1, 4, 9):
                after, before = await store.read(
                    lambda reader, edge=edge, limit=limit: (
                        reader.log(run.session, edge, limit),
                        reader.log_before(run.session, edge, limit),
                    )
                )
                assert after == rows[edge:][:limit]
                assert before == [row for row in rows if row.seq < edge][-limit:] * (limit > 0)
        assert await store.read(lambda reader: (reader.log(9, 0), reader.log_before(9, 9, 9))) == ([], [])

    async def test_the_wake_up_says_heads_and_only_after_the_commit(self, factory: StoreFactory) -> None:
        store = await factory.open()
        run, other = await begin(store, "a"), await begin(store, "b")
        heads: list[tuple[int, int]] = []

        def wake(grown: Mapping[int, int]) -> None:
            heads.extend(grown.items())
            for session, seq in grown.items():
                assert factory.raw_get(SessionRecord, session).seq >= seq, "woken before it was committed"

        store.on_commit(wake)
        await store.write(lambda tx: append_log(tx, run.session, [note("x")] * 3))
        await store.write(lambda tx: tx.update(RunRecord, (run.n,), waiting_on="input"))
        with pytest.raises(_Undo):
            await store.write(lambda tx: (append_log(tx, run.session, [note("x")]), _raise(_Undo())))
        await advance(store, other.n)
        assert heads == [(run.session, 3), (other.session, 1)]

    # -- damage -------------------------------------------------------------------------------------------------------

    @pytest.mark.parametrize(
        ("kind", "member"), REPLAY_MEMBERS, ids=lambda value: value if isinstance(value, str) else value.__name__
    )
    async def test_a_flipped_byte_in_a_replay_log_is_found(
        self, factory: StoreFactory, kind: type[Row], member: str
    ) -> None:
        run, rows = await self._sealed(factory)
        victim = next(row for row in rows[2:] if isinstance(row, kind))
        flipped = msgspec.structs.replace(victim, **{member: _flip(getattr(victim, member))})
        factory.raw_set(kind, (run.n, victim.ordinal), flipped)
        await self._is_refused(factory, run)

    @pytest.mark.parametrize("ordinal", range(1, 7))
    async def test_a_missing_row_of_a_replay_log_is_found(self, factory: StoreFactory, ordinal: int) -> None:
        run, rows = await self._sealed(factory)
        factory.raw_set(type(rows[ordinal - 1]), (run.n, ordinal), None)
        await self._is_refused(factory, run)

    async def test_the_rows_of_another_run_are_found(self, factory: StoreFactory) -> None:
        run, rows = await self._sealed(factory, "a")
        _, others = await self._sealed(factory, "b")
        for row, other in zip(rows, others, strict=True):
            factory.raw_set(type(row), (run.n, row.ordinal), msgspec.structs.replace(other, run=run.n))
        await self._is_refused(factory, run)

    async def test_an_older_copy_of_the_head_is_found(self, factory: StoreFactory) -> None:
        run, rows = await self._sealed(factory)
        head = factory.raw_get(RunRecord, run.n)
        factory.raw_set(RunRecord, (run.n,), msgspec.structs.replace(head, rows=4, chain=rows[3].hash))
        await self._is_refused(factory, run)

    async def test_an_untouched_replay_log_is_not_refused(self, factory: StoreFactory) -> None:
        run, rows = await self._sealed(factory)
        store = await factory.open()
        found = await store.read(lambda reader: (reader.get(RunRecord, run.n), replay_rows(reader, run.n)))
        assert found[1] == rows
        verify_replay(*found)

    async def _sealed(self, factory: StoreFactory, name: str = "a") -> tuple[RunRecord, list[Any]]:
        """A Run whose replay log has six rows; its store is closed."""
        store = await factory.open()
        run = await begin(store, name)
        for _ in range(4):
            await advance(store, run.n)
        rows = await store.read(lambda reader: replay_rows(reader, run.n))
        await store.close()
        assert len(rows) == 6
        return run, rows

    async def _is_refused(self, factory: StoreFactory, run: RunRecord) -> None:
        store = await factory.open()
        with pytest.raises(StoreDamaged):
            await store.read(lambda reader: verify_replay(reader.get(RunRecord, run.n), replay_rows(reader, run.n)))
        await store.close()


class _Undo(Exception):
    """What a test raises to undo its own write."""


def _raise(error: Exception) -> None:
    raise error


def _task(number: int) -> TaskRecord:
    return sample(TaskRecord, task_id=f"T-{number}", session_id=f"S-{number}")


def _members(row: Row) -> tuple[Any, ...]:
    return msgspec.structs.astuple(row)


def _has(row: Row, equals: dict[str, Any]) -> bool:
    return all(getattr(row, name) == value for name, value in equals.items())


def _everything(reader: Reader) -> dict[type[Row], list[Row]]:
    return {kind: reader.find(kind) for kind in TABLES}


def _flip(value: Any) -> Any:
    """`value` with one bit turned."""
    if isinstance(value, bytes):
        return bytes([value[0] ^ 1]) + value[1:]
    return value ^ 1 if isinstance(value, int) else chr(ord(value[:1] or " ") ^ 1) + value[1:]
