"""Metrics of worker processes for Prometheus: run times, steps, waits, busy slots, store calls, lag of lease renewals.

`stoker work --metrics-port` serves them; the supervisor adds up what its processes measured.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import reduce
from itertools import accumulate

from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
    SummaryMetricFamily,
)
from prometheus_client.registry import Collector

from stoker.model.measures import BOUNDS, Histogram, Measures
from stoker.observe.metrics import (
    JOB_DURATION,
    JOB_WAIT,
    RENEWAL_LAG,
    SLOTS_BUSY,
    STEPS,
    STORE_CALL,
    Measured,
    prometheus_name,
)


class ProcessCollector(Collector):
    """Collects what `measures` returns when a scrape asks for it."""

    def __init__(self, measures: Callable[[], Measures]) -> None:
        self._measures = measures

    def collect(self) -> Iterator[Metric]:
        """Yield every metric."""
        return families(self._measures())


class MetricsPort:
    """An HTTP endpoint in a thread of its own."""

    def __init__(self, port: int, host: str, measures: Callable[[], Measures]) -> None:
        registry = CollectorRegistry(auto_describe=False)
        registry.register(ProcessCollector(measures))
        self._server, self._thread = start_http_server(port, host, registry)
        self.address = f"http://{host}:{self._server.server_port}/metrics"

    def close(self) -> None:
        """Stop listening."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def families(found: Measures) -> Iterator[Metric]:
    """Every metric with its values."""
    runs = _histogram(JOB_DURATION)
    ends = SummaryMetricFamily(
        "stoker_job_outcome_seconds", "Runs by how they ended, and how long they took", labels=["kind", "outcome"]
    )
    for kind, outcomes in sorted(found.runs.items()):
        # A histogram for each outcome would be 100 series for each kind.
        _add(runs, [kind], reduce(Histogram.plus, outcomes.values()))
        for outcome, one in sorted(outcomes.items()):
            ends.add_metric([kind, outcome], sum(one.counts), one.sum)
    steps = CounterMetricFamily(prometheus_name(STEPS.name, STEPS.unit), STEPS.text, labels=STEPS.labels)
    for kind, states in sorted(found.steps.items()):
        for state, n in sorted(states.items()):
            steps.add_metric([kind, state], n)
    waits = _histogram(JOB_WAIT)
    for queue, histogram in sorted(found.waits.items()):
        _add(waits, [queue], histogram)
    calls = _histogram(STORE_CALL)
    for op, histogram in sorted(found.calls.items()):
        _add(calls, [op], histogram)
    busy = _gauge(SLOTS_BUSY)
    for queue, n in sorted(found.busy.items()):
        busy.add_metric([queue], n)
    lag = _gauge(RENEWAL_LAG)
    lag.add_metric([], found.renewal_lag)
    yield from (runs, ends, steps, waits, calls, busy, lag)


def _histogram(one: Measured) -> HistogramMetricFamily:
    return HistogramMetricFamily(prometheus_name(one.name, one.unit), one.text, labels=one.labels)


def _gauge(one: Measured) -> GaugeMetricFamily:
    return GaugeMetricFamily(prometheus_name(one.name, one.unit), one.text, labels=one.labels)


def _add(family: HistogramMetricFamily, labels: list[str], histogram: Histogram) -> None:
    sums = list(accumulate(histogram.counts))
    bounds = [*(str(float(bound)) for bound in BOUNDS), "+Inf"]
    family.add_metric(labels, list(zip(bounds, sums, strict=True)), histogram.sum)
