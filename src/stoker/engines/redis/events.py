"""Stores events and points, in the home shard.

Both are sorted sets in byte order, so a window is a range. An event is time · serial · the rest, a point is bucket ·
queue · metric · values. A second set leads from a job to its events. Memory is all there is, so both are bounded:
beyond `MOST_EVENTS` and `MOST_POINTS` the oldest are removed, whatever the retention.
"""

from __future__ import annotations

import os
import re
import struct
from collections import Counter
from collections.abc import Sequence

from stoker.engines.redis.record_format import eight
from stoker.engines.redis.scripts import script
from stoker.engines.redis.store import Store
from stoker.engines.redis.unit_of_work import Unit
from stoker.model.events import MOST_REMEMBERED, REMEMBERED, Event, EventCount, EventType, Latency, Point, Window
from stoker.model.ids import JobId
from stoker.model.stats import Values, merged
from stoker.model.time import Instant, Span

MOST_EVENTS = 250_000
MOST_POINTS = 500_000
CHUNK = 2_000
"""How many entries one reply brings."""
POINTS_CHUNK = 8_000
"""The same of points, which are short."""
MOST_RANGES = 2_000
"""Of points of a few queues: how many ranges one script reads; while it runs, the server does nothing else."""

KEYS = ("events", "trail", "points", "serial", "tickets", "presences", "locks", "writes", "writers")
"""What the scripts of the home shard are given, in their order."""

_RECORD = script("record")
_CROSS_OUT = script("cross_out")
_POINTS_OF = script("points_of")

_TYPES = {kind: bytes([65 + place]) for place, kind in enumerate(EventType)}
_NAMES = {char: kind for kind, char in _TYPES.items()}
_REST = struct.Struct(">c16sIqB")
_TOTAL = struct.Struct(">q")
_COUNT = struct.Struct(">q")
_VALUES = struct.Struct(">q5d")
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
        args += (_name(point), _values(point))
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


async def counts(store: Store, since: Instant, until: Instant) -> list[EventCount]:
    """How many events of each type each queue has in the half-open window."""
    found: Counter[tuple[str, EventType]] = Counter()
    for event in await _between(store, since, until):
        found[event.queue, event.type] += 1
    return [EventCount(queue, type_, n) for (queue, type_), n in sorted(found.items())]


async def latencies(store: Store, window: Window) -> list[Latency]:
    """The times of completed jobs of the half-open window, latest first."""
    found = [
        Latency(event.queue, event.at, event.duration, event.total)
        for event in await _between(store, window.since, window.until)
        if event.type is EventType.COMPLETED and event.duration is not None and event.total is not None
        if window.queue in (None, event.queue) and window.job in (None, event.job)
    ]
    return found[::-1][: max(window.limit, 0)]


async def _between(store: Store, since: Instant, until: Instant) -> list[Event]:
    since, until = _clamped(since), _clamped(until)
    if since >= until:
        return []
    return [_read(one) for one in await _range(store, "events", b"[" + eight(since), b"(" + eight(until), whole=True)]


async def points(
    store: Store, since: Instant, until: Instant, metrics: Sequence[str], queues: frozenset[str]
) -> list[Point]:
    """Points of the closed window, by bucket, queue and metric."""
    wanted = frozenset(metrics)
    found = await _stored_points(store, since, until, metrics, queues)
    return [point for point in map(_point, found) if point.metric in wanted]


async def merged_points(
    store: Store, since: Instant, until: Instant, metrics: Sequence[str], queues: frozenset[str], width: Span
) -> list[Point]:
    """The same, merged into buckets of `width`."""
    found: list[Point] = []
    parts = _Parts()
    head, number = b"", 0
    for one in await _stored_points(store, since, until, metrics, queues):
        if one[:8] != head:
            head = one[:8]
            here = (int.from_bytes(head) - since) // width
            if here != number:
                found += parts.taken(since + number * width, metrics)
                number = here
        parts.add(one)
    return found + parts.taken(since + number * width, metrics)


