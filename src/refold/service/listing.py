"""Which Runs a list shows, and how it finds them without holding the store for long.

Status and Task are members of a Run's row, so the store finds them. Labels and texts are not: those Runs are looked
through, newest first, in slices, each in a read of its own. Between two slices everybody else gets their turn, and what
a Run costs to look at does not depend on how large its Blueprint or its result is.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import cache
from typing import Any, Final

import msgspec

from refold.canonical import decode
from refold.records import RunRecord, RunStatus, TaskRecord
from refold.store import Reader, Store, expanded, with_launch

SLICE: Final = 250
"""Runs that are looked at in one read."""


class Wanted(msgspec.Struct, frozen=True, kw_only=True):
    """What a Run must have to be shown; all of it. A label without a value may have any."""

    status: RunStatus | None = None
    task_id: str | None = None
    labels: tuple[tuple[str, str | None], ...] = ()
    q: str = ""

    @property
    def looks_inside(self) -> bool:
        """Whether the store alone cannot tell."""
        return bool(self.labels or self.q)


EVERY: Final = Wanted()


async def find_runs(store: Store, wanted: Wanted, limit: int, before: int | None = None) -> list[RunRecord]:
    """The newest Runs first, those made before the integer key `before`, each with its whole result."""
    found: list[RunRecord] = []
    size = SLICE if wanted.looks_inside else limit
    looked, fitting = await store.read(lambda reader: _slice(reader, wanted, size, before))
    found += fitting
    while len(looked) == size and len(found) < limit:
        await asyncio.sleep(0)
        last = looked[-1].n
        looked, fitting = await store.read(lambda reader, last=last: _slice(reader, wanted, size, last))
        found += fitting
    return await store.read(lambda reader: [whole(reader, run) for run in found[:limit]])


def whole(reader: Reader, run: RunRecord) -> RunRecord:
    """The record with its launch snapshot and its result, however long they are, in it."""
    return msgspec.structs.replace(with_launch(reader, run), result_json=expanded(reader, run.result_json))


def _slice(reader: Reader, wanted: Wanted, size: int, before: int | None) -> tuple[list[RunRecord], list[RunRecord]]:
    """The next Runs, and those of them that fit."""
    equals: dict[str, Any] = {} if wanted.status is None else {"status": wanted.status}
    if wanted.task_id is not None:
        tasks = reader.find(TaskRecord, task_id=wanted.task_id)
        if not tasks:
            return [], []
        equals["task"] = tasks[0].n
    looked = reader.find(RunRecord, newest_first=True, before=before, limit=size, **equals)
    if not wanted.looks_inside:
        return looked, looked
    return looked, list(filter(_test(reader, wanted), looked))


def _test(reader: Reader, wanted: Wanted) -> Callable[[RunRecord], bool]:
    """Whether a Run has the labels, and the text in its id, goal, Blueprint id or a label value."""
    text = wanted.q.casefold()

    @cache
    def goal(task: int) -> str:
        record = reader.get(TaskRecord, task)
        return "" if record is None else record.goal

    def fits(run: RunRecord) -> bool:
        labels: dict[str, str] = decode(run.labels_json)
        if any(name not in labels or value not in (None, labels[name]) for name, value in wanted.labels):
            return False
        if not text:
            return True
        named = pinned(with_launch(reader, run))
        texts = (run.run_id, goal(run.task), (named and named.id) or "", *labels.values())
        return any(text in each.casefold() for each in texts)

    return fits


class Pinned(msgspec.Struct, frozen=True):
    """Which Blueprint a Run runs; one that came inline has no id."""

    id: str | None
    version: str


class _Launch(msgspec.Struct):
    """Of a launch snapshot only what is looked for: the Blueprint's body is passed over, not built."""

    blueprint: Pinned


_launch: Final = msgspec.json.Decoder(_Launch)


def pinned(run: RunRecord) -> Pinned | None:
    """The name of the Run's Blueprint, from a record with its launch snapshot in it; None if it has none."""
    return None if run.input_json is None else _launch.decode(run.input_json).blueprint
