"""Events: what happened to jobs, derived from writes that applied.

Over any period, started = completed + failed + retried + released + waiting + canceled while running + still running.
A superseded job and a deduplicated enqueue emit nothing. Occurrences of a schedule that made no job are one event.
"""

from __future__ import annotations

import enum
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from operator import attrgetter
from typing import TypeAlias

import msgspec

from stoker.model.actions import action_of
from stoker.model.groups import Closing
from stoker.model.ids import JobId, text
from stoker.model.job import DEFAULT_QUEUE, PLAIN, Claim, Draft, Job, Receipt, Settlement, Status, Stored, Verdict
from stoker.model.lifecycle import TOLD
from stoker.model.query import Cancel, Change, Clone, Delete, Fork, Former, Repair, Restore, Tally
from stoker.model.same_error import signature
from stoker.model.time import HOUR, LATEST, MINUTE, SECOND, Instant, Span

MOST_SAMPLES = 10_000
"""Store timings kept per kind between two drains."""

REMEMBERED: Span = HOUR
"""For so long a store knows which chunks of events it has, and which jobs were deleted."""

MOST_REMEMBERED = 50_000
"""How many of both an engine without a disk keeps; it drops the oldest."""


class EventType(enum.StrEnum):
    """What happened."""

    ENQUEUED = "enqueued"
    STARTED = "started"
    COMPLETED = "completed"
    RETRIED = "retried"
    FAILED = "failed"
    CANCELED = "canceled"
    RELEASED = "released"
    WAITING = "waiting"
    """The run was suspended: the job waits for time, a signal or called jobs."""
    SCHEDULE_MISSED = "schedule_missed"
    """Occurrences of a schedule made no job. The event has the id that the first of them would have had, the kind and
    queue of the schedule's jobs, and how many there were as its `attempt`."""
    GROUP_CLOSED = "group_closed"
    """All members of a group are finished. The event has the group's id, the queue of its first member, and the time
    since the group was made as its `duration`."""
    LIMIT_REPAIRED = "limit_repaired"
    """The number of running jobs of a key was wrong and was repaired. The event has an id of its own, the name of the
    limit as its kind, and by how many jobs the number was wrong as its `attempt`."""


class Event(msgspec.Struct, frozen=True, gc=False):
    """One thing that happened to one job.

    `duration` is the run's, where a run ended. `total` is the time since the enqueue, where the job was completed, and
    `wait` how long the job was due before that run. `error` is the signature of the error with which a run failed, and
    `release` that of the app in which it failed, where it is known.
    """

    at: Instant
    type: EventType
    job: JobId
    queue: str
    kind: str
    attempt: int = 0
    duration: Span | None = None
    total: Span | None = None
    wait: Span | None = None
    error: str = ""
    release: str = ""


class EventCount(msgspec.Struct, frozen=True, gc=False):
    """How many events of a type there are in a queue, of one kind and with one error in one release.

    `error` and `release` are those of the events. With an error, `sample` is the newest of the jobs.
    """

    queue: str
    type: EventType
    n: int
    kind: str = ""
    error: str = ""
    sample: JobId = b""
    release: str = ""


Failing: TypeAlias = tuple[EventType, str, str, str, str]
"""What events with an error are counted by: type, queue, kind, error and release."""


class EventTally:
    """Counts events by type, queue and kind, and those with an error by that too."""

    __slots__ = ("_failed", "_newest", "_plain")

    def __init__(self) -> None:
        self._plain: defaultdict[tuple[EventType, str, str], int] = defaultdict(int)
        self._failed: dict[Failing, int] = {}
        self._newest: dict[Failing, JobId] = {}

    def add(self, names: Sequence[tuple[EventType, str, str]], counted: Mapping[int, int]) -> None:
        """Count events without an error: so many of each name, by its place."""
        plain = self._plain
        for place, n in counted.items():
            plain[names[place]] += n

    def add_failed(self, name: Failing, n: int, newest: JobId) -> None:
        """Count some events with one error, and the newest of their jobs."""
        self._failed[name] = self._failed.get(name, 0) + n
        self._newest[name] = max(self._newest.get(name, b""), newest)

    def add_event(self, event: Event) -> None:
        """Count an event."""
        if event.error:
            self.add_failed((event.type, event.queue, event.kind, event.error, event.release), 1, event.job)
        else:
            self._plain[event.type, event.queue, event.kind] += 1

    def counts(self) -> list[EventCount]:
        """What was counted, by queue, type, kind, error and release."""
        found = [EventCount(queue, type_, n, kind) for (type_, queue, kind), n in self._plain.items()]
        found += (
            EventCount(queue, type_, n, kind, error, self._newest[type_, queue, kind, error, release], release)
            for (type_, queue, kind, error, release), n in self._failed.items()
        )
        return sorted(found, key=_count_place)


