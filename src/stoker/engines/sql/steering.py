"""What users see of streams and change about consumers: the part that SQL engines share."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence

from stoker.engines.shared.unit_of_work import UnitOfWork
from stoker.engines.sql.exchanges import Exchange
from stoker.model.outbox.cursor import Cursor
from stoker.model.outbox.steering import CursorState, Drop, Pause, Release, Resume, Seek, Steering, StreamState
from stoker.model.outbox.stream import Stream, topic
from stoker.model.time import Instant


class StreamSteering(ABC):
    """Streams and consumers of an engine, which gives its statements and those that remove what a consumer has."""

    def __init__(self, sql: Callable[[str], str], drop: Iterable[str]) -> None:
        self._stream = sql("outbox_stream")
        self._partitions = sql("outbox_partitions")
        self._consumer = sql("outbox_consumer")
        self._pause = sql("outbox_consumer_pause")
        self._release = sql("parked_release")
        self._drop = tuple(drop)

    @abstractmethod
    def cursors(self, stream: str, sid: int) -> Exchange[list[tuple[Cursor, Instant | None]]]:
        """Return the cursors of a stream, each with the time of the first message behind it."""

    def unnumbered(self, sid: int) -> Exchange[dict[int, tuple[int, Instant]]]:  # noqa: ARG002
        """Return by partition how many messages have no number yet, and when the first of them was appended."""
        yield from ()
        return {}

    @abstractmethod
    def seek(self, sid: int, stream: str, consumer: str, to: Seek) -> Exchange[None]:
        """Move the cursors of a consumer."""

    def streams(self, names: Sequence[str]) -> Exchange[list[StreamState]]:
        """Return streams with their cursors, by name."""
        found: list[StreamState] = []
        for name in sorted(names):
            for sid, partitions, keep in (yield self._stream, (name,)):
                coming = yield from self.unnumbered(sid)
                rows = yield self._partitions, (sid,)
                last = tuple(row[2] + coming.get(n, (0, None))[0] for n, row in enumerate(rows))
                states = []
                for cursor, oldest in (yield from self.cursors(name, sid)):
                    first = coming[cursor.partition][1] if oldest is None and cursor.partition in coming else oldest
                    states.append(CursorState(cursor, last[cursor.partition] - cursor.position, first))
                found.append(StreamState(Stream(name, partitions, keep), last, tuple(states)))
        return found

    def steer(self, unit: UnitOfWork, stream: str, consumer: str, change: Steering) -> Exchange[bool]:
        """Change a consumer; False when there is nothing to change."""
        found = yield self._consumer, (stream, consumer)
        for rid, sid in found:
            match change:
                case Seek():
                    yield from self.seek(sid, stream, consumer, change)
                case Pause() | Resume():
                    yield self._pause, (rid, isinstance(change, Pause))
                case Release(key):
                    found = yield self._release, (rid, sid, key)
                case Drop():
                    for statement in self._drop:
                        yield statement, (rid,)
        if found and isinstance(change, Seek | Resume | Release):
            unit.wake(topic(stream))
        return bool(found)
