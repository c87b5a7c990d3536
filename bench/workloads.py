"""The workloads: what is measured, each on a fresh store on disk, with FULL durability.

Every one returns a `Sample`: the figure, and the facts that explain it. Nothing here judges; `steps` does.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

import apsw

from refold.records import RunRecord
from refold.service.app import App, Settings
from refold.service.sessions import ViewSettings
from refold.service.tasks import NewTask

Json = Any

PAYLOAD = "x" * 1000
"""About the size of a short answer of a model."""


AGENTS = [
    {"name": "echo", "kind": "python", "spec": {"fn": "builtin:echo"}},
    {"name": "grow", "kind": "python", "spec": {"fn": "builtin:sleep", "secs": 0, "value": "y" * 1024}},
]


class Sample(NamedTuple):
    """One measurement."""

    value: float
    unit: str
    facts: dict[str, float]


def raw_commits(count: int = 1000) -> Sample:
    """One-row commits in a bare SQLite loop, WAL and FULL: what a sequential durable step cannot be faster than."""
    with tempfile.TemporaryDirectory() as folder:
        connection = apsw.Connection(str(Path(folder) / "raw.db"))
        connection.pragma("journal_mode", "wal")
        connection.pragma("synchronous", "FULL")
        connection.execute("CREATE TABLE step (n INTEGER PRIMARY KEY, ref TEXT, output TEXT)")
        begun = time.perf_counter()
        for n in range(count):
            connection.execute("BEGIN IMMEDIATE")
            connection.execute("INSERT INTO step (ref, output) VALUES (?, ?)", (f"step{n}", PAYLOAD))
            connection.execute("COMMIT")
        took = time.perf_counter() - begun
        connection.close()
    return Sample(count / took, "commits/s", {})


async def sequential(count: int = 1000) -> Sample:
    """One Run of `count` steps, one after the other, through the whole engine."""
    async with open_app() as (app, _):
        begun = time.perf_counter()
        await _run(app, _loop(count), {"p": PAYLOAD})
        took = time.perf_counter() - begun
    return Sample(count / took, "steps/s", {})


async def many_runs(runs: int = 200, steps: int = 10) -> Sample:
    """`runs` Runs of `steps` steps each, all at once."""
    async with open_app() as (app, _):
        begun = time.perf_counter()
        await asyncio.gather(*(_run(app, _loop(steps), {"p": PAYLOAD}) for _ in range(runs)))
        took = time.perf_counter() - begun
    return Sample(runs * steps / took, "steps/s", {})


async def growing_ctx(count: int = 2000) -> Sample:
    """A Run whose every step adds 1 KiB to the ctx; the figure is disk used per byte of output."""
    grow = {"kind": "seq", "children": [_step(_lit(n), f"$.k{n}", "grow") for n in range(count)]}
    async with open_app() as (app, path):
        begun = time.perf_counter()
        await _run(app, grow, {})
        took = time.perf_counter() - begun
        await app.close()
        used = sum(file.stat().st_size for file in path.parent.iterdir())
    return Sample(used / (count * 1024), "× sum of outputs", {"secs": took, "steps_per_s": count / took})


@asynccontextmanager
async def open_app(*, compacts: bool = True) -> AsyncIterator[tuple[App, Path]]:
    """A fresh App on a store on disk, and its path; without compaction where what is measured is something else."""
    view = ViewSettings() if compacts else ViewSettings(compact_events=10**9)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "refold.db"
        app = await App.open(Settings(store=path, view=view, max_running_runs=1000, max_concurrent_steps=1000))
        try:
            yield app, path
        finally:
            await app.close()


async def _run(app: App, flow: Json, ctx: Json) -> RunRecord:
    body = {"id": "bench", "flow": flow, "agents": AGENTS}
    run = await app.tasks.launch(NewTask(blueprint={"kind": "inline", "value": body}, init_ctx=ctx))
    ended = await app.runs.settled(run)
    assert ended.status == "done", ended
    return ended


def _loop(count: int) -> Json:
    return {
        "kind": "loop",
        "counter": _path("$.n"),
        "cond": _lit(True),
        "max": count,
        "body": _step(_path("$.p"), "$.r"),
    }


def _step(given: Json, out: str, ref: str = "echo") -> Json:
    return {"kind": "step", "ref": ref, "in": given, "out": _path(out)}


def _path(at: str) -> Json:
    return {"op": "path", "at": at}


def _lit(value: Json) -> Json:
    return {"op": "lit", "value": value}
