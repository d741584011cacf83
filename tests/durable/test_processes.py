"""Durable jobs whose handlers run in processes of their own."""

from __future__ import annotations

import asyncio
import importlib
import os
from pathlib import Path
from typing import Any

import pytest

from stoker import JobHandle, Worker
from tests.durable import flows
from tests.harness.apps import PATIENCE

ENGINES = [pytest.param(name, marks=pytest.mark.engine(name)) for name in ("sqlite", "postgres", "redis")]


@pytest.fixture(params=ENGINES)
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    of = request.getfixturevalue
    match request.param:
        case "sqlite":
            return f"sqlite:///{tmp_path / 'jobs.db'}"
        case "postgres":
            base = of("postgres_url")
            return f"{base}{'&' if '?' in base else '?'}schema={of('postgres_schema')}"
        case _:
            return f"{of('redis_url')}?prefix={of('redis_prefix')}"


@pytest.mark.spec("DURABLE-10", "DURABLE-08")
async def test_a_job_in_a_process_of_its_own_is_durable(
    url: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Async and plain: its step ran once, in a child; a caught failure is stored; sleep, wait and calls suspend it."""
    monkeypatch.setenv("FLOWS_URL", url)
    app = importlib.reload(flows)
    async with app.jobs, Worker(app.jobs, {"default": 2}, poll=0.02):
        handles: list[JobHandle[Any]] = [await app.awaiting.enqueue(2), await app.plain.enqueue(1)]
        for job in handles:
            await waits_for_signal(job)
            assert await job.signal("go", 7)
        for job, called in zip(handles, ([0, 2], [0]), strict=True):
            found = await job.result(PATIENCE)
            assert (found["kind"], found["answer"], found["called"]) == ("ValueError", 7, called)
            assert found["first"] != os.getpid()
            rows = {step.name: step for step in await job.steps()}
            assert (rows["charge"].state, rows["where"].value) == ("failed", found["first"])
    assert "went on" not in caplog.text, "both let their suspensions pass"


async def waits_for_signal(job: JobHandle[Any]) -> None:
    async with asyncio.timeout(PATIENCE):
        while not any(step.name == "go" and step.state == "waiting" for step in await job.steps()):
            await asyncio.sleep(0.01)
