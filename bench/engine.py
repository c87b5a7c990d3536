"""The works of a peer that runs flows by name. Only the standard library, as in `sample`.

A flow gets a size: `in_turn` so many steps, one after the other, `side_by_side` so many at once, `growing` so many that
each add their answer to what they are given, `until` so many, one of which kills this process.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Protocol, TypeVar

from bench.sample import Figures, Work, latency, payload, rate
from bench.servers import PATIENCE_SECS

T = TypeVar("T")

MARKS: list[float] = []
"""When each step ran, in this process."""


def answer(n: int) -> str:
    MARKS.append(time.perf_counter())
    return payload(n)


def grow(grown: list[str], n: int) -> list[str]:
    """What a user does who wants the whole context of a step on record."""
    return [*grown, payload(n)]


class Run(Protocol):
    """Runs a flow to its end. A `name` is one Run, however often and by whichever process it is asked for."""

    async def __call__(self, flow: str, size: int, name: str | None = None) -> None: ...


async def at_last(attempt: Callable[[], Awaitable[T]], *errors: type[Exception]) -> T:
    """What an attempt gives once it does not raise one of these any more. Raises the last one after PATIENCE_SECS."""
    last = time.monotonic() + PATIENCE_SECS
    while True:
        try:
            return await attempt()
        except errors:
            if time.monotonic() > last:
                raise
        await asyncio.sleep(0.02)


Opened = Callable[[Path], AbstractAsyncContextManager[Run]]


def works(opened: Opened) -> dict[str, Work]:
    """What is measured, over a peer that is `opened` on a folder, where it has what it had."""

    async def sequential(folder: Path, steps: int) -> Figures:
        async with opened(folder) as run:
            await run("in_turn", 20)
            MARKS.clear()
            begun = time.perf_counter()
            await run("in_turn", steps)
            return rate(steps, time.perf_counter() - begun, MARKS)

    async def many(folder: Path, runs: int) -> Figures:
        async with opened(folder) as run:
            await run("in_turn", 5)
            begun = time.perf_counter()
            await asyncio.gather(*(run("in_turn", 10) for _ in range(runs)))
            return rate(10 * runs, time.perf_counter() - begun)

    async def fan_out(folder: Path, lanes: int) -> Figures:
        async with opened(folder) as run:
            await run("side_by_side", 5)
            begun = time.perf_counter()
            await run("side_by_side", lanes)
            return {"ms": 1000 * (time.perf_counter() - begun)}

    async def one_step(folder: Path, times: int) -> Figures:
        async with opened(folder) as run:
            await run("in_turn", 1)
            took = list[float]()
            for _ in range(times):
                begun = time.perf_counter()
                await run("in_turn", 1)
                took.append(time.perf_counter() - begun)
            return latency(took)

    async def growing_ctx(folder: Path, steps: int) -> Figures:
        async with opened(folder) as run:
            begun = time.perf_counter()
            await run("growing", steps)
            return {"secs": time.perf_counter() - begun}

    async def crash(folder: Path, at: int) -> Figures:
        os.environ["BENCH_CRASH"] = str(at)
        async with opened(folder) as run:
            await run("until", 2 * at, "crashed")
        raise AssertionError("it did not die")

    async def resume(folder: Path, at: int) -> Figures:
        os.environ["BENCH_RESUMED"] = "1"
        async with opened(folder) as run:
            await run("until", 2 * at, "crashed")
        raise AssertionError("nothing was left to do")

    return {
        "seq": sequential,
        "many": many,
        "fan": fan_out,
        "lat": one_step,
        "ctx": growing_ctx,
        "crash": crash,
        "resume": resume,
    }
