"""The functions that refold's steps call, in process and (as `--app bench.agents`) on a server."""

from __future__ import annotations

import time
from typing import Any

from bench.sample import payload, payload_until

MARKS: list[float] = []
"""When each step ran, in this process."""


async def answer(n: int) -> str:
    """A step of every workload."""
    MARKS.append(time.perf_counter())
    return payload(n)


async def answer_until(n: int) -> str:
    """A step of a Run that is killed, and of the one that goes on."""
    return payload_until(n)


FUNCTIONS: dict[str, Any] = {f"bench.agents:{function.__name__}": function for function in (answer, answer_until)}
