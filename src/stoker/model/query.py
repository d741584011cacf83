"""The operator's questions and actions as values.

`Query` asks for a page of jobs. `Selection` names the jobs an action is meant for, and `Change` is what to do with
them; which statuses allow which change is the table below. Bulk actions are a walk: find a page, alter its ids, go on
from the page's cursor, so rows that are skipped can neither end the walk early nor make it spin.
"""

from __future__ import annotations

import enum
from functools import cached_property
from typing import Literal, TypeAlias

import msgspec

from stoker.model.errors import InvalidInput, InvalidOption
from stoker.model.ids import JobId
from stoker.model.job import FINISHED, LARGEST_BATCH, PRIORITIES, Job, Status, check_name, shown_error
from stoker.model.lifecycle import TRANSITIONS
from stoker.model.time import DAY, MINUTE, Instant, Span

LARGEST_PAGE = 1_000
LONGEST_WALK = 10_000
"""A page ends after this many records, with a cursor from which the next page goes on."""

COUNT_LIMIT = 10_000
"""Up to how many scheduled jobs of a queue a census counts one by one before it counts the due ones instead."""

COUNT_FURTHER = 8
"""The factor by which that limit grows where both are many."""

CANCEL_REASON = "stoker.cancel_reason"
"""Metadata key: why a running job was asked to stop."""

LONGEST_REASON = 1_000

Order: TypeAlias = Literal["newest", "oldest"]
Due: TypeAlias = Literal["now", "later"]


class Query(msgspec.Struct, frozen=True, kw_only=True):
    """Which jobs, in id order. Empty sets mean: all of them. `text` looks into payload and last error, ignoring case.

    `due` splits pending jobs by time: `now` are ready, `later` are scheduled. `since` and `until` bound the creation
    time: at or after, strictly before.
    """

    statuses: frozenset[Status] = frozenset()
    queues: frozenset[str] = frozenset()
    kinds: frozenset[str] = frozenset()
    tenant: str | None = None
    key: str | None = None
    due: Due | None = None
    since: Instant | None = None
    until: Instant | None = None
    text: str | None = None
    order: Order = "newest"
    limit: int = 25
    cursor: JobId | None = None

    def __post_init__(self) -> None:
        for status in self.statuses:
            if not isinstance(status, Status):
                raise InvalidInput("status", status, f"must be one of {', '.join(Status)}")
        if not 1 <= self.limit <= LARGEST_PAGE:
            raise InvalidInput("limit", self.limit, f"must be between 1 and {LARGEST_PAGE}")
        if self.order not in ("newest", "oldest"):
            raise InvalidInput("order", self.order, "must be newest or oldest")
        if self.due not in (None, "now", "later"):
            raise InvalidInput("due", self.due, "must be now or later")


class Page(msgspec.Struct, frozen=True):
    """Jobs in the requested order. `cursor` is None at the end; `scanned` is how many records were read."""

    jobs: list[Job]
    cursor: JobId | None
    scanned: int


def matches(job: Job, query: Query, now: Instant) -> bool:
    """Does the job belong on the query's pages? Engines narrow with their indexes first and ask this for the rest."""
    return (
        (not query.statuses or job.status in query.statuses)
        and (not query.queues or job.queue in query.queues)
        and (not query.kinds or job.kind in query.kinds)
        and (query.tenant is None or job.tenant == query.tenant)
        and (query.key is None or (job.unique is not None and job.unique.key == query.key))
        and (query.since is None or job.created_at >= query.since)
        and (query.until is None or job.created_at < query.until)
        and (query.due is None or _is_due(job, query.due, now))
        and (query.text is None or _mentions(job, query.text.casefold()))
    )


def _is_due(job: Job, due: Due, now: Instant) -> bool:
    return job.status is Status.PENDING and (job.scheduled_at > now) == (due == "later")


def _mentions(job: Job, needle: str) -> bool:
    if needle in job.payload.decode(errors="replace").casefold():
        return True
    error = shown_error(job.status, job.last_error)
    return error is not None and needle in error.casefold()


