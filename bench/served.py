"""refold over HTTP: `refold serve` in a process of its own, asked by this one, as programs ask it.

Beside the workloads here are the costs of a server: to start one, to answer a command, to hold a connection.
"""

from __future__ import annotations

import asyncio
import http.client
import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, closing, contextmanager
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import uuid_utils
import websockets

from bench import flows
from bench.inside import MANY, resident_kib
from bench.sample import Figures, latency, main, rate
from bench.servers import PATIENCE_SECS, running

Json = Any
REFOLD = [sys.executable, "-m", "refold"]
SERVE = [*REFOLD, "serve", "--bind", "127.0.0.1:0", "--app", "bench.agents"]
CLIENTS = 50
"""Threads that post at once; each has a connection that it keeps."""


class Server(NamedTuple):
    """A server that answers, and what opens its door."""

    pid: int
    host: str
    token: str

    def connect(self) -> http.client.HTTPConnection:
        connection = http.client.HTTPConnection(self.host, timeout=PATIENCE_SECS)
        connection.connect()
        return connection

    def run(self, connection: http.client.HTTPConnection, flow: Json) -> None:
        """Runs a flow to its end, in one request."""
        self.post(connection, {"blueprint": flows.blueprint(flow)})

    def post(self, connection: http.client.HTTPConnection, body: Json) -> Json:
        headers = {"Authorization": f"Bearer {self.token}", "Content-Type": "application/json"}
        connection.request("POST", "/v1/tasks", json.dumps(body), headers)
        answer = connection.getresponse()
        said = json.loads(answer.read())
        assert answer.status in (200, 202) and said["status"] != "failed", said
        return said


def environment(folder: Path, **more: str) -> dict[str, str]:
    """What a server of this bench is started with."""
    limits = {"REFOLD_MAX_RUNNING_RUNS": str(MANY), "REFOLD_MAX_CONCURRENT_STEPS": str(MANY)}
    return {**os.environ, "REFOLD_HOME": str(folder), **limits, **more}


@contextmanager
def serving(folder: Path, *flags: str) -> Iterator[Server]:
    """A server on the home `folder`, from when its door is open."""
    with _started(folder, *flags) as process:
        yield _door(process, folder)


def _started(folder: Path, *flags: str, **more: str) -> AbstractContextManager[subprocess.Popen[bytes]]:
    announced, given = folder / "server.json", environment(folder, **more)
    announced.unlink(missing_ok=True)
    return running([*SERVE, *flags], folder, announced.exists, environment=given, ending=signal.SIGTERM)


def _door(process: subprocess.Popen[bytes], folder: Path) -> Server:
    url = json.loads((folder / "server.json").read_text())["url"]
    return Server(process.pid, url.removeprefix("http://"), (folder / "token").read_text().strip())


# -- workloads --------------------------------------------------------------------------------------------------------


async def sequential(folder: Path, steps: int) -> Figures:
    return rate(steps, _timed(folder, flows.loop(steps)))


async def fan_out(folder: Path, lanes: int) -> Figures:
    return {"ms": 1000 * _timed(folder, flows.fan_out(lanes))}


def _timed(folder: Path, flow: Json) -> float:
    with serving(folder) as server, closing(server.connect()) as connection:
        begun = time.perf_counter()
        server.run(connection, flow)
        return time.perf_counter() - begun


async def many(folder: Path, runs: int) -> Figures:
    with serving(folder) as server, ThreadPoolExecutor(CLIENTS) as pool:

        def client(n: int) -> None:
            with closing(server.connect()) as connection:
                for _ in range(n, runs, CLIENTS):
                    server.run(connection, flows.loop(10))

        begun = time.perf_counter()
        list(pool.map(client, range(CLIENTS)))
        return rate(10 * runs, time.perf_counter() - begun)


async def one_step(folder: Path, times: int) -> Figures:
    took = list[float]()
    with serving(folder) as server, closing(server.connect()) as connection:
        for _ in range(times):
            begun = time.perf_counter()
            server.run(connection, flows.loop(1))
            took.append(time.perf_counter() - begun)
    return latency(took)


