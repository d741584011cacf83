"""`stoker workers`, as an operator types it: the list, one worker, and orders to it."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from stoker.app import Stoker
from stoker.cli.command import stoker
from stoker.model.control import Presence
from tests.harness.apps import PATIENCE, working


@pytest.fixture
def app(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Stoker:
    url = f"sqlite:///{tmp_path / 'jobs.db'}"
    monkeypatch.setenv("STOKER_URL", url)
    monkeypatch.setenv("USER", "ann")
    monkeypatch.delenv("STOKER_APP", raising=False)
    monkeypatch.chdir(tmp_path)
    return Stoker(url)


def call(*words: str, code: int = 0) -> Result:
    found = CliRunner().invoke(stoker, list(words))
    assert found.exit_code == code, found.output
    return found


def beside(app: Stoker, look: Callable[[str], Awaitable[None]]) -> None:
    """Run a worker, and commands in a thread beside it."""

    async def both() -> None:
        async with app, working(app) as worker:
            await asyncio.wait_for(look(worker.id), PATIENCE)

    app.run(both())
    app.run(app.close())


@pytest.mark.spec("ORDER-08", "ORDER-04")
def test_a_worker_is_told_by_commands(app: Stoker) -> None:
    begun, gate = threading.Event(), threading.Event()

    @app.task
    def hold() -> None:
        begun.set()
        gate.wait(PATIENCE)

    async def typed(*words: str, code: int = 0) -> str:
        return (await asyncio.to_thread(call, *words, code=code)).output

    async def look(worker: str) -> None:
        assert worker in await typed("workers")
        assert "serves default" in await typed("workers", worker[:6])
        said = await typed("workers", "quiet", worker[:6], "--reason", "a look")
        assert said == f"Worker {worker} was told to claim no more jobs.\n"
        while '"state": "quiet"' not in await typed("workers", "--json"):
            pass
        told = json.loads(await typed("workers", "resume", worker, "--json"))
        assert told.pop("lapses_at") is not None
        assert told == {"worker": worker, "order": "resume", "note": ""}
        assert await typed("workers", "stack", worker) == f"worker {worker} ran nothing.\n"
        await app.enqueue(hold.draft())
        await asyncio.to_thread(begun.wait, PATIENCE)
        shown = await typed("workers", "stack", worker[:6])
        assert "gate.wait(PATIENCE)" in shown
        assert ", on thread stoker-handler-" in shown
        [stand] = json.loads(await typed("workers", "stack", worker, "--json"))["stands"]
        assert stand["stack"] in shown
        assert "there is no terminal to ask on" in await typed("workers", "stop", worker, code=2)
        gate.set()
        assert await typed("workers", "stop", worker, "--yes") == f"Worker {worker} was told to stop.\n"
        assert "stopp" in await typed("workers", "quiet", worker, code=4)
        entries = [line.split("\t")[2:4] for line in (await typed("audit", "--action", "workers.")).splitlines()[1:]]
        assert len(entries) == 6

    beside(app, look)


@pytest.mark.spec("ORDER-04", "ORDER-08")
def test_what_is_no_worker_and_no_command_is_named(app: Stoker) -> None:
    app.run(app.open())
    app.run(app.close())
    assert "`stoker workers` lists those that are known" in call("workers", "stop", "nobody", "--yes", code=3).output
    assert "`stoker workers` lists those that are known" in call("workers", "nobody", code=3).output
    assert "Did you mean 'quiet'?" in call("workers", "quite", "nobody", code=2).output
    assert "Missing argument 'WORKER'" in call("workers", "stack", code=2).output


@pytest.mark.spec("ORDER-04")
def test_a_silent_worker_does_not_answer_in_time(app: Stoker) -> None:
    async def show() -> None:
        async with app:
            await (await app.engine()).control.beat(Presence(worker="w", host="h", pid=7, queues={"default": 1}))

    app.run(show())
    app.run(app.close())
    said = call("workers", "stack", "w", "--wait", "0", code=1).output
    assert "worker w is running" in said
    assert "did not answer within 0 s. It takes the order when it renews its lease" in said
