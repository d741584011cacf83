"""The audit log of this engine: `sql.audit` over its statements."""

from __future__ import annotations

from stoker.engines.sql.audit import AuditLog
from stoker.engines.sqlite.statements import sql

_LOG = AuditLog(sql)
write, entered, audited, read = _LOG.write, _LOG.entered, _LOG.audited, _LOG.read
