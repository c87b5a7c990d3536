"""The command ledger on both stores: a command id applies once and answers the same for ever (law 9, R7)."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from store_kit import MemoryFactory, SqliteFactory

from refold.errors import CommandConflict, CommandRejected, SessionBusy
from refold.records import CommandRow, LogRow, RunRecord
from refold.service.commands import Ledger
from refold.store import Store, Tx, append_log, memory, sqlite
from refold.testing.history import StoreFactory, Undone, begin, note, reopened

pytestmark = pytest.mark.anyio

COMMAND = "018f0000-0000-7000-8000-000000000001"


@pytest.fixture(params=["memory", "sqlite"])
def factory(request: pytest.FixtureRequest, tmp_path: Path) -> StoreFactory:
    return MemoryFactory() if request.param == "memory" else SqliteFactory(tmp_path / "refold.db")


class Bell:
    """A command whose effect is a log record and whose answer is how many there are."""

    def __init__(self, store: Store, run: RunRecord) -> None:
        self._ledger = Ledger(store)
        self._run = run

    async def ring(self, command_id: str = COMMAND, **params: str) -> tuple[int, bool]:
        return await self._ledger.apply(command_id, "ring", params, self._effect, at=1)

    def _effect(self, tx: Tx) -> int:
        append_log(tx, self._run.session, [note("rung")])
        return tx.count(LogRow)


async def _times_rung(factory: StoreFactory) -> int:
    """How often one command had its effect that was sent four times: once, twice at once, and after a reopen."""
    store = await factory.open()
    run = await begin(store)
    bell = Bell(store, run)
    await bell.ring()
    await asyncio.gather(bell.ring(), bell.ring())
    store = await reopened(factory, store)
    await Bell(store, run).ring()
    return await store.read(lambda reader: reader.count(LogRow))


async def test_a_command_id_applies_once(factory: StoreFactory) -> None:
    assert await _times_rung(factory) == 1


async def test_planted_a_ledger_that_is_not_written_is_caught(
    factory: StoreFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    for kind in (memory._MemoryTx, sqlite._SqliteTx):
        insert = kind.insert
        forget = lambda tx, row, insert=insert: row if isinstance(row, CommandRow) else insert(tx, row)  # noqa: E731
        monkeypatch.setattr(kind, "insert", forget)
    assert await _times_rung(factory) == 4


async def test_the_answer_is_the_same_for_ever(factory: StoreFactory) -> None:
    store = await factory.open()
    run = await begin(store)
    bell = Bell(store, run)
    assert sorted(await asyncio.gather(bell.ring(), bell.ring())) == [(1, False), (1, True)]
    assert await bell.ring(COMMAND[:-1] + "2") == (2, True)
    store = await reopened(factory, store)
    assert await Bell(store, run).ring() == (1, False)


async def test_the_same_id_with_another_body_is_a_conflict(factory: StoreFactory) -> None:
    store = await factory.open()
    bell = Bell(store, await begin(store))
    await bell.ring(how="softly")
    with pytest.raises(CommandConflict):
        await bell.ring(how="loudly")
    assert await bell.ring(how="softly") == (1, False)


@pytest.mark.parametrize(
    "no",
    [CommandRejected("not now", reason="not_now"), SessionBusy("busy", run_id="R-1")],
    ids=lambda no: no.kind,
)
async def test_a_rejection_is_an_answer_too(factory: StoreFactory, no: CommandRejected | SessionBusy) -> None:
    store = await factory.open()
    for effect in (_raises(no), lambda tx: pytest.fail("applied after a rejection")):
        with pytest.raises(type(no)) as raised:
            await Ledger(store).apply(COMMAND, "ring", {}, effect, at=1)
        assert (raised.value.message, raised.value.data) == (no.message, no.data)
        store = await reopened(factory, store)


async def test_any_other_error_leaves_no_trace_and_the_id_free(factory: StoreFactory) -> None:
    store = await factory.open()
    run = await begin(store)

    def effect(tx: Tx) -> None:
        append_log(tx, run.session, [note("never")])
        raise Undone

    with pytest.raises(Undone):
        await Ledger(store).apply(COMMAND, "ring", {}, effect, at=1)
    assert await Bell(store, run).ring() == (1, True)


def _raises(error: Exception):
    def effect(tx: Tx) -> None:
        raise error

    return effect
