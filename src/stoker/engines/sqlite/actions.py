"""What people do to jobs: each is judged by the status it has inside the write, and hinders nobody else."""

from __future__ import annotations

from collections import Counter

from stoker.engines.sql.packing import encode, read_options, salvaged
from stoker.engines.sql.steps import Steps
from stoker.engines.sqlite import keys, moves
from stoker.engines.sqlite.insert import store
from stoker.engines.sqlite.records import Record, by_id
from stoker.engines.sqlite.texts import sql
from stoker.engines.sqlite.unit import CANCELED, DISCARDED, DONE, PENDING, RETRIED, RUNNING, STATUSES, Unit
from stoker.model.errors import InvalidInput
from stoker.model.events import REMEMBERED
from stoker.model.ids import JobId
from stoker.model.job import Draft, Status, noted
from stoker.model.lifecycle import check_transition
from stoker.model.query import (
    Cancel,
    Change,
    Clone,
    Delete,
    Discard,
    Expired,
    Move,
    Prioritize,
    Requeue,
    Retention,
    RunNow,
    Selection,
    Tally,
    allows,
)
from stoker.model.time import Instant
from stoker.model.unique import Meeting

_ASK = sql("running_cancel")
_KNOWN = sql("known")
_REMEMBER = sql("remember_job")
_REMEMBERED = sql("expire_remembered")
_RELOCATE = sql("body_move")
_EVENTS = sql("delete_events")
_EXPIRED = sql("expire_jobs")
_SURPLUS = sql("expire_surplus")
_FINISHED = sql("expire_finished")
_TOMBSTONES = sql("expire_workers")
_OLD = tuple(sql(f"expire_{what}") for what in ("events", "points", "presences", "locks"))


OLD_NAMES = 1_000
"""So many of the youngest workers are remembered after they were reaped."""


