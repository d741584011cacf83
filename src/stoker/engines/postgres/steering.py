"""What users see of streams and change about consumers, and the vacuum."""

from __future__ import annotations

from collections.abc import Sequence

from stoker.engines.call_times import timed
from stoker.engines.postgres import audit
from stoker.engines.postgres.connection import Retriable
from stoker.engines.postgres.facet import Facet
from stoker.engines.postgres.outbox import landings
from stoker.engines.postgres.statements import sql
from stoker.engines.postgres.stream_rows import read_cursor, turn_row
from stoker.engines.postgres.unit_of_work import Unit
from stoker.engines.sql.exchanges import Exchange
from stoker.engines.sql.steering import StreamSteering
from stoker.engines.sql.stream_rows import PARTITION
from stoker.model.audit import By, Deed, of_steer
from stoker.model.outbox.cursor import Cursor
from stoker.model.outbox.steering import Seek, Steering, StreamState, sought
from stoker.model.outbox.stream import Vacuumed
from stoker.model.time import Instant

_STREAM = sql("outbox_stream")
_NAMES = sql("outbox_stream_names")
_CURSORS = sql("outbox_cursors")
_TURN = sql("outbox_turn")
_UNNUMBERED = sql("outbox_unnumbered")
_SWEEP_TRY = sql("outbox_sweep_try")
_PASSED = sql("outbox_passed")
_SWEEP = sql("outbox_sweep")
_DROP = (
    sql("drop_consumer_cursor"),
    sql("drop_consumer_parked"),
    sql("drop_consumer_letter"),
    sql("drop_consumer_consumer"),
)


class _Steering(StreamSteering):
    def cursors(self, stream: str, sid: int) -> Exchange[list[tuple[Cursor, Instant | None]]]:  # noqa: ARG002
        shown = [read_cursor(stream, row) for row in (yield _CURSORS, (stream, None, None, None, None, None))]
        return [(one.cursor, one.oldest) for one in shown]

    def unnumbered(self, sid: int) -> Exchange[dict[int, tuple[int, Instant]]]:
        return {part: (n, first) for part, n, first in (yield _UNNUMBERED, (sid,))}

    def seek(self, sid: int, stream: str, consumer: str, to: Seek) -> Exchange[None]:
        for pid, position in (yield from landings(sid, stream, to.to)):
            for row in (yield _CURSORS, (stream, consumer, pid & PARTITION, None, None, None)):
                shown = read_cursor(stream, row)
                written = yield _TURN, turn_row(shown.place, sought(shown.cursor, position), lax=False)
                if not written:
                    raise Retriable("a worker took the partition at the same moment")


_STEERING = _Steering(sql, _DROP)


class Consumers(Facet):
    """Shows streams, changes consumers, and deletes what they have passed."""

    @timed(write=False)
    async def streams(self, names: Sequence[str] = ()) -> list[StreamState]:
        return await self._store.read(lambda _: _streams(names))

    @timed(write=True)
    async def steer(self, stream: str, consumer: str, change: Steering, *, by: By | None = None) -> bool:
        def tell(done: bool) -> Deed | None:
            return of_steer(stream, consumer, change, done=done)

        return await self._store.write(
            lambda unit: audit.audited(unit, _STEERING.steer(unit, stream, consumer, change), by, tell), lane="stream"
        )

    @timed(write=True)
    async def vacuum(self, stream: str, limit: int) -> Vacuumed:
        return await self._store.write(lambda unit: _vacuum(unit, stream, limit), lane="stream", lax=True)


def _streams(names: Sequence[str]) -> Exchange[list[StreamState]]:
    """Return streams with their cursors, by name; all of them without names. It numbers nothing, and only reads."""
    return (yield from _STEERING.streams(names or [name for (name,) in (yield _NAMES, ())]))


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
