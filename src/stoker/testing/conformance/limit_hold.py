"""`hold="retrying"`: a job keeps its slot until it is finished."""

from __future__ import annotations

from typing import Any

import pytest

from stoker.engines.base import LEASE, Feature
from stoker.model.job import Draft, Status, Stored
from stoker.model.outcome import Done, Failed, HandedBack, Outcome, Snoozed, Throttled
from stoker.model.query import Cancel, Delete, Move, Prioritize, Requeue, Restore, Selection
from stoker.model.time import HOUR, MINUTE, SECOND
from stoker.model.unique import Unique
from stoker.testing.conformance.harness import Store, needs
from stoker.testing.conformance.limit_helpers import alter, ids, limited, running


def held(store: Store, key: str = "a", **options: Any) -> Draft:
    """A draft that keeps its slot while it waits for a retry."""
    return limited(store, key, 1, hold="retrying", **options)


_WAITS: dict[str, Outcome] = {
    "HOLD-01": Failed("broken", after=MINUTE),
    "HOLD-02": Snoozed(MINUTE),
    "HOLD-03": Throttled(queue=False, retry_after=MINUTE),
}


@pytest.mark.core
@pytest.mark.spec("HOLD-01", "HOLD-02", "HOLD-03")
@pytest.mark.parametrize("case", _WAITS)
async def test_nothing_of_a_key_overtakes_a_job_that_waits_for_its_retry(store: Store, case: str) -> None:
    jobs = await store.insert(held(store), held(store, priority=-9), held(store, "b"))
    first, other = await store.claim(n=9)
    assert {first.id, other.id} == {jobs[1], jobs[2]}
    claim = next(one for one in (first, other) if one.id == jobs[1])
    await store.finish(claim, _WAITS[case])
    assert await store.claim(n=9) == []
    assert await running(store) == {"api/a": 1, "api/b": 1}
    store.pass_time(MINUTE)
    [again] = await store.claim("w2", n=9)
    assert again.id == jobs[1]
    await store.finish(again, Done())
    assert ids(await store.claim("w2", n=9)) == jobs[:1]


@pytest.mark.core
@pytest.mark.spec("HOLD-04", "HOLD-05")
async def test_a_held_slot_survives_hand_back_and_reap(store: Store) -> None:
    jobs = await store.insert(held(store), held(store, priority=1))
    await store.finish(await store.take("w1"), HandedBack())
    await alter(store, Prioritize(5), jobs[0])
    assert ids(await store.claim("w1", n=9)) == jobs[:1]
    store.pass_time(LEASE + 1)
    await store.enlist("w2")
    [passed] = await store.engine.jobs.reap("w2", 9)
    await store.finish(passed, Failed("broken", after=SECOND))
    assert await store.claim("w2", n=9) == []
    store.pass_time(SECOND)
    assert ids(await store.claim("w2", n=9)) == jobs[:1]


@pytest.mark.core
@pytest.mark.spec("HOLD-06")
@pytest.mark.parametrize("outcome", [Done(), Failed("hopeless", retry=False)])
async def test_an_end_frees_a_held_slot(store: Store, outcome: Outcome) -> None:
    jobs = await store.insert(held(store), held(store))
    await store.finish(await store.take(), Failed("broken", after=0))
    again = await store.take()
    assert again.id == jobs[0]
    await store.finish(again, outcome)
    assert ids(await store.claim(n=9)) == jobs[1:]
    assert await running(store) == {"api/a": 1}


@pytest.mark.core
@pytest.mark.spec("HOLD-07", "HOLD-08")
async def test_canceling_a_waiting_holder_frees_its_slot_once(store: Store) -> None:
    jobs = await store.insert(held(store), held(store), held(store))
    await store.finish(await store.take(), Failed("broken", after=HOUR))
    await alter(store, Cancel(), jobs[0])
    assert ids(await store.claim(n=9)) == jobs[1:2]
    await alter(store, Delete(), jobs[0])
    assert await store.claim(n=9) == []
    assert await running(store) == {"api/a": 1}


