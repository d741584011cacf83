"""What users see of streams and change about consumers, and the vacuum."""

from __future__ import annotations

from collections.abc import Sequence

from stoker.engines.postgres.connection import Retriable
from stoker.engines.postgres.outbox import landings
from stoker.engines.postgres.statements import sql
from stoker.engines.postgres.stream_rows import cursor_row, read_cursor
from stoker.engines.postgres.unit_of_work import Unit
from stoker.engines.sql.steps import Steps
from stoker.model.outbox.steering import (
    CursorState,
    Drop,
    Pause,
    Release,
    Resume,
    Seek,
    Steering,
    StreamState,
    sought,
)
from stoker.model.outbox.stream import Stream, Vacuumed, topic

_STREAM = sql("outbox_stream")
_NAMES = sql("outbox_stream_names")
_PARTITIONS = sql("outbox_partitions")
_CURSORS = sql("outbox_cursors")
_TURN = sql("outbox_turn")
_CONSUMER = sql("outbox_consumer")
_PAUSE = sql("outbox_consumer_pause")
_RELEASE = sql("parked_release")
_DROP = tuple(sql(f"drop_consumer_{table}") for table in ("cursor", "parked", "letter", "consumer"))
_SWEEP_TRY = sql("outbox_sweep_try")
_PASSED = sql("outbox_passed")
_SWEEP = sql("outbox_sweep")


def names() -> Steps[list[str]]:
    """Return the names of all streams."""
    return [name for (name,) in (yield _NAMES, ())]


def streams(chosen: Sequence[str]) -> Steps[list[StreamState]]:
    """Return streams with their cursors, by name."""
    found = []
    for name in sorted(chosen):
        for sid, partitions, keep in (yield _STREAM, (name,)):
            last = tuple(row[2] for row in (yield _PARTITIONS, (sid,)))
            states = []
            for row in (yield _CURSORS, (name, None, None, None, None, None)):
                shown = read_cursor(name, row)
                cursor = shown.cursor
                states.append(CursorState(cursor, last[cursor.partition] - cursor.position, shown.oldest))
            found.append(StreamState(Stream(name, partitions, keep), last, tuple(states)))
    return found


def steer(unit: Unit, stream: str, consumer: str, change: Steering) -> Steps[bool]:
    """Change a consumer; False when there is nothing to change."""
    found = yield _CONSUMER, (stream, consumer)
    for rid, sid in found:
        match change:
            case Seek():
                yield from _seek(sid, stream, consumer, change)
            case Pause() | Resume():
                yield _PAUSE, (rid, isinstance(change, Pause))
            case Release(key):
                found = yield _RELEASE, (rid, sid, key)
            case Drop():
                for statement in _DROP:
                    yield statement, (rid,)
    if found and isinstance(change, Seek | Resume | Release):
        unit.wake(topic(stream))
    return bool(found)


def _seek(sid: int, stream: str, consumer: str, change: Seek) -> Steps[None]:
    for pid, position in (yield from landings(sid, stream, change.to)):
        for row in (yield _CURSORS, (stream, consumer, pid & 63, None, None, None)):
            shown = read_cursor(stream, row)
            written = yield _TURN, (*cursor_row(shown.place, sought(shown.cursor, position)), 0, 0, False)
            if not written:
                raise Retriable("a worker took the partition at the same moment")


def vacuum(unit: Unit, stream: str, limit: int) -> Steps[Vacuumed]:
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
