"""Streams, inboxes and held claims: what the calls of the outbox do to `Tables`.

What may be part of a transaction is a step, which takes a unit and changes the unit's copy; the rest changes the store
at once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Concatenate, ParamSpec, TypeVar

import msgspec

from stoker.engines.base import Transaction, needs_transaction
from stoker.engines.memory.access import Facet
from stoker.engines.memory.settle import settle
from stoker.engines.memory.store import Store
from stoker.engines.memory.streams import Mark, StreamUnit, Tables
from stoker.engines.shared.unit_of_work import Wanted
from stoker.model.audit import By, of_letters, of_steer
from stoker.model.job import Claim, Settlement, Verdict
from stoker.model.outbox.consumers import (
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
from stoker.model.outbox.cursor import (
    Consumer,
    Cursor,
    Lease,
    LeaseRequest,
    NothingDue,
    attempts_seen,
    choose,
    leased,
    may_lease,
    unregistered,
    wanted,
    within,
)
from stoker.model.outbox.delivery import Advance, Advanced, advanced, check_request
from stoker.model.outbox.letters import (
    Clean,
    Count,
    LetterAction,
    LetterFilter,
    Letters,
    Replay,
    act,
    failed_again,
    merge,
    message_of,
    redelivered,
)
from stoker.model.outbox.stream import (
    Entry,
    Stream,
    Vacuumed,
    check_entries,
    check_received,
    topic,
)
from stoker.model.outbox.stream import register as registered
from stoker.model.time import Instant, Span

P = ParamSpec("P")
Answer = TypeVar("Answer")
replace = msgspec.structs.replace


class Outbox(Facet):
    """Streams, inboxes and held claims."""

    def _run_streams(
        self,
        tx: Transaction | None,
        step: Callable[Concatenate[Store, StreamUnit, P], Answer],
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> Answer:
        """Run a step in a transaction of its own, or as part of another."""
        if tx is not None:
            return self._access.join(tx, step, *args, **kwargs)
        with self._write as store:
            return _run(store, step, *args, **kwargs)

    async def register(
        self, stream: Stream, consumers: Sequence[Consumer] = (), *, tx: Transaction | None = None
    ) -> None:
        self._run_streams(tx, _register, stream, tuple(consumers))

    async def append(self, stream: Stream, entries: Sequence[Entry], *, tx: Transaction | None = None) -> None:
        self._run_streams(tx, _append, stream, tuple(entries))

    async def lease(self, request: LeaseRequest) -> Lease | NothingDue:
        with self._write as store:
            now, tables = store.now(), store.tables
            cursors = tables.cursors_of(request.stream, request.consumer)
            if not cursors:
                raise unregistered(request)
            if store.leases.get(request.worker, -1) < now:
                return NothingDue()
            ready = [cursor for cursor in cursors if tables.ready(cursor)]
            chosen = choose(ready, now, lambda worker: store.leases.get(worker, -1) >= now)
            return chosen if isinstance(chosen, NothingDue) else _take(tables, chosen, request, now)

    async def advance(
        self, advance: Advance, *, tx: Transaction | None = None, request: LeaseRequest | None = None
    ) -> Advanced:
        check_request(advance, request, joined=tx is not None)
        if tx is not None:
            return Advanced(self._access.join(tx, _advance, advance) is not None)
        with self._write as store:
            after = _run(store, _advance, advance)
            if after is None or request is None:
                return Advanced(after is not None)
            return _go_on(store, after, request, store.now())

    async def streams(self, names: Sequence[str] = ()) -> list[StreamState]:
        with self._read as store:
            streams = store.tables.streams
            return [_state(store.tables, streams[name]) for name in sorted(names or streams) if name in streams]

    async def steer(self, stream: str, consumer: str, change: Steering, *, by: By | None = None) -> bool:
        with self._write as store:
            steered = _steer(store, stream, consumer, change)
            store.enter(by, of_steer(stream, consumer, change, done=steered))
            return steered

    async def vacuum(self, stream: str, limit: int) -> Vacuumed:
        with self._write as store:
            deleted, tables = 0, store.tables
            passed: dict[int, int] = {}
            for cursor in tables.cursors.values():
                if cursor.stream == stream:
                    passed[cursor.partition] = min(passed.get(cursor.partition, cursor.position), cursor.position)
            for partition, position in sorted(passed.items()):
                log = tables.logs.get((stream, partition), [])
                latest = store.now() - tables.streams[stream].keep
                while log and deleted < limit and log[0].number <= position and log[0].created <= latest:
                    tables.swept[stream, partition] = log.pop(0).number
                    deleted += 1
            return Vacuumed(deleted, deleted >= limit)

    async def letters(
        self, chosen: LetterFilter, action: LetterAction | None = None, *, by: By | None = None
    ) -> Letters:
        with self._write as store:
            found = _letters(store, chosen, action, store.now())
            store.enter(by, of_letters(chosen, action, found))
            return found

    async def receive(self, source: str, ids: Sequence[str], *, keep: Span, tx: Transaction | None) -> list[bool]:
        needs_transaction("receive", tx)
        return self._access.join(tx, _receive, source, tuple(ids), keep)

    async def hold(self, claim: Claim, *, tx: Transaction) -> Claim | None:
        needs_transaction("hold", tx)
        return self._access.join(tx, _hold, claim)

    async def settle_last(self, settlement: Settlement, *, tx: Transaction) -> bool:
        needs_transaction("settle_last", tx)
        return self._access.join(tx, settle, (settlement,)) == [Verdict.APPLIED]

    def notify_settled(self, settlements: Sequence[Settlement]) -> None:
        self._access.check()
        self._access.ends.settled(settlements, [Verdict.APPLIED] * len(settlements))


def _run(
    store: Store, step: Callable[Concatenate[Store, StreamUnit, P], Answer], *args: P.args, **kwargs: P.kwargs
) -> Answer:
    """Run a step in a transaction of its own."""
    unit = StreamUnit(store.now(), store.tables)
    answer = step(store, unit, *args, **kwargs)
    store.write_streams(unit.tables, unit.now)
    return answer


# --- in a transaction ---------------------------------------------------------------------------------------------


def _register(store: Store, unit: StreamUnit, stream: Stream, consumers: Sequence[Consumer]) -> None:  # noqa: ARG001
    """Make a stream and its consumers known."""
    tables = unit.tables
    tables.streams[stream.name] = registered(tables.streams.get(stream.name), stream)
    for consumer in consumers:
        if (stream.name, consumer.name) in tables.consumers:
            continue
        tables.consumers[stream.name, consumer.name] = None
        for n in range(stream.partitions):
            position = tables.landing(stream.name, n, consumer.start)
            tables.put(Cursor(stream.name, consumer.name, n, position or 0))


def _append(store: Store, unit: StreamUnit, stream: Stream, entries: Sequence[Entry]) -> None:
    """Append messages to a stream, registering it if it is new."""
    check_entries(stream, entries)
    if stream.name not in unit.tables.streams:
        _register(store, unit, stream, ())
    registered(unit.tables.streams[stream.name], stream)
    unit.tables.appended += [(stream.name, entry) for entry in entries]


def _advance(store: Store, unit: StreamUnit, change: Advance) -> Cursor | None:  # noqa: ARG001
    """Store an advance; None when it does not apply."""
    tables, now = unit.tables, unit.now
    place = (change.stream, change.consumer, change.partition)
    stored = tables.cursors.get(place)
    after = None if stored is None else advanced(stored, change, now)
    if after is None:
        return None
    for letter in change.letters:
        key = (*place, letter.number)
        tables.letters[key] = merge(tables.letters.get(key), letter)
    for number in change.resolved:
        tables.letters[*place, number] = redelivered(tables.letters[*place, number], now)
    for one in change.returned:
        tables.letters[*place, one.number] = failed_again(tables.letters[*place, one.number], one.reason, now)
    for park in change.parks:
        before = tables.marks.get((*place, park.key))
        tables.marks[*place, park.key] = Mark(now if before is None else before.since, park.reason)
    if change.released is not None and not tables.parked_letters(after, change.released):
        tables.marks.pop((*place, change.released), None)
    after = replace(after, parked=len(tables.marks_of(after)))
    tables.put(after)
    return after


def _receive(store: Store, unit: StreamUnit, source: str, ids: Sequence[str], keep: Span) -> list[bool]:  # noqa: ARG001
    """Remember ids; returns which of them are new."""
    check_received(source, ids)
    fresh = []
    for one in ids:
        fresh.append((source, one) not in unit.tables.receipts)
        if fresh[-1]:
            unit.tables.receipts[source, one] = unit.now + keep
    return fresh


def _hold(store: Store, unit: StreamUnit, claim: Claim) -> Claim | None:
    """The claim, while it is still its worker's."""
    store.load(unit, Wanted(frozenset({claim.id})))
    record = unit.get(claim.id)
    same = record is not None and (record.worker, record.token) == (claim.worker, claim.token)
    return claim if same else None