_count_place = attrgetter("queue", "type", "kind", "error", "release")


class Latency(msgspec.Struct, frozen=True, gc=False):
    """A job that was completed: how long its last run took, and how long it took from the enqueue.

    `wait` is how long it was due before that run; None where that is not known.
    """

    queue: str
    finished: Instant
    processing: Span
    total: Span
    kind: str = ""
    wait: Span | None = None


class Point(msgspec.Struct, frozen=True, gc=False):
    """What was measured in one bucket of a series; writing the same queue, metric and bucket again overwrites it.

    A count has a `count` alone. Of measured values there were `count`, with this sum, percentiles and maximum.
    """

    queue: str
    metric: str
    bucket: Instant
    count: int
    sum: float = 0
    p50: float = 0
    p95: float = 0
    p99: float = 0
    max: float = 0


class Window(msgspec.Struct, frozen=True):
    """A half-open period of time; `queue` and `job` narrow it."""

    since: Instant
    until: Instant
    queue: str | None = None
    job: JobId | None = None
    limit: int = 10_000


def window_of(job: Job, limit: int = 10_000) -> Window:
    """The time in which a job can have had events; a process hears of an end a little later than the record says.

    Only success is the last word: a dead job is discarded, cloned or restored later and keeps the time of its end.
    """
    ended = job.finished_at if job.status is Status.DONE else None
    until = LATEST if ended is None else ended + MINUTE
    return Window(job.created_at - MINUTE, until, job=job.id, limit=limit)


class Timings(msgspec.Struct, frozen=True):
    """Store calls timed since the last drain, in microseconds, and how many samples did not fit."""

    reads: list[int]
    writes: list[int]
    dropped: int = 0


FAILURES = frozenset({EventType.FAILED, EventType.RETRIED})
"""Events of runs that failed: they carry the error."""

_ENDED = {
    Status.DONE: EventType.COMPLETED,
    Status.DEAD: EventType.FAILED,
    Status.RETRYING: EventType.RETRIED,
    Status.CANCELED: EventType.CANCELED,
    Status.PENDING: EventType.RELEASED,
}


def of_insert(drafts: Sequence[Draft], receipts: Sequence[Receipt], at: Instant) -> list[Event]:
    """Events of drafts that were really inserted."""
    return [
        Event(at, EventType.ENQUEUED, receipt.id, draft.queue, draft.kind)
        for draft, receipt in zip(drafts, receipts, strict=True)
        if receipt.stored is Stored.INSERTED
    ]


def of_missed(first: JobId, queue: str, kind: str, missed: int, at: Instant) -> list[Event]:
    """The event of a tick that left occurrences of a schedule out; none if it left out none."""
    return [Event(at, EventType.SCHEDULE_MISSED, first, queue, kind, missed)] if missed else []


def of_closing(closing: Closing, at: Instant) -> list[Event]:
    """The events of a closing and of the callbacks that it stored."""
    group = closing.group
    assert group.closed_at is not None, "an open group has not closed"
    took = max(0, group.closed_at - group.created_at)
    closed = Event(at, EventType.GROUP_CLOSED, group.id, group.queue or DEFAULT_QUEUE, "group", duration=took)
    return [closed, *(Event(at, EventType.ENQUEUED, draft.job_id, draft.queue, draft.kind) for draft in closing.stored)]


def of_repair(repair: Repair, event: JobId, at: Instant) -> Event:
    """The event of a wrong number that was repaired."""
    wrong = abs(repair.counted - repair.holders)
    return Event(at, EventType.LIMIT_REPAIRED, event, repair.queue, repair.name.partition("/")[0], wrong)


def of_claims(claims: Iterable[Claim], off: Span = 0) -> list[Event]:
    """Events of fresh claims: each is a start, by a clock that is `off` ahead of the store's. A reaped claim is not.

    The first claim of a job that was enqueued in a user's transaction tells of the enqueue too.
    """
    found: list[Event] = []
    for claim in claims:
        if claim.former is None:
            if claim.options is not PLAIN and claim.options.untold and claim.attempt == 1 and not _told(claim):
                found.append(Event(claim.created_at + off, EventType.ENQUEUED, claim.id, claim.queue, claim.kind))
            at = claim.claimed_at + off
            found.append(Event(at, EventType.STARTED, claim.id, claim.queue, claim.kind, claim.attempt))
    return found


