"""How a command is told its app or its store: one spelling, before the noun, behind it, alone, or nowhere."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from stoker.cli.command import stoker

APP = """
import asyncio

from stoker import Outbox, Stoker
from stoker.outbox import Message

jobs = Stoker("sqlite:///{path}", durability="process")
orders = Outbox(jobs, stream="orders")

@jobs.task
def resize(n: int) -> int:
    return n

@orders.deliver
async def publish(message: Message[str]) -> None: ...

asyncio.run(asyncio.sleep(0))  # an import may need a loop of its own
"""

ALONE = [
    ["status"],
    ["kinds"],
    ["workers"],
    ["doctor"],
    ["metrics"],
    ["audit"],
    ["migrate", "--plan"],
    ["queues"],
    ["queues", "list"],
    ["schedules"],
    ["limits", "list"],
    ["operations"],
    ["outbox"],
    ["tokens", "list"],
]
"""Commands that take no other argument."""


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Path:
    """An app in a folder, in a module of the test's own, whose store does not exist yet."""
    for name in ("STOKER_URL", "STOKER_APP"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    module = f"spelled_{abs(hash(request.node.nodeid))}"
    monkeypatch.setenv("SPELLED", f"{module}:jobs")
    path = tmp_path / "jobs.db"
    (tmp_path / f"{module}.py").write_text(APP.format(path=path), encoding="utf-8")
    return path


@pytest.fixture
def app(store: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The same with a store that holds one job."""
    app = os.environ["SPELLED"]
    call("-A", app, "jobs", "enqueue", "resize", "[7]", "--delay", "1h")
    return app


def call(*words: str, code: int = 0) -> Result:
    done = CliRunner().invoke(stoker, list(words))
    assert done.exit_code == code, done.output
    return done


@pytest.mark.spec("CLI-64")
@pytest.mark.parametrize("words", ALONE, ids=" ".join)
def test_a_command_without_other_arguments_takes_the_app_or_the_url_as_it_is(
    app: str, store: Path, words: list[str]
) -> None:
    for given in ([app], [f"sqlite:///{store}"]):
        assert "Error" not in call(*words, *given).output
        assert "name the store twice" in call(*words, *given, "-A", app, code=2).output


@pytest.mark.spec("CLI-64")
@pytest.mark.parametrize("words", [*ALONE, ["jobs"], ["jobs", "list"], ["dead"], ["list"]], ids=" ".join)
def test_the_app_is_named_before_the_noun_behind_it_or_by_the_environment(
    app: str, words: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    call("-A", app, *words)
    call("--app", app, *words)
    call(*words, "-A", app)
    monkeypatch.setenv("STOKER_APP", app)
    call(*words)
    monkeypatch.delenv("STOKER_APP")
    (tmp_path / "pyproject.toml").write_text(f'[tool.stoker]\napp = "{app}"\n', encoding="utf-8")
    call(*words)


@pytest.mark.spec("CLI-64")
@pytest.mark.parametrize("how", ["alone", "before", "behind", "environment", "pyproject"])
@pytest.mark.parametrize("words", [["work", "--drain"], ["outbox", "run", "--drain"]], ids=" ".join)
def test_workers_are_told_their_app_in_the_same_ways(app: str, words: list[str], how: str, tmp_path: Path) -> None:
    before, behind, environ = {"before": ["-A", app]}.get(how, []), {"alone": [app], "behind": ["-A", app]}, {}
    if how == "environment":
        environ = {"STOKER_APP": app}
    if how == "pyproject":
        (tmp_path / "pyproject.toml").write_text(f'[tool.stoker]\napp = "{app}"\n', encoding="utf-8")
    done = _run(tmp_path, *before, *words, *behind.get(how, []), environ=environ)
    assert done.returncode == 0, done.stderr
    assert "started on sqlite" in done.stderr


@pytest.mark.spec("CLI-64")
def test_a_worker_without_an_app_and_a_store_named_twice_are_refused(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"sqlite:///{store}"
    for words in (["work"], ["--url", url, "work"], ["work", url], ["outbox", "run"]):
        assert "which app? A worker needs its tasks" in call(*words, code=2).output
    monkeypatch.setenv("STOKER_URL", url)
    assert "which app? A worker needs its tasks" in call("work", code=2).output
    assert "name the store twice" in call("--url", url, "jobs", "list", "-A", "app:jobs", code=2).output
    assert "name the store twice" in call("--url", url, "work", "app:jobs", code=2).output


@pytest.mark.spec("CLI-64")
def test_the_demo_uses_the_store_that_is_named_before_it(store: Path) -> None:
    done = _run(store.parent, "--url", f"sqlite:///{store}", "demo", "--jobs", "200")
    assert done.returncode == 0, done.stderr
    assert store.exists()


@pytest.mark.spec("CLI-65")
@pytest.mark.parametrize("words", [["status"], ["doctor"], ["jobs", "list"]], ids=" ".join)
def test_an_app_is_imported_before_a_loop_runs(app: str, words: list[str]) -> None:
    """Its module runs a loop of its own, in a process that has not imported it yet."""
    done = _run(Path.cwd(), *words, "-A", app)
    assert done.returncode == 0, done.stderr


@pytest.mark.spec("CLI-66")
def test_enqueueing_makes_the_store_of_an_app_and_of_no_url(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    url = f"sqlite:///{store}"
    refused = call("--url", url, "jobs", "enqueue", "resize", "[7]", code=1).output
    assert "there is no store" in refused
    assert "`stoker migrate` makes a store" in refused
    monkeypatch.setenv("STOKER_URL", url)
    assert "there is no store" in call("jobs", "enqueue", "resize", "[7]", code=1).output
    assert "there is no store" in call("status", os.environ["SPELLED"], code=1).output
    assert not store.exists()
    call("jobs", "enqueue", "resize", "[7]", "-A", os.environ["SPELLED"])
    assert store.exists()


def _run(folder: Path, *words: str, environ: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "stoker", *words]
    given = {**os.environ, **(environ or {})}
    return subprocess.run(command, cwd=folder, env=given, capture_output=True, text=True, timeout=240, check=False)
