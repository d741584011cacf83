"""The stored job as one value, and every step that can happen to it.

A step takes a record and returns the record after it; nothing is changed in place and no store is involved. Engines
load records, apply a step and write the difference. Where an engine repeats a step in SQL or Lua for speed, a comment
there names the method, and the conformance suite holds both together.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from operator import attrgetter
from typing import Any, Literal, Self, TypeAlias, TypeVar

import msgspec

from stoker.model.control import Queue
from stoker.model.ids import JobId
from stoker.model.job import (
    ACTIVE,
    FIRST,
    LONGEST_LOG,
    OWN_PRIORITY,
    PRIORITIES,
    Claim,
    Draft,
    Failure,
    Job,
    Note,
    Settlement,
    Status,
    appended,
    copied,
    noted,
    shown_error,
)
from stoker.model.lifecycle import check_transition, deletes, due_again, expiry
from stoker.model.limit import Slot
from stoker.model.query import Cancel, Edit, Fork, Former
from stoker.model.run_origins import number
from stoker.model.steps import Step, Wakes, lets_run
from stoker.model.time import Instant, Span
from stoker.model.unique import SUPERSEDED, Holder, Kept

R = TypeVar("R", bound="Record")

Total: TypeAlias = Literal["enqueued", "completed", "retried", "failed", "canceled"]
"""What is counted per kind since the store was made."""

TOTALS: dict[Status, Total] = {
    Status.DONE: "completed",
    Status.RETRYING: "retried",
    Status.DEAD: "failed",
    Status.CANCELED: "canceled",
}
"""Which total a run adds to, by the status it ended in. Going back to pending adds to none."""

_SHOWN = Job.__struct_fields__
_shown = attrgetter(*_SHOWN)

WAITING = frozenset({Status.PENDING, Status.RETRYING})

PUT_BACK: frozenset[Status | Wakes] = frozenset({*WAITING, *Wakes})
"""How a run ends after which its job waits to run again."""


SEALED = ("payload", "options", "result", "last_error", "history", "metadata", "log")
"""The fields of a job that hold values which a sealed store encrypts."""


class Record(Job, frozen=True, kw_only=True, gc=False):
    """One stored job: what operators see of it, and what only its store needs.

    `former` and `former_at` name the owner a running claim was reaped from. `unreadable` names what of the stored job
    cannot be read.
    """

    former: str | None = None
    former_at: Instant | None = None
    unreadable: str | None = None

    # --- what it is ---------------------------------------------------------------------------------------------

    @classmethod
    def drafted(cls, draft: Draft, now: Instant) -> Self:
        """A draft as a pending job."""
        return cls(
            id=draft.job_id,
            kind=draft.kind,
            queue=draft.queue,
            payload=draft.payload,
            priority=draft.priority,
            budget=draft.attempts,
            created_at=now,
            scheduled_at=due_at(draft, now),
            options=draft.options,
            unique=None if draft.unique is None else draft.unique.stored,
            tenant=draft.tenant,
        )

    def is_fresh(self, now: Instant) -> bool:
        """Is it stored for the first time? Else it comes from another store, where anything may have happened to it.

        A copy of a job has a token, and nothing else of its original's runs.
        """
        runs = self.attempts or self.base or self.crashes or self.throttles or self.settled or self.token > 1
        notes = self.history or self.last_error or self.metadata or self.log or self.progress is not None
        return self.status is Status.PENDING and self.created_at == now and not runs and not notes

    @property
    def errors(self) -> tuple[Failure, ...]:
        """Its errors as a store lists them: the history, and the last error if that is of no run (attempt 0)."""
        known = self.history[-1].error if self.history else None
        if self.last_error is None or self.last_error == known:
            return self.history
        at = self.finished_at or self.scheduled_at
        return (*self.history, Failure(at, 0, self.last_error))

    @property
    def slot(self) -> str | None:
        """The text under which the store keeps the unique key; None without one."""
        return None if self.unique is None else self.unique.slot(self.kind)

    @property
    def held_slot(self) -> str | None:
        """The slot of the key this job holds now: an active job holds its own."""
        return self.slot if self.status in ACTIVE else None

    @property
    def keeps(self) -> Kept | None:
        """How its success keeps its key; None: the key is free as soon as the job has ended."""
        until = None if self.unique is None else self.unique.kept_until(self.created_at)
        return None if until is None else Kept(self.id, until)

    @property
    def kept(self) -> Kept | None:
        """The same for a job that has succeeded; the key may have lapsed since."""
        return self.keeps if self.status is Status.DONE else None

    @property
    def holder(self) -> Holder:
        """How firmly the job holds its key. A suspended one holds it like a running one: it is half done."""
        if self.status is Status.RETRYING:
            strong = self.unique is not None and self.unique.hold == "retrying"
            return Holder.STRONG if strong else Holder.WEAK
        return Holder.RUNNING if self.status is Status.RUNNING or self.suspended else Holder.PENDING

    def runs_as(self, worker: str, token: int) -> bool:
        """Does it run under exactly this worker and token?"""
        return self.status is Status.RUNNING and self.token == token and self.worker == worker

    def ended_by(self, settlement: Settlement) -> bool:
        """Did this very settlement end the last run?"""
        return self.settled is (settlement.wakes or settlement.status) and self.token == settlement.token

    # --- runs ---------------------------------------------------------------------------------------------------

    def claimed(self, worker: str, now: Instant) -> Self:
        """Handed to a worker, under a higher token and with one more attempt."""
        return msgspec.structs.replace(
            self,
            status=Status.RUNNING,
            attempts=self.attempts + 1,
            worker=worker,
            token=max(now, self.token + 1),
            started_at=now,
            cancel_requested=False,
            cancel_requested_at=None,
            former=None,
            former_at=None,
            settled=None,
        )

    def reaped(self, by: str, now: Instant) -> Self:
        """Passed from a lapsed worker to a living one; the attempt goes on."""
        return msgspec.structs.replace(
            self,
            worker=by,
            token=max(now, self.token + 1),
            started_at=now,
            former=self.worker,
            former_at=self.started_at,
        )

    def settle(self, settlement: Settlement, now: Instant, queue: Queue) -> Self | None:
        """After a settlement that applies; None when it deletes the job."""
        if deletes(settlement):
            return None
        status, error = settlement.status, settlement.error
        done, origin = status is Status.DONE, self._origin(status)
        ended = msgspec.structs.replace(
            self,
            attempts=max(0, self.attempts - 1) if settlement.refund else self.attempts,
            crashes=self.crashes + settlement.crash,
            throttles=0 if done else self.throttles + settlement.throttled,
            last_error=shown_error(status, self.last_error if error is None else error),
            history=self._failed(now, error, origin),
            result=settlement.result if done else self.result,
            metadata=noted(self.metadata, settlement.metadata),
            settled=settlement.wakes or status,
        )
        if settlement.wakes is not None:  # it got on, so its budget begins anew
            ended = msgspec.structs.replace(ended, base=ended.attempts, crashes=0)
        if status in WAITING:
            return msgspec.structs.replace(ended, status=status, worker=None, scheduled_at=due_again(settlement, now))
        return _finished(msgspec.structs.replace(ended, origin=origin), status, now, queue, settlement.keep)

    def _failed(self, now: Instant, error: str | None, origin: int) -> tuple[Failure, ...]:
        return self.history if error is None else appended(self.history, Failure(now, self.attempts, error, origin))

    def _origin(self, status: Status) -> int:
        """The number of the worker that ran it. A reaped claim ends for the one it was taken from, but for success."""
        worker = self.worker if self.former is None or status is Status.DONE else self.former
        return 0 if worker is None else number(worker)

    def note(self, note: Note) -> Self:
        """With what the running handler noted."""
        return msgspec.structs.replace(
            self,
            progress=self.progress if note.progress is None else note.progress,
            metadata=noted(self.metadata, note.metadata),
            log=(*self.log, *note.lines)[-LONGEST_LOG:],
        )

    def answered(self, row: Step, others: Iterable[Step], now: Instant) -> Self:
        """After one of its waits was answered: due now, if it is suspended and waits for nothing else."""
        if not isinstance(self.settled, Wakes) or not self.suspended:
            return self
        return self.run_now(now) if lets_run(self.settled, self.token, row, others) else self

    # --- operators and newer jobs -------------------------------------------------------------------------------

    def asked_to_stop(self, now: Instant, change: Cancel | None = None) -> Self:
        """A running job that shall stop, since the first request; the reason of a cancel joins its metadata."""
        return msgspec.structs.replace(
            self,
            cancel_requested=True,
            cancel_requested_at=now if self.cancel_requested_at is None else self.cancel_requested_at,
            metadata=self.metadata if change is None else noted(self.metadata, change.note()),
        )

    def cancel(self, reason: str, now: Instant, queue: Queue) -> Self:
        """Canceled at once."""
        check_transition(self.status, Status.CANCELED, self.id)
        return _finished(msgspec.structs.replace(self, last_error=reason), Status.CANCELED, now, queue)

    def requeue(self, now: Instant) -> Self:
        """Pending again, due now: the attempts go on counting, the budget is fresh."""
        check_transition(self.status, Status.PENDING, self.id)
        return msgspec.structs.replace(
            self,
            status=Status.PENDING,
            priority=self.own_priority,
            scheduled_at=now,
            base=self.attempts,
            crashes=0,
            started_at=None,
            finished_at=None,
            expires_at=None,
            progress=None,
            cancel_requested=False,
            cancel_requested_at=None,
            settled=self._without_slot(),
            origin=0,
        )

    def clone(self, job: JobId, now: Instant, lineage: str = "") -> Self:
        """A copy under a new id that has not run yet, due now; its metadata name the original.

        It takes the steps of the original along, so no claim of it is fresh: a token tells that.
        """
        return type(self)(
            id=job,
            kind=self.kind,
            queue=self.queue,
            payload=self.payload,
            priority=self.own_priority,
            budget=self.budget,
            created_at=now,
            scheduled_at=now,
            options=copied(self.options, self.id, lineage),
            unique=self.unique,
            tenant=self.tenant,
            token=min(self.token, 1),
        )

    def fork(self, job: JobId, change: Fork, now: Instant, lineage: str = "") -> Self:
        """A copy that lives beside the original, which keeps its unique key and its place in a group."""
        copy = self.clone(job, now, lineage)
        payload = self.payload if change.payload is None else change.payload
        options = msgspec.structs.replace(copy.options, group=None)
        token = 0 if change.after is None else copy.token
        return msgspec.structs.replace(copy, payload=payload, options=options, unique=None, token=token)

    def retried_as(self, job: JobId, now: Instant, queue: Queue) -> Self:
        """A dead job of which a copy was enqueued; it keeps the time of its end, and its retention counts anew."""
        check_transition(self.status, Status.RETRIED, self.id)
        expires = expiry(Status.RETRIED, now, None, queue.keep_done, queue.keep_dead)
        return msgspec.structs.replace(self, status=Status.RETRIED, successor=job, expires_at=expires)

    def discard(self, now: Instant, queue: Queue) -> Self:
        """Off the dead list, not to be run again; it keeps the time of its end, and its retention counts anew."""
        check_transition(self.status, Status.DISCARDED, self.id)
        expires = expiry(Status.DISCARDED, now, None, queue.keep_done, queue.keep_dead)
        return msgspec.structs.replace(self, status=Status.DISCARDED, expires_at=expires)

    def run_now(self, now: Instant, *, first: bool = False) -> Self:
        """Due at once, if it was not due already; `first`: before all others of its queue, until it ends."""
        due = msgspec.structs.replace(self, scheduled_at=min(self.scheduled_at, now))
        if not first:
            return due
        metadata = noted(self.metadata, {OWN_PRIORITY: str(self.own_priority)})
        return msgspec.structs.replace(due, priority=FIRST, metadata=metadata)

    @property
    def own_priority(self) -> int:
        """Its priority but for an operator who put it first."""
        if self.priority != FIRST:
            return self.priority
        noted_ = self.metadata.get(OWN_PRIORITY, "")
        return int(noted_) if re.fullmatch("-?[0-9]{1,4}", noted_) and int(noted_) in PRIORITIES else 0

    def move(self, queue: str, now: Instant) -> Self:
        """In another queue; a slot that it kept there is given back."""
        return msgspec.structs.replace(
            self, queue=queue, settled=self._without_slot(), scheduled_at=self._due_without_slot(self.scheduled_at, now)
        )

    def prioritize(self, priority: int) -> Self:
        """With another priority."""
        return msgspec.structs.replace(self, priority=priority)

    def edit(self, change: Edit) -> Self:
        """With another payload, priority, due time or budget."""
        return msgspec.structs.replace(
            self,
            payload=self.payload if change.payload is None else change.payload,
            priority=self.priority if change.priority is None else change.priority,
            scheduled_at=self.scheduled_at if change.at is None else change.at,
            budget=self.budget if change.attempts is None else change.attempts,
        )

    def resealed(self, before: Job, after: Job) -> Self:
        """With its values in another form, but for fields that were written since they were read."""
        same = [name for name in SEALED if getattr(self, name) == getattr(before, name)]
        return msgspec.structs.replace(self, **{name: getattr(after, name) for name in same})

    def as_former(self, after: Record | None) -> Former:
        """What this job was, before it became `after`."""
        return Former(
            self.id,
            self.kind,
            self.queue,
            self.status,
            self.attempts,
            self.token,
            self.scheduled_at,
            None if after is None else after.finished_at,
            self.started_at,
        )

    def restorable(self, former: Former) -> bool:
        """Has nothing happened to it since the change that an operator wants to undo?"""
        undone = {Status.CANCELED: WAITING, Status.DISCARDED: frozenset({Status.DEAD})}
        return former.status in undone.get(self.status, ()) and (former.token, former.ended) == (
            self.token,
            self.finished_at,
        )

    def restore(self, former: Former, now: Instant) -> Self:
        """As it was before a cancel or a discard; a dead job keeps the time of its end."""
        if former.status is Status.DEAD:
            return msgspec.structs.replace(self, status=Status.DEAD)
        return msgspec.structs.replace(
            self,
            status=former.status,
            scheduled_at=self._due_without_slot(former.scheduled_at, now),
            finished_at=None,
            expires_at=None,
            cancel_requested=False,
            cancel_requested_at=None,
            settled=self._without_slot(),
        )

    def supersede(self, now: Instant, queue: Queue) -> Self:
        """Dead, because a newer job takes its unique key."""
        check_transition(self.status, Status.DEAD, self.id)
        return _finished(msgspec.structs.replace(self, last_error=SUPERSEDED), Status.DEAD, now, queue)

    def set_aside(self, why: str, now: Instant, queue: Queue, *, started: bool) -> Self:
        """Dead, because a worker met it and could not read it; an attempt that was not started does not count."""
        aside = msgspec.structs.replace(
            self, unique=None, attempts=self.attempts - (not started), last_error=f"corrupt record: {why}"
        )
        return _finished(aside, Status.DEAD, now, queue)

    def replace(self, draft: Draft, now: Instant) -> Self:
        """Overwritten by a newer draft: it keeps its id, its age and its history."""
        unique, due = draft.unique, due_at(draft, now)
        assert unique is not None
        return msgspec.structs.replace(
            self,
            kind=draft.kind,
            queue=draft.queue,
            payload=draft.payload,
            priority=draft.priority,
            budget=draft.attempts,
            scheduled_at=unique.latest(due, self.created_at, self.scheduled_at, now),
            options=draft.options,
            unique=unique.stored,
            tenant=draft.tenant,
            settled=self._without_slot(draft.options.limit),
        )

    def _without_slot(self, newer: Slot | None = None) -> Status | Wakes | None:
        """What `settled` is once a waiting job keeps no slot, neither of its limit nor of a `newer` one.

        `subqueues.keeps_slot` reads it there.
        """
        keeps = any(slot is not None and slot.hold == "retrying" for slot in (self.options.limit, newer))
        return None if keeps and self.settled in PUT_BACK else self.settled

    def _due_without_slot(self, due: Instant, now: Instant) -> Instant:
        """When it is due once it keeps no slot: a suspended job that no signal could wake any more runs again."""
        return min(due, now) if isinstance(self.settled, Wakes) and self._without_slot() is None else due

    # --- what leaves the store ----------------------------------------------------------------------------------

    @property
    def counted(self) -> bool:
        """Is it counted under its status? One that is nowhere is shown as dead, without an end, and not counted."""
        return self.unreadable is None or self.finished_at is not None or self.status is not Status.DEAD

    def as_job(self, **other: Any) -> Job:
        """As an operator sees it, with other values for some fields."""
        return Job(**(dict(zip(_SHOWN, _shown(self), strict=True)) | other))

    def as_claim(
        self,
        queue: Queue,
        before: Status = Status.RUNNING,
        ref: object = None,
        *,
        fresh: bool = False,
        rows: tuple[Step, ...] | None = None,
    ) -> Claim:
        """A running job in the hands of its worker; `before` is its status until then, `ref` the engine's own."""
        assert self.worker is not None
        assert self.started_at is not None
        return Claim(
            id=self.id,
            kind=self.kind,
            queue=self.queue,
            payload=self.payload,
            attempt=self.attempts,
            base=self.base,
            budget=self.budget,
            worker=self.worker,
            token=self.token,
            claimed_at=self.started_at,
            created_at=self.created_at,
            scheduled_at=self.scheduled_at,
            priority=self.priority,
            options=self.options,
            unique=self.unique,
            tenant=self.tenant,
            crashes=self.crashes,
            throttles=self.throttles,
            last_error=self.last_error,
            cancel_requested=self.cancel_requested,
            metadata=self.metadata or None,
            curve=queue.curve,
            cool_count=queue.cooldown.count,
            former=self.former,
            former_at=self.former_at,
            ref=ref,
            before=before,
            fresh=fresh,
            rows=rows,
        )


def due_at(draft: Draft, now: Instant) -> Instant:
    """When a draft is due, by the store's clock."""
    return now + draft.delay if draft.at is None else draft.at


def _finished(record: R, status: Status, now: Instant, queue: Queue, keep: Span | None = None) -> R:
    return msgspec.structs.replace(
        record,
        status=status,
        worker=None,
        finished_at=now,
        expires_at=expiry(status, now, keep, queue.keep_done, queue.keep_dead),
        former=None,
        former_at=None,
    )
