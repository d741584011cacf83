"""Letters and parked keys: leases read them, advances write them, users list and change them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from stoker.engines.call_times import timed
from stoker.engines.postgres import audit
from stoker.engines.postgres.facet import Facet
from stoker.engines.postgres.statements import sql
from stoker.engines.postgres.stream_rows import Place, letter_row, read_letter
from stoker.engines.postgres.unit_of_work import Unit
from stoker.engines.sql.exchanges import Exchange, Row
from stoker.model.audit import By, of_letters
from stoker.model.outbox.cursor import Cursor
from stoker.model.outbox.delivery import Advance
from stoker.model.outbox.letters import (
    Clean,
    Count,
    Letter,
    LetterAction,
    LetterFilter,
    LetterPlace,
    Letters,
    Replay,
    act,
    failed_again,
    merge,
    redelivered,
)
from stoker.model.outbox.stream import topic
from stoker.model.time import Instant

_OF = sql("letters_of")
_DUE = sql("letter_due")
_PARKED = sql("letters_parked")
_PUT = sql("letter_put")
_CHANGE = sql("letter_change")
_DELETE = sql("letter_delete")
_LIST, _LOCK = sql("letters"), sql("letters_lock")
_COUNT = sql("letters_count")
_PARK = sql("parked_put")
_PARKED_DROP = sql("parked_drop")

EVERY = LetterPlace(1 << 62, "", "", 0, 0)
"""Before the first letter of a listing."""


# --- in a turn ----------------------------------------------------------------------------------------------------


def due(cursor: Cursor, place: Place) -> Exchange[Letter | None]:
    """Return the first letter of a partition that is to be delivered again."""
    rows = yield _DUE, place[:2]
    return read_letter(cursor.stream, cursor.consumer, rows[0]) if rows else None


def parked(cursor: Cursor, place: Place, key: str, limit: int) -> Exchange[list[Letter]]:
    """Return the parked letters of a key, by number."""
    rows = yield _PARKED, (*place[:2], key, limit)
    return [read_letter(cursor.stream, cursor.consumer, row) for row in rows]


def advance(cursor: Cursor, place: Place, change: Advance, now: Instant) -> Exchange[None]:
    """Store what a turn did to letters and parked keys; the caller has locked the cursor."""
    if change.letters:
        stored = yield from _stored(cursor, place, [letter.number for letter in change.letters])
        merged = [merge(stored.get(letter.number), letter) for letter in change.letters]
        columns = zip(*map(letter_row, merged), strict=True)
        yield _PUT, (*place[:2], *map(list, columns))
    reasons = {one.number: one.reason for one in change.returned}
    stored = yield from _stored(cursor, place, [*change.resolved, *reasons])
    judged = [
        failed_again(letter, reasons[number], now) if number in reasons else redelivered(letter, now)
        for number, letter in stored.items()
    ]
    yield from _changed([(place.rid, place.pid, letter) for letter in judged])
    for park in change.parks:
        yield _PARK, (*place[:2], park.key, now, park.reason)
    if change.released is not None:
        left = yield from parked(cursor, place, change.released, 1)
        if not left:
            yield _PARKED_DROP, (*place[:2], change.released)


def _stored(cursor: Cursor, place: Place, numbers: Sequence[int]) -> Exchange[dict[int, Letter]]:
    """Lock letters of a partition, by number."""
    if not numbers:
        return {}
    rows = yield _OF, (*place[:2], list(numbers))
    return {row[1]: read_letter(cursor.stream, cursor.consumer, row) for row in rows}


def _changed(letters: Sequence[tuple[int, int, Letter]]) -> Exchange[None]:
    """Store the changed state of letters."""
    if letters:
        rows = [(rid, pid, *letter_row(letter)[:9], letter.reason) for rid, pid, letter in letters]
        yield _CHANGE, tuple(map(list, zip(*rows, strict=True)))


# --- by users -----------------------------------------------------------------------------------------------------


class LetterBox(Facet):
    """Lists and changes letters."""

    @timed(write=True)
    async def letters(
        self, chosen: LetterFilter, action: LetterAction | None = None, *, by: By | None = None
    ) -> Letters:
        if action is None:
            return await self._store.read(lambda _: _page(chosen))
        if isinstance(action, Count):
            return await self._store.read(lambda _: _count(chosen))
        tell = partial(of_letters, chosen, action)
        return await self._store.write(
            lambda unit: audit.audited(unit, _change(unit, chosen, action), by, tell), lane="stream"
        )


def _page(chosen: LetterFilter) -> Exchange[Letters]:
    """List letters, latest failure first."""
    rows = yield _LIST, (*_values(chosen, chosen.before), chosen.limit)
    letters = tuple(read_letter(row[1], row[2], row[3:]) for row in rows)
    return Letters(len(letters), letters)


def _count(chosen: LetterFilter) -> Exchange[Letters]:
    """Count letters."""
    [(total,)] = yield _COUNT, _values(chosen, chosen.before)
    return Letters(total)


def _change(unit: Unit, chosen: LetterFilter, action: LetterAction) -> Exchange[Letters]:
    """Apply an action to the letters that it applies to, up to the limit."""
    changed: list[tuple[int, int, Letter]] = []
    before = chosen.before
    while len(changed) < chosen.limit:
        rows = yield _LOCK, (*_values(chosen, before), chosen.limit)
        for row in rows:
            letter = read_letter(row[1], row[2], row[3:])
            before = letter.place
            after = act(letter, action, unit.now)
            if after is not None and len(changed) < chosen.limit:
                changed.append((row[0], row[3], after))
        if len(rows) < chosen.limit:
            break
    if isinstance(action, Clean):
        places = [(rid, pid, letter.number) for rid, pid, letter in changed]
        if places:
            yield _DELETE, tuple(map(list, zip(*places, strict=True)))
    else:
        yield from _changed(changed)
    letters = tuple(letter for _, _, letter in changed)
    if isinstance(action, Replay):
        for letter in letters:
            unit.wake(topic(letter.stream))
    return Letters(len(letters), letters)


def _values(chosen: LetterFilter, before: LetterPlace | None) -> Row:
    """Return the values of a listing but for its limit."""
    return (
        chosen.stream,
        chosen.consumer,
        None if chosen.status is None else chosen.status.value,
        chosen.key,
        chosen.partition,
        chosen.type,
        None if chosen.ids is None else list(chosen.ids),
        *(before or EVERY),
    )
