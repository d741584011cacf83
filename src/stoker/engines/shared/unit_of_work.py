"""One transaction: what was loaded, and what is to be written.

An engine loads records, keys and queues into a unit, the functions of `one_by_one` change them by the model's rules,
and the engine writes the difference in one atomic step. Counters, keys and wake-ups follow from the records: `put` is
the only way to change a job, so they cannot disagree with it.

The engine loads what `Wanted` names before it is read, and with it what belongs to it: for a key the record of its
holder, for a record the settings of its queue and, if its success kept a key (`Record.kept`), who has that now.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import NamedTuple, TypeAlias

from stoker.model.audit import AuditEntry
from stoker.model.control import Queue
from stoker.model.groups import Closing, Group, GroupChange, changes
from stoker.model.ids import JobId
from stoker.model.job import Draft, Status
from stoker.model.next_due import wakes
from stoker.model.record import WAITING, Record, Total
from stoker.model.steps import Step
from stoker.model.time import Instant
from stoker.model.unique import Kept


class Wanted(NamedTuple):
    """What an operation reads from its unit: jobs by id, holders of unique keys by slot, queues by name, groups by id.

    `revives`: finished jobs may become active again, so the holders of their keys are needed too. `steps` are rows of
    jobs by their whole name, with their values. `signals` are names that are signaled: the rows of that name, numbered
    ones too, and all rows of the job that are open or early; their values are not needed.
    """

    ids: frozenset[JobId] = frozenset()
    slots: frozenset[str] = frozenset()
    queues: frozenset[str] = frozenset()
    revives: bool = False
    groups: frozenset[JobId] = frozenset()
    steps: frozenset[tuple[JobId, str]] = frozenset()
    signals: frozenset[tuple[JobId, str]] = frozenset()


class Written(NamedTuple):
    """What became of one job: `before` is None for a new one, `after` for one that is removed."""

    before: Record | None
    after: Record | None


Hold: TypeAlias = JobId | Kept
"""Who has a unique key: an active job, or one that succeeded and keeps the key for a time."""


class KeyChange(NamedTuple):
    """A unique key that is held in another way now; None: it is free."""

    slot: str
    before: Hold | None
    after: Hold | None


class UnitOfWork:
    """Loaded and changed jobs, keys and queues of one transaction, all at the instant `now`."""

    def __init__(self, now: Instant) -> None:
        self.now = now
        self.woken: set[str] = set()
        self.closings: list[Closing] = []
        """Groups that close when, and only if, the unit is written."""
        self.entries: list[AuditEntry] = []
        """Entries of the audit log that are written with the unit."""
        self.clear()

    def clear(self) -> None:
        """Forget what was loaded and written, not what the commit wakes and publishes."""
        self.totals: Counter[tuple[str, str, Total]] = Counter()
        """By queue and kind: what happened in this unit."""
        self.last_errors: dict[str, str | None] = {}
        """By kind: the error that is its last one now; None clears it."""
        self.changed_queues: dict[str, Queue] = {}
        self.group_changes: dict[JobId, GroupChange] = {}
        """By group: what the changed jobs change about it; the engine counts it in the same write."""
        self.placed: dict[JobId, int] = {}
        """By group that is stored: how many drafts of its maker are placed in it now."""
        self.changed_groups: dict[JobId, Group] = {}
        self.forgotten: set[JobId] = set()
        """Removed jobs whose events are hidden."""
        self.deleted: set[JobId] = set()
        """Jobs that an operator deleted: events of theirs that come later are not recorded."""
        self.changed_steps: dict[JobId, dict[str, Step]] = {}
        """By job: rows as they are now."""
        self.resealed: dict[JobId, dict[str, str]] = {}
        """By job whose values are stored in another form: its errors, each by its former text."""
        self.begun_anew: set[JobId] = set()
        """Jobs whose rows are removed, because a newer draft took their place."""
        self.copied_steps: dict[JobId, tuple[JobId, str | None]] = {}
        """By new job: the one whose rows it gets."""
        self._steps: dict[JobId, dict[str, Step]] = {}
        self._asked_steps: set[tuple[JobId, str]] = set()
        self._asked_signals: set[tuple[JobId, str]] = set()
        self._before: dict[JobId, Record | None] = {}
        self._records: dict[JobId, Record | None] = {}
        self._holders_before: dict[str, Hold | None] = {}
        self._holders: dict[str, Hold | None] = {}
        self._queues: dict[str, Queue] = {}
        self._groups: dict[JobId, Group | None] = {}
        self._touched: dict[JobId, None] = {}

    # --- loading: by the engine ---------------------------------------------------------------------------------

    def missing(self, wanted: Wanted) -> Wanted:
        """The part of `wanted` that is not loaded yet."""
        return Wanted(
            wanted.ids - self._before.keys(),
            wanted.slots - self._holders_before.keys(),
            wanted.queues - self._queues.keys(),
            wanted.revives,
            wanted.groups - self._groups.keys(),
            wanted.steps - self._asked_steps,
            wanted.signals - self._asked_signals,
        )

    def add_record(self, job: JobId, record: Record | None) -> None:
        """A job as stored; None when there is none of this id."""
        self._before[job] = self._records[job] = record

    def add_holder(self, slot: str, holder: Hold | None) -> None:
        """Who holds a key, as stored."""
        self._holders_before[slot] = self._holders[slot] = holder

    def add_queue(self, queue: Queue) -> None:
        """A queue's settings as stored, or the defaults of one that was never used."""
        self._queues[queue.name] = queue

    def add_group(self, group: JobId, stored: Group | None) -> None:
        """A group as stored; None when there is none of this id."""
        self._groups[group] = stored

    def add_steps(self, wanted: Wanted, found: Iterable[tuple[JobId, Step]]) -> None:
        """Rows as stored that `wanted.steps` and `wanted.signals` ask for; what this unit wrote stays as it is."""
        self._asked_steps |= wanted.steps
        self._asked_signals |= wanted.signals
        for job, row in found:
            if row.name not in self.changed_steps.get(job, ()):
                self._steps.setdefault(job, {})[row.name] = row

    # --- deciding: by `one_by_one` ---------------------------------------------------------------------------------

    def get(self, job: JobId) -> Record | None:
        """A job as changed so far."""
        return self._records[job]

    def holder(self, slot: str) -> Record | None:
        """The active job that holds a key now."""
        held = self._holders[slot]
        return None if held is None or isinstance(held, Kept) else self._records[held]

    def kept(self, slot: str) -> JobId | None:
        """The job whose success keeps a key now."""
        held = self._holders[slot]
        return held.job if isinstance(held, Kept) and held.until > self.now else None

    def keep(self, slot: str, kept: Kept) -> None:
        """Keep the key that a job has released with its success, if there is time left."""
        if kept.until > self.now and self._holders[slot] is None:
            self._holders[slot] = kept

    def queue(self, name: str) -> Queue:
        """A queue's settings as changed so far."""
        return self._queues[name]

    def group(self, group: JobId) -> Group | None:
        """A group as stored, or as this unit makes it."""
        return self._groups[group]

    def put_group(self, group: Group) -> None:
        """Store a group that is new or was sealed; whether it is complete is found out when it is counted."""
        self.store_group(group)
        self.count_group(group.id, GroupChange())

    def place_group(self, group: Group) -> None:
        """Store how many drafts of its maker are placed in a stored group."""
        self._groups[group.id] = group
        self.placed[group.id] = group.placed
        self.count_group(group.id, GroupChange())

    def store_group(self, group: Group) -> None:
        """Store a group as it was counted."""
        self._groups[group.id] = self.changed_groups[group.id] = group

    def step(self, job: JobId, name: str) -> Step | None:
        """A row of a job as changed so far; None when there is none."""
        return self._steps.get(job, {}).get(name)

    def steps(self, job: JobId) -> dict[str, Step]:
        """The loaded rows of a job as changed so far."""
        return self._steps.get(job, {})

    def put_step(self, job: JobId, row: Step) -> None:
        """Store a row of a job."""
        self._steps.setdefault(job, {})[row.name] = row
        self.changed_steps.setdefault(job, {})[row.name] = row

    def copy_steps(self, job: JobId, copy: JobId, after: str | None = None) -> None:
        """Give a copy the rows of the job it was made from; with `after` those that a fork keeps (`Fork`)."""
        self.copied_steps[copy] = job, after

    def put_resealed(self, record: Record, errors: dict[str, str]) -> None:
        """Store the values of a job in another form; its errors by their former text, wherever they stand."""
        self.resealed[record.id] = errors
        self.put(record)

    def begin_anew(self, job: JobId) -> None:
        """Remove the rows of a job that has become another one."""
        self.begun_anew.add(job)

    def put(self, record: Record) -> None:
        """Store a job as it is now, new or changed; a waiter is woken when it is due sooner than it was."""
        before = self._records.get(record.id)
        self._release(before)
        self._records[record.id] = record
        self._touched[record.id] = None
        self._count_groups(before, record)
        if (slot := record.held_slot) is not None:
            self._holders[slot] = record.id
        waits = record.status in WAITING and wakes(record.scheduled_at, self.now)
        if waits and not (before is not None and _waited_before(before, record)):
            self.woken.add(record.queue)

    def remove(self, record: Record, *, events: bool) -> None:
        """Delete a job, with its events or without."""
        before = self._records[record.id]
        self._release(before)
        self._records[record.id] = None
        self._touched[record.id] = None
        self.changed_steps.pop(record.id, None)
        self._count_groups(before, None, deleted=record.id in self.deleted)
        if events:
            self.forgotten.add(record.id)

    def delete(self, record: Record) -> None:
        """Remove a job at an operator's request, with its events and those that come later; its key becomes free."""
        if record.slot is not None and (kept := record.kept) is not None and self._holders.get(record.slot) == kept:
            self._holders[record.slot] = None
        self.deleted.add(record.id)
        self.remove(record, events=True)

    def put_queue(self, queue: Queue) -> None:
        """Store a queue's settings and cool-down."""
        self._queues[queue.name] = self.changed_queues[queue.name] = queue

    def move(self, record: Record, queue: str) -> bool:
        """Put a waiting job into another queue. False: the store cannot move this one."""
        self.put(record.move(queue, self.now))
        return True

    def wake(self, topic: str) -> None:
        """Wake a waiter when, and only if, the unit is written."""
        self.woken.add(topic)

    def total(self, record: Record, total: Total) -> None:
        """Count what became of a job."""
        self.totals[record.queue, record.kind, total] += 1

    def count_group(self, group: JobId, change: GroupChange) -> None:
        """Count what the engine changed about a group's members without `put`."""
        self.group_changes.setdefault(group, GroupChange()).add(change)

    def joined(self, draft: Draft) -> None:
        """Count a draft that the engine stored without `put`."""
        if draft.options.group is not None:
            self.count_group(draft.options.group, GroupChange(1, members=[draft.job_id], queue=draft.queue))

    def _count_groups(self, before: Record | None, after: Record | None, *, deleted: bool = False) -> None:
        if _is_member(before) or _is_member(after):
            for group, change in changes(before, after, deleted=deleted):
                self.count_group(group, change)

    def _release(self, record: Record | None) -> None:
        if record is None or (slot := record.held_slot) is None:
            return
        # An active job holds its key, so there is no need to load the key for knowing that.
        self._holders_before.setdefault(slot, record.id)
        if self._holders.setdefault(slot, record.id) == record.id:
            self._holders[slot] = None

    # --- writing: by the engine ---------------------------------------------------------------------------------

    def written(self) -> Iterator[Written]:
        """Every job that differs from what was loaded, in the order of the first change."""
        for job in self._touched:
            change = Written(self._before.get(job), self._records[job])
            if change.before is not change.after:
                yield change

    def key_changes(self) -> Iterator[KeyChange]:
        """Every key that is held in another way than was loaded."""
        for slot, after in self._holders.items():
            before = self._holders_before.get(slot)
            if before != after:
                yield KeyChange(slot, before, after)

    def counts(self) -> Counter[tuple[str, str, Status]]:
        """By queue, kind and status: how many jobs more or fewer there are."""
        counts: Counter[tuple[str, str, Status]] = Counter()
        for before, after in self.written():
            if before is not None and before.counted:
                counts[before.queue, before.kind, before.status] -= 1
            if after is not None:
                counts[after.queue, after.kind, after.status] += 1
        return Counter({key: n for key, n in counts.items() if n})


def _is_member(record: Record | None) -> bool:
    return record is not None and record.options.group is not None


def _waited_before(before: Record, record: Record) -> bool:
    """Whether the job waited in the same queue already, due no later than now."""
    return before.status in WAITING and before.queue == record.queue and before.scheduled_at <= record.scheduled_at
