"""`stoker migrate`."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest
from click.testing import CliRunner

from stoker.cli.command import stoker


@pytest.mark.spec("CLI-07")
def test_a_schema_is_planned_printed_made_and_then_up_to_date(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'jobs.db'}"
    run = CliRunner().invoke
    assert "statements are missing" in run(stoker, ["migrate", url, "--plan"]).output
    printed = run(stoker, ["migrate", url, "--sql"]).output
    assert "CREATE TABLE" in printed
    assert not (tmp_path / "jobs.db").exists(), "looking changes nothing"
    sqlite3.connect(":memory:").executescript(printed)
    assert "statements were run" in run(stoker, ["migrate", url]).output
    assert run(stoker, ["migrate", url]).output == "The schema is up to date.\n"
    assert run(stoker, ["migrate", url, "--sql"]).output == ""


@pytest.mark.spec("CLI-07")
def test_a_store_that_cannot_be_migrated_says_why() -> None:
    result = CliRunner().invoke(stoker, ["migrate", "nonsense://x"])
    assert result.exit_code == 1
    assert "nonsense" in result.output
