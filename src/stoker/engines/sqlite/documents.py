"""Documents of `sql.documents` over this engine's statements."""

from __future__ import annotations

from stoker.engines.sql import documents
from stoker.engines.sqlite.statements import sql
from stoker.engines.sqlite.store import Store


class Documents(documents.Documents):
    """Tokens, sessions and operations."""

    _store: Store
    _sql = documents.Statements(sql)
