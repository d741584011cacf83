"""Stores events and points, in the home shard.

Events are stored in blocks (model.event_blocks). `blocks` is a sorted set in byte order, so a window is a range: when
the first event happened · serial · when the last one did · how many · the ends of their jobs' ids. `bodies` holds the
same with the packed events behind it, by serial. A serial counts events: the difference of two says how many lie
between. Points are a sorted set too: bucket · queue · metric · values. Memory is all there is, so both are bounded:
beyond `MOST_EVENTS` and `MOST_POINTS` the oldest are removed, whatever the retention.
"""

from __future__ import annotations

import os
import re
import struct
from collections.abc import AsyncIterator, Sequence
from typing import NamedTuple

import msgspec

from stoker.engines.call_times import timed
from stoker.engines.redis.record_format import eight
from stoker.engines.redis.scripts import script
from stoker.engines.redis.store import Store
from stoker.engines.redis.unit_of_work import Unit
from stoker.engines.shared.facets import Facet
from stoker.model.event_blocks import (
    NEVER,
    NOTHING_REMOVED,
    Block,
    EventCounter,
    EventList,
    Removal,
    Removals,
    StoredBlock,
    jobs_of,
    pack,
)
from stoker.model.events import MOST_REMEMBERED, REMEMBERED, Event, EventCount, Latency, Point, Window
from stoker.model.ids import JobId
from stoker.model.stats import Values, merged
from stoker.model.time import MINUTE, Instant, Span

MOST_EVENTS = 250_000
MOST_POINTS = 500_000
PAGE = 64
"""How many blocks one reply brings."""
HEADS = 2_000
"""How many of the heads of blocks."""
POINTS_CHUNK = 8_000
"""The same of points, which are short."""
MOST_RANGES = 2_000
"""Of points of a few queues: how many ranges one script reads; while it runs, the server does nothing else."""

KEYS = (
    *("blocks", "bodies", "points", "serial", "tickets", "deleted", "removed"),
    *("presences", "locks", "writes", "writers"),
)
"""What the scripts of the home shard are given, in their order."""

_RECORD = script("record")
_CROSS_OUT = script("cross_out")
_POINTS_OF = script("points_of")
_LATE = script("late")

_HEAD = struct.Struct(">QQQI16s16s")
_REST = struct.Struct(">QI16s16s")
_COUNT = struct.Struct(">q")
_VALUES = struct.Struct(">q5d")
_LATEST = (1 << 63) - 1


def keys(store: Store) -> list[str]:
    """The home shard's keys that belong to no queue."""
    return [store.home.key(name) for name in KEYS]


