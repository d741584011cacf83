"""Where in a queue's index a claim looks for due jobs. CLAIMING.md draws it.

Rows that were taken stay in the index until the server vacuums, which it cannot while any session holds an old
snapshot. So a queue that is drained fast is not scanned from its start each time but, priority by priority, from a
cursor: the due time of the last job taken. The index before it may be full of deleted rows.

Other processes may put jobs before the cursor: with a run time in the past, with a new priority, or because they commit
long after they stamped the job. So the engine scans the whole queue once a second, and whenever a scan from the cursors
finds too few jobs. When full scans become slow, they are done in slices that use a bounded share of the time, however
many deleted rows there are. Jobs that this engine itself puts before the cursor are found by the next scan.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

from stoker.model.job import FIRST, Claim
from stoker.model.time import DAY, MILLISECOND, Instant, Span

Range: TypeAlias = tuple[int, int, Instant, Instant]
"""Priorities from, to; instants from, to before."""

START, END = -(1 << 63), (1 << 63) - 1
LOWEST, HIGHEST = -(1 << 15), (1 << 15) - 1

SLACK: Span = 500 * MILLISECOND
SLACK_EVERY = 0.05
"""Other processes commit after they stamp: every `SLACK_EVERY` seconds a scan begins `SLACK` before the cursors."""

FULL_SCAN_EVERY = 1.0
"""Seconds between two full scans of a queue."""

MIN_TAKEN = 256
"""Jobs taken within that time from which on the cursors are used; below it full scans are cheap."""

SLOW_SCAN = 0.010
"""Seconds from which on a full scan is slow: then it is done in slices that take about as long."""

SLOW_SCAN_PAUSE = 20
"""Pause between two slices, as a multiple of the time that the last one took."""

MIN_WIDTH: Span = 10 * MILLISECOND
MAX_WIDTH: Span = 10_000 * DAY
MAX_SLICES = 200
"""Slices of one full scan at most: where a scan is slow whatever it reads, narrower slices would not make it faster,
and a job put before the cursor would be found only after hours."""

MAX_PRIORITIES = 256
"""Priorities of a queue that have a cursor; with more of them every scan is a full one."""


class Scan(NamedTuple):
    """The ranges that one claim reads of one queue."""

    ranges: list[Range]
    whole: bool
    window: tuple[Instant, Instant] | None
    generation: int


FIRST_ONLY = Scan([(LOWEST, FIRST, START, END)], False, None, -1)
"""Reads what operators put first, and nothing else: the cursors learn of nothing that it did not read."""


class Slices:
    """A full scan spread over several claims: where it continues, and how wide a window is."""

    __slots__ = ("low", "spent", "width")

    def __init__(self, width: Span) -> None:
        self.low: Instant = START
        self.width = width
        self.spent = 0.0


class ClaimCursor:
    """The cursors of one queue, one for each priority, and the cost of its scans."""

    __slots__ = (
        *("_rescan", "_generation", "cost", "first", "grace", "last", "levels", "scanned", "slices", "since", "swept"),
        *("taken", "total"),
    )

    def __init__(self) -> None:
        self.levels: dict[int, Instant] = {}
        self.slices: Slices | None = None
        self.scanned = self.since = self.swept = self.last = self.cost = self.grace = 0.0
        self.taken = self.total = 0
        self.first: Instant = END
        self._rescan: dict[int, Instant] = {}
        self._generation = 0

    # --- what this engine did itself ----------------------------------------------------------------------------

    def put(self, priority: int, at: Instant | None) -> None:
        """Note that this engine queued a job, due at an instant or now."""
        cursor = self.levels.get(priority)
        if cursor is None or (at is not None and at <= cursor):
            self.rescan_from(priority, START if cursor is None or at is None else at)

    def rescan_from(self, priority: int, since: Instant) -> None:
        """Make the next scan of a priority begin at an instant."""
        self._rescan[priority] = min(since, self._rescan.get(priority, END))
        self._generation += 1

    def late(self, since: Instant) -> None:
        """Note that jobs of any priority, due from this instant on, were committed only now."""
        for priority in self.levels:
            self.rescan_from(priority, min(since, self.levels[priority]))
        self.scanned = 0.0

    def forget(self) -> None:
        """Note that jobs may have been queued anywhere."""
        self.late(START)

    # --- what to scan -------------------------------------------------------------------------------------------

    def scan(self, now: float, *, whole: bool = False) -> Scan:
        """Return the ranges of the next claim."""
        window = None
        if not self.levels:
            whole = True
        elif self.slices is None:
            whole = whole or self.taken < MIN_TAKEN or now - self.scanned >= FULL_SCAN_EVERY
        elif now - self.scanned >= SLOW_SCAN_PAUSE * self.cost:
            low = self.slices.low
            window = (low, max(low, self.first) + self.slices.width)
        if whole:
            return Scan(list(self._whole()), True, None, self._generation)
        slack = 0
        if now - self.swept >= SLACK_EVERY:
            self.swept, slack = now, SLACK
        return Scan(list(self._from_cursor(slack, window)), False, window, self._generation)

    def _whole(self) -> list[Range]:
        """Return ranges for the whole queue. Known priorities need not be searched for among deleted rows."""
        found, low = [], LOWEST
        for priority in sorted(self.levels):
            if low < priority:
                found.append((low, priority - 1, START, END))
            found.append((priority, priority, START, END))
            low = priority + 1
        if low <= HIGHEST:
            found.append((low, HIGHEST, START, END))
        return found

    def _from_cursor(self, slack: Span, window: tuple[Instant, Instant] | None) -> list[Range]:
        """Return ranges from the cursors on; with a window, also that part before them and unknown priorities."""
        found, low = [], LOWEST
        for priority in sorted(self.levels.keys() | self._rescan.keys()):
            since = self._rescan.get(priority)
            if since is None:
                since = self.levels[priority] - slack
            if window is not None:
                if low < priority:
                    found.append((low, priority - 1, START, END))
                low = priority + 1
                if window[0] < since:
                    found.append((priority, priority, window[0], min(window[1], since)))
            found.append((priority, priority, since, END))
        if window is not None and low <= HIGHEST:
            found.append((low, HIGHEST, START, END))
        return found

    # --- what was found -----------------------------------------------------------------------------------------

    def took(self, scan: Scan, found: Sequence[Claim], began: float, cost: float, *, dry: bool) -> None:
        """Move the cursors after a claim. `dry`: it wanted more jobs than it found."""
        if not dry and not found:
            return  # other queues filled the demand; this one was not scanned
        self.grace = 0.0
        for claim in found:
            self.levels[claim.priority] = claim.scheduled_at
        self.taken += len(found)
        self.total += len(found)
        if len(self.levels) > MAX_PRIORITIES:
            self.levels.clear()
            self.slices = None
        elif scan.generation == self._generation:
            self._rescanned(found, dry=dry)
            if scan.whole:
                self._scanned_whole(found, began, cost)
            elif scan.window is not None:
                self._scanned_window(scan, found, began, cost, dry=dry)

    def failed(self, scan: Scan, cost: float) -> None:
        """Note that a claim timed out, perhaps because it scanned too much. A scan that must be full gets more time."""
        if scan.whole:
            self.grace = cost
            self.cost = SLOW_SCAN
            self._begin_slices()

    def _rescanned(self, found: Sequence[Claim], *, dry: bool) -> None:
        """Drop the rescans that are done. A paused queue looks like an empty one, so cheap rescans are repeated."""
        if found or self.slices is not None:
            reached = HIGHEST if dry else found[-1].priority
            self._rescan = {priority: since for priority, since in self._rescan.items() if priority > reached}

    def _scanned_whole(self, found: Sequence[Claim], began: float, cost: float) -> None:
        """Note the cost of a full scan. Only two slow scans in a row count as slow."""
        self.cost, self.last = min(cost, self.last), cost
        if began - self.since >= FULL_SCAN_EVERY:
            self.since, self.taken = began, len(found)
        self.scanned = self.swept = began
        if found:
            self.first = min(self.first, *(claim.scheduled_at for claim in found))
        if self.cost >= SLOW_SCAN:
            self._begin_slices()

    def _begin_slices(self) -> None:
        """Scan in slices from now on."""
        if self.slices is None and self.levels and self.total >= MIN_TAKEN:
            width = int(self._span() * SLOW_SCAN / max(self.cost, SLOW_SCAN))
            self.slices = Slices(max(self._least_width(), width))

    def _span(self) -> Span:
        """Return how long ago, before the furthest cursor, the first job was due."""
        return max(self.levels.values()) - self.first

    def _least_width(self) -> Span:
        """Return the narrowest window with which a full scan still has at most `MAX_SLICES`."""
        return max(MIN_WIDTH, self._span() // MAX_SLICES)

    def _scanned_window(self, scan: Scan, found: Sequence[Claim], began: float, cost: float, *, dry: bool) -> None:
        slices, window = self.slices, scan.window
        self.scanned, self.cost = began, cost
        if slices is None or window is None or not (dry or _reached_end(scan, found[-1])):
            return
        if cost > 2 * SLOW_SCAN:
            slices.width = max(self._least_width(), int(slices.width * SLOW_SCAN / cost))
        elif cost < SLOW_SCAN:
            slices.width = min(2 * slices.width, MAX_WIDTH)
        slices.low = window[1]
        slices.spent += cost
        if window[1] > max(self.levels.values()):
            if slices.spent < SLOW_SCAN:
                self.slices = None
            slices.low, slices.spent = START, 0.0


def _reached_end(scan: Scan, last: Claim) -> bool:
    """Return whether a claim read its window to the end, rather than finding all it wanted before."""
    ends = [until for low, _, _, until in scan.ranges if low == last.priority and until != END]
    return all(last.scheduled_at >= end for end in ends)
