"""Kill the process at every statement and every write of each action, in forked children."""

from __future__ import annotations

import asyncio
import json
import os
import pickle
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stoker.engines.sql import migrations
from stoker.engines.sql.migrations import Migration
from stoker.engines.sqlite import SqliteEngine
from tests.faults.fork_server import forked
from tests.faults.sqlite import actions
from tests.faults.sqlite.audit import audit, dump
from tests.faults.sqlite.syscalls import WRITES, Saboteur

DIED = 137


def furnished(folder: str) -> None:
    """Make the store that every action starts from."""
    held = asyncio.run(actions.furnish(Path(folder) / "jobs.db"))
    (Path(folder) / "held").write_bytes(pickle.dumps(held))


def explore(folder: str, name: str, *, by: str, every: int) -> dict[str, Any]:
    """Die at the n-th statement or write of one action, for every so many n; returns complaints.

    All or nothing: what is found is what was there before or what the whole action leaves, and doing it again, or
    going on without it, is as if nothing had happened.
    """
    prepared = Path(folder) / "jobs.db"
    place = Path(folder) / name.replace(" ", "-")
    before = dump(actions.copied(prepared, place))
    total, _ = attempt(place / "jobs.db", name, by, 0)
    after = dump(place / "jobs.db")
    complaints: list[str] = [f"whole: {words}" for words in audit(place / "jobs.db")]
    points = [*range(1, total, every), total]
    explorer = Explorer(prepared, name, by, before, after, ends=(1, total))
    died = 0
    other = place.with_suffix(".other")
    for seen, words in side_by_side(explorer.visit, [(place, points[::2]), (other, points[1::2])]):
        died += seen
        complaints += words
    shutil.rmtree(place)
    shutil.rmtree(other)
    return {"total": total, "points": len(points), "died": died, "complaints": complaints}


@dataclass
class Explorer:
    """Explores one action, knowing what was stored before and after it."""

    prepared: Path
    name: str
    by: str
    before: Any
    after: Any
    ends: tuple[int, int]

    def visit(self, place: Path, points: list[int]) -> tuple[int, list[str]]:
        """Die at each of the points; returns how often, and complaints."""
        died, complaints = 0, []
        path = actions.copied(self.prepared, place)
        for n in points:
            path = actions.copied(self.prepared, place)
            for end in ("-wal", "-shm"):
                path.with_name(path.name + end).unlink(missing_ok=True)
            _, code = attempt(path, self.name, self.by, n)
            died += code == DIED
            complaints += [f"{n}: {words}" for words in audit(path)]
            found = dump(path)
            if found not in (self.before, self.after):
                complaints.append(f"{n}: neither as before nor as after")
            if found == self.before and n in self.ends:
                attempt(path, self.name, self.by, 0)
                if dump(path) != self.after:
                    complaints.append(f"{n}: done again it gives something else")
        asyncio.run(drain(path))
        complaints += [f"drained: {words}" for words in audit(path)]
        return died, complaints


def side_by_side(work: Callable[..., Any], shares: list[tuple[Any, ...]]) -> list[Any]:
    """Run each share of the work in a child of its own, in parallel; returns the results in order."""
    pipes = []
    for share in shares:
        out, into = os.pipe()
        pid = forked(lambda share=share, into=into: report(into, work(*share)))  # type: ignore[misc]
        os.close(into)
        pipes.append((pid, out))
    results = []
    for pid, out in pipes:
        with os.fdopen(out, "rb") as pipe:
            results.append(json.loads(pipe.read() or b"null"))
        assert os.waitpid(pid, 0)[1] == 0
    return results


def report(into: int, result: Any) -> None:
    with os.fdopen(into, "wb") as pipe:
        pipe.write(json.dumps(result).encode())


def attempt(path: Path, name: str, by: str, n: int) -> tuple[int, int]:
    """Run an action in a child that dies at its n-th step (0: never); returns its steps and exit code."""
    out, into = os.pipe()
    pid = forked(lambda: asyncio.run(act(path, name, by, n, into)))
    os.close(into)
    with os.fdopen(out, "rb") as pipe:
        output = pipe.read()
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    assert code in (0, DIED), f"{name} {n} ended with {code}"
    return int(output or b"0"), code


async def act(path: Path, name: str, by: str, n: int, into: int) -> None:
    saboteur = Saboteur(WRITES)
    engine = SqliteEngine(path, clock=actions.late, durability="process")
    await engine.open()
    held = pickle.loads((path.parent.parent / "held").read_bytes())
    seen = 0

    def statement(_: str) -> None:
        nonlocal seen
        seen += 1
        if by == "statement" and seen == n:
            os._exit(DIED)

    resources = engine._store.resources()
    resources.connection._raw.set_trace_callback(statement)
    saboteur.arm(n if by == "write" else 0, end=True)
    await actions.ACTIONS[name](engine, held)
    resources.connection._raw.set_trace_callback(None)
    steps = seen if by == "statement" else saboteur.count
    saboteur.disarm()
    os.write(into, str(steps).encode())
    await engine.close()


async def drain(path: Path) -> None:
    clock = [actions.NOW]
    engine = SqliteEngine(path, clock=lambda: clock[0], durability="process")
    await engine.open()
    await actions.exhaust(engine, clock)
    await engine.close()


# --- migrations -------------------------------------------------------------------------------------------------


def explore_migration(folder: str, every: int) -> dict[str, Any]:
    """Die at the n-th statement of the schema and of a made-up second version; the next open must finish both."""
    place = Path(folder)
    whole = place / "whole.db"
    total, _ = migrate(whole, 0)
    wanted = {name: rows for name, rows in dump(whole).items() if name != migrations.LEDGER}
    complaints = []
    died = 0
    for n in range(1, total + 1, every):
        path = place / f"{n}.db"
        _, code = migrate(path, n)
        died += code == DIED
        migrate(path, 0)
        complaints += [f"{n}: {words}" for words in audit(path)]
        if {name: rows for name, rows in dump(path).items() if name != migrations.LEDGER} != wanted:
            complaints.append(f"{n}: another schema")
    return {"total": total, "died": died, "complaints": complaints}


def migrate(path: Path, n: int) -> tuple[int, int]:
    out, into = os.pipe()

    def work() -> None:
        from stoker.engines.sqlite import connection, schema

        text = "CREATE TABLE stoker_next (a); CREATE INDEX stoker_by_a ON stoker_next (a)"
        schema.MIGRATIONS = (*schema.MIGRATIONS, Migration(len(schema.MIGRATIONS) + 1, "next", text))
        run, seen = connection.Connection.run, 0

        def counted(self: Any, statement: str, values: Any = ()) -> Any:
            nonlocal seen
            seen += 1
            if seen == n:
                os._exit(DIED)
            return run(self, statement, values)

        connection.Connection.run = counted  # type: ignore[method-assign]
        asyncio.run(SqliteEngine(path).migrate())
        os.write(into, str(seen).encode())

    pid = forked(work)
    os.close(into)
    with os.fdopen(out, "rb") as pipe:
        output = pipe.read()
    return int(output or b"0"), os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