class Selection(msgspec.Struct, frozen=True):
    """The jobs an action is meant for; `statuses` narrows it to what the operator saw (empty: whatever they are)."""

    ids: tuple[JobId, ...]
    statuses: frozenset[Status] = frozenset()

    def __post_init__(self) -> None:
        if len(self.ids) > LARGEST_BATCH:
            raise InvalidInput("selection", f"{len(self.ids)} ids", f"must be at most {LARGEST_BATCH} at once")


class Cancel(msgspec.Struct, frozen=True):
    """Pending and retrying jobs become canceled; a running one is asked to stop, or with `force` loses its claim."""

    reason: str = "canceled by an operator"
    force: bool = False

    def note(self) -> dict[str, str]:
        """What a request to stop leaves in a running job's metadata, for its worker and for operators."""
        return {CANCEL_REASON: self.reason[:LONGEST_REASON]} if self.reason else {}


class Requeue(msgspec.Struct, frozen=True):
    """Put back to pending, due now, in place: the counter goes on, the budget is fresh."""


class Clone(msgspec.Struct, frozen=True):
    """Enqueue a copy under a new id (`ids`, one per selected job) and mark the dead original as retried."""

    ids: tuple[JobId, ...]


class Discard(msgspec.Struct, frozen=True):
    """Take a dead job off the dead list without running it again."""


class Delete(msgspec.Struct, frozen=True):
    """Remove the record and its events; a running job is asked to stop instead."""


class RunNow(msgspec.Struct, frozen=True):
    """Make a waiting job due now."""


class Move(msgspec.Struct, frozen=True):
    """Put a waiting job into another queue."""

    queue: str

    def __post_init__(self) -> None:
        check_name("queue", self.queue)


class Prioritize(msgspec.Struct, frozen=True):
    """Give a waiting job another priority."""

    priority: int

    def __post_init__(self) -> None:
        if self.priority not in PRIORITIES:
            raise InvalidInput("priority", self.priority, "must be between -1000 and 1000 (lower runs first)")


Change: TypeAlias = Cancel | Requeue | Clone | Discard | Delete | RunNow | Move | Prioritize

WAITING = frozenset({Status.PENDING, Status.RETRYING})
REQUEUEABLE = frozenset(status for status in FINISHED if Status.PENDING in TRANSITIONS[status]) | {Status.RETRYING}

ALLOWED: dict[type[Change], frozenset[Status]] = {
    Cancel: WAITING | {Status.RUNNING},
    Requeue: REQUEUEABLE,
    Clone: frozenset({Status.DEAD}),
    Discard: frozenset({Status.DEAD}),
    Delete: frozenset(Status),
    RunNow: frozenset({Status.PENDING}),
    Move: WAITING,
    Prioritize: WAITING,
}
"""Which statuses a change applies to. On a running job cancel and delete become a request to stop."""


def allows(change: Change, status: Status, selection: Selection) -> bool:
    """May this change touch a job in this status?"""
    return status in ALLOWED[type(change)] and (not selection.statuses or status in selection.statuses)


class Tally(msgspec.Struct, frozen=True, kw_only=True):
    """What an action did, job by job, summed up. `created` holds clones; `changed_ids` are the jobs it changed."""

    changed: int = 0
    cancel_requested: int = 0
    missing: int = 0
    blocked: int = 0
    refused: dict[Status, int] = {}
    created: tuple[JobId, ...] = ()
    changed_ids: tuple[JobId, ...] = ()


class Count(msgspec.Struct, frozen=True):
    """How many jobs of one kind in one queue are in one status."""

    queue: str
    kind: str
    status: Status
    n: int


class Totals(msgspec.Struct, frozen=True, kw_only=True):
    """What became of a kind's jobs since the store was made. Success clears the last error."""

    enqueued: int = 0
    completed: int = 0
    retried: int = 0
    failed: int = 0
    canceled: int = 0
    last_error: str | None = None


