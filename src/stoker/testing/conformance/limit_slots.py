"""How a slot of a key is kept and comes back: by every end of a run, once."""

from __future__ import annotations

import asyncio

import pytest

from stoker.engines.base import LEASE
from stoker.model.control import Tuning
from stoker.model.job import Demand, Status, Verdict
from stoker.model.lifecycle import conclude
from stoker.model.next_due import NextDue
from stoker.model.outcome import Canceled, Done, Failed, HandedBack, Outcome, Snoozed, Throttled
from stoker.model.query import Cancel
from stoker.model.time import HOUR, MINUTE
from stoker.testing.conformance.harness import ARRIVES, QUEUE, Store
from stoker.testing.conformance.limit_helpers import alter, ids, limited, running

_ENDS: dict[str, tuple[Outcome, Status]] = {
    "LIMIT-04": (Done(), Status.DONE),
    "LIMIT-05": (Failed("broken", retry=False), Status.DEAD),
    "LIMIT-06": (Canceled(), Status.CANCELED),
    "LIMIT-08": (Failed("broken", after=MINUTE), Status.RETRYING),
    "LIMIT-09": (Snoozed(MINUTE), Status.PENDING),
    "LIMIT-10": (Throttled(queue=False, retry_after=MINUTE), Status.PENDING),
}


@pytest.mark.core
@pytest.mark.spec("LIMIT-04", "LIMIT-05", "LIMIT-06", "LIMIT-08", "LIMIT-09", "LIMIT-10")
@pytest.mark.parametrize("case", _ENDS)
async def test_an_end_frees_the_slot(store: Store, case: str) -> None:
    """However a run ends: the next job of the key starts, and one that was put back waits for its turn."""
    outcome, status = _ENDS[case]
    jobs = await store.insert(limited(store), limited(store))
    claim = await store.take()
    assert await store.finish(claim, outcome) is Verdict.APPLIED
    assert await store.status(jobs[0]) is status
    assert ids(await store.claim(n=9)) == jobs[1:]
    assert (await running(store))["api/a"] == 1


@pytest.mark.core
@pytest.mark.spec("LIMIT-06", "LIMIT-15")
async def test_a_cancel_request_keeps_the_slot_until_the_run_ends(store: Store) -> None:
    jobs = await store.insert(limited(store), limited(store))
    claim = await store.take()
    await alter(store, Cancel(), jobs[0])
    assert await store.claim(n=9) == []
    assert await store.finish(claim, Canceled()) is Verdict.APPLIED
    assert ids(await store.claim(n=9)) == jobs[1:]


@pytest.mark.core
@pytest.mark.spec("LIMIT-07", "LIMIT-14")
async def test_a_forced_cancel_frees_the_slot_once(store: Store) -> None:
    """The worker's own settlement comes too late and frees nothing again."""
    jobs = await store.insert(*(limited(store) for _ in range(3)))
    claim = await store.take()
    await alter(store, Cancel(force=True), jobs[0])
    assert ids(await store.claim(n=9)) == jobs[1:2]
    assert await store.finish(claim, Done()) is Verdict.LOST
    assert await store.claim(n=9) == []
    assert await running(store) == {"api/a": 1}


@pytest.mark.core
@pytest.mark.spec("LIMIT-11")
async def test_a_hand_back_frees_the_slot(store: Store) -> None:
    """The job that was handed back is the first again."""
    jobs = await store.insert(limited(store), limited(store))
    assert await store.finish(await store.take(), HandedBack()) is Verdict.APPLIED
    assert ids(await store.claim("w2", n=9)) == jobs[:1]


@pytest.mark.core
@pytest.mark.spec("LIMIT-12", "LIMIT-14", "LIMIT-15")
async def test_a_reaped_claim_keeps_its_slot_until_it_ends(store: Store) -> None:
    """The slot passes on with the claim; the zombie's settlement frees nothing, that of the new owner once."""
    jobs = await store.insert(*(limited(store) for _ in range(3)))
    zombie = await store.take("w1")
    store.pass_time(LEASE + 1)
    await store.enlist("w2")
    [passed] = await store.engine.jobs.reap("w2", 9)
    assert passed.options.limit == zombie.options.limit
    assert await store.claim("w2", n=9) == []
    assert await store.finish(zombie, Done()) is Verdict.LOST
    assert await store.claim("w2", n=9) == []
    assert await store.finish(passed, Done()) is Verdict.APPLIED
    assert ids(await store.claim("w2", n=9)) == jobs[1:2]
    assert await store.finish(zombie, Done()) is Verdict.LOST
    assert await store.claim("w2", n=9) == []


