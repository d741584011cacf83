"""From events and run times to points and series: STATS-01 to STATS-06."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.model.errors import InvalidOption
from stoker.model.events import EventCount, EventType, Latency, Point, Timings
from stoker.model.job import Status
from stoker.model.query import Census, Count
from stoker.model.stats import (
    BUCKET,
    BY_KIND,
    COUNTED,
    COUNTS,
    METRICS,
    MOST_BUCKETS,
    TIMES,
    TOGETHER,
    blended,
    closed_buckets,
    coarsen,
    counted_minutes,
    depths,
    measured,
    news,
    of_all,
    percentile,
    roll_up,
    store_points,
    usual_wait,
    width_for,
)
from stoker.model.time import DAY, HOUR, MILLISECOND, MINUTE, SECOND, Instant

QUEUES = st.sampled_from(["a", "b"])
START: Instant = 29_000_000 * MINUTE


def counts(series: dict[str, int], minute: int = 0, queue: str = "mail") -> list[Point]:
    return [Point(queue, metric, START + minute * MINUTE, count) for metric, count in series.items()]


@pytest.mark.spec("STATS-01")
def test_the_nearest_rank() -> None:
    hundred = list(range(1, 101))
    assert [percentile(hundred, rank) for rank in (1, 50, 95, 99, 100)] == [1, 50, 95, 99, 100]
    assert percentile([7], 1) == percentile([7], 0) == 7
    assert [percentile([1, 2, 3], rank) for rank in (33, 34, 50, 99)] == [1, 2, 2, 3]


@pytest.mark.spec("STATS-01")
@given(values=st.lists(st.integers(0, 10**9), min_size=1), rank=st.integers(1, 100))
def test_a_percentile_is_a_value_of_its_list_with_enough_below_and_no_more(values: list[int], rank: int) -> None:
    ordered = sorted(values)
    found = percentile(ordered, rank)
    assert found in values
    assert sum(value <= found for value in values) * 100 >= rank * len(values)
    assert sum(value < found for value in values) * 100 < rank * len(values)
    assert found <= percentile(ordered, 100) == max(values)


@pytest.mark.spec("STATS-03")
def test_the_last_three_closed_minutes() -> None:
    expected = [START - 3 * MINUTE, START - 2 * MINUTE, START - MINUTE]
    assert closed_buckets(START) == closed_buckets(START + MINUTE - 1) == expected
    assert closed_buckets(START + MINUTE, 1) == [START]


@pytest.mark.spec("STATS-03")
def test_a_minute_rolls_up_to_counts_and_measured_times_without_zeros() -> None:
    happened = [
        EventCount("bulk", EventType.FAILED, 1),
        EventCount("mail", EventType.ENQUEUED, 1, "send"),
        EventCount("mail", EventType.ENQUEUED, 1, "sort"),
        EventCount("mail", EventType.COMPLETED, 0),
        EventCount("mail", EventType.STARTED, 5),
        EventCount("mail", EventType.RETRIED, 3),
    ]
    runs = [Latency("mail", START + n, n * MILLISECOND, n * SECOND) for n in range(100, 0, -1)]
    assert [one for one in roll_up(START, happened, runs) if one.queue and one.metric not in BY_KIND] == [
        *counts({"failed": 1}, queue="bulk"),
        *counts({"enqueued": 2}),
        Point(
            "mail",
            "processing",
            START,
            count=100,
            sum=5_050 * MILLISECOND,
            p50=50 * MILLISECOND,
            p95=95 * MILLISECOND,
            p99=99 * MILLISECOND,
            max=100 * MILLISECOND,
        ),
        *counts({"retried": 3}),
        Point("mail", "total", START, 100, 5_050 * SECOND, 50 * SECOND, 95 * SECOND, 99 * SECOND, 100 * SECOND),
    ]
    assert roll_up(START, [], []) == [Point("", COUNTED, START, 1)], "that nothing happened is known"


@pytest.mark.spec("STATS-08")
def test_all_queues_together_have_sums_and_exact_percentiles() -> None:
    happened = [
        EventCount("bulk", EventType.FAILED, 1),
        EventCount("mail", EventType.ENQUEUED, 2),
        EventCount("mail", EventType.FAILED, 3),
        EventCount("mail", EventType.RETRIED, 0),
    ]
    fast = [Latency("mail", START, 1, 10) for _ in range(60)]
    slow = [Latency("bulk", START, 100, 1_000) for _ in range(40)]
    together = [one for one in roll_up(START, happened, [*fast, *slow]) if not one.queue]
    assert together == [
        *counts({"all_enqueued": 2, "all_failed": 4}, queue=""),
        Point("", "all_processing", START, 100, 4_060, 1, 100, 100, 100),
        Point("", "all_total", START, 100, 40_600, 10, 1_000, 1_000, 1_000),
        Point("", COUNTED, START, 1),
    ]
    assert counted_minutes(together) == 1
    assert set(TOGETHER) < set(METRICS)
    assert {of_all(metric) for metric in (*COUNTS, *TIMES)} == set(TOGETHER)


@pytest.mark.spec("STATS-03")
@given(
    happened=st.lists(st.builds(EventCount, QUEUES, st.sampled_from(EventType), st.integers(1, 9))),
    runs=st.lists(st.builds(Latency, QUEUES, st.just(START), st.integers(0, 9), st.integers(0, 9))),
    shuffled=st.randoms(use_true_random=False),
)
def test_a_roll_up_does_not_depend_on_the_order_of_what_it_reads(
    happened: list[EventCount], runs: list[Latency], shuffled: Random
) -> None:
    happened = list({(one.queue, one.type): one for one in happened}.values())
    found = roll_up(START, happened, runs)
    shuffled.shuffle(happened)
    shuffled.shuffle(runs)
    assert found == roll_up(START, happened, runs)
    assert sum(one.count for one in found if one.metric in COUNTS) == sum(
        one.n for one in happened if one.type in COUNTS
    )
    assert sum(one.sum for one in found if one.metric == "total") == sum(one.total for one in runs)


@pytest.mark.spec("STATS-06")
def test_depth_is_measured_where_there_is_any() -> None:
    census = Census(
        at=START,
        counts=(
            Count("idle", "k", Status.DONE, 9),
            Count("mail", "k", Status.PENDING, 5),
            Count("mail", "k", Status.RUNNING, 1),
            Count("mail", "l", Status.RUNNING, 2),
        ),
        later={"mail": 1},
        oldest_ready={"mail": START - 7},
    )
    expected = {"lag": 7, "ready": 4, "running": 3}
    assert depths(START, census) == [
        Point("mail", name, START, 1, value, value, value, value, value) for name, value in expected.items()
    ]


@pytest.mark.spec("STATS-06")
def test_of_the_store_only_what_is_known_is_measured() -> None:
    assert store_points(START, Timings([], [3, 1]), {"database_size": 9, "log_size": None}) == [
        Point("", "database_size", START, 1, 9, 9, 9, 9, 9),
        Point("", "store_write", START, 2, 4, 1, 3, 3, 3),
    ]
    assert {"database_size", "enqueued", "lag", "store_write", "total"} < set(METRICS)


@pytest.mark.spec("STATS-04")
def test_coarser_series_add_weigh_and_keep_the_worst() -> None:
    fine = [
        *counts({"completed": 3}),
        Point("mail", "total", START, 3, 60, 10, 70, 80, 81),
        Point("mail", "total", START + MINUTE, 1, 40, 50, 60, 90, 91),
        *counts({"completed": 1}, minute=1),
        Point("mail", "total", START + 2 * MINUTE, 1, 7, 7, 7, 7, 7),
        *counts({"completed": 5}, minute=1, queue="bulk"),
        *counts({"completed": 9}, minute=4),
        *counts({"completed": 0}, minute=3, queue="zero"),
    ]
    assert coarsen(fine, START, START + 4 * MINUTE, 2 * MINUTE) == [
        *counts({"completed": 5}, queue="bulk"),
        *counts({"completed": 4}),
        Point("mail", "total", START, 4, 100, 20, 70, 90, 91),
        Point("mail", "total", START + 2 * MINUTE, 1, 7, 7, 7, 7, 7),
        *counts({"completed": 0}, minute=2, queue="zero"),
    ]
    assert coarsen(fine, START, START, MINUTE) == []


@pytest.mark.spec("STATS-04")
@given(
    values=st.dictionaries(st.integers(0, 59), st.lists(st.integers(0, 10**6), min_size=1, max_size=9), max_size=40),
    width=st.integers(1, 90),
)
def test_merging_loses_no_count_and_a_median_stays_among_its_parts(values: dict[int, list[int]], width: int) -> None:
    fine = [measured("mail", "total", START + minute * MINUTE, some) for minute, some in values.items()]
    coarse = coarsen(fine, START, START + HOUR, width * MINUTE)
    everything = [value for some in values.values() for value in some]
    assert sum(one.count for one in coarse) == len(everything)
    assert sum(one.sum for one in coarse) == sum(everything)
    assert max((one.max for one in coarse), default=0) == max(everything, default=0)
    medians = [one.p50 for one in fine]
    assert all(min(medians) <= one.p50 <= max(medians) for one in coarse)
    assert coarsen(fine, START, START + HOUR, MINUTE) == sorted(fine, key=lambda one: one.bucket)


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


@pytest.mark.spec("STATS-10")
def test_a_point_that_is_stored_or_counts_less_than_the_stored_one_is_no_news() -> None:
    stored = counts({"completed": 5, "failed": 2}) + counts({"enqueued": 9}, minute=1)
    computed = counts({"completed": 4, "failed": 2, "retried": 1, "enqueued": 3})
    assert news(computed, stored) == computed[2:]
    assert news(counts({"completed": 6}), stored) == counts({"completed": 6})
    assert news([], stored) == []
    times = measured("mail", "total", START, [3, 5])
    assert news([times], [measured("mail", "total", START, [3, 4])]) == [times]


@pytest.mark.spec("NEED-15")
def test_the_usual_wait_is_the_p95_over_the_jobs_of_a_day() -> None:
    def minute(n: int, jobs: int, lag: int) -> list[Point]:
        at = START + n * MINUTE
        waits = [Point("mail", "lag", at, 1, lag, lag, lag, lag, lag)] if lag else []
        return [Point("mail", "completed", at, jobs), *waits]

    assert usual_wait([]) == 0
    assert usual_wait([Point("mail", "lag", START, 1, 9, 9, 9, 9, 9)]) == 0, "nothing was completed"
    assert usual_wait(minute(0, 1, 7)) == 7
    quiet = [point for n in range(95) for point in minute(n, 1, 0)]
    assert usual_wait([*quiet, *minute(95, 4, 60), *minute(96, 1, 90)]) == 0, "five of a hundred waited"
    assert usual_wait([*quiet, *minute(95, 5, 60), *minute(96, 1, 90)]) == 60, "six of a hundred and one did"
    batch = [*minute(0, 1_000, 3_600), *quiet]
    assert usual_wait(batch) == 3_600, "jobs count, not minutes"


def test_the_usual_wait_passes_over_other_metrics() -> None:
    assert usual_wait([Point("mail", "failed", START, 5)]) == 0


@pytest.mark.spec("STATS-12")
def test_a_minute_is_rolled_up_by_kind_in_all_queues() -> None:
    happened = [
        EventCount("mail", EventType.COMPLETED, 2, "send"),
        EventCount("bulk", EventType.COMPLETED, 1, "send"),
        EventCount("bulk", EventType.FAILED, 4, "send", "boom"),
        EventCount("bulk", EventType.STARTED, 9, "send"),
        EventCount("mail", EventType.GROUP_CLOSED, 1, "group"),
        EventCount("mail", EventType.ENQUEUED, 3, "sort"),
    ]
    runs = [
        Latency("mail", START, 10, 99, "send", 5),
        Latency("mail", START, 30, 99, "send", None),
        Latency("bulk", START, 20, 99, "send", 7),
        Latency("bulk", START, 4, 99, "sort", None),
    ]
    assert [one for one in roll_up(START, happened, runs) if one.metric in BY_KIND] == [
        Point("send", "kind_completed", START, 3),
        Point("send", "kind_failed", START, 4),
        Point("send", "kind_processing", START, 3, 60, 20, 30, 30, 30),
        Point("send", "kind_wait", START, 2, 12, 5, 7, 7, 7),
        Point("sort", "kind_enqueued", START, 3),
        Point("sort", "kind_processing", START, 1, 4, 4, 4, 4, 4),
    ]


@pytest.mark.spec("STATS-12")
def test_a_kind_whose_waits_are_not_known_has_no_point_of_them() -> None:
    happened = [EventCount("mail", EventType.COMPLETED, 1, "send")]
    points = roll_up(START, happened, [Latency("mail", START, 10, 99, "send")])
    assert {one.metric for one in points if one.metric in BY_KIND} == {"kind_completed", "kind_processing"}


@pytest.mark.spec("STATS-12")
def test_only_the_busiest_kinds_have_points() -> None:
    happened = [EventCount("q", EventType.COMPLETED, 1 + (n > 9), f"kind{n}") for n in range(120)]
    runs = [Latency("q", START, 1, 1, one.kind, 1) for one in happened]
    kinds = {one.queue for one in roll_up(START, happened, runs) if one.metric in BY_KIND}
    assert len(kinds) == 100
    unknown = roll_up(START, happened[:1], [Latency("q", START, 1, 1, "kind0", None)])
    assert {one.metric for one in unknown if one.metric in BY_KIND} == {"kind_completed", "kind_processing"}
    assert not kinds & {f"kind{n}" for n in range(10)}


@pytest.mark.spec("STATS-13")
def test_percentiles_of_many_minutes_count_each_minute_by_its_runs() -> None:
    busy = Point("send", "kind_processing", START, 9_900, 1, 10, 20, 30, 40)
    rare = Point("send", "kind_processing", START + MINUTE, 10, 1, 1_000, 2_000, 3_000, 4_000)
    assert blended([busy]) == (10, 20, 30)
    assert blended([busy, rare]) == (10, 20, 30)
    assert blended([rare, rare]) == (1_000, 2_000, 3_000)
    half = blended([busy, Point("send", "kind_processing", START, 9_900, 1, 1_000, 2_000, 3_000, 4_000)])
    assert half == (40, 1_500, 3_000)


@pytest.mark.spec("STATS-13")
@given(st.lists(st.lists(st.integers(0, 10_000), min_size=20, max_size=60), min_size=1, max_size=8))
def test_blended_percentiles_lie_between_those_of_the_minutes(minutes: list[list[int]]) -> None:
    points = [measured("send", "kind_wait", START, values) for values in minutes]
    p50, p95, p99 = blended(points)
    assert p50 <= p95 <= p99 <= max(one.max for one in points)
    assert min(one.p50 for one in points) / 2 <= p50
    assert min(one.p95 for one in points) / 2 <= p95
