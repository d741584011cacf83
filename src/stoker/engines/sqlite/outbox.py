"""Streams: register and append, lease and advance, receive ids, hold claims.

A message gets its number when it is appended. SQLite has one writer at a time, so numbers follow commits and no step
has to sequence anything. A lease reads first, on the reading connection: an idle consumer writes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from stoker.engines.base import Transaction, needs_transaction
from stoker.engines.call_times import timed
from stoker.engines.shared.unit_of_work import Wanted
from stoker.engines.sql.exchanges import Exchange, Many, Row
from stoker.engines.sql.stream_rows import pack_headers, read_messages
from stoker.engines.sqlite import letters
from stoker.engines.sqlite.claim import living
from stoker.engines.sqlite.facet import Facet
from stoker.engines.sqlite.statements import sql
from stoker.engines.sqlite.stream_rows import NUMBERS, Place, read_cursor, write_cursor
from stoker.engines.sqlite.unit_of_work import Unit
from stoker.model.job import Claim
from stoker.model.outbox.consumers import landing
from stoker.model.outbox.cursor import (
    Consumer,
    Cursor,
    Lease,
    LeaseRequest,
    NothingDue,
    Start,
    attempts_seen,
    choose,
    leased,
    may_lease,
    unregistered,
    wanted,
    within,
)
from stoker.model.outbox.delivery import Advance, Advanced, advanced, check_request
from stoker.model.outbox.letters import message_of
from stoker.model.outbox.stream import Entry, Message, Stream, check_entries, check_received, register, topic
from stoker.model.time import Instant, Span

FEW = 64
"""Messages read by one statement: so many of the largest size are what a lease reads at most."""

_APPEND = sql("outbox_append")
_HEAD = sql("outbox_head")
_STREAM = sql("outbox_stream")
_STREAM_MAKE = sql("outbox_stream_make")
_STREAM_KEEP = sql("outbox_stream_keep")
_PARTITION_MAKE = sql("outbox_partition_make")
_PARTITIONS = sql("outbox_partitions")
_FIRST_SINCE = sql("outbox_first_since")
_CONSUMER_MAKE = sql("outbox_consumer_make")
_CURSORS = sql("outbox_cursors")
_CURSOR = sql("outbox_cursor")
_CURSOR_MAKE = sql("outbox_cursor_make")
_MESSAGES = sql("outbox_messages")
_PARKED = sql("parked_keys")
_RELEASED = sql("parked_released")
_RECEIVE = sql("receive")
_WORKER = sql("worker")


class Streams(Facet):
    """Messages: appended, leased and delivered; ids received and claims held."""

    @timed(write=True)
    async def register(
        self, stream: Stream, consumers: Sequence[Consumer] = (), *, tx: Transaction | None = None
    ) -> None:
        if tx is not None:
            return await self._store.join(tx, lambda _: make(stream, consumers))
        return await self._store.write(lambda _: make(stream, consumers), strict=True)

    @timed(write=True)
    async def append(self, stream: Stream, entries: Sequence[Entry], *, tx: Transaction | None = None) -> None:
        check_entries(stream, entries)
        if tx is not None:
            return await self._store.join(tx, lambda unit: append(unit, stream, entries))
        return await self._store.write(lambda unit: append(unit, stream, entries), strict=True)

    @timed(write=True)
    async def lease(self, request: LeaseRequest) -> Lease | NothingDue:
        # An idle consumer asks again and again: a read first keeps it out of the write-ahead log.
        found = await self._store.read(lambda now: look(request, now))
        if isinstance(found, NothingDue):
            return found
        return await self._store.write(lambda unit: lease(unit, request))

    @timed(write=True)
    async def advance(
        self, advance: Advance, *, tx: Transaction | None = None, request: LeaseRequest | None = None
    ) -> Advanced:
        check_request(advance, request, joined=tx is not None)
        if tx is not None:
            return await self._store.join(tx, lambda unit: _advance(unit, advance))
        return await self._store.write(lambda unit: _advance(unit, advance, request))

    @timed(write=True)
    async def receive(self, source: str, ids: Sequence[str], *, keep: Span, tx: Transaction | None) -> list[bool]:
        needs_transaction("receive", tx)
        check_received(source, ids)
        return await self._store.join(tx, lambda unit: receive(unit, source, ids, keep))

    @timed(write=True)
    async def hold(self, claim: Claim, *, tx: Transaction) -> Claim | None:
        needs_transaction("hold", tx)
        return await self._store.join(tx, lambda unit: hold(unit, claim))


# --- streams ------------------------------------------------------------------------------------------------------


def make(stream: Stream, consumers: Sequence[Consumer]) -> Exchange[None]:
    """Make a stream and its consumers known."""
    sid = yield from _known(stream)
    for consumer in consumers:
        made = yield _CONSUMER_MAKE, (sid, consumer.name)
        for (rid,) in made:
            for pid, position in (yield from landings(sid, consumer.start)):
                yield _CURSOR_MAKE, (rid, pid, position)


def _known(stream: Stream) -> Exchange[int]:
    """Return the number of a stream, registering it if it is new."""
    rows = yield _STREAM, (stream.name,)
    for sid, partitions, keep in rows:
        stored = Stream(stream.name, partitions, keep)
        if register(stored, stream) != stored:
            yield _STREAM_KEEP, (sid, stream.keep)
        return int(sid)
    [(sid,)] = yield _STREAM_MAKE, (stream.name, stream.partitions, stream.keep)
    for n in range(stream.partitions):
        yield _PARTITION_MAKE, (sid * 64 + n,)
    return int(sid)


def landings(sid: int, to: Start | dict[int, int]) -> Exchange[list[tuple[int, int]]]:
    """Return where a start or a seek leads: partition and position."""
    found = []
    for pid, swept, last in (yield _PARTITIONS, (sid,)):
        first: int | None = None
        if isinstance(to, int):
            base = pid << NUMBERS
            rows = yield _FIRST_SINCE, (base, base + last, to)
            first = rows[0][0] - base if rows else None
        position = landing(to, pid & 63, swept=swept, last=last, first=first)
        if position is not None:
            found.append((pid, position))
    return found


def append(unit: Unit, stream: Stream, entries: Sequence[Entry]) -> Exchange[None]:
    """Append messages, registering their stream if it is new."""
    heads: dict[int, int] = {}
    rows: list[Row] = []
    for one in entries:
        head = heads.get(one.partition)
        if head is None:
            head = yield from _head(stream, one.partition)
        heads[one.partition] = place = head + 1
        headers = pack_headers(one.headers)
        rows.append((place, unit.now, one.id, one.raw, one.key, one.type, headers, one.payload))
    if rows:
        rows.sort()  # by place: a page of the tree is written once
        yield Many(_APPEND, rows)
        unit.wake(topic(stream.name))


def _head(stream: Stream, partition: int) -> Exchange[int]:
    """Return the place of the newest message of a partition."""
    values = (stream.name, stream.partitions, partition)
    rows = yield _HEAD, values
    if not rows:
        yield from _known(stream)
        rows = yield _HEAD, values
    return int(rows[0][0])


# --- lease --------------------------------------------------------------------------------------------------------


def look(request: LeaseRequest, now: Instant) -> Exchange[tuple[Place, Cursor] | NothingDue]:
    """Find the partition that a worker may lease."""
    rows = yield _CURSORS, (request.stream, request.consumer)
    if not rows:
        raise unregistered(request)
    workers = yield _WORKER, (request.worker,)
    if not workers or (workers[0][1] or 0) < now:
        return NothingDue()
    ready = {cursor.partition: (place, cursor) for place, cursor in _ready(request.stream, rows)}
    chosen = choose((cursor for _, cursor in ready.values()), now, _living(rows, now))
    return chosen if isinstance(chosen, NothingDue) else ready[chosen.partition]


def lease(unit: Unit, request: LeaseRequest) -> Exchange[Lease | NothingDue]:
    """Take a partition and read what is to be delivered."""
    found = yield from look(request, unit.now)
    if isinstance(found, NothingDue):
        return found
    place, free = found
    taken = yield from _take(place, free, request, unit.now)
    assert taken is not None
    return taken


def fresh(streams: Sequence[str], now: Instant) -> Exchange[list[str]]:
    """Return the topics of those streams that have a partition to be leased."""
    found = []
    for name in streams:
        rows = yield _CURSORS, (name, None)
        ready = [cursor for _, cursor in _ready(name, rows)]
        if isinstance(choose(ready, now, _living(rows, now)), Cursor):
            found.append(topic(name))
    return found


def _ready(stream: str, rows: Sequence[Row]) -> list[tuple[Place, Cursor]]:
    """Return the cursors that have something to deliver."""
    return [read_cursor(stream, row) for row in rows if row[-1]]


def _living(rows: Sequence[Row], now: Instant) -> Callable[[str], bool]:
    """Return the test whether the own lease of a holder of these cursors goes on."""
    until = {row[6]: row[-2] or 0 for row in rows}
    return lambda worker: until[worker] >= now


def _take(place: Place, free: Cursor, request: LeaseRequest, now: Instant) -> Exchange[Lease | None]:
    """Lease a partition and read it; None, with nothing written, if there is nothing to deliver."""
    cursor = leased(free, request.worker, now, request.terms)
    taken = yield from _read(place, cursor, request)
    if taken is not None:
        yield from write_cursor(place, cursor)
    return taken


def _read(place: Place, cursor: Cursor, request: LeaseRequest) -> Exchange[Lease | None]:
    """Read what a lease delivers: a released key's letters, or a letter that is due, or the next messages."""
    limit = wanted(cursor, request)
    released = (yield _RELEASED, place) if cursor.parked else ()
    for (key,) in released:
        parked = yield from letters.parked(cursor, place, key, limit)
        messages = within([message_of(letter) for letter in parked], request.bytes)
        return Lease(cursor, messages, released=key, more=True)
    due = yield from letters.due(cursor, place)
    if due is not None:
        return Lease(cursor, (message_of(due),), replayed=True, more=True)
    found = yield from _behind(place, cursor, limit, request.bytes)
    messages = within(found[:limit], request.bytes)
    if not messages:
        return None
    keys: set[str] = set()
    if cursor.parked:
        keys = {key for (key,) in (yield _PARKED, place)}.intersection(message.key for message in messages)
    return Lease(cursor, messages, frozenset(keys), more=len(found) > len(messages))


