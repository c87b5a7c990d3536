"""Readers that are slower than what they read: what they are told, what they are never denied, and what they cost."""

from __future__ import annotations

import asyncio
import gc
import tracemalloc
from collections.abc import AsyncIterator

import pytest
from request_kit import approve, decide_over_msp
from service_kit import BROADCASTS, Crew, Frame, House, Line, cursor_of, flow, path, step, uuid7
from view_kit import UNCOMPACTED, append, fold, stuck

from refold import view
from refold.server.rpc import NOTICE_BYTES, Rpc
from refold.service.app import App
from refold.session import find_session
from refold.store import append_log

pytestmark = pytest.mark.anyio

MIB = 1024 * 1024


@pytest.fixture
async def app(house: House, crew: Crew) -> AsyncIterator[App]:
    app = await house.open(view=UNCOMPACTED)
    await app.blueprints.add(flow(step("s", path("$.input"), "$.output"), id="short"))
    await app.blueprints.add(flow(approve(), id="approve"))
    yield app


async def caught_up(app: App, line: Line, session: str, since: int = 0) -> list[Frame]:
    """What a line was told about a Session once it has the head: its events, and gaps."""
    head = (await app.sessions.bookmark(session))["viewCursor"]
    await line.until(lambda frame: frame.get("params", {}).get("viewCursor") == head, since)
    return [
        {"method": frame["method"], "params": frame["params"]}
        for frame in line.frames[since:]
        if "id" not in frame and frame["method"] not in BROADCASTS and frame["params"].get("sessionId") == session
    ]


def gaps(told: list[Frame]) -> list[Frame]:
    return [frame["params"] for frame in told if frame["method"] == "view/gap"]


@pytest.mark.parametrize(
    ("rows", "size", "jumps"),
    [(10_050, 1, True), (9_000, 1, False), (1_200, 8_000, True), (900, 8_000, False)],
    ids=["rows", "few rows", "bytes", "few bytes"],
)
async def test_a_reader_too_far_behind_in_rows_or_bytes_jumps_and_is_told_once(
    app: App, rows: int, size: int, jumps: bool
) -> None:
    async with Line(app) as line, Line(app) as other:
        session = await line.start("short")
        mark = await stuck(app, line, session)
        await append(app, session, rows, size)
        line.ready.set()
        told = await caught_up(app, line, session, mark)
        assert len(gaps(told)) == jumps
        page = await other.page(session, 1000)
        if not jumps:
            assert told == page[2:]
            return
        (gap,) = gaps(told)
        at = next(n for n, frame in enumerate(told) if frame["method"] == "view/gap")
        assert (gap["after"], gap["next"]) == (cursor_of(told[at - 1]), cursor_of(told[at + 1]))
        missed = await other.page(session, 1000, cursor=gap["after"])
        assert told[at + 1 :] == missed[-len(told[at + 1 :]) :], "what follows the gap is the end of what is paged"
        whole = await app.sessions.bookmark(session)
        assert view.fold_digest(fold(page[:2] + told[:at] + missed)) == whole["foldDigest"]


async def test_what_a_resume_owes_is_never_jumped_over(app: App) -> None:
    async with Line(app) as line:
        session = await line.start("short")
        start = (await line.page(session))[0]
        await line.call("view/unsubscribe", sessionId=session)
        await append(app, session, 12_000)
        mark = len(line.frames)
        await line.resume(session, cursor=cursor_of(start))
        assert gaps(await caught_up(app, line, session, mark)) == []
        assert len(line.pushed(session, mark)) == 12_001


async def test_a_reader_that_never_reaches_the_head_jumps_again(app: App) -> None:
    """A writer that is always faster: after its jump a reader is owed what lay before it, not all that comes."""
    async with Line(app) as line:
        session = await line.start("short")
        mark = await stuck(app, line, session)
        for _ in range(2):
            await append(app, session, 10_050)
            line.ready.set()
            await line.until(lambda frame: frame.get("method") == "view/gap", mark)
            mark = await stuck(app, line, session)
        await append(app, session, 10_050)
        line.ready.set()
        assert len(gaps(await caught_up(app, line, session, mark))) == 1


async def test_the_end_of_a_request_is_handed_out_from_inside_a_gap(app: App) -> None:
    """Or a person would be left with a question that somebody else has answered."""
    async with Line(app) as line, Line(app) as other:
        session = await line.start("approve")
        await line.turn(session)
        asked = await line.until(lambda frame: frame.get("method") == "approval/requested")
        mark = await stuck(app, line, session)
        await append(app, session, 100)
        await decide_over_msp(other, asked["params"])
        await append(app, session, 10_050)
        line.ready.set()
        told = await caught_up(app, line, session, mark)
        methods = [frame["method"] for frame in told]
        assert methods.count("approval/resolved") == 1
        assert methods.index("approval/resolved") == methods.index("view/gap") + 1
        (gap,) = gaps(told)
        assert cursor_of(told[methods.index("approval/resolved") + 1]) == gap["next"]


