"""Every way into a Session leads to one state, and the official client's fold is the judge of it.

Two proofs. Over random logs: a client comes at every moment of a log's life, by every rung that there is then, and goes
on by pages of every size and by pushes; every position is also left and come back to with its cursor. And over all
logs of up to so many records, which nobody has to trust a dice for: with one disconnect at every place of every client.

The long form is `HYPOTHESIS_PROFILE=long`; with `-s` it tells what it did.
"""

from __future__ import annotations

import asyncio
import copy
import sys
import time
from collections import Counter
from collections.abc import Callable
from typing import Any, Final

from boundary_kit import KEY, Author, told
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from oracle_kit import Attach, Desk, Official, folded_on, ours, slim

from refold import view
from refold.records import BoundaryRow, LogRecord, LogRow
from refold.session import SessionLog, boundaries
from refold.store import MemoryStore
from refold.store.memory import Tables
from refold.view import Frame, Rung, ViewState

LONG: Final = settings().max_examples >= 5_000
"""Whether the profile is the one that looks for longer."""

QUICK: Final = tuple(phase for phase in Phase if phase not in (Phase.shrink, Phase.explain))
"""In the suite a failure is told as it is found: shrinking logs takes minutes, and the short logs are all tried."""

SIZES: Final = (1, 2, 3, 7, 1_000)
"""Frames per page: less than a record has, as many, more, and all at once."""


def said(what: str, begun: float, figures: Counter[Any]) -> None:
    """Tells what a proof did, where somebody asked for it."""
    counts = ", ".join(f"{n:,} {name}" for name, n in sorted(figures.items(), key=str))
    sys.stderr.write(f"\n{what}: {counts}; {time.perf_counter() - begun:.0f} s\n")


# -- random logs ------------------------------------------------------------------------------------------------------


class Watched(Author):
    """An author under whose eyes clients attach after every record."""

    def __init__(self) -> None:
        super().__init__()
        self.desk = Desk(self)
        self.attached: list[Attach] = []

    async def append(self, record: LogRecord) -> LogRow:
        row = await super().append(record)
        self.attached += await self.desk.attaches()
        return row

    async def compact(self) -> BoundaryRow:
        row = await super().compact()
        self.attached += await self.desk.attaches()
        return row


histories = st.integers(0, 40).flatmap(lambda size: st.binary(min_size=size, max_size=size))


def test_every_rung_at_every_cut_and_every_page_size_leads_to_what_the_official_client_folds() -> None:
    """prefix + suffix = snapshot + suffix = genesis, in both folds, and by digest."""
    begun, seen = time.perf_counter(), Counter[Any]()

    @settings(max_examples=2_000 if LONG else 25, phases=settings().phases if LONG else QUICK)
    @given(histories)
    def judge(choices: bytes) -> None:
        asyncio.run(_judged(choices, seen))

    judge()
    said("random logs", begun, seen)
    assert {rung for rung in seen if isinstance(rung, Rung)} == set(Rung), "a rung that was never served is not proved"


async def _judged(choices: bytes, seen: Counter[Any]) -> None:
    author = Watched()
    await author.play(choices)
    author.attached += await author.desk.attaches()
    frames = [frame for _, frame in await author.placed()]
    whole = folded_on(ViewState(), frames)
    assert Official().apply(frames).told() == ours(whole)
    seen["logs"] += 1
    seen["frames"] += len(frames)
    await _pages_and_pushes_agree(author, frames, whole, seen)
    await _tells_the_last_turn_after_a_restart(author, whole)
    for attach in author.attached:
        seen[attach.rung] += 1
        _leads_to(attach, frames, whole)


async def _tells_the_last_turn_after_a_restart(author: Watched, whole: ViewState) -> None:
    """Where nothing is kept, the last turn is looked up, not folded."""
    for asked in ({"cursor": whole.cursor}, {"exclude": True}):
        booted = Desk(author, SessionLog(KEY, boundaries.start))
        for _ in range(2):  # the second one goes on from what the first has noted
            assert (await booted.resume(**asked)).last_turn == whole.last_turn


async def _pages_and_pushes_agree(author: Watched, frames: list[Frame], whole: ViewState, seen: Counter[Any]) -> None:
    """At every cut, in both folds: what was held and what comes after it is the whole, page by page and pushed."""
    prefix = ViewState()
    for size in SIZES:
        assert await author.desk.page(limit=size) == frames
        assert await author.desk.page(limit=size, backward=True) == frames
    for cut, (position, frame) in enumerate(await author.placed(), 1):
        folded_on(prefix, [frame])
        assert ours(prefix) == Official().apply(frames[:cut]).told()
        cursor = frame["params"]["viewCursor"]
        served = await author.desk.resume(cursor)
        assert (served.history["noneReason"], served.after) == ("cursorSuffix", position)
        assert await author.desk.pushed(served.after) == frames[cut:]
        for size in SIZES:
            assert await author.desk.page(cursor, size) == frames[cut:]
            assert await author.desk.page(cursor, size, backward=True) == frames[: cut - 1]
            seen["cuts by page size"] += 1
        assert told(folded_on(prefix.copy(), frames[cut:])) == told(whole)


