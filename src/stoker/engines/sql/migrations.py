"""Numbered migrations: `NNNN_name.sql`, applied in order, each in one transaction with its own number.

An engine calls `load` once, `pending` for `--plan` and `--sql`, and `advance` inside an exclusive transaction of its
own until it returns None. The number is read inside that transaction, so two hosts may upgrade at once: the second
one waits and then finds the work done. A crash between two migrations leaves a schema that `advance` goes on from.

Rule: a released migration never changes. Its checksum is stored with its number, and a difference is refused.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from importlib.resources import files
from typing import Any, TypeAlias

from stoker.model.errors import SchemaMismatch

Execute: TypeAlias = Callable[[str, Sequence[Any]], Sequence[Sequence[Any]]]
"""Runs one statement with positional parameters and returns its rows."""

LEDGER = "stoker_migration"
FILE = re.compile(r"(\d{4})_([a-z0-9_]+)\.sql")
TOKEN = re.compile(
    r"--[^\n]*|/\*.*?\*/|'(?:[^']|'')*'|\"(?:[^\"]|\"\")*\"|`[^`]*`|\[[^\]]*\]"
    r"|(?P<tag>\$(?:[A-Za-z_]\w*)?\$).*?(?P=tag)|[A-Za-z_]\w*|;|.",
    re.DOTALL,
)
TRIGGER = re.compile(r"CREATE\s+(?:TEMP(?:ORARY)?\s+)?TRIGGER\b", re.IGNORECASE)


@dataclass(frozen=True)
class Migration:
    """One step of the schema."""

    number: int
    name: str
    text: str

    @property
    def checksum(self) -> str:
        """The checksum of the text, independent of the line endings of the checkout."""
        return hashlib.sha256("\n".join(self.text.splitlines()).strip().encode()).hexdigest()[:32]

    @property
    def statements(self) -> list[str]:
        return split(self.text)

    def __str__(self) -> str:
        return f"{self.number:04d}_{self.name}"


def load(package: str, folder: str = "migrations") -> tuple[Migration, ...]:
    """The migrations of a package in order. A gap or a number given twice raises ValueError."""
    found = []
    for file in files(package).joinpath(folder).iterdir():
        if match := FILE.fullmatch(file.name):
            found.append(Migration(int(match[1]), match[2], file.read_text(encoding="utf-8")))
        elif file.name.endswith(".sql"):
            raise ValueError(f"{package}/{folder}/{file.name} is not named NNNN_name.sql")
    found.sort(key=lambda migration: migration.number)
    if [migration.number for migration in found] != list(range(1, len(found) + 1)):
        raise ValueError(f"migrations of {package} are not 1, 2, 3, …: {', '.join(map(str, found))}")
    return tuple(found)


def plan(current: int, available: Sequence[Migration]) -> list[Migration]:
    """What leads from the schema's number to the newest. A schema newer than the code is refused. Empty: up to date."""
    newest = available[-1].number if available else 0
    if current > newest:
        raise SchemaMismatch(
            f"the schema is at version {current}, this Stoker knows versions up to {newest}. Nothing was changed. A "
            "newer Stoker has upgraded this store: upgrade this process to the same release, or go back to a backup "
            "made before the upgrade"
        )
    return [migration for migration in available if migration.number > current]


def pending(applied: Iterable[Sequence[Any]], available: Sequence[Migration]) -> list[Migration]:
    """The plan for a store whose ledger holds these (number, checksum) rows."""
    stored = {int(number): str(checksum) for number, checksum in applied}
    todo = plan(max(stored, default=0), available)
    for migration in available[: len(available) - len(todo)]:
        found = stored.get(migration.number)
        if found is None:
            raise SchemaMismatch(f"migration {migration} is missing in the ledger {LEDGER} though later ones are there")
        if found != migration.checksum:
            raise SchemaMismatch(
                f"migration {migration} was applied with another text than this Stoker has (checksum {found} in the "
                f"store, {migration.checksum} here). Nothing was changed. Two builds of one release have met: use the "
                "released one"
            )
    return todo


# --- the ledger -------------------------------------------------------------------------------------------------


def create_ledger(table: str = LEDGER) -> str:
    return (
        f"CREATE TABLE IF NOT EXISTS {table} (number INTEGER PRIMARY KEY, name TEXT NOT NULL, checksum TEXT NOT NULL)"
    )


def read_ledger(table: str = LEDGER) -> str:
    return f"SELECT number, checksum FROM {table} ORDER BY number"


def record(migration: Migration, table: str = LEDGER) -> str:
    """The row that makes a migration applied. Its values are ours and plain, so it needs no parameters."""
    return (
        f"INSERT INTO {table} (number, name, checksum) "
        f"VALUES ({migration.number}, '{migration.name}', '{migration.checksum}')"
    )


def steps(migration: Migration, table: str = LEDGER) -> list[str]:
    """The statements of one transaction: the migration and its number."""
    return [*migration.statements, record(migration, table)]


def advance(execute: Execute, available: Sequence[Migration], table: str = LEDGER) -> Migration | None:
    """Apply the next migration inside the caller's exclusive transaction; None when there is nothing left to do."""
    execute(create_ledger(table), ())
    todo = pending(execute(read_ledger(table), ()), available)
    if not todo:
        return None
    for statement in steps(todo[0], table):
        execute(statement, ())
    return todo[0]


# --- as text ----------------------------------------------------------------------------------------------------


def sql_text(
    todo: Sequence[Migration],
    table: str = LEDGER,
    *,
    first: Sequence[str] = (),
    placed: Callable[[str], str] = str,
) -> str:
    """Return the script of `migrate --sql`: one transaction for each number.

    `first` are statements that must run before the ledger exists, such as CREATE SCHEMA; `placed` puts the real schema
    into a statement.
    """
    if not todo:
        return "-- Nothing to do.\n"
    parts = ["".join(f"{statement};\n" for statement in (*first, create_ledger(table)))]
    for migration in todo:
        body = "".join(
            f"{statement};\n" for statement in (*map(placed, migration.statements), record(migration, table))
        )
        parts.append(f"-- {migration}\nBEGIN;\n{body}COMMIT;\n")
    return "\n".join(parts)


def split(text: str) -> list[str]:
    """The statements of a script, without their semicolons: strings, comments and trigger bodies stay whole."""
    return [statement for statement in map(str.strip, cut(text)) if statement]


def cut(text: str) -> Iterator[str]:
    start, depth, bare = 0, 0, ""
    for token in TOKEN.finditer(text):
        word = token[0].upper()
        if word.startswith(("--", "/*")):
            if not bare.strip():
                start = token.end()  # a comment before a statement belongs to the file, not to the statement
            continue
        if word == ";" and depth == 0:
            yield text[start : token.start()]
            start, bare = token.end(), ""
            continue
        if TRIGGER.match(bare.lstrip()):
            # Inside a trigger BEGIN and CASE open what END closes.
            depth += (word in {"BEGIN", "CASE"}) - (word == "END")
        bare += token[0]
    yield text[start:]
