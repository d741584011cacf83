"""Expressions in plain words."""

from __future__ import annotations

import calendar

import pytest

from stoker.model.cron_words import in_words


@pytest.mark.spec("CRONWORDS-01")
@pytest.mark.parametrize(
    "expression, words",
    [
        ("* * * * *", "Every minute"),
        ("*/2 * * * *", "Every 2 minutes"),
        ("*/1 * * * *", "custom"),
        ("0 * * * *", "Hourly"),
        ("15 * * * *", "Hourly at minute 15"),
        ("15,45 * * * *", "At minute 15 and 45"),
        ("5,15,25,45 * * * *", "At minute 5, 15, 25 and 45"),
        ("1,2,3,4,5 * * * *", "custom"),
        ("1-5 * * * *", "custom"),
        ("0 */6 * * *", "Every 6 hours"),
        ("5 */6 * * *", "Every 6 hours at minute 5"),
        ("0 6-18 * * mon-fri", "Hourly, 6:00 to 18:00 on weekdays"),
        ("0 9 * * mon-fri", "At 9:00 on weekdays"),
        ("30 9,17 * * *", "At 9:30 and 17:30"),
        ("0 9-17/2 * * *", "custom"),
        ("0 9,12-14 * * *", "custom"),
        ("0 1,2,3,4 * * *", "At 1:00, 2:00, 3:00 and 4:00"),
        ("0 1,2,3,4,5 * * *", "custom"),
        ("15,x * * * *", "custom"),
        ("0 3 1 * *", "At 3:00 on the first of the month"),
        ("0 3 15 * *", "At 3:00 on day 15 of the month"),
        ("0 3 L * *", "At 3:00 on the last day of the month"),
        ("0 3 24 12 *", "At 3:00 on 24 December"),
        ("0 3 * jun *", "At 3:00 in June"),
        ("0 3 L feb *", "At 3:00 on the last day of February"),
        ("0 3 * 13 *", "custom"),
        ("0 3 1-7 * *", "custom"),
        ("0 3 1 * mon", "custom"),
        ("0 3 * * sat,sun", "At 3:00 at weekends"),
        *((f"0 3 * * {days}", "At 3:00 at weekends") for days in ("sun,sat", "6,0", "0,6", "6,7", "6-7")),
        ("0 3 * * mon,3", "At 3:00 on Monday and Wednesday"),
        ("0 3 * * 7", "At 3:00 on Sunday"),
        ("0 3 * * mon#1", "custom"),
        ("@every 21600s", "Every 6 hours"),
        ("@every 90s", "Every 1 min 30 s"),
        ("@every 1s", "Every second"),
        ("@every 45s", "Every 45 seconds"),
        ("@every 60s", "Every minute"),
        ("@every 120s", "Every 2 minutes"),
        ("@every 3600s", "Every hour"),
        ("@every 0.5s", "Every 0.50 s"),
        ("@daily", "custom"),
    ],
)
def test_words(expression: str, words: str) -> None:
    assert in_words(expression) == words


@pytest.mark.spec("CRONWORDS-01")
def test_every_month_and_every_day_of_the_week_has_its_name() -> None:
    for n, name in enumerate(calendar.month_name[1:], 1):
        assert in_words(f"0 3 * {n} *") == in_words(f"0 3 * {name[:3].lower()} *") == f"At 3:00 in {name}"
    for n, name in enumerate(calendar.day_name, 1):
        assert in_words(f"0 3 * * {n}") == in_words(f"0 3 * * {name[:3].lower()}") == f"At 3:00 on {name}"
