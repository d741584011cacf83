"""What users see of streams and change about consumers, and the vacuum."""

from __future__ import annotations

from stoker.engines.call_times import timed
from stoker.engines.sql import consumers
from stoker.engines.sql.exchanges import Exchange
from stoker.engines.sql.stream_rows import PARTITION
from stoker.engines.sqlite.outbox import landings
from stoker.engines.sqlite.statements import sql
from stoker.engines.sqlite.stream_rows import NUMBERS, read_cursor, write_cursor
from stoker.engines.sqlite.unit_of_work import Unit
from stoker.model.outbox.consumers import Seek, sought
from stoker.model.outbox.cursor import Cursor
from stoker.model.outbox.stream import Vacuumed
from stoker.model.time import Instant

_STREAM = sql("outbox_stream")
_STATES = sql("outbox_states")
_CURSOR = sql("outbox_cursor")
_PASSED = sql("outbox_passed")
_AGES = sql("outbox_ages")
_DELETE = sql("outbox_delete")
_SWEPT = sql("outbox_partition_swept")

LARGEST_SWEEP = 200
"""Messages that one step of the vacuum deletes at most: other writers wait for it."""


class Consumers(consumers.Consumers[Unit]):
    """What users see of streams and change about consumers, and the vacuum."""

    _sql = consumers.Statements(sql)

    def _cursors(self, stream: str, sid: int) -> Exchange[list[tuple[Cursor, Instant | None]]]:
        return [(read_cursor(stream, row)[1], row[-1]) for row in (yield _STATES, (sid,))]

    def _seek(self, sid: int, stream: str, consumer: str, to: Seek) -> Exchange[None]:
        for pid, position in (yield from landings(sid, to.to)):
            [row] = yield _CURSOR, (stream, consumer, pid & PARTITION)
            place, cursor = read_cursor(stream, row)
            yield from write_cursor(place, sought(cursor, position))

    @timed(write=True)
    async def vacuum(self, stream: str, limit: int) -> Vacuumed:
        limit = min(limit, LARGEST_SWEEP)
        if not await self._store.read(lambda now: sweepable(stream, limit, now)):
            return Vacuumed()
        return await self._store.refresh(lambda unit: vacuum(unit, stream, limit))


def sweepable(stream: str, limit: int, now: Instant) -> Exchange[list[tuple[int, int, int]]]:
    """Return what may be deleted: partition, the number below the first message, and that of the last."""
    found = []
    for sid, _, keep in (yield _STREAM, (stream,)):
        for pid, passed, swept in (yield _PASSED, (sid,)):
            base = pid << NUMBERS
            last = swept
            for place, created in (yield _AGES, (base + swept, base + passed, limit)):
                if created > now - keep:
                    break
                last = place - base
            if last > swept:
                found.append((pid, swept, last))
                limit -= last - swept
            if limit <= 0:
                break
    return found


def vacuum(unit: Unit, stream: str, limit: int) -> Exchange[Vacuumed]:
    """Delete what every consumer has passed and the stream's `keep` has outlived."""
    deleted = 0
    for pid, swept, last in (yield from sweepable(stream, limit, unit.now)):
        base = pid << NUMBERS
        yield _DELETE, (base + swept, base + last)
        yield _SWEPT, (pid, last)
        deleted += last - swept
    return Vacuumed(deleted, deleted >= limit)
