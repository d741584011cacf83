"""An exchange with a database: a generator of statements that is sent their rows.

A function yields a statement with its values and is sent the rows; it never calls a driver. So the same function runs
on the engine's own connection and in a user's transaction, where each result may have to be awaited. `Many` is for
SQLite's own connection only: one statement for many rows, which returns the number of rows it touched. `Together` is
for Postgres only: several statements that are sent as one.
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


class Touch(NamedTuple):
    """One statement that returns no rows; the reply is how many it touched."""

    statement: str
    values: Row


class Together(NamedTuple):
    """Statements that change rows and need no reply, sent as one: none of them sees what another changes."""

    parts: tuple[tuple[str, Row], ...]


Statement: TypeAlias = tuple[str, Row] | Many | Touch | Together
Exchange: TypeAlias = Generator[Statement, Any, T]


def just(value: T) -> Exchange[T]:
    """No statement at all."""
    yield from ()
    return value
