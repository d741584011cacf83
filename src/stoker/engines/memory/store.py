"""The state of the store and the few steps that change it without breaking a count.

A record is in exactly one place: a queue's line (waiting), a worker's hands (running) or the history (finished). Every
change has the shape *lift, change, place*: `lift` takes the record out of its place, out of the counters and off its
key, `place` puts it back by what it has become. So counters are right by construction and never counted.

`atomic` remembers how to undo: a call that turns out to be refused, and a transaction that is only rehearsed, leave no
trace. Outside of it nothing is remembered and the steps cost next to nothing.
"""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

import msgspec

from stoker.engines.base import Clock
from stoker.engines.memory.clock import SteadyClock
from stoker.engines.memory.line import Line
from stoker.engines.memory.record import Cell, Record, restore, snapshot
from stoker.engines.memory.timeline import Ledger
from stoker.engines.memory.waiting import Hub, Waiter
from stoker.model.control import Budget, NamedLock, Presence, Queue
from stoker.model.ids import JobId
from stoker.model.job import Status
from stoker.model.lifecycle import expiry
from stoker.model.time import Instant, Span

log = logging.getLogger("stoker.engines.memory")


class Sums(msgspec.Struct, gc=False):
    """What became of a kind's jobs so far; `query.Totals` in the making."""

    enqueued: int = 0
    completed: int = 0
    retried: int = 0
    failed: int = 0
    canceled: int = 0
    last_error: str | None = None


