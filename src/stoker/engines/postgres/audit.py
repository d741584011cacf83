"""The audit log of this engine: `sql.audit` over its statements."""

from __future__ import annotations

from stoker.engines.call_times import timed
from stoker.engines.postgres.facet import Facet
from stoker.engines.postgres.statements import sql
from stoker.engines.sql.audit import AuditLog
from stoker.model.audit import AuditEntry, AuditQuery, By, Deed

_LOG = AuditLog(sql)
write, audited = _LOG.write, _LOG.audited


class Audit(Facet):
    """Who changed what."""

    @timed(write=False, name="read_audit")
    async def read(self, query: AuditQuery) -> list[AuditEntry]:
        return await self._store.read(lambda _: _LOG.read(query))

    @timed(write=True, name="write_audit")
    async def write(self, by: By, deed: Deed) -> AuditEntry:
        return await self._store.write(lambda unit: _LOG.entered(unit, by, deed), lane="admin")
