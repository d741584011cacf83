"""What users read about jobs: ids as text, instants as aware datetimes, durations as `timedelta`.

Engines and `model` keep ids as 16 bytes and time as integers of microseconds, because those are
exact and small on every store. An app converts when it gives a value to its user, and nowhere else, so nothing on the
way between a store and a worker pays for it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from types import MappingProxyType
from typing import Any

import msgspec

from stoker.engines.base import CORRUPT
from stoker.model import job as stored
from stoker.model import retry, throttle
from stoker.model.control import Queue, overridden
from stoker.model.cron_words import in_words
from stoker.model.groups import Group
from stoker.model.ids import occurrence, text
from stoker.model.job import Isolation, Status, Stored, links
from stoker.model.limit import Slot
from stoker.model.retry import Backoff
from stoker.model.run_origins import RunOrigin
from stoker.model.schedule import Misfire, Overlap, Source
from stoker.model.schedule import Schedule as StoredSchedule
from stoker.model.steps import Step as StoredStep
from stoker.model.steps import StepState, about, called_job, waits_for
from stoker.model.throttle import Rate
from stoker.model.time import Instant, Seconds, Span, moment, seconds, span
from stoker.model.unique import Unique


class Receipt(msgspec.Struct, frozen=True, gc=False):
    """The result of storing one draft. `id` is the id of the job that holds the key when `stored` is `existing`."""

    id: str
    stored: Stored


class Origin(msgspec.Struct, frozen=True, gc=False):
    """Where a run was: its worker, with host, process and release of the app."""

    worker: str
    host: str
    pid: int
    release: str


class FailedRun(msgspec.Struct, frozen=True, gc=False):
    """One entry of a job's history: a failed run, its time, its error and where it was, if that is known."""

    at: datetime
    attempt: int
    error: str
    origin: Origin | None = None


class Step(msgspec.Struct, frozen=True, kw_only=True):
    """What a job has stored under a name, or waits for. `value` is JSON as it was decoded, `until` ends a wait.

    `error` is that of a step that failed, or that is tried again. `waits_for` says what ends a wait: a `signal`, the
    `time`, the next `try` of the step, or the end of a called `job`, whose id is `job`. `ask` is the question of a wait
    for a signal, and `schema` the JSON Schema of its answer.
    """

    name: str
    state: str
    value: Any = None
    error: str | None = None
    at: datetime
    until: datetime | None = None
    attempt: int = 0
    waits_for: str | None = None
    ask: str | None = None
    schema: Any = None
    job: str | None = None


class JobState(msgspec.Struct, frozen=True, kw_only=True):
    """The record of a job at one moment, without its payload and result.

    `attempts` counts starts, `budget` is how many are allowed from `base` on. `timeout`, `expires`, `keep`, `backoff`
    and `isolation` are the options the job was enqueued with; None: none was given. `then` names the kinds of the jobs
    behind it in its chain, `group` is the id of its group, `label` what its task wrote on it. `metadata` holds what the
    job was enqueued with and, under keys that begin with `exec_`, what its runs noted. `suspended`: its last run ended
    because it only waits. `origin` is where the run was that ended the job; operators see it, as far as the store knows
    it. `unreadable`: some of what is stored cannot be read, as `metadata` says under `stoker.corrupt`; the rest is
    shown.
    """

    id: str
    kind: str
    queue: str
    status: Status
    priority: int
    attempts: int
    base: int
    budget: int
    created_at: datetime
    scheduled_at: datetime
    crashes: int = 0
    throttles: int = 0
    timeout: timedelta | None = None
    expires: timedelta | None = None
    keep: timedelta | None = None
    backoff: Backoff | None = None
    isolation: Isolation | None = None
    then: tuple[str, ...] = ()
    group: str | None = None
    limit: Slot | None = None
    label: str | None = None
    unique: Unique | None = None
    tenant: str | None = None
    worker: str | None = None
    token: int = 0
    started_at: datetime | None = None
    finished_at: datetime | None = None
    expires_at: datetime | None = None
    suspended: bool = False
    cancel_requested: bool = False
    cancel_requested_at: datetime | None = None
    last_error: str | None = None
    history: tuple[FailedRun, ...] = ()
    progress: float | None = None
    metadata: dict[str, str] = {}
    log: tuple[str, ...] = ()
    successor: str | None = None
    unreadable: bool = False
    origin: Origin | None = None


