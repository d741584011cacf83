"""What people do: change selected jobs, and let go of what is kept no longer.

Each job is judged by the status it has now, under the lock, by the model's table; one that is missing, refused or
blocked does not hinder the others.
"""

from __future__ import annotations

from collections import Counter

from stoker.engines.base import CONTROL
from stoker.engines.memory.doors import key_is_free
from stoker.engines.memory.record import Record, cloned
from stoker.engines.memory.store import Store
from stoker.model.errors import InvalidInput
from stoker.model.ids import JobId
from stoker.model.job import Status, noted
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


class Action:
    """One call of `alter`, with its tally in the making."""

    def __init__(self, store: Store, now: Instant) -> None:
        self._store = store
        self._now = now
        self._changed: list[JobId] = []
        self._created: list[JobId] = []
        self._refused: Counter[Status] = Counter()
        self._asked = self._missing = self._blocked = 0

    def run(self, selection: Selection, change: Change) -> Tally:
        """Apply the change to every selected job, in the order of the selection."""
        clones = change.ids if isinstance(change, Clone) else ()
        if isinstance(change, Clone) and len(clones) != len(selection.ids):
            raise InvalidInput("clone ids", len(clones), f"must be one for each of {len(selection.ids)} selected jobs")
        for place, job in enumerate(selection.ids):
            record = self._store.jobs.get(job)
            if record is None:
                self._missing += 1
            elif not allows(change, record.status, selection):
                self._refused[record.status] += 1
            else:
                self._apply(record, change, clones[place] if clones else None)
        return Tally(
            changed=len(self._changed),
            cancel_requested=self._asked,
            missing=self._missing,
            blocked=self._blocked,
            refused=dict(self._refused),
            created=tuple(self._created),
            changed_ids=tuple(self._changed),
        )

    def _apply(self, record: Record, change: Change, clone: JobId | None) -> None:
        match change:
            case Cancel():
                self._cancel(record, change)
            case Delete():
                self._delete(record)
            case Requeue():
                self._requeue(record)
            case Clone():
                assert clone is not None
                self._clone(record, clone)
            case Discard():
                self._mark(record, Status.DISCARDED)
            case RunNow():
                self._rearrange(record, scheduled_at=min(record.scheduled_at, self._now))
            case Move(queue=queue):
                self._rearrange(record, queue=queue)
            case Prioritize(priority=priority):
                self._rearrange(record, priority=priority)

    def _cancel(self, record: Record, change: Cancel) -> None:
        if record.status is Status.RUNNING:
            self._store.wake(CONTROL)
            if not change.force:
                self._ask(record)
                record.metadata = noted(record.metadata, change.note())
                return
        check_transition(record.status, Status.CANCELED, record.id)
        self._store.lift(record, self._now)
        self._store.finish(record, Status.CANCELED, self._now, change.reason)
        self._store.place(record, self._now)
        self._store.sums(record.kind).canceled += 1
        self._changed.append(record.id)

    def _ask(self, record: Record) -> None:
        """Ask a running job to stop; the moment of the first request stays."""
        record.cancel_requested = True
        if record.cancel_requested_at is None:
            record.cancel_requested_at = self._now
        self._asked += 1

    def _delete(self, record: Record) -> None:
        if record.status is Status.RUNNING:
            self._store.wake(CONTROL)
            self._ask(record)
            return
        self._store.prune(record, self._now)
        self._changed.append(record.id)

    def _requeue(self, record: Record) -> None:
        check_transition(record.status, Status.PENDING, record.id)
        if not key_is_free(self._store, record, self._now):
            self._blocked += 1
            return
        self._store.lift(record, self._now)
        record.status = Status.PENDING
        record.scheduled_at = self._now
        record.base = record.attempts
        record.crashes = 0
        record.started_at = record.finished_at = record.expires_at = record.progress = None
        record.cancel_requested, record.cancel_requested_at = False, None
        self._store.place(record, self._now)
        self._store.wake(record.queue)
        self._changed.append(record.id)

    def _clone(self, record: Record, clone: JobId) -> None:
        if clone in self._store.jobs or not key_is_free(self._store, record, self._now):
            self._blocked += 1
            return
        self._mark(record, Status.RETRIED)
        record.successor = clone
        self._store.create(cloned(record, clone, self._now), self._now)
        self._created.append(clone)

    def _mark(self, record: Record, status: Status) -> None:
        """Take a dead job off the dead list; it keeps the time of its end."""
        check_transition(record.status, status, record.id)
        self._store.lift(record, self._now)
        record.status = status
        self._store.place(record, self._now)
        self._changed.append(record.id)

    def _rearrange(
        self,
        record: Record,
        *,
        queue: str | None = None,
        priority: int | None = None,
        scheduled_at: Instant | None = None,
    ) -> None:
        """Give a waiting job another place."""
        self._store.lift(record, self._now)
        if queue is not None:
            record.queue = queue
            record.cell = self._store.cell(queue, record.kind)
        if priority is not None:
            record.priority = priority
        if scheduled_at is not None:
            record.scheduled_at = scheduled_at
        self._store.place(record, self._now)
        if priority is None and record.scheduled_at <= self._now:
            self._store.wake(record.queue)
        self._changed.append(record.id)


def expire(store: Store, retention: Retention, now: Instant) -> Expired:
    """Remove what is out of date; of finished jobs beyond a count those nearest to their expiry go first."""
    old = [record for record in store.finished.values() if record.expires_at is not None and record.expires_at < now]
    del old[max(retention.limit, 0) :]
    events = sum(store.prune(record, now) for record in old)
    jobs = len(old)
    if retention.finished is not None:
        surplus = min(len(store.finished) - max(retention.finished, 0), retention.limit - jobs)
        nearest = sorted(store.finished.values(), key=lambda record: (record.expires_at or 0, record.id))
        for record in nearest[: max(surplus, 0)]:
            events += store.prune(record, now)
            jobs += 1
    more, points = store.ledger.expire(now - retention.events, now - retention.points)
    unseen = [name for name, one in store.presences.items() if one.seen_at < now - retention.presences]
    lapsed = [name for name, lock in store.locks.items() if lock.until <= now]
    for name in unseen:
        del store.presences[name]
    for name in lapsed:
        del store.locks[name]
    return Expired(jobs=jobs, events=events + more, points=points, presences=len(unseen), locks=len(lapsed))