class Store:
    """Everything that is stored, shared by twins. Whoever touches it holds `lock`."""

    def __init__(self, clock: Clock | None, capacity: int | None, history: int) -> None:
        self.lock = threading.Lock()
        self.capacity = capacity
        self.history = history
        self.clock = SteadyClock(clock)
        self.jobs: dict[JobId, Record] = {}
        self.lines: dict[str, Line] = {}
        self.held: dict[str, dict[JobId, Record]] = {}
        self.finished: OrderedDict[JobId, Record] = OrderedDict()
        self.holders: dict[str, Record] = {}
        self.cells: dict[tuple[str, str], Cell] = {}
        self.totals: dict[str, Sums] = {}
        self.active = 0
        self.leases: dict[str, Instant] = {}
        self.retired: set[str] = set()
        self.rows: dict[str, Queue] = {}
        self._untuned: dict[str, Queue] = {}
        self.tuned: set[str] = set()
        self.budgets: dict[str, Budget] = {}
        self.locks: dict[str, NamedLock] = {}
        self.presences: dict[str, Presence] = {}
        self.ledger = Ledger()
        self.hubs: list[Hub] = []
        self.crowd: deque[Waiter] = deque()
        self._woken: set[str] = set()
        self._undo: list[Callable[[], object]] | None = None
        self._sorted: list[JobId] | None = None

    def now(self) -> Instant:
        """The store's clock, read once per call."""
        dropped = self.clock.dropped
        now = self.clock()
        if self.clock.dropped != dropped:
            log.warning("the clock went back by more than a minute; the store's clock followed it")
            for line in self.lines.values():
                line.rebuild(now)
        return now

    # --- lift, change, place ------------------------------------------------------------------------------------

    def lift(self, record: Record, now: Instant) -> None:
        """Take a record out of its place, to change it."""
        if self._undo is not None:
            self._undo.append(partial(self._put_back, record, snapshot(record), now))
        self._take_out(record, now)

    def place(self, record: Record, now: Instant) -> None:
        """Put a record where its status belongs."""
        status = record.status
        record.cell[status] += 1
        if status is Status.PENDING or status is Status.RETRYING:
            line = self.lines.get(record.queue)
            if line is None:
                line = self.lines[record.queue] = Line()
            line.add(record, now)
        elif status is Status.RUNNING:
            assert record.worker is not None
            self.held.setdefault(record.worker, {})[record.id] = record
        else:
            self.finished[record.id] = record
            return
        self.active += 1
        if record.unique is not None:
            self.holders[record.unique.slot(record.kind)] = record

    def create(self, record: Record, now: Instant) -> None:
        """Store a new record and count it as enqueued."""
        if self._undo is not None:
            self._undo.append(partial(self._put_back, record, None, now))
        self.jobs[record.id] = record
        self._sorted = None
        self.sums(record.kind).enqueued += 1
        self.place(record, now)
        if record.scheduled_at <= now:
            self._woken.add(record.queue)

    def forget(self, record: Record) -> None:
        """Delete a lifted record. Its events are another matter."""
        del self.jobs[record.id]

    def finish(
        self, record: Record, status: Status, now: Instant, error: str | None = None, keep: Span | None = None
    ) -> None:
        """Change a lifted record into a finished one."""
        queue = self.queue(record.queue)
        record.status = status
        record.worker = None
        record.finished_at = now
        record.expires_at = expiry(status, now, keep, queue.keep_done, queue.keep_dead)
        if error is not None:
            record.last_error = error

    # --- what belongs to records --------------------------------------------------------------------------------

    def cell(self, queue: str, kind: str) -> Cell:
        """The counters of a queue and kind."""
        found = self.cells.get((queue, kind))
        if found is None:
            found = self.cells[queue, kind] = dict.fromkeys(Status, 0)
        return found

    def sums(self, kind: str) -> Sums:
        """The totals of a kind, to be changed."""
        found = self.totals.get(kind)
        if found is None:
            found = self.totals[kind] = Sums()
            if self._undo is not None:
                self._undo.append(partial(self.totals.pop, kind))
        elif self._undo is not None:
            self._undo.append(partial(self.totals.__setitem__, kind, msgspec.structs.replace(found)))
        return found

    def queue(self, name: str) -> Queue:
        """A queue's settings, stored or not."""
        found = self.rows.get(name) or self._untuned.get(name)
        if found is None:
            found = self._untuned[name] = Queue(name=name)
        return found

    def set_queue(self, queue: Queue) -> None:
        """Store a queue's settings."""
        if self._undo is not None:
            before = self.rows.get(queue.name)
            undo = partial(self.rows.pop, queue.name) if before is None else partial(self.set_queue, before)
            self._undo.append(undo)
        self.rows[queue.name] = queue

    def ordered(self) -> list[JobId]:
        """All ids in order; ids that are gone since may still be among them."""
        if self._sorted is None:
            self._sorted = sorted(self.jobs)
        return self._sorted

    # --- after a write ------------------------------------------------------------------------------------------

    def wake(self, topic: str) -> None:
        """Ask for a wake-up; it happens when the call is over, and only if it stands."""
        self._woken.add(topic)

    def conclude(self, active_before: int) -> None:
        """What follows every write: prune the history, let the next one in, wake who has something to do."""
        while len(self.finished) > self.history:
            job, record = self.finished.popitem(last=False)
            record.cell[record.status] -= 1
            del self.jobs[job]
            self.ledger.cross_out(job)
        if self.active < active_before:
            self.admit()
        if self._woken:
            for topic in self._woken:
                for hub in self.hubs:
                    hub.wake(topic)
            self._woken.clear()

    def prune(self, record: Record, now: Instant) -> int:
        """Remove a record with its events; answers how many those were."""
        self.lift(record, now)
        self.forget(record)
        return self.ledger.cross_out(record.id)

    def admit(self) -> None:
        """Let whoever waits first for room look again."""
        while self.crowd and not self.crowd[0].release():
            self.crowd.popleft()

    # --- undoing ------------------------------------------------------------------------------------------------

    @contextmanager
    def atomic(self, *, rehearsal: bool = False) -> Iterator[None]:
        """Undo everything done inside if it raises, or in any case when it is a rehearsal."""
        outer, woken, lines = self._undo, set(self._woken), set(self.lines)
        undo = self._undo = [] if outer is None else outer
        mark = len(undo)
        kept = False
        try:
            yield
            kept = not rehearsal
        finally:
            self._undo = None
            if not kept:
                while len(undo) > mark:
                    undo.pop()()
                self._woken = woken
                for queue in self.lines.keys() - lines:
                    del self.lines[queue]
            self._undo = outer

    def _put_back(self, record: Record, before: Record | None, now: Instant) -> None:
        """Make a record what it was before; None: it was not there."""
        if self.jobs.pop(record.id, None) is not None:
            self._take_out(record, now)
        if before is not None:
            restore(record, before)
            self.jobs[record.id] = record
            self.place(record, now)
        self._sorted = None

    def _take_out(self, record: Record, now: Instant) -> None:
        status = record.status
        record.cell[status] -= 1
        if status is Status.RUNNING:
            assert record.worker is not None
            del self.held[record.worker][record.id]
        elif status is Status.PENDING or status is Status.RETRYING:
            self.lines[record.queue].leave(record, now)
        else:
            del self.finished[record.id]
            return
        self.active -= 1
        if record.unique is not None:
            del self.holders[record.unique.slot(record.kind)]
