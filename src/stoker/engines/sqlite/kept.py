"""Values beside the jobs, of `sql.kept`, over this engine's statements."""

from __future__ import annotations

from stoker.engines.sql import kept
from stoker.engines.sqlite.statements import sql
from stoker.engines.sqlite.store import Store


class KeptValues(kept.KeptValues):
    """Groups, kinds, messages, letters and what is said of failed deliveries."""

    _store: Store
    _sql = kept.statements(sql)
