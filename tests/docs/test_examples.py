"""Every example runs from a bare folder and says nothing on the error stream but log lines."""

from __future__ import annotations

import ast
import asyncio  # noqa: F401 - the page uses it
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.orm import Session, sessionmaker
from sqlalchemy.pool import NullPool

from stoker import Stoker, current  # noqa: F401 - the page uses it
from stoker.testing import TestKit

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_an_example_runs(path: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-W", "error", str(path)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout
    assert "WAL-reset" not in done.stdout + done.stderr


@pytest.mark.spec("SQLITE-55")
def test_the_program_of_the_readme_prints_its_greeting_and_no_line_more(tmp_path: Path) -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    found = re.search(r"^```python file=app.py\n(.*?)^```", readme, re.DOTALL | re.MULTILINE)
    assert found is not None
    (tmp_path / "app.py").write_text(found[1], encoding="utf-8")
    command = [sys.executable, "-W", "error", "app.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=240, check=False)
    assert (done.stdout, done.stderr, done.returncode) == ("hello world\n", "", 0)


def test_the_readme_answers_a_newcomers_questions_in_their_order() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    headings = re.findall(r"^## (.+)$", readme, re.MULTILINE)
    first = ["Why Stoker", "A first program", "Durable jobs", "Guarantees", "How it compares"]
    assert headings == [*first, "Install", "Two commands", "Documentation"]
    why = readme.partition("## Why Stoker")[2].partition("\n## ")[0]
    assert len(re.findall(r"^- \*\*", why, re.MULTILINE)) == 5
    assert readme.index("![") < readme.index("## Why Stoker")


@dataclass
class Approval:
    yes: bool


@dataclass
class Quote:
    cents: int
    boxes: list[str]


def ask_suppliers(order: int) -> Quote:
    return Quote(100 * order, ["books", "lamp"])


def charge(session: Session, order: int, cents: int) -> None:
    session.execute(text("insert into charges values (:order, :cents)"), {"order": order, "cents": cents})


async def test_the_durable_job_of_the_readme_does_what_its_lines_say() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    found = re.search(r"^```python file=order.py\n(.*?)^```", readme, re.DOTALL | re.MULTILINE)
    assert found is not None
    handler, call, sends = found[1].partition("\nawait jobs.handle")
    assert found[1].count("\n") == 14
    jobs = Stoker("sqlite:///jobs.db")
    mails: list[Any] = []

    @jobs.task
    async def label(box: str) -> str:
        return f"label for {box}"

    def send_mail(order: int, labels: list[str]) -> None:
        mails.append((order, labels))

    async with TestKit(jobs, "sqlite") as kit:
        database = create_engine(f"sqlite:///{kit.where}", poolclass=NullPool)
        names: dict[str, Any] = {**globals(), **locals(), "Session": sessionmaker(database)}
        exec(compile(handler, "README.md", "exec"), names)
        with database.begin() as connection:
            connection.execute(text("create table charges (order_id integer, cents integer)"))
        job = await names["order"].enqueue(7)
        await kit.drain()
        assert [step.name for step in await job.steps()] == ["quote", "approval"]
        with names["Session"].begin() as session:
            names |= {"job_id": job.id, "session": session}
            code = compile(call + sends, "README.md", "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
            await eval(code, names)
        await kit.drain()
        assert not mails
        await kit.advance(14 * 86400)
        assert await job.result() == "thanked"
        assert mails == [(7, ["label for books", "label for lamp"])]
        with database.connect() as connection:
            assert connection.execute(text("select * from charges")).all() == [(7, 700)]