class Timeline(Facet[Store]):
    """Events and points of one store."""

    @timed(write=True)
    async def record(
        self, events: Sequence[Event], points: Sequence[Point] = (), *, now: Instant, chunk: bytes | None = None
    ) -> int:
        store = self._store
        if not events and not points:
            return 0
        blocks = _packed(events, await store.now() - now) if events else []
        args: list[bytes | int] = [chunk or os.urandom(16), MOST_EVENTS, MOST_POINTS, REMEMBERED, MOST_REMEMBERED]
        args.append(len(blocks))
        for one in blocks:
            args += (one.count, eight(one.first), _REST.pack(one.last, one.count, one.low, one.high), one.body)
        for point in points:
            args += (_name(point), _values(point))
        taken = await store.run(_RECORD, store.home, args, more=keys(store))
        return len(events) if taken else 0

    @timed(write=False)
    async def events(self, window: Window) -> list[Event]:
        found = EventList(window)
        await _collect(self._store, found, window)
        return found.events()

    @timed(write=False)
    async def event_counts(self, since: Instant, until: Instant) -> list[EventCount]:
        found = EventCounter(since, until)
        await _collect(self._store, found, Window(since, until))
        return found.counts()

    @timed(write=False)
    async def late_minutes(self, since: Instant) -> list[Instant]:
        store = self._store
        recent = [head.serial async for page in _pages(store, Window(since, _LATEST), latest=False) for head in page]
        after = min(recent, default=_LATEST)
        found: set[Instant] = set()
        while True:
            heads = [_read(head) for head in await store.run(_LATE, store.home, (after, PAGE), more=keys(store))]
            found |= {head.first // MINUTE * MINUTE for head in heads if head.first < since}
            if len(heads) < PAGE:
                return sorted(found)
            after = heads[-1].serial

    @timed(write=False)
    async def latencies(self, window: Window) -> list[Latency]:
        found = EventList(window, latest=True)
        await _collect(self._store, found, window, latest=True)
        return found.latencies()

    @timed(write=False)
    async def points(
        self,
        since: Instant,
        until: Instant,
        metrics: Sequence[str],
        queues: frozenset[str] = frozenset(),
        *,
        width: Span | None = None,
    ) -> list[Point]:
        wanted = frozenset(metrics)
        found = await _stored_points(self._store, since, until, metrics, queues)
        if width is None:
            return [point for point in map(_point, found) if point.metric in wanted]
        return _merged(found, since, wanted, width)


def _packed(events: Sequence[Event], shift: Span) -> list[Block]:
    """Blocks of events; none happened before the year 1970."""
    blocks = pack(events, shift)
    if any(block.first < 0 for block in blocks):
        blocks = pack([msgspec.structs.replace(one, at=max(one.at, -shift)) for one in events], shift)
    return blocks


async def _collect(store: Store, found: EventList | EventCounter, window: Window, *, latest: bool = False) -> None:
    """Let a reader have the blocks that may hold events of a window, until it has enough."""
    if window.limit < 1:
        return
    async for page in _pages(store, window, latest=latest):
        blocks = await _stored(store, page)
        removals = await _removals(store, blocks) if found.hides else NOTHING_REMOVED
        for block in blocks:
            if found.suffices(block):
                return
            found.add(block, removals)


class _Head(NamedTuple):
    """What a block begins with."""

    first: Instant
    serial: int
    last: Instant
    size: int
    low: JobId
    high: JobId


async def _pages(store: Store, window: Window, *, latest: bool) -> AsyncIterator[list[_Head]]:
    """The heads of blocks that may hold events of a window, page by page."""
    since, until = _clamped(window.since), _clamped(window.until)
    # No block reaches beyond its minute.
    start, end = b"[" + eight(since // MINUTE * MINUTE), b"(" + eight(until)
    page: list[_Head] = []
    while since < until:
        command, bounds = ("ZREVRANGEBYLEX", (end, start)) if latest else ("ZRANGEBYLEX", (start, end))
        key = store.home.key("blocks")
        heads: list[bytes] = await store.connection.call(command, key, *bounds, "LIMIT", 0, HEADS)
        for head in map(_read, heads):
            if head.last >= since and (window.job is None or head.low <= window.job <= head.high):
                page.append(head)
                if len(page) == PAGE:
                    yield page
                    page = []
        if len(heads) < HEADS:
            break
        if latest:
            end = b"(" + heads[-1]
        else:
            start = b"(" + heads[-1]
    if page:
        yield page


async def _stored(store: Store, heads: Sequence[_Head]) -> list[StoredBlock]:
    """Blocks by their heads, without those that are gone meanwhile."""
    key = store.home.key("bodies")
    replies = await store.connection.pipeline([("ZRANGEBYSCORE", key, head.serial, head.serial) for head in heads])
    return [
        StoredBlock(head.serial, head.first, head.last, reply[0][_HEAD.size :])
        for head, reply in zip(heads, replies, strict=True)
        if reply
    ]


async def _removals(store: Store, blocks: Sequence[StoredBlock]) -> Removals:
    """What was removed of the jobs of some blocks."""
    deleted, removed = store.home.key("deleted"), store.home.key("removed")
    if not any(await store.connection.pipeline([("ZCARD", deleted), ("ZCARD", removed)])):
        return {}
    jobs = list({job for block in blocks for job in jobs_of(block)})
    found: dict[JobId, Removal] = {}
    for start in range(0, len(jobs), HEADS):
        some = jobs[start : start + HEADS]
        at, serial = await store.connection.pipeline([("ZMSCORE", deleted, *some), ("ZMSCORE", removed, *some)])
        for job, instant, number in zip(some, at, serial, strict=True):
            if instant is not None or number is not None:
                found[job] = Removal(int(number or 0), NEVER if instant is None else int(instant))
    return found


def _merged(stored: Sequence[bytes], since: Instant, metrics: frozenset[str], width: Span) -> list[Point]:
    """Stored points, merged into buckets of `width`."""
    found: list[Point] = []
    parts = _Parts()
    head, number = b"", 0
    for one in stored:
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

    def taken(self, bucket: Instant, metrics: frozenset[str]) -> list[Point]:
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
        found = await _range(store, "points", start, end)
        named = b"|".join(re.escape(metric.encode()) for metric in metrics)
        return list(filter(re.compile(b"\0(?:" + named + b")\0").search, found))
    while start:
        args = (start, end, MOST_RANGES, len(metrics), *metrics, *names)
        part, start = await store.run(_POINTS_OF, store.home, args, more=keys(store))
        found += part
    return found


# --- events of jobs that go -------------------------------------------------------------------------------------


async def cross_out(store: Store, jobs: Sequence[JobId], *, deleted: bool = False) -> None:
    """Hide the events of jobs that are gone. `deleted`: late ones too."""
    for at in range(0, len(jobs), 1_000):
        args = ("1" if deleted else "", *jobs[at : at + 1_000])
        await store.run(_CROSS_OUT, store.home, args, more=keys(store))


def erase(store: Store, unit: Unit, job: JobId) -> None:
    """Hide a deleted job's events, also late ones, with a unit of the home shard."""
    unit.write("ZADD", store.home.key("deleted"), unit.now, job)


# --- bytes ------------------------------------------------------------------------------------------------------


async def _range(store: Store, name: str, start: bytes, end: bytes) -> list[bytes]:
    """The entries of a range, chunk by chunk."""
    found: list[bytes] = []
    while True:
        key = store.home.key(name)
        chunk: list[bytes] = await store.connection.call("ZRANGEBYLEX", key, start, end, "LIMIT", 0, POINTS_CHUNK)
        found += chunk
        if len(chunk) < POINTS_CHUNK:
            return found
        start = b"(" + chunk[-1]


def _read(head: bytes) -> _Head:
    return _Head(*_HEAD.unpack(head))


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
