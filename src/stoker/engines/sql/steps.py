"""How the doors speak to a database: as generators of statements.

A door yields a statement with its values and is sent the rows; it never calls a driver. So the same door runs on the
engine's own connection and on a user's transaction, where every answer may have to be awaited. `Many` is the one thing
only SQLite's own connection does: a statement for many rows in one call, answered with the number of rows it touched.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any, NamedTuple, TypeAlias, TypeVar

Row: TypeAlias = tuple[Any, ...]
T = TypeVar("T")


class Many(NamedTuple):
    """One statement for many rows of values."""

    statement: str
    rows: list[Row]


Step: TypeAlias = tuple[str, Row] | Many
Steps: TypeAlias = Generator[Step, Any, T]
