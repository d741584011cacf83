"""The audit log of this engine: `sql.audit` over its statements."""

from __future__ import annotations

from stoker.engines.call_times import timed
from stoker.engines.sql.audit import AuditLog
from stoker.engines.sqlite.facet import Facet
from stoker.engines.sqlite.statements import sql
from stoker.model.audit import AuditEntry, AuditQuery, By, Deed

_LOG = AuditLog(sql)
write, entered, audited, read = _LOG.write, _LOG.entered, _LOG.audited, _LOG.read


class Audit(Facet):
    """Who changed what."""

    @timed(write=False, name="read_audit")
    async def read(self, query: AuditQuery) -> list[AuditEntry]:
        return await self._store.read(lambda _: _LOG.read(query))

    @timed(write=True, name="write_audit")
    async def write(self, by: By, deed: Deed) -> AuditEntry:
        return await self._store.write(lambda unit: _LOG.entered(unit, by, deed), strict=True)
