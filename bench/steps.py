"""`scripts/bench steps`: durable steps against raw one-row FULL commits of the same moment, and what they leave behind.

The short form of `speed`, without anybody else: what every change can be held against in a minute.
"""

from __future__ import annotations

import statistics
import sys
from typing import Any, NamedTuple

from bench import contestants
from bench.contestants import REFOLD
from bench.sample import payload


class Bar(NamedTuple):
    """A row: the work, its size and figure, what the figure is divided by (None: the raw rate), and its bar."""

    name: str
    work: str
    size: int
    figure: str
    unit: str
    by: float | None
    bar: float
    at_least: bool


CTX: int = 2_000
ROWS = (
    Bar("1,000 sequential steps", "seq", 1_000, "per_s", "steps/s", None, 0.35, True),
    Bar("200 Runs × 10 steps", "many", 200, "per_s", "steps/s", None, 1.5, True),
    Bar("disk of a ctx that grows", "ctx", CTX, "mb", "MB", CTX * len(payload(0)) / 1e6, 4.0, False),
)


def measure(rounds: int) -> list[dict[str, Any]]:
    """Runs all rows `rounds` times, interleaved; a dict a row, with its median and whether it clears its bar."""
    refold = {work: each for each in contestants.ours() if each.name == REFOLD for work in each.works}
    found: dict[str, list[tuple[float, float]]] = {row.name: [] for row in ROWS}
    for n in range(rounds):
        for row in ROWS:
            sys.stderr.write(f"round {n + 1} of {rounds}: {row.name}\n")
            raw = contestants.raw_commits()
            value = contestants.measure(refold[row.work], row.work, row.size)[row.figure]
            found[row.name].append((value, value / (row.by or raw)))
    return [_judged(row, found[row.name]) for row in ROWS]


def _judged(row: Bar, samples: list[tuple[float, float]]) -> dict[str, Any]:
    ratio = statistics.median(ratio for _, ratio in samples)
    return {
        "row": row.name,
        "median": round(statistics.median(value for value, _ in samples), 2),
        "unit": row.unit,
        "ratio": round(ratio, 2),
        "bar": f"{'≥' if row.at_least else '≤'} {row.bar} × " + ("raw" if row.by is None else "the outputs"),
        "clears": ratio >= row.bar if row.at_least else ratio <= row.bar,
    }
