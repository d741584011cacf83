"""What an open engine holds (connections, side folder, write lock, wake socket), and how the schema is made."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field

from stoker.engines.sql import migrations
from stoker.engines.sql.waiting import Hub
from stoker.engines.sqlite import file_checks, leases
from stoker.engines.sqlite.connection import FULL, VERSION_INFO, Connection, Journal
from stoker.engines.sqlite.flush import Coalescer
from stoker.engines.sqlite.liveness import LivenessFiles, liveness_file
from stoker.engines.sqlite.side_folder import SideFolder
from stoker.engines.sqlite.transact import Transactor, begin, commit
from stoker.engines.sqlite.wakeup import WakeSocket
from stoker.engines.sqlite.write_lock import WriteLock
from stoker.model.errors import EngineBusy, EngineError, EngineRefused
from stoker.model.time import Instant

MIGRATIONS = migrations.load("stoker.engines.sqlite")


@dataclass
class Inside:
    """Everything that `close` lets go of. Belongs to one loop and one process."""

    pid: int
    loop: asyncio.AbstractEventLoop
    connection: Connection
    reader: Connection
    side_folder: SideFolder
    write_lock: WriteLock
    liveness: LivenessFiles
    wake_socket: WakeSocket
    hub: Hub
    coalescer: Coalescer
    warnings: list[str] = field(default_factory=list)
    watching: bool = False
    listening: bool = False
    stirred: bool = False

    def probe(self) -> int | None:
        """A number that changes when somebody else commits; None while the connection is in the writer's hands."""
        return None if self.coalescer.busy else self.connection.data_version()

    async def close(self) -> None:
        await self.coalescer.close()
        self.hub.dismiss()
        self.wake_socket.close()
        self.liveness.close()
        kept = self._living_files()
        self.reader.close()
        self.connection.close()
        self.write_lock.close()
        self.side_folder.close(kept)

    def _living_files(self) -> set[str] | None:
        """Return the liveness files of workers that still have a lease; None when the store cannot be read."""
        try:
            living, _ = self.reader.glance(leases.workers(0))
        except EngineError:
            return None
        return {liveness_file(worker) for worker in living}


async def opened(
    path: str,
    *,
    clock: Callable[[], Instant],
    journal: Journal,
    fsync: bool,
    patience: float,
    told: Callable[[set[str], int], None],
) -> Inside:
    """Check the place, make or upgrade the schema, connect."""
    loop = asyncio.get_running_loop()
    side_folder = SideFolder(path)
    wake_socket = WakeSocket(side_folder.wake, loop)
    file_checks.inspect_path(path)
    write_lock = WriteLock(side_folder.write_lock)
    connection, reader = await asyncio.to_thread(_connect, path, journal, side_folder, write_lock, patience)
    warnings = [file_checks.version_warning(VERSION_INFO)] if connection.journal == "wal" else []
    if connection.journal != journal:
        warnings.append(f"the journal of {path} is {connection.journal} although {journal} was asked for")
    return Inside(
        os.getpid(),
        loop,
        connection,
        reader,
        side_folder,
        write_lock,
        LivenessFiles(side_folder.live),
        wake_socket,
        Hub(),
        Coalescer(
            Transactor(connection, write_lock, clock, patience),
            fsync=fsync,
            log=connection.journal == "wal",
            ring=wake_socket.notify,
            told=told,
        ),
        [warning for warning in warnings if warning],
    )


def _connect(
    path: str, journal: Journal, side_folder: SideFolder, write_lock: WriteLock, patience: float
) -> tuple[Connection, Connection]:
    try:
        side_folder.open(patience)
        connection = connected(path, journal, write_lock, patience)
        try:
            upgrade(connection, write_lock, patience)
            return connection, Connection(path, journal=journal, read_only=True)
        except BaseException:
            connection.close()
            raise
    except BaseException:
        write_lock.close()
        side_folder.close()
        raise


def connected(path: str, journal: Journal, write_lock: WriteLock, patience: float) -> Connection:
    """Connect with the write lock held: two that change the journal of a new file at once would refuse each other."""
    if not write_lock.acquire(patience):
        raise EngineBusy(f"another process held the write lock {write_lock.path} for more than {patience:g} s")
    try:
        return Connection(path, journal=journal)
    finally:
        write_lock.release()


def upgrade(connection: Connection, write_lock: WriteLock, patience: float) -> list[str]:
    """Bring the schema up to date, one transaction per step; answers the statements that were run."""
    done: list[str] = []
    if not planned(connection, patience):
        return done
    while True:
        begin(connection, write_lock, FULL, patience)
        try:
            migration = migrations.advance(lambda text, values: connection.run(text, tuple(values)), MIGRATIONS)
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
    """What the schema still needs. Refuses a schema that is newer than this code."""
    # A rollback journal shuts readers out while somebody commits.
    connection.pragma("busy_timeout", round(patience * 1000))
    exists = connection.run("SELECT 1 FROM sqlite_master WHERE name = ?", (migrations.LEDGER,))
    ledger = connection.run(migrations.read_ledger()) if exists else []
    connection.pragma("busy_timeout", 0)
    return migrations.pending(ledger, MIGRATIONS)


# --- for people -------------------------------------------------------------------------------------------------


def plan(path: str, journal: Journal, patience: float) -> list[str]:
    """The statements a migration would run."""
    return [statement for migration in lacking(path, journal, patience) for statement in migration.statements]


def lacking(path: str, journal: Journal, patience: float) -> list[migrations.Migration]:
    """Return the migrations that a file needs; a file that does not exist needs all."""
    if file_checks.identity(path) is None:
        return list(MIGRATIONS)
    connection = Connection(path, journal=journal)
    try:
        return planned(connection, patience)
    finally:
        connection.close()


def script(path: str, journal: Journal, patience: float) -> str:
    """Return what `migrate` would do as a script for the `sqlite3` shell."""
    return migrations.sql_text(lacking(path, journal, patience))


def migrate(path: str, journal: Journal, patience: float) -> list[str]:
    """Bring the schema of a file up to date; answers the statements that were run."""
    file_checks.inspect_path(path)
    side_folder = SideFolder(path)
    write_lock = WriteLock(side_folder.write_lock)
    try:
        side_folder.open(patience)
        connection = connected(path, journal, write_lock, patience)
        try:
            return upgrade(connection, write_lock, patience)
        finally:
            connection.close()
    finally:
        write_lock.close()
        side_folder.close()


def show_alive(liveness: LivenessFiles, worker: str, *, alive: bool) -> None:
    """Hold or drop a worker's liveness file. Without one its lease decides, only later."""
    if not alive:
        liveness.drop(worker)
        return
    # Refused: another engine of this process holds it already.
    with suppress(EngineRefused, OSError):
        liveness.hold(worker)
