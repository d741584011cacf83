"""The operator's questions and actions as values.

`Query` asks for a page of jobs. `Selection` names the jobs an action is meant for, and `Change` is what to do with
them; `model.actions` says which statuses allow which change. Bulk actions are a walk: find a page, alter its ids, go on
from the page's cursor, so rows that are skipped can neither end the walk early nor make it spin.
"""

from __future__ import annotations

import enum
from functools import cached_property
from typing import Literal, Protocol, TypeAlias

import msgspec

from stoker.model.errors import InvalidArgument, InvalidInput, InvalidOption
from stoker.model.ids import JobId, minted_at
from stoker.model.job import FINISHED, LARGEST_BATCH, PRIORITIES, Draft, Job, Status, check_name, shown_error
from stoker.model.same_error import fingerprint_of
from stoker.model.steps import Step
from stoker.model.time import DAY, MINUTE, Instant, Span
from stoker.model.unique import keep_plain

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
NO_REASON = "canceled by an operator"

Order: TypeAlias = Literal["newest", "oldest", "finished", "due"]
ORDERS: tuple[Order, ...] = ("newest", "oldest", "finished", "due")
Due: TypeAlias = Literal["now", "later", "waiting"]

Place: TypeAlias = tuple[Instant, JobId]
"""Where a job is in the order of a time: the time, then the id."""

FIRST_ID, LAST_ID = b"", b"\xff" * 17
"""Before and behind every id."""

LATEST: Instant = (1 << 62) - 1
ID_CURSOR, TIMED_CURSOR = 16, 24

ALL = frozenset(Status)
WAITING = frozenset({Status.PENDING, Status.RETRYING})


class Query(msgspec.Struct, frozen=True, kw_only=True):
    """Which jobs, and in which order. Empty sets mean: all of them.

    `newest` and `oldest` follow the ids. `finished` lists finished jobs, the latest end first, and `due` waiting jobs,
    the soonest first; ids decide between equal times, in the same direction.

    `due` splits pending jobs by time: `now` are ready, `later` are scheduled, and those that are not due because their
    last run was suspended are `waiting`. `since` and `until` bound the creation
    time, `finished_since` and `finished_until` the end: at or after, strictly before. `ended_by` leaves out jobs that
    ended after it, and none that has not ended. `attempts_from` and `attempts_to` bound the attempts, both included.
    `worker` is how the id of the worker begins that runs a job.
    `text` looks into payload and last error, `payload` and `error` into one of them, ignoring case. `same_error` is
    the fingerprint of the last error of a job that failed in the same way.

    `group` is the group whose members are meant, `meta` a name and a value in the metadata that a job was enqueued with
    or that its runs noted since.

    `cursor` is that of the page before: opaque, and good for one order only.
    """

    statuses: frozenset[Status] = frozenset()
    queues: frozenset[str] = frozenset()
    kinds: frozenset[str] = frozenset()
    tenant: str | None = None
    key: str | None = None
    group: JobId | None = None
    meta: tuple[str, str] | None = None
    due: Due | None = None
    since: Instant | None = None
    until: Instant | None = None
    finished_since: Instant | None = None
    finished_until: Instant | None = None
    ended_by: Instant | None = None
    attempts_from: int | None = None
    attempts_to: int | None = None
    worker: str | None = None
    text: str | None = None
    payload: str | None = None
    error: str | None = None
    same_error: str | None = None
    order: Order = "newest"
    limit: int = 25
    cursor: bytes | None = None

    def __post_init__(self) -> None:
        for status in self.statuses:
            if not isinstance(status, Status):
                raise InvalidArgument("status", status, f"must be one of {', '.join(Status)}")
        if not 1 <= self.limit <= LARGEST_PAGE:
            raise InvalidArgument("limit", self.limit, f"must be between 1 and {LARGEST_PAGE}")
        if self.order not in ORDERS:
            raise InvalidArgument("order", self.order, f"must be one of {', '.join(ORDERS)}")
        if self.due not in (None, "now", "later", "waiting"):
            raise InvalidArgument("due", self.due, "must be now, later or waiting")
        if self.cursor is not None and not _fits(self.cursor, timed=self.timed):
            raise InvalidArgument("cursor", self.cursor.hex(), f"is none of the order {self.order}; begin without one")
        if not self.wanted:
            raise InvalidArgument(
                "order" if self.timed else "finished", self.order, f"no job that {_asked(self)} has it"
            )

    @property
    def timed(self) -> bool:
        """Does the order follow a time, and not the ids?"""
        return self.order in ("finished", "due")

    @property
    def ended(self) -> bool:
        """Does it ask for finished jobs only, by its order or its window?"""
        return self.order == "finished" or self.finished_since is not None or self.finished_until is not None

    @property
    def wanted(self) -> frozenset[Status]:
        """The statuses that a job on the pages may have."""
        wanted = self.statuses or ALL
        if self.due is not None:
            wanted &= {Status.PENDING}
        if self.ended:
            wanted &= FINISHED
        return wanted & WAITING if self.order == "due" else wanted

    @property
    def has_texts(self) -> bool:
        """Does it look for texts in payload or error?"""
        return not (self.text is self.payload is self.error is None)

    @property
    def looks_inside(self) -> bool:
        """Does it ask about payload or error?"""
        return self.has_texts or self.same_error is not None

    @property
    def meta_json(self) -> str | None:
        """The entry of the metadata as the JSON of options and notes holds it; None: none is asked for."""
        return None if self.meta is None else ":".join(msgspec.json.encode(part).decode() for part in self.meta)

    def start(self, now: Instant) -> Place:
        """Where a walk in the order of a time begins: strictly behind this."""
        if self.cursor is not None:
            return int.from_bytes(self.cursor[:8]), self.cursor[8:]
        if self.order == "due":
            return (now, LAST_ID) if self.due == "later" else (0, FIRST_ID)
        return (LATEST, LAST_ID) if self.finished_until is None else (max(self.finished_until, 0), FIRST_ID)

    def is_over(self, at: Instant, now: Instant) -> bool:
        """Will no job of this time or beyond it, in the order of a time, be on a page?"""
        if self.order == "due":
            return self.due == "now" and at > now
        return self.finished_since is not None and at < self.finished_since


