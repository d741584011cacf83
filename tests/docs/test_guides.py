"""The guides for users of other systems: the shop before and after, each with its real worker, sends the same mails."""

from __future__ import annotations

import ast
import importlib.util
import inspect
import os
import re
import shlex
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import get_args, get_type_hints
from urllib.parse import urlsplit

import psycopg
import pytest
import redis

import stoker
from stoker.model.unique import Mode
from stoker.options import OPTIONS
from stoker.registry import POLICY
from stoker.schedules import ScheduleOptions
from tests.docs.test_blocks import ROOT, blocks

GUIDES = {
    path.stem.removeprefix("coming-from-"): path for path in sorted((ROOT / "docs" / "guides").glob("coming-from-*.md"))
}
INSTALLED = [peer for peer in GUIDES if importlib.util.find_spec(peer) is not None]
SH = re.compile(r"^```sh\n(.*?)^```", re.DOTALL | re.MULTILINE)
SENT = re.compile(r"to `sent.txt`, .*?^```text\n(.*?)^```", re.DOTALL | re.MULTILINE)
WORKER = re.compile(r"\b(work|worker|arq|dramatiq|huey_consumer)\b")
"""A command that does not end by itself."""
PATIENCE = 120.0
"""Seconds in which a worker starts and sends its mails, also on a busy machine."""


@pytest.fixture(scope="module")
def environment(postgres_url: str, redis_url: str) -> Iterator[dict[str, str]]:
    """The commands of this environment, a database and a number of Redis that only the guides use."""
    name = f"guides_{uuid.uuid4().hex}"
    numbered = urlsplit(redis_url)._replace(path="/8").geturl()
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        connection.execute(f"create database {name}".encode())
        try:
            yield {
                **os.environ,
                "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
                "DATABASE_URL": urlsplit(postgres_url)._replace(path=f"/{name}").geturl(),
                "REDIS_URL": numbered,
            }
        finally:
            connection.execute(f"drop database {name} with (force)".encode())
            with redis.Redis.from_url(numbered) as client:
                client.flushdb()


@pytest.fixture(scope="module")
def shops(environment: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, list[Path]]]:
    """The shops of every guide, all at once: most of their time is waiting."""
    workers: list[subprocess.Popen[bytes]] = []
    try:
        yield {
            peer: [open_shop(tmp_path_factory.mktemp(peer), peer, number, environment, workers) for number in range(2)]
            for peer in INSTALLED
        }
    finally:
        for worker in workers:
            worker.terminate()
        for worker in workers:
            try:
                worker.wait(timeout=PATIENCE)
            except subprocess.TimeoutExpired:
                worker.kill()
                worker.wait()


@pytest.mark.parametrize("peer", GUIDES)
def test_the_shop_sends_the_same_mails_before_and_after(peer: str, request: pytest.FixtureRequest) -> None:
    if peer not in INSTALLED:
        pytest.skip(f"{peer} is not installed")
    before, after = request.getfixturevalue("shops")[peer]
    [sent] = SENT.findall(GUIDES[peer].read_text(encoding="utf-8"))
    expected = sent.splitlines()
    assert mails(before, len(expected)) == mails(after, len(expected)) == expected


def open_shop(
    folder: Path, peer: str, number: int, environment: dict[str, str], workers: list[subprocess.Popen[bytes]]
) -> Path:
    """Write the files of the shop before (0) or after (1), and run its commands; its workers go on."""
    page = GUIDES[peer].read_text(encoding="utf-8")
    for block in blocks(page):
        owner, _, file = (block.file or "").rpartition("/")
        if block.file and owner in {"", ("before", "after")[number]}:
            (folder / file).write_text(block.text, encoding="utf-8")
    for command in SH.findall(page)[number].splitlines():
        words = shlex.split(command)
        if WORKER.search(command):
            with (folder / "worker.log").open("ab") as log:
                workers.append(subprocess.Popen(words, cwd=folder, env=environment, stdout=log, stderr=log))
        else:
            subprocess.run(words, cwd=folder, env=environment, check=True, timeout=PATIENCE)
    return folder


