"""Insert, settle and alter jobs one by one, with every rule, for all engines.

The functions read from a loaded unit of work and put into it what the model decides; they do no input or output.
Engines have bulk paths of their own for what is simple and frequent (fresh drafts without keys, plain successes);
everything else comes here, so a rule about a stored job is written once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence

import msgspec

from stoker.engines.base import CONTROL
from stoker.engines.shared.steps import store_rows, suspend
from stoker.engines.shared.unit_of_work import UnitOfWork, Wanted
from stoker.model.actions import allows
from stoker.model.archive import Archived, Put
from stoker.model.control import Queue
from stoker.model.errors import Duplicate, GroupClosed, InvalidInput, NotFound
from stoker.model.groups import Closing, Group, called_group, is_placed, placing
from stoker.model.ids import JobId, text
from stoker.model.job import Draft, Job, Note, Receipt, Settlement, Status, Stored, Verdict
from stoker.model.lifecycle import accepts
from stoker.model.query import (
    Cancel,
    Change,
    Clone,
    Delete,
    Discard,
    Edit,
    Fork,
    Former,
    Move,
    Prioritize,
    Requeue,
    Reseal,
    Restore,
    RunNow,
    Selection,
    Tally,
    as_seen,
)
from stoker.model.record import TOTALS, Record
from stoker.model.steps import Save
from stoker.model.throttle import cooled
from stoker.model.time import Span
from stoker.model.unique import Holder, Meeting, Mode, Unique, meet

# --- inserting --------------------------------------------------------------------------------------------------


def wanted_by_drafts(drafts: Iterable[Draft], group: Group | None = None) -> Wanted:
    """What inserting these drafts needs."""
    drafts = tuple(drafts)
    groups = {draft.options.group for draft in drafts if draft.options.group is not None}
    if group is not None:
        groups.add(group.id)
    return Wanted(
        frozenset(draft.job_id for draft in drafts),
        frozenset(draft.unique.slot(draft.kind) for draft in drafts if draft.unique is not None),
        frozenset(draft.queue for draft in drafts),
        groups=frozenset(groups),
    )


def insert(unit: UnitOfWork, drafts: Iterable[Draft], group: Group | None = None) -> list[Receipt]:
    """Store drafts; receipts in their order. An error means that nothing of the unit may be written.

    A new `group` is stored with them; one that is stored already, by the same call before, stays as it is.
    """
    drafts = tuple(drafts)
    if group is not None and is_placed(unit.group(group.id), group):
        return [Receipt(draft.job_id, Stored.EXISTING) for draft in drafts]
    admit(unit, drafts, group)
    for draft in drafts:
        stored = unit.get(draft.job_id)
        if draft.options.group is not None and stored is not None and stored.options.group != draft.options.group:
            raise InvalidInput("group", text(draft.job_id), "names a stored job that is no member of the group")
    return [insert_one(unit, draft) for draft in drafts]


def admit(unit: UnitOfWork, drafts: Sequence[Draft], group: Group | None = None) -> None:
    """Make a new group, or place drafts in a stored one; refuse drafts for groups that are missing or closed."""
    if group is not None:
        known = unit.group(group.id)
        after = placing(known, group, len(drafts))
        if known is None:
            unit.put_group(group.made(unit.now))
        elif after is not None:
            unit.place_group(after)
    for joined in {draft.options.group for draft in drafts}:
        if joined is None:
            continue
        if (found := unit.group(joined)) is None:
            raise NotFound.group(joined)
        if found.closed_at is not None:
            raise GroupClosed(joined)


def insert_one(unit: UnitOfWork, draft: Draft, mode: Mode | None = None) -> Receipt:
    """Store one draft, or name the holder of its key. `mode` overrides that of the key."""
    if unit.get(draft.job_id) is not None:
        return Receipt(draft.job_id, Stored.EXISTING)
    met = Receipt(draft.job_id, Stored.INSERTED)
    if draft.unique is not None:
        met = _meet(unit, draft, draft.unique, mode or draft.unique.mode)
    if met.stored is Stored.INSERTED:
        _create(unit, Record.drafted(draft, unit.now))
    return met


def _create(unit: UnitOfWork, record: Record) -> None:
    unit.put(record)
    unit.total(record, "enqueued")


def _meet(unit: UnitOfWork, draft: Draft, unique: Unique, mode: Mode) -> Receipt:
    """Decide between a draft and the holder of its key; `inserted`: the draft has the key and is to be stored."""
    slot = unique.slot(draft.kind)
    if (kept := unit.kept(slot)) is not None:
        if meet(Holder.KEPT, mode) is Meeting.REFUSE:
            raise Duplicate(unique.key, kept)
        return Receipt(kept, Stored.EXISTING)
    holder = unit.holder(slot)
    if holder is None:
        return Receipt(draft.job_id, Stored.INSERTED)
    match meet(holder.holder, mode):
        case Meeting.REFUSE:
            raise Duplicate(unique.key, holder.id)
        case Meeting.EXISTING:
            return Receipt(holder.id, Stored.EXISTING)
        case Meeting.REPLACE:
            unit.put(holder.replace(draft, unit.now))
            if holder.token:
                unit.begin_anew(holder.id)
            return Receipt(holder.id, Stored.REPLACED)
        case Meeting.SUPERSEDE:
            _supersede(unit, holder)
            return Receipt(draft.job_id, Stored.INSERTED, holder.id)
        case Meeting.TAKE:
            pass
    return Receipt(draft.job_id, Stored.INSERTED)


def _supersede(unit: UnitOfWork, holder: Record) -> None:
    """End the weak holder of a key: a newer job takes it."""
    unit.put(holder.supersede(unit.now, unit.queue(holder.queue)))


# --- settling ---------------------------------------------------------------------------------------------------


def wanted_by_settlements(settlements: Iterable[Settlement]) -> Wanted:
    """What settling these needs, follow-ups included."""
    settlements = tuple(settlements)
    followups = wanted_by_drafts(draft for settlement in settlements for draft in settlement.followups)
    return followups._replace(
        ids=followups.ids.union(settlement.id for settlement in settlements),
        groups=followups.groups.union(group for settlement in settlements for group in settlement.groups),
        steps=frozenset((settlement.id, step.name) for settlement in settlements for step in settlement.steps),
    )


def settle(unit: UnitOfWork, settlements: Iterable[Settlement]) -> list[Verdict]:
    """End claims, each independently; verdicts in their order."""
    return [settle_one(unit, settlement) for settlement in settlements]


def settle_one(unit: UnitOfWork, settlement: Settlement) -> Verdict:
    """End one claim, if worker and token are still its own."""
    record = unit.get(settlement.id)
    if record is None:
        return Verdict.LOST
    if not record.runs_as(settlement.worker, settlement.token):
        return Verdict.REPEATED if record.ended_by(settlement) else Verdict.LOST
    if not accepts(settlement.status, cancel_requested=record.cancel_requested):
        return Verdict.CANCELING
    if settlement.steps:
        settlement = suspend(unit, settlement)
    after = record.settle(settlement, unit.now, unit.queue(record.queue))
    if after is None:
        unit.remove(record, events=False)
    else:
        unit.put(after)
    if settlement.status is Status.DONE and record.slot is not None and (kept := record.keeps) is not None:
        unit.keep(record.slot, kept)
    _count(unit, record, settlement)
    _cool(unit, record.queue, settlement)
    call_jobs(unit, settlement.id, settlement.groups, settlement.followups)
    return Verdict.APPLIED


def call_jobs(unit: UnitOfWork, parent: JobId, groups: Iterable[JobId], drafts: Iterable[Draft]) -> None:
    """Store follow-ups, and before them the new groups of those that the parent waits for."""
    for group in groups:
        if unit.group(group) is None:
            unit.put_group(called_group(group, parent).made(unit.now))
    for draft in drafts:
        insert_followup(unit, draft)


def insert_followup(unit: UnitOfWork, draft: Draft) -> Receipt:
    """Store a follow-up. A key that is taken must not keep the claim from ending, so `raise` means `existing`."""
    refuses = draft.unique is not None and draft.unique.mode == "raise"
    return insert_one(unit, draft, "existing" if refuses else None)


def _count(unit: UnitOfWork, record: Record, settlement: Settlement) -> None:
    status = settlement.status
    if status in TOTALS:
        unit.total(record, TOTALS[status])
    if status is Status.DONE:
        unit.last_errors[record.kind] = None
    elif status in (Status.RETRYING, Status.DEAD) and settlement.error is not None:
        unit.last_errors[record.kind] = settlement.error


def _cool(unit: UnitOfWork, name: str, settlement: Settlement) -> None:
    if settlement.cool is None:
        return
    queue = unit.queue(name)
    cooldown = cooled(unit.now, queue.cooldown, settlement.cool)
    if cooldown != queue.cooldown:
        unit.put_queue(msgspec.structs.replace(queue, cooldown=cooldown))


def wanted_by_saves(saves: Iterable[Save]) -> Wanted:
    """What saving these needs, called jobs included."""
    saves = tuple(saves)
    called = wanted_by_drafts(draft for save in saves for draft in save.drafts)
    return called._replace(
        ids=called.ids.union(save.id for save in saves),
        groups=called.groups.union(group for save in saves for group in save.groups),
        steps=frozenset((save.id, step.name) for save in saves for step in save.steps),
    )


def save_one(unit: UnitOfWork, save: Save) -> Verdict:
    """Store rows of a running job and the jobs that it calls, or nothing."""
    record = unit.get(save.id)
    if record is None or not record.runs_as(save.worker, save.token):
        return Verdict.LOST
    if not store_rows(unit, save.id, save.steps, save.token):
        return Verdict.ANSWERED
    call_jobs(unit, save.id, save.groups, save.drafts)
    return Verdict.APPLIED


def note_one(unit: UnitOfWork, note: Note) -> Verdict:
    """Write progress, metadata and log lines on a running job."""
    record = unit.get(note.id)
    if record is None or not record.runs_as(note.worker, note.token):
        return Verdict.LOST
    unit.put(record.note(note))
    return Verdict.APPLIED


def set_aside(unit: UnitOfWork, record: Record, why: str, *, started: bool) -> None:
    """End a job that cannot be read: operators can see it, and no worker claims it again."""
    aside = record.set_aside(why, unit.now, unit.queue(record.queue), started=started)
    unit.put(aside)
    unit.total(aside, "failed")
    unit.last_errors[aside.kind] = aside.last_error


def count_groups(unit: UnitOfWork, queue_of: Callable[[str], Queue], keep_done: Span) -> list[Group]:
    """Count what the unit changed about groups and close those that are complete; returns these.

    `queue_of` returns a queue by its name, `keep_done` is the engine's default.
    """
    closed: list[Group] = []
    changes, unit.group_changes = unit.group_changes, {}
    for group, change in changes.items():
        stored = unit.group(group)
        if stored is None or stored.closed_at is not None:
            continue
        counted = stored.counted(change, unit.now)
        if counted.complete:
            queue = None if counted.queue is None else queue_of(counted.queue)
            counted = counted.close(unit.now, queue, keep_done)
            closed.append(counted)
        unit.store_group(counted)
    return closed


def store_callbacks(unit: UnitOfWork, closed: Iterable[Group]) -> list[Closing]:
    """Store the callbacks of groups that close; the unit holds what `wanted_by_drafts` names."""
    return [
        Closing(group, tuple(one for one in group.callbacks if insert_followup(unit, one).stored is Stored.INSERTED))
        for group in closed
    ]


def callbacks_of(closed: Iterable[Group]) -> list[Draft]:
    """Return what groups store that close."""
    return [draft for group in closed for draft in group.callbacks]


# --- putting back -----------------------------------------------------------------------------------------------


def wanted_by_archived(jobs: Iterable[Archived]) -> Wanted:
    """What storing jobs of another store needs."""
    records = [one.record for one in jobs]
    return Wanted(
        frozenset(record.id for record in records),
        frozenset(record.slot for record in records if record.slot is not None),
        frozenset(record.queue for record in records),
    )


def put(unit: UnitOfWork, jobs: Iterable[Archived]) -> list[Put]:
    """Store jobs of another store as they were there."""
    return [_put_one(unit, one) for one in jobs]


def _put_one(unit: UnitOfWork, one: Archived) -> Put:
    record = one.record
    if unit.get(record.id) is not None:
        return Put.EXISTING
    slot = record.held_slot
    if slot is not None and (unit.holder(slot) is not None or unit.kept(slot) is not None):
        return Put.BLOCKED
    unit.put(record)
    for row in one.steps:
        unit.put_step(record.id, row)
    if record.slot is not None and (kept := record.kept) is not None:
        unit.keep(record.slot, kept)
    return Put.STORED


# --- altering ---------------------------------------------------------------------------------------------------


def check(selection: Selection, change: Change) -> None:
    """Refuse a change that does not fit its selection."""
    if isinstance(change, Clone | Fork) and len(change.ids) != len(selection.ids):
        raise InvalidInput("clone ids", len(change.ids), f"must be one for each of {len(selection.ids)} selected jobs")
    if isinstance(change, Restore) and tuple(one.id for one in change.former) != selection.ids:
        raise InvalidInput("restore", len(change.former), "must name exactly the selected jobs, in their order")


def wanted_by_change(selection: Selection, change: Change) -> Wanted:
    """What the change needs."""
    ids = frozenset(selection.ids)
    match change:
        case Clone(ids=clones) | Fork(ids=clones):
            return Wanted(ids.union(clones), revives=True)
        case Requeue() | Edit() | Restore():
            return Wanted(ids, revives=True)
        case Move(queue=queue):
            return Wanted(ids, queues=frozenset({queue}))
        case Reseal(rows=rows):
            pairs = zip(change.before, rows, strict=False)
            names = frozenset((job.id, before.name) for job, own in pairs for before, _ in own)
            return Wanted(ids, revives=True, steps=names)
        case _:
            return Wanted(ids)


class Alteration:
    """A change of selected jobs: each is decided by its status in the unit, independently of the others."""

    def __init__(self, unit: UnitOfWork, selection: Selection, change: Change) -> None:
        self._unit = unit
        self._selection = selection
        self._change = change
        self.found = 0
        self.changed: list[int] = []
        """Positions in the selection."""
        self.created: dict[int, JobId] = {}
        self.former: dict[int, Former] = {}
        self.refused: Counter[Status] = Counter()
        self.cancel_requested = self.blocked = 0

    def run(self, positions: Iterable[int]) -> None:
        """Change the jobs at these positions of the selection, in this order."""
        for position in positions:
            record = self._unit.get(self._selection.ids[position])
            if record is None:
                continue
            self.found += 1
            if self._may_change(record, position):
                self._apply(record, position)
                if position in self.changed[-1:]:
                    self.former[position] = record.as_former(self._unit.get(record.id))
            else:
                self.refused[record.status] += 1

    def removed(self, position: int) -> None:
        """The engine has removed a job that cannot be read at all."""
        self.found += 1
        self.changed.append(position)

    def _may_change(self, record: Record, position: int) -> bool:
        """A job that cannot be read can be discarded and deleted, and never runs again."""
        readable = record.unreadable is None or isinstance(self._change, Delete | Discard)
        return (
            readable
            and allows(self._change, record.status)
            and as_seen(record, self._selection, position, self._change)
        )

    def _apply(self, record: Record, position: int) -> None:
        unit, now = self._unit, self._unit.now
        match self._change:
            case Cancel():
                self._cancel(record, position, self._change)
            case Delete():
                self._delete(record, position)
            case Requeue():
                if self._key_is_free(record):
                    self._put(record.requeue(now), position)
            case Clone(ids=ids):
                self._clone(record, position, ids[position], self._change)
            case Fork(ids=ids):
                self._fork(record, position, ids[position], self._change)
            case Discard() if not record.counted:
                self._delete(record, position)
            case Discard():
                self._put(record.discard(now, unit.queue(record.queue)), position)
            case RunNow(first=first):
                self._put(record.run_now(now, first=first), position)
                if first:  # it may start although it was due already and its queue has no token
                    unit.wake(record.queue)
            case Move(queue=queue):
                if unit.move(record, queue):
                    self.changed.append(position)
                else:
                    self.blocked += 1
            case Prioritize(priority=priority):
                self._put(record.prioritize(priority), position)
            case Edit():
                self._put(record.edit(self._change), position)
            case Restore(former=former):
                self._restore(record, position, former[position])
            case Reseal():
                self._reseal(record, position, self._change)

    def _put(self, record: Record, position: int) -> None:
        self._unit.put(record)
        self.changed.append(position)

    def _cancel(self, record: Record, position: int, change: Cancel) -> None:
        if record.status is Status.RUNNING:
            self._unit.wake(CONTROL)
            if not change.force:
                self._unit.put(record.asked_to_stop(self._unit.now, change))
                self.cancel_requested += 1
                return
        canceled = record.cancel(change.reason, self._unit.now, self._unit.queue(record.queue))
        self._put(canceled, position)
        self._unit.total(canceled, "canceled")

    def _delete(self, record: Record, position: int) -> None:
        if record.status is Status.RUNNING:
            self._unit.wake(CONTROL)
            self._unit.put(record.asked_to_stop(self._unit.now))
            self.cancel_requested += 1
            return
        self._unit.delete(record)
        self.changed.append(position)

    def _restore(self, record: Record, position: int, former: Former) -> None:
        if not record.restorable(former):
            self.refused[record.status] += 1
        elif former.status is Status.DEAD or self._key_is_free(record):
            self._put(record.restore(former, self._unit.now), position)

    def _reseal(self, record: Record, position: int, change: Reseal) -> None:
        before, after = change.before[position], change.after[position]
        texts = zip(_errors(before), _errors(after), strict=True)
        self._unit.put_resealed(record.resealed(before, after), {old: new for old, new in texts if old != new})
        self.changed.append(position)
        for stored, sealed in change.rows[position] if change.rows else ():
            row = self._unit.step(record.id, stored.name)
            if row is not None and row.value == stored.value:
                self._unit.put_step(record.id, msgspec.structs.replace(row, value=sealed.value))

    def _clone(self, record: Record, position: int, job: JobId, change: Clone) -> None:
        if self._unit.get(job) is not None:
            self.blocked += 1
        elif self._key_is_free(record):
            now, queue = self._unit.now, self._unit.queue(record.queue)
            self._put(record.retried_as(job, now, queue), position)
            _create(self._unit, record.clone(job, now, _lineage(change, position)))
            if record.token:
                self._unit.copy_steps(record.id, job)
            self.created[position] = job

    def _fork(self, record: Record, position: int, job: JobId, change: Fork) -> None:
        if self._unit.get(job) is not None:
            self.blocked += 1
            return
        _create(self._unit, record.fork(job, change, self._unit.now, _lineage(change, position)))
        if change.after is not None:
            self._unit.copy_steps(record.id, job, change.after)
        self.changed.append(position)
        self.created[position] = job

    def _key_is_free(self, record: Record) -> bool:
        """Whether this job may become active; a weak holder of its key is ended for it."""
        if record.slot is None:
            return True
        if self._unit.kept(record.slot) is not None:
            self.blocked += 1
            return False
        holder = self._unit.holder(record.slot)
        if holder is None or holder.id == record.id:
            return True
        if meet(holder.holder, "existing") is Meeting.SUPERSEDE:
            _supersede(self._unit, holder)
            return True
        self.blocked += 1
        return False


def _errors(job: Job) -> list[str]:
    """The errors of a job, its last one first."""
    return [*(() if job.last_error is None else (job.last_error,)), *(one.error for one in job.history)]


def _lineage(change: Clone | Fork, position: int) -> str:
    return change.lineages[position] if change.lineages else ""


def tally(selection: Selection, alterations: Sequence[Alteration]) -> Tally:
    """What one call did in all its units, ids in the order of the selection."""
    changed = sorted(position for one in alterations for position in one.changed)
    created = {position: job for one in alterations for position, job in one.created.items()}
    refused: Counter[Status] = Counter()
    for one in alterations:
        refused += one.refused
    return Tally(
        changed=len(changed),
        cancel_requested=sum(one.cancel_requested for one in alterations),
        missing=len(selection.ids) - sum(one.found for one in alterations),
        blocked=sum(one.blocked for one in alterations),
        refused=dict(refused),
        created=tuple(created[position] for position in sorted(created)),
        changed_ids=tuple(selection.ids[position] for position in changed),
        former=tuple(one.former[position] for position in changed for one in alterations if position in one.former),
    )