def _fits(cursor: bytes, *, timed: bool) -> bool:
    """Can it be the cursor of such an order?"""
    if not timed:
        return len(cursor) == ID_CURSOR
    return len(cursor) == TIMED_CURSOR and cursor_time(cursor) <= LATEST


def _asked(query: Query) -> str:
    return f"is {', '.join(sorted(query.statuses))}" if query.statuses else "waits"


def cursor_at(at: Instant, job: JobId) -> bytes:
    """The cursor behind a job in the order of a time."""
    return at.to_bytes(8) + job


def cursor_behind(job: Placed, query: Query) -> bytes:
    """The cursor from which a page goes on behind a job, in the order of a query."""
    return cursor_at(*place_of(job, query)) if query.timed else job.id


def cursor_time(cursor: bytes) -> Instant:
    """The time that a cursor stands at: that of its order, else when its job's id was made."""
    return int.from_bytes(cursor[:8]) if len(cursor) == TIMED_CURSOR else minted_at(cursor)


def place_of(job: Placed, query: Query) -> Place:
    """Where a job is in the order of a time."""
    at = job.scheduled_at if query.order == "due" else job.finished_at
    return at or 0, job.id


def write_cursor(cursor: bytes) -> str:
    """A cursor as text, for people and addresses."""
    return cursor.hex()


def read_cursor(text: str) -> bytes:
    """What `write_cursor` wrote; an id in its usual form is good too."""
    try:
        return bytes.fromhex(text.replace("-", ""))
    except ValueError:
        raise InvalidArgument("cursor", text, "must be the one of the page before") from None


class Placed(Protocol):
    """The fields of a job that an order sorts by."""

    @property
    def id(self) -> JobId: ...
    @property
    def scheduled_at(self) -> Instant: ...
    @property
    def finished_at(self) -> Instant | None: ...