@pytest.mark.spec("HOLD-09")
async def test_moving_a_waiting_holder_frees_its_slot(store: Store) -> None:
    """In its new queue it waits for its turn like any other."""
    needs(store, Feature.ACROSS_QUEUES)
    jobs = await store.insert(held(store), held(store), held(store, queue="other"))
    await store.finish(await store.take(), Failed("broken", after=0))
    await store.take(queue="other")
    await alter(store, Move("other"), jobs[0])
    assert ids(await store.claim(n=9)) == jobs[1:2]
    assert await store.claim(n=9, queue="other") == []
    assert await running(store) == await running(store, "other") == {"api/a": 1}


@pytest.mark.spec("HOLD-10")
async def test_a_newer_job_that_ends_or_replaces_a_holder_frees_its_slot(store: Store) -> None:
    await store.insert(held(store, unique=Unique("u")))
    [second] = await store.insert(held(store))
    await store.finish(await store.take(), Failed("broken", after=HOUR))
    [third] = await store.insert(held(store, unique=Unique("u")))
    assert ids(await store.claim(n=9)) == [second]
    assert await running(store) == {"api/a": 1}
    unique = Unique("v", mode="replace")
    [fourth] = await store.insert(held(store, "b", unique=unique))
    await store.finish(await store.take(), Snoozed(HOUR))
    [receipt] = await store.engine.jobs.insert([held(store, "c", unique=unique)])
    assert (receipt.id, receipt.stored) == (fourth, Stored.REPLACED)
    assert ids(await store.claim(n=9)) == [fourth]
    assert await running(store) == {"api/a": 1, "api/c": 1}
    assert await store.status(third) is Status.PENDING


@pytest.mark.spec("HOLD-11")
async def test_a_requeued_holder_waits_for_its_turn(store: Store) -> None:
    jobs = await store.insert(held(store, attempts=2), held(store))
    await store.finish(await store.take(), Failed("broken", after=0))
    await store.finish(await store.take(), Failed("broken", after=0))
    assert await store.status(jobs[0]) is Status.DEAD
    other = await store.take()
    await alter(store, Requeue(), jobs[0])
    assert await store.claim(n=9) == []
    await store.finish(other, Done())
    assert ids(await store.claim(n=9)) == jobs[:1]


@pytest.mark.spec("HOLD-12")
@pytest.mark.parametrize("restored", [True, False])
async def test_a_canceled_holder_that_comes_back_waits_for_its_turn(store: Store, restored: bool) -> None:
    """The slot it kept went to another job when it was canceled."""
    jobs = await store.insert(held(store), held(store))
    await store.finish(await store.take(), Snoozed(SECOND))
    tally = await store.engine.operator.alter(Selection(tuple(jobs[:1])), Cancel())
    other = await store.take()
    assert other.id == jobs[1]
    await alter(store, Restore(tally.former) if restored else Requeue(), jobs[0])
    store.pass_time(SECOND)
    assert await store.claim(n=9) == []
    assert await running(store) == {"api/a": 1}
    await store.finish(other, Done())
    assert ids(await store.claim(n=9)) == jobs[:1]
    assert await running(store) == {"api/a": 1}


@pytest.mark.core
@pytest.mark.spec("HOLD-13")
@pytest.mark.parametrize("outcome", [HandedBack(), Snoozed(0)], ids=["handed back", "snoozed"])
async def test_a_limit_that_a_newer_draft_brings_holds_no_slot_before_a_run(store: Store, outcome: Outcome) -> None:
    """A job that ran without a limit and waits again gets one by `replace`: its key is free until it starts."""
    key = Unique("nightly", mode="replace")
    [job] = await store.insert(store.draft(unique=key))
    await store.finish(await store.take("w1"), outcome)
    [receipt] = await store.engine.jobs.insert([held(store, unique=key)])
    assert (receipt.id, receipt.stored) == (job, Stored.REPLACED)
    assert await running(store) == {"api/a": 0}
    [other] = await store.insert(held(store, priority=-9))
    assert ids(await store.claim("w1", n=9)) == [other]
    await alter(store, Delete(), job)
    assert await running(store) == {"api/a": 1}, "the slot of the other job stays"
