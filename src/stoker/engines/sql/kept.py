"""Values beside the jobs, part by part: one statement reads rows behind a place, one counts, one swaps a row.

A place is three columns, two numbers and a text, of which a part uses those that it needs.
"""

from __future__ import annotations

from abc import ABC
from collections.abc import Sequence
from typing import Any, ClassVar, NamedTuple

import msgspec

from stoker.engines.call_times import timed
from stoker.engines.shared.unit_of_work import UnitOfWork
from stoker.engines.sql.exchanges import Exchange, Row
from stoker.engines.sql.facet import Sql, SqlFacet
from stoker.model.kept import Kept, Part
from stoker.model.time import Instant

_place = msgspec.json.Decoder(tuple[int, int, str]).decode


class Statements(NamedTuple):
    """The statements of a part."""

    rows: str
    total: str
    swap: str


def statements(sql: Sql) -> dict[Part, Statements]:
    """The statements of what every SQL engine keeps."""
    return {
        Part.GROUPS: Statements(sql("groups_kept"), sql("groups_count_kept"), sql("groups_swap")),
        Part.KINDS: Statements(sql("kinds_kept"), sql("kinds_count_kept"), sql("kinds_swap")),
        Part.MESSAGES: Statements(sql("messages_kept"), sql("messages_count_kept"), sql("messages_swap")),
        Part.LETTERS: Statements(sql("letters_kept"), sql("letters_count_kept"), sql("letters_swap")),
        Part.CURSORS: Statements(sql("cursors_kept"), sql("cursors_count_kept"), sql("cursors_swap")),
        Part.PARKED: Statements(sql("parked_kept"), sql("parked_count_kept"), sql("parked_swap")),
    }


class KeptValues(SqlFacet[UnitOfWork], ABC):
    """Values beside the jobs."""

    _sql: ClassVar[dict[Part, Statements]]

    @timed(write=False)
    async def kept(self, part: Part, after: str | None = None, limit: int = 100) -> list[Kept]:
        def work(_: Instant) -> Exchange[list[Kept]]:
            rows: list[Row] = yield self._sql[part].rows, (*_columns(part, after), limit)
            return [_read(row) for row in rows]

        return await self._store.read(work) if part in self._sql else []

    @timed(write=False)
    async def count_kept(self, part: Part) -> int:
        def work(_: Instant) -> Exchange[int]:
            [(found,)] = yield self._sql[part].total, ()
            return int(found)

        return await self._store.read(work) if part in self._sql else 0

    @timed(write=True)
    async def swap_kept(self, part: Part, swaps: Sequence[tuple[Kept, Kept]]) -> int:
        def work(_: UnitOfWork) -> Exchange[int]:
            swapped = 0
            for before, after in swaps:
                values = (*self._values(part, before), *self._values(part, after))
                swapped += len((yield self._sql[part].swap, (*_columns(part, before.at), *values, before.id or None)))
            return swapped

        return await self._store.change(work) if swaps else 0

    def _values(self, part: Part, kept: Kept) -> tuple[Any, ...]:
        body = kept.body
        if body is not None:
            return (self._store.column(body) if part is Part.GROUPS else bytearray(body), *kept.values[1:])
        return kept.values


def _columns(part: Part, at: str | None) -> tuple[Any, ...]:
    first, second, third = (-1, -1, "") if at is None else _place(at)
    if part is Part.GROUPS:
        return first, second, bytes.fromhex(third) or bytes(16)
    return first, second, third or ("0" if part is Part.INCOMING else "")


def _read(row: Row) -> Kept:
    first, second, third, of, consumer, id_, body, headers, error = row
    at = msgspec.json.encode((first, second, third.hex() if isinstance(third, bytes) else third)).decode()
    body = body.encode() if isinstance(body, str) else None if body is None else bytes(body)
    return Kept(at, of, consumer, id_ or b"", body, headers, error)