class Page(msgspec.Struct, frozen=True):
    """Jobs in the requested order. `cursor` is None at the end; `scanned` is how many records were read."""

    jobs: list[Job]
    cursor: bytes | None
    scanned: int


def matches(job: Job, query: Query, now: Instant) -> bool:
    """Does the job belong on the query's pages? Engines narrow with their indexes first and ask this for the rest."""
    return (
        job.status in query.wanted
        and (not query.queues or job.queue in query.queues)
        and (not query.kinds or job.kind in query.kinds)
        and (query.tenant is None or job.tenant == query.tenant)
        and (query.key is None or (job.unique is not None and job.unique.key == query.key))
        and (query.group is None or job.options.group == query.group)
        and (query.meta is None or _metadata(job, query.meta[0]) == query.meta[1])
        and (query.since is None or job.created_at >= query.since)
        and (query.until is None or job.created_at < query.until)
        and (query.due is None or _is_due(job, query.due, now))
        and (query.finished_since is None or (job.finished_at or 0) >= query.finished_since)
        and (query.finished_until is None or (job.finished_at or 0) < query.finished_until)
        and (query.ended_by is None or (job.finished_at or 0) <= query.ended_by)
        and (query.attempts_from is None or job.attempts >= query.attempts_from)
        and (query.attempts_to is None or job.attempts <= query.attempts_to)
        and (query.worker is None or (job.worker or "").startswith(query.worker))
        and has_texts(job, query)
        and (query.same_error is None or _fingerprint(job) == query.same_error)
    )


def has_texts(job: Job, query: Query, *, errors_only: bool = False) -> bool:
    """Does a job have the texts that a query looks for? With `errors_only` nothing is found in payloads."""
    return (
        (query.text is None or (not errors_only and _in_payload(job, query.text)) or _in_error(job, query.text))
        and (query.payload is None or (not errors_only and _in_payload(job, query.payload)))
        and (query.error is None or _in_error(job, query.error))
    )


def _metadata(job: Job, name: str) -> str | None:
    """An entry of a job's metadata as people see it: what a run noted stands before what the job came with."""
    return job.metadata.get(name, (job.options.metadata or {}).get(name))


def _is_due(job: Job, due: Due, now: Instant) -> bool:
    if job.status is not Status.PENDING or (job.scheduled_at > now) == (due == "now"):
        return False
    return due == "now" or job.suspended == (due == "waiting")


def _in_payload(job: Job, text: str) -> bool:
    return text.casefold() in job.payload.decode(errors="replace").casefold()


def _in_error(job: Job, text: str) -> bool:
    error = shown_error(job.status, job.last_error)
    return error is not None and text.casefold() in error.casefold()


def _fingerprint(job: Job) -> str | None:
    error = shown_error(job.status, job.last_error)
    return None if error is None else fingerprint_of(error)


class Selection(msgspec.Struct, frozen=True):
    """The jobs an action is meant for, as the operator saw them.

    `statuses` are those in which the operator saw them, one per job in their order (empty: whatever they are). `bound`
    is the moment of a bulk action: jobs that were created, ended or started again after it are refused (`as_seen`).
    """

    ids: tuple[JobId, ...]
    statuses: tuple[Status, ...] = ()
    bound: Instant | None = None

    def __post_init__(self) -> None:
        if len(self.ids) > LARGEST_BATCH:
            raise InvalidInput("selection", f"{len(self.ids)} ids", f"must be at most {LARGEST_BATCH} at once")
        if self.statuses and len(self.statuses) != len(self.ids):
            raise InvalidInput("statuses", len(self.statuses), f"must be one for each of {len(self.ids)} selected jobs")


class Cancel(msgspec.Struct, frozen=True):
    """Pending and retrying jobs become canceled; a running one is asked to stop, or with `force` loses its claim."""

    reason: str = NO_REASON
    force: bool = False

    @property
    def given(self) -> str | None:
        """The reason that the operator gave; None: there is none."""
        return None if self.reason == NO_REASON else self.reason or None

    def note(self) -> dict[str, str]:
        """What a request to stop leaves in a running job's metadata, for its worker and for operators."""
        return {CANCEL_REASON: self.reason[:LONGEST_REASON]} if self.reason else {}


