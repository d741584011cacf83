"""A watcher of a job whose worker is killed."""

from __future__ import annotations

import asyncio
import os
import signal

import pytest

from stoker import Status, Stoker
from stoker.watching import Changed, Emitted, News
from tests.worker.shell import PATIENCE, Deployment

APP = "tests.worker.apps.talking:jobs"


@pytest.mark.engine("sqlite")
@pytest.mark.parallel_deployment("faults")
@pytest.mark.spec("WATCH-14")
def test_a_watcher_outlives_the_worker(deployment: Deployment) -> None:
    """What was stored before the kill was told, numbers grow, and the attempt says that a new run began."""

    async def follow() -> list[News]:
        seen: list[News] = []
        async with Stoker(deployment.url) as jobs, asyncio.timeout(PATIENCE):
            async for event in jobs.handle(job).watch():
                seen.append(event)
                if len([one for one in seen if isinstance(one, Emitted)]) == 20:
                    os.kill(first.process.pid, signal.SIGKILL)
                    for pid in first.known | set(first.children):
                        os.kill(pid, signal.SIGKILL)
                    await asyncio.to_thread(first.wait)
                    second.set()
        return seen

    async def play() -> list[News]:
        following = asyncio.create_task(follow())
        await asyncio.wait({following, asyncio.create_task(second.wait())}, return_when=asyncio.FIRST_COMPLETED)
        with deployment.work(app=APP, ready=False):
            return await following

    [job] = deployment.enqueue("talk", {}, attempts=3)
    second = asyncio.Event()
    with deployment.work(app=APP) as first:
        _ = first.children
        seen = asyncio.run(play())
    values = [one for one in seen if isinstance(one, Emitted)]
    assert all(one.value == one.attempt for one in values)
    assert {one.attempt for one in values} == {1, 2}
    numbers = [one.n for one in values]
    assert numbers == list(range(1, len(numbers) + 1)), "no hole, and nothing twice"
    assert [one.attempt for one in values] == sorted(one.attempt for one in values)
    assert isinstance(last := seen[-1], Changed)
    assert (last.status, last.attempt) == (Status.DONE, 2)
