"""The engine's statements, by the name of their file in `sql/`."""

from __future__ import annotations

from stoker.engines.sql.statements import Statements

STATEMENTS = Statements("stoker.engines.sqlite")


def sql(name: str) -> str:
    """The statement in `sql/<name>.sql`."""
    return STATEMENTS[name]
