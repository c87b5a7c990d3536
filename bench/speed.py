"""`scripts/bench speed`: all contestants, shuffled and interleaved in one run, and refold judged against the others.

Every measurement is a process of its own on a fresh folder. Everybody's measurements of one work stand together, and a
raw probe before each, so that figures of a noisy moment can be told apart. A row is compared round by round: on a
machine with neighbours absolute figures move by a factor, ratios within a round much less. Medians over the rounds.
"""

from __future__ import annotations

import os
import platform
import random
import sqlite3
import subprocess
import sys
import time
from collections.abc import Sequence
from statistics import median
from typing import Any, NamedTuple

import apsw

from bench import contestants, peers
from bench.contestants import BARE, HTTP, REFOLD, Contestant
from bench.report import short
from bench.sample import Figures
from bench.table import PEERS, ROWS, Bar, Row, clears, times

Json = Any


class Task(NamedTuple):
    """One measurement to make; rows that show figures of the same one share it."""

    who: Contestant
    work: str
    size: int


class Sample(NamedTuple):
    """One measurement that was made, in which round, and how fast the disk was just before it."""

    round: int
    who: str
    work: str
    size: int
    raw_per_s: float
    figures: Figures
    fault: str | None = None


def measure(
    rows: Sequence[Row], names: Sequence[str], rounds: int, *, shrink: int = 1, minutes: float | None = None
) -> Json:
    """The whole report as JSON: the machine, the rows with their verdicts, and every sample.

    `names` are the peers; one that cannot be had is named in `not_run` with the reason, and in `cannot` what one that
    runs cannot do. `shrink` divides the sizes.
    After so many `minutes` no measurement is begun: what is left out is not run.
    """
    until = None if minutes is None else time.monotonic() + 60 * minutes
    rows = [row._replace(size=max(1, row.size // shrink)) for row in rows]
    who, not_run = contestants.ours(), dict[str, str]()
    for name in names:
        try:
            who.append(contestants.peer(name))
        except peers.PeerMissing as error:
            not_run[name] = str(error)
            sys.stderr.write(f"{name} is NOT RUN: {error}\n")
    samples = [sample for n in range(rounds) for sample in _round(n, _tasks(rows, who), until)]
    return {
        "machine": machine(),
        "rounds": rounds,
        "shrink": shrink,
        "peers": {each.name: list(each.made_of) for each in who if each.made_of},
        "not_run": not_run,
        "cannot": {each.name: cannot for each in who if (cannot := _cannot(rows, each))},
        "rows": [judged(row, samples) for row in rows],
        "samples": [sample._asdict() for sample in samples],
    }


def _tasks(rows: Sequence[Row], who: Sequence[Contestant]) -> list[Task]:
    found = {Task(each, row.work, row.size): None for row in rows for each in who if each.does(row.work, row.size)}
    return list(found)


def _cannot(rows: Sequence[Row], who: Contestant) -> dict[str, str]:
    """The titles of the rows that are beyond somebody, each with the reason."""
    return {row.title: why for row in rows if (why := who.why_not(row.work, row.size)) is not None}


def _round(n: int, tasks: list[Task], until: float | None) -> list[Sample]:
    made: list[Sample] = []
    for at, task in enumerate(_order(n, tasks), 1):
        if until is not None and time.monotonic() > until:
            sys.stderr.write(f"round {n + 1}: time is up, {len(tasks) - at + 1} measurements are not run\n")
            break
        raw = contestants.raw_commits()
        sys.stderr.write(f"round {n + 1}, {at} of {len(tasks)}: {task.who.name}, {task.work} {task.size:,}")
        figures, fault = Figures(), None
        try:
            figures = contestants.measure(task.who, task.work, task.size)
        except contestants.Failed as error:
            fault = str(error)
        said = fault or ", ".join(f"{name} {value:,.4g}" for name, value in figures.items())
        sys.stderr.write(f": {said} (raw {raw:,.0f})\n")
        made.append(Sample(n, task.who.name, task.work, task.size, raw, figures, fault))
    return made


def _order(n: int, tasks: Sequence[Task]) -> list[Task]:
    """The order of a round, another one in each and the same at every run: works are shuffled, and who does them.

    Those who do the same work come one after the other. Where a neighbour takes the disk for a minute, a ratio between
    the first and the last measurement of a round says what the neighbour did.
    """
    dice = random.Random(n)
    shuffled = dice.sample(tasks, len(tasks))
    works = list(dict.fromkeys((task.work, task.size) for task in shuffled))
    return sorted(shuffled, key=lambda task: works.index((task.work, task.size)))


def judged(row: Row, samples: Sequence[Sample]) -> Json:
    """A row: everybody's median, and every bar with what was found and whether that clears it (None: not run)."""
    mine = [each for each in samples if (each.work, each.size) == (row.work, row.size) and row.figure in each.figures]
    by_round: dict[int, dict[str, float]] = {}
    for each in mine:
        by_round.setdefault(each.round, {})[each.who] = each.figures[row.figure]
    names = sorted({each.who for each in mine}, key=_column)
    return {
        "key": row.key,
        "title": row.title,
        "unit": row.unit,
        "places": row.places,
        "more_is_better": row.more_is_better,
        "medians": {name: median(found[name] for found in by_round.values() if name in found) for name in names},
        "raw_per_s": median(each.raw_per_s for each in mine) if mine else None,
        "bars": [_verdict(row, bar, list(by_round.values())) for bar in row.bars],
    }


def _verdict(row: Row, bar: Bar, rounds: Sequence[dict[str, float]]) -> Json:
    ratios = [
        times(found[bar.who], other)
        for found in rounds
        if bar.who in found and (other := _other(row, bar, found)) is not None
    ]
    ratio = median(ratios) if ratios else None
    against = f"× {bar.against}" if bar.against else row.unit
    sign = "≥" if row.more_is_better else "≤"
    return {
        "bar": f"{bar.who} {sign} {short(bar.factor)} {against}",
        "found": ratio,
        "clears": None if ratio is None else clears(row, bar, ratio),
    }


def _other(row: Row, bar: Bar, found: dict[str, float]) -> float | None:
    """What a figure is divided by; None if nobody ran it."""
    if bar.against is None:
        return 1.0
    if bar.against != PEERS:
        return found.get(bar.against)
    theirs = [figure for name, figure in found.items() if name not in (REFOLD, HTTP, BARE)]
    return (max if row.more_is_better else min)(theirs, default=None)


def _column(name: str) -> tuple[int, str]:
    """Ours first, then the bare log, then the peers by name."""
    order = (REFOLD, HTTP, BARE)
    return (order.index(name) if name in order else len(order), name)


def machine() -> Json:
    """What the figures are of."""
    git = ["git", "rev-parse", "--short", "HEAD"]
    commit = subprocess.run(git, capture_output=True, text=True, check=False, cwd=contestants.ROOT).stdout.strip()
    return {
        "commit": commit or None,
        "cores": os.cpu_count(),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "sqlite": {"refold": apsw.sqlite_lib_version(), "bare log": sqlite3.sqlite_version},
    }


KEYS = [row.key for row in ROWS]
