"""Time as integers of microseconds; an instant counts from 1970 UTC.

Integers are exact, compare alike on every engine and never drift. Users give seconds, `timedelta` or zoned
`datetime`; the conversions below are the only border. No function here reads a clock: instants come in as arguments.
"""

from __future__ import annotations

import math
from datetime import UTC, datetime, timedelta
from typing import TypeAlias

from stoker.model.errors import InvalidInput

Instant: TypeAlias = int
"""Microseconds since 1970-01-01 UTC, by the store's clock."""

Span: TypeAlias = int
"""A duration in microseconds."""

Seconds: TypeAlias = int | float | timedelta
"""A duration as users write it."""

MILLISECOND: Span = 1_000
SECOND: Span = 1_000_000
MINUTE: Span = 60 * SECOND
HOUR: Span = 60 * MINUTE
DAY: Span = 24 * HOUR

LONGEST: Span = 3_660 * DAY
"""No span is longer than about ten years: a client with a wild clock or unit cannot park a job for ever."""

LATEST: Instant = 1 << 53
"""The year 2255: the last instant that every engine, also one that counts in doubles, carries exactly."""

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_FIRST: Instant = (datetime.min.replace(tzinfo=UTC) - EPOCH) // timedelta(microseconds=1)
_LAST: Instant = (datetime.max.replace(tzinfo=UTC) - EPOCH) // timedelta(microseconds=1)


def span(value: Seconds, field: str = "duration", error: type[InvalidInput] = InvalidInput) -> Span:
    """Read a duration; refuses negatives, NaN, infinity and anything beyond `LONGEST`, with the class `error`."""
    if isinstance(value, timedelta):
        micros = value // timedelta(microseconds=1)
    elif isinstance(value, bool) or not isinstance(value, int | float):
        raise error(field, value, "must be seconds or a timedelta")
    elif isinstance(value, float) and not math.isfinite(value):
        raise error(field, value, "must be finite")
    else:
        # Pulled in first, so that no number is too large to be multiplied or rounded.
        micros = round(min(max(value, -1), LONGEST) * SECOND)
    if micros < 0:
        raise error(field, value, "must not be negative")
    if micros > LONGEST:
        raise error(field, value, "must be at most ten years")
    return micros


def instant(value: datetime, field: str = "at") -> Instant:
    """Read a moment; a datetime without a zone is refused because it is ambiguous."""
    if not isinstance(value, datetime):
        raise InvalidInput(field, value, "must be a datetime")
    if value.tzinfo is None or value.utcoffset() is None:
        raise InvalidInput(field, value, "must carry a time zone")
    return (value - EPOCH) // timedelta(microseconds=1)


def moment(at: Instant) -> datetime:
    """The same instant as a UTC datetime; beyond the calendar its nearest end."""
    return EPOCH + timedelta(microseconds=min(max(at, _FIRST), _LAST))


def rfc3339(at: Instant) -> str:
    """An instant as operators read it: whole seconds, `Z` suffix."""
    return moment(at).strftime("%Y-%m-%dT%H:%M:%SZ")


def seconds(value: Span) -> float:
    """A span as text for users."""
    return value / SECOND
