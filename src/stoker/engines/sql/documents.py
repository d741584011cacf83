"""Small documents of operators: read all of a kind, change one by compare-and-set."""

from __future__ import annotations

from abc import ABC
from typing import ClassVar

from stoker.engines.call_times import timed
from stoker.engines.shared.unit_of_work import UnitOfWork
from stoker.engines.sql.audit import AuditLog
from stoker.engines.sql.exchanges import Exchange, Row
from stoker.engines.sql.facet import Sql, SqlFacet
from stoker.model.audit import By, Deed
from stoker.model.time import Instant


class Statements:
    """The statements of an engine."""

    def __init__(self, sql: Sql) -> None:
        self.log = AuditLog(sql)
        self.documents = sql("documents")
        self.make = sql("document_make")
        self.write = sql("document_write")
        self.drop = sql("document_drop")


class Documents(SqlFacet[UnitOfWork], ABC):
    """Tokens, sessions, operations and errors."""

    _sql: ClassVar[Statements]

    @timed(write=False, name="read_documents")
    async def read(self, kind: str) -> list[bytes | str]:
        def work(_: Instant) -> Exchange[list[bytes | str]]:
            return [row[0] for row in (yield self._sql.documents, (kind,))]

        return await self._store.read(work)

    @timed(write=True, name="swap_document")
    async def swap(
        self, kind: str, name: str, before: bytes | None, after: bytes | None, *, by: tuple[By, Deed] | None = None
    ) -> bool:
        known = None if before is None else self._store.column(before)
        if after is None:
            statement: tuple[str, Row] = (self._sql.drop, (kind, name, known))
        elif known is None:
            statement = (self._sql.make, (kind, name, self._store.column(after)))
        else:
            statement = (self._sql.write, (kind, name, self._store.column(after), known))

        def work(unit: UnitOfWork) -> Exchange[bool]:
            swapped = bool((yield statement))
            if swapped and by is not None:
                yield from self._sql.log.write(unit, *by)
            return swapped

        return await self._store.change(work)
