"""The waiting jobs of one queue, in the order claims take them.

Jobs that are not due yet are in a heap by time and move to a run when they are due, so a claim never skips jobs that it
may not take. There is one run of due jobs per priority and status. A run is a deque with a heap beside it: most jobs
arrive in the order they leave and cost a constant, the others cost a logarithm.

A job that leaves from the middle (canceled, moved, requeued) leaves its queue item behind: an item is valid only while
the entry carries its ticket. Invalid items are skipped, and removed when they are the majority.
"""

from __future__ import annotations

import bisect
import itertools
from collections import deque
from collections.abc import Iterator
from heapq import heappop, heappush
from typing import TypeAlias

import msgspec

from stoker.model.ids import JobId
from stoker.model.job import FIRST, Status
from stoker.model.record import Record
from stoker.model.subqueues import Look
from stoker.model.time import Instant

NOWHERE = 0
"""The ticket of an entry that is not queued."""


class Entry(msgspec.Struct, gc=False, eq=False):
    """A stored job. `ticket` names its valid queue item while it waits; `later`: it is not due yet.

    `line` is the subqueue it waits in; None: the main line.
    """

    record: Record
    ticket: int = NOWHERE
    later: bool = False
    line: str | None = None


Item: TypeAlias = tuple[Instant, JobId, int, Entry]
"""Scheduled time, id, ticket, entry. Tickets are unique, so a comparison never reaches the entry."""

SWEEP_AT = 1_000
"""How many invalid items are tolerated before they are removed."""

_tickets = itertools.count(NOWHERE + 1)


class Run:
    """Due jobs of one priority and status."""

    __slots__ = ("heap", "straight")

    def __init__(self) -> None:
        self.straight: deque[Item] = deque()
        self.heap: list[Item] = []

    def push(self, item: Item) -> None:
        straight = self.straight
        if not straight or straight[-1] < item:
            straight.append(item)
        else:
            heappush(self.heap, item)

    def head(self) -> Item | None:
        """The first valid item."""
        straight, heap = self.straight, self.heap
        while straight and straight[0][3].ticket != straight[0][2]:
            straight.popleft()
        while heap and heap[0][3].ticket != heap[0][2]:
            heappop(heap)
        if straight and (not heap or straight[0] < heap[0]):
            return straight[0]
        return heap[0] if heap else None

    def pop(self, head: Item) -> None:
        """Remove what `head` returned."""
        if self.straight and self.straight[0] is head:
            self.straight.popleft()
        else:
            heappop(self.heap)


class ReadyQueue:
    """All waiting jobs of one queue. `scheduled` counts the pending ones that are not due yet."""

    __slots__ = ("_later", "_left", "_priorities", "_runs", "_waiting", "scheduled")

    def __init__(self) -> None:
        self._runs: dict[int, tuple[Run, Run]] = {}
        self._priorities: list[int] = []
        self._later: list[Item] = []
        self._waiting = 0
        self._left = 0
        self.scheduled = 0

    def add(self, entry: Entry, now: Instant) -> None:
        """Queue a waiting job."""
        record = entry.record
        ticket = entry.ticket = next(_tickets)
        item = (record.scheduled_at, record.id, ticket, entry)
        self._waiting += 1
        entry.later = record.scheduled_at > now
        if entry.later:
            heappush(self._later, item)
            if record.status is Status.PENDING:
                self.scheduled += 1
        else:
            self._run(record).push(item)

    def leave(self, entry: Entry, now: Instant) -> None:
        """Take a job out of the middle."""
        if entry.later and entry.record.status is Status.PENDING:
            self.scheduled -= 1
        entry.ticket = NOWHERE
        self._waiting -= 1
        self._left += 1
        if self._left > SWEEP_AT and self._left > self._waiting:
            self.rebuild(now)

    def take(self, n: int, now: Instant, *, first_only: bool = False) -> list[Entry]:
        """The first `n` due jobs, removed from the queue; `first_only`: of those that an operator put first."""
        self.promote(now)
        taken: list[Entry] = []
        for priority in self._priorities:
            if first_only and priority > FIRST:
                break
            pending, retrying = self._runs[priority]
            while len(taken) < n:
                run, head, other = pending, pending.head(), retrying.head()
                if head is None or (other is not None and other < head):
                    run, head = retrying, other
                # A run that was filled before the clock was set back may hold jobs that are not due now.
                if head is None or head[0] > now:
                    break
                run.pop(head)
                head[3].ticket = NOWHERE
                taken.append(head[3])
        self._waiting -= len(taken)
        return taken

    def first(self, n: int, now: Instant) -> list[Entry]:
        """The first `n` due jobs, which stay where they are."""
        found = self.take(n, now)
        for entry in reversed(found):
            record = entry.record
            ticket = entry.ticket = next(_tickets)
            self._run(record).straight.appendleft((record.scheduled_at, record.id, ticket, entry))
        self._waiting += len(found)
        return found

    def look(self, now: Instant) -> Look:
        """The first due job, and when the first of the others is due."""
        found = self.first(1, now)
        later = self._later
        while later and later[0][3].ticket != later[0][2]:
            heappop(later)
        head = None
        if found:
            record = found[0].record
            head = (record.priority, record.scheduled_at, record.id)
        return Look(head, later[0][0] if later else None)

    @property
    def waits(self) -> bool:
        """Is there any job?"""
        return self._waiting > 0

    def promote(self, now: Instant) -> None:
        """Move what has become due to its run."""
        later = self._later
        while later and later[0][0] <= now:
            item = heappop(later)
            entry = item[3]
            if entry.ticket != item[2]:
                continue
            entry.later = False
            if entry.record.status is Status.PENDING:
                self.scheduled -= 1
            self._run(entry.record).push(item)

    def oldest(self, now: Instant) -> Instant | None:
        """The smallest scheduled time of due pending jobs."""
        self.promote(now)
        heads = [head[0] for pending, _ in self._runs.values() if (head := pending.head()) is not None]
        return min(heads, default=None)

    def first_due(self, now: Instant) -> Instant | None:
        """The smallest scheduled time of all jobs of the queue."""
        self.promote(now)
        later = self._later
        while later and later[0][3].ticket != later[0][2]:
            heappop(later)
        heads = [head[0] for runs in self._runs.values() for run in runs if (head := run.head()) is not None]
        return min((*heads, later[0][0]) if later else heads, default=None)

    def rebuild(self, now: Instant) -> None:
        """Drop the invalid items and sort all jobs again, also after the clock was set back."""
        entries = [entry for _, _, ticket, entry in self._items() if entry.ticket == ticket]
        self._runs, self._priorities, self._later = {}, [], []
        self._waiting = self._left = self.scheduled = 0
        for entry in entries:
            self.add(entry, now)

    def _run(self, record: Record) -> Run:
        runs = self._runs.get(record.priority)
        if runs is None:
            runs = self._runs[record.priority] = (Run(), Run())
            bisect.insort(self._priorities, record.priority)
        return runs[0] if record.status is Status.PENDING else runs[1]

    def _items(self) -> Iterator[Item]:
        yield from self._later
        for runs in self._runs.values():
            for run in runs:
                yield from run.straight
                yield from run.heap
