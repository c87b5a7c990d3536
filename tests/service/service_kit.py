"""What the services' tests share: Apps without processes, agents that obey a test, connections within this process.

A `House` opens App after App on one store. Its `crash` takes an App away as kill -9 does: nothing is marked, nothing is
said. A `Crew` is every agent of the Blueprints that `flow` makes: it answers at once unless a test holds a step, and
keeps each assignment it was given. A `Line` is a connection that speaks the protocol with an App of this process.

Everything waits for what it wants to see, up to `PATIENCE_SECS`; nothing sleeps.
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any, Final, Self
from unittest import mock

import uuid_utils

from refold.canonical import decode, encode
from refold.engine.agents import KINDS, Assignment, Report
from refold.flowir import Pass
from refold.records import RunRecord
from refold.server.rpc import Peer, PeerGone, Rpc
from refold.service.app import App, Settings
from refold.service.tasks import NewTask
from refold.store import MemoryStore, Reader, SqliteStore, Store
from refold.store.audit import audit
from refold.store.memory import Tables

Json = Any
Frame = dict[str, Json]
Act = Callable[[Assignment], Report | Awaitable[Report]]

PATIENCE_SECS: Final = 20.0

BROADCASTS: Final = {"session/started", "session/statusChanged", "session/listChanged", "session/closed"}
"""What a client is told without having asked; it has no place in a view."""


def uuid7() -> str:
    """A fresh command, turn or session id."""
    return str(uuid_utils.uuid7())


# -- Blueprints -------------------------------------------------------------------------------------------------------


def path(at: str) -> Json:
    return {"op": "path", "at": at}


def lit(value: Json) -> Json:
    return {"op": "lit", "value": value}


def step(ref: str, given: Json = None, out: str | None = None) -> Json:
    """A step; `given` is an expression or a literal."""
    expression = given if isinstance(given, dict) and "op" in given else lit(given)
    return {"kind": "step", "ref": ref, "in": expression, "out": path(out or f"$.{ref}")}


def seq(*nodes: Json) -> Json:
    return {"kind": "seq", "children": list(nodes)}


def flow(*nodes: Json, id: str = "flow", agents: tuple[str, ...] = (), **members: Json) -> Json:
    """A Blueprint of the nodes in sequence; every agent that its steps name is one of the crew."""
    names = {*agents, *_refs(list(nodes))}
    return {
        "id": id,
        "flow": seq(*nodes),
        "agents": [{"name": name, "kind": "python", "spec": {"fn": "builtin:echo"}} for name in sorted(names)],
        **members,
    }


def _refs(part: Json) -> Iterator[str]:
    if isinstance(part, dict):
        if part.get("kind") == "step":
            yield part["ref"]
        part = list(part.values())
    if isinstance(part, list):
        for each in part:
            yield from _refs(each)


# -- agents -----------------------------------------------------------------------------------------------------------


class Crew:
    """Performs every step: by `acts` for its name, else it passes `{"by": name, "got": directive}`."""

    def __init__(self) -> None:
        self.seen: list[Assignment] = []
        self.acts: dict[str, Act] = {}
        self._gates: dict[str, asyncio.Event] = {}
        self._moved = asyncio.Event()

    async def perform(self, work: Assignment) -> Report:
        self.seen.append(work)
        self._moved.set()
        if (gate := self._gates.get(work.step_ref)) is not None:
            await gate.wait()
        report = self.acts.get(work.step_ref, answer)(work)
        return report if isinstance(report, Report) else await report

    def as_python(self) -> contextlib.AbstractContextManager[object]:
        """Puts the crew in the place of all Python agents."""
        return mock.patch.dict(KINDS, python=lambda agent, tools: self)

    def hold(self, *names: str) -> None:
        """From now on steps of these names wait for `free`."""
        self._gates |= {name: asyncio.Event() for name in names}

    def free(self, *names: str) -> None:
        """Lets steps of these names go: those that wait, and all to come."""
        for name in names or list(self._gates):
            self._gates.pop(name).set()

    async def until(self, test: Callable[[], bool]) -> None:
        """Waits until the test holds, which may change with every dispatch."""
        async with asyncio.timeout(PATIENCE_SECS):
            while not test():
                self._moved.clear()
                await self._moved.wait()

    async def begun(self, name: str, times: int = 1) -> None:
        """Waits until a step of this name was dispatched `times` times."""
        await self.until(lambda: self.times(name) >= times)

    def times(self, name: str) -> int:
        """How often a step of this name was dispatched."""
        return len(self.of(name))

    def of(self, name: str) -> list[Assignment]:
        """The assignments of a name, in order."""
        return [work for work in self.seen if work.step_ref == name]


def answer(work: Assignment) -> Report:
    """What a member of the crew passes unless it is told otherwise."""
    return Report(Pass({"by": work.step_ref, "got": work.directive}))


# -- Apps -------------------------------------------------------------------------------------------------------------


class NoReaper:
    """In the place of the reaper process: the crew starts no processes."""

    server_id = "no-reaper"

    def register(self, pgid: int) -> None:
        raise AssertionError("a process was started")

    unregister = register

    async def close(self) -> None:
        pass


open_sqlite: Final = SqliteStore.open


class House:
    """Opens Apps on one store, one at a time: a SQLite file, or tables in memory where `path` is None.

    Tables in memory outlive their App here, so it is told that its store is durable.
    """

    def __init__(self, path: Path | None = None) -> None:
        self.path = path
        self._tables = Tables()
        self._open: list[App] = []

    @contextlib.contextmanager
    def without_processes(self) -> Iterator[Self]:
        """Apps opened inside start no reaper process, and share this house's tables."""
        with (
            mock.patch("refold.service.app.Reaper.start", lambda server_id: NoReaper()),
            mock.patch.object(SqliteStore, "open", self._store),
        ):
            yield self

    def _store(self, path: Path) -> Store:
        return MemoryStore(self._tables) if self.path is None else open_sqlite(path)

    def copy_of(self, other: House) -> None:
        """Takes what another house in memory has at this moment, as a copied file would."""
        self._tables = copy.deepcopy(other._tables)

    async def open(self, **settings: Any) -> App:
        """Boots: opens the store, recovers, accepts."""
        app = await App.open(Settings(store=self.path or Path("durable, says this test"), **settings))
        self._open.append(app)
        return app

    async def crash(self, app: App) -> None:
        """Takes an App away with everything it was doing; the store stays as it is."""
        self._open.remove(app)
        await app.close()

    async def reboot(self, app: App, **settings: Any) -> App:
        """A crash, and the next boot."""
        await self.crash(app)
        return await self.open(**settings)

    async def close(self) -> None:
        """Crashes what is still open."""
        for app in list(self._open):
            await self.crash(app)


