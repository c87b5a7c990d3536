"""What every store has to do: one suite, written once, joined by each back end in five lines.

    class TestMyStore(StoreConformance):
        @pytest.fixture
        def factory(self) -> StoreFactory:
            return MyFactory(...)

A factory opens the same store again and again, so that *reopen* is part of every test that speaks of durability, and it
looks past the store, so that writing and reading are tested apart. Tests are async: the joining project needs anyio's
pytest plugin and an `anyio_backend` fixture; `pytest.register_assert_rewrite` on this module, `rows` and `damage` shows
what differed. Numbered laws are those of the design (§3).

Not here: what only one back end can promise or suffer (power loss, a full disk, a foreign file).
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, TypeVar

import msgspec
import pytest

from refold.errors import Fenced, StoreError
from refold.records import (
    AttemptRow,
    AttemptStatus,
    DecisionRow,
    Head,
    LogRow,
    ReplayRow,
    RequestRow,
    Row,
    RunRecord,
    RunStatus,
    SessionRecord,
    TaskRecord,
    ValueRow,
)
from refold.store import MemoryStore, Question, Reader, Tx, append_log
from refold.store.audit import audit
from refold.store.base import TABLES, apply_steps
from refold.testing.damage import DamageConformance
from refold.testing.history import (
    SHARED,
    StoreFactory,
    Undone,
    advance,
    begin,
    begin_in,
    fail,
    filled,
    next_step,
    note,
    reopened,
    sample,
)
from refold.testing.rows import RowConformance

R = TypeVar("R", bound=Row)


@pytest.mark.anyio
class StoreConformance(RowConformance, DamageConformance):
    """Join it with a `factory` fixture that gives a new, empty StoreFactory for each test."""

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
        await advance(store, run.n)
        before = await store.read(_everything)

        def work(tx: Tx) -> None:
            begin_in(tx, "b")
            tx.put(SHARED)
            tx.delete(AttemptRow, run=run.n)
            tx.update(RunRecord, (run.n,), epoch=9)
            append_log(tx, run.session, [note("never")])
            raise raised

        with pytest.raises(seen):
            async with asyncio.timeout(30):
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
            store.write(lambda tx: (append_log(tx, run.session, [note("lost")]), fail())),
            store.commit(stale),
            store.write(lambda tx: append_log(tx, run.session, [note("second")])[0].seq),
            return_exceptions=True,
        )
        assert [type(each) for each in outcomes] == [int, Undone, Fenced, int]
        assert (outcomes[0], outcomes[3]) == (1, 2)
        store = await reopened(factory, store)
        log, faults = await store.read(lambda reader: (reader.log(run.session, 0), audit(reader)))
        assert [row.body_json for row in log] == ['{"text":"first"}', '{"text":"second"}']
        assert faults == []

    async def test_steps_of_one_turn_are_as_one_after_the_other(self, factory: StoreFactory) -> None:
        """Also two of one Session, and beside some that are refused: what they write together is what each would."""
        store, alone = await factory.open(), MemoryStore()
        for each in (store, alone):
            runs = [await begin(each, name) for name in "abcd"]
            first, second, *_ = runs
            await each.write(lambda tx, n=second.n, to=first.session: tx.update(RunRecord, (n,), session=to))
            for run in runs:
                await advance(each, run.n)
        for refused in (None, runs[0].n, runs[3].n):
            steps = [await alone.read(lambda reader, n=run.n: next_step(reader, n)) for run in runs]
            steps = [msgspec.structs.replace(step, epoch=step.epoch - (step.run == refused)) for step in steps]
            if refused is None:  # at once, or not at all: nothing falls back to one by one
                together = await store.write(lambda tx, steps=steps: apply_steps(tx, steps))
            else:
                together = await asyncio.gather(*map(store.commit, steps), return_exceptions=True)
            each = [*await asyncio.gather(*map(alone.commit, steps), return_exceptions=True)]
            assert [type(one) for one in together] == [Fenced if step.run == refused else tuple for step in steps]
            assert [one for one in together if type(one) is tuple] == [one for one in each if type(one) is tuple]
            assert await store.read(_everything) == await alone.read(_everything)
        assert len({step.session for step in steps}) < len(steps)
        assert await store.read(audit) == []

    async def test_where_a_log_ends_is_what_its_session_says_whoever_wrote_it(self, factory: StoreFactory) -> None:
        store = await factory.open()
        run = await begin(store)

        def write(tx: Tx, *, at: int | None, seq: int | None = None) -> tuple[Head | None, SessionRecord | None]:
            append_log(tx, run.session, [note("x")])
            if at is not None:
                tx.update(SessionRecord, (run.session,), updated_at=at)
            if seq is not None:
                tx.update(SessionRecord, (run.session,), seq=seq)
            return tx.head(run.session), tx.get(SessionRecord, run.session)

        for changes in ({"at": None}, {"at": 77}, {"at": 78, "seq": 9}, {"at": None}):
            head, session = await store.write(lambda tx, changes=changes: write(tx, **changes))
            assert session is not None and head == session.head

    async def test_a_write_that_meets_the_close_is_kept_if_it_is_acknowledged(self, factory: StoreFactory) -> None:
        store = await factory.open()
        run = await begin(store)
        closing = store.write(lambda tx: append_log(tx, run.session, [note("last")])), store.close()
        async with asyncio.timeout(30):
            acknowledged, _ = await asyncio.gather(*closing, return_exceptions=True)
        store = await factory.open()
        log = await store.read(lambda reader: reader.log(run.session, 0))
        assert log == ([] if isinstance(acknowledged, StoreError) else acknowledged)

    async def test_a_write_answers_with_its_result(self, factory: StoreFactory) -> None:
        store = await factory.open()
        results = await asyncio.gather(*(store.write(lambda tx, n=n: n) for n in (None, 1, ValueError)))
        assert results == [None, 1, ValueError]

    async def test_what_is_done_also_with_a_step_shares_its_fate(self, factory: StoreFactory) -> None:
        store = await factory.open()
        run = await begin(store)
        before = await store.read(_everything)
        step = await store.read(lambda reader: next_step(reader, run.n))
        with pytest.raises(Undone):
            await store.commit(step, lambda tx: (append_log(tx, run.session, [note("never")]), fail()))
        assert await store.read(_everything) == before
        await store.commit(step, lambda tx: append_log(tx, run.session, [note("behind")]))
        store = await reopened(factory, store)
        log, faults = await store.read(lambda reader: (reader.log(run.session, 0), audit(reader)))
        assert log[-1].body_json == '{"text":"behind"}'
        assert len(log) == 1 + len(step.opens) + len(step.ends)
        assert faults == []

    # -- the commit of a step -----------------------------------------------------------------------------------------

    async def test_a_commit_writes_all_of_its_step(self, factory: StoreFactory) -> None:
        store = await factory.open()
        run = await begin(store)
        await advance(store, run.n)
        step = await store.read(lambda reader: next_step(reader, run.n))
        end = msgspec.structs.replace(step.ends[0], outcome_json="1", due_at=5)
        step = msgspec.structs.replace(step, ends=(end,), waiting_on="timer")
        seqs = await store.commit(step)
        assert seqs == (3,)
        (opened,) = step.opens
        store = await reopened(factory, store)
        assert factory.raw_get(ReplayRow, run.n, 1) == step.passes[0]
        assert factory.raw_get(DecisionRow, run.n, 2) == step.decisions[0]
        assert factory.raw_get(ValueRow, SHARED.digest) == SHARED
        assert factory.raw_get(AttemptRow, run.n, 2) == msgspec.structs.replace(opened.attempt, opened=3)
        ended = await store.read(lambda reader: reader.get(AttemptRow, run.n, 1))
        assert ended is not None
        assert (ended.status, ended.ended_at) == (AttemptStatus.PASSED, step.at)
        assert (ended.outcome_json, ended.due_at) == ("1", 5)
        log = await store.read(lambda reader: reader.log(run.session, 1))
        assert [row.item_id for row in log] == [step.ends[0].record.item_id, opened.record.item_id]
        head = await store.read(lambda reader: reader.get(RunRecord, run.n))
        assert head is not None
        assert (head.rows, head.chain, head.updated_at) == (2, step.chain_after, step.at)
        assert head.waiting_on == "timer"
        assert await store.read(audit) == []

    async def test_a_retry_belongs_to_the_item_that_its_first_try_opened(self, factory: StoreFactory) -> None:
        store = await factory.open()
        run = await begin(store)
        await advance(store, run.n)
        step = await store.read(lambda reader: next_step(reader, run.n))
        (opened,) = step.opens
        retry = msgspec.structs.replace(opened, attempt=msgspec.structs.replace(opened.attempt, opened=1))
        assert await store.commit(msgspec.structs.replace(step, opens=(retry,))) == (3,)
        assert factory.raw_get(AttemptRow, run.n, 2) == retry.attempt

    async def test_a_commit_opens_questions_and_consumes_answers(self, factory: StoreFactory) -> None:
        store = await factory.open()
        run = await begin(store)
        await advance(store, run.n)
        step = await store.read(lambda reader: next_step(reader, run.n, questions=(_question("first"),)))
        assert await store.commit(step) == (3,)
        store = await reopened(factory, store)
        (asked,) = await store.read(lambda reader: reader.find(RequestRow))
        assert asked == msgspec.structs.replace(step.questions[0].request, n=asked.n, opened=4)
        await store.commit(await store.read(lambda reader: next_step(reader, run.n, consumed=(asked.n,))))
        store = await reopened(factory, store)
        assert factory.raw_get(RequestRow, asked.n) == msgspec.structs.replace(asked, consumed=True)

    @pytest.mark.parametrize("part", ["passes", "decisions", "opens", "questions"])
    async def test_a_commit_that_cannot_write_a_part_writes_nothing(self, factory: StoreFactory, part: str) -> None:
        store = await factory.open()
        run = await begin(store)
        for _ in range(2):
            await advance(store, run.n)
        before = await store.read(_everything)
        again = await store.read(lambda reader: next_step(reader, run.n, questions=(_question("once"),)))
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
                tailed.extend(await store.read(lambda reader: reader.log(run.session, len(tailed))))
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

    async def test_a_log_is_measured_in_bytes_of_what_comes_after(self, factory: StoreFactory) -> None:
        store = await factory.open()
        run, other = await begin(store, "a"), await begin(store, "b")
        for owner in (run, other):
            await store.write(lambda tx, owner=owner: append_log(tx, owner.session, [note("ünïcode" * 3000)] * 3))
        rows = await store.read(lambda reader: reader.log(run.session, 0))
        sizes = [len(row.body_json.encode()) for row in rows]
        assert len(sizes) == 3
        for after in range(5):
            measured = await store.read(lambda reader, after=after: reader.log_bytes(run.session, after))
            assert measured == sum(sizes[after:])

    async def test_the_wake_up_says_heads_and_only_after_the_commit(self, factory: StoreFactory) -> None:
        store = await factory.open()
        run, other = await begin(store, "a"), await begin(store, "b")
        heads: list[tuple[int, int]] = []
        early: list[int] = []

        def wake(grown: Mapping[int, int]) -> None:
            for n, seq in grown.items():
                stored = factory.raw_get(SessionRecord, n)
                heads.append((n, seq))
                if stored is None or stored.seq < seq:
                    early.append(seq)

        store.on_commit(wake)
        await store.write(lambda tx: append_log(tx, run.session, [note("x")] * 3))
        await store.write(lambda tx: tx.update(RunRecord, (run.n,), waiting_on="input"))
        with pytest.raises(Undone):
            await store.write(lambda tx: (append_log(tx, run.session, [note("x")]), fail()))
        await advance(store, other.n)
        assert (heads, early) == ([(run.session, 3), (other.session, 1)], [])


def _question(request_id: str) -> Question:
    return Question(request=sample(RequestRow, request_id=request_id), record=note("asked"))


def _everything(reader: Reader) -> dict[type[Row], list[Row]]:
    return {kind: reader.find(kind) for kind in TABLES}
