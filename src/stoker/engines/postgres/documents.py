"""Documents of `sql.documents` over this engine's statements."""

from __future__ import annotations

from stoker.engines.postgres.statements import sql
from stoker.engines.postgres.store import Store
from stoker.engines.sql import documents


class Documents(documents.Documents):
    """Tokens, sessions and operations."""

    _store: Store
    _sql = documents.Statements(sql)
