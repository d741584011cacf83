"""What users see of streams and change about consumers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Sequence
from typing import ClassVar, TypeVar

from stoker.engines.call_times import timed
from stoker.engines.sql.audit import AuditLog
from stoker.engines.sql.exchanges import Exchange
from stoker.engines.sql.facet import Sql, SqlFacet, U
from stoker.model.audit import By, Deed, of_steer
from stoker.model.outbox.consumers import CursorState, Drop, Pause, Release, Resume, Seek, Steering, StreamState
from stoker.model.outbox.cursor import Cursor
from stoker.model.outbox.stream import Stream, topic
from stoker.model.time import Instant

T = TypeVar("T")


class Statements:
    """The statements of an engine."""

    def __init__(self, sql: Sql) -> None:
        self.log = AuditLog(sql)
        self.names = sql("outbox_stream_names")
        self.stream = sql("outbox_stream")
        self.partitions = sql("outbox_partitions")
        self.consumer = sql("outbox_consumer")
        self.pause = sql("outbox_consumer_pause")
        self.release = sql("parked_release")
        self.drop = (
            sql("drop_consumer_cursors"),
            sql("drop_consumer_parked"),
            sql("drop_consumer_letters"),
            sql("drop_consumer"),
        )


class Consumers(SqlFacet[U], ABC):
    """Shows streams and changes consumers; an engine also deletes what they have passed."""

    _sql: ClassVar[Statements]

    @timed(write=False)
    async def streams(self, names: Sequence[str] = ()) -> list[StreamState]:
        return await self._store.read(lambda _: self._streams(names))

    @timed(write=True)
    async def steer(self, stream: str, consumer: str, change: Steering, *, by: By | None = None) -> bool:
        def tell(done: bool) -> Deed | None:
            return of_steer(stream, consumer, change, done=done)

        return await self._change(
            lambda unit: self._sql.log.audited(unit, self._steer(unit, stream, consumer, change), by, tell)
        )

    # --- by the engine ------------------------------------------------------------------------------------------

    def _change(self, make: Callable[[U], Exchange[T]]) -> Awaitable[T]:
        """Run a change of streams."""
        return self._store.change(make)

    @abstractmethod
    def _cursors(self, stream: str, sid: int) -> Exchange[list[tuple[Cursor, Instant | None]]]:
        """Return the cursors of a stream, each with the time of the first message behind it."""

    def _unnumbered(self, sid: int) -> Exchange[dict[int, tuple[int, Instant]]]:  # noqa: ARG002
        """Return by partition how many messages have no number yet, and when the first of them was appended."""
        yield from ()
        return {}

    @abstractmethod
    def _seek(self, sid: int, stream: str, consumer: str, to: Seek) -> Exchange[None]:
        """Move the cursors of a consumer."""

    # --- the exchanges ------------------------------------------------------------------------------------------

    def _streams(self, names: Sequence[str]) -> Exchange[list[StreamState]]:
        """Return streams with their cursors, by name; all of them without names. Numbers nothing, and only reads."""
        found: list[StreamState] = []
        for name in sorted(names or [name for (name,) in (yield self._sql.names, ())]):
            for sid, partitions, keep in (yield self._sql.stream, (name,)):
                coming = yield from self._unnumbered(sid)
                rows = yield self._sql.partitions, (sid,)
                last = tuple(row[2] + coming.get(n, (0, None))[0] for n, row in enumerate(rows))
                states = []
                for cursor, oldest in (yield from self._cursors(name, sid)):
                    first = coming[cursor.partition][1] if oldest is None and cursor.partition in coming else oldest
                    states.append(CursorState(cursor, last[cursor.partition] - cursor.position, first))
                found.append(StreamState(Stream(name, partitions, keep), last, tuple(states)))
        return found

    def _steer(self, unit: U, stream: str, consumer: str, change: Steering) -> Exchange[bool]:
        """Change a consumer; False when there is nothing to change."""
        found = yield self._sql.consumer, (stream, consumer)
        for rid, sid in found:
            match change:
                case Seek():
                    yield from self._seek(sid, stream, consumer, change)
                case Pause() | Resume():
                    yield self._sql.pause, (rid, isinstance(change, Pause))
                case Release(key):
                    found = yield self._sql.release, (rid, sid, key)
                case Drop():
                    for statement in self._sql.drop:
                        yield statement, (rid,)
        if found and isinstance(change, Seek | Resume | Release):
            unit.wake(topic(stream))
        return bool(found)
