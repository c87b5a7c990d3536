"""Connections: what a client is sent while it resumes, moves its subscription, reads slowly, or goes away."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator
from typing import Any

import pytest
from service_kit import PATIENCE_SECS, Crew, Frame, House, Line, cursor_of, flow, path, step

from refold.server.rpc import Rpc
from refold.service.app import App

pytestmark = pytest.mark.anyio

LONG = flow(*(step("s", n, f"$.s{n}") for n in range(20)), id="long")


@pytest.fixture
async def app(house: House, crew: Crew) -> AsyncIterator[App]:
    app = await house.open()
    for blueprint in (LONG, flow(step("s", path("$.input"), "$.output"), id="short")):
        await app.blueprints.add(blueprint)
    yield app


def gaps(frames: list[Frame]) -> list[Frame]:
    """The events that do not follow the one before them."""
    return [frame for before, frame in itertools.pairwise(frames) if frame["params"]["prevCursor"] != cursor_of(before)]


@pytest.mark.parametrize("turns_of_the_loop", range(6))
async def test_resuming_all_the_time_takes_no_event_away_and_repeats_none(
    app: App, crew: Crew, turns_of_the_loop: int
) -> None:
    async with Line(app) as line, Line(app) as writer:
        session = await writer.start("long")
        await line.resume(session)
        await writer.turn(session)
        while "turn/completed" not in {frame["method"] for frame in line.pushed(session)}:
            answer = await line.resume(session)
            before = line.pushed(session, until=line.answered)
            assert not before or cursor_of(before[-1]) == answer["viewCursor"], "an answer comes after what it covers"
            for _ in range(turns_of_the_loop):
                await asyncio.sleep(0)
        page = await line.page(session)
        assert gaps(line.pushed(session)) == []
        assert line.pushed(session) == page[2:]


async def test_a_reader_that_resumes_while_its_frames_are_stuck_loses_none(app: App, crew: Crew) -> None:
    async with Line(app) as line, Line(app) as writer:
        session = await writer.start("long")
        await line.resume(session)
        line.ready.clear()
        turn = (await writer.turn(session))["turnId"]
        await writer.turn_ended(turn)
        await line.blocked()
        again = asyncio.create_task(line.resume(session))
        for _ in range(50):  # until the resume is stuck as well
            await asyncio.sleep(0)
        line.ready.set()
        answer = await asyncio.wait_for(again, PATIENCE_SECS)
        await line.turn_ended(turn)
        assert gaps(line.pushed(session)) == []
        assert cursor_of(line.pushed(session)[-1]) == answer["viewCursor"]
        turn = (await writer.turn(session))["turnId"]
        await line.turn_ended(turn)
        assert line.pushed(session) == (await line.page(session))[2:]


async def test_what_a_subscription_has_read_when_another_takes_over_is_delivered_once_and_before(
    app: App, crew: Crew
) -> None:
    """A resume is slow; what happens meanwhile is read by the old subscription, which has to wait for the answer."""
    async with Line(app) as line, Line(app) as writer:
        session = await writer.start("short")
        await line.resume(session)
        begun, go_on, resume = asyncio.Event(), asyncio.Event(), app.sessions.resume

        async def slow(*args: Any, **more: Any) -> Any:
            begun.set()
            await go_on.wait()
            return await resume(*args, **more)

        app.sessions.resume = slow
        answer = asyncio.create_task(line.resume(session))
        await begun.wait()
        turn = (await writer.turn(session))["turnId"]
        await writer.turn_ended(turn)
        go_on.set()
        covered = (await asyncio.wait_for(answer, PATIENCE_SECS))["viewCursor"]
        page = await line.page(session)
        assert covered == cursor_of(page[-1])
        assert line.pushed(session) == page[2:]


async def test_a_resume_at_an_older_cursor_delivers_again_from_there(app: App, crew: Crew) -> None:
    async with Line(app) as line:
        session = await line.start("short")
        turn = (await line.turn(session))["turnId"]
        await line.turn_ended(turn)
        page = await line.page(session)
        for cut, frame in enumerate(page):
            mark = len(line.frames)
            answer = await line.resume(session, cursor=cursor_of(frame))
            assert answer["history"]["noneReason"] == "cursorSuffix"
            if cut + 1 < len(page):
                await line.until(lambda last: last.get("method") == page[-1]["method"], mark)
            assert line.pushed(session, mark) == page[cut + 1 :]


async def test_unsubscribed_is_silent(app: App, crew: Crew) -> None:
    async with Line(app) as line, Line(app) as other:
        session = await line.start("short")
        await other.resume(session)
        await line.call("view/unsubscribe", sessionId=session)
        mark = len(line.frames)
        turn = (await line.turn(session))["turnId"]
        await other.turn_ended(turn)
        assert line.pushed(session, mark) == []
        await line.call(
            "view/subscribe", sessionId=session, after=(await line.page(session))[1]["params"]["viewCursor"]
        )
        await line.turn_ended(turn, mark)


async def test_a_peer_that_went_away_harms_nobody(app: App, crew: Crew) -> None:
    rpc = Rpc(app, "/home")
    async with Line(app, rpc) as stays:
        gone = Line(app, rpc)
        await gone.__aenter__()
        session = await stays.start("short")
        await gone.resume(session)
        gone.hang_up()
        turn = (await stays.turn(session))["turnId"]
        await stays.turn_ended(turn)
        await stays.start("short")  # told to everybody
        await gone.__aexit__()


async def test_a_peer_that_never_says_initialized_harms_nobody(app: App, crew: Crew) -> None:
    rpc = Rpc(app, "/home")
    async with Line(app, rpc) as stays, Line(app, rpc, initialized=False) as mute:
        session = await stays.start("short")
        await mute.resume(session)
        for _ in range(3):
            turn = (await stays.turn(session))["turnId"]
            await stays.turn_ended(turn)
        assert mute.pushed(session) == []
        await mute.initialized()
        await mute.turn_ended(turn)
        assert gaps(mute.pushed(session)) == []