def mails(folder: Path, expected: int) -> list[str]:
    """Wait until this many mails are sent, and return them, sorted."""
    limit, file, lines = time.monotonic() + PATIENCE, folder / "sent.txt", list[str]()
    while time.monotonic() < limit:
        lines = file.read_text(encoding="utf-8").splitlines() if file.exists() else []
        if len(lines) >= expected:
            return sorted(lines)
        time.sleep(0.05)
    log = (folder / "worker.log").read_text(encoding="utf-8", errors="replace")
    raise AssertionError(f"{folder.name} sent only {lines} within {PATIENCE:.0f} s:\n{log}")


# --- the tables of equivalents --------------------------------------------------------------------------------------

ROW = re.compile(r"^\| .+? \| (.+) \|$", re.MULTILINE)
SPAN = re.compile(r"`(?!stoker )([^`]+)`")
METHODS = {"jobs": stoker.Stoker, "current": stoker.Context, "run": stoker.Context}
PUBLIC = [getattr(stoker, name) for name in {*stoker.__all__, *stoker.ON_USE}]
"""What `jobs.…`, `current().…` and `run.…` mean on the pages."""


def keywords() -> set[str]:
    """Every option of a task or call, and every parameter of what is public."""
    found = {*OPTIONS, *POLICY, "name", "replace", "tx"}
    callables = [
        method
        for one in PUBLIC
        for method in [one, *(getattr(one, name) for name in dir(one) if not name.startswith("_"))]
        if callable(method) and not isinstance(method, type(list[int]))
    ]
    for one in callables:
        try:
            parameters = inspect.signature(one).parameters.values()
        except ValueError:  # written in C
            continue
        found |= {parameter.name for parameter in parameters}
    return found | set(get_type_hints(ScheduleOptions))


def wrong_code(code: str) -> list[str]:
    """What a piece of code names and Stoker does not have; nothing for what is no Python."""
    text = code.replace("…", "...").removeprefix("raise ").removeprefix("@").removeprefix("await ")
    for shape in (text, f"given({text})"):
        try:
            tree = ast.parse(shape, mode="eval")
        except SyntaxError:
            continue
        calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
        return [found for call in calls for found in wrong_call(call)]
    return []


def wrong_call(call: ast.Call) -> list[str]:
    wrong = [f"{given.arg}=" for given in call.keywords if given.arg is not None and given.arg not in KEYWORDS]
    wrong += [
        f"mode={given.value.value!r}"
        for given in call.keywords
        if given.arg == "mode" and isinstance(given.value, ast.Constant) and given.value.value not in get_args(Mode)
    ]
    owner = call.func.value if isinstance(call.func, ast.Attribute) else None
    named = owner.func if isinstance(owner, ast.Call) else owner
    if isinstance(call.func, ast.Attribute) and isinstance(named, ast.Name) and named.id in METHODS:
        wrong += [] if hasattr(METHODS[named.id], call.func.attr) else [f"{named.id}.{call.func.attr}"]
    made = getattr(stoker, call.func.id, None) if isinstance(call.func, ast.Name) else None
    given = [*call.args, *(one.value for one in call.keywords)]
    if inspect.isclass(made) and all(isinstance(one, ast.Constant) and one.value is not ... for one in given):
        text = ast.unparse(call)
        try:
            eval(text, vars(stoker))
        except (stoker.StokerError, TypeError) as error:
            wrong.append(f"{text}: {error}")
    return wrong


KEYWORDS = keywords()


@pytest.mark.parametrize("peer", GUIDES)
def test_a_table_of_equivalents_names_what_stoker_has(peer: str) -> None:
    cells = ROW.findall(GUIDES[peer].read_text(encoding="utf-8").partition("## A table of equivalents")[2])
    codes = [code for cell in cells for code in SPAN.findall(cell)]
    assert len(codes) > 20
    assert {code: wrong for code in codes if (wrong := wrong_code(code))} == {}


def test_what_stoker_does_not_have_is_found() -> None:
    assert wrong_code('unique=Unique("x", scope="all")') != []
    assert wrong_code('mode="reject"') == ["mode='reject'"]
    assert wrong_code("f.using(countdown=5).enqueue_sync(1)") == ["countdown="]
    assert wrong_code("jobs.revoke_sync(7)") == ["jobs.revoke_sync"]
    assert wrong_code('raise Retry("why", 5)') != []
    assert wrong_code("jobs.group([…], then=…)") == wrong_code("every worker does it") == []
