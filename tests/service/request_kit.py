"""What the tests of requests share: Blueprints that ask people, waiting for what was asked, judging what was shown."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from unittest import mock

from service_kit import PATIENCE_SECS, Frame, Json, Line, faults, flow, lit, path

from refold import view
from refold.engine.clock import Clock
from refold.records import RequestRow, RequestStatus, RunRecord
from refold.service.app import App
from refold.session import find_session
from refold.store import Reader

HOUR_MS = 3_600_000


def approve(action: Json = "deploy", out: str = "$.ok", **members: Json) -> Json:
    """A node that asks; `action` is an expression or a literal."""
    expression = action if isinstance(action, dict) and "op" in action else lit(action)
    return {"kind": "approve", "action": expression, "title": "Go on?", "out": path(out), **members}


def attempt(node: Json) -> Json:
    """The node inside a `try` that writes its error and goes on."""
    return {"kind": "try", "body": node, "catch": {"kind": "seq", "children": []}, "err_at": path("$.err")}


def with_agent(blueprint: Json, name: str, **members: Json) -> Json:
    """The Blueprint with more said of one of its agents."""
    agents = [agent | (members if agent["name"] == name else {}) for agent in blueprint["agents"]]
    return blueprint | {"agents": agents}


def asking(*nodes: Json, selection: str = "single", options: tuple[str, ...] = ("red", "blue")) -> Json:
    """A Blueprint in which the agent `person` is a human; everybody else is one of the crew."""
    spec = {"question": "Which?", "options": list(options), "selection": selection}
    return with_agent(flow(*nodes), "person", kind="human", spec=spec)


async def requests(app: App, run: RunRecord) -> list[RequestRow]:
    """All requests of a Run, oldest first."""
    return await app.store.read(lambda reader: reader.find(RequestRow, run=run.n))


async def asked(app: App, run: RunRecord, count: int = 1) -> list[RequestRow]:
    """The open requests of a Run, once there are `count` of them and the Run says that it waits for nothing else."""
    async with asyncio.timeout(PATIENCE_SECS):
        while True:
            bell = app._hub.open(run.session)
            found = [each for each in await requests(app, run) if each.status == RequestStatus.OPEN]
            if len(found) == count and await _waits(app, run):
                app._hub.close(run.session, bell)
                return found
            await _moved(bell)
            app._hub.close(run.session, bell)


async def _waits(app: App, run: RunRecord) -> bool:
    return (await app.runs.get(run.run_id)).waiting_on in ("approval", "input")


async def _moved(bell: asyncio.Event) -> None:
    """Waits for the next record, but not for long: that a Run waits is written without one."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(0.01):
            await bell.wait()


async def frames(app: App, run: RunRecord) -> list[Frame]:
    """The whole view of the Run's Session, as one page."""
    page = await app.sessions.page(run.session_id, None, 1000, backward=False)
    assert page.next_cursor is None
    return page.frames


async def shown(app: App, run: RunRecord, method: str) -> list[Json]:
    """The params of all events of a method."""
    return [frame["params"] for frame in await frames(app, run) if frame["method"] == method]


async def judged(app: App, run: RunRecord) -> view.ViewState:
    """The fold of the view, in which every event must have applied, and its store, which must keep the laws."""
    state = view.ViewState()
    for frame in await frames(app, run):
        assert view.apply(state, frame) is view.Outcome.APPLIED, frame
    assert await faults(app) == []
    return state


async def items(app: App, run: RunRecord, kind: str = "toolCall") -> list[Json]:
    """The items of a kind, in the order of their openings."""
    return [item for item in (await judged(app, run)).items.values() if item["kind"] == kind]


async def rows_of(app: App, session_id: str) -> int:
    """How many rows the log of a Session has."""

    def count(reader: Reader) -> int:
        return find_session(reader, session_id).seq

    return await app.store.read(count)


async def decide_over_msp(line: Line, request: Json, approves: bool = True, **params: Json) -> Json:
    """Decides an `approval/request` as a client does."""
    choice = next(each for each in request["availableChoices"] if each["decision"].startswith("approved") == approves)
    return await line.command(
        "approval/decide",
        sessionId=request["sessionId"],
        approvalId=request["approvalId"],
        choiceId=choice["choiceId"],
        requirementId=request["currentRequirementId"],
        **params,
    )


async def request_on(line: Line, method: str = "approval/request", since: int = 0) -> Json:
    """The params of the next server request of a method."""
    return (await line.until(lambda frame: frame.get("method") == method and "id" in frame, since))["params"]


class Wall:
    """A wall clock under the test's thumb, for all Apps: it stands still until it is moved."""

    def __init__(self) -> None:
        self.at = 1_790_000_000_000

    @contextlib.contextmanager
    def as_clock(self) -> Iterator[Wall]:
        """Puts this in the place of the wall clock. Intervals go on being measured."""
        with mock.patch.object(Clock, "now_ms", lambda clock: self.at):
            yield self