def _told(claim: Claim) -> bool:
    return claim.metadata is not None and TOLD in claim.metadata


def of_settlements(
    claims: Sequence[Claim],
    settlements: Sequence[Settlement],
    verdicts: Sequence[Verdict],
    at: Instant,
    off: Span = 0,
    release: str = "",
) -> list[Event]:
    """What settlements mean on the timeline, in their order; nothing for one that did not apply.

    `off` as in `of_claims`. `release` is that of the worker, in which its own runs failed.
    On the hot path of a worker: no call for each of them.
    """
    stored = at - off
    found: list[Event] = []
    for claim, settlement, verdict in zip(claims, settlements, verdicts, strict=True):
        if verdict is Verdict.APPLIED:
            # A claim that was reaped carries the start of the run that died: that run is what ends here.
            began = claim.claimed_at if claim.former_at is None else claim.former_at
            ended, ran, total, wait, error = _ENDED[settlement.status], stored - began, None, None, ""
            here = ""
            if settlement.wakes is not None:
                ended = EventType.WAITING
            elif ended is EventType.COMPLETED:
                total, wait = stored - claim.created_at, began - claim.scheduled_at
                total = total if total > 0 else 0  # noqa: FURB136 - a call of max costs half as much as the event
                wait = wait if wait > 0 else 0  # noqa: FURB136
            elif settlement.error is not None and ended in FAILURES:
                error = signature(settlement.error)
                here = release if claim.former is None else ""
            ran = ran if ran > 0 else 0  # noqa: FURB136
            found.append(
                Event(at, ended, claim.id, claim.queue, claim.kind, claim.attempt, ran, total, wait, error, here)
            )
    return found


def off_by(claims: Sequence[Claim], now: Instant) -> Span | None:
    """How far a clock that shows `now` is ahead of the store's, by claims that have just arrived.

    None: they tell nothing. Less than a second is the way of the reply, not a clock that is wrong.
    """
    fresh = [claim.claimed_at for claim in claims if claim.former is None]
    if not fresh:
        return None
    found = now - max(fresh)
    return found if abs(found) >= SECOND else 0


def in_flight(events: Iterable[Event]) -> Counter[JobId]:
    """How many runs of each job began and did not end, by all events of these jobs; jobs without any are left out.

    A job whose events begin in the middle of a run has a number below zero.
    """
    found: Counter[JobId] = Counter()
    for event in events:
        if event.type is EventType.STARTED:
            found[event.job] += 1
        elif event.type in ENDS_A_RUN or (event.type is EventType.CANCELED and event.duration is not None):
            found[event.job] -= 1
    return Counter({job: n for job, n in found.items() if n})


ENDS_A_RUN = frozenset(
    {EventType.COMPLETED, EventType.FAILED, EventType.RETRIED, EventType.RELEASED, EventType.WAITING}
)
"""Types of events that only the end of a run has. A cancel is the end of one only where it has a duration."""


_DIED = frozenset({Status.DEAD, Status.DISCARDED, Status.RETRIED})
"""A job with one of these ended as a dead one."""


def with_record(events: Sequence[Event], job: Job) -> list[Event]:
    """A job's events, oldest first, with those that are missing and that its record tells of.

    Events are written a little later, are lost with a process, and expire before records; of a job that was enqueued in
    a user's transaction the first claim writes them. The record knows the enqueue, each failure that it keeps, and the
    start and end of the last run. A worker notes the end of a run when the store has replied, and the same reply may
    bring the next run: the end is shown no later than that start.
    """
    found = list(events)
    known = {(one.type, one.attempt) for one in found}

    def add(
        at: Instant, type_: EventType, attempt: int, duration: Span | None = None, total: Span | None = None
    ) -> None:
        if (type_, attempt) not in known:
            known.add((type_, attempt))
            found.append(Event(at, type_, job.id, job.queue, job.kind, attempt, duration, total))

    add(job.created_at, EventType.ENQUEUED, 0)
    for one in job.history:
        last = job.status in _DIED and one.attempt == job.attempts
        add(one.at, EventType.FAILED if last else EventType.RETRIED, one.attempt)
    if job.started_at is not None:
        add(job.started_at, EventType.STARTED, job.attempts)
    if job.finished_at is not None:
        ran = None if job.started_at is None else max(0, job.finished_at - job.started_at)
        if job.status is Status.DONE:
            total = max(0, job.finished_at - job.created_at)
            add(job.finished_at, EventType.COMPLETED, job.attempts, ran, total)
        elif job.status in _DIED:
            add(job.finished_at, EventType.FAILED, job.attempts, ran)
        else:
            add(job.finished_at, EventType.CANCELED, job.attempts)
    starts = {one.attempt: one.at for one in found if one.type is EventType.STARTED}
    for n, event in enumerate(found):
        if event.type in ENDS_A_RUN and starts.get(event.attempt + 1, event.at) < event.at:
            found[n] = msgspec.structs.replace(event, at=starts[event.attempt + 1])
    return sorted(found, key=lambda one: (one.at, one.type is not EventType.ENQUEUED, one.attempt))


