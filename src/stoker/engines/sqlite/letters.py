"""Letters and parked keys: leases read them, advances write them, users list and change them."""

from __future__ import annotations

import heapq
from functools import partial
from typing import NamedTuple

import msgspec

from stoker.engines.call_times import timed
from stoker.engines.sql.exchanges import Exchange, Row
from stoker.engines.sql.packing import encode
from stoker.engines.sqlite import audit
from stoker.engines.sqlite.facet import Facet
from stoker.engines.sqlite.statements import sql
from stoker.engines.sqlite.stream_rows import NUMBERS, Place, letter_row, read_letter
from stoker.engines.sqlite.unit_of_work import Unit
from stoker.model.audit import By, of_letters
from stoker.model.outbox.cursor import Cursor
from stoker.model.outbox.delivery import Advance
from stoker.model.outbox.letters import (
    ClaimLetters,
    Clean,
    Count,
    Letter,
    LetterAction,
    LetterFilter,
    LetterPlace,
    Letters,
    LetterStatus,
    Replay,
    act,
    applicable,
    failed_again,
    merge,
    redelivered,
)
from stoker.model.outbox.stream import topic
from stoker.model.time import Instant

_LETTER = sql("letter")
_DUE = sql("letter_due")
_PARKED = sql("letters_parked")
_PUT = sql("letter_put")
_CHANGE = sql("letter_change")
_DELETE = sql("letter_delete")
_LIST = sql("letters")
_COUNT = sql("letters_count")
_CONSUMERS = sql("outbox_consumers")
_PARK = sql("parked_put")
_PARKED_DROP = sql("parked_drop")
_PARKED_COUNT = sql("parked_count")

EVERY = 1 << 62
"""Later than any failure, behind any place."""


# --- in a turn ----------------------------------------------------------------------------------------------------


def due(cursor: Cursor, place: Place) -> Exchange[Letter | None]:
    """Return the first letter of a partition that is to be delivered again."""
    rows = yield _DUE, (place.rid, place.base, place.end)
    return read_letter(cursor.stream, cursor.consumer, rows[0]) if rows else None


def parked(cursor: Cursor, place: Place, key: str, limit: int) -> Exchange[list[Letter]]:
    """Return the parked letters of a key, by number."""
    rows = yield _PARKED, (place.rid, key, place.base, place.end, limit)
    return [read_letter(cursor.stream, cursor.consumer, row) for row in rows]


def advance(cursor: Cursor, place: Place, change: Advance, now: Instant) -> Exchange[Cursor]:
    """Store what a turn did to letters and parked keys; returns the cursor with the number of its parked keys."""
    for letter in change.letters:
        at = place.base + letter.number
        stored = yield from _find(cursor, place.rid, at)
        yield _PUT, letter_row(place.rid, at, merge(stored, letter))
    for number in change.resolved:
        stored = yield from _find(cursor, place.rid, place.base + number)
        if stored is not None:
            yield _change(place.rid, redelivered(stored, now), place.base + number)
    for one in change.returned:
        stored = yield from _find(cursor, place.rid, place.base + one.number)
        if stored is not None:
            yield _change(place.rid, failed_again(stored, one.reason, now), place.base + one.number)
    for park in change.parks:
        yield _PARK, (*place, park.key, now, park.reason)
    if change.released is not None:
        left = yield from parked(cursor, place, change.released, 1)
        if not left:
            yield _PARKED_DROP, (*place, change.released)
    [(count,)] = yield _PARKED_COUNT, place
    return msgspec.structs.replace(cursor, parked=count)


def _find(cursor: Cursor, rid: int, at: int) -> Exchange[Letter | None]:
    rows = yield _LETTER, (rid, at)
    return read_letter(cursor.stream, cursor.consumer, rows[0]) if rows else None


