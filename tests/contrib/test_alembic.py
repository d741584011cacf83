"""Stoker's tables by a revision of Alembic: the one that the page on SQLAlchemy shows, on both databases."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from alembic import command
from alembic.config import Config
from click.testing import CliRunner

from stoker.cli.command import stoker
from tests.docs.test_blocks import ROOT, blocks, database_url
from tests.engines.postgres.openers import dialect

ENGINES = [pytest.param(name, marks=pytest.mark.engine(name)) for name in ("sqlite", "postgres")]
PAGE = blocks((ROOT / "docs/howto/sqlalchemy.md").read_text(encoding="utf-8"))
SHOP = """
import sqlalchemy as sa
from sqlalchemy import orm
from sqlalchemy.pool import NullPool

engine = sa.create_engine(URL, poolclass=NullPool)

class Base(orm.DeclarativeBase):
    pass

class User(Base):
    __tablename__ = "users"
    id: orm.Mapped[int] = orm.mapped_column(primary_key=True)
"""
TEMPLATE = "revision, down_revision = '${up_revision}', '0001'\n\ndef upgrade():\n    ${upgrades}\n"

__all__ = ["database_url"]


@pytest.mark.spec("CLI-09")
@pytest.mark.filterwarnings("ignore:Skipped unsupported reflection:sqlalchemy.exc.SAWarning")  # SQLite, of any table
@pytest.mark.parametrize("engine", ENGINES)
def test_a_revision_makes_the_tables_and_no_other_one_drops_them(
    engine: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    url = f"sqlite:///{tmp_path}/shop.db" if engine == "sqlite" else request.getfixturevalue("database_url")
    theirs = url if engine == "sqlite" else dialect(url, "psycopg").render_as_string(hide_password=False)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    Path("migrations/versions").mkdir(parents=True)
    Path("shop.py").write_text(f"URL = {theirs!r}\n{SHOP}", encoding="utf-8")
    Path("migrations/script.py.mako").write_text(TEMPLATE, encoding="utf-8")
    for block in PAGE:
        if block.file is not None and block.file.startswith("migrations/"):
            Path(block.file).write_text(block.text, encoding="utf-8")
    run = CliRunner().invoke
    Path("migrations/stoker_1.sql").write_text(run(stoker, ["migrate", url, "--sql"]).output, encoding="utf-8")
    config = Config()
    config.set_main_option("script_location", "migrations")
    try:
        command.upgrade(config, "head")
        assert run(stoker, ["migrate", url, "--plan"]).output == "The schema is up to date.\n"
        made: Any = command.revision(config, "users", autogenerate=True)
    finally:
        sys.modules.pop("shop", None)
    text = Path(made.path).read_text(encoding="utf-8")
    assert "op.create_table('users'" in text
    assert "drop" not in text
