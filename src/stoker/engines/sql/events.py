"""Events and points, read back: the part that SQL engines share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

from stoker.engines.call_times import timed
from stoker.engines.sql.event_log import EventLog
from stoker.engines.sql.exchanges import Exchange, Row
from stoker.engines.sql.facet import Sql, SqlFacet, U
from stoker.model.events import Event, EventCount, Latency, Point, Window
from stoker.model.ids import JobId
from stoker.model.time import Instant, Span


class Statements:
    """The statements of an engine, and how it passes lists of ids and of strings to them."""

    def __init__(
        self, sql: Sql, *, ids: Callable[[Sequence[JobId]], Any], strings: Callable[[Sequence[str]], Any]
    ) -> None:
        self.log = EventLog(sql("events"), sql("events_latest"), sql("events_removed"), sql("events_late"), ids)
        self.points = sql("points")
        self.merged = sql("points_merged")
        self.summed = sql("points_summed")
        """All points of a window in one bucket: grouped by less, in two thirds of the time."""
        self.of_queues = sql("points_of_queues")
        self.of_queues_merged = sql("points_of_queues_merged")
        self.strings = strings


class Timeline(SqlFacet[U]):
    """Events and points; an engine records them."""

    _sql: ClassVar[Statements]

    @timed(write=False)
    async def events(self, window: Window) -> list[Event]:
        return await self._store.read(lambda _: self._sql.log.events(window))

    @timed(write=False)
    async def event_counts(self, since: Instant, until: Instant) -> list[EventCount]:
        return await self._store.read(lambda _: self._sql.log.counts(since, until))

    @timed(write=False)
    async def late_minutes(self, since: Instant) -> list[Instant]:
        return await self._store.read(lambda _: self._sql.log.late_minutes(since))

    @timed(write=False)
    async def latencies(self, window: Window) -> list[Latency]:
        return await self._store.read(lambda _: self._sql.log.latencies(window))

    @timed(write=False)
    async def points(
        self,
        since: Instant,
        until: Instant,
        metrics: Sequence[str],
        queues: frozenset[str] = frozenset(),
        *,
        width: Span | None = None,
    ) -> list[Point]:
        sql = self._sql
        values: Row = (since, until, sql.strings(list(metrics)))
        chosen: tuple[str, Row]
        if queues:
            values = (*values, sql.strings(sorted(queues)))
            chosen = (sql.of_queues, values) if width is None else (sql.of_queues_merged, (*values, width))
        elif width is None:
            chosen = sql.points, values
        elif until - since < width:
            chosen = sql.summed, values
        else:
            chosen = sql.merged, (*values, width)

        def work(_: Instant) -> Exchange[list[Point]]:
            return [Point(*row) for row in (yield chosen)]

        return await self._store.read(work) if metrics else []
