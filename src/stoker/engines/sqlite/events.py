"""Events and points of `sql.events`: how this engine records them."""

from __future__ import annotations

import json
from collections.abc import Sequence

from stoker.engines.call_times import timed
from stoker.engines.sql import events
from stoker.engines.sql.exchanges import Exchange, Many
from stoker.engines.sqlite.statements import sql
from stoker.engines.sqlite.unit_of_work import Unit
from stoker.model.event_blocks import pack
from stoker.model.events import Event, Point
from stoker.model.time import Instant

_CHUNK = sql("record_chunk")
_EVENTS = sql("record_events")
_POINT = sql("record_point")


class Timeline(events.Timeline[Unit]):
    """Events and points."""

    _sql = events.Statements(sql, ids=b"".join, strings=json.dumps)

    @timed(write=True)
    async def record(
        self, events: Sequence[Event], points: Sequence[Point] = (), *, now: Instant, chunk: bytes | None = None
    ) -> int:
        return await self._store.refresh(lambda unit: _record(unit, events, points, now, chunk))


def _record(
    unit: Unit, events: Sequence[Event], points: Sequence[Point], recorded: Instant, chunk: bytes | None
) -> Exchange[int]:
    """Append events, shifted to the store's clock, and overwrite points.

    Skip a chunk that was written before.
    """
    if chunk is not None and not (yield _CHUNK, (chunk, unit.now)):
        return 0
    for one in pack(events, unit.now - recorded):
        yield _EVENTS, (one.first, one.last, one.low, one.high, one.count, one.body)
    if points:
        yield Many(
            _POINT,
            [
                (one.bucket, one.queue, one.metric, one.count, one.sum, one.p50, one.p95, one.p99, one.max)
                for one in points
            ],
        )
    return len(events)
