"""Events and metric points. A server crash may lose the newest of them."""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter

from stoker.engines.call_times import timed
from stoker.engines.postgres.statements import sql
from stoker.engines.postgres.store import Store
from stoker.engines.postgres.unit_of_work import Unit
from stoker.engines.sql import events
from stoker.engines.sql.exchanges import Exchange
from stoker.model.event_blocks import pack
from stoker.model.events import Event, Point
from stoker.model.time import Instant

_RECORD_CHUNK = sql("record_chunk")
_RECORD_EVENTS = sql("record_events")
_RECORD_POINTS = sql("record_points")
_MEASURED = ("sum", "p50", "p95", "p99", "max")


class Timeline(events.Timeline[Unit]):
    """Events and points."""

    _store: Store
    _sql = events.Statements(sql, ids=list, strings=list)

    @timed(write=True)
    async def record(
        self, events: Sequence[Event], points: Sequence[Point] = (), *, now: Instant, chunk: bytes | None = None
    ) -> int:
        self._store.inside()
        if not events and not points:
            return 0
        return await self._store.write(lambda unit: _record(unit, events, points, now, chunk), lane="admin", lax=True)


def _record(
    unit: Unit, events: Sequence[Event], points: Sequence[Point], recorded: Instant, chunk: bytes | None
) -> Exchange[int]:
    if chunk is not None and not (yield _RECORD_CHUNK, (chunk, unit.now)):
        return 0
    if blocks := pack(events, unit.now - recorded):
        rows = [(one.first, one.last, one.low, one.high, one.count, one.body) for one in blocks]
        yield _RECORD_EVENTS, tuple(list(column) for column in zip(*rows, strict=True))
    # A statement cannot write one row twice: the last of several values wins.
    if newest := {(one.bucket, one.queue, one.metric): one for one in points}:
        chosen = list(newest.values())
        columns = [list(column) for column in zip(*newest, strict=True)]
        measured = [[float(value) for value in map(attrgetter(name), chosen)] for name in _MEASURED]
        yield _RECORD_POINTS, (*columns, [one.count for one in chosen], *measured)
    return len(events)
