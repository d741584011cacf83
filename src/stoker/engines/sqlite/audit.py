"""The audit log of this engine: `sql.audit` over its statements."""

from __future__ import annotations

from stoker.engines.sql import audit
from stoker.engines.sqlite.statements import sql

_LOG = audit.AuditLog(sql)
write, audited = _LOG.write, _LOG.audited


class Audit(audit.Audit):
    """Who changed what."""

    _log = _LOG
