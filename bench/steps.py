"""`scripts/bench steps`: durable steps per second, against raw one-row FULL commits in the same run.

Rounds are interleaved, and a raw probe stands before each row: on a machine with neighbours absolute figures move by a
factor, ratios within a round do not. Medians over the rounds.
"""

from __future__ import annotations

import asyncio
import statistics
import sys
from collections.abc import Callable, Coroutine
from typing import Any, NamedTuple

from bench.workloads import Sample, growing_ctx, many_runs, raw_commits, sequential


class Bar(NamedTuple):
    """A row of the table: what is run, what it is divided by, and the bar it has to clear."""

    name: str
    work: Callable[[], Coroutine[Any, Any, Sample]]
    per_raw: bool
    bar: float
    at_least: bool


ROWS = (
    Bar("1,000 sequential steps", sequential, True, 0.35, True),
    Bar("200 Runs × 10 steps", many_runs, True, 1.5, True),
    Bar("ctx grows by 2,000 × 1 KiB: disk", growing_ctx, False, 4.0, False),
)


def measure(rounds: int) -> list[dict[str, Any]]:
    """Runs all rows `rounds` times, interleaved; a dict a row, with its median and whether it clears its bar."""
    figures: dict[str, list[tuple[Sample, float]]] = {row.name: [] for row in ROWS}
    for n in range(rounds):
        for row in ROWS:
            sys.stderr.write(f"round {n + 1} of {rounds}: {row.name}\n")
            raw = raw_commits().value
            sample = asyncio.run(row.work())
            figures[row.name].append((sample, sample.value / raw if row.per_raw else sample.value))
    return [_judged(row, figures[row.name]) for row in ROWS]


def _judged(row: Bar, samples: list[tuple[Sample, float]]) -> dict[str, Any]:
    ratio = statistics.median(ratio for _, ratio in samples)
    return {
        "row": row.name,
        "median": round(statistics.median(sample.value for sample, _ in samples), 2),
        "unit": samples[0][0].unit,
        "ratio": round(ratio, 2),
        "bar": f"{'≥' if row.at_least else '≤'} {row.bar}" + (" × raw" if row.per_raw else ""),
        "clears": ratio >= row.bar if row.at_least else ratio <= row.bar,
    }