class Action:
    """One call of `alter`, with its tally in the making."""

    def __init__(self, unit: Unit, selection: Selection, change: Change) -> None:
        if isinstance(change, Clone) and len(change.ids) != len(selection.ids):
            raise InvalidInput("clone ids", len(change.ids), f"must be one for each of {len(selection.ids)} jobs")
        self._unit = unit
        self._selection = selection
        self._change = change
        self._changed: list[JobId] = []
        self._created: list[JobId] = []
        self._refused: Counter[Status] = Counter()
        self._asked = self._missing = self._blocked = 0

    def run(self) -> Steps[Tally]:
        """Apply the change to every selected job, in the order of the selection."""
        for place, job in enumerate(self._selection.ids):
            record = yield from by_id(job)
            if record is None:
                self._missing += 1
            elif not allows(self._change, STATUSES[record.status], self._selection):
                self._refused[STATUSES[record.status]] += 1
            else:
                yield from self._apply(record, place)
        return Tally(
            changed=len(self._changed),
            cancel_requested=self._asked,
            missing=self._missing,
            blocked=self._blocked,
            refused=dict(self._refused),
            created=tuple(self._created),
            changed_ids=tuple(self._changed),
        )

    def _apply(self, record: Record, place: int) -> Steps[None]:
        match self._change:
            case Cancel():
                yield from self._cancel(record, self._change)
            case Delete():
                yield from self._delete(record)
            case Requeue():
                yield from self._requeue(record)
            case Clone(ids=ids):
                yield from self._clone(record, ids[place])
            case Discard():
                yield from self._mark(record, DISCARDED)
            case RunNow():
                yield from self._rearrange(record, due=min(record.due, self._unit.now))
            case Move(queue=queue):
                yield from self._rearrange(record, queue=queue)
            case Prioritize(priority=priority):
                yield from self._rearrange(record, priority=priority)

    def _cancel(self, record: Record, change: Cancel) -> Steps[None]:
        if record.status == RUNNING:
            if not change.force:
                yield from self._ask(record)
                record.metadata = encode(noted(salvaged(record.metadata), change.note()))
                yield from moves.write_past(record)
                return
            self._unit.control()
        check_transition(STATUSES[record.status], Status.CANCELED, record.id)
        yield from moves.leave(record)
        yield from moves.blame(self._unit, record, change.reason)
        yield from moves.finish(self._unit, record, CANCELED)
        yield from moves.total(self._unit, record, CANCELED)
        self._changed.append(record.id)

    def _ask(self, record: Record) -> Steps[None]:
        """Ask a running job to stop."""
        yield _ASK, (record.wid, record.seq, self._unit.now)
        self._unit.control()
        self._asked += 1

    def _delete(self, record: Record) -> Steps[None]:
        if record.status == RUNNING:
            yield from self._ask(record)
            return
        yield from remove(self._unit, record)
        yield _REMEMBER, (record.id, self._unit.now)
        self._changed.append(record.id)

    def _requeue(self, record: Record) -> Steps[None]:
        check_transition(STATUSES[record.status], Status.PENDING, record.id)
        if not (yield from self._key_is_free(record)):
            return
        yield from moves.leave(record)
        record.base, record.crashes, record.cancel = record.attempts, 0, 0
        record.started = record.progress = None
        yield from moves.queue_up(self._unit, record, PENDING, self._unit.now)
        self._changed.append(record.id)

    def _clone(self, record: Record, clone: JobId) -> Steps[None]:
        if (yield _KNOWN, (clone,)):
            self._blocked += 1
            return
        if not (yield from self._key_is_free(record)):
            return
        record.successor = clone
        yield from self._mark(record, RETRIED)
        queue = (yield from self._unit.queue_of(record.qid)).queue.name
        draft = Draft(
            clone,
            record.kind,
            record.payload,
            queue,
            record.priority,
            attempts=record.budget,
            unique=record.unique,
            tenant=record.tenant,
            options=read_options(record.options),
        )
        yield from store(self._unit, draft, self._unit.now)
        self._created.append(clone)

    def _key_is_free(self, record: Record) -> Steps[bool]:
        """May this job become active? A weak holder of its key is ended on the way."""
        unique = record.unique
        if unique is None or record.status < DONE:
            return True
        meeting, _ = yield from keys.approach(self._unit, unique, record.kind, "existing")
        free = meeting in (Meeting.TAKE, Meeting.SUPERSEDE)
        self._blocked += not free
        return free

    def _mark(self, record: Record, status: int) -> Steps[None]:
        """Take a dead job off the dead list; it keeps the time of its end."""
        check_transition(STATUSES[record.status], STATUSES[status], record.id)
        yield from moves.leave(record)
        self._unit.moved(record.qid, record.kind, record.status, status)
        record.status = status
        yield from moves.write_done(record)
        self._changed.append(record.id)

    def _rearrange(
        self, record: Record, *, queue: str | None = None, priority: int | None = None, due: Instant | None = None
    ) -> Steps[None]:
        """Give a waiting job another place."""
        yield from moves.leave(record)
        if queue is not None:
            shelf = yield from self._unit.use_queue(queue)
            self._unit.count(record.qid, record.kind, record.status, -1)
            self._unit.count(shelf.qid, record.kind, record.status)
            record.qid = shelf.qid
        if priority is not None:
            record.priority = priority
        if due is not None:
            record.due, record.base = due, record.base or 0
            yield from moves.write_past(record)
        else:
            yield _RELOCATE, (record.seq, record.qid, record.priority)
        yield from moves.stand_in_line(record)
        if priority is None:
            self._unit.due((yield from self._unit.queue_of(record.qid)).queue.name, record.due)
        self._changed.append(record.id)


def remove(unit: Unit, record: Record) -> Steps[int]:
    """Delete a job with its events; answers how many those were."""
    yield from moves.leave(record)
    yield from moves.erase(unit, record)
    return len((yield _EVENTS, (record.id,)))


def expire(unit: Unit, retention: Retention) -> Steps[Expired]:
    """Remove what is out of date; of finished jobs beyond a count those nearest to their expiry go first.

    Names of workers that were reaped long ago are dropped as well: nobody can come back under one, because a worker
    that is not known is as good as one that was reaped.
    """
    now, limit = unit.now, max(retention.limit, 0)
    old = yield _EXPIRED, (now, limit)
    events = 0
    for job, _ in old:
        events += yield from _prune(unit, job)
    jobs = len(old)
    if retention.finished is not None and jobs < limit:
        [(kept,)] = yield _FINISHED, ()
        surplus = kept - jobs - max(retention.finished, 0)
        for job, _ in (yield _SURPLUS, (min(surplus, limit - jobs),)) if surplus > 0 else ():
            events += yield from _prune(unit, job)
            jobs += 1
    befores = (now - retention.events, now - retention.points, now - retention.presences, now)
    yield _TOMBSTONES, (OLD_NAMES,)
    yield _REMEMBERED, (now - REMEMBERED,)
    gone = []
    for statement, before in zip(_OLD, befores, strict=True):
        gone.append(len((yield statement, (before,))))
    return Expired(jobs=jobs, events=events + gone[0], points=gone[1], presences=gone[2], locks=gone[3])


def _prune(unit: Unit, job: JobId) -> Steps[int]:
    record = yield from by_id(job)
    assert record is not None
    return (yield from remove(unit, record))