def _leads_to(attach: Attach, frames: list[Frame], whole: ViewState) -> None:
    """What an attach was served, and what comes after the position it names, is the whole, in both folds."""
    held = folded_on(ViewState(), frames[: attach.frames])
    assert attach.served.cursor == held.cursor, "the answer names the head that it covers"
    if attach.rung is Rung.INLINE:
        assert attach.served.history["items"] == list(held.items.values())
    begin = attach.begin()
    if begin is None:
        return
    state, official = begin
    at = [frame["params"]["viewCursor"] for frame in frames].index(state.cursor) + 1
    assert at <= attach.frames
    then = folded_on(ViewState(), frames[:at])
    assert attach.served.history["snapshot"]["foldDigest"] == view.fold_digest(then)
    shape = slim if attach.rung is Rung.ELIDED else dict
    assert shape(ours(then)) == ours(state) == official.told()
    assert shape(ours(whole)) == shape(ours(folded_on(state, frames[at:]))) == shape(official.apply(frames[at:]).told())
    if attach.rung is not Rung.ELIDED:
        assert view.fold_digest(state) == view.fold_digest(whole)
        assert state.cursor == whole.cursor


# -- all short logs ---------------------------------------------------------------------------------------------------

RECORDS: Final = 6 if LONG else 4
HISTORIES: Final = {4: 569, 6: 17_358}[RECORDS]
"""How many legal logs there are of at most so many records after the first. A generator that loses some is found."""


class Scribe(Author):
    """An author whose next record is chosen by name; a fork of it goes its own way."""

    def fork(self) -> Scribe:
        """The same log, to be gone on with in another way. Rows are immutable, so only the tables are copied."""
        twin = copy.copy(self)
        twin.steps, twin.asked, twin.closed = dict(self.steps), dict(self.asked), dict(self.closed)
        tables, own = Tables(), self.store.tables
        tables.rows = {kind: dict(rows) for kind, rows in own.rows.items()}
        tables.unique = {names: set(taken) for names, taken in own.unique.items()}
        tables.last = own.last.copy()
        twin.store, twin.log = MemoryStore(tables), SessionLog(self.log._key, boundaries.start)
        return twin

    def legal(self) -> list[Callable[[Scribe], Any]]:
        """The records that may come next, one of each kind that differs to a reader."""
        first: Callable[[Any], Any] = lambda options: options[0]  # noqa: E731 - a choice, as an Author's methods take it
        anytime = [lambda to: to._name(first), lambda to: to._compact(first), lambda to: to._mark(first)]
        if self.turn is None:
            return [*anytime, lambda to: to._open(first)]
        kinds = [lambda to: to.step(), lambda to: to._ask(first)]
        if self.steps:
            kinds.append(lambda to: to.end(sorted(to.steps)[0]))
        if self.asked:
            kinds.append(lambda to: to._answer(first))
        if not self.steps and not self.asked:
            kinds.append(lambda to: to._close(first))
        return [*anytime, *kinds]


def test_all_short_logs_with_every_mode_at_every_cut_and_a_disconnect_at_every_place() -> None:
    begun, seen = time.perf_counter(), Counter[Any]()
    asyncio.run(_enumerate(seen))
    said(f"all logs of up to {RECORDS} records", begun, seen)
    assert seen["logs"] == HISTORIES
    assert {rung for rung in seen if isinstance(rung, Rung)} == set(Rung) - {Rung.ELIDED}


async def _enumerate(seen: Counter[Any]) -> None:
    """Walks the tree of all logs; a client that attached to a log is also one of every log that goes on from it."""
    author = await Scribe().play(b"")
    waiting: list[tuple[Scribe, list[Attach], int]] = [(author, [], RECORDS)]
    while waiting:
        author, attached, left = waiting.pop()
        desk = Desk(author)
        attached = [*attached, *await desk.attaches()]
        await _survives_a_disconnect(desk, attached, seen)
        if left:
            for write in author.legal():
                twin = author.fork()
                await write(twin)
                waiting.append((twin, attached, left - 1))


async def _survives_a_disconnect(desk: Desk, attached: list[Attach], seen: Counter[Any]) -> None:
    frames = await desk.page()
    whole = folded_on(ViewState(), frames)
    assert Official().apply(frames).told() == ours(whole)
    seen["logs"] += 1
    back: dict[str, list[Frame]] = {}
    for frame in frames:
        cursor = frame["params"]["viewCursor"]
        back[cursor] = await desk.pushed((await desk.resume(cursor)).after)
    cursors = list(back)
    for attach in attached:
        seen[attach.rung] += 1
        _leads_to(attach, frames, whole)
        snapshot = attach.served.history["snapshot"]
        begins = cursors.index(attach.served.cursor if snapshot is None else snapshot["viewCursor"]) + 1
        for left_at in range(begins, len(frames) + 1):  # it was handed so many frames, went away, and came back
            assert frames[begins:left_at] + back[cursors[left_at - 1]] == frames[begins:]
            seen["disconnects"] += 1