class Transition(msgspec.Struct, frozen=True, gc=False):
    """A change of status that the store accepted, as listeners receive it.

    `job` is the job's id as text. `before` is None for a new job, `after` for one that an operator deleted. `metadata`
    is what the job was enqueued with, `group` the id of its group as text. Of a deleted job only the first five are
    known.
    """

    job: str
    kind: str
    queue: str
    before: Status | None
    after: Status | None
    attempt: int = 0
    error: str | None = None
    tenant: str | None = None
    metadata: dict[str, str] = {}
    group: str | None = None


def _about(job: Claim | Draft | Job | None) -> tuple[str | None, dict[str, str], str | None]:
    """Tenant, metadata and group of a job, as far as it is known."""
    if job is None:
        return None, {}, None
    options = job.options
    return job.tenant, options.metadata or {}, None if options.group is None else text(options.group)


def transition_of(claim: Claim, settlement: Settlement) -> Transition:
    """What a settlement that applied means to a listener."""
    after, error = settlement.status, settlement.error
    job, about = text(claim.id), _about(claim)
    return Transition(job, claim.kind, claim.queue, Status.RUNNING, after, claim.attempt, error, *about)


def transition_to_pending(draft: Draft) -> Transition:
    """What a stored draft means to a listener."""
    job, about = text(draft.job_id), _about(draft)
    return Transition(job, draft.kind, draft.queue, None, Status.PENDING, 0, None, *about)


def transition_to_running(claim: Claim) -> Transition:
    """What a claim means to a listener."""
    job, about = text(claim.id), _about(claim)
    return Transition(job, claim.kind, claim.queue, claim.before, Status.RUNNING, claim.attempt, None, *about)


# --- what operators did ---------------------------------------------------------------------------------------------


def of_alter(change: Change, tally: Tally, at: Instant) -> list[Event]:
    """Events of an operator's change: cancels, and copies of jobs."""
    if isinstance(change, Cancel):
        return [
            Event(at, EventType.CANCELED, one.id, one.queue, one.kind, one.attempts, _ran(one, at))
            for one in tally.former
        ]
    if isinstance(change, Clone | Fork):
        copies = zip(tally.created, tally.former, strict=False)
        return [Event(at, EventType.ENQUEUED, job, one.queue, one.kind) for job, one in copies]
    return []


def _ran(one: Former, at: Instant) -> Span | None:
    """How long a run took that a cancel ended."""
    return None if one.status is not Status.RUNNING or one.started_at is None else max(0, at - one.started_at)


def transitions_of_alter(change: Change, tally: Tally, jobs: Iterable[Job | None] = ()) -> list[Transition]:
    """What an operator's change means to a listener, with the status that each job really had before.

    `jobs` are the changed ones and the copies as they are stored now.
    """
    found: list[Transition] = []
    stored = {one.id: one for one in jobs if one is not None}
    restored = {one.id: one.status for one in change.former} if isinstance(change, Restore) else {}
    for one in tally.former:
        after = restored.get(one.id) or action_of(change).becomes
        if after is not None or isinstance(change, Delete):
            error = change.reason if isinstance(change, Cancel) else None
            job, about = text(one.id), _about(stored.get(one.id))
            found.append(Transition(job, one.kind, one.queue, one.status, after, one.attempts, error, *about))
    for copy, one in zip(tally.created, tally.former, strict=False):
        about = _about(stored.get(copy))
        found.append(Transition(text(copy), one.kind, one.queue, None, Status.PENDING, 0, None, *about))
    return found