class Requeue(msgspec.Struct, frozen=True):
    """Put back to pending, due now, in place: the counter goes on, the budget is fresh."""


class Clone(msgspec.Struct, frozen=True):
    """Enqueue a copy under a new id (`ids`, one per selected job) and mark the dead original as retried.

    `lineages` go into the metadata of the copies of sealed jobs, one per job (`model.seal.LINEAGE`).
    """

    ids: tuple[JobId, ...]
    lineages: tuple[str, ...] = ()


class Fork(msgspec.Struct, frozen=True):
    """Enqueue a copy under a new id (`ids`, one per selected job) that keeps some steps; the original stays as it is.

    The copy has the finished steps that were stored no later than the one named `after`; without it none. It holds no
    unique key, and takes another `payload` if one is given. `lineages` as of a `Clone`.
    """

    ids: tuple[JobId, ...]
    after: str | None = None
    payload: bytes | None = None
    lineages: tuple[str, ...] = ()


class Discard(msgspec.Struct, frozen=True):
    """Take a dead job off the dead list without running it again."""


class Delete(msgspec.Struct, frozen=True):
    """Remove the record and its events; a running job is asked to stop instead."""


class RunNow(msgspec.Struct, frozen=True, omit_defaults=True):
    """Make a pending job due now. With `first` it starts before every other job of its queue, also one that retries.

    A job that was put first may take a token that its queue's rate does not have yet (`Queue.starts`). It waits like
    any other while the queue is paused or cools down, and while its limit is full.
    """

    first: bool = False


class Move(msgspec.Struct, frozen=True):
    """Put a waiting job into another queue."""

    queue: str

    def __post_init__(self) -> None:
        keep_plain(self, queue=check_name("queue", self.queue))


class Prioritize(msgspec.Struct, frozen=True):
    """Give a waiting job another priority."""

    priority: int

    def __post_init__(self) -> None:
        if self.priority not in PRIORITIES:
            raise InvalidInput("priority", self.priority, "must be between -1000 and 1000 (lower runs first)")


class Edit(msgspec.Struct, frozen=True, kw_only=True):
    """Change what a waiting or dead job was enqueued with; None leaves a field as it is. A dead job has no due time."""

    payload: bytes | None = None
    priority: int | None = None
    at: Instant | None = None
    attempts: int | None = None

    def __post_init__(self) -> None:
        given = {name: value for name in self.__struct_fields__ if (value := getattr(self, name)) is not None}
        if not given:
            raise InvalidInput("edit", "nothing", f"must change at least one of {', '.join(self.__struct_fields__)}")
        Draft(b"0" * 16, "edit", **given)  # it must be what a draft may have


class Former(msgspec.Struct, frozen=True, gc=False):
    """A job as it was before a change: enough to tell of it, and to restore it. `ended` is its end after the change."""

    id: JobId
    kind: str
    queue: str
    status: Status
    attempts: int
    token: int
    scheduled_at: Instant
    ended: Instant | None = None
    started_at: Instant | None = None


class Restore(msgspec.Struct, frozen=True):
    """Undo a cancel or a discard: each selected job becomes what `former` (one per job, in their order) says.

    Only while nothing has happened to it since; waiting again, it has its due time and its budget.
    """

    former: tuple[Former, ...]


class Reseal(msgspec.Struct, frozen=True):
    """Store values of jobs in another form, each field only while it is as it was read: `before` becomes `after`.

    One job each per selected job, in their order, and the rows of its steps. A job in any status is changed, and so is
    nothing that people or workers see of it.
    """

    before: tuple[Job, ...]
    after: tuple[Job, ...]
    rows: tuple[tuple[tuple[Step, Step], ...], ...] = ()


Change: TypeAlias = (
    Cancel | Requeue | Clone | Fork | Discard | Delete | RunNow | Move | Prioritize | Edit | Restore | Reseal
)


