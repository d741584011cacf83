"""Metrics of a store for Prometheus: the same numbers from every process, read when a scrape asks for them.

They come from counters, so a scrape costs the same whatever waits in the store; only jobs that died in the last hour
are walked over, 10,000 of them at most. `prometheus-client` (the extra `prometheus`) writes the text.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import NamedTuple, get_args

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from stoker.admin import attention
from stoker.app import Stoker
from stoker.engines.base import Engine, Feature, outbox_of
from stoker.model.control import Queue, live
from stoker.model.findings import Situation, Tone, findings, late_queues, overdue_by, standstill
from stoker.model.job import Status
from stoker.model.outbox.letters import Count, LetterFilter
from stoker.model.query import Census
from stoker.model.redact import Redaction
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

    work: Situation
    consumed: Sequence[Consumed] = ()

    @property
    def census(self) -> Census:
        """The counts."""
        return self.work.census


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
    """Read what the metrics are made of: what findings are made of, and of each consumer how far it is behind."""
    engine = await app.engine()
    consumed = await _consumed(engine) if Feature.OUTBOX in engine.features else ()
    census, queues, presences = (
        await engine.operator.census(),
        await engine.control.queues(),
        await engine.control.workers(),
    )
    work = await attention.situation(engine, app, Redaction(), census, queues, presences)
    return Reading(work, consumed)


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
    yield from _attention(reading.work)
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


def _attention(work: Situation) -> Iterator[Metric]:
    """What needs a person, by the rules of `stoker status`."""
    tones = Counter(one.tone for one in findings(work))
    found = GaugeMetricFamily("stoker_findings", "Findings of stoker status, by how bad they are", labels=["tone"])
    for tone in get_args(Tone):
        found.add_metric([tone], tones[tone])
    yield found
    yield GaugeMetricFamily("stoker_workers", "Live workers", value=len(live(work.presences, work.now)))
    alone = standstill(work)
    lasts = 0 if alone is None else alone.lasts(work.now)
    if lasts is None:  # no worker is known: for as long as the oldest due job has waited, at least
        lasts = max(map(work.census.lag, work.names), default=0)
    yield GaugeMetricFamily(
        "stoker_without_worker_seconds",
        "For how long no worker has been at work while something is due; 0 while one is",
        value=lasts / SECOND,
    )
    died = 0 if work.deaths is None else work.deaths.jobs
    yield GaugeMetricFamily("stoker_died_last_hour", "Jobs that are dead and died in the last hour", value=died)
    overdue = GaugeMetricFamily(
        "stoker_schedule_overdue_seconds",
        "For how long a schedule should have fired, beyond its grace and a minute; 0 while it is not overdue",
        labels=["schedule"],
    )
    for one in work.schedules:
        overdue.add_metric([one.name], overdue_by(one, work.now) / SECOND)
    yield overdue


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
    settings = {queue.name: queue for queue in reading.work.queues}
    present = live(reading.work.presences, census.at)
    behind = late_queues(reading.work)
    served = {name for one in present for name in one.queues}

    def gauge(name: str, help_: str) -> GaugeMetricFamily:
        return GaugeMetricFamily(f"stoker_queue_{name}", help_, labels=["queue"])

    lag = gauge("lag_seconds", "How long the oldest due job has waited")
    oldest = gauge("oldest_running_seconds", "How long the longest running job has run")
    late = gauge("late", "1 while the oldest due job of the open queue waits longer than is usual there")
    paused = gauge("paused", "1 while the queue is paused")
    cooling = gauge("cooling", "1 while the queue cools down after a throttle")
    workers = gauge("workers", "Live workers that serve the queue")
    slots = gauge("slots", "Jobs of the queue that live workers can run at once")
    for name in sorted({*settings, *served, *_names(census)}):
        queue = settings.get(name, Queue(name=name))
        serving = [one.queues[name] for one in present if name in one.queues]
        lag.add_metric([name], census.lag(name) / SECOND)
        oldest.add_metric([name], (census.at - census.oldest_running.get(name, census.at)) / SECOND)
        late.add_metric([name], name in behind)
        paused.add_metric([name], queue.is_paused(census.at))
        cooling.add_metric([name], queue.cooldown.shut(census.at))
        workers.add_metric([name], len(serving))
        slots.add_metric([name], sum(serving))
    yield from (lag, oldest, late, paused, cooling, workers, slots)


def _names(census: Census) -> list[str]:
    return sorted({count.queue for count in census.counts})
