"""Small documents of operators: read all of a kind, change one by compare-and-set."""

from __future__ import annotations

from stoker.engines.memory.access import Facet
from stoker.model.audit import By, Deed


class Documents(Facet):
    """Tokens, sessions, operations and errors."""

    async def read(self, kind: str) -> list[bytes]:
        with self._read as store:
            return list(store.documents.get(kind, {}).values())

    async def swap(
        self, kind: str, name: str, before: bytes | None, after: bytes | None, *, by: tuple[By, Deed] | None = None
    ) -> bool:
        with self._write as store:
            found = store.documents.setdefault(kind, {})
            if found.get(name) != before:
                return False
            if after is None:
                found.pop(name, None)
            else:
                found[name] = after
            if by is not None:
                store.enter(*by)
            return True
