"""Small documents of operators: read all of a sort, change one by compare-and-set."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stoker.engines.call_times import timed
from stoker.engines.postgres import audit
from stoker.engines.postgres.facet import Facet
from stoker.engines.postgres.statements import sql
from stoker.engines.shared import documents as shared
from stoker.engines.shared.documents import Signed
from stoker.engines.sql.exchanges import Exchange
from stoker.model.time import Instant

if TYPE_CHECKING:
    from stoker.engines.postgres.unit_of_work import Unit

_DOCUMENTS = sql("documents")
_MAKE = sql("document_make")
_WRITE = sql("document_write")
_DROP = sql("document_drop")


class Documents(Facet, shared.Documents):
    """Tokens, sessions and operations."""

    async def now(self) -> Instant:
        return await self._store.server_time()

    @timed(write=False)
    async def _documents(self, sort: str) -> list[bytes]:
        return await self._store.read(lambda _: _documents(sort))

    @timed(write=True)
    async def _swap(self, sort: str, name: str, before: bytes | None, after: bytes, signed: Signed | None) -> bool:
        return await self._store.write(lambda unit: _swap(unit, sort, name, before, after, signed), lane="admin")


def _documents(sort: str) -> Exchange[list[bytes]]:
    return [row[0].encode() for row in (yield _DOCUMENTS, (sort,))]


def _swap(
    unit: Unit, sort: str, name: str, before: bytes | None, after: bytes, signed: Signed | None
) -> Exchange[bool]:
    was, text = None if before is None else before.decode(), after.decode()
    if not text:
        statement: tuple[str, tuple[object, ...]] = (_DROP, (sort, name, was))
    else:
        statement = (_MAKE, (sort, name, text)) if was is None else (_WRITE, (sort, name, text, was))
    swapped = bool((yield statement))
    if swapped and signed is not None:
        yield from audit.write(unit, *signed)
    return swapped
