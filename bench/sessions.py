"""Long Sessions, and doors to them: what `attach` measures with.

Events are appended record by record as the engine makes them, many to a commit, for a hundred thousand of them with a
sync each would take minutes. What reads them is the whole of refold: its services, or its server over a socket.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Iterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple

import uuid_utils

from refold import view
from refold.client.session import Wire
from refold.records import AttemptStatus, LogRecord
from refold.service.app import App, Settings
from refold.service.sessions import ViewSettings
from refold.session import find_session
from refold.store import Tx, append_log

Json = Any
SHORT: Final = 1_000
LONG: Final = 100_000
SUFFIX: Final = 10
"""How many events are owed to who comes back."""
ITEMS: Final = 200
PER_COMMIT: Final = 1_000
TIGHT_BYTES: Final = 16 * 1024
"""A budget of history that no Session of this bench fits, in any form."""
SUFFIX_FORM, ANCHORED, NONE = "suffix", "anchored", "none"
"""Forms: a cursor comes back to what it is owed; no cursor, to a snapshot and what follows; or to nothing that fits."""
Attach = Callable[[], Awaitable[float]]
"""Attaches, and reads what is owed; how many seconds that took."""


class Grown(NamedTuple):
    """A Session of many events: its home, its id, and the cursor that lies `SUFFIX` events before its head.

    `start` and `middle` are cursors too: that of its creation, and one with half of its events on either side.
    """

    home: Path
    session_id: str
    cursor: str
    start: str
    middle: str


# -- Sessions ---------------------------------------------------------------------------------------------------------


@asynccontextmanager
async def with_items(events: int) -> AsyncGenerator[Grown]:
    """A Session in which every two events are an item of its own, compacted by itself as it grew."""
    with tempfile.TemporaryDirectory() as folder:
        yield await grow_items(Path(folder), events)


async def grow_items(home: Path, events: int) -> Grown:
    """Such a Session in the store of `home`, beside what is there."""
    return await _grow(home, events, _steps(events // 2), ViewSettings())


@asynccontextmanager
async def with_names(events: int) -> AsyncGenerator[Grown]:
    """A Session with 200 items, and as many events of other kinds as are left, behind one boundary."""
    with tempfile.TemporaryDirectory() as folder:
        records = itertools.chain(_steps(ITEMS), _names(events - 2 * ITEMS))
        yield await _grow(Path(folder), events, records, ViewSettings(compact_events=10**9))


async def _grow(
    home: Path, events: int, records: Iterator[Callable[[int], LogRecord]], settings: ViewSettings
) -> Grown:
    app = await _open(home, settings)
    info, _, _ = await app.sessions.start(uuid7(), {}, session_id=None, model=None, workspace_root=None, client="bench")
    session_id = info.session.session_id
    start = middle = await _head(app, session_id)
    for at in range(0, events, PER_COMMIT):
        if at <= events // 2:
            middle = await _head(app, session_id)
        await _append(app, session_id, itertools.islice(records, PER_COMMIT))
        await asyncio.gather(*app.compaction._compactions)
        if (at + PER_COMMIT) % LONG == 0:
            sys.stderr.write(f"  {at + PER_COMMIT:,} of {events:,}\n")
    await app.compaction.compact(uuid7(), {}, session_id=session_id)
    cursor = await _head(app, session_id)
    await _append(app, session_id, _names(SUFFIX))
    await app.close()
    return Grown(home, session_id, cursor, start, middle)


async def _head(app: App, session_id: str) -> str:
    _, _, head = await app.sessions.subscribe(session_id, None)
    return head


async def _append(app: App, session_id: str, records: Iterable[Callable[[int], LogRecord]]) -> None:
    makers = list(records)

    def write(tx: Tx) -> None:
        session = find_session(tx, session_id)
        append_log(tx, session.n, [make(session.seq + n) for n, make in enumerate(makers, 1)])

    await app.store.write(write)


def _steps(count: int) -> Iterator[Callable[[int], LogRecord]]:
    """Steps that open and close, one after the other, as the records that an engine writes; each knows its seq."""
    for n in range(count):
        of_step = {"run": 1, "turn_id": TURN, "step_id": f"ST-{n:032x}"}
        yield partial(_opened, of_step)
        yield partial(_closed, of_step)


def _opened(of_step: Json, seq: int) -> LogRecord:
    asked = {"ref": "worker", "args": '{"q":"what is next"}', "attempt": 1, "occurrence": seq, "input_hash": "0a" * 32}
    return view.step_dispatched(seq, lane=(), **asked, **of_step)


def _closed(of_step: Json, seq: int) -> LogRecord:
    ended = {"outcome": AttemptStatus.PASSED, "ms": 5, "output": "x" * 200}
    return view.step_completed(seq, origin=seq - 1, **ended, **of_step)


def _names(count: int) -> Iterator[Callable[[int], LogRecord]]:
    for _ in range(count):
        yield lambda seq: view.name_changed(seq, name=f"name {seq}", command=TURN)


def uuid7() -> str:
    return str(uuid_utils.uuid7())


TURN: Final = uuid7()


# -- doors ------------------------------------------------------------------------------------------------------------


@asynccontextmanager
async def in_process(grown: Grown, form: str) -> AsyncGenerator[Attach]:
    """The services themselves, on the loop of who asks."""
    app = await _open(grown.home, ViewSettings(history_budget_bytes=TIGHT_BYTES) if form == NONE else None)

    async def attach() -> float:
        begun = time.perf_counter()
        served = await app.sessions.resume(
            uuid7(),
            {},
            session_id=grown.session_id,
            cursor=grown.cursor if form == SUFFIX_FORM else None,
            preference="anchored",
            exclude_items=False,
        )
        subscription, owed = app.sessions.subscription(served.info.session, served.after), 0
        async for batch in subscription.frames():
            owed += len(batch.frames)
            if not batch.frames:
                break
        subscription.close()
        took = time.perf_counter() - begun
        _check(form, served.history, owed)
        return took

    try:
        yield attach
    finally:
        await app.close()


@asynccontextmanager
async def over_websocket(grown: Grown, form: str) -> AsyncGenerator[Attach]:
    """A server of its own, and a connection to it that is there already: what a handshake costs is not refold's."""
    config = f"history_budget_bytes = {TIGHT_BYTES}\n" if form == NONE else ""
    (grown.home / "config.toml").write_text(config)
    environment = {**os.environ, "REFOLD_HOME": str(grown.home)}
    command = [sys.executable, "-m", "refold", "serve", "--bind", "127.0.0.1:0"]
    server = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        wire = await asyncio.to_thread(_connected, grown.home)
        yield lambda: asyncio.to_thread(_attach, wire, grown, form)
        wire.close()
    finally:
        server.terminate()
        server.wait()


