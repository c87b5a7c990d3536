"""Faults planted on purpose, each one caught by the law it breaks: a law that no fault can break checks nothing."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

import msgspec
import pytest
from store_kit import MemoryFactory

from refold import records
from refold.engine import driver, supervisor
from refold.engine.agents import Assignment, Report, Tools
from refold.engine.clock import Clock
from refold.errors import Fenced
from refold.flowir import Blocked, Pass
from refold.records import ReplayRow, Row, RunRecord, RunStatus
from refold.service.blueprints import Blueprints
from refold.service.tasks import NewTask, Tasks
from refold.store import MemoryStore, StepCommit, Store, Tx, base, memory
from refold.store.audit import audit
from refold.testing import damage
from refold.testing.conformance import StoreConformance
from refold.testing.history import advance, begin, next_step

pytestmark = pytest.mark.anyio


# -- who may write ----------------------------------------------------------------------------------------------------


class Unguarded:
    """A transaction whose updates ask for nothing."""

    def __init__(self, tx: Tx) -> None:
        self._tx = tx

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tx, name)

    def update(
        self, kind: type[Row], key: tuple[Any, ...], *, where: Mapping[str, Any] | None = None, **changes: Any
    ) -> bool:
        return self._tx.update(kind, key, **changes)

    def update_all(
        self, kind: type[Row], names: tuple[str, ...], where: tuple[str, ...], values: Sequence[Sequence[Any]]
    ) -> int:
        keys = len(base.TABLES[kind].key)
        return self._tx.update_all(kind, names, where[:keys], [each[: len(names) + keys] for each in values])


def _without_the_fence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "apply_step", lambda tx, *told: base.apply_step(Unguarded(tx), *told))


async def _zombie(store: Store) -> list[str]:
    """A driver writes on after another one took its Run over; what an audit says of it."""
    run = await begin(store)
    await advance(store, run.n)
    await store.write(lambda tx: tx.update(RunRecord, (run.n,), where={"epoch": 1}, epoch=2))
    await advance(store, run.n)
    late: StepCommit = await store.read(lambda reader: next_step(reader, run.n, epoch=1))
    try:
        await store.commit(late)
    except Fenced:
        pass
    else:
        await advance(store, run.n)
    return await store.read(audit)


async def test_a_driver_that_was_taken_over_writes_nothing() -> None:
    assert await _zombie(MemoryStore()) == []


async def test_planted_a_commit_without_the_epoch_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    _without_the_fence(monkeypatch)
    assert any("rows of epochs" in said for said in await _zombie(MemoryStore()))


# -- what is logged ---------------------------------------------------------------------------------------------------


class Worker:
    """An agent that refuses or passes, as its name says."""

    def __init__(self, outcome: Blocked | Pass) -> None:
        self._outcome = outcome

    async def perform(self, work: Assignment) -> Report:
        return Report(self._outcome)


def _step(ref: str) -> dict[str, Any]:
    return {"kind": "step", "ref": ref, "in": {"op": "lit", "value": None}, "out": {"op": "path", "at": f"$.{ref}"}}


CAUGHT_REFUSAL = {
    "id": "caught-refusal",
    "flow": {
        "kind": "seq",
        "children": [_step("first"), {"kind": "try", "body": _step("refuser"), "catch": _step("second")}],
    },
    "agents": [{"name": name, "kind": "python", "spec": {"fn": "t:f"}} for name in ("first", "refuser", "second")],
}


async def _logged(monkeypatch: pytest.MonkeyPatch) -> tuple[list[str], list[str]]:
    """The steps in the replay log of a Run that caught a refusal, and what an audit says of its store."""
    outcomes = {"refuser": Blocked("no")}
    monkeypatch.setattr(driver, "performer", lambda agent, tools: Worker(outcomes.get(agent.name, Pass("yes"))))
    store, clock = MemoryStore(), Clock()
    drivers = supervisor.Supervisor(store, clock, Tools(reaper=None))
    tasks = Tasks(store, clock, drivers, Blueprints(store, clock, None), "off")
    run = await tasks.launch(NewTask(blueprint={"kind": "inline", "value": CAUGHT_REFUSAL}))
    await drivers.settled(run.n)
    ended, rows = await store.read(lambda reader: (reader.get(RunRecord, run.n), reader.find(ReplayRow, run=run.n)))
    assert ended.status == RunStatus.DONE
    return [row.step_ref for row in rows], await store.read(audit)


async def test_only_passes_are_logged(monkeypatch: pytest.MonkeyPatch) -> None:
    assert await _logged(monkeypatch) == (["first", "second"], [])


async def test_planted_a_logged_refusal_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver, "Pass", (Pass, Blocked))
    logged, said = await _logged(monkeypatch)
    assert logged == ["first", "refuser", "second"]
    assert any("attempts passed" in each for each in said)


# -- the suite itself -------------------------------------------------------------------------------------------------

Law = Callable[[StoreConformance, MemoryFactory], Awaitable[None]]


def _unhashed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(base, "replay_hash", lambda chain, row: row.hash)


def _unchained(monkeypatch: pytest.MonkeyPatch) -> None:
    alone = records.replay_hash
    for module in (base, records):
        monkeypatch.setattr(module, "replay_hash", lambda chain, row: alone(b"", row))


def _headless(monkeypatch: pytest.MonkeyPatch) -> None:
    def verify(run: RunRecord, rows: list[Any]) -> None:
        chain = rows[-1].hash if rows else run.chain
        base.verify_replay(msgspec.structs.replace(run, rows=len(rows), chain=chain), rows)

    monkeypatch.setattr(damage, "verify_replay", verify)


def _undoes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory._MemoryTx, "undo", lambda tx: None)


def _numbers_by_counting(monkeypatch: pytest.MonkeyPatch) -> None:
    insert = memory._MemoryTx.insert

    def by_counting(tx: Any, row: Row) -> Row:
        tx._tables.last[type(row)] = tx.count(type(row))
        return insert(tx, row)

    monkeypatch.setattr(memory._MemoryTx, "insert", by_counting)


def _wakes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    async def write(store: MemoryStore, fn: Callable[[Tx], Any]) -> Any:
        store._wake({1: 99})
        return await real(store, fn)

    real = MemoryStore.write
    monkeypatch.setattr(MemoryStore, "write", write)


def _commits_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    async def commit(store: MemoryStore, step: StepCommit) -> tuple[int, ...]:
        nothing = msgspec.structs.replace(step, ends=(), opens=())
        await store.write(lambda tx: base.apply_step(tx, nothing))
        rest = msgspec.structs.replace(step, passes=(), decisions=())
        return await store.write(lambda tx: base.apply_step(tx, rest))

    monkeypatch.setattr(MemoryStore, "commit", commit)


PLANTS: dict[str, tuple[Callable[[pytest.MonkeyPatch], None], Law]] = {
    "row hashes are not checked": (
        _unhashed,
        lambda suite, factory: suite.test_a_flipped_byte_in_a_replay_log_is_found(
            factory, ReplayRow, "step_output_json"
        ),
    ),
    "hashes do not chain": (_unchained, lambda suite, factory: suite.test_the_rows_of_another_run_are_found(factory)),
    "the head is not checked": (
        _headless,
        lambda suite, factory: suite.test_a_missing_row_of_a_replay_log_is_found(factory, 7),
    ),
    "the head is not checked, again": (
        _headless,
        lambda suite, factory: suite.test_an_older_copy_of_the_head_is_found(factory),
    ),
    "commits ask for no epoch": (
        _without_the_fence,
        lambda suite, factory: suite.test_a_driver_that_lost_its_run_writes_nothing(factory, {"epoch": 2}),
    ),
    "commits ask for no status": (
        _without_the_fence,
        lambda suite, factory: suite.test_a_driver_that_lost_its_run_writes_nothing(factory, {"status": "cancelled"}),
    ),
    "commits come in parts": (
        _commits_in_parts,
        lambda suite, factory: suite.test_a_commit_that_cannot_write_a_part_writes_nothing(factory, "opens"),
    ),
    "nothing is undone": (
        _undoes_nothing,
        lambda suite, factory: suite.test_an_exception_undoes_everything(factory, ValueError, ValueError),
    ),
    "integer keys are counts": (
        _numbers_by_counting,
        lambda suite, factory: suite.test_an_integer_key_is_never_given_twice(factory),
    ),
    "readers are woken before the commit": (
        _wakes_first,
        lambda suite, factory: suite.test_the_wake_up_says_heads_and_only_after_the_commit(factory),
    ),
}


@pytest.mark.parametrize("name", PLANTS)
async def test_planted_faults_are_caught_by_the_suite(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    plant, law = PLANTS[name]
    await law(StoreConformance(), MemoryFactory())
    plant(monkeypatch)
    with pytest.raises((AssertionError, pytest.fail.Exception)):
        await law(StoreConformance(), MemoryFactory())