async def faults(app: App) -> list[str]:
    """What the audit finds in the App's store; empty while the laws hold."""
    return await app.store.read(audit)


async def everything(app: App) -> dict[str, list[Any]]:
    """All rows of the store, to compare before with after."""
    from refold.store.base import TABLES

    def read(reader: Reader) -> dict[str, list[Any]]:
        return {kind.__name__: reader.find(kind) for kind in TABLES}

    return await app.store.read(read)


async def launch(app: App, blueprint: Json, **ctx: Json) -> RunRecord:
    """Launches an inline Blueprint."""
    return await app.tasks.launch(NewTask(blueprint={"kind": "inline", "value": blueprint}, init_ctx=ctx))


async def ended(app: App, run: RunRecord) -> RunRecord:
    """The Run once it is neither pending nor running."""
    async with asyncio.timeout(PATIENCE_SECS):
        return await app.runs.settled(await app.runs.get(run.run_id))


def undriven(app: App, run: RunRecord) -> Awaitable[None]:
    """What is done when the driver of the Run has gone. Take it while there is one."""
    return asyncio.wait_for(app._supervisor.settled(run.n), PATIENCE_SECS)


def result(run: RunRecord) -> Json:
    """The final ctx of a Run that is done, or its error."""
    return decode(run.result_json or "null")


# -- connections ------------------------------------------------------------------------------------------------------


class Refused(Exception):
    """A call was answered with an error."""

    def __init__(self, error: Json) -> None:
        super().__init__(encode(error))
        self.code: int = error["code"]
        self.data: Json = error["data"]
        self.kind: str = error["data"]["kind"]


