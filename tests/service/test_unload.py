"""How long a Session stays loaded, and what every client is told of how Sessions stand."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator
from unittest import mock

import pytest
from request_kit import approve, asked
from service_kit import BROADCASTS, Crew, House, Json, Line, Refused, cursor_of, ended, flow, launch, path, step
from view_kit import log_rows

from refold.records import LogType
from refold.server.rpc import Rpc
from refold.service.app import App
from refold.service.settings import IDLE_SECS

pytestmark = pytest.mark.anyio


class Hours:
    """The monotonic clock of an App, moved by the test."""

    def __init__(self, app: App) -> None:
        self.app = app
        self.now = 1000.0

    async def pass_by(self, secs: float) -> None:
        """Lets time pass, with the sweeps that belong to it."""
        for _ in range(4):
            await self.app.loads.sweep()
            self.now += secs / 4
        await self.app.loads.sweep()


@pytest.fixture
async def app(house: House, crew: Crew) -> AsyncIterator[App]:
    app = await house.open()
    await app.blueprints.add(flow(step("s", path("$.input"), "$.output"), id="short"))
    await app.blueprints.add(flow(approve(), id="approve"))
    yield app


@pytest.fixture
def hours(app: App) -> AsyncIterator[Hours]:
    hours = Hours(app)
    with mock.patch.object(type(app.clock), "monotonic", lambda self: hours.now):
        yield hours


def told(line: Line, method: str, since: int = 0) -> list[Json]:
    return [frame["params"] for frame in line.frames[since:] if frame.get("method") == method]


def statuses(line: Line, session: str) -> list[tuple[str, list[str]]]:
    return [
        (each["status"], each["attention"])
        for each in told(line, "session/statusChanged")
        if each["sessionId"] == session
    ]


async def status(line: Line, session: str) -> str:
    rows = (await line.call("session/list"))["sessions"]
    return next(row["status"] for row in rows if row["sessionId"] == session)


async def settled() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


async def markers(app: App, session: str) -> int:
    return sum(row.type == LogType.SESSION_RESUMED for row in await log_rows(app, session))


async def start(line: Line, model: str = "short") -> str:
    """A Session that nobody is subscribed to."""
    session = await line.start(model)
    await line.call("view/unsubscribe", sessionId=session)
    return session


async def test_what_nobody_uses_is_unloaded_and_everybody_is_told(app: App, hours: Hours) -> None:
    rpc = Rpc(app, "/home")
    async with Line(app, rpc) as line, Line(app, rpc) as other:
        session = await start(line)
        await hours.pass_by(IDLE_SECS - 1)
        assert await status(line, session) == "idle"
        await hours.pass_by(2)
        await settled()
        head = cursor_of((await line.page(session))[-1])
        for each in (line, other):
            assert told(each, "session/closed") == [{"sessionId": session, "reason": "idle", "viewCursor": head}]
        assert await status(line, session) == "notLoaded"
        await hours.pass_by(IDLE_SECS)
        assert len(told(line, "session/closed")) == 1


async def test_unloaded_it_can_be_read_and_commands_are_refused_until_a_resume_leaves_its_marker(
    app: App, hours: Hours
) -> None:
    async with Line(app) as line:
        session = await start(line)
        await hours.pass_by(IDLE_SECS + 1)
        assert app.sessions._log._states == {}, "nothing is kept of what is not loaded"
        assert await line.page(session)
        await line.call("session/read", sessionId=session, excludeItems=False)
        await line.call("approval/listPending", sessionId=session)
        for refused in (line.turn(session), line.call("view/subscribe", sessionId=session)):
            with pytest.raises(Refused, match="sessionNotLoaded"):
                await refused
        assert await markers(app, session) == 0
        await line.resume(session)
        assert await markers(app, session) == 1
        await line.turn_ended((await line.turn(session))["turnId"])
        await line.resume(session)
        assert await markers(app, session) == 1


async def test_whoever_is_subscribed_keeps_it_loaded_and_leaving_starts_the_time(app: App, hours: Hours) -> None:
    async with Line(app) as line:
        session = await line.start("short")
        await hours.pass_by(10 * IDLE_SECS)
        assert await status(line, session) == "idle"
        await line.call("view/unsubscribe", sessionId=session)
        await hours.pass_by(IDLE_SECS - 1)
        assert await status(line, session) == "idle"
        await hours.pass_by(2)
        assert await status(line, session) == "notLoaded"


async def test_a_command_starts_the_time_anew(app: App, hours: Hours) -> None:
    async with Line(app) as line:
        session = await start(line)
        for _ in range(4):
            await hours.pass_by(IDLE_SECS * 0.9)
            await line.command("session/setModel", sessionId=session, model={"modelId": "short"})
        assert await status(line, session) == "idle"


async def test_a_run_that_runs_or_waits_keeps_it_loaded(app: App, crew: Crew, hours: Hours) -> None:
    async with Line(app) as line:
        session = await start(line)
        crew.hold("s")
        await line.turn(session)
        await line.turn(session)
        await crew.begun("s")
        await hours.pass_by(10 * IDLE_SECS)
        assert await status(line, session) == "running"
        crew.free("s")


async def test_an_open_request_keeps_it_loaded_over_days(app: App, hours: Hours) -> None:
    run = await launch(app, flow(approve()))
    (request,) = await asked(app, run)
    await hours.pass_by(100 * IDLE_SECS)
    assert app._hub.is_loaded(run.session)
    await app.requests.decide(request.request_id, decision="approved")
    await ended(app, run)
    await hours.pass_by(IDLE_SECS + 1)
    assert not app._hub.is_loaded(run.session)


async def test_a_launch_loads_and_a_resume_of_it_leaves_no_marker(app: App) -> None:
    run = await launch(app, flow(step("s", 1)))
    await ended(app, run)
    await settled()
    async with Line(app) as line:
        assert await status(line, run.session_id) == "idle"
        await line.resume(run.session_id)
        assert await markers(app, run.session_id) == 0


async def test_flips_are_told_to_every_connection_once(app: App, crew: Crew) -> None:
    rpc = Rpc(app, "/home")
    async with Line(app, rpc) as line, Line(app, rpc) as other:
        session = await start(line, "approve")
        await line.turn(session)
        await other.until(lambda frame: frame.get("params", {}).get("attention") == ["approvalPending"])
        row = next(row for row in (await line.call("session/list"))["sessions"] if row["sessionId"] == session)
        assert (row["status"], row["attention"]) == ("running", ["approvalPending"])
        pending = (await line.call("approval/listPending", sessionId=session))["approvals"][0]
        await line.command(
            "approval/decide", sessionId=session, approvalId=pending["approvalId"], choiceId="approve",
            requirementId=pending["currentRequirementId"],
        )  # fmt: skip
        await other.until(
            lambda frame: frame.get("method") == "session/statusChanged" and frame["params"]["status"] == "idle"
        )
        assert statuses(other, session) == statuses(line, session)
        flips = statuses(other, session)
        assert flips[-1] == ("idle", []) and ("running", ["approvalPending"]) in flips
        assert all(one != two for one, two in itertools.pairwise(flips)), "each is another than before"
        cursors = {each["viewCursor"] for each in told(other, "session/statusChanged")}
        assert cursors == {None}, "a head that was told ahead of its events would be kept by somebody"


async def test_lists_are_kept_by_those_who_asked_for_it(app: App, crew: Crew) -> None:
    rpc = Rpc(app, "/home")
    async with Line(app, rpc) as plain, keeper(app, rpc) as line:
        session = await start(plain)
        mark = len(line.frames)
        await line.command("session/rename", sessionId=session, name="a name")
        changed = await line.until(lambda frame: frame.get("method") == "session/listChanged", mark)
        (row,) = (await line.call("session/list"))["sessions"]
        assert changed["params"] == {"session": row} and row["name"] == "a name"
        assert told(line, "session/statusChanged", mark) == []
        await plain.turn(session)
        done = await line.until(
            lambda frame: frame.get("method") == "session/listChanged" and frame["params"]["session"]["turnCount"] == 1
        )
        assert done["params"]["session"]["activeTurnId"] is None
        assert told(plain, "session/listChanged") == []
        rows = [each["session"] | {"updatedAt": ""} for each in told(line, "session/listChanged")]
        assert all(one != two for one, two in itertools.pairwise(rows)), "an event that changes no row tells of none"


def keeper(app: App, rpc: Rpc) -> Line:
    """A connection that keeps a list of Sessions, and may rename them."""
    line = Line(app, rpc)
    call = line.call

    async def asking(method: str, **params: Json) -> Json:
        if method == "initialize":
            params["capabilities"] = {"requestedCapabilities": ["sessionListStream", "sessionRename"]}
        return await call(method, **params)

    line.call = asking
    return line


async def test_who_comes_later_is_told_of_changes_and_not_of_what_stands(app: App, crew: Crew) -> None:
    crew.hold("s")
    run = await launch(app, flow(step("s", 1)))
    await crew.begun("s")
    async with Line(app) as line:
        await settled()
        assert [frame for frame in line.frames if frame.get("method") in BROADCASTS] == []
        crew.free("s")
        await ended(app, run)
        await line.until(lambda frame: frame.get("method") == "session/statusChanged")
        await settled()
        assert statuses(line, run.session_id) == [("idle", [])]


async def test_an_orderly_end_is_told_and_a_crash_is_not(app: App, house: House) -> None:
    async with Line(app) as line:
        session = await line.start("short")
        await app.drain()
        await settled()
        (closed,) = told(line, "session/closed")
        assert closed == {"sessionId": session, "reason": "hostShutdown", "viewCursor": None}
    app = await house.reboot(app)
    line = Line(app)
    await line.__aenter__()
    await line.start("short")
    await house.crash(app)
    assert told(line, "session/closed") == []
    await line.__aexit__()