class Seen(Protocol):
    """What of a stored job is compared with what an operator saw."""

    @property
    def status(self) -> Status: ...
    @property
    def created_at(self) -> Instant: ...
    @property
    def started_at(self) -> Instant | None: ...
    @property
    def finished_at(self) -> Instant | None: ...


def as_seen(job: Seen, selection: Selection, position: int, change: Change) -> bool:
    """Is the job at this position of a selection still as the operator saw it?

    A bulk action that is repeated must not touch a job twice. One that it has put back and that ended again ended after
    the bound. One that waits again has no end: it was started after the bound, which matters only to a change that
    starts jobs.
    """
    if selection.statuses and job.status is not selection.statuses[position]:
        return False
    if selection.bound is None:
        return True
    starts = isinstance(change, Requeue | RunNow) and job.status in WAITING
    last = max(job.created_at, job.finished_at or 0, (job.started_at or 0) if starts else 0)
    return last <= selection.bound


def as_of(query: Query, at: Instant) -> Query:
    """The same question about the jobs that existed at a moment and have not ended since: those of a bulk action."""
    until = at + 1  # `until` is exclusive, and what was enqueued at this instant counts
    return msgspec.structs.replace(query, ended_by=at, until=until if query.until is None else min(query.until, until))


def matched_at(job: Job, query: Query, at: Instant) -> bool:
    """Did a job that a query means now belong to it at an earlier moment already, as far as its record tells?

    Else the number of a preview would grow while jobs run: one that fails joins those that retry, one that starts joins
    those that run, and one whose time has come joins those that are ready.
    """
    waits = job.status in WAITING
    ended = job.finished_at if not waits else job.history[-1].at if job.history else None
    if job.created_at > at or (ended or 0) > at:
        return False
    if job.status is Status.RUNNING and (job.started_at or 0) > at:
        return bool(query.wanted & WAITING)
    return query.due != "now" or job.scheduled_at <= at


class Tally(msgspec.Struct, frozen=True, kw_only=True):
    """What an action did, job by job, summed up. `created` holds clones; `changed_ids` are the jobs it changed.

    `former` says what each of those was before, in their order; jobs that could not be read are missing there.
    """

    changed: int = 0
    cancel_requested: int = 0
    missing: int = 0
    blocked: int = 0
    refused: dict[Status, int] = {}
    created: tuple[JobId, ...] = ()
    changed_ids: tuple[JobId, ...] = ()
    former: tuple[Former, ...] = ()


