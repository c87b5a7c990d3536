"""The rows of the speed table: which work at which size, which figure of it is shown, and the bars it has to clear.

A bar compares refold with somebody in the same round, so that what slows the machine slows both; the verdict is about
the median over the rounds.
"""

from __future__ import annotations

from typing import NamedTuple

from bench.contestants import BARE, HTTP, REFOLD

PEERS = "best peer"


class Bar(NamedTuple):
    """`who` against somebody's figure of the same row (`against`), or against 1 of its unit (None)."""

    factor: float
    against: str | None = None
    who: str = REFOLD


class Row(NamedTuple):
    """A line of the table. `more_is_better` says which way its figure and all its bars point."""

    key: str
    title: str
    work: str
    size: int
    figure: str
    unit: str
    more_is_better: bool
    bars: tuple[Bar, ...] = ()
    places: int = 0


_STEPS = (Bar(0.70, BARE), Bar(1.8, PEERS), Bar(4, "dbos"))
MORE, LESS = True, False

ROWS = (
    Row("seq", "1,000 sequential steps", "seq", 1_000, "per_s", "steps/s", MORE, _STEPS),
    Row("seq10k", "10,000 sequential steps", "seq", 10_000, "per_s", "steps/s", MORE, _STEPS),
    Row("flat", "the last 1,000 of 10,000", "seq", 10_000, "last_to_first", "× the first", MORE, (Bar(0.9),), 2),
    Row("many", "200 Runs × 10 steps", "many", 200, "per_s", "steps/s", MORE, (Bar(0.45, BARE), Bar(8, PEERS))),
    Row("fan", "fan-out of 200", "fan", 200, "ms", "ms", LESS, (Bar(3, BARE), Bar(0.4, PEERS)), 1),
    Row("lat", "one step, p50", "lat", 200, "p50", "ms", LESS, (Bar(3, BARE), Bar(6, None, HTTP)), 2),
    Row("lat99", "one step, p99", "lat", 200, "p99", "ms", LESS, (), 2),
    Row("ctx", "ctx grows by 2,000 × 1 KiB", "ctx", 2_000, "secs", "s", LESS, (Bar(2.5, BARE), Bar(1 / 15, PEERS)), 2),
    Row("ctxdisk", "its disk", "ctx", 2_000, "mb", "MB", LESS, (Bar(2.5, BARE),), 1),
    Row("resume", "resume at 5,000 of 10,000", "resume", 5_000, "secs", "s", LESS, (Bar(0.6), Bar(0.5, PEERS)), 2),
    Row("again", "steps that it ran again", "resume", 5_000, "ran_again", "steps", LESS, (Bar(0),)),
    Row("scan", "replay scan of 5,000", "resume", 5_000, "scan_per_s", "steps/s", MORE, (Bar(100_000),)),
    Row("told1", "events told to 1 reader", "told", 1, "per_s", "events/s", MORE),
    Row("told100", "events told to 100 readers", "told", 100, "per_s", "events/s", MORE),
    Row("told1000", "events told to 1,000 readers", "told", 1_000, "per_s", "events/s", MORE, (Bar(50_000),)),
    Row("told99", "their delay, p99", "told", 1_000, "p99", "ms", LESS, (Bar(250),)),
    Row("reader", "memory of a reader that waits", "told", 1_000, "kib", "KiB", LESS, (Bar(64),), 1),
    Row("client", "memory of a connected client", "clients", 200, "kib", "KiB", LESS, (Bar(64, None, HTTP),), 1),
    Row("idle", "memory of a Run that waits", "idle", 500, "kib", "KiB", LESS, (), 1),
    Row("events", "memory to serve 1,000,000 events", "events", 10**6, "mib", "MiB", LESS, (Bar(64, None, HTTP),), 1),
    Row("eventsdisk", "their disk", "events", 10**6, "mb", "MB", LESS),
    Row("wrote", "memory to write them, as 500,000 items", "wrote", 10**6, "mib", "MiB", LESS, (Bar(64),), 1),
    Row("help", "refold --help", "start", 5, "help_ms", "ms", LESS),
    Row("serve", "refold serve, until /healthz", "start", 5, "healthz_ms", "ms", LESS),
    Row("cli", "refold ls, p50", "cli", 10, "p50", "ms", LESS),
)


def times(figure: float, other: float) -> float:
    """How many times `other` a figure is; infinitely many of nothing, unless it is nothing itself."""
    if other == 0:
        return 0.0 if figure == 0 else float("inf")
    return figure / other


def clears(row: Row, bar: Bar, ratio: float) -> bool:
    """Whether a ratio is good enough."""
    return ratio >= bar.factor if row.more_is_better else ratio <= bar.factor