# --- in a step of their own ---------------------------------------------------------------------------------------


def _go_on(store: Store, cursor: Cursor, request: LeaseRequest, now: Instant) -> Advanced:
    """Lease a partition again whose advance was just stored."""
    free = may_lease(cursor, now, alive=False) and store.leases.get(request.worker, -1) >= now
    if free and store.tables.ready(cursor):
        return Advanced(applied=True, lease=_take(store.tables, cursor, request, now))
    return Advanced(applied=True)


def _take(tables: Tables, free: Cursor, request: LeaseRequest, now: Instant) -> Lease:
    cursor = leased(free, request.worker, now, request.terms)
    tables.put(cursor)
    limit = wanted(cursor, request)
    key = tables.released_key(cursor)
    if key is not None:
        found = [message_of(letter) for letter in tables.parked_letters(cursor, key)[:limit]]
        return Lease(cursor, within(found, request.bytes), released=key, more=True)
    due = tables.letters_of(cursor, lambda letter: letter.due)
    if due:
        return Lease(cursor, (message_of(due[0]),), replayed=True, more=True)
    seen = attempts_seen(cursor)
    messages = within([replace(one, attempts=seen) for one in tables.behind(cursor, limit)], request.bytes)
    parked = tables.marks_of(cursor).keys() & {message.key for message in messages}
    more = tables.last(cursor.stream, cursor.partition) > messages[-1].number
    return Lease(cursor, messages, frozenset(parked), more=more)


