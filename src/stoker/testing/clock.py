"""A clock that only the test moves, for tests of anything that has to do with time.

An engine opened with `clock=` asks it instead of the store's own clock, so a test can cross an hour's retry or a
month's retention without sleeping. The rule it keeps: time does not pass unless the test moves it, forwards by
`advance`, backwards only by `rewind` or `set`, because clocks do that too.
"""

from __future__ import annotations

from datetime import UTC, datetime
from threading import Lock
from typing import Final

from stoker.model.errors import InvalidArgument
from stoker.model.time import Instant, Seconds, instant, moment, rfc3339, span

START: Final = datetime(2030, 1, 1, tzinfo=UTC)
"""Where a virtual clock starts when a test does not care: far from today, so that a real clock shows."""


class VirtualClock:
    """Callable like any clock an engine takes: `clock()` is the instant in microseconds. Safe to share by threads."""

    __slots__ = ("_lock", "_now")

    def __init__(self, start: datetime | Instant = START) -> None:
        self._lock = Lock()
        self._now = _read(start)

    def __call__(self) -> Instant:
        return self._now

    def __repr__(self) -> str:
        return f"<VirtualClock {rfc3339(self._now)}>"

    def now(self) -> Instant:
        """The instant the clock shows."""
        return self._now

    def moment(self) -> datetime:
        """The same as an aware datetime, to compare with the instants of a `Job`."""
        return moment(self._now)

    def advance(self, by: Seconds) -> Instant:
        """Let time pass; returns the new instant."""
        return self._move(span(by, "advance", InvalidArgument))

    def rewind(self, by: Seconds) -> Instant:
        """Put the clock back, as a bad time server or an operator does; returns the new instant."""
        return self._move(-span(by, "rewind", InvalidArgument))

    def set(self, at: datetime | Instant) -> Instant:
        """Show this instant, be it before or after the present one."""
        shown = _read(at)
        with self._lock:
            self._now = shown
        return shown

    def _move(self, distance: int) -> Instant:
        with self._lock:
            self._now = moved = _read(self._now + distance)
        return moved


def _read(at: datetime | Instant) -> Instant:
    if isinstance(at, datetime):
        at = instant(at, "clock")
    if isinstance(at, bool) or not isinstance(at, int):
        raise InvalidArgument("clock", at, "must be a datetime with a zone or an instant in microseconds")
    if at < 0:
        raise InvalidArgument("clock", at, "must not be before 1970")
    return at
