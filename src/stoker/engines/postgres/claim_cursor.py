"""Where in a queue's line an engine looks for due jobs.

Taken rows stay in the index until the server cleans up, and while somebody holds an old snapshot it cannot. So a line
that is drained fast is not looked at from its head each time but, priority by priority, from a mark behind which
everything was taken: up to there the index may be full of what is left of it.

Others may put jobs before the marks: with a run time of the past, with a priority nobody knew, or because they commit
long after they were stamped. So the whole line is looked at once a second and whenever the marks give too little. When
that becomes dear it is done piece by piece, a small part of the time, however long the line of the taken is; no single
look takes long then. What this engine itself puts before the marks is looked for at once.
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
SWEEP = 0.05
"""Others commit later than they were stamped: every so many seconds a look begins this far before the marks."""

OFTEN = 1.0
"""Seconds after which a line is looked at from its head in any case."""

FEW = 256
"""Jobs taken from a line in such a while that are not worth a mark."""

SLOW = 0.010
"""Seconds from which on a look is dear: then it is done in pieces that take about so long."""

SELDOM = 20
"""So many times as long as it took passes between two dear looks."""

NARROWEST: Span = 10 * MILLISECOND
WIDEST: Span = 10_000 * DAY
MANY = 256
"""Priorities that are kept in mind."""


class Look(NamedTuple):
    """What one claim asks of one line."""

    ranges: list[Range]
    whole: bool
    piece: tuple[Instant, Instant] | None
    turn: int


class Pieces:
    """A look at the whole line that is too dear for one claim: where it goes on, and how far at a time."""

    __slots__ = ("low", "spent", "width")

    def __init__(self, width: Span) -> None:
        self.low: Instant = START
        self.width = width
        self.spent = 0.0


class Marks:
    """What is known of one queue's line."""

    __slots__ = (
        *("_back", "_turn", "cost", "first", "grace", "last", "levels", "looked", "pieces", "since", "swept"),
        *("taken", "total"),
    )

    def __init__(self) -> None:
        self.levels: dict[int, Instant] = {}
        self.pieces: Pieces | None = None
        self.looked = self.since = self.swept = self.last = self.cost = self.grace = 0.0
        self.taken = self.total = 0
        self.first: Instant = END
        self._back: dict[int, Instant] = {}
        self._turn = 0

    # --- what this engine did itself ----------------------------------------------------------------------------

    def put(self, priority: int, at: Instant | None) -> None:
        """A job was put into the line, at a given instant or now."""
        mark = self.levels.get(priority)
        if mark is None or (at is not None and at <= mark):
            self.back(priority, START if mark is None or at is None else at)

    def back(self, priority: int, since: Instant) -> None:
        """Look once more at a priority from an instant on."""
        self._back[priority] = min(since, self._back.get(priority, END))
        self._turn += 1

    def late(self, since: Instant) -> None:
        """Jobs were put behind the marks from this instant on, of any priority."""
        for priority in self.levels:
            self.back(priority, min(since, self.levels[priority]))
        self.looked = 0.0

    def forget(self) -> None:
        """Jobs may have been put anywhere."""
        self.late(START)

    # --- where to look ------------------------------------------------------------------------------------------

    def look(self, now: float, *, whole: bool = False) -> Look:
        """Where the next claim looks."""
        piece = None
        if not self.levels:
            whole = True
        elif self.pieces is None:
            whole = whole or self.taken < FEW or now - self.looked >= OFTEN
        elif now - self.looked >= SELDOM * self.cost:
            low = self.pieces.low
            piece = (low, max(low, self.first) + self.pieces.width)
        if whole:
            return Look(list(self._everything()), True, None, self._turn)
        slack = 0
        if now - self.swept >= SWEEP:
            self.swept, slack = now, SLACK
        return Look(list(self._onwards(slack, piece)), False, piece, self._turn)

    def _everything(self) -> list[Range]:
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

    def _onwards(self, slack: Span, piece: tuple[Instant, Instant] | None) -> list[Range]:
        """From the marks on; with a piece of what lies before them, and between the priorities."""
        found, low = [], LOWEST
        for priority in sorted(self.levels.keys() | self._back.keys()):
            since = self._back.get(priority)
            if since is None:
                since = self.levels[priority] - slack
            if piece is not None:
                if low < priority:
                    found.append((low, priority - 1, START, END))
                low = priority + 1
                if piece[0] < since:
                    found.append((priority, priority, piece[0], min(piece[1], since)))
            found.append((priority, priority, since, END))
        if piece is not None and low <= HIGHEST:
            found.append((low, HIGHEST, START, END))
        return found

    # --- what was found -----------------------------------------------------------------------------------------

    def took(self, look: Look, found: Sequence[Claim], began: float, cost: float, *, dry: bool) -> None:
        """A claim is back: `dry` when it wanted more than there was."""
        if not dry and not found:
            return  # others had it all; nobody looked here
        self.grace = 0.0
        for claim in found:
            self.levels[claim.priority] = claim.scheduled_at
        self.taken += len(found)
        self.total += len(found)
        if len(self.levels) > MANY:
            self.levels.clear()
            self.pieces = None
        elif look.turn == self._turn:
            self._looked_back(found, dry=dry)
            if look.whole:
                self._seen_whole(found, began, cost)
            elif look.piece is not None:
                self._seen_piece(look, found, began, cost, dry=dry)

    def failed(self, look: Look, cost: float) -> None:
        """A claim did not come back in time: perhaps it looked at too much. One that must gets more time for it."""
        if look.whole:
            self.grace = cost
            self.cost = SLOW
            self._part()

    def _looked_back(self, found: Sequence[Claim], *, dry: bool) -> None:
        """A queue that is paused answers like an empty one: where looking is cheap it is done again."""
        if found or self.pieces is not None:
            reached = HIGHEST if dry else found[-1].priority
            self._back = {priority: since for priority, since in self._back.items() if priority > reached}

    def _seen_whole(self, found: Sequence[Claim], began: float, cost: float) -> None:
        """A hiccup is not a long line: only two slow looks in a row are dear."""
        self.cost, self.last = min(cost, self.last), cost
        if began - self.since >= OFTEN:
            self.since, self.taken = began, len(found)
        self.looked = self.swept = began
        if found:
            self.first = min(self.first, *(claim.scheduled_at for claim in found))
        if self.cost >= SLOW:
            self._part()

    def _part(self) -> None:
        """From now on the line is looked at piece by piece."""
        if self.pieces is None and self.levels and self.total >= FEW:
            span = max(self.levels.values()) - self.first
            self.pieces = Pieces(max(NARROWEST, int(span * SLOW / max(self.cost, SLOW))))

    def _seen_piece(self, look: Look, found: Sequence[Claim], began: float, cost: float, *, dry: bool) -> None:
        pieces, piece = self.pieces, look.piece
        self.looked, self.cost = began, cost
        if pieces is None or piece is None or not (dry or _through(look, found[-1])):
            return
        if cost > 2 * SLOW:
            pieces.width = max(NARROWEST, int(pieces.width * SLOW / cost))
        elif cost < SLOW:
            pieces.width = min(2 * pieces.width, WIDEST)
        pieces.low = piece[1]
        pieces.spent += cost
        if piece[1] > max(self.levels.values()):
            if pieces.spent < SLOW:
                self.pieces = None
            pieces.low, pieces.spent = START, 0.0


def _through(look: Look, last: Claim) -> bool:
    """Did a claim get past the piece, or was there more in it than was wanted?"""
    ends = [until for low, _, _, until in look.ranges if low == last.priority and until != END]
    return all(last.scheduled_at >= end for end in ends)
