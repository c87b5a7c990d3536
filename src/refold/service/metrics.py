"""What a scrape sees: counters that grow with every commit, and how things stand at the moment of asking.

The hot path counts in plain numbers, which a scrape collects: it pays for no lock and no label. Labels are
words from closed lists, never ids: a metric with a label per Run grows for ever. Each App has a registry of its own, so
that two in one process do not mix.

Not here: how a scrape is answered (`server.api.about`).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping
from itertools import accumulate
from typing import Any, Final, TypeVar

from prometheus_client import CollectorRegistry, Counter, Info, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from refold import __version__
from refold.engine.clock import Clock
from refold.errors import Fenced, StoreError
from refold.records import AttemptStatus
from refold.store import StepCommit, Store

T = TypeVar("T")

COMMIT_SECS: Final = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)


class Metrics:
    """The instruments of one App. `connections` is kept by whoever opens and closes them."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self.commits = {"ok": 0, "fenced": 0, "failed": 0}
        self.steps = dict.fromkeys(map(str, AttemptStatus), 0)
        self._commits_within = [0] * (len(COMMIT_SECS) + 1)
        self._commit_secs = 0.0
        self.reader_gaps = Counter(
            "refold_reader_gaps", "Readers that fell too far behind and jumped", registry=self._registry
        )
        self.notices_dropped = Counter(
            "refold_notices_dropped", "Broadcasts that a slow connection was not told", registry=self._registry
        )
        told = Counter(
            "refold_requests_told", "Requests that a person was told of, by result", ["result"], registry=self._registry
        )
        self.requests_told = {result: told.labels(result) for result in ("ok", "failed")}
        self.connections = 0
        self._standing = _Standing()
        self._registry.register(self._standing)
        self._registry.register(_Counted(self))
        Info("refold", "This server", registry=self._registry).info({"version": __version__})
        ProcessCollector(registry=self._registry)

    def committed(self, secs: float) -> None:
        """Counts a write that was acknowledged after `secs`."""
        self.commits["ok"] += 1
        self._commits_within[bisect_left(COMMIT_SECS, secs)] += 1
        self._commit_secs += secs

    def counted(self) -> Iterator[Metric]:
        """What was counted in plain numbers."""
        commits = CounterMetricFamily("refold_commits", "Writes to the store, by result", labels=["result"])
        for result, count in self.commits.items():
            commits.add_metric([result], count)
        yield commits
        steps = CounterMetricFamily("refold_steps", "Attempts that ended, by outcome", labels=["outcome"])
        for outcome, count in self.steps.items():
            steps.add_metric([outcome], count)
        yield steps
        secs = HistogramMetricFamily("refold_commit_seconds", "From a write to its acknowledgement")
        bounds = [*map(floatToGoString, COMMIT_SECS), "+Inf"]
        secs.add_metric([], [*zip(bounds, accumulate(self._commits_within), strict=True)], self._commit_secs)
        yield secs

    def render(self, status: Mapping[str, Any]) -> bytes:
        """The text of a scrape. `status` is what `App.status` says at this moment."""
        self._standing.status = {**status, "connections": self.connections}
        return generate_latest(self._registry)


class _Counted(Collector):
    """What the hot path counts."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics

    def collect(self) -> Iterator[Metric]:
        return self._metrics.counted()


class _Standing(Collector):
    """What is not counted as it happens but looked up when it is asked for."""

    def __init__(self) -> None:
        self.status: Mapping[str, Any] = {}

    def describe(self) -> Iterator[Metric]:
        """Nothing: what this collects has no name that another could take."""
        return iter(())

    def collect(self) -> Iterator[Metric]:
        runs = GaugeMetricFamily("refold_runs", "Runs in the store, by status", labels=["status"])
        for status, count in self.status["runs"].items():
            runs.add_metric([status], count)
        yield runs
        yield GaugeMetricFamily("refold_open_connections", "Connections that speak MSP", self.status["connections"])
        sweep = self.status["stale_run_sweep"]
        yield CounterMetricFamily("refold_sweep_faults", "Sweeps that failed", sweep["faults"])
        yield CounterMetricFamily("refold_sweep_interrupted", "Runs that a sweep interrupted", sweep["interrupted"])


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
