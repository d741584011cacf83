"""Giving back what a dead worker process held, while the store has troubles of its own."""

from __future__ import annotations

from typing import Any

import pytest

from stoker.app import Stoker
from stoker.engines.base import Engine
from stoker.model.errors import EngineUnavailable
from stoker.model.job import Claim, Demand, Status
from stoker.supervisor import release
from stoker.supervisor.release import release_patiently


async def held(jobs: Stoker, n: int) -> tuple[Engine, list[Claim]]:
    """Jobs in the hands of a worker that is about to die."""
    jobs.declare("work")
    await jobs.enqueue_many(jobs.draft("work") for _ in range(n))
    engine = await jobs.engine()
    await engine.jobs.renew("doomed", [], first=True)
    return engine, await engine.jobs.claim(Demand("doomed", (("default", n),)))


@pytest.mark.spec("KILL-13")
@pytest.mark.parametrize("crash", ["killed by SIGKILL (9)", None], ids=["crash", "handed back"])
@pytest.mark.parametrize("door", ["reap", "settle"])
async def test_a_release_that_fails_half_way_is_taken_up_where_it_was(
    jobs: Stoker, monkeypatch: pytest.MonkeyPatch, door: str, crash: str | None
) -> None:
    monkeypatch.setattr(release, "BATCH", 4)
    engine, claims = await held(jobs, 10)
    real = getattr(engine.jobs, door)
    answers = iter([True, False, True, False])

    async def shaky(*args: Any, **more: Any) -> Any:
        if next(answers, True):
            return await real(*args, **more)
        raise EngineUnavailable("gone for a moment.")

    monkeypatch.setattr(engine.jobs, door, shaky)
    await release_patiently(jobs, ["doomed"], crash)
    found = await engine.operator.get([claim.id for claim in claims])
    expected = (Status.RETRYING, 0, 1) if crash else (Status.PENDING, 0, 0)
    assert {(job.status, job.attempts, job.crashes) for job in found if job} == {expected}
    assert all(job is not None and job.worker is None for job in found)


@pytest.mark.spec("KILL-13")
async def test_a_store_that_stays_away_leaves_it_to_the_lease(
    jobs: Stoker, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(release, "TRIES", 2)
    engine, claims = await held(jobs, 1)

    async def away(*_: Any, **__: Any) -> Any:
        raise EngineUnavailable("gone for good.")

    monkeypatch.setattr(engine.jobs, "reap", away)
    await release_patiently(jobs, ["doomed"], "killed")
    assert caplog.text.count("could not be released: gone for good.") == 2
    assert "run again when its lease has lapsed" in caplog.text
    [job] = await engine.operator.get([claims[0].id])
    assert job is not None
    assert (job.status, job.worker) == (Status.RUNNING, "doomed")
