"""The timeline: events by time, and measured points.

The events of a removed job are hidden, but still count. Beyond `MOST_EVENTS` the oldest events are dropped, to bound
memory.
"""

from __future__ import annotations

import bisect
from collections.abc import Sequence
from operator import attrgetter

import msgspec

from stoker.engines.memory.access import Facet
from stoker.model.events import (
    MOST_REMEMBERED,
    REMEMBERED,
    Event,
    EventCount,
    EventTally,
    EventType,
    Latency,
    Point,
    Window,
)
from stoker.model.ids import JobId
from stoker.model.stats import BY_KIND, merge
from stoker.model.time import MINUTE, Instant, Span

MOST_EVENTS = 100_000


class Timeline(Facet):
    """Events and points."""

    async def record(
        self, events: Sequence[Event], points: Sequence[Point] = (), *, now: Instant, chunk: bytes | None = None
    ) -> int:
        with self._write as store:
            return store.event_log.write(events, points, store.now(), now, chunk)

    async def events(self, window: Window) -> list[Event]:
        with self._read as store:
            return store.event_log.read(window)

    async def event_counts(self, since: Instant, until: Instant) -> list[EventCount]:
        with self._read as store:
            return store.event_log.counts(since, until)

    async def late_minutes(self, since: Instant) -> list[Instant]:
        with self._read as store:
            return store.event_log.late_minutes(since)

    async def latencies(self, window: Window) -> list[Latency]:
        with self._read as store:
            return store.event_log.latencies(window)

    async def points(
        self,
        since: Instant,
        until: Instant,
        metrics: Sequence[str],
        queues: frozenset[str] = frozenset(),
        *,
        width: Span | None = None,
    ) -> list[Point]:
        with self._read as store:
            found = store.event_log.points(since, until, metrics, queues)
        return found if width is None else merge(found, since, width)


class LoggedEvent(msgspec.Struct, gc=False, eq=False):
    """A stored event. `hidden`: its job was removed. `write` is the number of the call that wrote it."""

    at: Instant
    event: Event
    hidden: bool
    write: int


_at = attrgetter("at")


class EventLog:
    """Events in the order they happened, and points."""

    __slots__ = ("_by_job", "_events", "_points", "_remembered", "_writes", "most")

    def __init__(self, most: int = MOST_EVENTS) -> None:
        self._events: list[LoggedEvent] = []
        self._by_job: dict[JobId, list[LoggedEvent]] = {}
        self._points: dict[tuple[Instant, str, str], Point] = {}
        self._remembered: dict[bytes, Instant] = {}
        self._writes = 0
        self.most = most

    def write(
        self, events: Sequence[Event], points: Sequence[Point], now: Instant, recorded: Instant, chunk: bytes | None
    ) -> int:
        """Append events, shifted to the store's clock, and overwrite points; nothing if the chunk was written."""
        if chunk is not None:
            if chunk in self._remembered:
                return 0
            self.remember(chunk, now)
        self._writes += 1
        shift = now - recorded
        for event in events:
            if shift:
                event = msgspec.structs.replace(event, at=event.at + shift)
            hidden = event.at <= self._remembered.get(event.job, -1)
            entry = LoggedEvent(event.at, event, hidden, self._writes)
            if not self._events or self._events[-1].at <= entry.at:
                self._events.append(entry)
            else:
                bisect.insort_right(self._events, entry, key=_at)
            if not entry.hidden:
                self._by_job.setdefault(event.job, []).append(entry)
        for point in points:
            self._points[point.bucket, point.queue, point.metric] = point
        if len(self._events) > self.most:
            # Drop a tenth more than needed at once, so that not every write has to shift the list.
            self._drop(len(self._events) - self.most + self.most // 10)
        return len(events)

    def remember(self, one: bytes, now: Instant) -> None:
        """Note that a chunk was written or a job deleted: late events of it are hidden."""
        self._remembered.pop(one, None)
        self._remembered[one] = now
        oldest = next(iter(self._remembered))
        while self._remembered[oldest] < now - REMEMBERED or len(self._remembered) > MOST_REMEMBERED:
            del self._remembered[oldest]
            oldest = next(iter(self._remembered))

    def hide(self, job: JobId) -> None:
        """Hide the events of a job that goes."""
        for entry in self._by_job.pop(job, ()):
            entry.hidden = True

    def _bounds(self, since: Instant, until: Instant) -> tuple[int, int]:
        start = bisect.bisect_left(self._events, since, key=_at)
        return start, bisect.bisect_left(self._events, until, key=_at)

    def read(self, window: Window) -> list[Event]:
        """Events of the half-open window, oldest first, up to its limit."""
        found: list[Event] = []
        for position in range(*self._bounds(window.since, window.until)):
            entry = self._events[position]
            if entry.hidden or (window.job is not None and entry.event.job != window.job):
                continue
            if window.queue is not None and entry.event.queue != window.queue:
                continue
            if len(found) >= window.limit:
                break
            found.append(entry.event)
        return found

    def counts(self, since: Instant, until: Instant) -> list[EventCount]:
        """How many events of each type each queue has in the half-open window, by kind and error."""
        found = EventTally()
        for position in range(*self._bounds(since, until)):
            found.add_event(self._events[position].event)
        return found.counts()

    def late_minutes(self, since: Instant) -> list[Instant]:
        """The minutes before into which events were written late, oldest first."""
        start = bisect.bisect_left(self._events, since, key=_at)
        first = min((entry.write for entry in self._events[start:]), default=self._writes + 1)
        return sorted({entry.at // MINUTE * MINUTE for entry in self._events[:start] if entry.write >= first})

    def latencies(self, window: Window) -> list[Latency]:
        """The times of completed jobs of the half-open window, latest first, up to its limit."""
        found: list[Latency] = []
        for position in reversed(range(*self._bounds(window.since, window.until))):
            event = self._events[position].event
            if len(found) >= window.limit:
                break
            if event.type is not EventType.COMPLETED or event.duration is None or event.total is None:
                continue
            if window.queue in (None, event.queue) and window.job in (None, event.job):
                taken = event.duration, event.total
                found.append(Latency(event.queue, event.at, *taken, event.kind, event.wait))
        return found

    def points(self, since: Instant, until: Instant, metrics: Sequence[str], queues: frozenset[str]) -> list[Point]:
        """Points of the closed window, by bucket, queue and metric."""
        return [
            point
            for (bucket, name, metric), point in sorted(self._points.items())
            if since <= bucket <= until and metric in metrics and (not queues or name in queues)
        ]

    def expire_events(self, before: Instant) -> int:
        """Remove older events; return how many."""
        return self._drop(bisect.bisect_left(self._events, before, key=_at))

    def expire_points(self, before: Instant) -> int:
        """Remove older points; return how many."""
        old = [key for key in self._points if key[0] < before]
        for key in old:
            del self._points[key]
        return len(old)

    def expire_kind_points(self, since: Instant, until: Instant) -> int:
        """Remove the points of kinds of a time; return how many."""
        old = [key for key in self._points if since <= key[0] < until and key[2] in BY_KIND]
        for key in old:
            del self._points[key]
        return len(old)

    def _drop(self, count: int) -> int:
        """Remove the first `count` events; return how many there were."""
        gone = self._events[:count]
        del self._events[:count]
        for entry in gone:
            if entry.hidden:
                continue
            mine = self._by_job[entry.event.job]
            mine.remove(entry)
            if not mine:
                del self._by_job[entry.event.job]
        return len(gone)