def _behind(place: Place, cursor: Cursor, limit: int, most: int) -> Exchange[list[Message]]:
    """Read messages behind a cursor until there is one more than the limit, or more bytes than wanted."""
    found: list[Row] = []
    size, last = 0, place.base + cursor.position
    while len(found) <= limit and size <= most:
        count = min(limit + 1 - len(found), FEW)
        rows = yield _MESSAGES, (last, place.end, count)
        found += rows
        size += sum([len(row[-1] or b"") for row in rows])
        if len(rows) < count:
            break
        last = rows[-1][0]
    return read_messages(cursor.partition, found, attempts_seen(cursor), place.base)


# --- advance ------------------------------------------------------------------------------------------------------


def _advance(unit: Unit, change: Advance, request: LeaseRequest | None = None) -> Exchange[Advanced]:
    """Store an advance; with `request`, lease the same partition again if there is more."""
    rows = yield _CURSOR, (change.stream, change.consumer, change.partition)
    if not rows:
        return Advanced(applied=False)
    place, stored = read_cursor(change.stream, rows[0])
    after = advanced(stored, change, unit.now)
    if after is None:
        return Advanced(applied=False)
    if change.letters or change.resolved or change.returned or change.parks or change.released is not None:
        after = yield from letters.advance(after, place, change, unit.now)
    if request is not None and may_lease(after, unit.now, alive=False):
        worker = yield from living(unit, request.worker)
        taken = None if worker is None else (yield from _take(place, after, request, unit.now))
        if taken is not None:
            return Advanced(applied=True, lease=taken)
    yield from write_cursor(place, after)
    return Advanced(applied=True)


# --- in the user's transaction ------------------------------------------------------------------------------------


def receive(unit: Unit, source: str, ids: Sequence[str], keep: Span) -> Exchange[list[bool]]:
    """Remember ids; returns which of them are new."""
    fresh = []
    for one in ids:
        rows = yield _RECEIVE, (source, one, unit.now + keep)
        fresh.append(bool(rows))
    return fresh


def hold(unit: Unit, claim: Claim) -> Exchange[Claim | None]:
    """Return the claim while it is still its worker's.

    The transaction has written before, so no other one can take the claim until it ends.
    """
    yield from unit.load(Wanted(frozenset({claim.id})))
    record = unit.get(claim.id)
    same = record is not None and (record.worker, record.token) == (claim.worker, claim.token)
    return claim if same else None
