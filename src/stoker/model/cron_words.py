"""A schedule's expression in plain words. What cannot be said well is not said: the answer is then "custom"."""

from __future__ import annotations

import re

from stoker.model.humanize import span
from stoker.model.time import SECOND

CUSTOM = "custom"
DAYS = ("sun", "mon", "tue", "wed", "thu", "fri", "sat")
LONG_DAYS = ("Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday")
MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
LONG_MONTHS = (
    "January", "February", "March", "April", "May", "June", "July", "August", "September", "October", "November",
    "December",
)  # fmt: skip


def in_words(expression: str) -> str:
    """When an expression fires, in words."""
    if (interval := re.fullmatch(r"@every (\d+(?:\.\d+)?)s", expression)) is not None:
        return f"Every {_span(float(interval[1]))}"
    fields = expression.lower().split()
    if len(fields) != 5:
        return CUSTOM
    minute, hour, day, month, weekday = fields
    when, days = _time(minute, hour), _days(day, month, weekday)
    return CUSTOM if when is None or days is None else f"{when}{days}"


def _span(seconds: float) -> str:
    text = span(round(seconds * SECOND)).replace(".0 s", " s")
    long = {"s": "second", "min": "minute", "h": "hour"}
    if (alone := re.fullmatch(r"(\d+) (s|min|h)", text)) is not None:
        return long[alone[2]] if alone[1] == "1" else f"{alone[1]} {long[alone[2]]}s"
    return text


def _time(minute: str, hour: str) -> str | None:
    if minute == "*" and hour == "*":
        return "Every minute"
    if (step := _step(minute)) is not None and hour == "*":
        return f"Every {step} minutes"
    if not minute.isdigit():
        several = minute.split(",")
        if hour == "*" and len(several) <= 4 and all(one.isdigit() for one in several):
            return f"At minute {' and '.join((', '.join(several[:-1]), several[-1]))}"
        return None
    if hour == "*":
        return "Hourly" if minute == "0" else f"Hourly at minute {minute}"
    if (step := _step(hour)) is not None:
        return f"Every {step} hours" + ("" if minute == "0" else f" at minute {minute}")
    if (hours := re.fullmatch(r"(\d+)-(\d+)", hour)) is not None:
        return f"Hourly, {hours[1]}:{minute.zfill(2)} to {hours[2]}:{minute.zfill(2)}"
    times = hour.split(",")
    if len(times) <= 4 and all(one.isdigit() for one in times):
        spelled = [f"{one}:{minute.zfill(2)}" for one in times]
        return f"At {spelled[0]}" if len(spelled) == 1 else f"At {', '.join(spelled[:-1])} and {spelled[-1]}"
    return None


def _step(field: str) -> str | None:
    found = re.fullmatch(r"\*/(\d+)", field)
    return None if found is None or found[1] == "1" else found[1]


def _days(day: str, month: str, weekday: str) -> str | None:
    if day == "*" and month == "*":
        return _weekdays(weekday)
    if weekday != "*":
        return None
    in_month = "" if month == "*" else _month(month)
    if in_month is None:
        return None
    if day == "*":
        return f" in {in_month}"
    if day == "l":
        return f" on the last day of {in_month or 'the month'}"
    if not day.isdigit():
        return None
    if in_month:
        return f" on {day} {in_month}"
    return " on the first of the month" if day == "1" else f" on day {day} of the month"


def _month(field: str) -> str | None:
    if field in MONTHS:
        return LONG_MONTHS[MONTHS.index(field)]
    return LONG_MONTHS[int(field) - 1] if field.isdigit() and 1 <= int(field) <= 12 else None


def _weekdays(field: str) -> str | None:
    if field == "*":
        return ""
    if field in {"mon-fri", "1-5"}:
        return " on weekdays"
    if field in {"sat,sun", "sun,sat", "6,0", "0,6", "6,7", "6-7"}:
        return " at weekends"
    names = [_weekday(one) for one in field.split(",")]
    known = [name for name in names if name is not None]
    if len(known) < len(names):
        return None
    return f" on {known[0]}" if len(known) == 1 else f" on {', '.join(known[:-1])} and {known[-1]}"


def _weekday(field: str) -> str | None:
    if field in DAYS:
        return LONG_DAYS[DAYS.index(field)]
    return LONG_DAYS[int(field) % 7] if field.isdigit() and int(field) <= 7 else None