class Job(JobState, frozen=True, kw_only=True):
    """The whole record of a job at one moment, as `JobHandle.refresh` returns it. `payload` and `result` are JSON."""

    payload: bytes
    result: bytes | None = None


class ScheduleState(msgspec.Struct, frozen=True, kw_only=True):
    """A schedule at one moment, without the arguments of its jobs.

    `cron` is the expression (`@every 90s` for an interval). `next_fire` is None while it is disabled, and until the
    first tick. `last_status` is what the last due tick did: fired, skipped (its last job was active), missed (all was
    too old), error (the job could not be stored) or disabled; `last_missed` of its occurrences made no job, `missed`
    did not in all. `source`: "code" or "api"; `edited`: an operator changed what the code declares; `declared`: the
    code of this app declares it. `words` say when it fires.
    """

    name: str
    kind: str
    queue: str
    cron: str
    words: str
    tz: str
    enabled: bool
    misfire: Misfire
    overlap: Overlap
    grace: timedelta
    jitter: timedelta
    source: Source
    edited: bool
    declared: bool
    next_fire: datetime | None = None
    last_fire: datetime | None = None
    last_status: str | None = None
    last_missed: int = 0
    last_error: str | None = None
    last_job: str | None = None
    missed: int = 0


class Schedule(ScheduleState, frozen=True, kw_only=True):
    """A schedule at one moment, as `jobs.schedules()` lists it. `payload` is JSON."""

    payload: bytes


class Grant(msgspec.Struct, frozen=True, gc=False):
    """The result of a spend: true if tokens were granted, else `wait` is the time until they may be.

    `reason` says why a budget refused, `measure` which of its measures did; None: it has one without a name.
    """

    granted: bool
    wait: timedelta = timedelta(0)
    reason: str | None = None
    measure: str | None = None

    def __bool__(self) -> bool:
        return self.granted


class Progress(msgspec.Struct, frozen=True, gc=False):
    """The numbers of a group: its members, and what became of them. `waiting` are those that are not finished."""

    total: int
    done: int
    dead: int
    canceled: int
    waiting: int


def progress(group: Group) -> Progress:
    """An engine's group as the caller gets it."""
    return Progress(group.total, group.done, group.dead, group.canceled, group.waiting)


class Curve(msgspec.Struct, frozen=True):
    """A queue's waits before retries and after throttles: `base`, doubled each time, up to `max`.

    Both are pulled between a second and a day. A job's own backoff goes before the curve of its queue.
    """

    base: Seconds = 60.0
    max: Seconds = 1800.0

    def __post_init__(self) -> None:
        for field in ("base", "max"):
            msgspec.structs.force_setattr(self, field, seconds(span(getattr(self, field), f"Curve.{field}")))

    def stored(self) -> retry.Curve:
        """The curve as engines store it."""
        return retry.given_curve(span(self.base), span(self.max))


def curve_of(queue: Queue) -> Curve | None:
    """A queue's curve as the user reads it; None: it is off."""
    curve = queue.curve
    return Curve(seconds(curve.base), seconds(curve.max)) if curve.on else None


class QueueSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of a queue at one moment. `workers`, `rate` and `curve` are None where there is none.

    `changed` names the settings that people changed after the code had declared them; these do not follow the code.
    """

    name: str
    paused: bool
    paused_until: datetime | None
    reason: str | None
    paused_by: str | None
    cooling_until: datetime | None
    workers: int | None
    fair: bool
    rate: Rate | None
    keep_done: timedelta
    keep_dead: timedelta
    curve: Curve | None
    changed: frozenset[str]


def queue_settings(queue: Queue, plain: Queue, now: Instant) -> QueueSettings:
    """An engine's queue as the user reads it; `plain` has the defaults."""
    pause = queue.pause if queue.pause is not None and queue.is_paused(now) else None
    cooldown, declared = queue.cooldown, queue.declared
    return QueueSettings(
        name=queue.name,
        paused=pause is not None,
        paused_until=None if pause is None else _moment(pause.until),
        reason=None if pause is None else pause.reason,
        paused_by=None if pause is None else pause.by,
        cooling_until=_moment(cooldown.until) if cooldown.shut(now) else None,
        workers=queue.workers,
        fair=queue.fair,
        rate=queue.rate,
        keep_done=timedelta(microseconds=queue.keep_done),
        keep_dead=timedelta(microseconds=queue.keep_dead),
        curve=curve_of(queue),
        changed=frozenset() if declared is None else overridden(queue, declared, plain),
    )


