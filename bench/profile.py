"""`scripts/bench profile`: where the time of a workload goes, by module. For a bar that is missed: what would move it.

A timer looks once a millisecond at which Python code runs. What is in C (SQLite, hashing, the sync of a commit) counts
for the module that called it: `store/sqlite.py` is SQLite, and `its commits` what `COMMIT` took, sync included.
"""

from __future__ import annotations

import asyncio
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

from bench import flows, inside
from refold.server import process

Json = Any
WORKS: dict[str, Callable[[int], list[Json]]] = {
    "seq": lambda shrink: [flows.loop(1_000 // shrink)],
    "many": lambda shrink: [flows.loop(10)] * (200 // shrink),
    "fan": lambda shrink: [flows.fan_out(200 // shrink)],
    "ctx": lambda shrink: [flows.growing(2_000 // shrink)],
}
"""The flows that are run side by side, at their sizes divided by `shrink`."""
LOOK_SECS = 0.001
SHOWN = 18
"""Modules that are named; the rest is summed."""


def measure(rounds: int, *, shrink: int = 1) -> str:
    """A Markdown table: modules down, workloads across, the share of each in percent.

    Raises RuntimeError if nothing was seen of a workload: its column would say that all of it went elsewhere.
    """
    found: dict[str, Counter[str]] = {}
    for name, launched in WORKS.items():
        sys.stderr.write(f"{name}\n")
        found[name] = Counter()
        for _ in range(3 * rounds):
            with tempfile.TemporaryDirectory() as folder:
                process.run(_carry(Path(folder), launched(shrink), found[name]))
        if not found[name]:
            raise RuntimeError(f"nothing was seen of {name}: it was over before the first look")
    return table({name: _shares(spent) for name, spent in found.items()})


def table(shares: dict[str, Counter[str]]) -> str:
    """The modules that have most over all workloads, each by name, and the rest as a sum."""
    total: Counter[str] = sum(shares.values(), Counter())
    named = [module for module, _ in total.most_common(SHOWN)]
    lines = [f"| % of the time in | {' | '.join(shares)} |", f"|---|{'---:|' * len(shares)}"]
    for module in named:
        lines.append(f"| {module} | {' | '.join(f'{each[module]:.1f}' for each in shares.values())} |")
    rest = (each.total() - sum(each[module] for module in named) for each in shares.values())
    return "\n".join([*lines, f"| all else | {' | '.join(f'{share:.1f}' for share in rest)} |", ""])


def _shares(spent: Counter[str]) -> Counter[str]:
    return Counter({module: 100 * secs / spent.total() for module, secs in spent.items()})


async def _carry(folder: Path, launched: list[Json], spent: Counter[str]) -> None:
    async with inside.opened(folder) as app:
        with _looking(spent):
            await asyncio.gather(*(inside.run(app, flow) for flow in launched))


@contextmanager
def _looking(spent: Counter[str]) -> Generator[None]:
    last = time.perf_counter()

    def look(number: int, frame: FrameType | None) -> None:
        nonlocal last
        now = time.perf_counter()  # what C kept from being looked at counts as long as it took, not once
        spent[_place(frame)] += now - last
        last = now

    before = signal.signal(signal.SIGALRM, look)
    signal.setitimer(signal.ITIMER_REAL, LOOK_SECS, LOOK_SECS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def _place(frame: FrameType | None) -> str:
    """The module in which a look finds the process."""
    if frame is None:
        return "the event loop"
    file, name = frame.f_code.co_filename, frame.f_code.co_name
    if "/refold/" not in file:
        return "the step's function" if "/bench/" in file else "the event loop"
    module = file.rpartition("/refold/")[2]
    return "store/sqlite.py, its commits" if (module, name) == ("store/sqlite.py", "_apply") else module