async def crash(folder: Path, at: int) -> Figures:
    """A server dies in the middle of a Run."""
    with _started(folder, BENCH_CRASH=str(at)) as process:
        door = _door(process, folder)
        with closing(door.connect()) as connection:
            door.post(connection, {"blueprint": flows.blueprint(flows.loop(2 * at, "answer_until")), "detach": True})
        process.wait()
    (folder / "server.json").unlink()
    return {}


# -- costs ------------------------------------------------------------------------------------------------------------


async def start_up(folder: Path, times: int) -> Figures:
    """Seconds until `refold --help` is said, and until a new server answers."""
    said, answered = list[float](), list[float]()
    for n in range(times):
        begun = time.perf_counter()
        subprocess.run([*REFOLD, "--help"], check=True, stdout=subprocess.DEVNULL)
        said.append(time.perf_counter() - begun)
        home = folder / f"home{n}"
        home.mkdir()
        begun = time.perf_counter()
        with serving(home) as server:
            urllib.request.urlopen(f"http://{server.host}/healthz").close()
            answered.append(time.perf_counter() - begun)
    return {"help_ms": 1000 * median(said), "healthz_ms": 1000 * median(answered)}


async def command(folder: Path, times: int) -> Figures:
    """How long `refold ls` takes against a server that runs, process and all."""
    took = list[float]()
    with serving(folder):
        for _ in range(times):
            begun = time.perf_counter()
            subprocess.run([*REFOLD, "ls"], check=True, stdout=subprocess.DEVNULL, env=environment(folder))
            took.append(time.perf_counter() - begun)
    return latency(took)


async def idle_clients(folder: Path, clients: int) -> Figures:
    """What a connection that follows a Session costs the server in memory while nothing happens."""
    with serving(folder) as server, closing(server.connect()) as connection:
        session = server.post(connection, {"blueprint": flows.blueprint(flows.loop(10))})["session_id"]
        warm = await asyncio.gather(*(follow(server, session) for _ in range(10)))
        before = resident_kib(server.pid)
        sockets = await asyncio.gather(*(follow(server, session) for _ in range(clients)))
        kib = (resident_kib(server.pid) - before) / clients
        for socket in (*warm, *sockets):
            await socket.close()
    return {"kib": kib}


async def follow(server: Server, session: str) -> websockets.ClientConnection:
    """A connection that has the whole Session and is told what comes."""
    socket, _ = await attach(server, session)
    return socket


async def attach(server: Server, session: str, **asked: str) -> tuple[websockets.ClientConnection, Json]:
    """A connection that has resumed a Session, as `asked`; and what it was answered."""
    headers = {"Authorization": f"Bearer {server.token}"}
    socket = await websockets.connect(f"ws://{server.host}/v1/msp", additional_headers=headers, compression=None)
    for message in hello(session, **asked):
        await socket.send(json.dumps(message))
    said: Json = {}
    while said.get("id") != FOLLOWED:
        said = json.loads(await socket.recv())
    assert "result" in said, said
    return socket, said["result"]


FOLLOWED = 2
"""The id of the call whose answer says that a connection is subscribed."""


def hello(session: str, **asked: str) -> list[Json]:
    """What a client says to have a Session and be told what comes."""
    client = {"name": "bench", "version": "1"}
    resume = {"commandId": str(uuid_utils.uuid7()), "sessionId": session, **asked}
    return [
        {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {"clientInfo": client}},
        {"jsonrpc": "2.0", "method": "initialized"},
        {"jsonrpc": "2.0", "id": FOLLOWED, "method": "session/resume", "params": resume},
    ]


WORKS = {
    "seq": sequential,
    "many": many,
    "fan": fan_out,
    "lat": one_step,
    "crash": crash,
    "start": start_up,
    "cli": command,
    "clients": idle_clients,
}

if __name__ == "__main__":
    main(WORKS)
