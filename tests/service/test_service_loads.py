"""Loads of a Session: what a cold one leaves, what rows without a frame must not break, what boot recovery closes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from service_kit import Crew, House, Line, Refused, cursor_of, ended, everything, launch, uuid7
from view_kit import RICH, UNCOMPACTED, fold, grown, log_rows, rich_app

from refold import view
from refold.errors import CommitFailed
from refold.records import LogType, RunRecord, SessionRecord
from refold.service.app import App
from refold.session import find_session
from refold.store import append_log

pytestmark = pytest.mark.anyio

MARKERS = 650
"""More rows without a frame than one read of the log takes."""


@pytest.fixture
async def app(house: House, crew: Crew) -> App:
    return await rich_app(house, crew)


async def mark_loads(app: App, session: str, times: int) -> None:
    """Writes `times` markers of cold loads, as that many restarts would."""
    at = app.clock.now_ms()
    records = [view.session_resumed(at, command=uuid7()) for _ in range(times)]
    await app.store.write(lambda tx: append_log(tx, find_session(tx, session).n, records))


async def marks(app: App, session: str) -> int:
    return len((await app.sessions.snapshot(session))[1])


async def test_a_cold_load_is_recorded_once_and_a_warm_attach_is_not(house: House, app: App, crew: Crew) -> None:
    async with Line(app) as line:
        session = await grown(line, 1)
        assert await marks(app, session) == 0
    for times in (1, 2):
        app = await house.reboot(app)
        async with Line(app) as one, Line(app) as other:
            await asyncio.gather(one.resume(session), other.resume(session))
            await one.resume(session)
            before = await everything(app)
            async with Line(app) as third:
                await third.resume(session)
            assert await everything(app) == before
        assert await marks(app, session) == times


async def test_a_load_that_could_not_be_recorded_is_none(house: House, app: App, crew: Crew) -> None:
    async with Line(app) as line:
        session = await grown(line, 1)
    app = await house.reboot(app)
    write = app.store.write

    async def full(fn: Callable[..., Any]) -> Any:
        raise CommitFailed("the disk is full")

    async with Line(app) as line:
        app.store.write = full
        with pytest.raises(Refused):
            await line.resume(session)
        app.store.write = write
        with pytest.raises(Refused, match="sessionNotLoaded"):
            await line.turn(session)
        await line.resume(session)
        await line.turn(session)
    assert await marks(app, session) == 1


async def test_rows_without_a_frame_break_nothing(house: House, app: App, crew: Crew) -> None:
    async with Line(app) as line:
        session = await grown(line, 1)
        before = await line.page(session)
        first = cursor_of(before[-1])
        digest = (await line.resume(session, history="snapshot"))["history"]["snapshot"]["foldDigest"]
        await mark_loads(app, session, MARKERS)
        await line.turn_ended((await line.turn(session, "after the markers"))["turnId"])
        await mark_loads(app, session, MARKERS)
        page = await line.page(session)
        assert page[: len(before)] == before
        assert [frame["params"]["prevCursor"] for frame in page] == [None, *map(cursor_of, page[:-1])]
        assert line.pushed(session) == page[2:]
    app = await house.reboot(app, view=UNCOMPACTED)
    async with Line(app) as line:
        assert await line.page(session) == page
        for limit in (1, 3, 1000):
            assert await line.page(session, limit) == page
            assert await line.page(session, limit, direction="backward") == page
        answer = await line.resume(session, cursor=first)
        assert answer["viewCursor"] == cursor_of(page[-1])
        await line.until(lambda frame: frame.get("params", {}).get("viewCursor") == cursor_of(page[-1]))
        assert line.pushed(session) == page[len(before) :]
        snapshot = (await line.resume(session, history="snapshot"))["history"]["snapshot"]
        assert snapshot["viewCursor"] == cursor_of(page[-1])
        assert snapshot["foldDigest"] == view.fold_digest(fold(page)) != digest
    rows = await log_rows(app, session)
    assert sum(row.type == LogType.SESSION_RESUMED for row in rows) == 2 * MARKERS + 1
    assert await marks(app, session) == 2 * MARKERS + 1


async def test_a_run_launched_over_http_is_a_session_like_any_other(app: App, crew: Crew) -> None:
    run = await ended(app, await launch(app, RICH, input="over http"))
    async with Line(app) as line:
        page = await line.page(run.session_id)
        state = fold(page)
        assert state.active_turn is None
        assert (state.turn_count, state.last_turn["terminal"]) == (1, "completed")
        assert {item["kind"] for item in state.items.values()} == {"workflow", "toolCall", "agentMessage"}
        assert all(item["status"] != "inProgress" for item in state.items.values())


async def test_boot_recovery_closes_what_was_open_and_twice_is_once(house: House, app: App, crew: Crew) -> None:
    crew.hold("lane")
    async with Line(app) as line:
        session = await line.start("rich")
        await line.turn(session)
        await crew.begun("lane", 3)
        state = fold(await line.page(session))
        assert state.active_turn is not None
        assert sum(item["status"] == "inProgress" for item in state.items.values()) == 4
    app = await house.reboot(app)
    once = await everything(app)
    async with Line(app) as line:
        state = fold(await line.page(session))
    assert state.active_turn is None
    assert (state.last_turn["terminal"], state.last_turn["reason"]) == ("cancelled", "server restart")
    assert {item["status"] for item in state.items.values()} == {"completed", "failed", "cancelled"}
    app = await house.reboot(app)
    assert await everything(app) == once
    (run,), (row,) = once[RunRecord.__name__], once[SessionRecord.__name__]
    assert (run.status, run.result_json, row.active_run) == ("interrupted", '{"error":"server restart"}', None)
