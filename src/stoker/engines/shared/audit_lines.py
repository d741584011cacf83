"""Log lines of the audit log: a copy of each entry outside of the store, which its writers cannot change."""

from __future__ import annotations

import logging
from collections.abc import Iterable

from stoker.model.audit import AuditEntry, line

log = logging.getLogger("stoker.audit")


def tell(entries: Iterable[AuditEntry]) -> None:
    """Log entries that are committed, each on a line of its own."""
    for entry in entries:
        log.info("%s", line(entry))
