"""Where the census begins to read the waiting jobs and the leases.

Index entries of taken jobs and settled leases stay until the server cleans up, which it cannot while a session holds
an old snapshot. A census that reads from the start reads all of them, and takes longer with every job that runs. So
an engine remembers, per queue and priority, the oldest job that its last census found, and begins there.

A queue in which few jobs wait is read from its newest due job backwards, until as many were found as the counters say:
that one is the oldest, and no dead entry before it is read, also by the first census of an engine.

The bounds are used only while reading from the start is dear: when two such censuses in a row read many dead entries.
Where the server can clean up the first one marks the dead entries, and the second one is cheap. Even then every
`FULL_EVERY` a census reads from the start. A job that was put before the bounds in between (handed back, enqueued with
a time of the past, committed late) is missing from `oldest_ready` until then, a lease that was committed late from
`oldest_running`. Counts are exact in any case: they come from counters, and jobs that are not due are never before a
bound.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple, TypeAlias

from stoker.model.time import MILLISECOND, SECOND, Instant, Span

START = -(1 << 63)
LOWEST, HIGHEST = -(1 << 15), (1 << 15) - 1

FULL_EVERY: Span = 10 * SECOND
"""A census reads from the start at least so often."""

MANY_DEAD = 2_000
"""A census that reads more dead entries than this from the start is dear: about a millisecond."""

SLACK: Span = 500 * MILLISECOND
LEASE_SLACK = 64
"""Transactions commit later than they are stamped and numbered: a census begins so far before the bounds."""

MOST_PRIORITIES = 256
"""Priorities of one queue that are remembered."""

MOST_NEWEST_FIRST = 2_000
"""Waiting jobs that a census reads newest first, of all queues together: more would be dearer than dead entries."""

Range: TypeAlias = tuple[str, int, int, Instant, int | None]
"""Queue; priorities from, to; first instant; how many jobs of the queue wait, where they are read newest first."""

Found: TypeAlias = tuple[str, int, int, Instant | None, int]
"""Queue, priority, how many pending jobs are not due, the oldest due one, and how many due ones were read."""


class CensusBounds:
    """What one engine remembers of its last census."""

    def __init__(self) -> None:
        self._dear = False
        self._last_dead = 0
        self._full_at: Instant | None = None
        self._first_lease = START
        self._queues: dict[str, _QueueBounds] = {}

    def begin(self, now: Instant) -> Look:
        """Return where a census at this instant begins."""
        recent = self._full_at is not None and 0 <= now - self._full_at < FULL_EVERY
        full = not (self._dear and recent)
        return Look(now, full, START if full else max(START, self._first_lease - LEASE_SLACK))

    def ranges(self, look: Look, waiting: Mapping[str, int]) -> list[Range]:
        """Return what to read of the waiting jobs of these queues."""
        found: list[Range] = []
        left = MOST_NEWEST_FIRST
        for queue, n in sorted(waiting.items(), key=lambda item: item[1]):
            left -= n
            few = n if left >= 0 else None
            bounds = None if look.full else self._queues.get(queue)
            if bounds is None:
                found.append((queue, LOWEST, HIGHEST, START, few))
            else:
                found.extend((queue, *range_, few) for range_ in bounds.ranges(look.now))
        return found

    def finish(self, look: Look, found: Sequence[Found], *, first_lease: int, dead: int) -> None:
        """Remember what a census found, and how many dead entries it read."""
        if look.full:
            self._dear = min(dead, self._last_dead) > MANY_DEAD
            self._last_dead, self._full_at = dead, look.now
        self._first_lease = first_lease
        read: dict[str, dict[int, Instant]] = {}
        for queue, priority, _, due, _ in found:
            read.setdefault(queue, {})[priority] = look.now if due is None else due
        for queue, levels in read.items():
            self._queues.setdefault(queue, _QueueBounds()).move(look.now, levels)

    def forget_others(self, queues: Iterable[str]) -> None:
        """Forget every queue but these."""
        known = set(queues)
        for queue in self._queues.keys() - known:
            del self._queues[queue]


class Look(NamedTuple):
    """How one census reads: when, whether from the start, and from which lease."""

    now: Instant
    full: bool
    first_lease: int


class _QueueBounds:
    """Per priority: nothing pending is due before this instant. `elsewhere` holds for all other priorities."""

    __slots__ = ("elsewhere", "levels")

    def __init__(self) -> None:
        self.levels: dict[int, Instant] = {}
        self.elsewhere: Instant = START

    def move(self, now: Instant, levels: dict[int, Instant]) -> None:
        """Every priority was read: those without a job have none before now."""
        self.levels = {**dict.fromkeys(self.levels, now), **levels}
        self.elsewhere = now
        if len(self.levels) > MOST_PRIORITIES:
            self.levels, self.elsewhere = {}, START

    def ranges(self, now: Instant) -> list[tuple[int, int, Instant]]:
        """Each known priority from its bound, and what lies between them.

        None begins after now, also when the clock went back: all that is not due is counted.
        """
        found, low = [], LOWEST
        others = max(START, min(now, self.elsewhere - SLACK))
        for priority in sorted(self.levels):
            if low < priority:
                found.append((low, priority - 1, others))
            found.append((priority, priority, min(now, self.levels[priority] - SLACK)))
            low = priority + 1
        if low <= HIGHEST:
            found.append((low, HIGHEST, others))
        return found
