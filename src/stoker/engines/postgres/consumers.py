"""What users see of streams and change about consumers, and the vacuum."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

from stoker.engines.call_times import timed
from stoker.engines.postgres.connection import Retriable
from stoker.engines.postgres.outbox import landings
from stoker.engines.postgres.statements import sql
from stoker.engines.postgres.store import Store
from stoker.engines.postgres.stream_rows import read_cursor, turn_row
from stoker.engines.postgres.unit_of_work import Unit
from stoker.engines.sql import consumers
from stoker.engines.sql.exchanges import Exchange
from stoker.engines.sql.stream_rows import PARTITION
from stoker.model.outbox.consumers import Seek, sought
from stoker.model.outbox.cursor import Cursor
from stoker.model.outbox.stream import Vacuumed
from stoker.model.time import Instant

T = TypeVar("T")

_STREAM = sql("outbox_stream")
_CURSORS = sql("outbox_cursors")
_TURN = sql("outbox_turn")
_UNNUMBERED = sql("outbox_unnumbered")
_SWEEP_TRY = sql("outbox_sweep_try")
_PASSED = sql("outbox_passed")
_SWEEP = sql("outbox_sweep")


class Consumers(consumers.Consumers[Unit]):
    """Shows streams, changes consumers, and deletes what they have passed."""

    _store: Store
    _sql = consumers.Statements(sql)

    def _change(self, make: Callable[[Unit], Exchange[T]]) -> Awaitable[T]:
        return self._store.write(make, lane="stream")

    def _cursors(self, stream: str, sid: int) -> Exchange[list[tuple[Cursor, Instant | None]]]:  # noqa: ARG002
        shown = [read_cursor(stream, row) for row in (yield _CURSORS, (stream, None, None, None, None, None))]
        return [(one.cursor, one.oldest) for one in shown]

    def _unnumbered(self, sid: int) -> Exchange[dict[int, tuple[int, Instant]]]:
        return {part: (n, first) for part, n, first in (yield _UNNUMBERED, (sid,))}

    def _seek(self, sid: int, stream: str, consumer: str, to: Seek) -> Exchange[None]:
        for pid, position in (yield from landings(sid, stream, to.to)):
            for row in (yield _CURSORS, (stream, consumer, pid & PARTITION, None, None, None)):
                shown = read_cursor(stream, row)
                written = yield _TURN, turn_row(shown.place, sought(shown.cursor, position), lax=False)
                if not written:
                    raise Retriable("a worker took the partition at the same moment")

    @timed(write=True)
    async def vacuum(self, stream: str, limit: int) -> Vacuumed:
        return await self._store.write(lambda unit: _vacuum(unit, stream, limit), lane="stream", lax=True)


def _vacuum(unit: Unit, stream: str, limit: int) -> Exchange[Vacuumed]:
    """Delete what every consumer has passed and the stream's `keep` has outlived."""
    deleted = 0
    for sid, _, keep in (yield _STREAM, (stream,)):
        [(free,)] = yield _SWEEP_TRY, (sid,)
        if not free:
            return Vacuumed()
        for pid, passed, swept in (yield _PASSED, (sid,)):
            [(n,)] = yield _SWEEP, (pid, swept, passed, limit - deleted, unit.now - keep)
            deleted += n
            if deleted >= limit:
                break
    return Vacuumed(deleted, deleted >= limit)
