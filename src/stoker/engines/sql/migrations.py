"""Numbered migrations: `NNNN_name.sql`, applied in order, each in one transaction with its own number.

An engine calls `load` once, `pending` for `--plan` and `--sql`, and `advance` inside an exclusive transaction of its
own until it returns None. The number is read inside that transaction, so two hosts may upgrade at once: the second
one waits and then finds the work done. A crash between two migrations leaves a schema that `advance` goes on from.

Rule: a released migration never changes. Its checksum is stored with its number, and a difference is refused.

Most migrations only add, and processes of the release before go on beside them. One that older code does not survive
has a line `-- breaking: WHAT MUST STOP`. It is applied only by a caller who says that this has stopped, and the line is
stored with its number: older code reads there that it has to refuse.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from stoker.model.errors import SchemaMismatch

Execute: TypeAlias = Callable[[str, Sequence[Any]], Sequence[Sequence[Any]]]
"""Runs one statement with positional parameters and returns its rows."""

LEDGER = "stoker_migration"
BREAKING = re.compile(r"^-- breaking: (.+)$", re.MULTILINE)
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

    @property
    def breaking(self) -> str | None:
        """What must stop before it is applied; None: older code goes on beside it."""
        found = BREAKING.search(self.text)
        return found[1] if found else None

    def __str__(self) -> str:
        return f"{self.number:04d}_{self.name}"


def load(folder: Path) -> tuple[Migration, ...]:
    """The migrations of a folder in order. A gap or a number given twice raises ValueError."""
    found = []
    for file in folder.iterdir():
        if match := FILE.fullmatch(file.name):
            found.append(Migration(int(match[1]), match[2], file.read_text(encoding="utf-8")))
        elif file.name.endswith(".sql"):
            raise ValueError(f"{file} is not named NNNN_name.sql")
    found.sort(key=lambda migration: migration.number)
    if [migration.number for migration in found] != list(range(1, len(found) + 1)):
        raise ValueError(f"migrations in {folder} are not 1, 2, 3, …: {', '.join(map(str, found))}")
    return tuple(found)


def pending(applied: Iterable[Sequence[Any]], available: Sequence[Migration]) -> list[Migration]:
    """Return what leads a store whose ledger holds these (number, checksum, breaking) rows to the newest schema.

    A schema that is newer than the code is refused if one of its newer migrations is breaking. Empty: nothing to do.
    """
    stored = {int(row[0]): row for row in applied}
    current, newest = max(stored, default=0), available[-1].number if available else 0
    breaking = [row for number, row in stored.items() if number > newest and row[2] is not None]
    if breaking:
        raise SchemaMismatch(
            f"the schema is at version {current}, this Stoker knows versions up to {newest} and cannot work with what "
            f"came since: {breaking[0][2]}. Nothing was changed. A newer Stoker has upgraded this store: upgrade this "
            "process to the same release, or go back to a backup made before the upgrade"
        )
    todo = [migration for migration in available if migration.number > current]
    for migration in available[: len(available) - len(todo)]:
        if migration.number not in stored:
            raise SchemaMismatch(f"migration {migration} is missing in the ledger {LEDGER} though later ones are there")
        found = str(stored[migration.number][1])
        if found != migration.checksum:
            raise SchemaMismatch(
                f"migration {migration} was applied with another text than this Stoker has (checksum {found} in the "
                f"store, {migration.checksum} here). Nothing was changed. Two builds of one release have met: use the "
                "released one"
            )
    return todo


def check_stopped(todo: Sequence[Migration], *, new: bool, stopped: bool) -> None:
    """Refuse to apply a breaking migration to a store in use, unless the caller says that older code has stopped."""
    found = next((migration for migration in todo if migration.breaking), None)
    if found is not None and not new and not stopped:
        raise SchemaMismatch(
            f"migration {found} must not run beside older processes: {found.breaking}. It was not applied. Stop them, "
            "then run: stoker migrate --stopped"
        )


# --- the ledger -------------------------------------------------------------------------------------------------


def create_ledger(table: str = LEDGER) -> str:
    return (
        f"CREATE TABLE IF NOT EXISTS {table} "
        "(number INTEGER PRIMARY KEY, name TEXT NOT NULL, checksum TEXT NOT NULL, breaking TEXT)"
    )


def read_ledger(table: str = LEDGER) -> str:
    return f"SELECT number, checksum, breaking FROM {table} ORDER BY number"


def record(migration: Migration, table: str = LEDGER) -> str:
    """The row that makes a migration applied. Its values are ours and plain, so it needs no parameters."""
    breaking = "NULL" if migration.breaking is None else "'" + migration.breaking.replace("'", "''") + "'"
    return (
        f"INSERT INTO {table} (number, name, checksum, breaking) "
        f"VALUES ({migration.number}, '{migration.name}', '{migration.checksum}', {breaking})"
    )


def steps(migration: Migration, table: str = LEDGER) -> list[str]:
    """The statements of one transaction: the migration and its number."""
    return [*migration.statements, record(migration, table)]


def advance(
    execute: Execute, available: Sequence[Migration], table: str = LEDGER, *, stopped: bool = False
) -> Migration | None:
    """Apply the next migration inside the caller's exclusive transaction; None when there is nothing left to do."""
    execute(create_ledger(table), ())
    applied = execute(read_ledger(table), ())
    todo = pending(applied, available)
    if not todo:
        return None
    check_stopped(todo[:1], new=not applied, stopped=stopped)
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
        warning = f"-- breaking: {migration.breaking}\n" if migration.breaking else ""
        parts.append(f"-- {migration}\n{warning}BEGIN;\n{body}COMMIT;\n")
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
