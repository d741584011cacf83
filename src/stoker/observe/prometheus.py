"""Metrics of a store for Prometheus: the same numbers from every process, read when a scrape asks for them.

`prometheus-client` (the extra `prometheus`) writes the text; which metrics there are is in `observe.metrics`.
"""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from stoker.app import Stoker
from stoker.observe.metrics import Family, Reading, families, prometheus_name, read


class StoreCollector(Collector):
    """Collects the metrics of one store. Register it: `registry.register(StoreCollector(jobs))`.

    A scrape while the store is away raises, so that the scrape fails instead of showing old numbers.
    """

    def __init__(self, app: Stoker) -> None:
        self._app = app

    def describe(self) -> Iterator[Metric]:
        """Nothing: registering must not ask the store."""
        return iter(())

    def collect(self) -> Iterator[Metric]:
        """Read the store and yield every metric."""
        return map(_metric, families(self._app.run(read(self._app))))


def text(reading: Reading) -> str:
    """The metrics in the text format of Prometheus."""

    class Once(Collector):
        def collect(self) -> Iterator[Metric]:
            return map(_metric, families(reading))

    registry = CollectorRegistry(auto_describe=False)
    registry.register(Once())
    return generate_latest(registry).decode()


def _metric(family: Family) -> Metric:
    name = prometheus_name(family.name, family.unit)
    made = (CounterMetricFamily if family.counts else GaugeMetricFamily)(name, family.text, labels=family.labels)
    for labels, value in family.samples:
        made.add_metric(labels, value)
    return made
