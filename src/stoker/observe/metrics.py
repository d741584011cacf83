"""The metrics of a store and of worker processes, once for every exporter: Prometheus' and OpenTelemetry's.

A name is that of OpenTelemetry, `stoker.queue.lag` in seconds; Prometheus calls it `stoker_queue_lag_seconds`, which is
also what OpenTelemetry's own exporter for Prometheus makes of it. Numbers come from counters, so reading them costs the
same whatever waits in the store; only jobs that died in the last hour are walked over, 10,000 of them at most.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import NamedTuple, get_args

from stoker.admin import attention, documents
from stoker.admin.scale import Scale, Store, chunk_sizes, read_scale
from stoker.app import Stoker
from stoker.model.budgets import Budget
from stoker.model.control import Queue, live
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
from stoker.model.scale import processes
from stoker.model.schedule import Schedule
from stoker.model.throttle import level
from stoker.model.time import SECOND, Instant

EVENTS = ("enqueued", "completed", "retried", "failed", "canceled")


class Family:
    """A metric with its values, by labels. `unit` is `s` for seconds, else empty."""

    __slots__ = ("counts", "labels", "name", "samples", "text", "unit")

    def __init__(self, name: str, text: str, labels: Sequence[str], unit: str, *, counts: bool) -> None:
        self.name = name
        self.text = text
        self.labels = labels
        self.unit = unit
        self.counts = counts
        self.samples: list[tuple[Sequence[str], float]] = []

    def add(self, labels: Sequence[str], value: float) -> None:
        """Add a value."""
        self.samples.append((labels, value))


def gauge(name: str, text: str, labels: Sequence[str] = (), value: float | None = None, unit: str = "") -> Family:
    """A number that goes up and down; one without labels has one value."""
    found = Family(name, text, labels, unit, counts=False)
    if value is not None:
        found.add((), value)
    return found


def counter(name: str, text: str, labels: Sequence[str]) -> Family:
    """A number that only grows."""
    return Family(name, text, labels, "", counts=True)


class Measured(NamedTuple):
    """A metric that worker processes measure. All are in seconds but `STEPS` and `SLOTS_BUSY`."""

    name: str
    text: str
    labels: tuple[str, ...] = ()
    unit: str = "s"


JOB_DURATION = Measured("stoker.job.duration", "How long runs took", ("kind",))
JOB_WAIT = Measured("stoker.job.wait", "How long due jobs waited for a worker", ("queue",))
STEPS = Measured("stoker.steps", "Steps that runs stored", ("kind", "state"), "")
STORE_CALL = Measured("stoker.store.call", "How long calls of the store took", ("op",))
SLOTS_BUSY = Measured("stoker.slots.busy", "Slots that run a job now", ("queue",), "")
RENEWAL_LAG = Measured("stoker.lease.renewal_lag", "How late the latest renewal of a lease was")


def prometheus_name(name: str, unit: str) -> str:
    """What Prometheus calls a metric."""
    return name.replace(".", "_") + ("_seconds" if unit == "s" else "")


class Reading(NamedTuple):
    """What one reading of the store found."""

    work: Situation
    scale: Scale
    budgets: Sequence[Budget] = ()
    operations: Sequence[Operation] = ()

    @property
    def census(self) -> Census:
        """The counts."""
        return self.work.census


async def read(app: Stoker) -> Reading:
    """Read what the metrics are made of: what findings are made of, consumers, budgets and operations."""
    engine = await app.engine()
    census, queues, presences = (
        await engine.operator.census(),
        await engine.control.queues(),
        await engine.control.workers(),
    )
    work = await attention.situation(engine, app, Redaction(), census, queues, presences)
    store = Store(census, queues, presences, work.schedules, work.deliveries)
    scale = await read_scale(engine, store, chunks=chunk_sizes(app))
    return Reading(work, scale, await engine.control.budgets(), await documents.operations(engine))


NOTHING = Reading(Situation(census=Census(at=0)), Scale(0, ()))
"""The reading of an empty store: its families are all the metrics there are."""


def families(reading: Reading) -> Iterator[Family]:
    """Every metric with its values."""
    yield from _attention(reading.work)
    yield from _jobs(reading.census)
    yield from _queues(reading)
    yield from _scale(reading.scale)
    totals = counter("stoker.jobs", "What became of jobs since the store was made", labels=["kind", "event"])
    for kind, total in sorted(reading.census.totals.items()):
        for event in EVENTS:
            totals.add([kind, event], getattr(total, event))
    yield totals
    yield from _schedules(reading.work.schedules, reading.work.now)
    yield from _budgets(reading.budgets, reading.work.now)
    yield from _operations(reading.operations, reading.work.now)
    yield from _streams(reading.work.deliveries)


def _attention(work: Situation) -> Iterator[Family]:
    """What needs a person, by the rules of `stoker status`."""
    tones = Counter(one.tone for one in findings(work))
    found = gauge("stoker.findings", "Findings of stoker status, by how bad they are", labels=["tone"])
    for tone in get_args(Tone):
        found.add([tone], tones[tone])
    yield found
    yield gauge("stoker.workers", "Live workers", value=len(live(work.presences, work.now)))
    info = gauge("stoker.info", "Live workers by release and version", labels=["release", "version"])
    for (release, version), n in Counter((one.release, one.version) for one in live(work.presences, work.now)).items():
        info.add([release, version], n)
    yield info
    yield gauge(
        "stoker.workers.silent",
        "Workers that have not shown themselves for ten seconds and hold jobs",
        value=len(held_by_silent(work)),
    )
    alone = standstill(work)
    lasts = 0 if alone is None else alone.lasts(work.now)
    if lasts is None:  # no worker is known: for as long as the oldest due job has waited, at least
        lasts = max(map(work.census.lag, work.names), default=0)
    yield gauge(
        "stoker.without_worker",
        "For how long no worker has been at work while something is due; 0 while one is",
        value=lasts / SECOND,
        unit="s",
    )
    died = 0 if work.deaths is None else work.deaths.jobs
    yield gauge("stoker.died_last_hour", "Jobs that are dead and died in the last hour", value=died)


def _schedules(schedules: Sequence[Schedule], now: Instant) -> Iterator[Family]:
    def of_schedule(name: str, text: str, unit: str = "") -> Family:
        return gauge(f"stoker.schedule.{name}", text, labels=["schedule"], unit=unit)

    overdue = of_schedule(
        "overdue",
        "For how long a schedule should have fired, beyond its grace and a minute; 0 while it is not overdue",
        "s",
    )
    enabled = of_schedule("enabled", "1 while the schedule is enabled")
    failing = of_schedule("failing", "1 while the schedule could not store its latest job, or cannot be read")
    last = of_schedule("last_fire_timestamp", "When the schedule fired last", "s")
    next_ = of_schedule("next_fire_timestamp", "When the schedule fires next", "s")
    missed = counter("stoker.schedule.missed", "Occurrences of the schedule that made no job", labels=["schedule"])
    for one in schedules:
        overdue.add([one.name], overdue_by(one, now) / SECOND)
        enabled.add([one.name], one.enabled)
        failing.add([one.name], could_not_fire(one))
        missed.add([one.name], one.missed)
        for family, at in ((last, one.last_fire), (next_, one.next_fire)):
            if at is not None:
                family.add([one.name], at / SECOND)
    yield from (overdue, enabled, failing, last, next_, missed)


def _budgets(budgets: Sequence[Budget], now: Instant) -> Iterator[Family]:
    """A series for each measure, none for a key: a budget may have any number of keys."""
    labels, most = ["budget", "measure"], "The most tokens that the budget, or each key of it, can hold"
    tokens = gauge("stoker.budget.tokens", "Tokens of the budget at hand, unless it has keys", labels=labels)
    capacity = gauge("stoker.budget.capacity", most, labels=labels)
    for one in budgets:
        for measure, bucket in one.buckets.items():
            capacity.add([one.name, measure], bucket.rate.capacity)
            if not one.keyed:
                tokens.add([one.name, measure], level(bucket, now))
    yield from (tokens, capacity)


def _operations(operations: Sequence[Operation], now: Instant) -> Iterator[Family]:
    """Bulk actions. No label names a single one, so that series do not pile up."""
    states = Counter(one.shown_state(now) for one in operations)
    by_state = gauge("stoker.operations", "Operations that are kept, by state", labels=["state"])
    for state in (*get_args(State), INTERRUPTED):
        by_state.add([state], states[state])
    changed = sum(one.changed for one in operations if not one.ended)
    yield by_state
    yield gauge(
        "stoker.operations.changed", "Jobs and letters that operations under way have changed so far", value=changed
    )


def _streams(deliveries: Sequence[Delivery]) -> Iterator[Family]:
    labels = ["stream", "consumer"]
    lag = gauge("stoker.outbox.lag", "Messages that a consumer has not delivered yet", labels=labels)
    late = gauge(
        "stoker.outbox.lag_seconds",
        "How long the oldest message of a consumer has waited; 0 while it is paused",
        labels=labels,
    )
    letters = gauge("stoker.letters", "Messages that wait for a decision", labels=labels)
    for one in deliveries:
        place = [one.stream, one.consumer]
        lag.add(place, one.waiting)
        late.add(place, one.waits / SECOND)
        letters.add(place, one.letters)
    yield from (lag, late, letters)


def _jobs(census: Census) -> Iterator[Family]:
    jobs = gauge(
        "stoker.queue.jobs",
        "Jobs by status; ready, scheduled and waiting are the parts of pending",
        labels=["queue", "status"],
    )
    for queue in _names(census):
        counts = {status.value: n for status, n in census.by_status(queue).items() if status is not Status.PENDING}
        counts |= {"ready": census.ready(queue), "scheduled": census.scheduled(queue)}
        counts["waiting"] = census.suspended(queue)
        for status, n in sorted(counts.items()):
            jobs.add([queue, status], n)
    yield jobs


def _queues(reading: Reading) -> Iterator[Family]:
    census = reading.census
    settings = {queue.name: queue for queue in reading.work.queues}
    present = live(reading.work.presences, census.at)
    behind, full = late_queues(reading.work), limited_queues(reading.work)
    served = {name for one in present for name in one.queues}

    def of_queue(name: str, text: str, unit: str = "") -> Family:
        return gauge(f"stoker.queue.{name}", text, labels=["queue"], unit=unit)

    lag = of_queue("lag", "How long the oldest due job has waited", "s")
    oldest = of_queue("oldest_running", "How long the longest running job has run", "s")
    late = of_queue("late", "1 while the oldest due job of the open queue waits longer than is usual there")
    paused = of_queue("paused", "1 while the queue is paused")
    cooling = of_queue("cooling", "1 while the queue cools down after a throttle")
    limited = of_queue(
        "limited", "1 while a rate, a number of workers or a limit makes the oldest due job wait for long"
    )
    workers = of_queue("workers", "Live workers that serve the queue")
    slots = of_queue("slots", "Jobs of the queue that live workers can run at once")
    for name in sorted({*settings, *served, *_names(census)}):
        queue = settings.get(name, Queue(name=name))
        serving = [one.queues[name] for one in present if name in one.queues]
        lag.add([name], census.lag(name) / SECOND)
        oldest.add([name], (census.at - census.oldest_running.get(name, census.at)) / SECOND)
        late.add([name], name in behind)
        paused.add([name], queue.is_paused(census.at))
        cooling.add([name], queue.cooldown.shut(census.at))
        limited.add([name], name in full)
        workers.add([name], len(serving))
        slots.add([name], sum(serving))
    yield from (lag, oldest, late, paused, cooling, limited, workers, slots)


def _scale(scale: Scale) -> Iterator[Family]:
    """What a scaler reads: needs of each queue, and of all together."""
    needed = gauge(
        "stoker.queue.processes_needed", "Worker processes that the claimable work of the queue needs", labels=["queue"]
    )
    claimable = gauge(
        "stoker.queue.claimable", "Due jobs that no pause, cool-down, rate or limit holds", labels=["queue"]
    )
    for one in scale.needs:
        needed.add([one.queue], one.processes)
        claimable.add([one.queue], one.claimable)
    all_needed = processes(scale.needs, awaited=scale.awaited)
    every = gauge("stoker.processes_needed", "Worker processes that all queues need", value=all_needed)
    due = gauge("stoker.next_due_timestamp", "When the next job or schedule is due", unit="s")
    if scale.next_due is not None:
        due.add([], scale.next_due / SECOND)
    yield from (needed, claimable, every, due)


def _names(census: Census) -> list[str]:
    return sorted({count.queue for count in census.counts})