def scheduled_count(pending: int, later: int, due: int, limit: int) -> int | None:
    """How many of a queue's pending jobs are not due, from counts of both kinds that stop at `limit`.

    One complete count is enough, because the number of pending jobs is known. None: both stopped, count further.
    """
    if later < limit:
        return later
    return max(0, pending - due) if due < limit else None


class Census(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """All counts at one instant, read from counters. Only numbers above zero appear.

    `scheduled` are pending jobs that are not due, per queue, so that `ready` is exact however many they are.
    `oldest_ready` is the smallest scheduled time of due pending jobs, `oldest_running` the earliest claim that runs.
    Postgres may report these two up to ten seconds late while a session holds an old snapshot.
    """

    at: Instant
    counts: tuple[Count, ...] = ()
    scheduled: dict[str, int] = {}
    oldest_ready: dict[str, Instant] = {}
    oldest_running: dict[str, Instant] = {}
    totals: dict[str, Totals] = {}

    def by_status(self, queue: str | None = None) -> dict[Status, int]:
        """Counts per status, zeros included, over everything or one queue."""
        return dict(self._sums.get(queue) or dict.fromkeys(Status, 0))

    @cached_property
    def _sums(self) -> dict[str | None, dict[Status, int]]:
        """Counts per status of each queue, and of all under None: added up once, however many queues there are."""
        found: dict[str | None, dict[Status, int]] = {None: dict.fromkeys(Status, 0)}
        for count in self.counts:
            found.setdefault(count.queue, dict.fromkeys(Status, 0))[count.status] += count.n
            found[None][count.status] += count.n
        return found

    def ready(self, queue: str) -> int:
        """Pending jobs of a queue that are due."""
        sums = self._sums.get(queue)
        return (0 if sums is None else sums[Status.PENDING]) - self.scheduled.get(queue, 0)

    def lag(self, queue: str) -> Span:
        """How long the oldest due job of a queue has been waiting."""
        return self.at - self.oldest_ready.get(queue, self.at)

    def kinds(self, queue: str | None = None) -> list[str]:
        """The kinds that have jobs, sorted."""
        return sorted({count.kind for count in self.counts if queue is None or count.queue == queue})


class Sweep(enum.StrEnum):
    """What an `expire` removes, in this order; each sweep is a step of its own."""

    JOBS = "jobs"
    EVENTS = "events"
    POINTS = "points"
    PRESENCES = "presences"
    LOCKS = "locks"
    RECEIPTS = "receipts"


class Retention(msgspec.Struct, frozen=True, kw_only=True):
    """How much one `expire` removes, and how old the rest may grow.

    `finished` bounds how many finished jobs are kept: beyond it those nearest to their expiry go first. `sweeps` names
    what the call removes.
    """

    sweeps: frozenset[Sweep] = frozenset(Sweep)

    limit: int = 1_000
    events: Span = 30 * DAY
    points: Span = 30 * DAY
    presences: Span = MINUTE
    finished: int | None = None


def bounded(retention: Retention, history: int | None) -> Retention:
    """A retention under an engine's `history`: of two bounds on finished jobs the lower one counts."""
    bounds = [bound for bound in (retention.finished, history) if bound is not None]
    return msgspec.structs.replace(retention, finished=min(bounds)) if bounds else retention


def history_of(given: int | str | None) -> int | None:
    """The option `history`, from code or as the text of a URL; None: any number of finished jobs is kept."""
    try:
        found = None if given is None else int(given)
    except ValueError:
        found = 0
    if found is not None and found < 1:
        raise InvalidOption("history", given, "must be a whole number of at least 1")
    return found


class Expired(msgspec.Struct, frozen=True, kw_only=True):
    """How much one `expire` removed. `events` includes those of removed jobs."""

    jobs: int = 0
    events: int = 0
    points: int = 0
    presences: int = 0
    locks: int = 0
    receipts: int = 0

    def __add__(self, other: Expired) -> Expired:
        return Expired(**{name: getattr(self, name) + getattr(other, name) for name in self.__struct_fields__})
