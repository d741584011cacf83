"""The state of the store, and the one step that changes jobs: `apply` writes a unit of work.

It is the reference: what is stored is in plain dicts and sorted lists, and what can be counted is counted when asked.
Claiming and reaping change records themselves; all else is decided in a unit of work first, so a call that is refused,
or a transaction that is rolled back, changes nothing.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from bisect import insort
from collections import Counter, deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from operator import itemgetter
from typing import Concatenate, ParamSpec, TypeVar

from stoker.engines.base import Clock
from stoker.engines.memory.events import EventLog
from stoker.engines.memory.ready_queue import ReadyQueue, head_of
from stoker.engines.memory.streams import Tables
from stoker.engines.memory.subqueues import Subqueues
from stoker.engines.memory.transaction import Adopt, refuse
from stoker.engines.memory.waiters import Waiter
from stoker.engines.shared import one_by_one, steps
from stoker.engines.shared.job_end_waiters import Interest, JobEndWaiters
from stoker.engines.shared.unit_of_work import Hold, UnitOfWork, Wanted
from stoker.engines.shared.waiters import TopicWaiters
from stoker.model.audit import AuditEntry, By, Deed
from stoker.model.budgets import Buckets, Budget
from stoker.model.control import NamedLock, Presence, Queue
from stoker.model.groups import Closing, Group, closing_signals, kept_until
from stoker.model.ids import JobId
from stoker.model.job import FINISHED
from stoker.model.lifecycle import KEEP_DONE
from stoker.model.record import WAITING, Record, Total
from stoker.model.schedule import Schedule
from stoker.model.steps import Step, asks, kept_by_copy
from stoker.model.subqueues import freed, line_of, renumbers
from stoker.model.time import MINUTE, Instant, Span
from stoker.model.unique import Kept

Answer = TypeVar("Answer")
P = ParamSpec("P")

log = logging.getLogger("stoker.engines.memory")

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
        self.given_clock = clock
        self.clock = SteadyClock(clock)
        self.jobs: dict[JobId, Record] = {}
        self.waiting: dict[str, ReadyQueue] = {}
        """The main line of every queue that was ever used."""
        self.subqueues: dict[str, Subqueues] = {}
        self.placed: dict[JobId, str] = {}
        """The subqueue of each job that waits in one."""
        self.finished: list[tuple[Instant, JobId]] = []
        """Finished jobs in the order they expire, and of one instant in the order they finished."""
        self.holders: dict[str, Hold] = {}
        self.totals: Counter[tuple[str, Total]] = Counter()
        self.last_errors: dict[str, str] = {}
        self.leases: dict[str, Instant] = {}
        self.retired: set[str] = set()
        self.rows: dict[str, Queue] = {}
        self.groups: dict[JobId, Group] = {}
        self.steps: dict[JobId, dict[str, Step]] = {}
        self.asking: dict[JobId, set[str]] = {}
        """Rows of jobs, in the order in which they were stored first."""
        self.closed_groups: deque[JobId] = deque()
        self.budgets: dict[str, Budget] = {}
        self.budget_keys: dict[str, dict[str, Buckets]] = {}
        self.locks: dict[str, NamedLock] = {}
        self.presences: dict[str, Presence] = {}
        self.schedules: dict[str, Schedule] = {}
        self.event_log = EventLog()
        self.audit: list[AuditEntry] = []
        self.documents: dict[str, dict[str, bytes]] = {}
        self.tables = Tables()
        self.waiters: dict[TopicWaiters, asyncio.AbstractEventLoop | None] = {}
        """The waiters of each open engine, and the loop on which they wait; None: there were none yet."""
        self.interest = Interest()
        self.attending: dict[JobEndWaiters, asyncio.AbstractEventLoop] = {}
        self.waiting_for_room: deque[Waiter] = deque()
        self._woken: set[str] = set()
        self.closings: list[Closing] = []
        """Groups that the current call has closed."""
        self.entries: list[AuditEntry] = []
        """Entries of the audit log that the current call has written."""
        self.adopt: Adopt = refuse
        """What becomes of handles that are none of the store's own: a test kit takes some."""
        self.writes = 0
        """How many calls may have written; a transaction sees by it whether another one did."""

    def now(self) -> Instant:
        """The store's clock; one that was set far back is followed."""
        dropped = self.clock.dropped
        now = self.clock()
        if self.clock.dropped != dropped:
            log.warning("the clock went back by more than a minute; the store's clock followed it")
        return now

    @property
    def active(self) -> int:
        """How many jobs are not finished."""
        return len(self.jobs) - len(self.finished)

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
            if record is not None and record.slot is not None and (wanted.revives or record.kept is not None):
                self._load_holder(unit, record.slot)
        for slot in wanted.slots:
            self._load_holder(unit, slot)
        for name in wanted.queues:
            unit.add_queue(self.queue(name))
        for group in wanted.groups:
            unit.add_group(group, self.groups.get(group))
        asked = {job for job, _ in wanted.steps | wanted.signals}
        unit.add_steps(wanted, ((job, row) for job in asked for row in self.steps.get(job, {}).values()))

    def _load_record(self, unit: UnitOfWork, job: JobId) -> None:
        if job not in unit.missing(Wanted(frozenset({job}))).ids:
            return
        record = self.jobs.get(job)
        unit.add_record(job, record)
        if record is not None and unit.missing(Wanted(queues=frozenset({record.queue}))).queues:
            unit.add_queue(self.queue(record.queue))

    def _load_holder(self, unit: UnitOfWork, slot: str) -> None:
        if slot in unit.missing(Wanted(slots=frozenset({slot}))).slots:
            holder = self.holders.get(slot)
            unit.add_holder(slot, holder)
            if holder is not None and not isinstance(holder, Kept):
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
            closed = one_by_one.count_groups(unit, self.queue, self.keep_done)
            self.load(unit, one_by_one.wanted_by_drafts(one_by_one.callbacks_of(closed)))
            unit.closings += one_by_one.store_callbacks(unit, closed)
            self.load(unit, steps.wanted_by_signals(closing_signals(closed)))
            steps.wake_callers(unit, closed)

    def apply(self, unit: UnitOfWork) -> None:
        """Write a unit of work."""
        self._count_groups(unit)
        for before, after in unit.written():
            if before is not None:
                self._take_out(before, unit.now)
            if (place := freed(before, after)) is not None and self.subqueues[place[0]].free(place[1], unit.now):
                self._woken.add(place[0])
            if after is not None:
                self._place(after, unit.now, anew=renumbers(before, after))
            elif before is not None:
                self._drop_steps(before.id)
        for copy, (job, last) in unit.copied_steps.items():
            if kept := kept_by_copy(self.steps.get(job, {}), last):
                self._put_steps(copy, kept)
        for job in unit.begun_anew:
            self._drop_steps(job)
        for job, rows in unit.changed_steps.items():
            self._put_steps(job, rows)
        for slot, _, holder in unit.key_changes():
            if holder is None:
                self.holders.pop(slot, None)
            else:
                self.holders[slot] = holder
        for (queue, kind, total), n in unit.totals.items():
            self.totals[kind, total] += n
            self.waiting.setdefault(queue, ReadyQueue())  # used, even if a later draft of the call moved its job
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

    def _place(self, record: Record, now: Instant, *, anew: bool) -> None:
        self.jobs[record.id] = record
        if record.status in FINISHED:
            insort(self.finished, _end(record), key=itemgetter(0))
        elif record.status in WAITING:
            main, settings = self.waiting.setdefault(record.queue, ReadyQueue()), self.queue(record.queue)
            line = line_of(record, fair=settings.fair)
            if line is None:
                main.add(head_of(record))
            else:
                self.placed[record.id] = line
                subqueues = self.subqueues.setdefault(record.queue, Subqueues())
                pins = dict(settings.limits)
                subqueues.join(line, head_of(record), record.options.limit, pins, now, anew=anew)

    def _take_out(self, record: Record, now: Instant) -> None:
        del self.jobs[record.id]
        if record.status in FINISHED:
            self.finished.remove(_end(record))
        elif record.status in WAITING:
            line = self.placed.pop(record.id, None)
            if line is None:
                self.waiting[record.queue].leave(head_of(record))
            else:
                self.subqueues[record.queue].leave(line, head_of(record), now)

    def held(self, worker: str) -> list[Record]:
        """The jobs that a worker holds."""
        return [record for record in self.jobs.values() if record.worker == worker]

    def write_streams(self, changed: Tables, now: Instant) -> None:
        """Put a transaction's copy of the streams in the place of what it was made from."""
        self.tables = changed
        self._woken |= changed.number(now)

    # --- queues and ids -----------------------------------------------------------------------------------------

    def queue(self, name: str) -> Queue:
        """A queue's settings, stored or not."""
        return self.rows.get(name) or Queue(name=name, keep_done=self.keep_done)

    def set_queue(self, queue: Queue) -> None:
        """Store a queue's settings."""
        self.rows[queue.name] = queue

    # --- after a write ------------------------------------------------------------------------------------------

    def wake(self, topic: str) -> None:
        """Wake waiters when the call is over."""
        self._woken.add(topic)

    def _put_steps(self, job: JobId, rows: Mapping[str, Step]) -> None:
        self.steps.setdefault(job, {}).update(rows)
        names = self.asking.pop(job, set()) - rows.keys() | {name for name, row in rows.items() if asks(row)}
        if names:
            self.asking[job] = names

    def _drop_steps(self, job: JobId) -> None:
        self.steps.pop(job, None)
        self.asking.pop(job, None)

    def _prune(self) -> None:
        """Remove the finished job that is nearest to its expiry."""
        _, job = self.finished.pop(0)
        del self.jobs[job]
        self._drop_steps(job)
        self.event_log.hide(job)

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
        return kept_until((self.jobs[job].expires_at for job in jobs if job in self.jobs), now)

    def conclude(self, active_before: int) -> None:
        """Finish a write: prune the history, let the next insert that waits for room try, wake waiters."""
        self.writes += 1
        while self.history is not None and len(self.finished) > self.history:
            self._prune()
        if self.history is not None:
            self._prune_groups(min(len(self.closed_groups) - self.history, PRUNED_AT_ONCE))
        if self.active < active_before:
            self.admit()
        if self._woken:
            for topic in self._woken:
                for waiters, loop in self.waiters.items():
                    _wake(waiters, loop, topic)
            self._woken.clear()

    def admit(self) -> None:
        """Let the first insert that waits for room try again."""
        while self.waiting_for_room and not self.waiting_for_room[0].release():
            self.waiting_for_room.popleft()


def _wake(waiters: TopicWaiters, loop: asyncio.AbstractEventLoop | None, topic: str) -> None:
    """Wake a waiter on its own loop, from any thread."""
    with suppress(RuntimeError):  # a thread without a loop
        if asyncio.get_running_loop() is loop:
            waiters.wake(topic)
            return
    if loop is not None:
        with suppress(RuntimeError):  # it was closed without its engine
            loop.call_soon_threadsafe(waiters.wake, topic)
            return
    waiters.remember(topic)


def _end(record: Record) -> tuple[Instant, JobId]:
    return record.expires_at or 0, record.id


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
