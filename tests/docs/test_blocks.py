"""Every block in the documentation runs: a page in order, in one namespace, in an empty directory.

A Python block with `file=NAME` is written there, for other blocks to import. In a `console` block the lines after `$`
are run by a shell, and what they print is compared with the page; `…` stands for any text. What a Python block prints
has to be in the `text output` block below it. A page that takes the address of a server from the environment finds a
real one there, with a database to itself.
"""

from __future__ import annotations

import contextlib
import io
import re
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import NamedTuple
from urllib.parse import urlsplit

import psycopg
import pytest
import redis

from tests.harness.django_settings import unconfigured

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
BLOCK = re.compile(r"^```(python|console|text(?= output))([^\n]*)\n(.*?)^```", re.DOTALL | re.MULTILINE)
ANY = "…"


class Block(NamedTuple):
    """One block of a page: the line it begins at, its language, the file it belongs into, and its text."""

    line: int
    language: str
    file: str | None
    text: str


def blocks(page: str) -> list[Block]:
    """What of a page runs."""
    return [
        Block(page.count("\n", 0, match.start(3)), match[1], _file(match[2]), match[3])
        for match in BLOCK.finditer(page)
    ]


def _file(info: str) -> str | None:
    return next((word.removeprefix("file=") for word in info.split() if word.startswith("file=")), None)


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


PAGES_WITH_CODE = [
    path for path in PAGES if blocks(path.read_text(encoding="utf-8")) and path.parent.name != "tutorial"
]
"""The pages of the tutorial share a folder: `test_first_hour.py` walks them."""


@pytest.mark.parametrize("path", PAGES_WITH_CODE, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_the_blocks_of_a_page_run(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    for variable, fixture in SERVERS.items():
        if f'os.environ["{variable}"]' in path.read_text(encoding="utf-8"):
            monkeypatch.setenv(variable, request.getfixturevalue(fixture))
    page = ModuleType("__page__")  # dataclasses and models look their module up
    monkeypatch.setitem(sys.modules, page.__name__, page)
    with unconfigured():
        try:
            run(path, page)
        finally:
            for name, module in list(sys.modules.items()):  # other pages have an app.py of their own
                if (getattr(module, "__file__", None) or "").startswith(str(tmp_path)):
                    del sys.modules[name]


def run(path: Path, page: ModuleType) -> None:
    exports: list[str] = []
    printed, line = "", 0
    for block in blocks(path.read_text(encoding="utf-8")):
        assert not printed or block.language == "text", f"the page does not show what line {line} prints: {printed}"
        if block.language == "console":
            run_commands(block.text, exports)
        elif block.language == "text":
            assert fits(printed, block.text), f"line {block.line}: {printed}\nis not\n{block.text}"
            printed = ""
        elif block.file is not None:
            Path(block.file).parent.mkdir(parents=True, exist_ok=True)
            Path(block.file).write_text(block.text, encoding="utf-8")
        else:
            # Blank lines in front make a traceback point to the line of the page.
            with contextlib.redirect_stdout(io.StringIO()) as caught:
                exec(compile("\n" * block.line + block.text, str(path), "exec"), vars(page))
            printed, line = caught.getvalue(), block.line
    assert not printed, f"the page does not show what line {line} prints: {printed}"


def fits(printed: str, expected: str) -> bool:
    """Whether a program printed what the page says."""
    return re.fullmatch(".*".join(re.escape(part) for part in expected.split(ANY)), printed, re.DOTALL) is not None


def run_commands(text: str, exports: list[str]) -> None:
    """Run each line after `$`, and compare its output with the lines below it. Exports last for the page."""
    for command, expected in commands(text):
        if command.startswith("export "):
            exports.append(command)
            continue
        script = "\n".join([*exports, command])
        done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, timeout=240, check=False)
        assert done.returncode == 0, f"$ {command}\n{done.stdout}{done.stderr}"
        assert fits(done.stdout, expected), f"$ {command}\n{done.stdout}\nis not\n{expected}"


def commands(text: str) -> list[tuple[str, str]]:
    """The commands of a console block, each with what it prints."""
    found: list[tuple[str, str]] = []
    for line in text.splitlines():
        if line.startswith("$ "):
            found.append((line.removeprefix("$ "), ""))
        else:
            command, expected = found[-1]
            found[-1] = (command, f"{expected}{line}\n")
    return found


def test_blocks_are_found_with_their_lines() -> None:
    page = "# Title\n\n```python\na = 1\n```\n\n```sh\nls\n```\n\n```python file=b.py\nb = a\n```\n"
    assert blocks(page) == [Block(3, "python", None, "a = 1\n"), Block(11, "python", "b.py", "b = a\n")]


def test_what_a_program_prints_is_compared_with_the_page(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    program = "```python\nprint('a', 1)\n```\n\n```text\nnot an output\n```\n\n"
    page.write_text(f"{program}```text output\na …\n```\n", encoding="utf-8")
    run(page, ModuleType("page"))
    page.write_text(f"{program}```text output\nb\n```\n", encoding="utf-8")
    with pytest.raises(AssertionError, match="line 9: a 1"):
        run(page, ModuleType("page"))
    page.write_text(f"{program}```python\npass\n```\n", encoding="utf-8")
    with pytest.raises(AssertionError, match="does not show what line 1 prints: a 1"):
        run(page, ModuleType("page"))
    page.write_text(program, encoding="utf-8")
    with pytest.raises(AssertionError, match="does not show what line 1 prints: a 1"):
        run(page, ModuleType("page"))


def test_commands_are_compared_with_what_they_print() -> None:
    assert commands("$ a\n$ b\nx\ny\n") == [("a", ""), ("b", "x\ny\n")]
    run_commands("$ printf 'a\\nb c\\n'\na\nb …\n", [])
    with pytest.raises(AssertionError, match="is not"):
        run_commands("$ echo a\nb\n", [])
    with pytest.raises(AssertionError, match="no such"):
        run_commands("$ echo no such; exit 3\n", [])
