"""Records of what kinds did in an hour, and charts that are drawn from them where minutes are gone."""

from __future__ import annotations

import msgspec
import pytest

from stoker.model.events import Point
from stoker.model.kind_hours import CAUGHT_UP, KindHour, filled, missing, summed_up
from stoker.model.stats import BUSIEST, COUNTED, uncounted
from stoker.model.time import HOUR, MINUTE

START = 500_000 * HOUR
DONE, RUNS = "kind_completed", "kind_processing"


@pytest.mark.spec("STATS-14")
def test_an_hour_is_the_sum_of_its_minutes() -> None:
    """Its percentiles weigh each minute by its runs: a slow minute with one run does not speak for an hour."""
    points = [
        Point("send", DONE, START, 99),
        Point("send", DONE, START + 59 * MINUTE, 1),
        Point("send", RUNS, START, 99, 990, 10, 20, 30, 40),
        Point("send", RUNS, START + 59 * MINUTE, 1, 5_000, 5_000, 5_000, 5_000, 5_000),
        Point("sort", "kind_enqueued", START, 5),
        Point("mail", "completed", START, 7),
        Point("send", DONE, START + HOUR, 7),
        Point("send", DONE, START - MINUTE, 7),
    ]
    found = summed_up(START, points)
    assert found is not None
    assert set(found.kinds) == {"send", "sort"}
    assert found.points("send") == [
        Point("send", DONE, START, 100),
        Point("send", RUNS, START, 100, 5_990, 10, 20, 40, 5_000),
    ]
    assert found.points("other") == []
    assert msgspec.json.decode(msgspec.json.encode(found), type=KindHour) == found
    assert summed_up(START + 2 * HOUR, points) is None


@pytest.mark.spec("STATS-14")
def test_of_an_hour_the_busiest_kinds_are_kept() -> None:
    points = [Point(f"k{n}", DONE, START + n % 60 * MINUTE, n + 1) for n in range(BUSIEST + 9)]
    found = summed_up(START, points)
    assert found is not None
    assert set(found.kinds) == {f"k{n}" for n in range(9, BUSIEST + 9)}


@pytest.mark.spec("STATS-14")
def test_hours_that_no_late_event_reaches_any_more_are_recorded() -> None:
    assert missing(set(), START + HOUR + 2 * MINUTE)[0] == START - HOUR
    due = missing(set(), START + HOUR + 3 * MINUTE)
    assert due == [START - n * HOUR for n in range(CAUGHT_UP)]
    assert missing(set(due[1:]), START + HOUR + 3 * MINUTE) == [START]
    assert missing(set(due), START + HOUR + 3 * MINUTE) == []


def _hour(at: int, n: int) -> KindHour:
    found = summed_up(at, [Point("send", DONE, at, n), Point("send", RUNS, at, n, 10.0 * n, 1, 2, 3, 4)])
    assert found is not None
    return found


@pytest.mark.spec("STATS-14")
def test_an_hour_whose_minutes_are_gone_is_spread_over_its_time() -> None:
    hours = [_hour(START + n * HOUR, 61) for n in range(3)]
    minutes = [Point("send", DONE, START + n * MINUTE, 2) for n in range(HOUR // MINUTE, 3 * HOUR // MINUTE)]
    minutes += [Point("", COUNTED, START + n * MINUTE, 1) for n in range(180)]
    found = filled(minutes, hours, "send", START, START + 3 * HOUR, 20 * MINUTE)
    done = [one.count for one in found if one.metric == DONE]
    assert done == [20, 20, 21, *[40] * 6], "minutes that count more than the record stay"
    assert sum(one.count for one in found if one.metric == COUNTED) == 180
    runs = [one for one in found if one.metric == RUNS]
    assert [(one.count, one.p95) for one in runs] == [(20, 2), (20, 2), (21, 2)]
    assert sum(one.sum for one in runs) == pytest.approx(610)
    rare = filled([], [_hour(START, 2)], "send", START, START + HOUR, MINUTE)
    assert [one.bucket for one in rare if one.metric == DONE] == [START + 29 * MINUTE, START + 59 * MINUTE]


@pytest.mark.spec("STATS-14")
def test_an_hour_at_the_edge_of_a_window() -> None:
    """Not all of its minutes were read: they stay where there are any, else the part of the record counts."""
    hours = [_hour(START + n * HOUR, 60) for n in range(4)]
    window = START + 30 * MINUTE, START + 2 * HOUR + 30 * MINUTE
    assert sum(one.count for one in filled([], hours, "send", *window, HOUR) if one.metric == DONE) == 120
    edges = [Point("send", DONE, START + 40 * MINUTE, 3), Point("send", DONE, START + 2 * HOUR, 4)]
    found = filled(edges, hours, "send", *window, 10 * HOUR)
    assert [one.count for one in found if one.metric == DONE] == [67]


@pytest.mark.spec("STATS-15")
def test_minutes_that_were_not_counted_and_the_one_before() -> None:
    """The last one before a gap may have been counted by a worker that stopped within it."""
    minutes = [START + n * MINUTE for n in range(6)]
    stored = [Point("", COUNTED, START + n * MINUTE, 1) for n in (0, 1, 4, 5)]
    assert uncounted(minutes, [*stored, Point("", "all_completed", START + 2 * MINUTE, 1)]) == minutes[1:4]
    assert uncounted(minutes, []) == minutes
    assert uncounted(minutes[:2], stored) == []


def test_an_hour_is_stored_under_its_number() -> None:
    assert KindHour(at=3 * HOUR).name == "3"


@pytest.mark.spec("STATS-14")
def test_of_an_hour_that_is_spread_no_minute_is_counted_twice() -> None:
    """Half of its minutes are gone: the record, which counts more, stands for all of them."""
    minutes = [Point("send", DONE, START + n * MINUTE, 1) for n in range(30, 60)]
    found = filled(minutes, [_hour(START, 60)], "send", START, START + HOUR, HOUR)
    assert [one.count for one in found if one.metric == DONE] == [60]


@pytest.mark.spec("STATS-14")
def test_hours_beside_the_window_are_not_in_it() -> None:
    hours = [_hour(START + n * HOUR, 60) for n in (-1, 0, 1)]
    found = filled([], hours, "send", START, START + HOUR, HOUR)
    assert [(one.bucket, one.count) for one in found if one.metric == DONE] == [(START, 60)]
