"""The schema: how a file gets its tables, and what a migration would do."""

from __future__ import annotations

from pathlib import Path

from stoker.engines.sql import migrations
from stoker.engines.sqlite import file_checks
from stoker.engines.sqlite.connection import FULL, Connection, Journal, identity
from stoker.engines.sqlite.side_folder import SideFolder
from stoker.engines.sqlite.write_lock import WriteLock
from stoker.engines.sqlite.write_transaction import begin, commit
from stoker.model.errors import EngineBusy

MIGRATIONS = migrations.load(Path(__file__).with_name("migrations"))


def connect(path: str, journal: Journal, write_lock: WriteLock, patience: float) -> Connection:
    """Connect with the write lock held.

    Two processes that set the journal of a new file at once would both fail.
    """
    if not write_lock.acquire(patience):
        raise EngineBusy(f"another process held the write lock {write_lock.path} for more than {patience:g} s")
    try:
        return Connection(path, journal=journal)
    finally:
        write_lock.release()


def upgrade(connection: Connection, write_lock: WriteLock, patience: float, *, stopped: bool = False) -> list[str]:
    """Apply the missing migrations, one transaction each; returns the statements that were run."""
    done: list[str] = []
    todo = planned(connection, patience)
    if not todo:
        return done
    stopped = stopped or todo[0].number == 1  # no older process knows a file that is new
    while True:
        begin(connection, write_lock, FULL, patience)
        try:
            migration = migrations.advance(
                lambda text, values: connection.run(text, tuple(values)), MIGRATIONS, stopped=stopped
            )
            commit(connection, patience)
        except BaseException:
            connection.rollback()
            raise
        finally:
            write_lock.release()
        if migration is None:
            return done
        done += migration.statements


def planned(connection: Connection, patience: float) -> list[migrations.Migration]:
    """Return the migrations that the schema needs.

    Refuses a schema that is newer than this code.
    """
    # A rollback journal locks readers out during a commit.
    connection.pragma("busy_timeout", round(patience * 1000))
    exists = connection.run("SELECT 1 FROM sqlite_master WHERE name = ?", (migrations.LEDGER,))
    ledger = connection.run(migrations.read_ledger()) if exists else []
    connection.pragma("busy_timeout", 0)
    return migrations.pending(ledger, MIGRATIONS)


# --- for operators ----------------------------------------------------------------------------------------------


def plan(path: str, journal: Journal, patience: float) -> list[str]:
    """Return the statements that `migrate` would run."""
    return [statement for migration in lacking(path, journal, patience) for statement in migration.statements]


def lacking(path: str, journal: Journal, patience: float) -> list[migrations.Migration]:
    """Return the migrations that a file needs; a file that does not exist needs all."""
    if identity(path) is None:
        return list(MIGRATIONS)
    connection = Connection(path, journal=journal)
    try:
        return planned(connection, patience)
    finally:
        connection.close()


def script(path: str, journal: Journal, patience: float) -> str:
    """Return what `migrate` would do as a script for the `sqlite3` shell."""
    return migrations.sql_text(lacking(path, journal, patience))


def migrate(path: str, journal: Journal, patience: float, *, stopped: bool = False) -> list[str]:
    """Apply the missing migrations to a file; returns the statements that were run."""
    file_checks.inspect_path(path)
    side_folder = SideFolder(path)
    write_lock = WriteLock(side_folder.write_lock)
    try:
        side_folder.open(patience)
        connection = connect(path, journal, write_lock, patience)
        try:
            return upgrade(connection, write_lock, patience, stopped=stopped)
        finally:
            connection.close()
    finally:
        write_lock.close()
        side_folder.close()
