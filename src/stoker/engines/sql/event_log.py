"""Reads events from the blocks of an SQL store, a page of blocks at a time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

from stoker.engines.sql.exchanges import Exchange
from stoker.model.event_blocks import NOTHING_REMOVED, EventCounter, EventList, Removal, Removals, StoredBlock, jobs_of
from stoker.model.events import Event, EventCount, Latency, Window
from stoker.model.ids import JobId
from stoker.model.time import MINUTE, Instant

PAGE = 64
"""How many blocks one statement returns."""

LAST = (1 << 63) - 1


class Reader(Protocol):
    """What collects something from blocks; `hides`: without the events of removed jobs."""

    @property
    def hides(self) -> bool: ...
    def suffices(self, block: StoredBlock) -> bool: ...
    def add(self, block: StoredBlock, removals: Removals, /) -> None: ...


class EventLog(NamedTuple):
    """The statements of an engine.

    `oldest` and `latest` return a page of blocks. A flag says of each of the oldest whether a job with an id between
    those of its jobs was removed; `removals` returns what was removed of the jobs that `ids` turns into a value.
    `late` returns minutes before an instant into which something was written after the first write since that instant.
    """

    oldest: str
    latest: str
    removals: str
    late: str
    ids: Callable[[Sequence[JobId]], Any]

    def events(self, window: Window) -> Exchange[list[Event]]:
        """Return events of the half-open window, oldest first."""
        found = EventList(window)
        yield from self._collect(found, window)
        return found.events()

    def latencies(self, window: Window) -> Exchange[list[Latency]]:
        """Return the times of completed jobs of the half-open window, latest first."""
        found = EventList(window, latest=True)
        yield from self._collect(found, window, latest=True)
        return found.latencies()

    def counts(self, since: Instant, until: Instant) -> Exchange[list[EventCount]]:
        """Return how many events of each type each queue has in the half-open window."""
        found = EventCounter(since, until)
        yield from self._collect(found, Window(since, until))
        return found.counts()

    def late_minutes(self, since: Instant) -> Exchange[list[Instant]]:
        """Return the minutes before into which events were written late, oldest first."""
        rows = yield self.late, (since,)
        return [minute * MINUTE for (minute,) in rows]

    def _collect(self, found: Reader, window: Window, *, latest: bool = False) -> Exchange[None]:
        """Let a reader have the blocks that may hold events of a window, until it has enough."""
        # No block reaches beyond its minute.
        start = window.since // MINUTE * MINUTE
        place, end = ((window.until, -1), start) if latest else ((start, -1), window.until)
        while window.since < window.until and window.limit > 0:
            rows = yield self.latest if latest else self.oldest, (*place, end, window.since, PAGE, window.job)
            for number, first, last, body, touched in rows:
                block = StoredBlock(number, first, last, body)
                if found.suffices(block):
                    return
                found.add(block, (yield from self._removals(block)) if touched and found.hides else NOTHING_REMOVED)
                place = first, number
            if len(rows) < PAGE:
                return

    def _removals(self, block: StoredBlock) -> Exchange[Removals]:
        rows = yield self.removals, (self.ids(jobs_of(block)),)
        return {job: Removal(number, at) for job, number, at in rows}
