"""Values beside the jobs, of `sql.kept`, over this engine's statements."""

from __future__ import annotations

from typing import ClassVar

from stoker.engines.postgres.statements import sql
from stoker.engines.postgres.store import Store
from stoker.engines.sql import kept
from stoker.model.kept import Part


class KeptValues(kept.KeptValues):
    """Groups, kinds, messages, letters and what is said of failed deliveries.

    A message that gets its number between two pages of `incoming` is found in `messages`, which comes later.
    """

    _store: Store
    _sql: ClassVar = {
        **kept.statements(sql),
        Part.INCOMING: kept.Statements(sql("incoming_kept"), sql("incoming_count_kept"), sql("incoming_swap")),
    }
