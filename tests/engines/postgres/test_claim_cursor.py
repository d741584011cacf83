"""Where an engine looks in its lines, played against a line that is kept in order by hand."""

from __future__ import annotations

import bisect
from typing import Any, NamedTuple, cast

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from stoker.engines.postgres.claim_cursor import SLOW_SCAN, SLOW_SCAN_PAUSE, ClaimCursor
from stoker.model.job import Claim
from stoker.model.time import SECOND

pytestmark = pytest.mark.engine("postgres")


class Row(NamedTuple):
    priority: int
    scheduled_at: int
    id: int


class Play:
    """A line, its marks, and a clock that both go by."""

    def __init__(self) -> None:
        self.cursor = ClaimCursor()
        self.rows: list[Row] = []
        self.now = 1_000.0
        self._count = 0

    def put(self, priority: int, ago: float | None, *, own: bool) -> Row:
        self._count += 1
        at = None if ago is None else int((self.now - ago) * SECOND)
        row = Row(priority, int(self.now * SECOND) if at is None else at, self._count)
        bisect.insort(self.rows, row)
        if own:
            self.cursor.put(priority, at)
        return row

    def claim(self, n: int, cost: float) -> list[Row]:
        """As `Claimer.claim` does it: from the marks, and from the head when they give too little."""
        scan = self.cursor.scan(self.now)
        found = self._take(scan, n, cost)
        if len(found) < n and not scan.whole and self.cursor.slices is None:
            found = sorted(found + self._take(self.cursor.scan(self.now, whole=True), n - len(found), cost))
        self.now += cost
        return found

    def _take(self, scan: Any, n: int, cost: float) -> list[Row]:
        found: list[Row] = []
        for low, high, since, until in scan.ranges:
            fitting = [row for row in self.rows if low <= row.priority <= high and since <= row.scheduled_at < until]
            found += fitting[: n - len(found)]
            self.rows = [row for row in self.rows if row not in set(found)]
        self.cursor.took(scan, cast("list[Claim]", found), self.now, cost, dry=len(found) < n)
        return found


ACTS = st.lists(
    st.one_of(
        st.tuples(st.just("put"), st.integers(-2, 2), st.one_of(st.none(), st.floats(0.0, 900.0))),
        st.tuples(
            st.just("claim"), st.integers(1, 4), st.sampled_from([0.0, SLOW_SCAN / 4, SLOW_SCAN, 10 * SLOW_SCAN])
        ),
        st.tuples(st.just("pass"), st.floats(0.0, 3.0), st.none()),
    ),
    max_size=60,
)


@pytest.fixture(autouse=True)
def _eager(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stoker.engines.postgres.claim_cursor.MIN_TAKEN", 1)


@pytest.mark.spec("PGRACE-06")
@given(ACTS)
def test_what_an_engine_itself_puts_it_takes_in_order(acts: list[tuple[str, Any, Any]]) -> None:
    """Whatever a look costs and wherever the marks are: each claim takes the first of the line."""
    play = Play()
    for act, a, b in acts:
        match act:
            case "put":
                play.put(a, b, own=True)
            case "claim":
                first = play.rows[:a]
                assert play.claim(a, b) == first
            case _:
                play.now += a


@pytest.mark.spec("PGRACE-06")
@given(ACTS, st.sampled_from([SLOW_SCAN / 4, 10 * SLOW_SCAN]))
@example(
    [
        *[("put", 0, None), ("put", 1, None), ("claim", 1, SLOW_SCAN), ("put", 0, 21.0), ("claim", 1, SLOW_SCAN)],
        *[("pass", 1.0, None), ("claim", 1, 0.0), ("put", 0, 23.0)],
    ],
    10 * SLOW_SCAN,
)
def test_what_others_put_is_found_in_time(acts: list[tuple[str, Any, Any]], cost: float) -> None:
    """Also when every look is dear: piece by piece the whole line is looked at."""
    play = Play()
    for act, a, b in acts:
        match act:
            case "put":
                play.put(a, b, own=False)
            case "claim":
                play.claim(a, b)
            case _:
                play.now += a
    for _ in range(2_000):
        if not play.rows:
            break
        play.claim(10, cost)
        play.now += SLOW_SCAN_PAUSE * cost
    assert not play.rows


@pytest.mark.spec("PGRACE-06")
def test_a_dear_line_is_looked_at_in_pieces_and_whole_again_when_it_is_cheap() -> None:
    """Two slow looks part it; a cheap sweep ends that. Between two pieces it is only looked at from the marks on."""
    play = Play()
    for _ in range(3):
        play.put(0, None, own=False)
        play.now += 2.0
        play.claim(1, 10 * SLOW_SCAN)
    assert play.cursor.slices is not None
    play.now += SLOW_SCAN_PAUSE * SLOW_SCAN * 10
    past, fresh = play.put(0, 900.0, own=False), play.put(0, None, own=False)
    assert play.cursor.scan(play.now).window is not None
    found = play.claim(5, SLOW_SCAN / 4)
    assert fresh in found
    for _ in range(40):
        play.now += 1.0
        found += play.claim(1, SLOW_SCAN / 8)
    assert past in found
    assert play.cursor.slices is None
