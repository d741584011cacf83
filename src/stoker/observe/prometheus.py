"""Metrics of a store for Prometheus: the same numbers from every process, read when a scrape asks for them.

They come from the census, which reads counters and never walks over jobs, so a scrape costs the same whatever waits in
the store. `prometheus-client` (the extra `prometheus`) writes the text.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from stoker.app import Stoker
from stoker.engines.base import Engine, Feature, outbox_of
from stoker.model.control import Presence, Queue, live
from stoker.model.job import Status
from stoker.model.outbox.letters import Count, LetterFilter
from stoker.model.query import Census
from stoker.model.time import SECOND, Instant

EVENTS = ("enqueued", "completed", "retried", "failed", "canceled")


class Consumed(NamedTuple):
    """How far a consumer of a stream is behind: messages, and since when the oldest waits; and its letters."""

    stream: str
    consumer: str
    waiting: int
    oldest: Instant | None
    letters: int


class Reading(NamedTuple):
    """What one scrape reads from the store."""

    census: Census
    queues: Sequence[Queue]
    presences: Sequence[Presence]
    consumed: Sequence[Consumed] = ()


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
        return families(self._app.run(read(self._app)))


async def read(app: Stoker) -> Reading:
    """Read what the metrics are made of: three calls, and where there are streams one more and one per consumer."""
    engine = await app.engine()
    consumed = await _consumed(engine) if Feature.OUTBOX in engine.features else ()
    return Reading(await engine.census(), await engine.queues(), await engine.workers(), consumed)


async def _consumed(engine: Engine) -> list[Consumed]:
    outbox = outbox_of(engine)
    found = []
    for state in await outbox.streams():
        for consumer in sorted({one.cursor.consumer for one in state.cursors}):
            cursors = [one for one in state.cursors if one.cursor.consumer == consumer]
            oldest = min((one.oldest for one in cursors if one.oldest is not None), default=None)
            letters = await outbox.letters(LetterFilter(stream=state.stream.name, consumer=consumer), Count())
            waiting = sum(one.waiting for one in cursors)
            found.append(Consumed(state.stream.name, consumer, waiting, oldest, letters.n))
    return found


def text(reading: Reading) -> str:
    """The metrics in the text format of Prometheus."""

    class Once(Collector):
        def collect(self) -> Iterator[Metric]:
            return families(reading)

    registry = CollectorRegistry(auto_describe=False)
    registry.register(Once())
    return generate_latest(registry).decode()


def families(reading: Reading) -> Iterator[Metric]:
    """Every metric with its values."""
    yield from _jobs(reading.census)
    yield from _queues(reading)
    totals = CounterMetricFamily(
        "stoker_jobs", "What became of jobs since the store was made", labels=["kind", "event"]
    )
    for kind, total in sorted(reading.census.totals.items()):
        for event in EVENTS:
            totals.add_metric([kind, event], getattr(total, event))
    yield totals
    yield from _streams(reading)


def _streams(reading: Reading) -> Iterator[Metric]:
    labels = ["stream", "consumer"]
    lag = GaugeMetricFamily("stoker_outbox_lag", "Messages that a consumer has not delivered yet", labels=labels)
    late = GaugeMetricFamily(
        "stoker_outbox_lag_seconds", "How long the oldest message of a consumer has waited", labels=labels
    )
    letters = GaugeMetricFamily("stoker_letters", "Messages that wait for a decision", labels=labels)
    for one in reading.consumed:
        place = [one.stream, one.consumer]
        at = reading.census.at
        lag.add_metric(place, one.waiting)
        late.add_metric(place, max(0, at - (at if one.oldest is None else one.oldest)) / SECOND)
        letters.add_metric(place, one.letters)
    yield from (lag, late, letters)


def _jobs(census: Census) -> Iterator[Metric]:
    jobs = GaugeMetricFamily(
        "stoker_queue_jobs",
        "Jobs by status; ready and scheduled are the two parts of pending",
        labels=["queue", "status"],
    )
    for queue in _names(census):
        counts = {status.value: n for status, n in census.by_status(queue).items() if status is not Status.PENDING}
        counts |= {"ready": census.ready(queue), "scheduled": census.scheduled.get(queue, 0)}
        for status, n in sorted(counts.items()):
            jobs.add_metric([queue, status], n)
    yield jobs


def _queues(reading: Reading) -> Iterator[Metric]:
    census = reading.census
    settings = {queue.name: queue for queue in reading.queues}
    present = live(reading.presences, census.at)
    served = {name for one in present for name in one.queues}

    def gauge(name: str, help_: str) -> GaugeMetricFamily:
        return GaugeMetricFamily(f"stoker_queue_{name}", help_, labels=["queue"])

    lag = gauge("lag_seconds", "How long the oldest due job has waited")
    oldest = gauge("oldest_running_seconds", "How long the longest running job has run")
    paused = gauge("paused", "1 while the queue is paused")
    cooling = gauge("cooling", "1 while the queue cools down after a throttle")
    workers = gauge("workers", "Live workers that serve the queue")
    slots = gauge("slots", "Jobs of the queue that live workers can run at once")
    for name in sorted({*settings, *served, *_names(census)}):
        queue = settings.get(name, Queue(name=name))
        serving = [one.queues[name] for one in present if name in one.queues]
        lag.add_metric([name], census.lag(name) / SECOND)
        oldest.add_metric([name], (census.at - census.oldest_running.get(name, census.at)) / SECOND)
        paused.add_metric([name], queue.is_paused(census.at))
        cooling.add_metric([name], queue.cooldown.shut(census.at))
        workers.add_metric([name], len(serving))
        slots.add_metric([name], sum(serving))
    yield from (lag, oldest, paused, cooling, workers, slots)


def _names(census: Census) -> list[str]:
    return sorted({count.queue for count in census.counts})
