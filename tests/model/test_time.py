from __future__ import annotations

import math
from datetime import UTC, datetime, timedelta, timezone, tzinfo
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.model.errors import InvalidInput
from stoker.model.time import (
    DAY,
    HOUR,
    LATEST,
    LONGEST,
    MILLISECOND,
    MINUTE,
    SECOND,
    instant,
    moment,
    rfc3339,
    seconds,
    span,
)


class Nowhere(tzinfo):
    """A zone that does not know its offset."""

    def utcoffset(self, dt: datetime | None) -> timedelta | None:
        return None

    dst = utcoffset

    def tzname(self, dt: datetime | None) -> str | None:
        return None


@pytest.mark.spec("TIME-01")
@pytest.mark.parametrize(
    ("given_", "micros"),
    [
        (0, 0),
        (1, SECOND),
        (0.5, SECOND // 2),
        (1e-6, 1),
        (4e-7, 0),
        (-0.0, 0),
        (timedelta(minutes=1), MINUTE),
        (timedelta(microseconds=1), 1),
        (timedelta(days=3660), LONGEST),
        (3660 * 86_400, LONGEST),
    ],
)
def test_a_duration_is_read_as_microseconds(given_: Any, micros: int) -> None:
    assert span(given_) == micros


@pytest.mark.spec("TIME-01")
def test_units_are_multiples_of_each_other() -> None:
    assert (MILLISECOND * 1_000, SECOND * 60, MINUTE * 60, HOUR * 24) == (SECOND, MINUTE, HOUR, DAY)


@pytest.mark.spec("TIME-02", "INPUT-02")
@pytest.mark.parametrize(
    ("given_", "why"),
    [
        (-1, "negative"),
        (-1e-6, "negative"),
        (-1e305, "negative"),
        (-(10**400), "negative"),
        (timedelta(microseconds=-1), "negative"),
        (math.nan, "finite"),
        (math.inf, "finite"),
        (-math.inf, "finite"),
        (3660 * 86_400 + 1, "ten years"),
        (1e305, "ten years"),
        (10**400, "ten years"),
        (timedelta.max, "ten years"),
        ("5", "seconds or a timedelta"),
        (None, "seconds or a timedelta"),
        (True, "seconds or a timedelta"),
        (1j, "seconds or a timedelta"),
    ],
    ids=str,
)
def test_a_bad_duration_is_refused_by_name(given_: Any, why: str) -> None:
    with pytest.raises(InvalidInput, match=why) as refused:
        span(given_, "timeout")
    assert refused.value.field == "timeout"
    assert refused.value.value is given_
    assert "timeout" in str(refused.value)


@pytest.mark.spec("TIME-01")
@given(st.integers(0, LONGEST))
def test_a_span_survives_the_way_to_people_and_back(micros: int) -> None:
    assert span(seconds(micros)) == micros
    assert span(timedelta(microseconds=micros)) == micros


@pytest.mark.spec("TIME-01")
@given(st.floats(0, 3e8), st.floats(0, 3e8))
def test_longer_durations_are_longer_spans(one: float, two: float) -> None:
    assert (span(one) <= span(two)) or one > two


@pytest.mark.spec("TIME-03")
@given(
    st.datetimes(datetime(1970, 1, 1), datetime(2255, 1, 1)),
    st.integers(-23 * 60, 23 * 60),
)
def test_an_instant_is_the_same_moment_in_every_zone(at: datetime, minutes: int) -> None:
    utc = at.replace(tzinfo=UTC)
    elsewhere = utc.astimezone(timezone(timedelta(minutes=minutes)))
    assert instant(elsewhere) == instant(utc)
    assert moment(instant(utc)) == utc
    assert 0 <= instant(utc) <= LATEST


@pytest.mark.spec("TIME-03")
@given(st.integers(0, LATEST))
def test_an_instant_survives_the_way_to_a_datetime_and_back(at: int) -> None:
    assert instant(moment(at)) == at


@pytest.mark.spec("TIME-06")
@given(st.integers(-(1 << 63), 1 << 63))
def test_an_instant_beyond_the_calendar_is_its_nearest_end(at: int) -> None:
    """The time inside an id that a caller chose may be of any year up to 10889."""
    first, last = datetime.min.replace(tzinfo=UTC), datetime.max.replace(tzinfo=UTC)
    assert first <= moment(at) <= last
    assert moment(at) == (first if at < instant(first) else last if at > instant(last) else moment(at))


@pytest.mark.spec("TIME-04", "INPUT-02")
@pytest.mark.parametrize(
    ("given_", "why"),
    [
        (datetime(2030, 1, 1), "time zone"),
        (datetime(2030, 1, 1, tzinfo=Nowhere()), "time zone"),
        (1_800_000_000, "datetime"),
        ("2030-01-01", "datetime"),
        (None, "datetime"),
    ],
    ids=str,
)
def test_an_ambiguous_time_is_refused(given_: Any, why: str) -> None:
    with pytest.raises(InvalidInput, match=why) as refused:
        instant(given_, "at")
    assert refused.value.field == "at"


@pytest.mark.spec("TIME-05")
def test_people_read_whole_seconds_in_utc() -> None:
    assert rfc3339(1_800_000_000_999_999) == "2027-01-15T08:00:00Z"
    assert rfc3339(0) == "1970-01-01T00:00:00Z"


@pytest.mark.spec("TIME-05")
@given(st.integers(0, LATEST), st.integers(0, LATEST))
def test_shown_times_sort_like_instants(one: int, two: int) -> None:
    assert (rfc3339(one) <= rfc3339(two)) or one > two
