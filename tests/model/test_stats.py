"""From events and run times to points and series: STATS-01 to STATS-05."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.model.errors import InvalidOption
from stoker.model.events import Event, EventType, Point
from stoker.model.stats import (
    BUCKET,
    MOST_BUCKETS,
    Latency,
    closed_buckets,
    coarsen,
    latency,
    percentile,
    roll_up,
    width_for,
)
from stoker.model.time import DAY, HOUR, MILLISECOND, MINUTE, SECOND, Instant

START: Instant = 29_000_000 * MINUTE
JOB = bytes(16)


def event(kind: EventType, offset: int = 0, queue: str = "mail") -> Event:
    return Event(START + offset, kind, JOB, queue, "send")


def points(series: dict[str, float], minute: int = 0, queue: str = "mail") -> list[Point]:
    return [Point(queue, metric, START + minute * MINUTE, value) for metric, value in series.items()]


@pytest.mark.spec("STATS-01")
def test_the_nearest_rank() -> None:
    hundred = list(range(100, 0, -1))
    assert [percentile(hundred, rank) for rank in (1, 50, 95, 99, 100)] == [1, 50, 95, 99, 100]
    assert percentile([], 99) == 0
    assert percentile([7], 1) == percentile([7], 0) == 7
    assert [percentile([1, 2, 3], rank) for rank in (33, 34, 50, 99)] == [1, 2, 2, 3]


@pytest.mark.spec("STATS-01")
@given(values=st.lists(st.integers(0, 10**9), min_size=1), rank=st.integers(1, 100))
def test_a_percentile_is_a_value_of_its_list_with_enough_below_and_no_more(values: list[int], rank: int) -> None:
    found = percentile(values, rank)
    assert found in values
    assert sum(value <= found for value in values) * 100 >= rank * len(values)
    assert sum(value < found for value in values) * 100 < rank * len(values)
    assert found <= percentile(values, 100) == max(values)


@pytest.mark.spec("STATS-02")
def test_latency_is_never_negative() -> None:
    assert latency("mail", START, START + 2, START + 5) == Latency("mail", START + 5, 3, 5)
    assert latency("mail", START, START, START - 9) == Latency("mail", START - 9, 0, 0)


@pytest.mark.spec("STATS-03")
def test_the_last_three_closed_minutes() -> None:
    expected = [START - 3 * MINUTE, START - 2 * MINUTE, START - MINUTE]
    assert closed_buckets(START) == closed_buckets(START + MINUTE - 1) == expected
    assert closed_buckets(START + MINUTE, 1) == [START]


@pytest.mark.spec("STATS-03")
def test_a_minute_rolls_up_to_counts_and_percentiles_without_zeros() -> None:
    events = [
        event(EventType.ENQUEUED),
        event(EventType.ENQUEUED, MINUTE - 1),
        event(EventType.ENQUEUED, MINUTE),
        event(EventType.ENQUEUED, -1),
        event(EventType.STARTED),
        event(EventType.RETRIED),
        event(EventType.FAILED, queue="bulk"),
    ]
    runs = [Latency("mail", START + n, n * MILLISECOND, n * SECOND) for n in range(1, 101)]
    outside = [Latency("mail", START + MINUTE, HOUR, HOUR), Latency("mail", START - 1, HOUR, HOUR)]
    found = roll_up(START, events, runs + outside)
    assert found == [
        *points({"failed": 1}, queue="bulk"),
        *points(
            {
                "enqueued": 2,
                "processing_p50": 50 * MILLISECOND,
                "processing_p95": 95 * MILLISECOND,
                "processing_p99": 99 * MILLISECOND,
                "total_p50": 50 * SECOND,
                "total_p95": 95 * SECOND,
                "total_p99": 99 * SECOND,
            }
        ),
    ]
    assert roll_up(START, [], []) == []


@pytest.mark.spec("STATS-03")
@given(
    events=st.lists(
        st.builds(event, st.sampled_from(EventType), st.integers(-MINUTE, 2 * MINUTE), st.sampled_from(["a", "b"]))
    ),
    shuffled=st.randoms(use_true_random=False),
)
def test_a_roll_up_is_a_function_of_its_minute(events: list[Event], shuffled: Random) -> None:
    again = list(events)
    shuffled.shuffle(again)
    found = roll_up(START, events, [])
    assert found == roll_up(START, again, [])
    assert all(one.value > 0 for one in found)
    counted = {EventType.ENQUEUED, EventType.COMPLETED, EventType.FAILED}
    inside = [one for one in events if one.type in counted and 0 <= one.at - START < BUCKET]
    assert sum(one.value for one in found) == len(inside)


@pytest.mark.spec("STATS-04")
def test_coarser_series_add_weigh_and_keep_the_worst() -> None:
    fine = [
        *points({"completed": 3, "total_p50": 10, "total_p95": 70, "total_p99": 80}),
        *points({"completed": 1, "total_p50": 50, "total_p95": 60, "total_p99": 90}, minute=1),
        *points({"total_p50": 7}, minute=2),
        *points({"completed": 5}, minute=1, queue="bulk"),
        *points({"completed": 9}, minute=4),
    ]
    assert coarsen(fine, START, START + 4 * MINUTE, 2 * MINUTE) == [
        *points({"completed": 5}, queue="bulk"),
        *points({"completed": 4, "total_p50": 20, "total_p95": 70, "total_p99": 90}),
        *points({"total_p50": 7}, minute=2),
    ]
    assert coarsen(fine, START, START, MINUTE) == []


@pytest.mark.spec("STATS-04")
@given(
    values=st.dictionaries(st.integers(0, 59), st.tuples(st.integers(1, 50), st.integers(0, 10**6)), max_size=40),
    width=st.integers(1, 90),
)
def test_merging_loses_no_count_and_a_median_stays_among_its_parts(
    values: dict[int, tuple[int, int]], width: int
) -> None:
    fine = [
        point
        for minute, (count, median) in values.items()
        for point in points({"completed": count, "total_p50": median}, minute)
    ]
    coarse = coarsen(fine, START, START + HOUR, width * MINUTE)
    assert sum(one.value for one in coarse if one.metric == "completed") == sum(count for count, _ in values.values())
    medians = [median for _, median in values.values()]
    assert all(min(medians) <= one.value <= max(medians) for one in coarse if one.metric == "total_p50")
    assert coarsen(fine, START, START + HOUR, MINUTE) == sorted(fine, key=lambda one: (one.bucket, one.metric))


@pytest.mark.spec("STATS-05")
def test_a_series_has_at_most_two_thousand_buckets_of_at_least_a_minute() -> None:
    with pytest.raises(InvalidOption, match="one minute"):
        coarsen([], START, START + HOUR, MINUTE - 1)
    with pytest.raises(InvalidOption, match="2000"):
        coarsen([], START, START + 2_001 * MINUTE, MINUTE)
    assert coarsen([], START, START + 2_000 * MINUTE, MINUTE) == []
    assert width_for(HOUR) == width_for(0) == MINUTE
    assert width_for(HOUR, 90 * SECOND) == 2 * MINUTE
    assert width_for(30 * DAY) == 22 * MINUTE


@pytest.mark.spec("STATS-05")
@given(window=st.integers(0, 4_000 * DAY), wanted=st.integers(0, DAY))
def test_the_width_fits_every_window(window: int, wanted: int) -> None:
    width = width_for(window, wanted)
    assert width % BUCKET == 0
    assert width >= max(wanted, BUCKET)
    assert window <= width * MOST_BUCKETS
