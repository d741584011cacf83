"""A stored job, wherever it stands: found, and shown to people."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import msgspec

from stoker.engines.postgres.statements import sql
from stoker.engines.postgres.unit_of_work import STATUSES
from stoker.engines.sql.packing import details, read_unique
from stoker.engines.sql.steps import Steps
from stoker.model.errors import CorruptRecord
from stoker.model.ids import JobId, text
from stoker.model.job import Failure, Job, shown_error
from stoker.model.time import Instant
from stoker.model.unique import Unique

T = TypeVar("T")

_GET = sql("get")
_history = msgspec.json.Decoder(tuple[tuple[Instant, int, str], ...]).decode


class Record(msgspec.Struct):
    """One job as its tables have it. `status` is a number; `worker` is set while it runs."""

    id: JobId
    kind: str
    queue: str
    payload: str
    priority: int
    budget: int
    created: Instant
    ukey: str | None
    utraits: int | None
    tenant: str | None
    options: str | None
    status: int
    token: int
    attempts: int
    due: Instant
    started: Instant | None
    finished: Instant | None
    expires: Instant | None
    cancel: bool
    result: str | None
    successor: JobId | None
    worker: str | None
    base: int
    crashes: int
    throttles: int
    progress: float | None
    metadata: str | None
    log: str | None
    settled: int
    asked: Instant | None
    last_error: str | None
    history: str | None = None

    @property
    def unique(self) -> Unique | None:
        """Its key, if it has one that can be read."""
        try:
            return read_unique(self.ukey, self.utraits)
        except CorruptRecord:
            return None

    @property
    def slot(self) -> str | None:
        """Where its key is held."""
        unique = self.unique
        return None if unique is None else unique.slot(self.kind)


def just(value: T) -> Steps[T]:
    """A question that is its own answer."""
    yield from ()
    return value


def found(ids: Sequence[JobId]) -> Steps[dict[JobId, Record]]:
    """The records by id; inside one snapshot none is missed while it changes its place."""
    rows = (yield _GET, (list(ids),)) if ids else ()
    records: dict[JobId, Record] = {}
    for row in rows:
        record = Record(*row)
        if record.status is None:
            raise CorruptRecord(f"job {text(record.id)} neither waits nor runs nor is finished")
        records[record.id] = record
    return records


def jobs(ids: Sequence[JobId]) -> Steps[list[Job | None]]:
    """The whole records, in the order asked."""
    records = yield from found(ids)
    return [shown(records[job]) if job in records else None for job in ids]


def shown(record: Record) -> Job:
    """A record as an operator sees it. What cannot be read is left out and said so, so that it can be removed."""
    packed = details(record)
    return Job(
        id=record.id,
        kind=record.kind,
        queue=record.queue,
        payload=record.payload.encode(),
        status=STATUSES[record.status],
        priority=record.priority,
        attempts=record.attempts,
        base=record.base,
        budget=record.budget,
        created_at=record.created,
        scheduled_at=record.due,
        crashes=record.crashes,
        throttles=record.throttles,
        options=packed.options,
        unique=packed.unique,
        tenant=record.tenant,
        worker=record.worker,
        token=record.token,
        started_at=record.started,
        finished_at=record.finished,
        expires_at=record.expires,
        cancel_requested=record.cancel,
        cancel_requested_at=record.asked,
        last_error=shown_error(STATUSES[record.status], record.last_error),
        history=() if record.history is None else tuple(Failure(*entry) for entry in _history(record.history)),
        result=None if record.result is None else record.result.encode(),
        progress=record.progress,
        metadata=packed.metadata,
        log=packed.log,
        successor=record.successor,
    )
