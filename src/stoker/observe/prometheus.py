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

from stoker.admin import attention, documents
from stoker.app import Stoker
from stoker.model.control import Budget, Queue, live
from stoker.model.findings import (
    Delivery,
    Situation,
    Tone,
    could_not_fire,
    findings,
    held_by_silent,
    late_queues,
    limited_queues,
    overdue_by,
    standstill,
)
from stoker.model.job import Status
from stoker.model.operations import INTERRUPTED, Operation, State
from stoker.model.query import Census
from stoker.model.redact import Redaction
from stoker.model.schedule import Schedule
from stoker.model.throttle import level
from stoker.model.time import SECOND, Instant

EVENTS = ("enqueued", "completed", "retried", "failed", "canceled")


class Reading(NamedTuple):
    """What one scrape reads from the store."""

    work: Situation
    budgets: Sequence[Budget] = ()
    operations: Sequence[Operation] = ()

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
    """Read what the metrics are made of: what findings are made of, consumers, budgets and operations."""
    engine = await app.engine()
    census, queues, presences = (
        await engine.operator.census(),
        await engine.control.queues(),
        await engine.control.workers(),
    )
    work = await attention.situation(engine, app, Redaction(), census, queues, presences)
    return Reading(work, await engine.control.budgets(), await documents.operations(engine))


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
    yield from _schedules(reading.work.schedules, reading.work.now)
    yield from _budgets(reading.budgets, reading.work.now)
    yield from _operations(reading.operations, reading.work.now)
    yield from _streams(reading.work.deliveries)


def _attention(work: Situation) -> Iterator[Metric]:
    """What needs a person, by the rules of `stoker status`."""
    tones = Counter(one.tone for one in findings(work))
    found = GaugeMetricFamily("stoker_findings", "Findings of stoker status, by how bad they are", labels=["tone"])
    for tone in get_args(Tone):
        found.add_metric([tone], tones[tone])
    yield found
    yield GaugeMetricFamily("stoker_workers", "Live workers", value=len(live(work.presences, work.now)))
    info = GaugeMetricFamily("stoker_info", "Live workers by release and version", labels=["release", "version"])
    for (release, version), n in Counter((one.release, one.version) for one in live(work.presences, work.now)).items():
        info.add_metric([release, version], n)
    yield info
    yield GaugeMetricFamily(
        "stoker_workers_silent",
        "Workers that have not shown themselves for ten seconds and hold jobs",
        value=len(held_by_silent(work)),
    )
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


def _schedules(schedules: Sequence[Schedule], now: Instant) -> Iterator[Metric]:
    def gauge(name: str, help_: str) -> GaugeMetricFamily:
        return GaugeMetricFamily(f"stoker_schedule_{name}", help_, labels=["schedule"])

    overdue = gauge(
        "overdue_seconds",
        "For how long a schedule should have fired, beyond its grace and a minute; 0 while it is not overdue",
    )
    enabled = gauge("enabled", "1 while the schedule is enabled")
    failing = gauge("failing", "1 while the schedule could not store its latest job, or cannot be read")
    last = gauge("last_fire_timestamp_seconds", "When the schedule fired last")
    next_ = gauge("next_fire_timestamp_seconds", "When the schedule fires next")
    missed = CounterMetricFamily(
        "stoker_schedule_missed", "Occurrences of the schedule that made no job", labels=["schedule"]
    )
    for one in schedules:
        overdue.add_metric([one.name], overdue_by(one, now) / SECOND)
        enabled.add_metric([one.name], one.enabled)
        failing.add_metric([one.name], could_not_fire(one))
        missed.add_metric([one.name], one.missed)
        for family, at in ((last, one.last_fire), (next_, one.next_fire)):
            if at is not None:
                family.add_metric([one.name], at / SECOND)
    yield from (overdue, enabled, failing, last, next_, missed)


def _budgets(budgets: Sequence[Budget], now: Instant) -> Iterator[Metric]:
    tokens = GaugeMetricFamily("stoker_budget_tokens", "Tokens of the budget at hand", labels=["budget"])
    capacity = GaugeMetricFamily(
        "stoker_budget_capacity", "The most tokens that the budget can hold", labels=["budget"]
    )
    for one in budgets:
        tokens.add_metric([one.name], level(one.bucket, now))
        capacity.add_metric([one.name], one.bucket.rate.capacity)
    yield from (tokens, capacity)


def _operations(operations: Sequence[Operation], now: Instant) -> Iterator[Metric]:
    """Bulk actions. No label names a single one, so that series do not pile up."""
    states = Counter(one.shown_state(now) for one in operations)
    by_state = GaugeMetricFamily("stoker_operations", "Operations that are kept, by state", labels=["state"])
    for state in (*get_args(State), INTERRUPTED):
        by_state.add_metric([state], states[state])
    changed = sum(one.changed for one in operations if not one.ended)
    yield by_state
    yield GaugeMetricFamily(
        "stoker_operations_changed", "Jobs and letters that operations under way have changed so far", value=changed
    )


def _streams(deliveries: Sequence[Delivery]) -> Iterator[Metric]:
    labels = ["stream", "consumer"]
    lag = GaugeMetricFamily("stoker_outbox_lag", "Messages that a consumer has not delivered yet", labels=labels)
    late = GaugeMetricFamily(
        "stoker_outbox_lag_seconds",
        "How long the oldest message of a consumer has waited; 0 while it is paused",
        labels=labels,
    )
    letters = GaugeMetricFamily("stoker_letters", "Messages that wait for a decision", labels=labels)
    for one in deliveries:
        place = [one.stream, one.consumer]
        lag.add_metric(place, one.waiting)
        late.add_metric(place, one.waits / SECOND)
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
    behind, full = late_queues(reading.work), limited_queues(reading.work)
    served = {name for one in present for name in one.queues}

    def gauge(name: str, help_: str) -> GaugeMetricFamily:
        return GaugeMetricFamily(f"stoker_queue_{name}", help_, labels=["queue"])

    lag = gauge("lag_seconds", "How long the oldest due job has waited")
    oldest = gauge("oldest_running_seconds", "How long the longest running job has run")
    late = gauge("late", "1 while the oldest due job of the open queue waits longer than is usual there")
    paused = gauge("paused", "1 while the queue is paused")
    cooling = gauge("cooling", "1 while the queue cools down after a throttle")
    limited = gauge("limited", "1 while a rate, a number of workers or a limit makes the oldest due job wait for long")
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
        limited.add_metric([name], name in full)
        workers.add_metric([name], len(serving))
        slots.add_metric([name], sum(serving))
    yield from (lag, oldest, late, paused, cooling, limited, workers, slots)


def _names(census: Census) -> list[str]:
    return sorted({count.queue for count in census.counts})
