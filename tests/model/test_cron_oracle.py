"""Cron against a walk over every single minute, which knows nothing of `model.cron` nor of the library it uses.

The oracle reads the fields itself and looks at the wall clock of each UTC minute. It covers two days before and behind
every shift of a zone's clocks; a campaign does so for every zone and year up to 2037.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from functools import cache
from typing import NamedTuple
from zoneinfo import ZoneInfo, available_timezones

import pytest

from stoker.model.cron import following, parse
from stoker.model.errors import InvalidSchedule
from stoker.model.time import SECOND, Instant

ZONES = (
    "Europe/Paris",
    "America/New_York",
    "America/Santiago",  # at midnight
    "Africa/Casablanca",  # twice a year more, around Ramadan
    "Australia/Lord_Howe",  # by half an hour
    "Pacific/Chatham",  # off the hour
    "Antarctica/Troll",  # by two hours
    "Asia/Gaza",  # by another rule each year
)
YEARS = range(2026, 2027)
ALL_YEARS = range(2024, 2038)
AROUND = 2 * 1_440
EXPRESSIONS = (
    "0 * * * *",
    "*/30 * * * *",
    "45 * * * *",
    "*/20 2 * * *",
    "5 */4 * * *",
    "15,45 1-3 * * *",
    "30 2 * * *",
    "0 0 * * *",
    "59 23 * * *",
    "0 3 * * sun",
    "20 1 1-7 * *",
    "10-50/20 0,1,2 * 3,4,9-11 *",
)
MONTHS = ["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"]
NAMES = {name: n for n, name in enumerate(("sun", "mon", "tue", "wed", "thu", "fri", "sat"))}
EPOCH = datetime(1970, 1, 1)
MINUTE = timedelta(minutes=1)


class Fields(NamedTuple):
    """What each field allows, and whether the expression follows the clock or names fixed times."""

    minutes: frozenset[int]
    hours: frozenset[int]
    days: frozenset[int]
    months: frozenset[int]
    weekdays: frozenset[int]
    running: bool

    def match(self, wall: datetime) -> bool:
        return (
            wall.minute in self.minutes
            and wall.hour in self.hours
            and wall.day in self.days
            and wall.month in self.months
            and wall.isoweekday() % 7 in self.weekdays
        )


@cache
def read(expression: str) -> Fields:
    texts = expression.split()
    bounds = ((0, 59), (0, 23), (1, 31), (1, 12), (0, 6))
    minutes, hours, days, months, weekdays = (numbers(text, *bound) for text, bound in zip(texts, bounds, strict=True))
    return Fields(minutes, hours, days, months, weekdays, running=texts[0][0] == "*" or texts[1][0] == "*")


def numbers(text: str, low: int, high: int) -> frozenset[int]:
    found: set[int] = set()
    for part in text.split(","):
        body, _, step = part.partition("/")
        first, dash, last = (str(low), "-", str(high)) if body == "*" else body.partition("-")
        start = NAMES.get(first) if first in NAMES else int(first)
        assert start is not None
        end = int(last) if dash else start
        found.update(range(start, end + 1, int(step or 1)))
    return frozenset(found)


def walls(zone: str, start: int, end: int) -> list[datetime]:
    """What the clocks of a zone show at each UTC minute."""
    place = ZoneInfo(zone)
    found = (datetime.fromtimestamp(minute * 60, place) for minute in range(start, end))
    return [shown.replace(tzinfo=None, fold=0) for shown in found]


def oracle(expression: str, shown: list[datetime], start: int) -> list[Instant]:
    """The minutes at which it fires, given what the clocks show at each."""
    fields, high, found = read(expression), shown[0] - MINUTE, []
    for minute, wall in enumerate(shown, start):
        if fields.running:
            hit = fields.match(wall)
        else:
            # Each wall time counts when the clocks first show it, or jump over it.
            new = wall - high
            hit = any(fields.match(high + MINUTE * n) for n in range(1, new // MINUTE + 1))
        high = max(high, wall)
        if hit:
            found.append(minute * 60 * SECOND)
    return found


def walk(expression: str, zone: str, start: Instant, end: Instant) -> list[Instant]:
    timetable, found = parse(expression, zone), []
    now = following(timetable, start - 1)
    while now is not None and now < end:
        found.append(now)
        now = following(timetable, now)
    return found


def shifts(zone: str, years: range) -> list[int]:
    """The minutes at which the offset of a zone changes."""
    place = ZoneInfo(zone)

    def offset(minute: int) -> timedelta | None:
        return datetime.fromtimestamp(minute * 60, place).utcoffset()

    first, last = (int(datetime(year, 1, 1, tzinfo=UTC).timestamp()) // 60 for year in (years.start, years.stop))
    found = []
    for day in range(first, last, 720):
        low, high = day, day + 720
        if offset(low) == offset(high):
            continue
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if offset(middle) == offset(low) else (low, middle)
        found.append(high)
    return found


def compare(zone: str, around: int) -> None:
    start, end = around - AROUND, around + AROUND
    shown = walls(zone, start, end)
    for expression in EXPRESSIONS:
        expected = oracle(expression, shown, start)
        found = walk(expression, zone, start * 60 * SECOND, end * 60 * SECOND)
        assert found == expected, (expression, zone, datetime.fromtimestamp(around * 60, UTC))


@pytest.mark.spec("CRON-07", "CRON-08", "CRON-09")
@pytest.mark.parametrize("zone", ZONES)
def test_every_shift_agrees_with_a_walk_over_every_minute(zone: str) -> None:
    found = shifts(zone, YEARS)
    assert len(found) >= 2 * len(YEARS) - 1
    for shift in found:
        compare(zone, shift)


def distinct() -> Iterator[tuple[str, list[int]]]:
    """Every zone whose clocks shift at other times, or by another offset, than those of an earlier one."""
    seen = set()
    for zone in sorted(available_timezones()):
        found = shifts(zone, ALL_YEARS)
        sample = (ALL_YEARS.start, *(datetime.fromtimestamp(at * 60, UTC).year for at in found))
        place = ZoneInfo(zone)
        offsets = tuple(datetime.fromtimestamp(at * 60, place).utcoffset() for at in found)
        first = datetime(sample[0], 1, 1, tzinfo=place).utcoffset()
        key = (first, tuple(found), offsets)
        if found and key not in seen:
            seen.add(key)
            yield zone, found


@pytest.mark.timeout(3_600)
@pytest.mark.spec("CRON-09")
def test_every_zone_agrees_until_2037(campaign: bool) -> None:
    if not campaign:
        pytest.skip("every zone and year: with --campaign")
    compared = 0
    for zone, found in distinct():
        for shift in found:
            compare(zone, shift)
            compared += 1
    assert compared > 800


@pytest.mark.spec("CRON-01", "CRON-06")
@pytest.mark.parametrize("zone", ["UTC", "Pacific/Chatham", "America/New_York"])
@pytest.mark.parametrize("expression", ["0 0 29 2 *", "30 12 29 2 *", "0 0 1 3 *", "15 6 28-31 2 *"])
def test_leap_days_agree_with_a_walk_over_every_day(zone: str, expression: str) -> None:
    """From 1896 to 2104 only 1900 and 2100 are no leap years where four would make one."""
    fields, place = read(expression), ZoneInfo(zone)
    for year in (2024, 2025, 2028, 2096, 2097, 2100, 2104):
        start = datetime(year, 2, 20, tzinfo=place)
        expected = []
        for day in range(20):
            date = (start.replace(tzinfo=None) + timedelta(days=day)).date()
            for hour in fields.hours:
                for minute in fields.minutes:
                    wall = datetime(date.year, date.month, date.day, hour, minute)
                    if fields.match(wall):
                        expected.append(int(wall.replace(tzinfo=place).timestamp()) * SECOND)
        first = int(start.timestamp()) * SECOND
        assert walk(expression, zone, first, first + 20 * 86_400 * SECOND) == expected


@pytest.mark.spec("CRON-01")
@pytest.mark.parametrize(
    ("expression", "same"),
    [
        ("54-54/3 * * * *", "54 * * * *"),
        ("0 5-5/2,9 * * *", "0 5,9 * * *"),
        ("0 0 * * mon-mon/2", "0 0 * * mon"),
        ("05-5/2 * * * *", "05 * * * *"),
        ("0 0 * * Mon-1/2", "0 0 * * Mon"),
        ("0 0 1 3-mar/2 *", "0 0 1 3 *"),
        ("0-00/7 * * * *", "0 * * * *"),
        ("7-7/5 1-2/1 * * *", "7 1-2/1 * * *"),
        *((f"0 0 1 {name}-{n}/2 *", f"0 0 1 {name} *") for n, name in enumerate(MONTHS, 1)),
        *((f"0 0 * * {name}-{n}/2", f"0 0 * * {name}") for name, n in NAMES.items()),
    ],
)
def test_a_range_of_one_value_is_that_value_whatever_its_step(expression: str, same: str) -> None:
    assert parse(expression) == parse(same)
    with pytest.raises(InvalidSchedule):
        parse("54-54/0 * * * *")
