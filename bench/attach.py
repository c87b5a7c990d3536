"""`scripts/bench attach`: what it costs to come back to a Session, and that its length has no part in it.

A short Session and longer ones are asked in turn, so that a machine with neighbours slows all of them; medians over all
attaches. The first attach after a boot reads what later ones have at hand. It is told apart, as a fact; where nothing
fits the budget it is judged, in a row of its own: that answer must not need what it does not serve.
"""

from __future__ import annotations

import asyncio
import statistics
import sys
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, NamedTuple

from bench.sessions import (
    ANCHORED,
    LONG,
    NONE,
    SHORT,
    SUFFIX_FORM,
    Attach,
    Grown,
    in_process,
    over_websocket,
    with_items,
    with_names,
)

Json = Any
ATTACHES = 150
"""Attaches to each Session in a round."""
BOOTS = 5
"""Boots in a round, where first attaches are measured."""


class Bar(NamedTuple):
    """A row of the table: which Sessions, through which door, by which form, and its bar in milliseconds, if any."""

    name: str
    grow: Callable[..., Any]
    door: Callable[..., Any]
    form: str
    most_ms: float | None
    is_first: bool = False
    """Each attach is the first after a boot."""


ROWS = (
    Bar("suffix of 10 events, in process", with_items, in_process, SUFFIX_FORM, 2.0),
    Bar("suffix of 10 events, WebSocket", with_items, over_websocket, SUFFIX_FORM, 5.0),
    Bar("nothing fits the budget, in process", with_items, in_process, NONE, None),
    Bar("nothing fits the budget, WebSocket", with_items, over_websocket, NONE, None),
    Bar("nothing fits the budget, first after a boot", with_items, in_process, NONE, None, True),
    Bar("anchored snapshot of 200 items and 10 events, in process", with_names, in_process, ANCHORED, None),
    Bar("anchored snapshot of 200 items and 10 events, WebSocket", with_names, over_websocket, ANCHORED, None),
)
MOST_RATIO = 1.3
"""The most that a long Session may cost, in attaches to the short one."""


def measure(rounds: int, events: int = LONG) -> list[dict[str, Any]]:
    """Attaches `rounds` times over; a dict for each row and length of the Session. The longest has so many `events`."""
    return asyncio.run(_measure(rounds, sorted({SHORT, min(LONG, events), events})))


async def _measure(rounds: int, lengths: Sequence[int]) -> list[dict[str, Any]]:
    figures: list[dict[str, Any]] = []
    for grow in (with_items, with_names):
        async with _all(grow, lengths) as sessions:
            for row in ROWS:
                if row.grow is grow:
                    figures += await _row(row, sessions, rounds)
    return figures


@asynccontextmanager
async def _all(grow: Callable[..., Any], lengths: Sequence[int]) -> AsyncGenerator[dict[int, Grown]]:
    async with AsyncExitStack() as stack:
        sessions: dict[int, Grown] = {}
        for length in lengths:
            begun = time.perf_counter()
            sys.stderr.write(f"writing a Session of {length:,} events {grow.__name__.replace('_', ' ')}\n")
            sessions[length] = await stack.enter_async_context(grow(length))
            sys.stderr.write(f"  {time.perf_counter() - begun:.0f} s\n")
        yield sessions


async def _row(row: Bar, sessions: dict[int, Grown], rounds: int) -> list[dict[str, Any]]:
    sys.stderr.write(f"{row.name}\n")
    took: dict[int, list[float]] = {length: [] for length in sessions}
    first: dict[int, float] = {}
    for boot in range(rounds * BOOTS if row.is_first else 1):
        async with AsyncExitStack() as stack:
            doors: dict[int, Attach] = {}
            for length in sorted(sessions, reverse=boot % 2 == 1):  # the first of them pays for the others
                doors[length] = await stack.enter_async_context(row.door(sessions[length], row.form))
            first = {length: 1000 * await attach() for length, attach in doors.items()}
            for length in sessions if row.is_first else ():
                took[length].append(first[length])
            for _ in range(0 if row.is_first else rounds * ATTACHES):
                for length, attach in doors.items():
                    took[length].append(1000 * await attach())
    middle = {length: statistics.median(each) for length, each in took.items()}
    return [_judged(row, length, middle, first) for length in sessions]


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
