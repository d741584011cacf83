"""The audit log of this engine: `sql.audit` over its statements."""

from __future__ import annotations

from stoker.engines.postgres.statements import sql
from stoker.engines.sql import audit

_LOG = audit.AuditLog(sql)
write, audited = _LOG.write, _LOG.audited


class Audit(audit.Audit):
    """Who changed what."""

    _log = _LOG
