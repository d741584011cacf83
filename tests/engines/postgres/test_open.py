"""Opening: options, schemas made, refused and upgraded, and who may use an open engine."""

from __future__ import annotations

import asyncio
import os
import threading
import time
import uuid
from typing import Any
from urllib.parse import urlsplit

import psycopg
import pytest

from stoker.engines.postgres import PostgresEngine
from stoker.engines.postgres.statements import MIGRATIONS, STATEMENTS, placed
from stoker.engines.postgres.url import read_url, shown
from stoker.engines.sql.migrations import Migration
from stoker.engines.url import engine_from_url
from stoker.model.errors import (
    EngineClosed,
    EngineRefused,
    EngineUnavailable,
    InvalidOption,
    InvalidPayload,
    SchemaMismatch,
)
from stoker.model.ids import Mint
from stoker.model.job import Demand, Draft, Note, Verdict
from stoker.model.lifecycle import conclude
from stoker.model.outcome import Rejected
from tests.harness.proxy import Proxy

pytestmark = pytest.mark.engine("postgres")

mint = Mint(lambda: time.time_ns() // 1000, os.urandom)
NOTHING: dict[str, Any] = dict.fromkeys(("schema", "migrate", "pooler", "direct", "timeout"))


# --- options ----------------------------------------------------------------------------------------------------


@pytest.mark.spec("PGOPEN-01")
def test_what_is_ours_in_a_url_is_taken_out_of_it() -> None:
    """Keyword before query before default; the driver gets its own parameters and a scheme it knows."""
    url = "postgresql+asyncpg://u:p%40ss@host:1/db?schema=jobs&sslmode=require&timeout=3&pooler=transaction"
    found = read_url(url, clock=None, given=NOTHING)
    assert found.url == "postgresql://u:p%40ss@host:1/db?sslmode=require"
    assert (found.schema, found.patience, found.pooler, found.migrate) == ("jobs", 3.0, "transaction", "manual")
    for said in ("mine", "stoker"):
        assert read_url(url, clock=None, given={**NOTHING, "schema": said}).schema == said, "the default too, if said"


@pytest.mark.spec("PGOPEN-01")
@pytest.mark.parametrize(
    "wrong",
    [{"schema": 'a"b'}, {"schema": "1a"}, {"pooler": "session"}, {"migrate": "yes"}, {"timeout": 0}, {"timeout": "x"}],
    ids=str,
)
def test_an_option_that_cannot_be_is_refused(wrong: dict[str, Any]) -> None:
    [name] = wrong
    with pytest.raises(InvalidOption, match=name):
        PostgresEngine("postgresql://h/db", **wrong)


@pytest.mark.spec("PGOPEN-01")
def test_a_url_makes_an_engine() -> None:
    engine = engine_from_url("postgres://host/db?schema=jobs", timeout=2.0)
    assert isinstance(engine, PostgresEngine)
    assert (engine._options.schema, engine._options.patience) == ("jobs", 2.0)


@pytest.mark.spec("PGOPEN-02")
async def test_no_message_shows_a_password() -> None:
    """Where no server answers the error names host and database, and nothing else of the URL."""
    assert shown("postgresql://u:secret@h:1/db?password=secret") == "postgres h:1/db"
    with pytest.raises(EngineUnavailable) as caught:
        await PostgresEngine("postgresql://user:secret@127.0.0.1:9/db", timeout=2.0).open()
    assert "127.0.0.1:9/db" in str(caught.value)
    assert "secret" not in str(caught.value)


@pytest.mark.spec("PGOPEN-09")
async def test_a_server_that_falls_silent_leaves_the_outcome_open(postgres_url: str, postgres_schema: str) -> None:
    """Whether a call took effect that was not answered in time is not known, and the error says so."""
    with Proxy(postgres_url) as proxy:
        engine = PostgresEngine(proxy.url, schema=postgres_schema, timeout=2)
        await engine.open()
        try:
            proxy.blackhole()
            with pytest.raises(EngineUnavailable, match=r"within 2 s\. Whether the call took effect is not known"):
                await engine.jobs.insert([Draft(mint(), "work")])
        finally:
            await engine.close()


@pytest.mark.spec("PGOPEN-03")
def test_every_statement_names_its_schema() -> None:
    """Put into another schema, no statement and no migration says `stoker.` any more: no search path is asked."""
    texts = [*STATEMENTS.values(), *(migration.text for migration in MIGRATIONS)]
    for text in texts:
        assert "stoker." not in placed(text, "elsewhere")


# --- the schema -------------------------------------------------------------------------------------------------


@pytest.mark.spec("PGOPEN-04")
async def test_an_absent_schema_is_made_and_nothing_is_left_to_do(postgres_url: str, postgres_schema: str) -> None:
    """Also by an engine that only says what it would do, which does nothing."""
    name = f"{postgres_schema}_made"[-60:]
    engine = PostgresEngine(postgres_url, schema=name)
    plan = await engine.migrate(plan_only=True)
    assert any("CREATE TABLE" in statement and f'"{name}".job' in statement for statement in plan)
    with psycopg.connect(postgres_url, autocommit=True) as admin:
        assert admin.execute("select to_regnamespace(%s)", (name,)).fetchone() == (None,)
        await engine.open()
        await engine.open()
        assert await engine.migrate(plan_only=True) == []
        assert await engine.migrate() == []
        await engine.close()
        await engine.close()
        admin.execute(f"drop schema {name} cascade".encode())


@pytest.mark.spec("PGOPEN-04")
async def test_an_older_schema_is_refused_unless_asked_to_upgrade(
    postgres_url: str, postgres_schema: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The refusal names what is missing and the command; with migrate="auto" it is applied at open."""
    await (first := PostgresEngine(postgres_url, schema=postgres_schema)).open()
    await first.close()
    later = Migration(MIGRATIONS[-1].number + 1, "later", "CREATE TABLE stoker.later (n int);")
    monkeypatch.setattr("stoker.engines.postgres.schema.MIGRATIONS", (*MIGRATIONS, later))
    with pytest.raises(SchemaMismatch, match=rf"{later}.*stoker migrate"):
        await PostgresEngine(postgres_url, schema=postgres_schema).open()
    engine = PostgresEngine(postgres_url, schema=postgres_schema, migrate="auto")
    await engine.open()
    await engine.close()
    assert await engine.migrate(plan_only=True) == []


@pytest.mark.spec("PGOPEN-10")
async def test_a_breaking_migration_waits_for_the_word_that_older_processes_have_stopped(
    postgres_url: str, postgres_schema: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    older = PostgresEngine(postgres_url, schema=postgres_schema)
    await older.open()
    adds = Migration(MIGRATIONS[-1].number + 1, "adds", "CREATE TABLE stoker.later (n int);")
    breaks = Migration(adds.number + 1, "breaks", "-- breaking: stop all workers\nDROP TABLE stoker.later;")
    monkeypatch.setattr("stoker.engines.postgres.schema.MIGRATIONS", (*MIGRATIONS, adds, breaks))
    newer = PostgresEngine(postgres_url, schema=postgres_schema, migrate="auto")
    with pytest.raises(SchemaMismatch, match=r"stop all workers.*--stopped"):
        await newer.open()
    assert len(await newer.migrate(plan_only=True)) == 1  # the one that only adds was applied
    monkeypatch.setattr("stoker.engines.postgres.schema.MIGRATIONS", MIGRATIONS)
    again = PostgresEngine(postgres_url, schema=postgres_schema)
    await again.open()
    for engine in (older, again):
        await engine.jobs.insert([Draft(mint(), "work")])
        await engine.close()
    monkeypatch.setattr("stoker.engines.postgres.schema.MIGRATIONS", (*MIGRATIONS, adds, breaks))
    assert len(await newer.migrate(stopped=True)) == 1
    monkeypatch.setattr("stoker.engines.postgres.schema.MIGRATIONS", MIGRATIONS)
    with pytest.raises(SchemaMismatch, match=r"stop all workers.*upgrade this process"):
        await again.open()


@pytest.mark.spec("PGOPEN-11")
async def test_a_database_that_cannot_store_every_text_is_refused(postgres_url: str) -> None:
    """A migration that made the schema there would say that all is well, and no worker could open it."""
    name = f"ascii_{uuid.uuid4().hex}"
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        connection.execute(
            f"create database {name} encoding 'SQL_ASCII' lc_collate 'C' lc_ctype 'C' template template0"
        )
        url = urlsplit(postgres_url)._replace(path=f"/{name}").geturl()
        engine = PostgresEngine(url)
        try:
            for refused in (engine.open(), engine.migrate(plan_only=True), engine.migration_script(), engine.migrate()):
                with pytest.raises(EngineRefused, match="stores text as SQL_ASCII; Stoker needs UTF8"):
                    await refused
            with psycopg.connect(url) as made:
                assert made.execute("select to_regnamespace('stoker')").fetchone() == (None,)
        finally:
            connection.execute(f"drop database {name} with (force)".encode())


@pytest.mark.spec("PGOPEN-05")
async def test_schemas_do_not_know_each_other(postgres_url: str, postgres_schema: str) -> None:
    """Two apps in one database have each their own jobs."""
    other = PostgresEngine(postgres_url, schema=f"{postgres_schema[:50]}_b")
    engine = PostgresEngine(postgres_url, schema=postgres_schema)
    await engine.open()
    await other.open()
    await engine.jobs.insert([Draft(mint(), "work")])
    await other.jobs.renew("w1", [], first=True)
    assert await other.jobs.claim(Demand("w1", (("default", 1),))) == []
    await engine.close()
    await other.close()
    with psycopg.connect(postgres_url, autocommit=True) as admin:
        admin.execute(f"drop schema {postgres_schema[:50]}_b cascade".encode())


# --- who may use it ---------------------------------------------------------------------------------------------


@pytest.mark.spec("PGOPEN-06")
async def test_an_engine_that_is_not_open_says_so(postgres_url: str, postgres_schema: str) -> None:
    engine = PostgresEngine(postgres_url, schema=postgres_schema)
    with pytest.raises(EngineClosed, match="not open"):
        await engine.jobs.insert([Draft(mint(), "work")])
    await engine.open()
    await engine.close()
    with pytest.raises(EngineClosed, match="not open"):
        await engine.jobs.claim(Demand("w1", (("default", 1),)))


@pytest.mark.spec("PGOPEN-06")
async def test_another_loop_needs_a_twin(postgres_url: str, postgres_schema: str) -> None:
    """A foreign loop is told so; its own twin works."""
    engine = PostgresEngine(postgres_url, schema=postgres_schema)
    await engine.open()
    said: list[Any] = []

    async def elsewhere() -> None:
        with pytest.raises(EngineRefused, match="another event loop") as refused:
            await engine.jobs.insert([Draft(mint(), "work")])
        said.append(refused)
        twin = engine.for_loop()
        await twin.open()
        said.append(await twin.jobs.insert([Draft(mint(), "work")]))
        await twin.close()

    thread = threading.Thread(target=lambda: asyncio.run(elsewhere()))
    thread.start()
    await asyncio.to_thread(thread.join)
    assert len(said) == 2
    await engine.close()


@pytest.mark.spec("PGOPEN-07")
async def test_a_payload_that_is_no_text_is_refused_before_anything_is_stored(
    postgres_url: str, postgres_schema: str
) -> None:
    engine = PostgresEngine(postgres_url, schema=postgres_schema)
    await engine.open()
    good, bad = Draft(mint(), "work"), Draft(mint(), "work", b"\xff\xfe")
    with pytest.raises(InvalidPayload, match="UTF-8"):
        await engine.jobs.insert([good, bad])
    assert await engine.operator.get([good.job_id, bad.job_id]) == [None, None]
    await engine.close()


@pytest.mark.spec("PGOPEN-08")
async def test_what_is_said_about_a_run_never_keeps_it_from_ending(postgres_url: str, postgres_schema: str) -> None:
    """NUL and half a surrogate pair cannot be stored: they are spelled out, in errors and in log lines."""
    engine = PostgresEngine(postgres_url, schema=postgres_schema)
    await engine.open()
    await engine.jobs.renew("w1", [], first=True)
    await engine.jobs.insert([Draft(mint(), "work")])
    [claim] = await engine.jobs.claim(Demand("w1", (("default", 1),)))
    odd = "a\0b\ud800c"
    note = Note(claim.id, claim.worker, claim.token, lines=(odd,), ref=claim.ref)
    assert await engine.jobs.note([note]) == [Verdict.APPLIED]
    assert (await engine.jobs.settle([conclude(claim, Rejected(odd))])).verdicts == [Verdict.APPLIED]
    [record] = await engine.operator.get([claim.id])
    assert record is not None
    assert (record.last_error, record.log) == ("a\\x00b\\ud800c", ("a\\x00b\\ud800c",))
    await engine.close()
