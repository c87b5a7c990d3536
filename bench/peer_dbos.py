"""DBOS Transact on SQLite, durability as shipped. Runs in an environment of its own: see `peers`."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import time
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

with contextlib.suppress(ImportError):
    import pysqlite3  # DBOS needs a younger SQLite than some systems have

    sys.modules["sqlite3"] = pysqlite3

os.environ.setdefault("DBOS__VMID", "bench")
from dbos import DBOS, SetWorkflowID

from bench.sample import Figures, latency, main, payload, payload_until, rate

MARKS: list[float] = []
CRASHED = "crashed"


@DBOS.step()
def answer(n: int) -> str:
    MARKS.append(time.perf_counter())
    return payload(n)


@DBOS.step()
async def answer_async(n: int) -> str:
    return payload(n)


@DBOS.step()
def answer_until(n: int) -> str:
    return payload_until(n)


@DBOS.step()
def grow(ctx: list[str], n: int) -> list[str]:
    """What a user does who wants the whole context of a step on record."""
    return [*ctx, payload(n)]


@DBOS.workflow()
def in_turn(steps: int) -> None:
    for n in range(steps):
        answer(n)


@DBOS.workflow()
def until(steps: int) -> None:
    for n in range(steps):
        answer_until(n)


@DBOS.workflow()
async def side_by_side(lanes: int) -> None:
    await asyncio.gather(*(answer_async(n) for n in range(lanes)))


@DBOS.workflow()
def growing(steps: int) -> None:
    ctx: list[str] = []
    for n in range(steps):
        ctx = grow(ctx, n)


def launch(folder: Path) -> None:
    url = f"sqlite:///{folder / 'dbos.db'}"
    quiet: Any = {"log_level": "ERROR", "run_admin_server": False, "application_version": "bench"}
    DBOS(config={"name": "bench", "system_database_url": url, **quiet})
    DBOS.launch()


def sequential(folder: Path, steps: int) -> Figures:
    launch(folder)
    in_turn(20)
    MARKS.clear()
    begun = time.perf_counter()
    in_turn(steps)
    return rate(steps, time.perf_counter() - begun, MARKS)


def many(folder: Path, runs: int) -> Figures:
    launch(folder)
    in_turn(5)
    begun = time.perf_counter()
    for handle in [DBOS.start_workflow(in_turn, 10) for _ in range(runs)]:
        handle.get_result()
    return rate(10 * runs, time.perf_counter() - begun)


def fan_out(folder: Path, lanes: int) -> Coroutine[Any, Any, Figures]:
    launch(folder)

    async def measure() -> Figures:
        await side_by_side(5)
        begun = time.perf_counter()
        await side_by_side(lanes)
        return {"ms": 1000 * (time.perf_counter() - begun)}

    return measure()


def one_step(folder: Path, times: int) -> Figures:
    launch(folder)
    in_turn(1)
    took = list[float]()
    for _ in range(times):
        begun = time.perf_counter()
        in_turn(1)
        took.append(time.perf_counter() - begun)
    return latency(took)


def growing_ctx(folder: Path, steps: int) -> Figures:
    launch(folder)
    begun = time.perf_counter()
    growing(steps)
    return {"secs": time.perf_counter() - begun}


def crash(folder: Path, at: int) -> Figures:
    os.environ["BENCH_CRASH"] = str(at)
    launch(folder)
    with SetWorkflowID(CRASHED):
        until(2 * at)
    raise AssertionError("it did not die")


def resume(folder: Path, _: int) -> Figures:
    os.environ["BENCH_RESUMED"] = "1"
    launch(folder)  # which recovers what is pending
    DBOS.retrieve_workflow(CRASHED).get_result()
    raise AssertionError("nothing was left to do")


WORKS = {
    "seq": sequential,
    "many": many,
    "fan": fan_out,
    "lat": one_step,
    "ctx": growing_ctx,
    "crash": crash,
    "resume": resume,
}

if __name__ == "__main__":
    main(WORKS)
