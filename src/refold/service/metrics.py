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

    def refused(self, error: Fenced | StoreError) -> None:
        """Counts a write that was not acknowledged."""
        self.commits["fenced" if isinstance(error, Fenced) else "failed"] += 1

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
        began = self._clock.monotonic()
        try:
            seqs = await self._store.commit(step, also)
        except (Fenced, StoreError) as error:
            self._metrics.refused(error)
            raise
        self._metrics.committed(self._clock.monotonic() - began)
        for end in step.ends:
            if end.ordinal is not None:
                self._metrics.steps[end.status] += 1
        return seqs

    async def write(self, fn: Callable[[Any], T]) -> T:
        """As the inner store's."""
        began = self._clock.monotonic()
        try:
            written = await self._store.write(fn)
        except (Fenced, StoreError) as error:
            self._metrics.refused(error)
            raise
        self._metrics.committed(self._clock.monotonic() - began)
        return written
