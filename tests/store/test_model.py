"""The memory store is the model: whatever is done to both, the SQLite store answers the same and holds the same.

Reopening, kill -9 and power loss are steps like any other: what was acknowledged survives them, so the model, which
forgets nothing, stays equal.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import random
import shutil
import tempfile
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from refold.records import AttemptRow, DecisionRow, LogRow, ReplayRow, Row, RunRecord, RunStatus, SessionRecord
from refold.store import MemoryStore, Reader, SqliteStore, Store, Tx, append_log
from refold.store.base import TABLES
from refold.testing.faults import PowerVFS
from refold.testing.history import Undone, begin, begin_in, filled, next_step, note

Change = Callable[[Tx], Any]

SHARED_MEMORY = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
NAMES = map("model {}".format, itertools.count())
LOOSE = [kind for kind in TABLES if kind not in (SessionRecord, LogRow)]
"""Rows that may come and go one by one; a Session and its log hang together."""


# -- what is done to both ---------------------------------------------------------------------------------------------


def _insert(kind: type[Row], salt: int) -> Change:
    return lambda tx: tx.insert(filled(kind, salt))


def _put(kind: type[Row], salt: int, key_salt: int) -> Change:
    key = {name: getattr(filled(kind, key_salt), name) for name in TABLES[kind].key}
    return lambda tx: tx.put(filled(kind, salt, **key))


def _delete(kind: type[Row], place: int) -> Change:
    def change(tx: Tx) -> int:
        found = tx.find(kind)[place : place + 1]
        return sum(tx.delete(kind, **{name: getattr(row, name) for name in TABLES[kind].key}) for row in found)

    return change


def _delete_run(kind: type[Row], run: int) -> Change:
    return lambda tx: tx.delete(kind, run=run)


def _append(session: int, count: int) -> Change:
    return lambda tx: append_log(tx, session, [note(str(number)) for number in range(count)])


def _take(run: int, epoch: int | None, status: RunStatus) -> Change:
    where = None if epoch is None else {"epoch": epoch}
    return lambda tx: tx.update(RunRecord, (run,), where=where, epoch=(epoch or 0) + 1, status=status)


def _end(run: int, ordinal: int) -> Change:
    return lambda tx: tx.update(AttemptRow, (run, ordinal), where={"ended_at": None}, status="failed", ended_at=1)


few = st.integers(1, 4)
kinds = st.sampled_from(LOOSE)
keyed = st.sampled_from([kind for kind in LOOSE if TABLES[kind].key != ("n",)])
changes = st.one_of(
    st.sampled_from("abcd").map(lambda name: lambda tx: begin_in(tx, name)),
    st.builds(_insert, kinds, few),
    st.builds(_put, keyed, few, few),
    st.builds(_delete, kinds, few),
    st.builds(_delete_run, st.sampled_from([AttemptRow, ReplayRow, DecisionRow]), few),
    st.builds(_append, few, few),
    st.builds(_take, few, st.none() | few, st.sampled_from([RunStatus.RUNNING, RunStatus.CANCELLED])),
    st.builds(_end, few, few),
)


@st.composite
def writes(draw: st.DrawFn) -> Change:
    """A transaction of some changes, which may fail at its end."""
    done, fails = draw(st.lists(changes, min_size=1, max_size=4)), draw(st.integers(0, 3)) == 0

    def write(tx: Tx) -> list[Any]:
        answers = [change(tx) for change in done]
        if fails:
            raise Undone
        return answers

    return write


@st.composite
def questions(draw: st.DrawFn) -> Callable[[Reader], Any]:
    """A `find` and a `count` by a member of a row that may be there."""
    kind, salt = draw(kinds), draw(few)
    name = draw(st.sampled_from(kind.__struct_fields__))
    equals = {name: draw(st.sampled_from([getattr(filled(kind, salt), name), None, salt]))}
    window = {"limit": draw(st.none() | few), "newest_first": draw(st.booleans())}
    if isinstance(getattr(filled(kind), TABLES[kind].key[-1]), int):
        window |= {"after": draw(st.just(0) | few), "before": draw(st.none() | few)}
    return lambda reader: (reader.find(kind, **window, **equals), reader.count(kind, **equals))


async def _outcome(call: Awaitable[Any]) -> Any:
    """What a call answered; of an error, its type."""
    try:
        answer = await call
    except Exception as error:  # noqa: BLE001 - compared with the model's
        return type(error)
    return [type(each) if isinstance(each, Exception) else each for each in answer] if type(answer) is list else answer


def _everything(reader: Reader) -> list[Any]:
    windows = [(reader.log(n, 2), reader.log_before(n, 4, 2)) for n in range(1, 5)]
    return [*(reader.find(kind) for kind in TABLES), *windows]


# -- the two stores ---------------------------------------------------------------------------------------------------


class Stores(RuleBasedStateMachine):
    """A memory store and an SQLite store that are told the same."""

    def __init__(self) -> None:
        super().__init__()
        self._loop = asyncio.new_event_loop()
        self._home = tempfile.TemporaryDirectory(dir=SHARED_MEMORY)
        self._homes = (Path(self._home.name) / str(number) for number in itertools.count())
        self._disk = PowerVFS(next(NAMES))
        self._model = MemoryStore()
        self._heads: tuple[dict[int, int], dict[int, int]] = ({}, {})
        self._model.on_commit(self._heads[0].update)
        self._open(next(self._homes))

    def teardown(self) -> None:
        self._run(self._store.close())
        self._loop.close()
        self._disk.unregister()
        self._home.cleanup()

    @initialize()
    def begin(self) -> None:
        for name in "ab":
            self._both(lambda store, name=name: begin(store, name))

    @rule(group=st.lists(writes(), min_size=1, max_size=4))
    def write(self, group: Iterable[Change]) -> None:
        """One transaction, or several in one turn of the loop."""

        async def all_of(store: Store) -> list[Any]:
            return await asyncio.gather(*(store.write(each) for each in group), return_exceptions=True)

        self._both(all_of)

    @rule(place=few, behind=st.sampled_from([0, 0, 0, 1]), times=st.integers(1, 3))
    def commit(self, place: int, behind: int, times: int) -> None:
        """Steps of a driver, which may be one of an older epoch."""
        runs = self._run(self._model.read(lambda reader: reader.find(RunRecord)))
        for _ in range(times if runs else 0):
            self._commit(runs[place % len(runs)], behind)

    def _commit(self, run: RunRecord, behind: int) -> None:
        step = self._run(self._model.read(lambda reader: next_step(reader, run.n, epoch=run.epoch - behind)))
        self._both(lambda store: store.commit(step))

    @rule(question=questions())
    def ask(self, question: Callable[[Reader], Any]) -> None:
        self._both(lambda store: store.read(question))

    @rule()
    def reopen(self) -> None:
        self._run(self._store.close())
        self._open(self._store.path.parent)

    @rule()
    def kill(self) -> None:
        """What the process had written is in the files, whether it was synced or not."""
        home = next(self._homes)
        shutil.copytree(self._store.path.parent, home, ignore=shutil.ignore_patterns("*-shm"))
        self._run(self._store.close())
        self._open(home)

    @rule(seed=st.none() | st.integers(0, 99))
    def lose_power(self, seed: int | None) -> None:
        home = next(self._homes)
        self._disk.power_loss(self._store.path.parent, home, None if seed is None else random.Random(seed))
        self._run(self._store.close())
        self._open(home)

    @invariant()
    def hold_the_same(self) -> None:
        self._both(lambda store: store.read(_everything))
        assert self._heads[0] == self._heads[1]

    def _open(self, home: Path) -> None:
        self._store = SqliteStore.open(home / "refold.db", vfs=self._disk.name)
        self._store.on_commit(self._heads[1].update)

    def _run(self, call: Awaitable[Any]) -> Any:
        return self._loop.run_until_complete(call)

    def _both(self, call: Callable[[Store], Awaitable[Any]]) -> None:
        model, store = (self._run(_outcome(call(each))) for each in (self._model, self._store))
        assert store == model


TestStores = Stores.TestCase
TestStores.settings = settings(max_examples=50, stateful_step_count=30, deadline=None)