def _state(tables: Tables, stream: Stream) -> StreamState:
    last = tuple(tables.last(stream.name, n) for n in range(stream.partitions))
    known = sorted(consumer for name, consumer in tables.consumers if name == stream.name)
    cursors = [cursor for consumer in known for cursor in tables.cursors_of(stream.name, consumer)]
    states = []
    for cursor in cursors:
        first = tables.behind(cursor, 1)
        waiting = last[cursor.partition] - cursor.position
        states.append(CursorState(cursor, waiting, first[0].created if first else None))
    return StreamState(stream, last, tuple(states))


def _steer(store: Store, stream: str, consumer: str, change: Steering) -> bool:
    """Change a consumer; False when there is nothing to change."""
    tables = store.tables
    cursors = tables.cursors_of(stream, consumer)
    match change:
        case Seek(to):
            for cursor in cursors:
                position = tables.landing(stream, cursor.partition, to)
                if position is not None:
                    tables.put(sought(cursor, position))
        case Pause() | Resume():
            for cursor in cursors:
                tables.put(replace(cursor, paused=isinstance(change, Pause)))
        case Release(key):
            return _release(store, cursors, key)
        case Drop():
            _drop(tables, stream, consumer)
    if cursors and isinstance(change, Seek | Resume):
        store.wake(topic(stream))
    return bool(cursors)


def _release(store: Store, cursors: Sequence[Cursor], key: str) -> bool:
    found = False
    for cursor in cursors:
        place = (cursor.stream, cursor.consumer, cursor.partition, key)
        mark = store.tables.marks.get(place)
        if mark is not None:
            store.tables.marks[place] = mark._replace(released=True)
            store.wake(topic(cursor.stream))
            found = True
    return found


def _drop(tables: Tables, stream: str, consumer: str) -> None:
    tables.consumers.pop((stream, consumer), None)
    tables.cursors = {key: row for key, row in tables.cursors.items() if key[:2] != (stream, consumer)}
    tables.marks = {key: row for key, row in tables.marks.items() if key[:2] != (stream, consumer)}
    tables.letters = {key: row for key, row in tables.letters.items() if key[:2] != (stream, consumer)}


def _letters(store: Store, chosen: LetterFilter, action: LetterAction | None, now: Instant) -> Letters:
    """List letters, or change those that the action applies to."""
    table = store.tables.letters
    found = sorted(filter(chosen.matches, table.values()), key=lambda letter: letter.place.order)
    if action is None:
        page = tuple(found[: chosen.limit])
        return Letters(len(page), page)
    if isinstance(action, Count):
        return Letters(len(found))
    changed = [after for letter in found if (after := act(letter, action, now)) is not None][: chosen.limit]
    for letter in changed:
        key = (letter.stream, letter.consumer, letter.partition, letter.number)
        if isinstance(action, Clean):
            del table[key]
        else:
            table[key] = letter
        if isinstance(action, Replay):
            store.wake(topic(letter.stream))
    return Letters(len(changed), tuple(changed))
