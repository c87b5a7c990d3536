"""`scripts/bench attach`: what it costs to come back to a Session, and that its length has no part in it.

A short Session and one a hundred times as long are asked in turn, so that a machine with neighbours slows both; medians
over all attaches. The first attach after a boot is told apart, as a fact: it reads what later ones have at hand.
"""

from __future__ import annotations

import asyncio
import statistics
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

from bench.sessions import LONG, SHORT, Attach, Grown, in_process, over_websocket, with_items, with_names

Json = Any
ATTACHES = 150
"""Attaches to each Session in a round."""


class Bar(NamedTuple):
    """A row of the table: which Sessions, through which door, by which form, and its bar in milliseconds, if any."""

    name: str
    grow: Callable[..., Any]
    door: Callable[..., Any]
    form: str
    most_ms: float | None


ROWS = (
    Bar("suffix of 10 events, in process", with_items, in_process, "suffix", 3.0),
    Bar("suffix of 10 events, WebSocket", with_items, over_websocket, "suffix", None),
    Bar("anchored snapshot of 200 items and 10 events, in process", with_names, in_process, "anchored", None),
    Bar("anchored snapshot of 200 items and 10 events, WebSocket", with_names, over_websocket, "anchored", None),
)
MOST_RATIO = 1.3
"""The most that the long Session may cost, in attaches to the short one."""


def measure(rounds: int) -> list[dict[str, Any]]:
    """Attaches `rounds` times over; two dicts a row, one for each length of the Session."""
    return asyncio.run(_measure(rounds))


async def _measure(rounds: int) -> list[dict[str, Any]]:
    figures: list[dict[str, Any]] = []
    for grow in (with_items, with_names):
        sys.stderr.write(f"writing Sessions of {SHORT:,} and {LONG:,} events\n")
        async with _both(grow) as (short, long):
            for row in ROWS:
                if row.grow is grow:
                    figures += await _row(row, short, long, rounds)
    return figures


@asynccontextmanager
async def _both(grow: Callable[..., Any]) -> AsyncIterator[tuple[Grown, Grown]]:
    async with grow(SHORT) as short, grow(LONG) as long:
        yield short, long


async def _row(row: Bar, short: Grown, long: Grown, rounds: int) -> list[dict[str, Any]]:
    sys.stderr.write(f"{row.name}\n")
    took: dict[int, list[float]] = {SHORT: [], LONG: []}
    async with row.door(short) as to_short, row.door(long) as to_long:
        doors: dict[int, Attach] = {SHORT: to_short, LONG: to_long}
        first = {length: 1000 * await door(row.form) for length, door in doors.items()}
        for _ in range(rounds * ATTACHES):
            for length, door in doors.items():
                took[length].append(1000 * await door(row.form))
    middle = {length: statistics.median(each) for length, each in took.items()}
    return [_judged(row, length, middle, first) for length in (SHORT, LONG)]


def _judged(row: Bar, length: int, middle: dict[int, float], first: dict[int, float]) -> dict[str, Any]:
    ratio = middle[length] / middle[SHORT]
    bars = [] if row.most_ms is None else [(middle[length], row.most_ms, "ms")]
    bars += [] if length == SHORT else [(ratio, MOST_RATIO, "× short")]
    return {
        "row": f"{row.name}, {length:,} events",
        "median": round(middle[length], 3),
        "unit": "ms",
        "ratio": round(ratio, 2),
        "bar": ", ".join(f"≤ {most} {unit}" for _, most, unit in bars) or "none",
        "clears": all(found <= most for found, most, _ in bars),
        "first_after_boot": round(first[length], 3),
    }
