"""A job as the store keeps it: the fields of `model.job.Job`, changed in place, plus where the job sits right now.

Nothing outside this package ever sees a `Record`; `as_job` and `as_claim` make the immutable values that leave.
"""

from __future__ import annotations

import copy

import msgspec

from stoker.model.control import Queue
from stoker.model.ids import JobId
from stoker.model.job import Claim, Draft, Job, Mishap, Options, Settlement, Status
from stoker.model.time import Instant
from stoker.model.unique import Holder, Unique

Cell = dict[Status, int]
"""How many jobs of one queue and kind are in each status."""

NOWHERE = 0
"""The ticket of a record that stands in no line."""


class Record(msgspec.Struct, gc=False, eq=False):
    """One stored job. `ticket` is its valid place in the line, `later` whether that place is among future jobs.

    `settled` is the settlement that ended the last run, kept to recognise it when it is sent again.
    """

    id: JobId
    kind: str
    queue: str
    payload: bytes
    priority: int
    budget: int
    created_at: Instant
    scheduled_at: Instant
    options: Options
    unique: Unique | None
    tenant: str | None
    cell: Cell
    status: Status = Status.PENDING
    attempts: int = 0
    base: int = 0
    crashes: int = 0
    throttles: int = 0
    worker: str | None = None
    token: int = 0
    started_at: Instant | None = None
    finished_at: Instant | None = None
    expires_at: Instant | None = None
    cancel_requested: bool = False
    cancel_requested_at: Instant | None = None
    last_error: str | None = None
    history: tuple[Mishap, ...] = ()
    result: bytes | None = None
    progress: float | None = None
    metadata: dict[str, str] = {}
    log: tuple[str, ...] = ()
    successor: JobId | None = None
    former: str | None = None
    former_at: Instant | None = None
    settled: Settlement | None = None
    ticket: int = NOWHERE
    later: bool = False


def drafted(draft: Draft, cell: Cell, now: Instant) -> Record:
    """A draft as a pending record."""
    return Record(
        draft.id,
        draft.kind,
        draft.queue,
        draft.payload,
        draft.priority,
        draft.attempts,
        now,
        due_at(draft, now),
        draft.options,
        draft.unique,
        draft.tenant,
        cell,
    )


def due_at(draft: Draft, now: Instant) -> Instant:
    """When a draft wants to run, by the store's clock."""
    return now + draft.delay if draft.at is None else draft.at


_JOB_FIELDS = tuple(field for field in Job.__struct_fields__ if field != "metadata")


def as_job(record: Record) -> Job:
    """The record as an operator sees it."""
    fields = {field: getattr(record, field) for field in _JOB_FIELDS}
    return Job(metadata=dict(record.metadata), **fields)


def as_claim(record: Record, queue: Queue, before: Status = Status.RUNNING) -> Claim:
    """A running record in the hands of its worker."""
    assert record.worker is not None
    assert record.started_at is not None
    return Claim(
        record.id,
        record.kind,
        record.queue,
        record.payload,
        record.attempts,
        record.base,
        record.budget,
        record.worker,
        record.token,
        record.started_at,
        record.created_at,
        record.scheduled_at,
        record.priority,
        record.options,
        record.unique,
        record.tenant,
        record.crashes,
        record.throttles,
        record.last_error,
        record.cancel_requested,
        dict(record.metadata) if record.metadata else None,
        queue.curve,
        queue.cooldown.count,
        record.former,
        record.former_at,
        None,
        before,
    )


def cloned(record: Record, job: JobId, now: Instant) -> Record:
    """A copy that has not run yet, due now."""
    return Record(
        job,
        record.kind,
        record.queue,
        record.payload,
        record.priority,
        record.budget,
        now,
        now,
        record.options,
        record.unique,
        record.tenant,
        record.cell,
    )


def grip(holder: Record | None) -> Holder:
    """How firmly a record holds its key."""
    if holder is None:
        return Holder.NOBODY
    if holder.status is Status.RETRYING:
        strong = holder.unique is not None and holder.unique.hold == "retrying"
        return Holder.STRONG if strong else Holder.WEAK
    return Holder.RUNNING if holder.status is Status.RUNNING else Holder.PENDING


def snapshot(record: Record) -> Record:
    """What `restore` needs to put a record back."""
    return copy.copy(record)


def restore(record: Record, before: Record) -> None:
    """Make a record what it was."""
    for field in Record.__struct_fields__:
        setattr(record, field, getattr(before, field))