class Count(msgspec.Struct, frozen=True, gc=False):
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

    `later` are pending jobs that are not due, per queue, so that `ready` is exact however many they are; `waiting` are
    those of them whose last run was suspended, and the rest is `scheduled`.
    `oldest_ready` is the smallest scheduled time of due pending jobs, `oldest_running` the earliest claim that runs.
    Postgres may report these two up to ten seconds late while a session holds an old snapshot.
    """

    at: Instant
    counts: tuple[Count, ...] = ()
    later: dict[str, int] = {}
    waiting: dict[str, int] = {}
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
        return (0 if sums is None else sums[Status.PENDING]) - self.later.get(queue, 0)

    def scheduled(self, queue: str) -> int:
        """Pending jobs of a queue that have a time, which has not come."""
        return self.later.get(queue, 0) - self.suspended(queue)

    def suspended(self, queue: str) -> int:
        """Pending jobs of a queue that wait for a signal, a called job or a time, and are not due."""
        return self.waiting.get(queue, 0)

    def lag(self, queue: str) -> Span:
        """How long the oldest due job of a queue has been waiting."""
        return self.at - self.oldest_ready.get(queue, self.at)

    def kinds(self, queue: str | None = None) -> list[str]:
        """The kinds that have jobs, sorted."""
        return sorted({count.kind for count in self.counts if queue is None or count.queue == queue})


def is_counted(query: Query) -> bool:
    """Do counters know how many jobs a query means? It asks for statuses, queues, kinds and due alone."""
    plain = Query(statuses=query.statuses, queues=query.queues, kinds=query.kinds, due=query.due, order=query.order)
    by_queue = query.due is not None and bool(query.kinds)
    return msgspec.structs.replace(query, limit=plain.limit, cursor=None) == plain and not by_queue


def queues_of(query: Query, census: Census) -> frozenset[str]:
    """The queues of the jobs that a query means which `is_counted`."""
    return frozenset(
        one.queue
        for one in census.counts
        if one.status in query.wanted
        and (not query.queues or one.queue in query.queues)
        and (not query.kinds or one.kind in query.kinds)
    )


def counted(query: Query, census: Census) -> int:
    """How many jobs a query means that `is_counted`."""
    return sum(one.n for one in chosen_counts(query, census))


def chosen_counts(query: Query, census: Census) -> list[Count]:
    """The counts of the jobs that a query means which `is_counted`; of due ones, and scheduled ones, by queue alone."""
    chosen = [
        count
        for count in census.counts
        if count.status in query.wanted
        and (not query.queues or count.queue in query.queues)
        and (not query.kinds or count.kind in query.kinds)
    ]
    if query.due is None:
        return chosen
    names = sorted({one.queue for one in chosen})
    n = {"now": census.ready, "later": census.scheduled, "waiting": census.suspended}[query.due]
    return [Count(queue=name, kind="", status=Status.PENDING, n=n(name)) for name in names]


class Sweep(enum.StrEnum):
    """What an `expire` removes, in this order; each sweep is a step of its own."""

    JOBS = "jobs"
    EVENTS = "events"
    POINTS = "points"
    PRESENCES = "presences"
    LOCKS = "locks"
    KEYS = "keys"
    """Unique keys that were kept for a time after a success (`unique.Kept`)."""
    RECEIPTS = "receipts"
    AUDIT = "audit"
    LIMITS = "limits"
    """Removes nothing: it counts the slots of keys that have been full for long again (`subqueues.suspicious`)."""
    OPERATIONS = "operations"
    BUCKETS = "buckets"
    """Buckets of keys of budgets that are full again."""


class Retention(msgspec.Struct, frozen=True, kw_only=True):
    """How much one `expire` removes, and how old the rest may grow.

    `finished` bounds how many finished jobs are kept: beyond it those nearest to their expiry go first. `sweeps` names
    what the call removes. Points of kinds go after `kind_points`, if that is sooner: there are many of them. A call
    looks for these among the points of `KINDS_BEHIND` before that; a store that was not cleaned for longer keeps the
    others as long as all points.
    """

    sweeps: frozenset[Sweep] = frozenset(Sweep)

    limit: int = 1_000
    events: Span = 30 * DAY
    points: Span = 30 * DAY
    kind_points: Span = DAY
    presences: Span = MINUTE
    audit: Span = 90 * DAY
    operations: Span = 30 * DAY
    finished: int | None = None


KINDS_BEHIND: Span = 15 * MINUTE
"""Three times as long as workers pause between two cleanings, unless a setting changes it."""


def kind_points_between(retention: Retention, now: Instant) -> tuple[Instant, Instant]:
    """From when on and until when a call removes points of kinds."""
    until = now - retention.kind_points
    return until - KINDS_BEHIND, until


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


class Repair(msgspec.Struct, frozen=True):
    """A subqueue whose number of running jobs was wrong: what the store had counted, and how many hold a slot."""

    queue: str
    name: str
    counted: int
    holders: int


class Expired(msgspec.Struct, frozen=True, kw_only=True):
    """How much one `expire` removed. `events` are those that were too old; `repairs` are those of wrong numbers."""

    jobs: int = 0
    events: int = 0
    points: int = 0
    presences: int = 0
    locks: int = 0
    keys: int = 0
    receipts: int = 0
    audit: int = 0
    operations: int = 0
    buckets: int = 0
    repairs: tuple[Repair, ...] = ()

    @property
    def limits(self) -> int:
        """How many wrong numbers were repaired."""
        return len(self.repairs)

    def __add__(self, other: Expired) -> Expired:
        return Expired(**{name: getattr(self, name) + getattr(other, name) for name in self.__struct_fields__})
