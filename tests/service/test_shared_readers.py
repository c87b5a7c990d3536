"""Readers that share what follows a position: what a commit costs them, counted, and that each still gets its own."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from types import SimpleNamespace
from typing import Any, NamedTuple
from unittest import mock

import orjson
import pytest
from boundary_kit import Author
from hypothesis import given
from hypothesis import strategies as st
from oracle_kit import Desk
from service_kit import Crew, House, Line, uuid7
from view_kit import UNCOMPACTED, append

from refold import canonical, view
from refold.canonical import encode
from refold.server.rpc import Rpc
from refold.service.app import App
from refold.session import Batch, Subscription, Suffixes
from refold.session.suffixes import KEPT_BYTES
from refold.store import Reader
from refold.view import Frame

FEW, MANY = 2, 30
EVENTS = 5

pytestmark = pytest.mark.anyio


# -- what a commit costs ----------------------------------------------------------------------------------------------


class Cost(NamedTuple):
    reads: int
    texts: int
    """JSON texts written."""


@pytest.fixture
async def app(house: House, crew: Crew) -> AsyncIterator[App]:
    yield await house.open(view=UNCOMPACTED)


Happens = Callable[[App, str, list[Line]], Awaitable[None]]


async def cost(app: App, readers: int, happens: Happens, monkeypatch: pytest.MonkeyPatch) -> Cost:
    """What it costs that something happens in a Session, with so many connections at its head."""
    rpc, counted = Rpc(app, "/home"), Counter[str]()
    read, dumps = app.store.read, orjson.dumps

    async def reading(fn: Callable[[Reader], Any]) -> Any:
        counted["reads"] += 1
        return await read(fn)

    def writing(*args: Any, **how: Any) -> bytes:
        counted["texts"] += 1
        return dumps(*args, **how)

    async with AsyncExitStack() as stack:
        lines = [await stack.enter_async_context(Line(app, rpc)) for _ in range(readers)]
        session = await lines[0].start("echo")
        for line in lines[1:]:
            await line.resume(session)
        await renamed(app, session, lines)
        known = {name: getattr(orjson, name) for name in dir(orjson) if not name.startswith("__")}
        with monkeypatch.context() as patch:
            patch.setattr(app.store, "read", reading)
            patch.setattr(canonical, "orjson", SimpleNamespace(**known | {"dumps": writing}))
            await happens(app, session, lines)
        page = await lines[0].page(session)
        for line in lines:
            assert line.pushed(session) == page[2:]
    return Cost(counted["reads"], counted["texts"])


async def renamed(app: App, session: str, lines: list[Line]) -> None:
    """One event, and every line has it."""
    name = uuid7()
    await app.sessions.rename(uuid7(), {}, session_id=session, name=name)
    for line in lines:
        await line.until(lambda frame: frame.get("params", {}).get("name") == name)


async def one_by_one(app: App, session: str, lines: list[Line]) -> None:
    for _ in range(EVENTS):
        await renamed(app, session, lines)


async def many_at_once(app: App, session: str, lines: list[Line]) -> None:
    """More than is kept here, and more than a reader is handed at once."""
    await append(app, session, 400, 4 * KEPT_BYTES // 400)
    await renamed(app, session, lines)


async def test_an_event_costs_one_read_and_one_text_however_many_stand_at_the_head(
    app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    few = await cost(app, FEW, one_by_one, monkeypatch)
    assert await cost(app, MANY, one_by_one, monkeypatch) == few
    assert few.reads == 2 * EVENTS, "one of the log, and one of how the Session stands"


async def test_readers_go_through_much_in_step_so_that_it_is_written_once(
    app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    few = await cost(app, FEW, many_at_once, monkeypatch)
    assert (await cost(app, MANY, many_at_once, monkeypatch)).texts == few.texts


async def test_the_counters_see_readers_that_do_not_share(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    shared = await cost(app, MANY, one_by_one, monkeypatch)
    monkeypatch.setattr(Suffixes, "known", lambda *_: None)
    alone = await cost(app, MANY, one_by_one, monkeypatch)
    assert alone.reads >= shared.reads + EVENTS * (MANY - 1)
    assert alone.texts >= shared.texts + EVENTS * (MANY - 1)


async def test_a_broadcast_costs_a_connection_that_has_not_asked_for_it_no_turn(
    app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    rpc = Rpc(app, "/home")
    async with Line(app, rpc) as line:
        flush = mock.AsyncMock()
        monkeypatch.setattr(line._peer, "_flush", flush)
        for method in ("session/listChanged", "session/started"):
            rpc.broadcast(method, {})
            await asyncio.sleep(0)
        assert flush.call_count == 1


# -- that each gets its own -------------------------------------------------------------------------------------------


class Client:
    """A reader that pulls when it is told to, and may lose what it was handed."""

    def __init__(self, subscription: Subscription, start: int) -> None:
        self.subscription = subscription
        self.start = start
        """How many frames lay before it when it came."""
        self.frames: list[Frame] = []

    async def pull(self, *, loses: bool = False) -> Batch | None:
        batch = await self.subscription.look()
        if batch is not None and not loses:
            assert batch.gap is None and not batch.said
            assert all(json_of(each.frame) == each.text for each in batch.frames)
            self.frames += [each.frame for each in batch.frames]
            self.subscription.take(batch)
        return batch


def json_of(frame: Frame) -> bytes:
    return encode(frame).encode()


choices = st.lists(st.tuples(st.sampled_from(["write", "come", "pull", "pull", "lose", "leave"]), st.integers(0, 255)))


@given(st.binary(max_size=20), choices)
def test_readers_at_any_positions_each_get_the_frames_after_their_own(
    begun: bytes, moves: list[tuple[str, int]]
) -> None:
    asyncio.run(_judged(begun, moves))


async def _judged(begun: bytes, moves: list[tuple[str, int]]) -> None:
    author = await Author().play(begun)
    desk, clients, gone = Desk(author), list[Client](), list[Client]()
    for move, n in moves:
        if move == "write":
            await author.go_on(bytes([n]))
        elif move == "come":
            places = [view.GENESIS, *(position for position, _ in await author.placed())]
            start = n % len(places)
            clients.append(Client(await desk.subscription(places[start]), start))
        elif clients:
            client = clients[n % len(clients)]
            if move == "leave":
                clients.remove(client)
                gone.append(client)
                client.subscription.close()
            else:
                await client.pull(loses=move == "lose")
    page = await desk.page()
    for client in clients:
        while await client.pull() is not None:
            assert len(client.frames) <= len(page), "or this would never end"
        assert client.frames == page[client.start :]
    for client in gone:
        assert client.frames == page[client.start :][: len(client.frames)]


# -- what is kept -----------------------------------------------------------------------------------------------------


async def test_what_is_kept_is_bounded_in_number_and_in_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("refold.session.suffixes.KEPT", 5)
    author = await Author().play(b"")
    for size in [*[KEPT_BYTES // 10] * 20, *[1] * 10]:
        await author.append(view.model_changed(0, model="m" * size, source="user", command=uuid7()))
    suffixes, places = Suffixes(author.log), [position for position, _ in await author.placed()]
    kept = list[Batch]()
    for position in places:
        newest = await author.read(lambda reader, session, at=position: suffixes.after(reader, session, at))
        known = [suffixes.known(1, at, places[-1].seq) for at in places]
        kept = [each for each in known if each is not None]
        assert newest in kept
        assert len(kept) == 1 or sum(len(each.text) for one in kept for each in one.frames) <= KEPT_BYTES
    assert len(kept) == 5, "the last ones are short"


async def test_that_nothing_follows_holds_no_longer_than_the_log_ends_there() -> None:
    author = await Author().play(b"")
    suffixes, (head, _) = Suffixes(author.log), (await author.placed())[-1]

    async def after() -> Batch:
        return await author.read(lambda reader, session: suffixes.after(reader, session, head))

    assert await after() == Batch([], head.seq)
    assert suffixes.known(1, head, head.seq) is not None
    assert suffixes.known(1, head, head.seq + 1) is None
    await author.append(view.session_resumed(0, command=uuid7()))
    assert await after() == Batch([], head.seq + 1), "a row without a frame"
    await author.append(view.name_changed(0, name="n", command=uuid7()))
    first = await after()
    await author.append(view.name_changed(0, name="m", command=uuid7()))
    assert [each.position.seq for each in first.frames] == [head.seq + 2]
    assert await after() is first, "it is still what follows, if not all of it"
    suffixes.forget(1)
    assert [each.position.seq for each in (await after()).frames] == [head.seq + 2, head.seq + 3]
