"""A single job may ask for a process of its own, and one under which processes died gets it unasked."""

from __future__ import annotations

import os

import pytest

from stoker.handle import JobHandle
from stoker.model import ids
from stoker.model.job import Demand
from stoker.model.lifecycle import Rules, conclude
from stoker.model.outcome import Crashed, HandedBack
from tests.harness.apps import drain
from tests.worker.apps import placed

HERE = os.getpid()


async def crash(job: JobHandle[int], times: int) -> None:
    """Let processes die under one of the jobs that are due."""
    engine = await placed.jobs.engine()
    await engine.jobs.renew("doomed", [], first=True)
    for _ in range(times):
        claims = await engine.jobs.claim(Demand("doomed", (("default", 9),)))
        ends = [Crashed("signal 11") if ids.text(claim.id) == job.id else HandedBack() for claim in claims]
        rules = Rules(default=placed.jobs.backoff)
        await engine.jobs.settle([conclude(claim, end, rules) for claim, end in zip(claims, ends, strict=True)])


@pytest.mark.spec("WORKER-25")
async def test_one_job_may_run_apart_though_its_task_does_not() -> None:
    handles: dict[str, JobHandle[int]] = {}
    async with placed.jobs:
        for task in (placed.on_loop, placed.in_thread):
            handles[task.name] = await task.enqueue()
            handles[f"{task.name} asked"] = await task.using(isolation="process").enqueue()
            handles[f"{task.name} once"] = await task.enqueue()
            handles[f"{task.name} twice"] = await task.enqueue()
            await crash(handles[f"{task.name} once"], 1)
            await crash(handles[f"{task.name} twice"], 2)
        await drain(placed.jobs)
        apart = {what for what, handle in handles.items() if await handle.result(0) != HERE}
    assert apart == {"on_loop asked", "on_loop twice", "in_thread asked", "in_thread twice"}
