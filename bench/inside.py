"""refold in process: an App of its own on a fresh store, FULL, with the log, the view and every law switched on.

`python -m bench.inside WORK FOLDER SIZE` measures one of them; nothing here judges.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from bench import flows
from bench.agents import FUNCTIONS, MARKS
from bench.sample import Figures, latency, main, rate
from refold.engine.supervisor import load_history
from refold.records import RunRecord
from refold.server import process
from refold.service.app import App, Settings
from refold.service.tasks import NewTask

Json = Any
MANY = 1000
"""How many Runs and steps may be under way: what is measured is the work, not the queue before it."""


@asynccontextmanager
async def opened(folder: Path) -> AsyncIterator[App]:
    """An App on the store of `folder`."""
    store = folder / "refold.db"
    process.spare_collector()  # as whoever holds a store does
    app = await App.open(Settings(store=store, app=FUNCTIONS, max_running_runs=MANY, max_concurrent_steps=MANY))
    try:
        yield app
    finally:
        await app.close()


async def run(app: App, flow: Json) -> RunRecord:
    """Runs a flow to its end."""
    launched = await app.tasks.launch(NewTask(blueprint=flows.blueprint(flow)))
    ended = await app.runs.settled(launched)
    assert ended.status == "done", ended
    return ended


async def sequential(folder: Path, steps: int) -> Figures:
    async with opened(folder) as app:
        begun = time.perf_counter()
        await run(app, flows.loop(steps))
        return rate(steps, time.perf_counter() - begun, MARKS)


async def many(folder: Path, runs: int) -> Figures:
    async with opened(folder) as app:
        begun = time.perf_counter()
        await asyncio.gather(*(run(app, flows.loop(10)) for _ in range(runs)))
        return rate(10 * runs, time.perf_counter() - begun)


async def fan_out(folder: Path, lanes: int) -> Figures:
    async with opened(folder) as app:
        begun = time.perf_counter()
        await run(app, flows.fan_out(lanes))
        return {"ms": 1000 * (time.perf_counter() - begun)}


async def one_step(folder: Path, times: int) -> Figures:
    async with opened(folder) as app:
        took = list[float]()
        for _ in range(times):
            begun = time.perf_counter()
            await run(app, flows.loop(1))
            took.append(time.perf_counter() - begun)
        return latency(took)


async def growing_ctx(folder: Path, steps: int) -> Figures:
    async with opened(folder) as app:
        begun = time.perf_counter()
        await run(app, flows.growing(steps))
        return {"secs": time.perf_counter() - begun}


async def crash(folder: Path, at: int) -> Figures:
    os.environ["BENCH_CRASH"] = str(at)
    async with opened(folder) as app:
        await run(app, flows.loop(2 * at, "answer_until"))
    raise AssertionError("it did not die")


async def resume(folder: Path, at: int) -> Figures:
    os.environ["BENCH_RESUMED"] = "1"
    async with opened(folder) as app:
        (interrupted,) = await app.runs.page(1)
        answer = await app.runs.resume(interrupted.run_id)
        assert answer.replayed_steps == at, answer
        await app.runs.settled(await app.runs.get(interrupted.run_id))
    raise AssertionError("nothing was left to do")


async def scan(folder: Path, at: int) -> Figures:
    """What a resume reads before its flow begins: all rows of the Run, checked against its chain."""
    async with opened(folder) as app:
        (interrupted,) = await app.runs.page(1)
        begun = time.perf_counter()
        history = await app.store.read(lambda reader: load_history(reader, interrupted).cursor)
        took = time.perf_counter() - begun
        assert history is not None
        begun = time.perf_counter()
        preview = await app.reruns.preview_resume(interrupted.run_id)
        assert preview is not None
        return {"per_s": at / took, "replayed_per_s": at / (time.perf_counter() - begun)}


async def idle_runs(folder: Path, runs: int) -> Figures:
    """What a Run costs in memory while it waits for a person."""
    async with opened(folder) as app:
        await _wait_for_a_person(app, 10)
        before = resident_kib()
        await _wait_for_a_person(app, runs)
        return {"kib": (resident_kib() - before) / runs}


async def _wait_for_a_person(app: App, runs: int) -> None:
    """Launches Runs, and returns when the last of them has written down whom it waits for."""
    flow = flows.blueprint(flows.waits_for_a_person())
    launched = await asyncio.gather(*(app.tasks.launch(NewTask(blueprint=flow)) for _ in range(runs)))
    for each in launched:
        while (await app.runs.get(each.run_id)).waiting_on is None:
            await asyncio.sleep(0)


def resident_kib(pid: int | None = None) -> float:
    """The memory that a process has of its own, as Linux counts it."""
    pages = int(Path(f"/proc/{pid or 'self'}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1024


WORKS = {
    "seq": sequential,
    "many": many,
    "fan": fan_out,
    "lat": one_step,
    "ctx": growing_ctx,
    "crash": crash,
    "resume": resume,
    "scan": scan,
    "idle": idle_runs,
}

if __name__ == "__main__":
    main(WORKS, process.run)
