"""The waiters for ends of jobs, on a store that is only counted."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence

import pytest

from stoker.engines.shared.job_end_waiters import OVER, WANT, Interest, JobEndWaiters, Message, topics_of
from stoker.model.errors import EngineUnavailable
from stoker.model.ids import JobId
from stoker.model.job import Settlement, Status, Verdict

JOBS = [JobId(n.to_bytes(16)) for n in range(1, 6)]


class Ground:
    """What an engine gives its waiters, written down."""

    def __init__(self) -> None:
        self.looks: list[list[JobId]] = []
        self.said: list[tuple[Message, list[JobId]]] = []
        self.over: set[JobId] = set()
        self.broken = False
        self.interest = Interest()
        self.ends = JobEndWaiters(self.look, self.listen, self.say, self.interest)

    async def look(self, jobs: Sequence[JobId]) -> list[JobId]:
        self.looks.append(list(jobs))
        if self.broken:
            raise EngineUnavailable("away")
        return [job for job in jobs if job in self.over]

    async def listen(self) -> None: ...

    def say(self, word: Message, jobs: Collection[JobId]) -> None:
        self.said.append((word, list(jobs)))


def settlement(job: JobId, status: Status = Status.DONE) -> Settlement:
    return Settlement(job, "w", 1, status)


@pytest.mark.spec("END-05")
async def test_waiters_share_one_look() -> None:
    ground = Ground()
    waiters = [asyncio.create_task(ground.ends.wait(job, 5)) for job in JOBS for _ in range(3)]
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert ground.looks == [JOBS]
    assert ground.said == [(WANT, JOBS)]
    ground.ends.over(JOBS)
    assert await asyncio.gather(*waiters) == [True] * 15
    assert len(ground.looks) == 1


@pytest.mark.spec("END-05")
async def test_only_ends_that_are_waited_for_are_published() -> None:
    """Each once; a job that only goes on, or whose settlement was lost, is no end."""
    ground = Ground()
    everything = [settlement(job) for job in JOBS]
    ground.ends.settled(everything, [Verdict.APPLIED] * 5)
    assert ground.said == []
    assert ground.ends.receive(frozenset({*topics_of(WANT, JOBS[:3]), "mail"})) == {"mail"}
    ground.ends.settled([settlement(JOBS[0], Status.RETRYING)], [Verdict.APPLIED])
    ground.ends.settled([settlement(JOBS[1])], [Verdict.LOST])
    assert ground.said == []
    ground.ends.settled(everything, [Verdict.APPLIED] * 5)
    assert ground.said == [(OVER, JOBS[:3])]
    ground.ends.settled(everything, [Verdict.APPLIED] * 5)
    assert len(ground.said) == 1


@pytest.mark.spec("END-05")
async def test_a_store_that_is_away_is_told_to_every_waiter() -> None:
    ground = Ground()
    ground.broken = True
    with pytest.raises(EngineUnavailable):
        await ground.ends.wait(JOBS[0], 5)
    ground.broken = False
    ground.over = {JOBS[0]}
    assert await ground.ends.wait(JOBS[0], 5)


@pytest.mark.spec("END-05")
async def test_what_may_have_been_missed_is_looked_at_again() -> None:
    ground = Ground()
    waiter = asyncio.create_task(ground.ends.wait(JOBS[0], 5))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    ground.over = {JOBS[0]}
    ground.ends.query_again()
    assert await asyncio.wait_for(waiter, 60)


@pytest.mark.spec("END-05")
async def test_a_waiter_that_gave_up_is_forgotten() -> None:
    ground = Ground()
    assert not await ground.ends.wait(JOBS[0], 0.01)
    looks = len(ground.looks)
    await asyncio.sleep(0.03)
    assert len(ground.looks) == looks
