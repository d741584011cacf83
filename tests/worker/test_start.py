"""What a start says, and what it warns of."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import Any

import pytest

from stoker.app import Stoker
from stoker.handle import JobHandle
from stoker.model.control import Tuning
from stoker.worker import Worker
from stoker.worker.state import version
from tests.harness.apps import PATIENCE, drain, working


def told(caplog: pytest.LogCaptureFixture, name: str = "stoker.worker") -> list[str]:
    return [one.getMessage() for one in caplog.records if one.name == name and one.levelno == logging.WARNING]


@pytest.mark.spec("START-02")
async def test_the_first_line_says_where_and_what(jobs: Stoker, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)

    @jobs.task(queue="mail")
    async def send() -> None: ...

    @jobs.task
    async def resize() -> None: ...

    async with Worker(jobs, {"mail": 5, "default": 20}) as worker:
        engine = worker.engine
    line = f"worker {worker.id} started on {engine.name} {engine.where}; queues and slots mail:5, default:20; "
    assert f"{line}2 tasks; stoker {version()}" in caplog.messages


@pytest.mark.spec("START-03")
async def test_the_file_that_is_fallen_back_to_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.delenv("STOKER_URL", raising=False)
    monkeypatch.chdir(tmp_path)
    async with Stoker() as jobs:
        await jobs.engine()
    [line] = told(caplog, "stoker.app")
    assert str(tmp_path / "stoker.db") in line and "STOKER_URL" in line
    caplog.clear()
    async with Stoker("sqlite:///named.db"):
        assert told(caplog, "stoker.app") == []


@pytest.mark.spec("START-04")
async def test_a_queue_without_workers_is_named_once(jobs: Stoker, caplog: pytest.LogCaptureFixture) -> None:
    @jobs.task
    async def work() -> None: ...

    async with working(jobs, ["default"]) as worker:
        await work.using(queue="maill").enqueue()
        await work.using(queue="later", delay=60).enqueue()
        await worker.maintenance.warnings.look()
        await worker.maintenance.warnings.look()
        assert told(caplog) == ["queue 'maill' has 1 due job and no worker serves it: start one with -q maill"]


@pytest.mark.spec("START-04")
async def test_a_paused_queue_is_not_named_until_it_is_resumed(jobs: Stoker, caplog: pytest.LogCaptureFixture) -> None:
    @jobs.task
    async def work() -> None: ...

    async with working(jobs, ["default"]) as worker:
        await work.using(queue="reports").enqueue()
        await jobs.queue("reports").pause()
        for said in (0, 1):
            await worker.maintenance.show_and_tune()
            await worker.maintenance.warnings.look()
            assert len(told(caplog)) == said
            await jobs.queue("reports").resume()


@pytest.mark.spec("START-04")
async def test_a_limited_queue_without_workers_is_named_until_it_is_served(
    jobs: Stoker, caplog: pytest.LogCaptureFixture
) -> None:
    @jobs.task
    async def work() -> None: ...

    jobs.queue("default", workers=5)
    jobs.queue("reports", workers=3)
    jobs.queue("off", workers=0)
    async with working(jobs, ["default"]) as worker:
        await worker.maintenance.show_and_tune()
        await worker.maintenance.warnings.look()
        await worker.maintenance.warnings.look()
        text = "queue 'reports' is limited to 3 slots and no worker serves it: start one with -q reports, "
        text += "or clear the limit"
        assert told(caplog) == [text]
        caplog.clear()
        async with working(jobs, ["default", "reports"]) as other:
            await other.maintenance.show_and_tune()
            await worker.maintenance.warnings.look()
        await worker.maintenance.warnings.look()
        assert text in told(caplog)


@pytest.mark.spec("START-04")
async def test_a_served_queue_that_nothing_is_in_and_an_app_without_tasks_are_named(
    jobs: Stoker, caplog: pytest.LogCaptureFixture
) -> None:
    await drain(jobs)
    assert "this app has no tasks" in told(caplog)[0]
    caplog.clear()

    @jobs.task(queue="mail")
    async def send() -> None: ...

    await send.using(queue="urgent").enqueue()
    await drain(jobs, queues=["maill", "mail", "urgent"])
    assert told(caplog) == [
        "queue 'maill' is served, but no task of this app and no job is in it; queues of its tasks: mail"
    ]


@pytest.mark.spec("START-05")
async def test_a_result_that_does_not_come_says_why(jobs: Stoker) -> None:
    @jobs.task
    async def work() -> None: ...

    job = await work.enqueue()
    with pytest.raises(TimeoutError, match=f"job {job.id} .*; it goes on: no worker serves queue 'default'"):
        await job.result(0)
    engine = await jobs.engine()
    await engine.control.tune("default", Tuning(paused=True))
    async with working(jobs):
        await says(job, "queue 'default' is paused")
        await engine.control.tune("default", Tuning(paused=False))
        await job.result(PATIENCE)
        jobs.declare("elsewhere")
        stranger = await jobs.enqueue(jobs.draft("elsewhere"))
        await says(stranger, "cannot run task 'elsewhere'")


async def says(job: JobHandle[Any], reason: str) -> None:
    """Ask until the answer is this one: a worker shows itself, and puts back what it cannot run, a moment later."""
    async with asyncio.timeout(PATIENCE):
        while True:
            with pytest.raises(TimeoutError) as late:
                await job.result(0)
            if reason in str(late.value):
                return
            await asyncio.sleep(0.01)
