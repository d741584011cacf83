"""Opening a database: what is refused, created and logged."""

from __future__ import annotations

import logging
import os
import sqlite3
import stat
import time
from collections.abc import AsyncIterator, Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from stoker import Stoker, Worker
from stoker.engines.sqlite import file_checks, schema, store
from stoker.engines.sqlite.engine import SqliteEngine
from stoker.model.errors import (
    CorruptRecord,
    EngineClosed,
    EngineReadOnly,
    EngineRefused,
    EngineUnavailable,
    InvalidOption,
    SchemaMismatch,
)
from stoker.model.ids import Mint
from stoker.model.job import Draft
from tests.engines.sqlite.children import child

pytestmark = pytest.mark.engine("sqlite")

mint = Mint(lambda: time.time_ns() // 1000, os.urandom)

OPENER = """
import asyncio, os, sys, time
from stoker.engines.sqlite.engine import SqliteEngine
from stoker.model.ids import Mint
from stoker.model.job import Draft
mint = Mint(lambda: time.time_ns() // 1000, os.urandom)
async def visit(path):
    engine = SqliteEngine(path)
    await engine.open()
    await engine.jobs.insert([Draft(job_id=mint(), kind="work")])
    await engine.close()
print("ready", flush=True)
while path := sys.stdin.readline().strip():
    try:
        asyncio.run(visit(path))
        print("ok", flush=True)
    except Exception as error:
        print(type(error).__name__, error, flush=True)
"""


def draft() -> Draft:
    return Draft(job_id=mint(), kind="work")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "jobs.db"


@pytest.fixture
async def made(path: Path) -> AsyncIterator[Callable[..., SqliteEngine]]:
    engines: list[SqliteEngine] = []

    def make(**options: Any) -> SqliteEngine:
        engines.append(SqliteEngine(path, **options))
        return engines[-1]

    yield make
    for engine in engines:
        await engine.close()


@pytest.mark.spec("SQLITE-75")
async def test_a_schema_that_this_code_does_not_survive_is_refused(
    path: Path, made: Callable[..., SqliteEngine]
) -> None:
    engine = made()
    await engine.open()
    await engine.jobs.insert([draft()])
    await engine.close()
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("INSERT INTO stoker_migration VALUES (99, 'future', 'x', 'stop all workers')")
    before = path.read_bytes()
    with pytest.raises(SchemaMismatch, match=r"version 99.*up to \d+.*upgrade this process"):
        await engine.open()
    with pytest.raises(EngineClosed):
        await engine.jobs.insert([draft()])
    assert path.read_bytes() == before


@pytest.mark.spec("SQLITE-52")
async def test_a_network_file_system_is_refused(
    path: Path, made: Callable[..., SqliteEngine], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file_checks, "filesystem", lambda folder: "nfs4")
    with pytest.raises(EngineRefused, match="nfs4"):
        await made().open()
    assert list(path.parent.iterdir()) == []


@pytest.mark.spec("SQLITE-53")
@pytest.mark.parametrize("journal", ["wal", "delete"])
async def test_everything_it_makes_is_for_its_owner_alone(
    path: Path, made: Callable[..., SqliteEngine], journal: str
) -> None:
    old = os.umask(0)
    try:
        engine = made(journal=journal)
        await engine.open()
        await engine.jobs.renew("w1", [], first=True)
        await engine.jobs.insert([draft()])
        await engine.jobs.wait(["default"], 0.001)
        modes = {file: stat.S_IMODE(file.lstat().st_mode) for file in path.parent.rglob("*")}
    finally:
        os.umask(old)
    assert path in modes
    assert {file.name: oct(mode) for file, mode in modes.items() if mode & 0o077} == {}


@pytest.mark.spec("SQLITE-53")
async def test_a_link_is_refused(path: Path, made: Callable[..., SqliteEngine]) -> None:
    target = path.with_name("target.db")
    engine = SqliteEngine(target)
    await engine.open()
    await engine.close()
    path.symlink_to(target)
    with pytest.raises(EngineRefused, match="symbolic link"):
        await made().open()


async def test_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(EngineUnavailable, match="nowhere"):
        await SqliteEngine(tmp_path / "nowhere" / "jobs.db").open()


@pytest.mark.spec("SQLITE-54")
async def test_a_place_that_cannot_be_written_to_is_read_only(
    made: Callable[..., SqliteEngine], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "access", lambda *args: False)
    with pytest.raises(EngineReadOnly):
        await made().open()


async def test_what_is_not_a_database_is_refused_and_left_alone(path: Path, made: Callable[..., SqliteEngine]) -> None:
    path.write_text("dear diary, " * 1000)
    with pytest.raises(CorruptRecord, match=r"jobs\.db"):
        await made().open()
    assert path.read_text().startswith("dear diary")


@pytest.mark.spec("SQLITE-76")
def test_two_processes_may_make_the_same_database_at_once(tmp_path: Path, campaign: bool) -> None:
    rounds = 200 if campaign else 20
    with child(OPENER) as first, child(OPENER) as second:
        assert [first.line(), second.line()] == ["ready", "ready"]
        for number in range(rounds):
            path = tmp_path / f"jobs{number}.db"
            first.say(str(path))
            second.say(str(path))
            assert [first.line(), second.line()] == ["ok", "ok"], number
            with closing(sqlite3.connect(path)) as connection:
                assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
                assert connection.execute("SELECT count(*) FROM stoker_migration").fetchone() == (
                    len(schema.MIGRATIONS),
                )
                assert connection.execute("SELECT count(*) FROM stoker_body").fetchone() == (2,)


@pytest.mark.spec("SQLITE-55")
@pytest.mark.parametrize(
    "version, journal, warned",
    [((3, 40, 1), "wal", True), ((3, 40, 1), "delete", False), ((3, 51, 3), "wal", False)],
)
async def test_an_affected_version_is_described_and_logged_by_a_worker_alone(
    made: Callable[..., SqliteEngine],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    version: tuple[int, ...],
    journal: str,
    warned: bool,
) -> None:
    monkeypatch.setattr(store, "VERSION_INFO", version)
    caplog.set_level(logging.INFO)
    engine = made(journal=journal)
    await engine.open()
    await engine.open()
    await engine.jobs.insert([draft()])
    found = await engine.describe()
    assert not [one for one in (*caplog.messages, *found.warnings) if "WAL-reset" in one]
    for _ in range(2):
        async with Stoker(f"sqlite:///{engine.path}?journal={journal}") as app, Worker(app, ["default"]):
            pass
    logged = [record for record in caplog.records if "WAL-reset" in record.message]
    assert [record.levelname for record in logged] == (["INFO"] if warned else [])
    assert [record.message for record in logged] == [one for one in found.notes if "3.40.1" in one]


@pytest.mark.spec("SQLITE-77")
@pytest.mark.parametrize(
    "durability, journal, synchronous",
    [
        ("power", "wal", {"full", "extra"}),
        ("process", "wal", {"normal"}),
        ("power", "delete", {"full", "extra"}),
        ("process", "delete", {"normal", "full"}),
    ],
)
async def test_durability_is_read_back(
    made: Callable[..., SqliteEngine], durability: str, journal: str, synchronous: set[str]
) -> None:
    engine = made(durability=durability, journal=journal)
    await engine.open()
    await engine.jobs.insert([draft()])
    description = await engine.describe()
    assert description.engine == "sqlite"
    assert description.version == sqlite3.sqlite_version
    assert description.durable
    assert description.facts["journal"] == journal
    assert description.facts["synchronous"] in synchronous
    assert description.facts["synchronous"] in description.durability
    assert description.size is not None and description.size > 0


@pytest.mark.spec("SQLITE-86")
async def test_size_busy_timeout_and_connections_are_told(made: Callable[..., SqliteEngine]) -> None:
    """The size is that of the database alone: the write-ahead log comes and goes."""
    engine = made(busy_timeout=7.5)
    await engine.open()
    await engine.jobs.insert([draft() for _ in range(500)])
    description = await engine.describe()
    with closing(sqlite3.connect(engine.path)) as connection:
        pages = int(connection.execute("PRAGMA page_count").fetchone()[0])
    assert description.log_size
    assert description.facts["wal_bytes"] == str(description.log_size)
    assert description.size == pages * 4096
    assert description.facts["database_bytes"] == str(description.size)
    assert description.facts["busy_timeout"] == "7.5 s"
    assert description.facts["connections"] == "2"
    async with engine.transaction():
        pass
    assert (await engine.describe()).facts["connections"] == "3"


@pytest.mark.spec("SQLITE-77")
@pytest.mark.parametrize("options", [{"durability": "maybe"}, {"journal": "off"}])
def test_an_unknown_choice_is_refused(path: Path, options: dict[str, Any]) -> None:
    with pytest.raises(InvalidOption):
        SqliteEngine(path, **options)


@pytest.mark.spec("SQLITE-56")
@pytest.mark.parametrize("how", ["deleted", "replaced"])
async def test_a_file_that_is_no_longer_the_one_is_never_written_to(
    path: Path, made: Callable[..., SqliteEngine], how: str
) -> None:
    engine = made()
    await engine.open()
    await engine.jobs.insert([draft()])
    path.rename(path.with_name("moved.db"))
    if how == "replaced":
        path.touch(0o600)
    with pytest.raises(EngineUnavailable, match="deleted or replaced"):
        await engine.jobs.insert([draft()])
    assert how == "deleted" or path.stat().st_size == 0
    # Back in its place, it is itself again.
    path.with_name("moved.db").rename(path)
    await engine.jobs.insert([draft()])


async def test_opening_and_closing_twice_is_harmless(made: Callable[..., SqliteEngine]) -> None:
    engine = made()
    await engine.open()
    await engine.open()
    job = draft()
    await engine.jobs.insert([job])
    await engine.close()
    await engine.close()
    await engine.open()
    assert (await engine.operator.get([job.job_id]))[0] is not None


async def test_nothing_is_left_behind_by_closed_engines(path: Path, made: Callable[..., SqliteEngine]) -> None:
    fds = Path("/proc/self/fd")
    counted = []
    for _ in range(5):
        engine = made()
        await engine.open()
        await engine.jobs.renew("w1", [], first=True)
        await engine.jobs.wait(["default"], 0.001)
        await engine.jobs.insert([draft()])
        await engine.jobs.renew("w1", [], lease=0)
        await engine.close()
        counted.append(len(list(fds.iterdir())) if fds.exists() else 0)
    assert counted[-1] <= counted[0]
    leftovers = {file.name for file in path.parent.rglob("*") if file.is_socket() or file.name.endswith(".alive")}
    assert leftovers == set()
