"""Chains as callers and handlers see them."""

from __future__ import annotations

import pytest

from stoker import chain, current
from stoker.app import Stoker
from stoker.model import ids
from stoker.model.events import Transition
from stoker.model.job import Status
from stoker.model.outcome import Reject
from tests.harness.apps import drain


@pytest.mark.spec("CHAIN-01", "CHAIN-10")
async def test_a_chain_runs_in_its_order_and_each_link_knows_its_parent(jobs: Stoker) -> None:
    ran: list[tuple[int, str | None]] = []
    stored: list[Transition] = []
    jobs.listener(stored.append)

    @jobs.task
    async def work(number: int) -> int:
        parent = current().parent
        before = None if parent is None else await jobs.handle(parent).result(0)
        ran.append((number, None if before is None else str(before)))
        return number

    drafts = [work.draft(number) for number in range(3)]
    first = await jobs.enqueue(chain(*drafts))
    assert first.id == ids.text(drafts[0].job_id)
    assert (await first.refresh()).then == ("work", "work")
    await drain(jobs)
    assert ran == [(0, None), (1, "0"), (2, "1")]
    assert await jobs.handle(drafts[2].job_id).result(0) == 2
    last = await jobs.handle(drafts[2].job_id).refresh()
    assert (last.then, last.metadata["stoker.parent"]) == ((), ids.text(drafts[1].job_id))
    assert [one.job for one in stored if one.after == "pending"] == [draft.id for draft in drafts]


@pytest.mark.spec("CHAIN-03", "CHAIN-04")
async def test_a_link_that_dies_stops_its_branch_only(jobs: Stoker) -> None:
    @jobs.task
    async def work() -> None: ...

    @jobs.task
    async def refuse() -> None:
        raise Reject("no")

    behind, beside = work.draft(), work.draft()
    dead = refuse.draft().then(behind)
    await jobs.enqueue(work.draft().then(dead, beside))
    await drain(jobs)
    assert (await jobs.handle(beside.job_id).refresh()).status is Status.DONE
    record = await jobs.handle(dead.job_id).refresh()
    assert (record.status, record.then) == (Status.DEAD, ("work",))
    assert await (await jobs.engine()).operator.get([behind.job_id]) == [None]
