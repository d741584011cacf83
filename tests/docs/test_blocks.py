"""Every Python block in the documentation runs: a page in order, in one namespace, in an empty directory.

A page that takes the address of a server from the environment finds a real one there, with a database to itself.
"""

from __future__ import annotations

import re
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from urllib.parse import urlsplit

import psycopg
import pytest
import redis

from tests.harness.django_settings import unconfigured

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
BLOCK = re.compile(r"^```python[^\n]*\n(.*?)^```", re.DOTALL | re.MULTILINE)


def blocks(page: str) -> list[tuple[int, str]]:
    """First line and text of each Python block of a page."""
    return [(page.count("\n", 0, match.start(1)), match[1]) for match in BLOCK.finditer(page)]


SERVERS = {"DATABASE_URL": "database_url", "REDIS_URL": "redis_database_url"}


@pytest.fixture
def database_url(postgres_url: str) -> Iterator[str]:
    """A database of the page's own: pages make tables, and the driver does not know our schema option."""
    name = f"page_{uuid.uuid4().hex}"
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        connection.execute(f"create database {name}".encode())
    yield urlsplit(postgres_url)._replace(path=f"/{name}").geturl()
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        connection.execute(f"drop database {name} with (force)".encode())


@pytest.fixture
def redis_database_url(redis_url: str) -> Iterator[str]:
    """A database that only pages use, empty afterwards."""
    url = urlsplit(redis_url)._replace(path="/9").geturl()
    yield url
    with redis.Redis.from_url(url) as client:
        client.flushdb()


PAGES_WITH_CODE = [path for path in PAGES if blocks(path.read_text(encoding="utf-8"))]


@pytest.mark.parametrize("path", PAGES_WITH_CODE, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_the_blocks_of_a_page_run(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    monkeypatch.chdir(tmp_path)
    for variable, fixture in SERVERS.items():
        if f'os.environ["{variable}"]' in path.read_text(encoding="utf-8"):
            monkeypatch.setenv(variable, request.getfixturevalue(fixture))
    page = ModuleType("__page__")  # dataclasses and models look their module up
    monkeypatch.setitem(sys.modules, page.__name__, page)
    with unconfigured():
        run(path, page)


def run(path: Path, page: ModuleType) -> None:
    for line, block in blocks(path.read_text(encoding="utf-8")):
        # Blank lines in front make a traceback point to the line of the page.
        exec(compile("\n" * line + block, str(path), "exec"), vars(page))


def test_blocks_are_found_with_their_lines() -> None:
    page = "# Title\n\n```python\na = 1\n```\n\n```sh\nls\n```\n\n```python\nb = a\n```\n"
    assert blocks(page) == [(3, "a = 1\n"), (11, "b = a\n")]
