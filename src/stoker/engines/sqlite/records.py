"""A stored job, wherever it stands: found, and shown to people."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from stoker.engines.sql.packing import details, read_unique
from stoker.engines.sql.steps import Row, Steps
from stoker.engines.sqlite.texts import sql
from stoker.engines.sqlite.unit import DEAD, DONE, PENDING, RETRYING, RUNNING, STATUSES
from stoker.model.errors import CorruptRecord
from stoker.model.ids import JobId, text
from stoker.model.job import Job, Mishap, shown_error
from stoker.model.time import Instant
from stoker.model.unique import Unique

_BY_ID = sql("get")
_BY_SEQ = sql("get_by_seq")
_RUNNING = sql("get_running")
_ERRORS = sql("errors")
_QUEUE_NAMES = sql("queue_names")


class Record(msgspec.Struct):
    """One job as its tables have it. `status` is a number; `wid` and `worker` are set while it runs."""

    seq: int
    id: JobId
    qid: int
    kind: str
    payload: bytes
    priority: int
    budget: int
    created: Instant
    ukey: str | None
    utraits: int | None
    tenant: str | None
    options: bytes | None
    status: int
    token: int
    attempts: int
    settled: int | None
    due: Instant
    started: Instant | None
    finished: Instant | None
    expires: Instant | None
    cancel: int
    result: bytes | None
    successor: JobId | None
    base: int | None
    crashes: int | None
    throttles: int | None
    progress: float | None
    metadata: bytes | None
    log: bytes | None
    last_error: str | None
    wid: int | None = None
    worker: str | None = None

    @property
    def past(self) -> bool:
        """Is there more than a fresh job has?"""
        return self.base is not None

    @property
    def unique(self) -> Unique | None:
        """Its key, if it has one that can be read."""
        try:
            return read_unique(self.ukey, self.utraits)
        except CorruptRecord:
            return None


_STATUS = Record.__struct_fields__.index("status")


# --- finding ----------------------------------------------------------------------------------------------------


def by_id(job: JobId) -> Steps[Record | None]:
    """The record of an id."""
    return (yield from _record(_BY_ID, job))


def by_seq(seq: int) -> Steps[Record | None]:
    """The record under a row number."""
    return (yield from _record(_BY_SEQ, seq))


def _record(statement: str, key: JobId | int) -> Steps[Record | None]:
    # A walk that is not in a transaction may see a job leave between two statements: it looks again.
    for _ in range(3):
        rows: list[Row] = yield statement, (key,)
        if not rows:
            return None
        record = Record(*rows[0])
        if rows[0][_STATUS] is not None:
            record.status = _standing(record)
            return record
        held: list[Row] = yield _RUNNING, (record.seq,)
        if held:
            record.wid, record.worker, record.token, record.attempts, record.started, record.cancel = held[0]
            record.status = RUNNING
            return record
    raise CorruptRecord(f"job {text(key) if isinstance(key, bytes) else key} neither waits nor runs nor is finished")


def _standing(record: Record) -> int:
    """The status as stored, unless no job that waits, or is finished, can have it."""
    waits, status = record.finished is None, record.status
    if waits:
        return status if status in (PENDING, RETRYING) else PENDING
    return status if DONE <= status < len(STATUSES) else DEAD


def jobs(ids: Sequence[JobId]) -> Steps[list[Job | None]]:
    """The whole records, in the order asked."""
    found: list[Job | None] = []
    queues: dict[int, str] = {}
    for job in ids:
        record = yield from by_id(job)
        found.append(None if record is None else (yield from shown(record, queues)))
    return found


def shown(record: Record, queues: dict[int, str]) -> Steps[Job]:
    """The record as an operator sees it; what cannot be read is left out and said so, so that it can be removed."""
    if record.qid not in queues:
        rows = yield _QUEUE_NAMES, ()
        queues.update(rows)
    history = () if record.last_error is None else (yield _ERRORS, (record.seq,))
    packed = details(record)
    return Job(
        id=record.id,
        kind=record.kind,
        queue=queues[record.qid],
        payload=record.payload,
        status=STATUSES[record.status],
        priority=record.priority,
        attempts=record.attempts,
        base=record.base or 0,
        budget=record.budget,
        created_at=record.created,
        scheduled_at=record.due,
        crashes=record.crashes or 0,
        throttles=record.throttles or 0,
        options=packed.options,
        unique=packed.unique,
        tenant=record.tenant,
        worker=record.worker,
        token=record.token,
        started_at=record.started,
        finished_at=record.finished,
        expires_at=record.expires,
        cancel_requested=bool(record.cancel),
        cancel_requested_at=record.cancel or None,
        last_error=shown_error(STATUSES[record.status], record.last_error),
        history=tuple(Mishap(*row) for row in history),
        result=record.result,
        progress=record.progress,
        metadata=packed.metadata,
        log=packed.log,
        successor=record.successor,
    )
