"""One line of waiting jobs, sorted as claims take them: by priority, scheduled time and id."""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterator, Sequence
from operator import itemgetter

from stoker.model.job import FIRST
from stoker.model.record import Record
from stoker.model.subqueues import Head, Look
from stoker.model.time import Instant


def head_of(record: Record) -> Head:
    """What orders a waiting job."""
    return record.priority, record.scheduled_at, record.id


class ReadyQueue:
    """The jobs of one line, in order."""

    __slots__ = ("heads",)

    def __init__(self) -> None:
        self.heads: list[Head] = []

    def add(self, head: Head) -> None:
        """Queue a job."""
        insort(self.heads, head)

    def leave(self, head: Head) -> None:
        """Take a job out, wherever it stands."""
        del self.heads[bisect_left(self.heads, head)]

    def due(self, n: int, now: Instant, *, first_only: bool = False) -> list[Head]:
        """The first `n` jobs that are due; `first_only`: of those that an operator put first."""
        found: list[Head] = []
        for start, later, _ in self._priorities(now):
            if len(found) >= n or (first_only and self.heads[start][0] > FIRST):
                break
            found += self.heads[start : min(later, start + n - len(found))]
        return found

    def count_due(self, now: Instant) -> int:
        """How many jobs are due."""
        return sum(later - start for start, later, _ in self._priorities(now))

    def take(self, taken: Sequence[Head]) -> None:
        """Take out jobs that `due` returned; where nothing is scheduled before them, they stand first."""
        if self.heads[: len(taken)] == taken:
            del self.heads[: len(taken)]
        else:
            for head in taken:
                self.leave(head)

    def look(self, now: Instant) -> Look:
        """The first due job, and when the first of those that are not due will be."""
        due = self.due(1, now)
        waits = [self.heads[later][1] for _, later, end in self._priorities(now) if later < end]
        return Look(due[0] if due else None, min(waits, default=None))

    def first_due(self, now: Instant) -> Instant | None:
        """The smallest scheduled time."""
        return min((self.heads[start][1] for start, _, _ in self._priorities(now)), default=None)

    def _priorities(self, now: Instant) -> Iterator[tuple[int, int, int]]:
        """Where the jobs of each priority begin, where those of them begin that are not due, and where they end."""
        start = 0
        while start < len(self.heads):
            priority = self.heads[start][0]
            later = bisect_left(self.heads, (priority, now + 1, b""), start)
            end = bisect_right(self.heads, priority, later, key=itemgetter(0))
            yield start, later, end
            start = end