def _change(rid: int, letter: Letter, at: int) -> tuple[str, Row]:
    """The statement that stores a letter's changed state."""
    row = letter_row(rid, at, letter)
    return _CHANGE, (*row[:10], letter.reason)


# --- by users -----------------------------------------------------------------------------------------------------


class LetterBox(Facet):
    """Letters, as users list and change them."""

    @timed(write=True)
    async def letters(
        self, chosen: LetterFilter, action: LetterAction | None = None, *, by: By | None = None
    ) -> Letters:
        if action is None:
            return await self._store.read(lambda _: page(chosen))
        if isinstance(action, Count):
            return await self._store.read(lambda _: count(chosen))
        tell = partial(of_letters, chosen, action)
        return await self._store.write(
            lambda unit: audit.audited(unit, change(unit, chosen, action), by, tell), strict=True
        )


def page(chosen: LetterFilter) -> Exchange[Letters]:
    """List letters, latest failure first."""
    found = yield from _matching(chosen, None, chosen.before)
    letters = tuple(letter for _, _, letter in found)
    return Letters(len(letters), letters)


def count(chosen: LetterFilter) -> Exchange[Letters]:
    """Count letters."""
    total = 0
    for row in (yield _CONSUMERS, (chosen.stream, chosen.consumer)):
        [(n,)] = yield _COUNT, _values(Reader(*row), chosen, None, chosen.before)
        total += n
    return Letters(total)


def change(unit: Unit, chosen: LetterFilter, action: LetterAction) -> Exchange[Letters]:
    """Apply an action to the letters that it applies to, up to the limit."""
    changed: list[Letter] = []
    before = chosen.before
    while len(changed) < chosen.limit:
        found = yield from _matching(chosen, action, before)
        for rid, at, letter in found:
            after = act(letter, action, unit.now)
            if after is None or len(changed) == chosen.limit:
                continue
            changed.append(after)
            yield (_DELETE, (rid, at)) if isinstance(action, Clean) else _change(rid, after, at)
            if isinstance(action, Replay):
                unit.wake(topic(after.stream))
        if len(found) < chosen.limit:
            break
        before = found[-1][2].place
    return Letters(len(changed), tuple(changed))


class Reader(NamedTuple):
    """A consumer: its number, that of its stream, and their names."""

    rid: int
    sid: int
    stream: str
    consumer: str


def _matching(
    chosen: LetterFilter, action: LetterAction | None, before: LetterPlace | None
) -> Exchange[list[tuple[int, int, Letter]]]:
    """Return the next letters of a listing, over all consumers that are meant: row numbers and letter."""
    found: list[tuple[int, int, Letter]] = []
    for numbers in (yield _CONSUMERS, (chosen.stream, chosen.consumer)):
        reader = Reader(*numbers)
        rows = yield _LIST, (*_values(reader, chosen, action, before), chosen.limit)
        found += [(reader.rid, row[1], read_letter(reader.stream, reader.consumer, row)) for row in rows]
    return heapq.nsmallest(chosen.limit, found, key=lambda one: one[2].place.order)


def _values(reader: Reader, chosen: LetterFilter, action: LetterAction | None, before: LetterPlace | None) -> Row:
    """Return the values of a listing of one consumer's letters."""
    failed, behind = EVERY, -1
    if before is not None:
        failed = before.failed
        names, last = (reader.stream, reader.consumer), (before.stream, before.consumer)
        if names == last:
            behind = (reader.sid * 64 + before.partition << NUMBERS) + before.number
        elif names < last:
            behind = EVERY
    statuses = applicable(action).intersection(LetterStatus if chosen.status is None else (chosen.status,))
    ids = None if chosen.ids is None else encode([one.hex().upper() for one in chosen.ids]).decode()
    undue = 0 if isinstance(action, Replay | ClaimLetters) else None
    narrowed = (encode(sorted(statuses)).decode(), chosen.key, chosen.partition, chosen.type, ids, undue)
    return (reader.rid, failed, behind, *narrowed)
