"""What an open engine holds: two connections, the gate, the signs of life, the bell; and how the schema comes about."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from stoker.engines.sql import migrations
from stoker.engines.sqlite import checks
from stoker.engines.sqlite.connection import VERSION_INFO, Connection, Journal
from stoker.engines.sqlite.flush import Coalescer
from stoker.engines.sqlite.gate import Gate
from stoker.engines.sqlite.life import SignOfLife
from stoker.engines.sqlite.transact import LONGEST_NAP, SHORTEST_NAP, Transactor
from stoker.engines.sqlite.waiting import Hub
from stoker.engines.sqlite.wake import Bell
from stoker.model.errors import EngineBusy
from stoker.model.time import Instant

MIGRATIONS = migrations.load("stoker.engines.sqlite")


@dataclass
class Inside:
    """Everything that `close` lets go of. Belongs to one loop and one process."""

    pid: int
    loop: asyncio.AbstractEventLoop
    connection: Connection
    reader: Connection
    gate: Gate
    life: SignOfLife
    bell: Bell
    hub: Hub
    coalescer: Coalescer
    warnings: list[str] = field(default_factory=list)
    listening: bool = False
    stirred: bool = False

    async def close(self) -> None:
        await self.coalescer.close()
        self.hub.dismiss()
        self.bell.close()
        self.life.close()
        self.reader.close()
        self.connection.close()
        self.gate.close()


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
    checks.inspect_path(path)
    gate = Gate(f"{path}.gate")
    connection, reader = await asyncio.to_thread(_connect, path, journal, gate, patience)
    warning = checks.version_warning(VERSION_INFO) if journal == "wal" else None
    return Inside(
        os.getpid(),
        loop,
        connection,
        reader,
        gate,
        SignOfLife(f"{path}.live"),
        Bell(f"{path}.wake", loop),
        Hub(),
        Coalescer(Transactor(connection, gate, clock, patience), fsync=fsync, always=journal == "delete", told=told),
        [warning] if warning else [],
    )


def _connect(path: str, journal: Journal, gate: Gate, patience: float) -> tuple[Connection, Connection]:
    connection = Connection(path, journal=journal)
    try:
        upgrade(connection, gate, patience)
        return connection, Connection(path, journal=journal, read_only=True)
    except BaseException:
        connection.close()
        gate.close()
        raise


def upgrade(connection: Connection, gate: Gate, patience: float) -> list[str]:
    """Bring the schema up to date, one transaction per step; answers the statements that were run."""
    done: list[str] = []
    if not planned(connection):
        return done
    while True:
        begun(connection, gate, patience)
        try:
            migration = migrations.advance(lambda text, values: connection.run(text, tuple(values)), MIGRATIONS)
            connection.commit()
        except BaseException:
            connection.rollback()
            raise
        finally:
            gate.leave()
        if migration is None:
            return done
        done += migration.statements


def planned(connection: Connection) -> list[migrations.Migration]:
    """What the schema still needs. Refuses a schema that is newer than this code."""
    exists = connection.run("SELECT 1 FROM sqlite_master WHERE name = ?", (migrations.LEDGER,))
    return migrations.pending(connection.run(migrations.read_ledger()) if exists else [], MIGRATIONS)


def begun(connection: Connection, gate: Gate, patience: float) -> None:
    """Begin to write, waiting for others, with the gate held."""
    deadline, nap = time.monotonic() + patience, SHORTEST_NAP
    while True:
        if not gate.enter(max(0.0, deadline - time.monotonic())):
            raise EngineBusy(f"another process held the gate {gate.path} for more than {patience:g} s")
        try:
            connection.begin()
        except EngineBusy:
            gate.leave()
            if time.monotonic() >= deadline:
                raise
        except BaseException:
            gate.leave()
            raise
        else:
            return
        time.sleep(nap)
        nap = min(nap * 2, LONGEST_NAP)
