"""Streams: register and append, lease and advance, receive ids.

A message gets its number after its commit, by a step that precedes every lease (see `sequencer`). A cursor is read
first and then written in place of exactly the version that was read: of two that want it one finds nothing to write.
So a lease, and an advance without letters, need no transaction over several statements.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import accumulate
from operator import itemgetter
from typing import TYPE_CHECKING, TypeVar

import msgspec

from stoker.engines.base import needs_transaction
from stoker.engines.call_times import timed
from stoker.engines.postgres import letters
from stoker.engines.postgres.columns import listed
from stoker.engines.postgres.connection import Retriable
from stoker.engines.postgres.facet import Facet
from stoker.engines.postgres.sequencer import Numbered, Sequencer, number_all
from stoker.engines.postgres.statements import sql
from stoker.engines.postgres.stream_rows import Place, Shown, next_turn_row, read_cursor, turn_row
from stoker.engines.postgres.unit_of_work import Unit
from stoker.engines.sql.exchanges import Exchange, Row, Touch
from stoker.engines.sql.stream_rows import pack_headers, read_messages
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
    fitting,
    leased,
    may_lease,
    unregistered,
    wanted,
    within,
)
from stoker.model.outbox.delivery import Advance, Advanced, advanced, check_request
from stoker.model.outbox.letters import message_of
from stoker.model.outbox.stream import Entry, Stream, check_entries, check_received, register, topic
from stoker.model.time import Instant, Span

if TYPE_CHECKING:
    from stoker.engines.base import Transaction
    from stoker.engines.postgres.store import Store
    from stoker.engines.postgres.user_transaction import Transactions

T = TypeVar("T")

ASIDE = 1_500
"""Payloads above so many bytes are stored beside their messages, and stay there when these are numbered."""

_APPEND, _APPEND_LARGE = sql("outbox_append"), sql("outbox_append_large")
_APPEND_ONE = sql("outbox_append_one")
_STREAM = sql("outbox_stream")
_STREAM_MAKE = sql("outbox_stream_make")
_STREAM_KEEP = sql("outbox_stream_keep")
_CONSUMER_MAKE = sql("outbox_consumer_make")
_SWEEP_LOCK = sql("outbox_sweep_lock")
_PARTITIONS = sql("outbox_partitions")
_FIRST_SINCE = sql("outbox_first_since")
_CURSOR_MAKE = sql("outbox_cursor_make")
_CURSORS = sql("outbox_cursors")
_CURSOR_LOCK = sql("outbox_cursor_lock")
_TURN = sql("outbox_turn")
_BODIES = sql("outbox_bodies")
_PARKED = sql("parked_keys")
_RELEASED = sql("parked_released")
_RECEIVE = sql("receive")

_number = itemgetter(0)


class Streams(Facet):
    """Appends messages and delivers them."""

    def __init__(self, store: Store, transactions: Transactions) -> None:
        super().__init__(store)
        self._transactions = transactions
        self._sequencer = Sequencer(store)

    @timed(write=True)
    async def register(
        self, stream: Stream, consumers: Sequence[Consumer] = (), *, tx: Transaction | None = None
    ) -> None:
        if tx is not None:
            return await self._transactions.join(tx, lambda _: _register(stream, consumers))
        return await self._store.write(lambda _: _register(stream, consumers), lane="stream")

    @timed(write=True)
    async def append(self, stream: Stream, entries: Sequence[Entry], *, tx: Transaction | None = None) -> None:
        check_entries(stream, entries)
        if tx is not None:
            return await self._transactions.join(tx, lambda unit: _append(unit, stream, entries))
        return await self._store.write(lambda unit: _append(unit, stream, entries))

    @timed(write=True)
    async def lease(self, request: LeaseRequest) -> Lease | NothingDue:
        patient = False
        while True:
            numbered, rows = await self._sequencer.look(request, patient=patient)
            found = await self._store.each("stream", partial(_lease, self._store.now(), request, rows))
            if isinstance(found, Lease) or numbered is Numbered.ALL:
                return found
            if patient and numbered is Numbered.ELSEWHERE:
                return msgspec.structs.replace(found, numbering=True)
            patient = True

    @timed(write=True)
    async def advance(
        self, advance: Advance, *, tx: Transaction | None = None, request: LeaseRequest | None = None
    ) -> Advanced:
        check_request(advance, request, joined=tx is not None)
        clock = self._store.now()
        if tx is not None:
            return await self._transactions.join(tx, lambda _: _advance(clock, advance, lax=False))
        rows: list[Row] = []
        if request is not None:
            if self._sequencer.recent(request.stream):
                lease = await self._store.each("stream", partial(_go_on, clock, advance, request))
                if lease is not None:
                    return Advanced(applied=True, lease=lease)
            _, rows = await self._sequencer.look(request, advance)
        if _has_letters(advance):
            return await self._store.write(lambda _: _advance(clock, advance, request), lane="stream", lax=True)
        return await self._store.each("stream", lambda: _advance(clock, advance, request, rows))

    @timed(write=True)
    async def receive(self, source: str, ids: Sequence[str], *, keep: Span, tx: Transaction | None) -> list[bool]:
        needs_transaction("receive", tx)
        check_received(source, ids)
        return await self._transactions.join(tx, lambda unit: _receive(unit, source, ids, keep))


# --- streams ------------------------------------------------------------------------------------------------------


def _register(stream: Stream, consumers: Sequence[Consumer]) -> Exchange[None]:
    """Make a stream and its consumers known."""
    sid = yield from _known(stream)
    for consumer in consumers:
        for (rid,) in (yield _CONSUMER_MAKE, (sid, consumer.name)):
            found = yield from landings(sid, stream.name, consumer.start)
            yield _CURSOR_MAKE, (rid, [pid for pid, _ in found], [position for _, position in found])


def _known(stream: Stream) -> Exchange[int]:
    """Return the number of a stream, registering it if it is new."""
    rows = yield _STREAM, (stream.name,)
    if not rows:
        for (sid,) in (yield _STREAM_MAKE, (stream.name, stream.partitions, stream.keep)):
            return int(sid)
        rows = yield _STREAM, (stream.name,)
    [(sid, partitions, keep)] = rows
    stored = Stream(stream.name, partitions, keep)
    if register(stored, stream) != stored:
        yield _STREAM_KEEP, (sid, stream.keep)
    return int(sid)


def landings(sid: int, stream: str, to: Start | dict[int, int]) -> Exchange[list[tuple[int, int]]]:
    """Return where a start or a seek leads: partition and position. Nothing is deleted there until the commit."""
    yield _SWEEP_LOCK, (sid,)
    if to != "beginning":
        yield from number_all(sid, stream)
    found = []
    for pid, swept, last in (yield _PARTITIONS, (sid,)):
        first: int | None = None
        if isinstance(to, int):
            rows = yield _FIRST_SINCE, (pid, swept, to)
            first = rows[0][0] if rows else None
        position = landing(to, pid & 63, swept=swept, last=last, first=first)
        if position is not None:
            found.append((pid, position))
    return found


def _append(unit: Unit, stream: Stream, entries: Sequence[Entry]) -> Exchange[None]:
    """Append messages, registering their stream if it is new."""
    if not entries:
        return
    only = entries[0]
    if len(entries) == 1 and len(only.payload) <= ASIDE:
        place, content = (stream.name, stream.partitions, unit.now), (only.key, only.type, pack_headers(only.headers))
        # Lists and texts that hold several values cost drivers and server more than the message itself.
        values = (*place, only.id.hex(), only.partition, only.raw, *content, bytearray(only.payload))
        statement = Touch(_APPEND_ONE, values)
    else:
        statement = _append_all(unit, stream, entries)
    if not (yield statement):
        yield from _known(stream)
        yield statement
    unit.wake(topic(stream.name))


def _append_all(unit: Unit, stream: Stream, entries: Sequence[Entry]) -> Touch:
    large = [one for one in entries if len(one.payload) > ASIDE]
    # Drivers take longer to write a list than the server to read a text, so what needs no quotes is sent as one.
    types, usual_type = _usual([one.type for one in entries])
    headers, usual_headers = _usual([pack_headers(one.headers) for one in entries])
    payloads = ",".join("NULL" if len(one.payload) > ASIDE else f'"\\\\x{one.payload.hex()}"' for one in entries)
    values: Row = (
        stream.name,
        stream.partitions,
        unit.now,
        "{" + ",".join([one.id.hex() for one in entries]) + "}",
        listed([one.partition for one in entries]),
        listed([int(one.raw) for one in entries]),
        [one.key for one in entries],
        types,
        headers,
        "{" + payloads + "}",
        usual_type,
        usual_headers,
    )
    if large:
        values += ([one.id for one in large], [bytearray(one.payload) for one in large])
    return Touch(_APPEND_LARGE if large else _APPEND, values)


def _usual(values: list[T]) -> tuple[list[T], T | None]:
    """Return the list, or an empty one and the value that all have."""
    return ([], values[0]) if values.count(values[0]) == len(values) else (values, None)


# --- lease --------------------------------------------------------------------------------------------------------


def _lease(clock: Instant | None, request: LeaseRequest, looked: list[Row]) -> Exchange[Lease | NothingDue]:
    """Take a partition and read what is to be delivered.

    `looked` are the cursors as a look has just shown them. They are used once: a repetition looks again.
    """
    while True:
        rows, looked[:] = looked[:], []
        if not rows:
            rows = yield _CURSORS, (request.stream, request.consumer, None, request.worker, clock, None)
        if not rows:
            raise unregistered(request)
        shown = [read_cursor(request.stream, row) for row in rows]
        now = shown[0].now
        if shown[0].worker_until < now:
            return NothingDue()
        ready = {one.cursor.partition: one for one in shown if one.ready}
        alive = {one.cursor.holder for one in shown if one.holder_until >= now}
        chosen = choose((one.cursor for one in ready.values()), now, alive.__contains__)
        if isinstance(chosen, NothingDue):
            return chosen
        taken = yield from _take(ready[chosen.partition], chosen, request)
        if taken is not None:
            return taken
        # Another worker was faster: what is free is looked up again.


def _take(shown: Shown, free: Cursor, request: LeaseRequest) -> Exchange[Lease | None]:
    """Lease a partition that has something to deliver, and read it; None if the cursor was changed meanwhile."""
    cursor = leased(free, request.worker, shown.now, request.terms)
    place, limit = shown.place, wanted(cursor, request)
    for (key,) in (yield _RELEASED, place[:2]) if shown.released else ():
        parked = yield from letters.parked(cursor, place, key, limit)
        rows = yield from _write(place, cursor)
        messages = within([message_of(letter) for letter in parked], request.bytes)
        return Lease(cursor, messages, released=key, more=True) if rows else None
    due = (yield from letters.due(cursor, place)) if shown.due else None
    if due is not None:
        rows = yield from _write(place, cursor)
        return Lease(cursor, (message_of(due),), replayed=True, more=True) if rows else None
    if shown.oldest is None:
        raise Retriable("a user has just ended the letter that was to be delivered")
    keys = {key for (key,) in (yield _PARKED, place[:2])} if cursor.parked else set()
    rows = yield from _write(place, cursor, limit + 1)
    return (yield from _leased(place, cursor, rows, limit, request.bytes, keys)) if rows else None


def _write(place: Place, cursor: Cursor, limit: int = 0, *, lax: bool = True) -> Exchange[list[Row]]:
    """Write a cursor and read messages behind it. No row: it was changed meanwhile, and nothing is written."""
    rows: list[Row] = yield _TURN, turn_row(place, cursor, limit=limit, lax=lax)
    return rows


def _leased(place: Place, cursor: Cursor, rows: list[Row], limit: int, most: int, parked: set[str]) -> Exchange[Lease]:
    """Return a lease with messages of `outbox_turn`: at most `limit`, and `most` bytes. One row above tells of more."""
    rows.sort(key=_number)
    fit = yield from _fitting([row[:8] for row in rows[:limit]], most)
    messages = tuple(read_messages(cursor.partition, fit, attempts_seen(cursor)))
    more = len(messages) < len(rows)
    return Lease(
        cursor,
        messages,
        frozenset(parked.intersection(message.key for message in messages) if parked else ()),
        more=more,
        ref=(place._replace(turn=place.turn + 1), cursor) if more else None,
    )


def _fitting(rows: list[Row], most: int) -> Exchange[list[Row]]:
    """Return the first rows whose payloads fit into so many bytes, with those payloads that are stored aside.

    These are read after the cursor is written: most batches have none. The vacuum leaves those of a leased cursor.
    """
    aside = [n for n, row in enumerate(rows) if row[7] is None]
    if aside:
        before = [*accumulate(len(row[7] or b"") for row in rows)]
        bodies = yield _BODIES, ([rows[n][1] for n in aside], [before[n] for n in aside], most)
        for n, (payload,) in zip(aside, bodies, strict=False):
            rows[n] = (*rows[n][:7], payload)
        rows = rows[: aside[len(bodies)]] if len(bodies) < len(aside) else rows
    if aside or len(rows) * ASIDE > most:
        rows = rows[: fitting([len(row[7] or b"") for row in rows], most)]
    return rows


# --- advance ------------------------------------------------------------------------------------------------------


def _has_letters(change: Advance) -> bool:
    """Whether an advance writes more than the cursor."""
    effects = (change.letters, change.resolved, change.returned, change.parks)
    return any(effects) or change.released is not None


def _go_on(clock: Instant | None, change: Advance, request: LeaseRequest) -> Exchange[Lease | None]:
    """Store an advance and lease the same partition again, by one statement.

    None, with nothing written, if the cursor is not the one of the lease any more, if there is no message behind it, or
    if anything but messages must be looked at.
    """
    if change.ref is None or change.after or _has_letters(change):
        return None
    place, cursor = change.ref
    free = advanced(cursor, change, 0)
    if free is None:
        return None
    again, limit = leased(free, request.worker, 0, request.terms), wanted(free, request)
    rows = yield _TURN, next_turn_row(place, again, limit + 1, clock)
    if not rows:
        return None
    now = rows[0][8]
    return (
        yield from _leased(place, leased(free, request.worker, now, request.terms), rows, limit, request.bytes, set())
    )


def _advance(
    clock: Instant | None,
    change: Advance,
    request: LeaseRequest | None = None,
    looked: list[Row] | None = None,
    *,
    lax: bool = True,
) -> Exchange[Advanced]:
    """Store an advance; with `request`, lease the same partition again if there is more. `looked`: as for `_lease`."""
    shown = yield from _newest(clock, change, request, looked)
    after = None if shown is None else advanced(shown.cursor, change, shown.now)
    if shown is None or after is None:
        return Advanced(applied=False)
    if _has_letters(change):
        locked = yield _CURSOR_LOCK, shown.place
        if not locked:
            return Advanced(applied=False)
        yield from letters.advance(after, shown.place, change, shown.now)
        again = yield from _newest(clock, change, request)
        assert again is not None
        shown = again
        after = msgspec.structs.replace(after, parked=shown.cursor.parked)
    alive = request is not None and shown.worker_until >= shown.now
    if request is not None and alive and shown.ready and may_lease(after, shown.now, alive=False):
        taken = yield from _take(shown, after, request)
        return Advanced(applied=taken is not None, lease=taken)
    rows = yield from _write(shown.place, after, lax=lax)
    return Advanced(applied=bool(rows))


def _newest(
    clock: Instant | None, change: Advance, request: LeaseRequest | None, looked: list[Row] | None = None
) -> Exchange[Shown | None]:
    rows = [looked.pop()] if looked else []
    if not rows:
        worker = None if request is None else request.worker
        rows = yield _CURSORS, (change.stream, change.consumer, change.partition, worker, clock, change.position)
    return read_cursor(change.stream, rows[0]) if rows else None


# --- in the user's transaction ------------------------------------------------------------------------------------


def _receive(unit: Unit, source: str, ids: Sequence[str], keep: Span) -> Exchange[list[bool]]:
    """Remember ids; returns which of them are new."""
    # In one order, so that two calls with the same ids wait for each other and never both.
    rows = (yield _RECEIVE, (source, sorted(set(ids)), unit.now + keep)) if ids else ()
    new = {one for (one,) in rows}
    fresh = []
    for one in ids:
        fresh.append(one in new)
        new.discard(one)
    return fresh