@pytest.mark.spec("LIMIT-14")
async def test_late_settlements_of_several_dead_workers_free_no_slot(store: Store) -> None:
    """A claim passed from worker to worker; each of them ends it late, in a way of its own, and asks for more."""
    jobs = await store.insert(*(limited(store) for _ in range(4)))
    claims = [await store.take("w1")]
    for worker in ("w2", "w3", "w4"):
        store.pass_time(LEASE + 1)
        await store.enlist(worker)
        claims += await store.engine.jobs.reap(worker, 9)
    *late, owned = claims
    demand = Demand("w4", ((QUEUE, 9),))
    outcomes: list[Outcome] = [Done(), Failed("late", retry=False), HandedBack()]
    for claim, outcome in zip(late, outcomes, strict=True):
        settled = await store.engine.jobs.settle([conclude(claim, outcome)], demand=demand)
        assert (settled.verdicts, settled.claims) == ([Verdict.LOST], [])
    assert await running(store) == {"api/a": 1}
    assert await store.finish(owned, Done()) is Verdict.APPLIED
    assert ids(await store.claim("w4", n=9)) == jobs[1:2]


@pytest.mark.core
@pytest.mark.spec("LIMIT-14")
async def test_a_repeated_settlement_frees_nothing_again(store: Store) -> None:
    await store.insert(*(limited(store) for _ in range(3)))
    claim = await store.take()
    assert await store.finish(claim, Done()) is Verdict.APPLIED
    second = await store.take()
    assert await store.finish(claim, Done()) in (Verdict.REPEATED, Verdict.LOST)
    assert await store.claim(n=9) == []
    assert await store.finish(second, Done()) is Verdict.APPLIED
    assert len(await store.claim(n=9)) == 1


@pytest.mark.core
@pytest.mark.spec("LIMIT-15")
async def test_a_paused_or_cooling_queue_keeps_its_slots(store: Store) -> None:
    await store.insert(*(limited(store, n=2) for _ in range(4)))
    first, second = await store.claim(n=2)
    await store.engine.control.tune(QUEUE, Tuning(paused=True))
    assert await store.finish(first, Done()) is Verdict.APPLIED
    assert await store.claim(n=9) == []
    assert (await running(store))["api/a"] == 1
    await store.engine.control.tune(QUEUE, Tuning(paused=False))
    assert len(await store.claim(n=9)) == 1
    assert await store.finish(second, Throttled(retry_after=MINUTE)) is Verdict.APPLIED
    assert await store.claim(n=9) == []
    store.pass_time(MINUTE)
    assert len(await store.claim("w2", n=9)) == 1


@pytest.mark.spec("LIMIT-33")
async def test_a_settlement_with_a_demand_takes_the_slot_it_freed(store: Store) -> None:
    jobs = await store.insert(*(limited(store) for _ in range(3)))
    claim = await store.take()
    demand = Demand("w1", ((QUEUE, 5),))
    settled = await store.engine.jobs.settle([conclude(claim, Done())], demand=demand)
    assert ids(settled.claims) == jobs[1:2]
    settled = await store.engine.jobs.settle([conclude(settled.claims[0], Snoozed(HOUR))], demand=demand)
    assert ids(settled.claims) == jobs[2:]


@pytest.mark.core
@pytest.mark.spec("LIMIT-35")
async def test_a_slot_that_is_freed_wakes_a_waiter(store: Store) -> None:
    """And nothing says that a worker must look before: a full key is no due job."""
    await store.insert(limited(store), limited(store))
    claim = await store.take()
    assert await store.engine.jobs.ahead([QUEUE]) == NextDue(frozenset({QUEUE}), None)
    await store.quiet(QUEUE)
    waiting = asyncio.create_task(store.engine.jobs.wait([QUEUE], ARRIVES))
    await asyncio.sleep(0)
    await store.finish(claim, Done())
    assert await waiting == {QUEUE}
    assert (await store.engine.jobs.ahead([QUEUE])).wait == 0