def receipts(given: Iterable[stored.Receipt]) -> list[Receipt]:
    """An engine's receipts as the caller gets them."""
    return [Receipt(text(one.id), one.stored) for one in given]


NO_ORIGINS: Mapping[int, RunOrigin] = MappingProxyType({})


def origin(number: int, known: Mapping[int, RunOrigin]) -> Origin | None:
    """Where a run was, by the number that its failure or end has; None where it is not known."""
    found = known.get(number)
    return None if found is None else Origin(found.worker, found.host, found.pid, found.release)


def job(record: stored.Job, origins: Mapping[int, RunOrigin] = NO_ORIGINS) -> Job:
    """An engine's record as the user reads it, with the origins of its runs that are known."""
    options = record.options
    return Job(
        id=text(record.id),
        kind=record.kind,
        queue=record.queue,
        payload=record.payload,
        status=record.status,
        priority=record.priority,
        attempts=record.attempts,
        base=record.base,
        budget=record.budget,
        created_at=moment(record.created_at),
        scheduled_at=moment(record.scheduled_at),
        crashes=record.crashes,
        throttles=record.throttles,
        timeout=_duration(options.timeout),
        expires=_duration(options.expires),
        keep=_duration(options.keep),
        backoff=options.backoff,
        isolation=options.isolation,
        then=tuple(draft.kind for draft in links(options)),
        group=None if options.group is None else text(options.group),
        limit=options.limit,
        label=options.label,
        unique=record.unique,
        tenant=record.tenant,
        worker=record.worker,
        token=record.token,
        started_at=_moment(record.started_at),
        finished_at=_moment(record.finished_at),
        expires_at=_moment(record.expires_at),
        suspended=record.suspended,
        cancel_requested=record.cancel_requested,
        cancel_requested_at=_moment(record.cancel_requested_at),
        last_error=record.last_error,
        history=tuple(
            FailedRun(moment(one.at), one.attempt, one.error, origin(one.origin, origins)) for one in record.history
        ),
        result=record.result,
        progress=record.progress,
        metadata={**(options.metadata or {}), **record.metadata},
        log=record.log,
        successor=None if record.successor is None else text(record.successor),
        unreadable=CORRUPT in record.metadata,
        origin=origin(record.origin, origins),
    )


def schedule(found: StoredSchedule, *, declared: bool) -> Schedule:
    """A stored schedule as the user reads it."""
    return Schedule(
        name=found.name,
        kind=found.template.kind,
        queue=found.template.queue,
        payload=found.template.payload,
        cron=found.expression,
        words=in_words(found.expression),
        tz=found.tz,
        enabled=found.enabled,
        misfire=found.misfire,
        overlap=found.overlap,
        grace=timedelta(microseconds=found.grace),
        jitter=timedelta(microseconds=found.jitter),
        source=found.source,
        edited=found.edited,
        declared=declared,
        next_fire=_moment(found.next_fire) if found.enabled else None,
        last_fire=_moment(found.last_fire),
        last_status=None if found.last_status is None else found.last_status.value,
        last_missed=found.last_missed,
        last_error=found.last_error,
        last_job=None if found.last_fire is None else text(occurrence(found.name, found.last_fire)),
        missed=found.missed,
    )


def grant(given: throttle.Grant, reason: str | None) -> Grant:
    """An engine's grant as the caller gets it."""
    return Grant(given.granted, timedelta(microseconds=given.wait), reason, given.measure or None)


def _moment(at: Instant | None) -> datetime | None:
    return None if at is None else moment(at)


def _duration(value: Span | None) -> timedelta | None:
    return None if value is None else timedelta(microseconds=value)


def step(found: StoredStep) -> Step:
    """A row of a job as users see it."""
    told, called = about(found), called_job(found)
    value = found.value if found.state in (StepState.DONE, StepState.EARLY) else None
    return Step(
        name=found.name,
        state=found.state.name.lower(),
        value=None if value is None else msgspec.json.decode(value),
        error=told.error,
        at=moment(found.at),
        until=_moment(found.until),
        attempt=told.tries,
        waits_for=waits_for(found),
        ask=told.ask,
        schema=told.schema,
        job=None if called is None else text(called),
    )
