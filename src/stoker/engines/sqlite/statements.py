"""The engine's statements, by name; each stands in the `.sql` file beside the module that uses it."""

from __future__ import annotations

from pathlib import Path

from stoker.engines.sql.statements import Statements

STATEMENTS = Statements(Path(__file__).parent)


def sql(name: str) -> str:
    """Return a statement; an unknown name raises."""
    return STATEMENTS[name]
