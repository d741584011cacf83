"""Metrics of worker processes for Prometheus: run times, waits, busy slots, store calls, lag of lease renewals.

`stoker work --metrics-port` serves them; the supervisor adds up what its processes measured.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import reduce
from itertools import accumulate

from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.core import GaugeMetricFamily, HistogramMetricFamily, Metric, SummaryMetricFamily
from prometheus_client.registry import Collector

from stoker.model.measures import BOUNDS, Histogram, Measures


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
    runs = HistogramMetricFamily("stoker_job_duration_seconds", "How long runs took", labels=["kind"])
    ends = SummaryMetricFamily(
        "stoker_job_outcome_seconds", "Runs by how they ended, and how long they took", labels=["kind", "outcome"]
    )
    for kind, outcomes in sorted(found.runs.items()):
        # A histogram for each outcome would be 100 series for each kind.
        _add(runs, [kind], reduce(Histogram.plus, outcomes.values()))
        for outcome, one in sorted(outcomes.items()):
            ends.add_metric([kind, outcome], sum(one.counts), one.sum)
    waits = HistogramMetricFamily("stoker_job_wait_seconds", "How long due jobs waited for a worker", labels=["queue"])
    for queue, histogram in sorted(found.waits.items()):
        _add(waits, [queue], histogram)
    calls = HistogramMetricFamily("stoker_store_call_seconds", "How long calls of the store took", labels=["op"])
    for op, histogram in sorted(found.calls.items()):
        _add(calls, [op], histogram)
    busy = GaugeMetricFamily("stoker_slots_busy", "Slots that run a job now", labels=["queue"])
    for queue, n in sorted(found.busy.items()):
        busy.add_metric([queue], n)
    lag = GaugeMetricFamily("stoker_lease_renewal_lag_seconds", "How late the latest renewal of a lease was")
    lag.add_metric([], found.renewal_lag)
    yield from (runs, ends, waits, calls, busy, lag)


def _add(family: HistogramMetricFamily, labels: list[str], histogram: Histogram) -> None:
    sums = list(accumulate(histogram.counts))
    bounds = [*(str(float(bound)) for bound in BOUNDS), "+Inf"]
    family.add_metric(labels, list(zip(bounds, sums, strict=True)), histogram.sum)
