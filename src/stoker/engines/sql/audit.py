"""The audit log: an entry is written with the change it tells of."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import ClassVar, TypeVar

from stoker.engines.call_times import timed
from stoker.engines.shared.unit_of_work import UnitOfWork
from stoker.engines.sql.exchanges import Exchange, Row
from stoker.engines.sql.facet import Sql, SqlFacet
from stoker.model.audit import AuditEntry, AuditQuery, By, Deed, pack, unpack
from stoker.model.query import LATEST

T = TypeVar("T")

CHUNK = 500
"""Entries that are read at once."""


class AuditLog:
    """The audit log of an engine, which says how its statements are named."""

    def __init__(self, sql: Sql) -> None:
        self._put = sql("audit_put")
        self._read = sql("audit")

    def write(self, unit: UnitOfWork, by: By | None, deed: Deed | None) -> Exchange[None]:
        """Write an entry; nothing for a change by code, or where nothing was done."""
        if by is not None and deed is not None:
            entry = AuditEntry(unit.now, by, deed)
            unit.entries.append(entry)
            yield self._put, (unit.now, pack(entry).decode())

    def entered(self, unit: UnitOfWork, by: By, deed: Deed) -> Exchange[AuditEntry]:
        """Write an entry of its own and return it."""
        yield from self.write(unit, by, deed)
        return AuditEntry(unit.now, by, deed)

    def audited(
        self, unit: UnitOfWork, exchange: Exchange[T], by: By | None, tell: Callable[[T], Deed | None]
    ) -> Exchange[T]:
        """Run an exchange and write what it did in the same transaction."""
        answer = yield from exchange
        yield from self.write(unit, by, tell(answer))
        return answer

    def read(self, query: AuditQuery) -> Exchange[list[AuditEntry]]:
        """Return entries, latest first."""
        found: list[AuditEntry] = []
        until = LATEST if query.until is None else query.until
        for start in itertools.count(0, CHUNK):
            rows: list[Row] = yield self._read, (query.since, until, CHUNK, start)
            found += [entry for entry in (unpack(row[0]) for row in rows) if query.matches(entry)]
            if len(rows) < CHUNK or len(found) >= query.limit:
                break
        return found[: max(query.limit, 0)]


class Audit(SqlFacet[UnitOfWork]):
    """Who changed what."""

    _log: ClassVar[AuditLog]

    @timed(write=False, name="read_audit")
    async def read(self, query: AuditQuery) -> list[AuditEntry]:
        return await self._store.read(lambda _: self._log.read(query))

    @timed(write=True, name="write_audit")
    async def write(self, by: By, deed: Deed) -> AuditEntry:
        return await self._store.change(lambda unit: self._log.entered(unit, by, deed))