class _Parts:
    """Stored points of one wide bucket, by name: no number is read before all of a name are together."""

    def __init__(self) -> None:
        self._whole: dict[bytes, list[bytes]] = {}
        self._counts: dict[bytes, list[bytes]] = {}

    def add(self, one: bytes) -> None:
        """Add a point. A name ends with its second zero byte, so no other name begins with it."""
        values = self._whole.get(one[8 : -_VALUES.size])
        if values is not None:
            values.append(one[-_VALUES.size :])
            return
        values = self._counts.get(one[8 : -_COUNT.size])
        if values is not None:
            values.append(one[-_COUNT.size :])
            return
        end = one.index(b"\0", one.index(b"\0", 8) + 1) + 1
        parts = self._whole if len(one) - end == _VALUES.size else self._counts
        parts[one[8:end]] = [one[end:]]

    def taken(self, bucket: Instant, metrics: Sequence[str]) -> list[Point]:
        """The points that were added, merged, by queue and metric; begins anew."""
        found: dict[bytes, list[Values]] = {}
        for name, stored in self._whole.items():
            found[name] = list(_VALUES.iter_unpack(b"".join(stored)))
        for name, stored in self._counts.items():
            counts = [(n, 0.0, 0.0, 0.0, 0.0, 0.0) for (n,) in _COUNT.iter_unpack(b"".join(stored))]
            found[name] = [*found.get(name, ()), *counts]
        self._whole, self._counts = {}, {}
        points = []
        for name, values in found.items():
            named, metric, _ = name.decode().split("\0")
            if metric in metrics:
                points.append(merged((named, metric, bucket), values))
        return sorted(points, key=lambda one: (one.queue, one.metric))


async def _stored_points(
    store: Store, since: Instant, until: Instant, metrics: Sequence[str], queues: frozenset[str]
) -> list[bytes]:
    """The points of these queues, or of all; there may be some of other metrics among them."""
    if not metrics or until < 0 or since > until:
        return []
    start, end = b"[" + eight(_clamped(since)), b"(" + eight(_clamped(until) + 1)
    names = sorted(queue.encode() for queue in queues)
    found: list[bytes] = []
    if not names:
        found = await _range(store, "points", start, end, whole=True, size=POINTS_CHUNK)
        named = b"|".join(re.escape(metric.encode()) for metric in metrics)
        return list(filter(re.compile(b"\0(?:" + named + b")\0").search, found))
    while start:
        args = (start, end, MOST_RANGES, len(metrics), *metrics, *names)
        part, start = await store.run(_POINTS_OF, store.home, args, more=keys(store))
        found += part
    return found


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


async def _range(
    store: Store, name: str, start: bytes, end: bytes, *, whole: bool = False, size: int = CHUNK
) -> list[bytes]:
    """The entries of a range: one chunk of them, or all, chunk by chunk."""
    found: list[bytes] = []
    while True:
        key = store.home.key(name)
        chunk: list[bytes] = await store.connection.call("ZRANGEBYLEX", key, start, end, "LIMIT", 0, size)
        found += chunk
        if not whole or len(chunk) < size:
            return found
        start = b"(" + chunk[-1]


def _behind(prefix: bytes) -> tuple[bytes, bytes]:
    """The range of everything that begins so; no entry goes on with a byte of all ones."""
    return b"[" + prefix, b"(" + prefix + b"\xff"


def _packed(event: Event) -> bytes:
    duration = _NEVER if event.duration is None else event.duration
    kind = event.kind.encode()
    names = kind + event.queue.encode()
    total = b"" if event.total is None else b"\0" + _TOTAL.pack(event.total)
    return _REST.pack(_TYPES[event.type], event.job, event.attempt, duration, len(kind)) + names + total


def _read(stored: bytes) -> Event:
    at = int.from_bytes(stored[:8])
    char, job, attempt, duration, size = _REST.unpack_from(stored, 16)
    names = stored[16 + _REST.size :]
    # No name holds a zero byte.
    queue, has_total, total = names[size:].partition(b"\0")
    return Event(
        at,
        _NAMES[char],
        job,
        queue.decode(),
        names[:size].decode(),
        attempt,
        None if duration == _NEVER else duration,
        _TOTAL.unpack(total)[0] if has_total else None,
    )


def _name(point: Point) -> bytes:
    return eight(_clamped(point.bucket)) + point.queue.encode() + b"\0" + point.metric.encode() + b"\0"


def _point(stored: bytes) -> Point:
    # No name holds a zero byte; the values may.
    queue, metric, values = stored[8:].split(b"\0", 2)
    form = _COUNT if len(values) == _COUNT.size else _VALUES
    return Point(queue.decode(), metric.decode(), int.from_bytes(stored[:8]), *form.unpack(values))


def _values(point: Point) -> bytes:
    """A count alone is short."""
    measured = (point.sum, point.p50, point.p95, point.p99, point.max)
    return _VALUES.pack(point.count, *measured) if any(measured) else _COUNT.pack(point.count)


def _clamped(at: Instant) -> Instant:
    return min(max(at, 0), _LATEST)
