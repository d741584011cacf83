"""What people do to jobs: each is judged by the status it has inside the write, and hinders nobody else.

One transaction locks every selected job, decides about them one by one in the order of the selection, and then moves
them all at once.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import msgspec

from stoker.engines.postgres import keys, record_writes
from stoker.engines.postgres.columns import (
    CANCELED,
    DEAD,
    DISCARDED,
    DONE,
    NEVER_SETTLED,
    PENDING,
    RETRIED,
    RETRYING,
    RUNNING,
    STATUSES,
)
from stoker.engines.postgres.record_writes import Record
from stoker.engines.postgres.statements import sql
from stoker.engines.postgres.unit_of_work import ENQUEUED, Unit
from stoker.engines.sql.packing import encode
from stoker.engines.sql.steps import Steps
from stoker.model.errors import InvalidInput
from stoker.model.ids import JobId
from stoker.model.job import Status
from stoker.model.lifecycle import check_transition
from stoker.model.query import (
    Cancel,
    Change,
    Clone,
    Delete,
    Discard,
    Move,
    Prioritize,
    Requeue,
    RunNow,
    Selection,
    Tally,
    allows,
)
from stoker.model.unique import Meeting, meet

if TYPE_CHECKING:
    from stoker.engines.postgres.store import Store

_CLONE_BODIES = sql("clone_bodies")
_ERASE_JOB = sql("erase_job")


async def alter(store: Store, selection: Selection, change: Change) -> Tally:
    """Apply a change to the selected jobs, in one transaction."""
    if isinstance(change, Clone) and len(change.ids) != len(selection.ids):
        raise InvalidInput("clone ids", len(change.ids), f"must be one for each of {len(selection.ids)} jobs")
    store.inside()
    if not selection.ids:
        return Tally()
    if isinstance(change, Cancel):
        change = Cancel(record_writes.storable(change.reason), change.force)
    wanted = change
    return await store.write(lambda unit: Action(unit, selection, wanted).run(), lane="desk")


class Action:
    """One call of `alter`, with its tally in the making."""

    def __init__(self, unit: Unit, selection: Selection, change: Change) -> None:
        self._unit = unit
        self._selection = selection
        self._change = change
        self._clones = (
            dict(zip(range(len(selection.ids)), change.ids, strict=True)) if isinstance(change, Clone) else {}
        )
        self._records: dict[JobId, Record] = {}
        self._places: dict[JobId, record_writes.Place] = {}
        self._free: set[JobId] = set()
        self._made: set[JobId] = set()
        self._superseded: dict[JobId, JobId] = {}
        self._touched: list[Record] = []
        self._asked: list[Record] = []
        self._changed: list[JobId] = []
        self._created: list[JobId] = []
        self._refused: Counter[Status] = Counter()
        self._missing = self._blocked = 0

    def run(self) -> Steps[Tally]:
        """Lock, decide, move."""
        self._records, self._places = yield from record_writes.locked(self._selection.ids)
        if isinstance(self._change, Clone):
            yield from self._make_clones()
        if isinstance(self._change, Clone | Requeue):
            yield from self._win_keys()
        for place, job in enumerate(self._selection.ids):
            record = self._records.get(job)
            if record is None:
                self._missing += 1
            elif not self._allowed(record):
                self._refused[STATUSES[record.status]] += 1
            else:
                self._decide(record, place)
        yield from self._move()
        return Tally(
            changed=len(self._changed),
            cancel_requested=len(self._asked),
            missing=self._missing,
            blocked=self._blocked,
            refused=dict(self._refused),
            created=tuple(self._created),
            changed_ids=tuple(self._changed),
        )

    def _allowed(self, record: Record) -> bool:
        return allows(self._change, STATUSES[record.status], self._selection)

    # --- deciding, one by one -----------------------------------------------------------------------------------

    def _decide(self, record: Record, place: int) -> None:
        change = self._change
        match change:
            case Cancel():
                self._cancel(record, change)
            case Delete():
                self._delete(record)
            case Requeue():
                self._requeue(record)
            case Clone():
                self._clone(record, self._clones[place])
            case Discard():
                self._become(record, DISCARDED)
            case RunNow():
                self._rearrange(record, due=min(record.due, self._unit.now))
            case Move(queue=queue):
                self._rearrange(record, queue=queue)
            case Prioritize(priority=priority):
                self._rearrange(record, priority=priority)

    def _cancel(self, record: Record, change: Cancel) -> None:
        if record.status == RUNNING:
            self._unit.control()
            if not change.force:
                self._asked.append(record)
                return
        self._become(record, CANCELED)

    def _delete(self, record: Record) -> None:
        if record.status == RUNNING:
            self._unit.control()
            self._asked.append(record)
            return
        self._touch(record)
        del self._records[record.id]

    def _requeue(self, record: Record) -> None:
        if not self._may_have_its_key(record, record.id):
            self._blocked += 1
            return
        self._become(record, PENDING)

    def _clone(self, record: Record, clone: JobId) -> None:
        if clone not in self._made or not self._may_have_its_key(record, clone):
            self._blocked += 1
            return
        self._made.discard(clone)
        record.successor = clone
        self._become(record, RETRIED)
        self._created.append(clone)

    def _may_have_its_key(self, record: Record, job: JobId) -> bool:
        if record.unique is None or record.status < DONE:
            return True
        if job not in self._free:
            return False
        if (loser := self._records.get(self._superseded.get(job, b""))) is not None:
            loser.status = DEAD
        return True

    def _become(self, record: Record, status: int) -> None:
        """Remember what was, for the move, and let whoever comes later in the selection see what is."""
        check_transition(STATUSES[record.status], STATUSES[status], record.id)
        self._touch(record)
        record.status = status

    def _touch(self, record: Record) -> None:
        self._touched.append(msgspec.structs.replace(record))
        self._changed.append(record.id)

    def _rearrange(
        self, record: Record, *, queue: str | None = None, priority: int | None = None, due: int | None = None
    ) -> None:
        if queue is not None:
            self._unit.count(record.queue, record.kind, record.status, -1)
            self._unit.count(queue, record.kind, record.status)
            record.queue = queue
        if priority is not None:
            record.priority = priority
        if due is not None:
            record.due = due
        if priority is None:
            self._unit.due(record.queue, record.due)
        self._changed.append(record.id)

    # --- keys ---------------------------------------------------------------------------------------------------

    def _make_clones(self) -> Steps[None]:
        """Store the copies first: a new id that is taken shows only then."""
        wanted: dict[JobId, JobId] = {}
        for place, job in enumerate(self._selection.ids):
            record = self._records.get(job)
            if record is not None and self._allowed(record):
                wanted.setdefault(self._clones[place], job)
        if wanted:
            rows = yield _CLONE_BODIES, (self._unit.now, list(wanted.values()), list(wanted))
            self._made = {clone for (clone,) in rows}

    def _win_keys(self) -> Steps[None]:
        """Find out which finished jobs may become active: of several with one key the first in the selection."""
        wanted: dict[str, tuple[JobId, bool]] = {}
        taken: set[str] = set()
        for place, job in enumerate(self._selection.ids):
            record = self._records.get(job)
            if record is None or record.slot is None or record.unique is None or not self._allowed(record):
                continue
            heir = self._clones.get(place, job)
            if record.status == RETRYING:
                taken.add(record.slot)
            elif record.slot not in taken and (heir == job or heir in self._made):
                wanted.setdefault(record.slot, (heir, keys.firm(record.unique)))
        while wanted:
            yield from self._contend(wanted)

    def _contend(self, wanted: dict[str, tuple[JobId, bool]]) -> Steps[None]:
        """Take keys that are free or weakly held; those whose fate is known leave `wanted`."""
        won = yield from keys.take([(slot, heir, firm) for slot, (heir, firm) in wanted.items()])
        self._free.update(wanted.pop(slot)[0] for slot in won)
        if not wanted:
            return
        weak: list[tuple[JobId, str, JobId, bool]] = []
        for slot, (holder, grip) in (yield from keys.holders(list(wanted))).items():
            if meet(grip, "existing") is Meeting.SUPERSEDE:
                weak.append((holder, slot, *wanted[slot]))
            else:
                del wanted[slot]
        won = (yield from keys.supersede(self._unit, weak)) if weak else set()
        self._superseded.update((heir, holder) for holder, slot, heir, _ in weak if slot in won)
        self._free.update(wanted.pop(slot)[0] for slot in won)

    # --- moving, all at once ------------------------------------------------------------------------------------

    def _move(self) -> Steps[None]:
        unit, touched, change = self._unit, self._touched, self._change
        match change:
            case Cancel():
                note = change.note()
                yield from record_writes.ask(unit, self._asked, self._places, encode(note).decode() if note else None)
                yield from record_writes.leave(touched, self._places)
                yield from record_writes.finish(unit, touched, CANCELED, change.reason)
            case Delete():
                yield from record_writes.ask(unit, self._asked, self._places, None)
                yield from record_writes.leave(touched, self._places)
                yield from record_writes.erase(unit, touched)
            case Requeue():
                yield from record_writes.leave(touched, self._places)
                yield from record_writes.line_up(unit, touched)
            case Discard():
                yield from record_writes.mark(unit, touched, DISCARDED)
            case Clone():
                yield from record_writes.mark(unit, touched, RETRIED)
                yield from self._settle_clones()
            case _:
                placed = [self._records[job] for job in dict.fromkeys(self._changed)]
                yield from record_writes.place_anew(placed, on_time=isinstance(change, RunNow))

    def _settle_clones(self) -> Steps[None]:
        """Copies whose originals may go on stand in line; the others are taken back."""
        fresh = [
            msgspec.structs.replace(
                record, id=record.successor, token=0, attempts=0, settled=NEVER_SETTLED, status=PENDING, successor=None
            )
            for record in self._touched
        ]
        yield from record_writes.join(self._unit, fresh)
        for record in fresh:
            self._unit.count(record.queue, record.kind, ENQUEUED)
        if self._made:
            yield _ERASE_JOB, (list(self._made),)
