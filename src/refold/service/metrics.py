"""What one App counts as it happens, in plain numbers: the hot path pays for no lock and no label.

Not here: what a scrape makes of it (`server.scrape`).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from itertools import accumulate
from typing import Any, Final, TypeVar

from refold.engine.clock import Clock
from refold.errors import Fenced, StoreError
from refold.records import AttemptStatus
from refold.store import StepCommit, Store

T = TypeVar("T")

COMMIT_SECS: Final = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)
"""The upper bounds within which commits are counted; there is one more count, of those above."""


class Metrics:
    """The counts of one App. `connections` is kept by whoever opens and closes them."""

    def __init__(self) -> None:
        self.commits = {"ok": 0, "fenced": 0, "failed": 0}
        self.steps = dict.fromkeys(map(str, AttemptStatus), 0)
        self.commit_secs = 0.0
        self._within = [0] * (len(COMMIT_SECS) + 1)
        self.reader_gaps = 0
        self.notices_dropped = 0
        self.requests_told = {"ok": 0, "failed": 0}
        self.connections = 0

    def committed(self, secs: float) -> None:
        """Counts a write that was acknowledged after `secs`."""
        self.commits["ok"] += 1
        self._within[bisect_left(COMMIT_SECS, secs)] += 1
        self.commit_secs += secs

    def commits_within(self) -> list[int]:
        """How many took no longer than each of `COMMIT_SECS`, and how many there are."""
        return [*accumulate(self._within)]


class MeteredStore:
    """A store whose writes are counted and timed; what it does is the inner one's business."""

    def __init__(self, store: Store, metrics: Metrics, clock: Clock) -> None:
        self._store = store
        self._metrics = metrics
        self._clock = clock
        self.read = store.read
        self.on_commit = store.on_commit
        self.close = store.close

    async def commit(self, step: StepCommit, also: Callable[[Any], object] | None = None) -> tuple[int, ...]:
        """As the inner store's; the attempts that end in it are counted once they are durable."""
        with _Timed(self._metrics, self._clock):
            seqs = await self._store.commit(step, also)
        for end in step.ends:
            if end.ordinal is not None:
                self._metrics.steps[end.status] += 1
        return seqs

    async def write(self, fn: Callable[[Any], T]) -> T:
        """As the inner store's."""
        with _Timed(self._metrics, self._clock):
            return await self._store.write(fn)


class _Timed:
    """Times one write, and counts how it ended."""

    __slots__ = ("_began", "_clock", "_metrics")

    def __init__(self, metrics: Metrics, clock: Clock) -> None:
        self._metrics, self._clock = metrics, clock
        self._began = clock.monotonic()

    def __enter__(self) -> None:
        """Its time has begun already."""

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if error is None:
            self._metrics.committed(self._clock.monotonic() - self._began)
        elif isinstance(error, Fenced):
            self._metrics.commits["fenced"] += 1
        elif isinstance(error, StoreError):
            self._metrics.commits["failed"] += 1
