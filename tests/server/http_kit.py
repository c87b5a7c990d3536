"""What the tests of the HTTP door share: a door within this process, and agents that wait for the test.

A `Door` is asked over ASGI: no socket, no thread. A `Server` is a whole one, for what only sockets show. `gate` is an
agent that answers once the test opens it, so nothing here sleeps.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any, Final
from unittest import mock

import httpx
import uuid_utils

from refold.server.config import Config, Home
from refold.server.host import hold
from refold.server.http import http_app
from refold.server.rpc import Rpc
from refold.service.app import App, Settings

Json = Any

HOST: Final = "127.0.0.1:7777"
TOKEN: Final = "token"
PATIENCE_SECS: Final = 20.0
NO_RUN: Final = "R-00000000000000ff"
NO_TASK: Final = "T-00000000000000ff"


class NoReaper:
    """In the place of the reaper process: no agent here is a process."""

    server_id = "no-reaper"

    async def close(self) -> None:
        pass


class Door:
    """A door that is open on a store, and its client, who has the server's token unless told otherwise."""

    def __init__(self, app: App, gate: asyncio.Event) -> None:
        self.app = app
        self.gate = gate
        self.asgi = http_app(app, Rpc(app, "/home"), TOKEN, [HOST, "localhost:7777", "[::1]:7777"])
        self._client = httpx.AsyncClient(transport=httpx.ASGITransport(self.asgi), base_url=f"http://{HOST}")

    async def send(self, verb: str, path: str, body: Json = None, *, token: str = TOKEN, **more: Any) -> httpx.Response:
        """A whole answer. `more` is what httpx takes: `content`, `params`, `headers`."""
        headers = ({"Authorization": f"Bearer {token}"} if token else {}) | more.pop("headers", {})
        given = {} if body is None else {"json": body}
        async with asyncio.timeout(PATIENCE_SECS):
            return await self._client.request(verb, path, headers=headers, **given, **more)

    async def ask(self, verb: str, path: str, body: Json = None, *, status: int = 200, **more: Any) -> Json:
        """The JSON of an answer that must have this status."""
        answer = await self.send(verb, path, body, **more)
        assert answer.status_code == status, (answer.status_code, answer.text)
        return answer.json()

    async def launch(self, *nodes: Json, status: int = 200, **members: Json) -> Json:
        """Launches an inline Blueprint of these nodes."""
        return await self.ask("POST", "/v1/tasks", launching(*nodes, **members), status=status)

    async def settled(self, run_id: str) -> Json:
        """The Run once it is neither pending nor running."""
        async with asyncio.timeout(PATIENCE_SECS):
            await self.app.runs.settled(await self.app.runs.get(run_id))
        return await self.ask("GET", f"/v1/runs/{run_id}")

    async def interrupted(self, run_id: str) -> None:
        """Leaves the Run interrupted, as a shutdown does; it can be resumed."""
        await self.app.drain()
        assert (await self.ask("GET", f"/v1/runs/{run_id}"))["status"] == "interrupted"


@contextlib.asynccontextmanager
async def opened(store: Path | None = None, **settings: Any) -> AsyncIterator[Door]:
    """A door on the store, in memory if it has no path; closed at the end of the block as a crash closes it."""
    gate = asyncio.Event()

    async def wait(value: Json) -> Json:
        await gate.wait()
        return value

    with mock.patch("refold.service.app.Reaper.start", lambda server_id: NoReaper()):
        app = await App.open(Settings(store=store, app={"t:gate": wait}, **settings))
    try:
        yield Door(app, gate)
    finally:
        await app.close()


class Server:
    """A whole server, with its own loop in a thread and its door on a port of the loopback."""

    def __init__(self, home: Path, bind: str = "127.0.0.1:0") -> None:
        self._home = Home(home)
        self._bind = bind
        self._ready = threading.Event()
        self._end: asyncio.Event | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self.url = self.token = ""

    def run(self) -> None:
        asyncio.run(self._serve())

    async def _serve(self) -> None:
        self._loop, self._end = asyncio.get_running_loop(), asyncio.Event()
        async with hold(Config(bind=self._bind, store=str(self._home.path / "refold.db")), self._home) as host:
            self.url, self.token = host.url, self._home.token()
            self._ready.set()
            await self._end.wait()

    @contextlib.contextmanager
    def serving(self) -> Iterator[Server]:
        thread = threading.Thread(target=self.run)
        thread.start()
        assert self._ready.wait(20)
        try:
            yield self
        finally:
            assert self._loop is not None and self._end is not None
            self._loop.call_soon_threadsafe(self._end.set)
            thread.join(20)
            assert not thread.is_alive()

    def headers(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.token}"}


def uuid7() -> str:
    """A fresh command id."""
    return str(uuid_utils.uuid7())


# -- Blueprints -------------------------------------------------------------------------------------------------------


def assign(at: str, value: Json) -> Json:
    """A node that needs no agent."""
    return {"kind": "assign", "at": {"op": "path", "at": at}, "value": {"op": "lit", "value": value}}


def step(ref: str) -> Json:
    """A step of agent `ref`: `echo`, or `gate`, which waits for the test."""
    out = {"op": "path", "at": f"$.{ref}"}
    return {"kind": "step", "ref": ref, "in": {"op": "lit", "value": 1}, "out": out}


def blueprint(*nodes: Json, id: str = "inline") -> Json:
    """A Blueprint of these nodes in sequence."""
    kinds = {"echo": "builtin:echo", "gate": "t:gate", "fail": "builtin:fail"}
    named = {node["ref"] for node in nodes if node["kind"] == "step"}
    agents = [{"name": name, "kind": "python", "spec": {"fn": kinds[name]}} for name in sorted(named)]
    for agent in agents:
        if agent["name"] == "fail":
            agent["spec"]["message"] = "told to fail"
    return {"id": id, "flow": {"kind": "seq", "children": list(nodes)}, "agents": agents}


def launching(*nodes: Json, **members: Json) -> Json:
    """The body of a launch of these nodes."""
    return {"blueprint": {"kind": "inline", "value": blueprint(*(nodes or (assign("$.x", 1),)))}, **members}
