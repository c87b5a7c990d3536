"""What a scrape of `/metrics` sees, as Prometheus reads it: what was counted, and how things stand at this moment.

Labels are words from closed lists, never ids: a metric with a label per Run grows for ever. Each App is told by itself,
so that two in one process do not mix.

Not here: counting (`service.metrics`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from prometheus_client import CONTENT_TYPE_PLAIN_0_0_4, CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from refold import __version__
from refold.service.metrics import COMMIT_SECS, Metrics

CONTENT_TYPE: Final = CONTENT_TYPE_PLAIN_0_0_4


def render(metrics: Metrics, status: Mapping[str, Any]) -> bytes:
    """The text of a scrape. `status` is what `App.status` says at this moment."""
    registry = CollectorRegistry()
    registry.register(_Told(metrics, status))
    ProcessCollector(registry=registry)
    return generate_latest(registry)


class _Told(Collector):
    """What one scrape tells."""

    def __init__(self, metrics: Metrics, status: Mapping[str, Any]) -> None:
        self._metrics = metrics
        self._status = status

    def collect(self) -> Iterator[Metric]:
        yield from _counted(self._metrics)
        yield from _standing(self._metrics, self._status)
        yield InfoMetricFamily("refold", "This server", {"version": __version__})


def _counted(metrics: Metrics) -> Iterator[Metric]:
    yield CounterMetricFamily("refold_reader_gaps", "Readers that fell too far behind and jumped", metrics.reader_gaps)
    yield CounterMetricFamily(
        "refold_notices_dropped", "Broadcasts that a slow connection was not told", metrics.notices_dropped
    )
    yield _by("result", "refold_requests_told", "Requests that a person was told of, by result", metrics.requests_told)
    yield _by("result", "refold_commits", "Writes to the store, by result", metrics.commits)
    yield _by("outcome", "refold_steps", "Attempts that ended, by outcome", metrics.steps)
    secs = HistogramMetricFamily("refold_commit_seconds", "From a write to its acknowledgement")
    bounds = [*map(floatToGoString, COMMIT_SECS), "+Inf"]
    secs.add_metric([], [*zip(bounds, metrics.commits_within(), strict=True)], metrics.commit_secs)
    yield secs


def _standing(metrics: Metrics, status: Mapping[str, Any]) -> Iterator[Metric]:
    """What is not counted as it happens but looked up when it is asked for."""
    runs = GaugeMetricFamily("refold_runs", "Runs in the store, by status", labels=["status"])
    for name, count in status["runs"].items():
        runs.add_metric([name], count)
    yield runs
    yield GaugeMetricFamily("refold_open_connections", "Connections that speak MSP", metrics.connections)
    sweep = status["stale_run_sweep"]
    yield CounterMetricFamily("refold_sweep_faults", "Sweeps that failed", sweep["faults"])
    yield CounterMetricFamily("refold_sweep_interrupted", "Runs that a sweep interrupted", sweep["interrupted"])


def _by(label: str, name: str, what: str, counts: Mapping[str, int]) -> Metric:
    family = CounterMetricFamily(name, what, labels=[label])
    for value, count in counts.items():
        family.add_metric([value], count)
    return family
