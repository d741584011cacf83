"""The timeline in memory: events by time and points by key.

Events of a job go when the job goes; beyond `MOST_EVENTS` the oldest make room, because memory is all there is.
"""

from __future__ import annotations

import bisect
from collections.abc import Sequence
from operator import attrgetter

import msgspec

from stoker.model.events import MOST_REMEMBERED, REMEMBERED, Event, Point, Window
from stoker.model.ids import JobId
from stoker.model.time import Instant

MOST_EVENTS = 100_000


class Line(msgspec.Struct, gc=False, eq=False):
    """An event in the ledger; crossed out when its job is deleted."""

    at: Instant
    event: Event
    crossed: bool = False


_at = attrgetter("at")


class Ledger:
    """Events in the order they happened, and points."""

    __slots__ = ("_by_job", "_crossed", "_lines", "_points", "_remembered", "most")

    def __init__(self, most: int = MOST_EVENTS) -> None:
        self._lines: list[Line] = []
        self._by_job: dict[JobId, list[Line]] = {}
        self._points: dict[tuple[Instant, str, str], float] = {}
        self._remembered: dict[bytes, Instant] = {}
        self._crossed = 0
        self.most = most

    def write(
        self, events: Sequence[Event], points: Sequence[Point], now: Instant, recorded: Instant, chunk: bytes | None
    ) -> int:
        """Append events, shifted to the store's clock, and overwrite points; nothing if the chunk was written."""
        if chunk is not None:
            if chunk in self._remembered:
                return 0
            self.remember(chunk, now)
        written, shift = 0, now - recorded
        for event in events:
            if shift:
                event = msgspec.structs.replace(event, at=event.at + shift)
            if event.at <= self._remembered.get(event.job, -1):
                continue
            written += 1
            line = Line(event.at, event)
            if not self._lines or self._lines[-1].at <= line.at:
                self._lines.append(line)
            else:
                bisect.insort_right(self._lines, line, key=_at)
            self._by_job.setdefault(event.job, []).append(line)
        for point in points:
            self._points[point.bucket, point.queue, point.metric] = point.value
        if len(self._lines) - self._crossed > self.most:
            # A tenth more than needed goes at once, so that not every write has to shift the list.
            self._drop(len(self._lines) - self.most + self.most // 10)
        return written

    def remember(self, one: bytes, now: Instant) -> None:
        """A chunk was written, or a job was deleted: what comes of it later is not written."""
        self._remembered.pop(one, None)
        self._remembered[one] = now
        oldest = next(iter(self._remembered))
        while self._remembered[oldest] < now - REMEMBERED or len(self._remembered) > MOST_REMEMBERED:
            del self._remembered[oldest]
            oldest = next(iter(self._remembered))

    def cross_out(self, job: JobId) -> int:
        """Remove a job's events; answers how many there were."""
        lines = self._by_job.pop(job, None)
        if lines is None:
            return 0
        for line in lines:
            line.crossed = True
        self._crossed += len(lines)
        if self._crossed > 1_000 and self._crossed * 2 > len(self._lines):
            self._lines = [line for line in self._lines if not line.crossed]
            self._crossed = 0
        return len(lines)

    def read(self, window: Window) -> list[Event]:
        """Events of the half-open window, oldest first, up to its limit."""
        found: list[Event] = []
        start = bisect.bisect_left(self._lines, window.since, key=_at)
        end = bisect.bisect_left(self._lines, window.until, key=_at)
        for place in range(start, end):
            line = self._lines[place]
            if line.crossed or (window.job is not None and line.event.job != window.job):
                continue
            if window.queue is not None and line.event.queue != window.queue:
                continue
            if len(found) >= window.limit:
                break
            found.append(line.event)
        return found

    def points(self, since: Instant, until: Instant, metrics: Sequence[str], queue: str | None) -> list[Point]:
        """Points of the closed window, by bucket, queue and metric."""
        return [
            Point(name, metric, bucket, value)
            for (bucket, name, metric), value in sorted(self._points.items())
            if since <= bucket <= until and metric in metrics and (queue is None or name == queue)
        ]

    def expire(self, events_before: Instant, points_before: Instant) -> tuple[int, int]:
        """Remove what is older; answers how many events and points went."""
        events = self._drop(bisect.bisect_left(self._lines, events_before, key=_at))
        old = [key for key in self._points if key[0] < points_before]
        for key in old:
            del self._points[key]
        return events, len(old)

    def _drop(self, count: int) -> int:
        """Remove the first lines; answers how many of them were not crossed out yet."""
        gone = self._lines[:count]
        del self._lines[:count]
        for line in gone:
            if line.crossed:
                continue
            mine = self._by_job[line.event.job]
            mine.remove(line)
            if not mine:
                del self._by_job[line.event.job]
        living = sum(not line.crossed for line in gone)
        self._crossed -= len(gone) - living
        return living
