"""Numbers, spans and times as people read them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from stoker.model import humanize
from stoker.model.time import DAY, HOUR, MINUTE, SECOND, instant

NOW = instant(datetime(2026, 11, 16, 14, 28, 7, 250_000, tzinfo=UTC))


@pytest.mark.spec("WORDS-01")
@pytest.mark.parametrize(
    "value, text",
    [
        (-5, "0.00 s"),
        (310_000, "0.31 s"),
        (10 * SECOND, "10.0 s"),
        (252 * SECOND, "4 min 12 s"),
        (4 * MINUTE, "4 min"),
        (5 * HOUR + 16 * MINUTE, "5 h 16 min"),
        (DAY + HOUR, "1 day 1 h"),
        (14 * DAY, "14 days"),
        (timedelta(seconds=3.14), "3.1 s"),
        (None, "–"),
    ],
)
def test_a_span_has_two_units_at_most(value: int, text: str) -> None:
    assert humanize.span(value) == text


@pytest.mark.spec("WORDS-02")
def test_numbers_are_exact_where_there_is_room() -> None:
    assert humanize.number(12_480) == "12,480"
    assert humanize.number(None) == "–"
    assert [humanize.short(n) for n in (9_999, 18_911, 12_800_000, 1_000_000, 1_000_000_000)] == [
        "9,999",
        "18.9 k",
        "12.8 M",
        "1.0 M",
        "1.0 G",
    ]
    assert [humanize.count(n, "job") for n in (0, 1, 1_171)] == ["0 jobs", "1 job", "1,171 jobs"]
    assert humanize.count(2, "process", "processes") == "2 processes"
    assert [humanize.in_words(n) for n in (2, 9, 10)] == ["two", "nine", "10"]
    shares = [
        humanize.share(part, whole)
        for part, whole in ((1, 0), (1, 10_000), (31, 1_000), (97, 100), (0, 3), (2, 100), (1, 200), (1, 1), (1, 9))
    ]
    assert shares == ["–", "<0.1 %", "3.1 %", "97 %", "0 %", "2 %", "0.5 %", "100 %", "11 %"]
    assert [humanize.share(n, 1_000) for n in (1, 99, 100, 104)] == ["0.1 %", "9.9 %", "10 %", "10 %"]
    paces = [humanize.pace(n) for n in (None, 0, 0.01, 0.4, 9.9, 9.99, 1_412.4)]
    assert paces == ["–", "0", "<0.1", "0.4", "9.9", "10", "1,412"]
    assert [humanize.milliseconds(n) for n in (300, 11_000)] == ["0.3 ms", "11 ms"]
    assert [humanize.size(n) for n in (None, 1, 312, 2_048, 5 << 20, 2_254_857_830)] == [
        "–", "1 byte", "312 bytes", "2.0 kB", "5.0 MB", "2.1 GB",
    ]  # fmt: skip


@pytest.mark.spec("WORDS-03")
def test_moments_are_relative_in_lists_and_exact_elsewhere() -> None:
    assert humanize.absolute(NOW) == "2026-11-16 14:28:07.250"
    assert humanize.iso(NOW) == "2026-11-16T14:28:07.250Z"
    assert humanize.ago(NOW - SECOND, NOW) == "just now"
    assert humanize.ago(NOW - 4 * MINUTE, NOW) == "4 min ago"
    assert [humanize.ago(NOW - n, NOW) for n in (MINUTE, HOUR - 1, HOUR)] == ["1 min ago", "59 min ago", "13:28:07"]
    assert humanize.ago(NOW - 5 * HOUR, NOW) == "09:28:07"
    assert humanize.ago(NOW + MINUTE, NOW) == "in 1 min"
    assert humanize.ago(NOW - 4 * DAY, NOW) == "12 Nov 14:28"
    assert humanize.ago(NOW - 400 * DAY, NOW) == "12 Oct 2025"
    assert humanize.until(NOW - MINUTE, NOW) == "in 0.00 s"
    assert humanize.until(datetime(2026, 11, 16, 14, 31, 19, tzinfo=UTC), NOW) == "in 3 min 11 s"


@pytest.mark.spec("CLI-75")
def test_a_spark_shows_a_little_and_nothing_apart() -> None:
    assert humanize.spark([0, 1, 500, 1_000]) == "▁▂▅█"
    assert humanize.spark([0, 0]) == "▁▁"
    assert humanize.spark([]) == ""


@pytest.mark.parametrize(("micros", "text"), [(1, "0.001 ms"), (2_500, "2.5 ms"), (9_999, "10 ms"), (10_000, "0.01 s")])
def test_a_short_span_is_in_milliseconds(micros: int, text: str) -> None:
    assert humanize.span(micros) == text
