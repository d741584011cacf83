"""Migrations: applied once, atomically, by the first process; older code works beside those that only add."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import time
from collections.abc import AsyncIterator
from contextlib import closing
from pathlib import Path

import pytest

from stoker.engines.sql.migrations import Migration
from stoker.engines.sqlite import schema
from stoker.engines.sqlite.connection import Connection
from stoker.engines.sqlite.engine import SqliteEngine
from stoker.model.errors import EngineError, SchemaMismatch
from stoker.model.ids import Mint
from stoker.model.job import Draft

pytestmark = pytest.mark.engine("sqlite")

mint = Mint(lambda: time.time_ns() // 1000, os.urandom)
KNOWN = schema.MIGRATIONS
NEXT = Migration(len(KNOWN) + 1, "next", "CREATE TABLE stoker_next (a); INSERT INTO stoker_next VALUES (1);")
BREAKING = Migration(NEXT.number, "gone", "-- breaking: stop all workers\nCREATE TABLE stoker_other (a);")
BROKEN = Migration(NEXT.number, "broken", "CREATE TABLE stoker_next (a); CREATE TABLE stoker_next (a);")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "jobs.db"


@pytest.fixture
async def engine(path: Path) -> AsyncIterator[SqliteEngine]:
    engine = SqliteEngine(path)
    yield engine
    await engine.close()


def versions(path: Path) -> list[int]:
    with closing(sqlite3.connect(path)) as connection:
        return [number for (number,) in connection.execute("SELECT number FROM stoker_migration ORDER BY number")]


def tables(path: Path) -> set[str]:
    with closing(sqlite3.connect(path)) as connection:
        return {name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}


@pytest.mark.spec("SQLITE-67", "SQLITE-78")
async def test_a_plan_changes_nothing_and_returns_what_would_be_run(path: Path, engine: SqliteEngine) -> None:
    planned = await engine.migrate(plan_only=True)
    assert planned
    assert list(path.parent.iterdir()) == []
    assert await engine.migrate() == planned
    assert await engine.migrate() == []
    assert await engine.migrate(plan_only=True) == []


@pytest.mark.spec("SQLITE-67", "SQLITE-78")
async def test_the_plan_run_by_hand_makes_the_same_tables(path: Path, engine: SqliteEngine, tmp_path: Path) -> None:
    by_hand = tmp_path / "by-hand.db"
    with closing(sqlite3.connect(by_hand)) as connection:
        for statement in await engine.migrate(plan_only=True):
            connection.execute(statement)
        connection.commit()
    await engine.migrate()
    assert tables(path) - {"stoker_migration"} == tables(by_hand)


@pytest.mark.spec("SQLITE-78")
async def test_opening_upgrades_and_keeps_what_is_stored(
    path: Path, engine: SqliteEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    await engine.open()
    job = Draft(job_id=mint(), kind="work")
    await engine.jobs.insert([job])
    await engine.close()
    monkeypatch.setattr(schema, "MIGRATIONS", (*KNOWN, NEXT))
    assert await engine.migrate(plan_only=True) == NEXT.statements
    assert "stoker_next" not in tables(path)
    await engine.open()
    assert (await engine.operator.get([job.job_id]))[0] is not None
    assert versions(path) == list(range(1, NEXT.number + 1))


@pytest.mark.spec("SQLITE-75", "SQLITE-78")
async def test_older_code_refuses_a_database_with_a_breaking_migration(
    engine: SqliteEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    await engine.migrate()
    monkeypatch.setattr(schema, "MIGRATIONS", (*KNOWN, BREAKING))
    with pytest.raises(SchemaMismatch, match=r"stop all workers.*--stopped"):
        await engine.open()
    await engine.migrate(stopped=True)
    monkeypatch.setattr(schema, "MIGRATIONS", KNOWN)
    sentence = rf"version {NEXT.number}.*up to {len(KNOWN)}.*stop all workers"
    for plan_only in (True, False):
        with pytest.raises(SchemaMismatch, match=sentence):
            await engine.migrate(plan_only=plan_only)
    with pytest.raises(SchemaMismatch, match=sentence):
        await engine.open()


@pytest.mark.spec("SQLITE-75", "SQLITE-78")
async def test_a_new_database_needs_no_word_for_a_breaking_migration(
    engine: SqliteEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(schema, "MIGRATIONS", (*KNOWN, BREAKING))
    await engine.open()
    assert await engine.migrate(plan_only=True) == []


@pytest.mark.spec("SQLITE-75")
async def test_older_code_works_beside_a_migration_that_only_added(
    engine: SqliteEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(schema, "MIGRATIONS", (*KNOWN, NEXT))
    await engine.migrate()
    monkeypatch.setattr(schema, "MIGRATIONS", KNOWN)
    assert await engine.migrate(plan_only=True) == []
    await engine.open()
    await engine.jobs.insert([Draft(job_id=mint(), kind="work")])


@pytest.mark.spec("SQLITE-64", "SQLITE-78")
async def test_a_migration_whose_text_changed_is_refused(engine: SqliteEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schema, "MIGRATIONS", (*KNOWN, NEXT))
    await engine.migrate()
    changed = Migration(NEXT.number, NEXT.name, "CREATE TABLE stoker_other (a)")
    monkeypatch.setattr(schema, "MIGRATIONS", (*KNOWN, changed))
    with pytest.raises(SchemaMismatch, match="another text"):
        await engine.open()


@pytest.mark.spec("SQLITE-65", "SQLITE-78")
async def test_one_that_fails_leaves_no_half_and_is_resumed(
    path: Path, engine: SqliteEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(schema, "MIGRATIONS", (*KNOWN, BROKEN))
    with pytest.raises(EngineError, match="stoker_next"):
        await engine.migrate()
    assert versions(path) == list(range(1, len(KNOWN) + 1))
    assert "stoker_next" not in tables(path)
    monkeypatch.setattr(schema, "MIGRATIONS", (*KNOWN, NEXT))
    assert await engine.migrate() == NEXT.statements
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("SELECT a FROM stoker_next").fetchall() == [(1,)]


@pytest.mark.spec("SQLITE-65", "SQLITE-78")
async def test_several_at_once_apply_each_step_once(
    path: Path, engine: SqliteEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    await engine.migrate()
    monkeypatch.setattr(schema, "MIGRATIONS", (*KNOWN, NEXT))
    results = await asyncio.gather(*(engine.for_loop().migrate() for _ in range(4)))
    assert sorted(results) == [[], [], [], NEXT.statements]
    assert versions(path) == list(range(1, NEXT.number + 1))


@pytest.mark.spec("SQLITE-65", "SQLITE-78")
@pytest.mark.parametrize("after", range(1, 8))
def test_one_killed_in_the_middle_is_resumed(path: Path, monkeypatch: pytest.MonkeyPatch, after: int) -> None:
    if (pid := os.fork()) == 0:
        calls, plain = 0, Connection.run

        def mortal(self: Connection, statement: str, values: tuple[object, ...] = ()) -> list[tuple[object, ...]]:
            nonlocal calls
            calls += not statement.startswith(("PRAGMA", "SELECT"))
            if calls > after:
                os._exit(9)
            return plain(self, statement, values)

        monkeypatch.setattr(Connection, "run", mortal)
        asyncio.run(SqliteEngine(path).migrate())
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 9

    async def resume() -> None:
        engine = SqliteEngine(path)
        await engine.open()
        await engine.jobs.insert([Draft(job_id=mint(), kind="work")])
        await engine.close()

    asyncio.run(resume())
    assert versions(path) == list(range(1, len(KNOWN) + 1))
