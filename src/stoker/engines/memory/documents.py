"""Small documents of operators: read all of a sort, change one by compare-and-set."""

from __future__ import annotations

from stoker.engines.memory.access import Facet
from stoker.engines.shared import documents as shared
from stoker.engines.shared.documents import Signed
from stoker.model.time import Instant


class Documents(Facet, shared.Documents):
    """Tokens, sessions and operations."""

    async def now(self) -> Instant:
        with self._read as store:
            return store.now()

    async def _documents(self, sort: str) -> list[bytes]:
        with self._read as store:
            return list(store.documents.get(sort, {}).values())

    async def _swap(self, sort: str, name: str, before: bytes | None, after: bytes, signed: Signed | None) -> bool:
        with self._write as store:
            found = store.documents.setdefault(sort, {})
            if found.get(name) != before:
                return False
            found[name] = after
            if not after:
                del found[name]
            if signed is not None:
                store.enter(*signed)
            return True
