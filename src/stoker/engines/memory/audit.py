"""The audit log, read and written apart from changes; `Store.enter` writes the entry of a change."""

from __future__ import annotations

from stoker.engines.memory.access import Facet
from stoker.model.audit import AuditEntry, AuditQuery, By, Deed, latest


class Audit(Facet):
    """Who changed what."""

    async def read(self, query: AuditQuery) -> list[AuditEntry]:
        with self._read as store:
            return latest(store.audit[::-1], query)

    async def write(self, by: By, deed: Deed) -> AuditEntry:
        with self._write as store:
            store.enter(by, deed)
            return store.audit[-1]
