"""Numbers, spans and times as people read them, in sentences, tables and on pages.

A span has two units at most and is never negative. Times are UTC; lists say how long ago, pages about one thing say
when, to the millisecond.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from math import ceil

from stoker.model.time import DAY, HOUR, MINUTE, SECOND, Instant, Span, instant, moment

UNKNOWN = "–"
BARS = "▁▂▃▄▅▆▇█"
SMALL = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")


def micros(value: timedelta | Span) -> Span:
    """A span in microseconds, whatever it came as."""
    return value // timedelta(microseconds=1) if isinstance(value, timedelta) else value


def at(value: datetime | Instant) -> Instant:
    """An instant in microseconds, whatever it came as."""
    return instant(value) if isinstance(value, datetime) else value


def number(value: float | None) -> str:
    """A whole number with separators; what is not known is a dash."""
    return UNKNOWN if value is None else f"{value:,.0f}"


def short(value: int) -> str:
    """A number for a narrow place: `18.9 k`, `12.8 M`."""
    for size, unit in ((1_000_000_000, "G"), (1_000_000, "M"), (1_000, "k")):
        if value >= size and value > 9_999:
            return f"{value / size:.1f} {unit}"
    return f"{value:,}"


def count(n: int, noun: str, plural: str | None = None) -> str:
    """`1 job`, `3 jobs`."""
    return f"{n:,} {noun if n == 1 else plural or noun + 's'}"


def in_words(n: int) -> str:
    """A small number as a word, a larger one in digits."""
    return SMALL[n] if n < len(SMALL) else f"{n:,}"


def share(part: float, whole: float) -> str:
    """Per cent of a whole; a little is never nothing."""
    if not whole:
        return UNKNOWN
    found = 100 * part / whole
    if 0 < found < 0.1:
        return "<0.1 %"
    return f"{found:.1f} %" if 0 < found < 10 and found % 1 else f"{found:.0f} %"


def pace(per_second: float | None) -> str:
    """How many in a second; a little is never nothing."""
    if per_second is None:
        return UNKNOWN
    if 0 < per_second < 0.05:
        return "<0.1"
    return f"{per_second:.1f}" if 0 < per_second < 9.95 else f"{per_second:,.0f}"


def span(value: timedelta | Span | None) -> str:
    """A length of time in at most two units."""
    if value is None:
        return UNKNOWN
    length = max(micros(value), 0)
    if 0 < length < SECOND // 100:
        return f"{length / 1_000:.2g} ms"
    if length < SECOND:
        return f"{length / SECOND:.2f} s"
    if length < MINUTE:
        return f"{length / SECOND:.1f} s"
    units = ((DAY, HOUR, "day", "h"), (HOUR, MINUTE, "h", "min"), (MINUTE, SECOND, "min", "s"))
    large, small, name, rest_name = next(unit for unit in units if length >= unit[0])
    many, rest = divmod(length, large)
    first = count(many, name) if name == "day" else f"{many} {name}"
    return f"{first} {rest // small} {rest_name}" if rest // small else first


def spark(values: Sequence[float]) -> str:
    """The course of a figure as bars of text; nothing is the lowest bar, and a little is never nothing."""
    top = max(values, default=0)
    return "".join(BARS[ceil(value / top * (len(BARS) - 1)) if value > 0 else 0] for value in values)


def milliseconds(value: Span) -> str:
    """A store call's time."""
    return f"{value / 1_000:.1f} ms" if value < 10_000 else f"{value / 1_000:,.0f} ms"


def size(value: int | None) -> str:
    """Bytes in the largest unit that fits."""
    if value is None:
        return UNKNOWN
    for unit, name in ((1 << 30, "GB"), (1 << 20, "MB"), (1 << 10, "kB")):
        if value >= unit:
            return f"{value / unit:.1f} {name}"
    return count(value, "byte")


def absolute(value: datetime | Instant) -> str:
    """A moment to the millisecond."""
    found = moment(at(value))
    return f"{found:%Y-%m-%d %H:%M:%S}.{found.microsecond // 1_000:03}"


def clock(value: datetime | Instant, now: Instant) -> str:
    """A moment as a clock shows it: today by its time, this year by its day, else with the year."""
    found, today = moment(at(value)), moment(now)
    if found.date() == today.date():
        return f"{found:%H:%M:%S}"
    if found.year == today.year:
        return f"{found.day} {found:%b %H:%M}"
    return f"{found.day} {found:%b %Y}"


def ago(value: datetime | Instant, now: Instant) -> str:
    """How long ago, in a list."""
    apart = now - at(value)
    if apart < 0:
        return until(value, now)
    if apart < MINUTE:
        return "just now"
    if apart < HOUR:
        return f"{apart // MINUTE} min ago"
    return clock(value, now)


def until(value: datetime | Instant, now: Instant) -> str:
    """How long from now: one unit below an hour, as precise as one can wait."""
    apart = max(at(value) - now, 0)
    return f"in {span(apart // SECOND * SECOND if apart >= SECOND else apart)}"


def iso(value: datetime | Instant) -> str:
    """A moment for machines."""
    return moment(at(value)).astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
