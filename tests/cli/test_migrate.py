"""`stoker migrate`."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from click.testing import CliRunner

from stoker.app import Stoker
from stoker.cli.command import stoker
from stoker.model.job import Status

run = CliRunner().invoke


async def works(url: str) -> None:
    """Open the store as an app does, and use it."""
    async with Stoker(url) as jobs:
        jobs.declare("hello")
        handle = await jobs.enqueue(jobs.draft("hello"))
        assert (await handle.refresh()).status is Status.PENDING


@pytest.mark.spec("CLI-07")
def test_a_schema_is_planned_printed_made_and_then_up_to_date(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'jobs.db'}"
    assert "statements are missing" in run(stoker, ["migrate", url, "--plan"]).output
    assert "CREATE TABLE" in run(stoker, ["migrate", url, "--sql"]).output
    assert not (tmp_path / "jobs.db").exists(), "looking changes nothing"
    assert "statements were run" in run(stoker, ["migrate", url]).output
    assert run(stoker, ["migrate", url]).output == "The schema is up to date.\n"
    assert run(stoker, ["migrate", "--url", url]).output == "The schema is up to date.\n"
    assert run(stoker, ["migrate", url, "--sql"]).output == "-- Nothing to do.\n"


@pytest.mark.spec("CLI-09")
def test_the_printed_script_makes_a_sqlite_store_that_stoker_opens(tmp_path: Path) -> None:
    path = tmp_path / "jobs.db"
    url = f"sqlite:///{path}"
    connection = sqlite3.connect(path)
    connection.executescript(run(stoker, ["migrate", url, "--sql"]).output)
    connection.close()
    path.chmod(0o600)
    assert run(stoker, ["migrate", url]).output == "The schema is up to date.\n"
    asyncio.run(works(url))


@pytest.fixture
def place(postgres_url: str, postgres_schema: str) -> Iterator[str]:
    """A URL whose schema does not exist, and will not when the test is over."""
    name = f"{postgres_schema}_by_hand"[-60:]
    yield f"{postgres_url}{'&' if '?' in postgres_url else '?'}schema={name}"
    with psycopg.connect(postgres_url, autocommit=True) as admin:
        admin.execute(f'DROP SCHEMA IF EXISTS "{name}" CASCADE'.encode())


@pytest.mark.spec("CLI-09")
def test_the_printed_script_makes_a_postgres_store_that_stoker_opens(postgres_url: str, place: str) -> None:
    printed = run(stoker, ["migrate", place, "--sql"]).output
    with psycopg.connect(postgres_url, autocommit=True) as admin:
        admin.execute(printed.encode())
    assert run(stoker, ["migrate", place]).output == "The schema is up to date.\n"
    asyncio.run(works(place))


@pytest.mark.spec("CLI-10")
def test_an_app_can_be_named_instead_of_a_url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "named_app.py").write_text(
        f"from stoker import Stoker\njobs = Stoker('sqlite:///{tmp_path}/named.db')\n", encoding="utf-8"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    assert "statements were run" in run(stoker, ["migrate", "named_app:jobs"]).output
    assert (tmp_path / "named.db").exists()
    result = run(stoker, ["migrate", "no_such_module:jobs"])
    assert (result.exit_code, "no_such_module" in result.output) == (1, True)


@pytest.mark.spec("CLI-10")
@pytest.mark.parametrize("url", ["memory://", "redis://127.0.0.1:1/0"])
def test_a_store_without_a_schema_has_nothing_to_migrate(url: str) -> None:
    """The server is not even asked."""
    name = url.partition(":")[0]
    assert run(stoker, ["migrate", url]).output == f"A {name} store has no schema. Nothing to do.\n"
    assert run(stoker, ["migrate", url, "--plan"]).output == f"A {name} store has no schema. Nothing to do.\n"
    assert run(stoker, ["migrate", url, "--sql"]).output == f"-- A {name} store has no schema. Nothing to do.\n"


@pytest.mark.spec("CLI-07")
def test_a_store_that_cannot_be_migrated_prints_why() -> None:
    result = run(stoker, ["migrate", "nonsense://x"])
    assert result.exit_code == 2
    assert "nonsense" in result.output