def _connected(home: Path) -> Wire:
    announced, deadline = home / "server.json", time.monotonic() + 30
    while not announced.exists():
        if time.monotonic() > deadline:
            raise RuntimeError("the server did not open its door within 30 s")
        time.sleep(0.01)
    return Wire(json.loads(announced.read_text())["url"], (home / "token").read_text().strip())


def _attach(wire: Wire, grown: Grown, form: str) -> float:
    begun = time.perf_counter()
    asked = {"cursor": grown.cursor} if form == SUFFIX_FORM else {"history": ANCHORED}
    history = wire.command("session/resume", {"sessionId": grown.session_id, **asked})["history"]
    owed = 0
    while owed < (0 if form == NONE else SUFFIX):
        owed += "sourceRange" in (wire.next(30) or {}).get("params", {})
    took = time.perf_counter() - begun
    _check(form, history, owed)
    return took


def _check(form: str, history: Json, owed: int) -> None:
    """A figure of something else than was meant is no figure."""
    assert owed == (0 if form == NONE else SUFFIX), owed
    if form != ANCHORED:
        assert history["noneReason"] == ("cursorSuffix" if form == SUFFIX_FORM else "historyBudget"), history
    else:
        assert history["mode"] == "anchoredSnapshot", history["mode"]
        assert len(history["snapshot"]["state"]["items"]) == ITEMS + 1  # and that of the compaction


async def _open(home: Path, settings: ViewSettings | None = None) -> App:
    store = home / "store" / "refold.db"
    store.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    return await App.open(Settings(store=store, view=settings or ViewSettings()))
