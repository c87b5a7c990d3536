"""Clients that come, read a little, go away and come back at random moments, while a writer writes as fast as it can.

`REFOLD_ATTACHES=4500` looks for longer; with `-s` it tells what it did. `REFOLD_SEED` repeats a run's choices: the
moments are turns of one loop, so they come again as far as the disk's pace lets them.
"""

from __future__ import annotations

import asyncio
import os
import random
import sys
import time
from collections import Counter
from typing import Any, Final

import pytest
from service_kit import PATIENCE_SECS, Crew, Frame, House, Json, Line, cursor_of, faults
from view_kit import MANY

from refold import view
from refold.service.app import App
from refold.service.sessions import ViewSettings

pytestmark = pytest.mark.anyio

ATTACHES: Final = int(os.environ.get("REFOLD_ATTACHES", "75"))
PER_SESSION: Final = 50
"""Attaches to one Session: in memory the writer is far ahead of them, and an inline history costs all it wrote."""
COMES: Final = 5
"""How often one client comes: first by some form of history, then by its cursor."""
AT_ONCE: Final = 10
FORMS: Final = ("auto", "inline", "snapshot", "anchored", "excluded", "cursor", "subscribe")


class Reader:
    """One client over its connections: where it began, and every event that it was pushed since."""

    def __init__(self, session: str, form: str, chance: random.Random) -> None:
        self.session = session
        self._first = form
        self.chance = chance
        self.state: view.ViewState | None = None
        self.begin = ""
        self.got: list[Frame] = []

    @property
    def cursor(self) -> str:
        return cursor_of(self.got[-1]) if self.got else self.begin

    async def come(self, app: App, known: list[Frame]) -> str:
        """Attaches at some moment, reads for a while, and goes without a word; by which form it was served."""
        for _ in range(self.chance.randrange(60)):
            await asyncio.sleep(0)
        line = Line(app)
        await line.__aenter__()
        line.lag = lambda: self.chance.randrange(3)
        form = "cursor" if self.begin else self._first
        mark = len(line.frames)
        if form == "subscribe":
            self.begin = cursor_of(self.chance.choice(known))
            await line.call("view/subscribe", sessionId=self.session, after=self.begin)
        elif form == "cursor":
            self.begin = self.begin or cursor_of(self.chance.choice(known))
            answer = await line.resume(self.session, cursor=self.cursor)
            assert answer["history"]["noneReason"] == "cursorSuffix"
        else:
            form = self._served(await self._asked(line, form))
        wanted = self.chance.randrange(40)
        await asyncio.wait_for(self._read(line, mark, wanted), PATIENCE_SECS)
        line.hang_up()
        self.got += line.pushed(self.session, mark)
        await line.__aexit__()
        return form

    async def _asked(self, line: Line, form: str) -> Json:
        if form == "excluded":
            return await line.resume(self.session, excludeItems=True)
        return await line.resume(self.session, history=form)

    def _served(self, answer: Json) -> str:
        history = answer["history"]
        self.begin = answer["viewCursor"]
        if history["snapshot"] is not None:
            self.begin = history["snapshot"]["viewCursor"]
            self.state = view.seed(history["snapshot"])
        return history["mode"]

    async def _read(self, line: Line, at: int, wanted: int) -> None:
        while True:
            new = line.frames[at:]
            at += len(new)
            wanted -= sum("sourceRange" in frame.get("params", {}) for frame in new)
            if wanted <= 0:
                return
            await line.until(lambda frame: True, at)


class Writer:
    """Starts turn after turn as long as it may; the engine, the store and the pushes are what slows it down."""

    def __init__(self, line: Line, session: str) -> None:
        self._line = line
        self._session = session
        self._stop = False
        self._task = asyncio.create_task(self._write())

    async def _write(self) -> None:
        while not self._stop:
            turn = (await self._line.turn(self._session))["turnId"]
            await self._line.turn_ended(turn, max(0, len(self._line.frames) - 200))

    async def stop(self) -> None:
        self._stop = True
        await self._task


@pytest.mark.parametrize("in_memory", [False, True], ids=["sqlite", "memory"])
async def test_whoever_attaches_at_whatever_moment_gets_every_event_once(
    house: House, crew: Crew, in_memory: bool
) -> None:
    """Half of the attaches each: on a disk readers overtake the writer, in memory the writer the readers."""
    seed = int(os.environ.get("REFOLD_SEED", "0")) or random.randrange(1 << 32)
    sys.stderr.write(f"\nREFOLD_SEED={seed}\n")
    chance, seen, begun = random.Random(seed), Counter[Any](), time.perf_counter()
    attaches = ATTACHES // 2 if in_memory else ATTACHES - ATTACHES // 2
    house = House() if in_memory else house
    with house.without_processes():
        app = await house.open(view=ViewSettings(compact_events=100))
        await app.blueprints.add(MANY)
        for first in range(0, attaches, PER_SESSION):
            await _storm(app, chance, min(PER_SESSION, attaches - first), seen)
        assert in_memory or await faults(app) == []  # in memory a find passes every row, and the audit asks per Run
        await house.close()
    said = ", ".join(f"{n:,} {what}" for what, n in sorted(seen.items()))
    sys.stderr.write(f"{said}; {time.perf_counter() - begun:.0f} s\n")
    assert seen["attaches"] == attaches
    assert {"anchoredSnapshot", "snapshot", "inline", "none", "cursor", "subscribe"} <= seen.keys()


async def _storm(app: App, chance: random.Random, attaches: int, seen: Counter[Any]) -> None:
    async with Line(app) as line:
        session = await line.start("many")
        await line.turn_ended((await line.turn(session))["turnId"])
        await line.command("session/compact", sessionId=session)
        known = await line.page(session)
        left = iter(range(attaches))
        readers: list[Reader] = []

        async def visit() -> None:
            while True:
                form = FORMS[len(readers) % len(FORMS)]
                reader = Reader(session, form, random.Random(chance.random()))
                readers.append(reader)
                for _ in range(COMES):
                    if next(left, None) is None:
                        return
                    seen[await reader.come(app, known)] += 1
                    seen["attaches"] += 1

        writer = Writer(line, session)
        async with asyncio.TaskGroup() as visitors:
            for _ in range(AT_ONCE):
                visitors.create_task(visit())
        await writer.stop()
        page = await line.page(session, 1_000)
    seen["events"] += len(page)
    seen["events pushed to readers"] += sum(len(reader.got) for reader in readers)
    _judged(page, [reader for reader in readers if reader.begin])


def _judged(page: list[Frame], readers: list[Reader]) -> None:
    """Every reader got a stretch of the view without a hole or a double; its state is the fold of all up to there."""
    places = {cursor_of(frame): at for at, frame in enumerate(page, 1)}
    digests = {}
    whole = view.ViewState()
    ends = {places[reader.cursor] for reader in readers if reader.state is not None}
    for at, frame in enumerate(page, 1):
        view.apply(whole, frame)
        if at in ends:
            digests[at] = view.fold_digest(whole)
    for reader in readers:
        begin = places[reader.begin]
        assert reader.got == page[begin : begin + len(reader.got)]
        if reader.state is not None:
            for frame in reader.got:
                assert view.apply(reader.state, frame) is view.Outcome.APPLIED
            assert view.fold_digest(reader.state) == digests[places[reader.cursor]]
