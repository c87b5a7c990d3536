"""The functions that refold's steps call, in process and (as `--app bench.agents`) on a server."""

from __future__ import annotations

import os
import time
from typing import Any

from bench.sample import arrived, die, payload

MARKS: list[float] = []
"""When each step ran, in this process."""


async def answer(n: int) -> str:
    """A step of every workload."""
    MARKS.append(time.perf_counter())
    return payload(n)


async def answer_until(n: int) -> str:
    """A step that ends its process at step `BENCH_CRASH`, or, once resumed (`BENCH_RESUMED`), says which came first."""
    if "BENCH_RESUMED" in os.environ:
        arrived(n)
    if n == int(os.environ["BENCH_CRASH"]):
        die()
    return payload(n)


FUNCTIONS: dict[str, Any] = {f"bench.agents:{function.__name__}": function for function in (answer, answer_until)}
