"""Where in a queue's line an engine looks for due jobs.

Taken rows stay in the index until the server cleans up, and while somebody holds an old snapshot it cannot. So a line
that is drained fast is not looked at from its head each time but, priority by priority, from a mark behind which
everything was taken: up to there the index may be full of what is left of it.

Others may put jobs before the marks: with a run time of the past, with a priority nobody knew, or because they commit
long after they were stamped. So the whole line is looked at once a second and whenever the marks give too little. When
that becomes dear it is done piece by window, a small part of the time, however long the line of the taken is; no single
look takes long then. What this engine itself puts before the cursor is looked for at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

from stoker.model.job import Claim
from stoker.model.time import DAY, MILLISECOND, Instant, Span

Range: TypeAlias = tuple[int, int, Instant, Instant]
"""Priorities from, to; instants from, to before."""

START, END = -(1 << 63), (1 << 63) - 1
LOWEST, HIGHEST = -(1 << 15), (1 << 15) - 1

SLACK: Span = 500 * MILLISECOND
SLACK_EVERY = 0.05
"""Others commit later than they were stamped: every so many seconds a look begins this far before the cursor."""

FULL_SCAN_EVERY = 1.0
"""Seconds after which a line is looked at from its head in any case."""

MIN_TAKEN = 256
"""Jobs taken from a line in such a while that are not worth a mark."""

SLOW_SCAN = 0.010
"""Seconds from which on a look is dear: then it is done in pieces that take about so long."""

SLOW_SCAN_PAUSE = 20
"""So many times as long as it took passes between two dear scans."""

MIN_WIDTH: Span = 10 * MILLISECOND
MAX_WIDTH: Span = 10_000 * DAY
MAX_PRIORITIES = 256
"""Priorities that are kept in mind."""


class Scan(NamedTuple):
    """What one claim asks of one line."""

    ranges: list[Range]
    whole: bool
    window: tuple[Instant, Instant] | None
    generation: int


class Slices:
    """A look at the whole line that is too dear for one claim: where it goes on, and how far at a time."""

    __slots__ = ("low", "spent", "width")

    def __init__(self, width: Span) -> None:
        self.low: Instant = START
        self.width = width
        self.spent = 0.0


class ClaimCursor:
    """What is known of one queue's line."""

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
        """A job was put into the line, at a given instant or now."""
        mark = self.levels.get(priority)
        if mark is None or (at is not None and at <= mark):
            self.rescan_from(priority, START if mark is None or at is None else at)

    def rescan_from(self, priority: int, since: Instant) -> None:
        """@L@ once more at a priority from an instant on."""
        self._rescan[priority] = min(since, self._rescan.get(priority, END))
        self._generation += 1

    def late(self, since: Instant) -> None:
        """Jobs were put behind the marks from this instant on, of any priority."""
        for priority in self.levels:
            self.rescan_from(priority, min(since, self.levels[priority]))
        self.scanned = 0.0

    def forget(self) -> None:
        """Jobs may have been put anywhere."""
        self.late(START)

    # --- where to look ------------------------------------------------------------------------------------------

    def scan(self, now: float, *, whole: bool = False) -> Scan:
        """Where the next claim scans."""
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
        """The whole line. Priorities that are known need not be found among what is left of the taken."""
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
        """From the marks on; with a piece of what lies before them, and between the priorities."""
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
        """A claim is back: `dry` when it wanted more than there was."""
        if not dry and not found:
            return  # others had it all; nobody looked here
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
        """A claim did not come back in time: perhaps it looked at too much. One that must gets more time for it."""
        if scan.whole:
            self.grace = cost
            self.cost = SLOW_SCAN
            self._begin_slices()

    def _rescanned(self, found: Sequence[Claim], *, dry: bool) -> None:
        """A queue that is paused answers like an empty one: where looking is cheap it is done again."""
        if found or self.slices is not None:
            reached = HIGHEST if dry else found[-1].priority
            self._rescan = {priority: since for priority, since in self._rescan.items() if priority > reached}

    def _scanned_whole(self, found: Sequence[Claim], began: float, cost: float) -> None:
        """A hiccup is not a long line: only two slow looks in a row are dear."""
        self.cost, self.last = min(cost, self.last), cost
        if began - self.since >= FULL_SCAN_EVERY:
            self.since, self.taken = began, len(found)
        self.scanned = self.swept = began
        if found:
            self.first = min(self.first, *(claim.scheduled_at for claim in found))
        if self.cost >= SLOW_SCAN:
            self._begin_slices()

    def _begin_slices(self) -> None:
        """From now on the line is looked at piece by piece."""
        if self.slices is None and self.levels and self.total >= MIN_TAKEN:
            span = max(self.levels.values()) - self.first
            self.slices = Slices(max(MIN_WIDTH, int(span * SLOW_SCAN / max(self.cost, SLOW_SCAN))))

    def _scanned_window(self, scan: Scan, found: Sequence[Claim], began: float, cost: float, *, dry: bool) -> None:
        slices, window = self.slices, scan.window
        self.scanned, self.cost = began, cost
        if slices is None or window is None or not (dry or _reached_end(scan, found[-1])):
            return
        if cost > 2 * SLOW_SCAN:
            slices.width = max(MIN_WIDTH, int(slices.width * SLOW_SCAN / cost))
        elif cost < SLOW_SCAN:
            slices.width = min(2 * slices.width, MAX_WIDTH)
        slices.low = window[1]
        slices.spent += cost
        if window[1] > max(self.levels.values()):
            if slices.spent < SLOW_SCAN:
                self.slices = None
            slices.low, slices.spent = START, 0.0


def _reached_end(scan: Scan, last: Claim) -> bool:
    """Did a claim get past the window, or was there more in it than was wanted?"""
    ends = [until for low, _, _, until in scan.ranges if low == last.priority and until != END]
    return all(last.scheduled_at >= end for end in ends)
