"""What users see of streams and change about consumers, and the vacuum."""

from __future__ import annotations

from collections.abc import Sequence

from stoker.engines.sql.steps import Steps
from stoker.engines.sqlite.outbox import landings
from stoker.engines.sqlite.statements import sql
from stoker.engines.sqlite.stream_rows import NUMBERS, read_cursor, write_cursor
from stoker.engines.sqlite.unit_of_work import Unit
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
from stoker.model.time import Instant

_STREAM = sql("outbox_stream")
_NAMES = sql("outbox_stream_names")
_PARTITIONS = sql("outbox_partitions")
_STATES = sql("outbox_states")
_CONSUMER = sql("outbox_consumer")
_CURSOR = sql("outbox_cursor")
_PAUSE = sql("outbox_consumer_pause")
_RELEASE = sql("parked_release")
_DROP = tuple(sql(f"drop_consumer_{table}") for table in ("cursors", "parked", "letters", "consumers"))
_PASSED = sql("outbox_passed")
_AGES = sql("outbox_ages")
_DELETE = sql("outbox_delete")
_SWEPT = sql("outbox_partition_swept")


LARGEST_SWEEP = 200
"""Messages that one step of the vacuum deletes at most: other writers wait for it."""


def streams(names: Sequence[str]) -> Steps[list[StreamState]]:
    """Return streams with their cursors, by name."""
    chosen = sorted(names) if names else [name for (name,) in (yield _NAMES, ())]
    found = []
    for name in chosen:
        for sid, partitions, keep in (yield _STREAM, (name,)):
            last = tuple(row[2] for row in (yield _PARTITIONS, (sid,)))
            states = []
            for row in (yield _STATES, (sid,)):
                _, cursor = read_cursor(name, row)
                states.append(CursorState(cursor, last[cursor.partition] - cursor.position, row[-1]))
            found.append(StreamState(Stream(name, partitions, keep), last, tuple(states)))
    return found


def steer(unit: Unit, stream: str, consumer: str, change: Steering) -> Steps[bool]:
    """Change a consumer; False when there is nothing to change."""
    found = yield _CONSUMER, (stream, consumer)
    for (rid,) in found:
        match change:
            case Seek():
                yield from _seek(stream, consumer, change)
            case Pause() | Resume():
                yield _PAUSE, (rid, isinstance(change, Pause))
            case Release(key):
                found = yield _RELEASE, (rid, key)
            case Drop():
                for statement in _DROP:
                    yield statement, (rid,)
    if found and isinstance(change, Seek | Resume | Release):
        unit.wake(topic(stream))
    return bool(found)


def _seek(stream: str, consumer: str, change: Seek) -> Steps[None]:
    [(sid, _, _)] = yield _STREAM, (stream,)
    for pid, position in (yield from landings(sid, change.to)):
        [row] = yield _CURSOR, (stream, consumer, pid & 63)
        place, cursor = read_cursor(stream, row)
        yield from write_cursor(place, sought(cursor, position))


def sweepable(stream: str, limit: int, now: Instant) -> Steps[list[tuple[int, int, int]]]:
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


def vacuum(unit: Unit, stream: str, limit: int) -> Steps[Vacuumed]:
    """Delete what every consumer has passed and the stream's `keep` has outlived."""
    deleted = 0
    for pid, swept, last in (yield from sweepable(stream, limit, unit.now)):
        base = pid << NUMBERS
        yield _DELETE, (base + swept, base + last)
        yield _SWEPT, (pid, last)
        deleted += last - swept
    return Vacuumed(deleted, deleted >= limit)
