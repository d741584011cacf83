"""The views for people: one row per job, the same columns on both stores."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import AsyncIterator, Callable
from datetime import datetime
from pathlib import Path
from typing import Any, TypeAlias

import psycopg
import pytest

from stoker.app import Stoker
from stoker.context import current
from stoker.engines.postgres import PostgresEngine
from stoker.engines.sqlite import SqliteEngine
from stoker.model.job import Status
from stoker.model.query import Discard, Selection
from stoker.model.retry import Fixed
from tests.harness.apps import drain, until, working

COLUMNS = (
    *("id", "kind", "queue", "status", "priority", "attempts", "max_attempts", "payload", "result", "created_at"),
    *("scheduled_at", "started_at", "finished_at", "expires_at", "last_error", "tenant", "unique_key", "worker"),
    *("progress", "metadata"),
)
Rows: TypeAlias = Callable[[], list[dict[str, Any]]]


def read_sqlite(path: Path) -> list[dict[str, Any]]:
    connection = sqlite3.connect(path)
    try:
        found = connection.execute("SELECT * FROM stoker_jobs ORDER BY id")
        names = [column[0] for column in found.description]
        return [dict(zip(names, row, strict=True)) for row in found]
    finally:
        connection.close()


def read_postgres(url: str, schema: str) -> list[dict[str, Any]]:
    with psycopg.connect(url) as connection:
        found = connection.execute(f'SELECT * FROM "{schema}".jobs ORDER BY id'.encode())
        names = [column.name for column in found.description or ()]
        return [dict(zip(names, row, strict=True)) for row in found]


@pytest.fixture(params=[pytest.param(name, marks=pytest.mark.engine(name)) for name in ("sqlite", "postgres")])
async def viewed(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[tuple[Stoker, Rows]]:
    """An app, and a reader of its store's view by another driver."""
    if request.param == "sqlite":
        path = tmp_path / "jobs.db"
        app = Stoker(SqliteEngine(path, durability="process"))
        yield app, lambda: read_sqlite(path)
    else:
        url, schema = request.getfixturevalue("postgres_url"), request.getfixturevalue("postgres_schema")
        app = Stoker(PostgresEngine(url, schema=schema))
        yield app, lambda: read_postgres(url, schema)
    await app.close()


def moment(value: Any) -> datetime | None:
    return datetime.fromisoformat(value) if isinstance(value, str) else value


def parsed(value: Any) -> Any:
    return json.loads(value) if isinstance(value, str | bytes) else value


@pytest.mark.spec("VIEW-01")
async def test_a_row_says_what_the_record_says(viewed: tuple[Stoker, Rows]) -> None:
    jobs, rows = viewed

    @jobs.task(queue="mail", attempts=3, backoff=Fixed(60))
    async def send(to: str) -> dict[str, int]:
        current().metadata["step"] = "two"
        if to == "nobody":
            raise ValueError("no such address")
        return {"sent": 1}

    @jobs.task(queue="slow")
    async def hang() -> None:
        current().progress(0.5)
        await current().stopping

    handles = [
        await send.using(tenant="acme", priority=5, metadata={"a": "1"}).enqueue("ada"),
        await send.using(attempts=1, unique="one").enqueue("nobody"),
        await send.enqueue("nobody"),
        await send.using(delay=3600).enqueue("later"),
        await send.using(delay=3600).enqueue("never"),
    ]
    await handles[-1].cancel()
    await drain(jobs)
    last = await hang.enqueue()
    async with working(jobs, ["slow"]) as worker:
        await until(lambda: worker.runs)
        found = {row["id"] if isinstance(row["id"], str) else str(row["id"]): row for row in rows()}
        records = [await handle.refresh() for handle in (*handles, last)]
        assert len(found) == len(records)
        for job in records:
            row = found[job.id]
            assert tuple(row) == COLUMNS
            assert row["status"] == job.status
            plain = ("kind", "queue", "priority", "attempts", "last_error", "tenant", "worker")
            assert {name: row[name] for name in plain} == {name: getattr(job, name) for name in plain}
            assert row["max_attempts"] == job.budget
            assert row["unique_key"] == (None if job.unique is None else job.unique.key)
            for name in ("created_at", "scheduled_at", "started_at", "finished_at", "expires_at"):
                assert moment(row[name]) == getattr(job, name), name
            assert parsed(row["payload"]) == json.loads(job.payload)
            assert parsed(row["result"]) == (None if job.result is None else json.loads(job.result))
            assert parsed(row["metadata"]) == job.metadata
    assert {row["status"] for row in found.values()} == {
        *(Status.DONE, Status.DEAD, Status.RETRYING, Status.PENDING, Status.CANCELED, Status.RUNNING),
    }


@pytest.mark.spec("VIEW-01")
async def test_what_operators_did_is_a_status_too(viewed: tuple[Stoker, Rows]) -> None:
    jobs, rows = viewed

    @jobs.task(attempts=1)
    async def fail() -> None:
        raise ValueError

    job = await fail.enqueue()
    await drain(jobs)
    engine = await jobs.engine()
    await engine.operator.alter(Selection((job._id,)), Discard())
    assert [row["status"] for row in rows()] == ["discarded"]


@pytest.mark.spec("VIEW-02")
async def test_an_unreadable_row_does_not_spoil_the_others(
    viewed: tuple[Stoker, Rows], request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    jobs, rows = viewed

    @jobs.task
    async def send(to: str) -> None: ...

    good, bad = await send.enqueue("ada"), await send.using(metadata={"a": "1"}).enqueue("bob")
    engine = await jobs.engine()
    if engine.name == "sqlite":
        connection = sqlite3.connect(tmp_path / "jobs.db")
        connection.execute("UPDATE stoker_body SET payload = '{', options = '{' WHERE id = ?", (bad._id,))
        connection.commit()
        connection.close()
    else:
        url, schema = request.getfixturevalue("postgres_url"), request.getfixturevalue("postgres_schema")
        with psycopg.connect(url) as other:
            other.execute(
                f"UPDATE \"{schema}\".job SET payload = '{{', options = '{{' WHERE id = %s".encode(), (bad.id,)
            )
    found = {str(row["id"]): row for row in rows()}
    assert found[bad.id]["payload"] == "{"
    assert parsed(found[bad.id]["metadata"]) == {}
    assert parsed(found[good.id]["payload"]) == {"to": "ada"}
