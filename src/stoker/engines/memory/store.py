"""The state of the store, and the one step that changes jobs: `apply` writes a unit of work.

A job is in exactly one container: `waiting` (the ready queue of its queue), `held` (by its worker) or `finished`.
Claiming and reaping, the hot paths, change entries themselves; all else is decided in a unit of work first, so a call
that is refused, or a transaction that is rolled back, changes nothing.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import logging
import threading
import time
from collections import Counter, deque
from collections.abc import Callable
from typing import Concatenate, ParamSpec, TypeVar

from stoker.engines.base import Clock
from stoker.engines.memory.events import EventLog
from stoker.engines.memory.ready_queue import Entry, ReadyQueue
from stoker.engines.memory.streams import Tables
from stoker.engines.memory.subqueues import Subqueues
from stoker.engines.memory.waiters import Hub, Waiter
from stoker.engines.shared import careful
from stoker.engines.shared.ends import Ends, Interest
from stoker.engines.shared.unit_of_work import UnitOfWork, Wanted
from stoker.model.audit import AuditEntry, By, Deed
from stoker.model.control import Budget, NamedLock, Presence, Queue
from stoker.model.groups import Closing, Group, kept_until
from stoker.model.ids import JobId
from stoker.model.job import ACTIVE, Status
from stoker.model.lifecycle import KEEP_DONE
from stoker.model.record import WAITING, Record, Total
from stoker.model.schedule import Schedule
from stoker.model.subqueues import freed, line_of, renumbers
from stoker.model.time import MINUTE, Instant, Span

Answer = TypeVar("Answer")
P = ParamSpec("P")

log = logging.getLogger("stoker.engines.memory")

MOST_STALE = 1_000
"""How many outdated entries of `_ends` are tolerated before it is compacted."""


PRUNED_AT_ONCE = 10
"""How many closed groups beyond the history one write looks at: those with a job that is kept are met again."""

FURTHEST_AHEAD: Span = MINUTE
"""How far the store's clock may be ahead of the system's before it follows it back."""


class Store:
    """Everything that is stored, shared by all engines on it. A caller holds `lock`."""

    def __init__(self, clock: Clock | None, capacity: int | None, history: int | None) -> None:
        self.lock = threading.Lock()
        self.capacity = capacity
        self.history = history
        self.keep_done = KEEP_DONE
        self.clock = SteadyClock(clock)
        self.jobs: dict[JobId, Entry] = {}
        self.waiting: dict[str, ReadyQueue] = {}
        self.subqueues: dict[str, Subqueues] = {}
        self.held: dict[str, dict[JobId, Entry]] = {}
        self.finished: dict[JobId, Entry] = {}
        self._ends: list[tuple[Instant, int, JobId]] = []
        self._ended = itertools.count()
        self.holders: dict[str, JobId] = {}
        self.counts: Counter[tuple[str, str, Status]] = Counter()
        self.totals: Counter[tuple[str, Total]] = Counter()
        self.last_errors: dict[str, str] = {}
        self.active = 0
        self.leases: dict[str, Instant] = {}
        self.retired: set[str] = set()
        self.rows: dict[str, Queue] = {}
        self._untuned: dict[str, Queue] = {}
        self.groups: dict[JobId, Group] = {}
        self.closed_groups: deque[JobId] = deque()
        self.budgets: dict[str, Budget] = {}
        self.locks: dict[str, NamedLock] = {}
        self.presences: dict[str, Presence] = {}
        self.schedules: dict[str, Schedule] = {}
        self.event_log = EventLog()
        self.audit: list[AuditEntry] = []
        self.documents: dict[str, dict[str, bytes]] = {}
        self.tables = Tables()
        self.hubs: list[Hub] = []
        self.interest = Interest()
        self.attending: dict[Ends, asyncio.AbstractEventLoop] = {}
        self.waiting_for_room: deque[Waiter] = deque()
        self._woken: set[str] = set()
        self.closings: list[Closing] = []
        """Groups that the current call has closed."""
        self.entries: list[AuditEntry] = []
        """Entries of the audit log that the current call has written."""
        self._sorted: list[JobId] | None = None

    def now(self) -> Instant:
        """The store's clock; one that was set far back is followed, and the waiting jobs are sorted again."""
        dropped = self.clock.dropped
        now = self.clock()
        if self.clock.dropped != dropped:
            log.warning("the clock went back by more than a minute; the store's clock followed it")
            for queue in self.waiting.values():
                queue.rebuild(now)
            for subqueues in self.subqueues.values():
                for line in subqueues.lines.values():
                    line.rebuild(now)
        return now

    def enter(self, by: By | None, deed: Deed | None) -> None:
        """Write an entry into the audit log; nothing for a change by code, or where nothing was done."""
        if by is not None and deed is not None:
            self.audit.append(AuditEntry(self.now(), by, deed))
            self.entries.append(self.audit[-1])

    # --- units of work ------------------------------------------------------------------------------------------

    def load(self, unit: UnitOfWork, wanted: Wanted) -> None:
        """Put into the unit what an operation needs."""
        wanted = unit.missing(wanted)
        for job in wanted.ids:
            self._load_record(unit, job)
            record = unit.get(job)
            if wanted.revives and record is not None and record.slot is not None:
                self._load_holder(unit, record.slot)
        for slot in wanted.slots:
            self._load_holder(unit, slot)
        for name in wanted.queues:
            unit.add_queue(self.queue(name))
        for group in wanted.groups:
            unit.add_group(group, self.groups.get(group))

    def _load_record(self, unit: UnitOfWork, job: JobId) -> None:
        if job not in unit.missing(Wanted(frozenset({job}))).ids:
            return
        entry = self.jobs.get(job)
        unit.add_record(job, None if entry is None else entry.record)
        if entry is not None and unit.missing(Wanted(queues=frozenset({entry.record.queue}))).queues:
            unit.add_queue(self.queue(entry.record.queue))

    def _load_holder(self, unit: UnitOfWork, slot: str) -> None:
        if slot in unit.missing(Wanted(slots=frozenset({slot}))).slots:
            holder = self.holders.get(slot)
            unit.add_holder(slot, holder)
            if holder is not None:
                self._load_record(unit, holder)

    def run(
        self, step: Callable[Concatenate[Store, UnitOfWork, P], Answer], *args: P.args, **kwargs: P.kwargs
    ) -> Answer:
        """Run one step in a unit of work of its own, and write it."""
        unit = UnitOfWork(self.now())
        answer = step(self, unit, *args, **kwargs)
        self.apply(unit)
        return answer

    def _count_groups(self, unit: UnitOfWork) -> None:
        """Count what the unit changes about groups; a group that closes stores its callbacks."""
        while unit.group_changes:
            self.load(unit, Wanted(groups=frozenset(unit.group_changes)))
            closed = careful.count_groups(unit, self.queue, self.keep_done)
            self.load(unit, careful.wanted_by_drafts(careful.callbacks_of(closed)))
            unit.closings += careful.store_callbacks(unit, closed)

    def apply(self, unit: UnitOfWork) -> None:
        """Write a unit of work."""
        self._count_groups(unit)
        for before, after in unit.written():
            job = (after or before).id  # type: ignore[union-attr]  # one of them is a record
            entry = self.jobs.get(job)
            if before is not None and entry is not None:
                self._take_out(entry, unit.now)
            if (place := freed(before, after)) is not None and self.subqueues[place[0]].free(place[1], unit.now):
                self._woken.add(place[0])
            if after is None:
                del self.jobs[job]
                continue
            if entry is None:
                entry = self.jobs[job] = Entry(after)
                self._sorted = None
            entry.record = after
            self._place(entry, unit.now, anew=renumbers(before, after))
        for slot, _, holder in unit.key_changes():
            if holder is None:
                self.holders.pop(slot, None)
            else:
                self.holders[slot] = holder
        self.counts.update(unit.counts())
        for (queue, kind, total), n in unit.totals.items():
            self.totals[kind, total] += n
            if queue not in self.waiting:  # used, although a later draft of the same call moved its job elsewhere
                self.waiting[queue] = ReadyQueue()
        for kind, error in unit.last_errors.items():
            if error is None:
                self.last_errors.pop(kind, None)
            else:
                self.last_errors[kind] = error
        self.rows.update(unit.changed_queues)
        self.groups.update(unit.changed_groups)
        self.closed_groups.extend(group.id for group in unit.changed_groups.values() if group.closed_at is not None)
        self._woken |= unit.woken
        self.closings += unit.closings
        for job in unit.deleted:
            self.event_log.remember(job, unit.now)
        for job in unit.forgotten:
            self.event_log.hide(job)

    def _place(self, entry: Entry, now: Instant, *, anew: bool) -> None:
        record = entry.record
        if record.status in WAITING:
            queue = self.waiting.get(record.queue)
            if queue is None:
                queue = self.waiting[record.queue] = ReadyQueue()
            settings = self.queue(record.queue)
            entry.line = line_of(record, fair=settings.fair)
            if entry.line is None:
                queue.add(entry, now)
            else:
                pins = dict(settings.limits)
                subqueues = self.subqueues.setdefault(record.queue, Subqueues())
                subqueues.join(entry.line, entry, record.options.limit, pins, now, anew=anew)
        elif record.status is Status.RUNNING:
            assert record.worker is not None
            self.held.setdefault(record.worker, {})[record.id] = entry
        else:
            self.finished[record.id] = entry
            heapq.heappush(self._ends, (record.expires_at or 0, next(self._ended), record.id))
        self.active += record.status in ACTIVE

    def _take_out(self, entry: Entry, now: Instant) -> None:
        record = entry.record
        if record.status is Status.RUNNING:
            assert record.worker is not None
            del self.held[record.worker][record.id]
        elif record.status in WAITING:
            if entry.line is None:
                self.waiting[record.queue].leave(entry, now)
            else:
                self.subqueues[record.queue].leave(entry.line, entry, now)
        else:
            del self.finished[record.id]
        self.active -= record.status in ACTIVE

    # --- hot paths ----------------------------------------------------------------------------------------------

    def hand_over(self, entry: Entry, record: Record) -> None:
        """Give a job that was waiting or held to the worker of `record`."""
        before = entry.record
        if before.status is Status.RUNNING:
            assert before.worker is not None
            del self.held[before.worker][before.id]
        else:
            self.counts[before.queue, before.kind, before.status] -= 1
            self.counts[record.queue, record.kind, Status.RUNNING] += 1
        assert record.worker is not None
        entry.record = record
        self.held.setdefault(record.worker, {})[record.id] = entry

    def write_streams(self, changes: Tables, now: Instant) -> None:
        """Write what a transaction changed about streams."""
        self._woken |= self.tables.commit(changes, now)

    # --- queues and ids -----------------------------------------------------------------------------------------

    def queue(self, name: str) -> Queue:
        """A queue's settings, stored or not."""
        found = self.rows.get(name) or self._untuned.get(name)
        if found is None:
            found = self._untuned[name] = Queue(name=name, keep_done=self.keep_done)
        return found

    def set_queue(self, queue: Queue) -> None:
        """Store a queue's settings."""
        self.rows[queue.name] = queue

    def ordered(self) -> list[JobId]:
        """All ids in order; ids that are gone since may still be among them."""
        if self._sorted is None:
            self._sorted = sorted(self.jobs)
        return self._sorted

    # --- after a write ------------------------------------------------------------------------------------------

    def wake(self, topic: str) -> None:
        """Wake waiters when the call is over."""
        self._woken.add(topic)

    def _prune(self) -> None:
        """Remove the finished job that is nearest to its expiry."""
        end = heapq.heappop(self._ends)
        if self._is_end(end):
            entry = self.finished.pop(end[2])
            record = entry.record
            self.counts[record.queue, record.kind, record.status] -= 1
            del self.jobs[record.id]
            self.event_log.hide(record.id)

    def _prune_groups(self, n: int) -> None:
        """Look at so many of the groups that closed first: one with a job that is kept stays, the others go."""
        now = self.now() if n > 0 else 0
        for _ in range(n):
            group = self.groups.get(self.closed_groups.popleft())
            if group is not None and self.group_kept_until(group, now) is None:
                del self.groups[group.id]
            elif group is not None:
                self.closed_groups.append(group.id)

    def group_kept_until(self, group: Group, now: Instant) -> Instant | None:
        """Until when a closed group stays for the sake of its jobs."""
        jobs = (*group.members, *(draft.job_id for draft in group.callbacks))
        return kept_until((self.jobs[job].record.expires_at for job in jobs if job in self.jobs), now)

    def _is_end(self, end: tuple[Instant, int, JobId]) -> bool:
        """Whether this entry of `_ends` is valid; requeued and removed jobs leave theirs behind."""
        entry = self.finished.get(end[2])
        return entry is not None and (entry.record.expires_at or 0) == end[0]

    def conclude(self, active_before: int) -> None:
        """Finish a write: prune the history, let the next insert that waits for room try, wake waiters."""
        while self.history is not None and len(self.finished) > self.history:
            self._prune()
        if self.history is not None:
            self._prune_groups(min(len(self.closed_groups) - self.history, PRUNED_AT_ONCE))
        if len(self._ends) > 2 * len(self.finished) + MOST_STALE:
            self._ends = [end for end in self._ends if self._is_end(end)]
            heapq.heapify(self._ends)
        if self.active < active_before:
            self.admit()
        if self._woken:
            for topic in self._woken:
                for hub in self.hubs:
                    hub.wake(topic)
            self._woken.clear()

    def admit(self) -> None:
        """Let the first insert that waits for room try again."""
        while self.waiting_for_room and not self.waiting_for_room[0].release():
            self.waiting_for_room.popleft()


def system_clock() -> Instant:
    """Read the clock of this machine."""
    return time.time_ns() // 1_000


class SteadyClock:
    """The store's clock, which does not go back by up to a minute.

    It keeps the highest instant it has returned and returns that again while the system's clock is behind it. If the
    system's clock is more than `FURTHEST_AHEAD` behind, the kept instant was wrong (a bad time server, a virtual
    machine that woke up) and holding on to it would freeze time: it is dropped. `dropped` counts how often.
    """

    __slots__ = ("_mark", "_source", "dropped")

    def __init__(self, source: Clock | None = None) -> None:
        self._source = source or system_clock
        self._mark: Instant = 0
        self.dropped = 0

    def __call__(self) -> Instant:
        shown = self._source()
        if shown < self._mark:
            if self._mark - shown <= FURTHEST_AHEAD:
                return self._mark
            self.dropped += 1
        self._mark = shown
        return shown
