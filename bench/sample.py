"""What every contestant shares: the payload, percentiles, and how a program of the bench reports.

Only the standard library: peers import this in environments of their own, where refold is not installed.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import os
import sys
import time
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any

Json = Any
Figures = dict[str, float]
"""What one measurement found, by name: the figure that a row shows, and the facts that explain it."""

GIVEN_UP_SECS = 10
"""After how long a peer's worker that says nothing is given up, where that is for its user to say."""

WINDOW = 1000
"""How many steps at each end of a long Run are compared."""


def payload(n: int) -> str:
    """1 KiB of text, another one for each step. Base64 of a hash: no disk and no peer can compress it by much."""
    return f"{n:08d}" + base64.b64encode(hashlib.shake_128(b"%d" % n).digest(762)).decode()


def percentile(values: Sequence[float], at: float) -> float:
    """The value that the part `at` of `values` does not exceed."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * at))]


def latency(secs: Sequence[float]) -> Figures:
    """p50 and p99 in milliseconds."""
    return {"p50": 1000 * percentile(secs, 0.5), "p99": 1000 * percentile(secs, 0.99)}


def rate(count: int, secs: float, marks: Sequence[float] = ()) -> Figures:
    """Steps per second; with the times at which steps ran, also how the end of a long Run compares to its beginning."""
    found = {"per_s": count / secs}
    if len(marks) >= 2 * WINDOW:
        first, last = marks[WINDOW - 1] - marks[0], marks[-1] - marks[-WINDOW]
        found["last_to_first"] = first / last
    return found


def die() -> None:
    """Ends this process as a power failure would, for its peers: nothing is flushed, nothing is said."""
    os.kill(os.getpid(), 9)


def arrived(n: int) -> None:
    """Says that a resumed process has come to step `n`, and ends. The clock is one for all processes of a machine."""
    sys.stdout.write(json.dumps({"at": time.monotonic(), "step": n}) + "\n")
    sys.stdout.flush()
    os._exit(0)


def payload_until(n: int) -> str:
    """What a step answers that ends its process at step `BENCH_CRASH`, or, once resumed, says which came first."""
    if "BENCH_RESUMED" in os.environ:
        arrived(n)
    if n == int(os.environ["BENCH_CRASH"]):
        die()
    return payload(n)


Work = Callable[[Path, int], Figures | Coroutine[Any, Any, Figures]]


def main(works: dict[str, Work], run: Callable[[Coroutine[Any, Any, Figures]], Figures] = asyncio.run) -> None:
    """A contestant's command line: `WORK FOLDER SIZE`. One JSON object on stdout; the process ends at once."""
    name, folder, size = sys.argv[1:]
    found = works[name](Path(folder), int(size))
    if not isinstance(found, dict):
        found = run(found)
    sys.stdout.write(json.dumps(found) + "\n")
    sys.stdout.flush()
    os._exit(0)  # some peers keep threads that would keep the process