class Line:
    """One connection. `frames` is all it was sent, in order; while `slow` is set, nothing leaves the server."""

    def __init__(self, app: App, rpc: Rpc | None = None, *, initialized: bool = True) -> None:
        self.frames: list[Frame] = []
        self.answered = -1
        """Where in `frames` the answer to the last call is."""
        self.ready = asyncio.Event()
        self.ready.set()
        self.lag: Callable[[], int] = lambda: 0
        """How many turns of the loop the client takes for the next frame."""
        self._says_initialized = initialized
        self._stuck = 0
        self._gone = False
        self._moved = asyncio.Event()
        self._peer = Peer(rpc or Rpc(app, "/home"), self._take)
        self._ids = iter(range(1, 1_000_000))

    async def __aenter__(self) -> Self:
        await self._peer.__aenter__()
        await self.call("initialize", clientInfo={"name": "tests", "version": "1"})
        if self._says_initialized:
            await self.initialized()
        return self

    async def __aexit__(self, *_: object) -> None:
        self.ready.set()
        await self._peer.__aexit__()

    async def _take(self, frame: bytes) -> None:
        self._stuck += 1
        self._moved.set()
        await self.ready.wait()
        for _ in range(self.lag()):
            await asyncio.sleep(0)
        self._stuck -= 1
        if self._gone:
            raise PeerGone
        self.frames.append(decode(frame))
        self._moved.set()

    async def initialized(self) -> None:
        """Says that the client listens."""
        await self._peer.receive_frame(encode({"jsonrpc": "2.0", "method": "initialized"}))

    def hang_up(self) -> None:
        """The client is gone: whatever is sent from now on fails."""
        self._gone = True

    async def blocked(self) -> None:
        """Waits until a frame of the server is stuck."""
        async with asyncio.timeout(PATIENCE_SECS):
            while not self._stuck:
                self._moved.clear()
                await self._moved.wait()

    async def call(self, method: str, **params: Json) -> Json:
        """The result of a call; raises Refused."""
        request = next(self._ids)
        await self._peer.receive_frame(encode({"jsonrpc": "2.0", "id": request, "method": method, "params": params}))
        self.answered = max(
            at for at, frame in enumerate(self.frames) if frame.get("id") == request and "method" not in frame
        )
        said = self.frames[self.answered]
        if "error" in said:
            raise Refused(said["error"])
        return said["result"]

    async def command(self, method: str, **params: Json) -> Json:
        """A call under a command id, a fresh one unless it is given."""
        return await self.call(method, **{"commandId": uuid7(), **params})

    async def start(self, model: str) -> str:
        """Starts a Session; its id."""
        return (await self.command("session/start", modelId=model))["session"]["sessionId"]

    async def turn(self, session_id: str, text: str = "hello", **params: Json) -> Json:
        """Starts a turn; what was answered."""
        return await self.command("turn/start", sessionId=session_id, input=[{"type": "text", "text": text}], **params)

    async def resume(self, session_id: str, **params: Json) -> Json:
        """Resumes a Session; what was answered."""
        return await self.command("session/resume", sessionId=session_id, **params)

    async def page(self, session_id: str, limit: int = 100, **params: Json) -> list[Frame]:
        """All events of the view on one side of `cursor`, ascending."""
        events: list[Frame] = []
        backward = params.get("direction") == "backward"
        while True:
            page = await self.call("view/page", sessionId=session_id, limit=limit, **params)
            events = page["events"] + events if backward else events + page["events"]
            if page["nextCursor"] is None:
                return events
            params["cursor"] = page["nextCursor"]

    async def until(self, test: Callable[[Frame], bool], since: int = 0) -> Frame:
        """The first frame from index `since` that passes the test."""
        async with asyncio.timeout(PATIENCE_SECS):
            while True:
                self._moved.clear()
                for frame in self.frames[since:]:
                    if test(frame):
                        return frame
                await self._moved.wait()

    async def turn_ended(self, turn_id: str, since: int = 0) -> Json:
        """The params of the turn's end."""
        end = await self.until(
            lambda frame: frame.get("method") == "turn/completed" and frame["params"]["turnId"] == turn_id, since
        )
        return end["params"]

    def pushed(self, session_id: str, since: int = 0, until: int | None = None) -> list[Frame]:
        """The durable events that were pushed, as pages show them."""
        return [
            {"method": frame["method"], "params": frame["params"]}
            for frame in self.frames[since:until]
            if "id" not in frame and frame["params"].get("sessionId") == session_id and "sourceRange" in frame["params"]
        ]


def cursor_of(frame: Frame) -> str:
    """The cursor of an event."""
    return frame["params"]["viewCursor"]
