"""Stores events and points, in the home shard.

Both are sorted sets in byte order, so a window is a range. An event is time · serial · the rest, a point is bucket ·
queue · metric · value. A second set leads from a job to its events. Memory is all there is, so both are bounded:
beyond `MOST_EVENTS` and `MOST_POINTS` the oldest are removed, whatever the retention.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Sequence

from stoker.engines.redis.record_format import eight
from stoker.engines.redis.scripts import script
from stoker.engines.redis.store import Store
from stoker.engines.redis.unit_of_work import Unit
from stoker.model.events import MOST_REMEMBERED, REMEMBERED, Event, EventType, Point, Window
from stoker.model.ids import JobId
from stoker.model.time import Instant

MOST_EVENTS = 250_000
MOST_POINTS = 500_000
CHUNK = 2_000
"""How many entries one reply brings."""

KEYS = ("events", "trail", "points", "serial", "tickets", "presences", "locks", "writes", "writers")
"""What the scripts of the home shard are given, in their order."""

_RECORD = script("record")
_CROSS_OUT = script("cross_out")

_TYPES = {kind: bytes([65 + place]) for place, kind in enumerate(EventType)}
_NAMES = {char: kind for kind, char in _TYPES.items()}
_REST = struct.Struct(">c16sIqB")
_VALUE = struct.Struct(">d")
_LATEST = (1 << 63) - 1
_NEVER = -1


def keys(store: Store) -> list[str]:
    """The home shard's keys that belong to no queue."""
    return [store.home.key(name) for name in KEYS]


async def record(
    store: Store, events: Sequence[Event], points: Sequence[Point], recorded: Instant, chunk: bytes | None
) -> int:
    """Append events, shifted to the store's clock, and overwrite points; nothing if the chunk was written."""
    if not events and not points:
        return 0
    args: list[bytes | int] = [chunk or os.urandom(16), recorded, MOST_EVENTS, MOST_POINTS, REMEMBERED]
    args += (MOST_REMEMBERED, len(events))
    for event in events:
        args += (event.at, _packed(event))
    for point in points:
        args += (_name(point), _VALUE.pack(point.value))
    return int(await store.run(_RECORD, store.home, args, more=keys(store)))


async def events(store: Store, window: Window) -> list[Event]:
    """Events of the half-open window, oldest first."""
    since, until = _clamped(window.since), _clamped(window.until)
    if since >= until or window.limit < 1:
        return []
    if window.job is not None:
        return await _of_job(store, window, since, until)
    found: list[Event] = []
    start, end = b"[" + eight(since), b"(" + eight(until)
    while True:
        chunk = await _range(store, "events", start, end)
        for event in map(_read, chunk):
            if window.queue is None or event.queue == window.queue:
                found.append(event)
                if len(found) == window.limit:
                    return found
        if len(chunk) < CHUNK:
            return found
        start = b"(" + chunk[-1]


async def _of_job(store: Store, window: Window, since: Instant, until: Instant) -> list[Event]:
    job = window.job
    assert job is not None
    start, end = b"[" + job + eight(since), b"(" + job + eight(until)
    places = [entry[16:] for entry in await _range(store, "trail", start, end, whole=True)]
    key = store.home.key("events")
    replies = await store.connection.pipeline([("ZRANGEBYLEX", key, *_behind(place)) for place in places])
    found = [_read(reply[0]) for reply in replies if reply]
    return [event for event in found if window.queue is None or event.queue == window.queue][: window.limit]


async def points(
    store: Store, since: Instant, until: Instant, metrics: Sequence[str], queue: str | None
) -> list[Point]:
    """Points of the closed window, by bucket, queue and metric."""
    if not metrics or until < 0 or since > until:
        return []
    wanted = frozenset(metrics)
    start, end = b"[" + eight(_clamped(since)), b"(" + eight(_clamped(until) + 1)
    found = await _range(store, "points", start, end, whole=True)
    return [point for point in map(_point, found) if point.metric in wanted and (queue is None or point.queue == queue)]


# --- events of jobs that go -------------------------------------------------------------------------------------


async def cross_out(store: Store, jobs: Sequence[JobId], *, deleted: bool = False) -> int:
    """Remove the events of jobs that are gone; returns how many those were. `deleted`: late ones are kept out too."""
    gone = 0
    for at in range(0, len(jobs), 1_000):
        args = ("1" if deleted else "", *jobs[at : at + 1_000])
        gone += int(await store.run(_CROSS_OUT, store.home, args, more=keys(store)))
    return gone


async def traces(store: Store, jobs: Sequence[JobId]) -> dict[JobId, list[bytes]]:
    """The entries of these jobs in the trail, for those that have any."""
    key = store.home.key("trail")
    replies = await store.connection.pipeline([("ZRANGEBYLEX", key, *_behind(job)) for job in jobs])
    return {job: reply for job, reply in zip(jobs, replies, strict=True) if reply}


def erase(store: Store, unit: Unit, job: JobId, trail: Sequence[bytes]) -> None:
    """Remove a deleted job's events, found by `traces`, with a unit of the home shard, and keep out late ones."""
    unit.write("ZADD", store.home.key("tickets"), unit.now, job)
    for entry in trail:
        unit.write("ZREMRANGEBYLEX", store.home.key("events"), *_behind(entry[16:]))
        unit.write("ZREM", store.home.key("trail"), entry)


# --- bytes ------------------------------------------------------------------------------------------------------


async def _range(store: Store, name: str, start: bytes, end: bytes, *, whole: bool = False) -> list[bytes]:
    """The entries of a range: one chunk of them, or all, chunk by chunk."""
    found: list[bytes] = []
    while True:
        key = store.home.key(name)
        chunk: list[bytes] = await store.connection.call("ZRANGEBYLEX", key, start, end, "LIMIT", 0, CHUNK)
        found += chunk
        if not whole or len(chunk) < CHUNK:
            return found
        start = b"(" + chunk[-1]


def _behind(prefix: bytes) -> tuple[bytes, bytes]:
    """The range of everything that begins so; no entry goes on with a byte of all ones."""
    return b"[" + prefix, b"(" + prefix + b"\xff"


def _packed(event: Event) -> bytes:
    duration = _NEVER if event.duration is None else event.duration
    kind = event.kind.encode()
    return _REST.pack(_TYPES[event.type], event.job, event.attempt, duration, len(kind)) + kind + event.queue.encode()


def _read(stored: bytes) -> Event:
    at = int.from_bytes(stored[:8])
    char, job, attempt, duration, size = _REST.unpack_from(stored, 16)
    names = stored[16 + _REST.size :]
    kind, queue = names[:size].decode(), names[size:].decode()
    return Event(at, _NAMES[char], job, queue, kind, attempt, None if duration == _NEVER else duration)


def _name(point: Point) -> bytes:
    return eight(_clamped(point.bucket)) + point.queue.encode() + b"\0" + point.metric.encode() + b"\0"


def _point(stored: bytes) -> Point:
    # The value may hold zero bytes itself, so it is cut off first.
    queue, metric, _ = stored[8 : -_VALUE.size].split(b"\0")
    return Point(queue.decode(), metric.decode(), int.from_bytes(stored[:8]), _VALUE.unpack(stored[-_VALUE.size :])[0])


def _clamped(at: Instant) -> Instant:
    return min(max(at, 0), _LATEST)
