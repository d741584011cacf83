"""Moving one job from place to place: out of where it stands, into the line, among the finished, or out of the store.

Every move keeps four things together: the row that says where the job is, its counters, its grip on its unique key
and the wake-up of whoever may take it. Bulk paths (a batch of fresh drafts, a batch of plain successes) have their own
statements in `insert` and `settle`; everything else goes through here.
"""

from __future__ import annotations

from stoker.engines.sql.steps import Steps
from stoker.engines.sqlite.records import Record
from stoker.engines.sqlite.texts import sql
from stoker.engines.sqlite.unit import (
    CANCELED,
    CANCELS,
    COMPLETED,
    DEAD,
    DONE,
    FAILED,
    PENDING,
    RETRIES,
    RETRYING,
    RUNNING,
    STATUSES,
    Unit,
)
from stoker.model.job import LONGEST_HISTORY
from stoker.model.lifecycle import expiry
from stoker.model.time import Instant, Span

TOTALS = {DONE: COMPLETED, DEAD: FAILED, RETRYING: RETRIES, CANCELED: CANCELS}

_READY_PUT = sql("ready_put")
_READY_DROP = sql("ready_drop")
_RUNNING_DROP = sql("running_drop")
_DONE_PUT = sql("done_put")
_DONE_DROP = sql("done_drop")
_PAST_PUT = sql("past_put")
_ERROR_PUT = sql("error_put")
_ERROR_TRIM = sql("error_trim")
_TROUBLE = sql("trouble")
_TROUBLE_OVER = sql("trouble_over")
HOLD = sql("hold")
_LET_GO = sql("let_go")
_LET_GO_OF_ALL = sql("let_go_of_all")
_ERASE = tuple(sql(f"delete_{table}") for table in ("body", "past", "errors"))


def leave(record: Record) -> Steps[None]:
    """Take a job out of the place where it stands."""
    if record.status in (PENDING, RETRYING):
        yield _READY_DROP, (record.qid, record.priority, record.due, record.id)
    elif record.status == RUNNING:
        yield _RUNNING_DROP, (record.wid, record.seq)
    else:
        yield _DONE_DROP, (record.id,)


def queue_up(unit: Unit, record: Record, status: int, due: Instant) -> Steps[None]:
    """Put a job that stands nowhere into the line; its past is written with it."""
    unit.moved(record.qid, record.kind, record.status, status)
    record.status, record.due = status, due
    record.wid = record.worker = record.finished = record.expires = None
    record.base = record.base or 0
    yield from write_past(record)
    yield from stand_in_line(record)
    yield from grip(record)
    if due <= unit.now:  # whoever puts a job back for later knows when that is
        unit.due((yield from unit.queue_of(record.qid)).queue.name, due)


def stand_in_line(record: Record) -> Steps[None]:
    """The row that claims look at."""
    yield (
        _READY_PUT,
        (
            record.qid,
            record.priority,
            record.due,
            record.id,
            record.seq,
            record.attempts,
            record.token,
            record.status,
            int(record.past),
            record.settled,
        ),
    )


def finish(
    unit: Unit, record: Record, status: int, *, keep: Span | None = None, result: bytes | None = None
) -> Steps[None]:
    """Put a job that stands nowhere among the finished."""
    queue = (yield from unit.queue_of(record.qid)).queue
    unit.moved(record.qid, record.kind, record.status, status)
    record.status, record.finished, record.result = status, unit.now, result
    record.expires = expiry(STATUSES[status], unit.now, keep, queue.keep_done, queue.keep_dead)
    record.wid = record.worker = None
    yield from write_done(record)
    yield from grip(record)


def write_done(record: Record) -> Steps[None]:
    """The row of a finished job."""
    yield (
        _DONE_PUT,
        (
            record.id,
            record.seq,
            record.qid,
            record.status,
            record.token,
            record.attempts,
            record.started,
            record.finished,
            record.expires,
            record.cancel or 0,
            record.settled,
            record.result,
            record.successor,
        ),
    )


def erase(unit: Unit, record: Record) -> Steps[None]:
    """Remove the record of a job that stands nowhere. Its events are another matter."""
    unit.count(record.qid, record.kind, record.status, -1)
    yield from let_go(record)
    for statement in _ERASE:
        yield statement, (record.seq,)


def write_past(record: Record) -> Steps[None]:
    """What the next run should know of this one."""
    yield (
        _PAST_PUT,
        (
            record.seq,
            record.due,
            record.base or 0,
            record.crashes or 0,
            record.throttles or 0,
            record.started,
            record.progress,
            record.metadata,
            record.log,
        ),
    )


def grip(record: Record) -> Steps[None]:
    """Hold the unique key as firmly as the status says: finished jobs let go, most retrying ones hold it weakly."""
    unique = record.unique
    if unique is None or record.status >= DONE:
        yield from let_go(record)
    else:
        weak = record.status == RETRYING and unique.hold == "active"
        yield HOLD, (slot(record), record.seq, int(weak))


def let_go(record: Record) -> Steps[None]:
    """Hold no key any more. Where one cannot be read, whatever the job holds is let go of."""
    if record.unique is not None:
        yield _LET_GO, (slot(record), record.seq)
    elif record.ukey is not None:
        yield _LET_GO_OF_ALL, (record.seq,)


def slot(record: Record) -> str:
    """Where the job's key is held."""
    assert record.unique is not None
    return record.unique.slot(record.kind)


def blame(unit: Unit, record: Record, error: str, attempt: int | None = None) -> Steps[None]:
    """A job's last error; with the attempt that failed it is also an entry of the history, the oldest making room."""
    record.last_error = error
    yield _ERROR_PUT, (record.seq, unit.now, attempt, error)
    if attempt is not None:
        yield _ERROR_TRIM, (record.seq, LONGEST_HISTORY)


def total(unit: Unit, record: Record, status: int, error: str | None = None) -> Steps[None]:
    """Count what became of a kind's job; success clears the kind's last error."""
    if status in TOTALS:
        unit.count(record.qid, record.kind, TOTALS[status])
    if status == DONE:
        yield _TROUBLE_OVER, (record.kind,)
    elif error is not None:
        yield _TROUBLE, (record.kind, error)
