"""Small documents of operators: read all of a sort, change one by compare-and-set."""

from __future__ import annotations

from stoker.engines.call_times import timed
from stoker.engines.shared import documents as shared
from stoker.engines.shared.documents import Signed
from stoker.engines.sql.exchanges import Exchange, just
from stoker.engines.sqlite import audit
from stoker.engines.sqlite.facet import Facet
from stoker.engines.sqlite.statements import sql
from stoker.engines.sqlite.unit_of_work import Unit
from stoker.model.time import Instant

_DOCUMENTS = sql("documents")
_MAKE = sql("document_make")
_WRITE = sql("document_write")
_DROP = sql("document_drop")


class Documents(Facet, shared.Documents):
    """Tokens, sessions and operations."""

    async def now(self) -> Instant:
        return await self._store.read(just)

    @timed(write=False)
    async def _documents(self, sort: str) -> list[bytes]:
        return await self._store.read(lambda _: documents(sort))

    @timed(write=True)
    async def _swap(self, sort: str, name: str, before: bytes | None, after: bytes, signed: Signed | None) -> bool:
        return await self._store.write(lambda unit: swap(unit, sort, name, before, after, signed), strict=True)


def documents(sort: str) -> Exchange[list[bytes]]:
    """Return all documents of a sort."""
    return [row[0] for row in (yield _DOCUMENTS, (sort,))]


def swap(unit: Unit, sort: str, name: str, before: bytes | None, after: bytes, signed: Signed | None) -> Exchange[bool]:
    """Write or drop a document if the stored one is still `before`, with its audit entry; return whether it was."""
    if not after:
        statement: tuple[str, tuple[object, ...]] = (_DROP, (sort, name, before))
    else:
        statement = (_MAKE, (sort, name, after)) if before is None else (_WRITE, (sort, name, after, before))
    swapped = bool((yield statement))
    if swapped and signed is not None:
        yield from audit.write(unit, *signed)
    return swapped
