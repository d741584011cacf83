"""Values beside the jobs, so that they can be stored in another form."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from stoker.engines.memory.access import Facet
from stoker.engines.memory.store import Store
from stoker.model.groups import pack_callbacks, unpack_callbacks
from stoker.model.kept import Kept, Part

replace = msgspec.structs.replace


class KeptValues(Facet):
    """Groups, kinds, messages, letters and what is said of failed deliveries."""

    async def kept(self, part: Part, after: str | None = None, limit: int = 100) -> list[Kept]:
        with self._read as store:
            found = sorted(_rows(store, part), key=lambda kept: kept.at)
        return [kept for kept in found if after is None or kept.at > after][:limit]

    async def count_kept(self, part: Part) -> int:
        with self._read as store:
            return len(_rows(store, part))

    async def swap_kept(self, part: Part, swaps: Sequence[tuple[Kept, Kept]]) -> int:
        with self._write as store:
            stored = {kept.at: kept for kept in _rows(store, part)}
            same = [new for old, new in swaps if old.at in stored and stored[old.at].values == old.values]
            for kept in same:
                _put(store, part, kept)
            return len(same)


def _at(*place: Any) -> str:
    """A place as text, in whose order numbers are as numbers."""
    return msgspec.json.encode([f"{one:020}" if isinstance(one, int) else one for one in place]).decode()


def _rows(store: Store, part: Part) -> list[Kept]:
    tables = store.tables
    match part:
        case Part.GROUPS:
            return [Kept(_at(group.id.hex()), body=pack_callbacks(group)) for group in store.groups.values()]
        case Part.KINDS:
            return [Kept(_at(kind), kind, error=error) for kind, error in store.last_errors.items()]
        case Part.INCOMING:
            return []  # only a transaction has messages without a number
        case Part.MESSAGES:
            return [
                Kept(_at(stream, n, one.number), stream, "", one.id, one.payload, _packed(one.headers))
                for (stream, n), log in tables.logs.items()
                for one in log
            ]
        case Part.LETTERS:
            return [
                Kept(_at(*place), one.stream, one.consumer, one.id, one.payload, _packed(one.headers), one.reason)
                for place, one in tables.letters.items()
            ]
        case Part.CURSORS:
            return [
                Kept(_at(*place), one.stream, one.consumer, error=one.last_error)
                for place, one in tables.cursors.items()
                if one.last_error is not None
            ]
        case Part.PARKED:
            return [Kept(_at(*place), *place[:2], error=mark.reason) for place, mark in tables.marks.items()]


def _put(store: Store, part: Part, kept: Kept) -> None:
    tables = store.tables
    place: Any = tuple(
        int(one) if number else one
        for one, number in zip(msgspec.json.decode(kept.at), _NUMBERS.get(part, (False,)), strict=True)
    )
    match part:
        case Part.GROUPS:
            group = bytes.fromhex(place[0])
            callbacks = msgspec.structs.asdict(unpack_callbacks(kept.body or b""))
            store.groups[group] = replace(store.groups[group], **callbacks)
        case Part.KINDS:
            store.last_errors[place[0]] = kept.error or ""
        case Part.MESSAGES:
            stream, n, number = place
            log = tables.logs[stream, n]
            at = next(at for at, one in enumerate(log) if one.number == number)
            log[at] = replace(log[at], payload=kept.body, headers=_unpacked(kept.headers))
        case Part.LETTERS:
            letter, reason = tables.letters[place], kept.error or ""
            headers = _unpacked(kept.headers)
            tables.letters[place] = replace(letter, payload=kept.body or b"", headers=headers, reason=reason)
        case Part.CURSORS:
            tables.cursors[place] = replace(tables.cursors[place], last_error=kept.error)
        case Part.PARKED | Part.INCOMING:
            tables.marks[place] = tables.marks[place]._replace(reason=kept.error or "")


_NUMBERS = {
    Part.MESSAGES: (False, True, True),
    Part.LETTERS: (False, False, True, True),
    Part.CURSORS: (False, False, True),
    Part.PARKED: (False, False, True, False),
}
"""Which parts of a place are numbers."""


def _packed(headers: dict[str, str]) -> str | None:
    return msgspec.json.encode(headers).decode() if headers else None


def _unpacked(headers: str | None) -> dict[str, str]:
    return msgspec.json.decode(headers, type=dict[str, str]) if headers else {}