async def test_an_open_question_in_a_gap_is_asked_all_the_same(app: App) -> None:
    async with Line(app) as line, Line(app) as other:
        session = await line.start("approve")
        mark = await stuck(app, line, session)
        await other.resume(session)
        await other.turn(session)
        await other.until(lambda frame: frame.get("method") == "approval/requested")
        await append(app, session, 10_050)
        line.ready.set()
        told = await caught_up(app, line, session, mark)
        assert "approval/requested" not in [frame["method"] for frame in told]
        assert len([frame for frame in line.frames if frame.get("method") == "approval/request"]) == 1


async def test_rows_without_a_frame_are_nothing_to_fall_behind_with(app: App) -> None:
    async with Line(app) as line:
        session = await line.start("short")
        n = (await app.store.read(lambda reader: find_session(reader, session))).n
        mark = await stuck(app, line, session)
        markers = [view.session_resumed(0, command=uuid7())] * 10_050
        await app.store.write(lambda tx: append_log(tx, n, markers))
        await append(app, session, 3)
        line.ready.set()
        told = await caught_up(app, line, session, mark)
        assert told == (await line.page(session))[-len(told) :]
        assert len(told) == 4


async def test_a_reader_that_never_reads_costs_little(app: App) -> None:
    """100,000 events, and broadcasts without number: what waits for it stays where it is, in the log."""
    rpc = Rpc(app, "/home")
    async with Line(app, rpc) as line, Line(app, rpc) as other:
        session = await line.start("short")
        await stuck(app, line, session)
        await append(app, session, 1000)
        gc.collect()
        tracemalloc.start()
        try:
            await append(app, session, 99_000, 100)
            for _ in range(20_000):
                rpc.broadcast("session/started", {"session": {"name": "x" * 500}})
                await asyncio.sleep(0)
            gc.collect()
            cost, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        heard = sum(frame.get("method") == "session/started" for frame in other.frames)
        assert heard >= 20_000, "one that reads is told of everything"
        read = sum(len(str(frame)) * 2 for frame in other.frames)  # what the test keeps of what the other was told
        assert cost - read < 16 * MIB
        assert peak - read < 64 * MIB
        line.ready.set()
        told = await caught_up(app, line, session)
        assert len(gaps(told)) == 1, "it goes on near the head"
        assert sum(frame["method"] == "session/started" for frame in line.frames if "id" not in frame) < 4_000


async def test_broadcasts_wait_for_a_slow_peer_up_to_a_bound_and_events_are_not_taken_for_them(app: App) -> None:
    rpc = Rpc(app, "/home")
    async with Line(app, rpc) as line:
        session = await line.start("short")
        mark = await stuck(app, line, session)
        for _ in range(4 * NOTICE_BYTES // 1000):
            rpc.broadcast("session/started", {"session": {"name": "x" * 1000}})
        line.ready.set()
        turn = (await line.turn(session))["turnId"]
        await line.turn_ended(turn)
        told = [frame for frame in line.frames[mark:] if frame.get("method") == "session/started"]
        assert NOTICE_BYTES * 0.9 < sum(len(str(frame)) for frame in told) < NOTICE_BYTES * 1.5
        assert line.pushed(session) == (await line.page(session))[2:]


async def test_a_reader_of_many_sessions_that_stands_still_holds_one_batch(app: App) -> None:
    async with Line(app) as line:
        sessions = [await line.start("short") for _ in range(20)]
        line.ready.clear()
        gc.collect()
        tracemalloc.start()
        try:
            for session in sessions:
                await append(app, session, 500, 8_000)
            for _ in range(100):
                await asyncio.sleep(0)
            gc.collect()
            cost, _ = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert cost < 3 * MIB
        line.ready.set()
        for session in sessions:
            assert gaps(await caught_up(app, line, session)) == []


async def test_a_client_that_is_late_with_initialized_misses_no_event(app: App) -> None:
    """More happens than is held for it: its events stay in the log until it listens."""
    async with Line(app, initialized=False) as late:
        session = await late.start("short")
        await append(app, session, 900, 8_000)
        await append(app, session, 3_000)
        for _ in range(100):
            await asyncio.sleep(0)
        await late.initialized()
        assert gaps(await caught_up(app, late, session)) == []
        assert late.pushed(session) == (await late.page(session, 1000))[2:]
