"""The audit log of this engine: `sql.audit` over its statements."""

from __future__ import annotations

from stoker.engines.postgres.statements import sql
from stoker.engines.sql.audit import AuditLog

_LOG = AuditLog(sql)
write, entered, audited, read = _LOG.write, _LOG.entered, _LOG.audited, _LOG.read
