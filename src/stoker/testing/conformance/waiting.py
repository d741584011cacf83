"""Waiting and waking. Waits are in real seconds: where a wake-up must come they are long but end early, where none may
come they are short.
"""

from __future__ import annotations

import asyncio

import pytest

from stoker.engines.base import CONTROL
from stoker.model.control import Tuning
from stoker.model.job import Claim
from stoker.model.next_due import SOON, NextDue
from stoker.model.outcome import Done, Failed, Outcome, Snoozed, Throttled
from stoker.model.query import Cancel, RunNow, Selection
from stoker.model.time import HOUR, MINUTE, SECOND
from stoker.model.unique import Unique
from stoker.testing.conformance.harness import ARRIVES, QUEUE, Store

_NEVER = 0.04


async def _taken(store: Store) -> Claim:
    await store.add()
    return await store.take()


@pytest.mark.core
@pytest.mark.spec("WAKE-01")
async def test_wait_without_a_wake_times_out(store: Store) -> None:
    """Without a wake-up the result is empty, and time really passed."""
    loop = asyncio.get_running_loop()
    began = loop.time()
    assert await store.engine.jobs.wait(["mail"], _NEVER) == frozenset()
    assert loop.time() - began >= _NEVER * 0.9


@pytest.mark.core
@pytest.mark.spec("WAKE-01")
async def test_wait_ends_when_woken(store: Store) -> None:
    """A sleeper is released by the wake-up, long before its timeout, and gets the topic."""
    sleeper = asyncio.create_task(store.engine.jobs.wait(["mail", "post"], ARRIVES))
    await asyncio.sleep(0.01)
    await store.engine.jobs.wake(["post"])
    assert await asyncio.wait_for(sleeper, ARRIVES - 1) == {"post"}


@pytest.mark.core
@pytest.mark.spec("WAKE-02")
async def test_wake_without_a_waiter_is_remembered_once(store: Store) -> None:
    """After any number of wake-ups the next wait returns at once, and the one after it sleeps."""
    await store.engine.jobs.wake(["mail"])
    await store.engine.jobs.wake(["mail"])
    assert await store.engine.jobs.wait(["mail"], ARRIVES) == {"mail"}
    assert await store.engine.jobs.wait(["mail"], _NEVER) == frozenset()


@pytest.mark.core
@pytest.mark.spec("WAKE-03")
async def test_wake_is_per_topic(store: Store) -> None:
    """Waking one queue neither releases the sleepers of another nor is used up by them."""
    await store.engine.jobs.wake(["mail"])
    assert await store.engine.jobs.wait(["post"], _NEVER) == frozenset()
    assert await store.engine.jobs.wait(["post", "mail"], ARRIVES) == {"mail"}


@pytest.mark.core
@pytest.mark.spec("WAKE-04")
async def test_wake_releases_one_waiter(store: Store) -> None:
    """Of three sleepers on a queue one wake-up releases one, and nothing is left over for later."""
    sleepers = [asyncio.create_task(store.engine.jobs.wait(["mail"], ARRIVES)) for _ in range(3)]
    await asyncio.sleep(0.05)
    await store.engine.jobs.wake(["mail"])
    [woken], asleep = await asyncio.wait(sleepers, timeout=ARRIVES, return_when=asyncio.FIRST_COMPLETED)
    assert woken.result() == {"mail"}
    assert (await asyncio.wait(asleep, timeout=_NEVER))[0] == set()
    for sleeper in asleep:
        sleeper.cancel()
    await asyncio.wait(asleep)
    assert await store.engine.jobs.wait(["mail"], _NEVER) == frozenset()


@pytest.mark.spec("WAKE-04")
async def test_wake_is_not_swallowed_by_a_waiter_that_left(store: Store) -> None:
    """A sleeper that timed out or was canceled does not take a later wake-up along."""
    await store.engine.jobs.wait(["mail"], 0.01)
    left = asyncio.create_task(store.engine.jobs.wait(["mail"], ARRIVES))
    await asyncio.sleep(0.01)
    left.cancel()
    with pytest.raises(asyncio.CancelledError):
        await left
    await store.engine.jobs.wake(["mail"])
    assert await store.engine.jobs.wait(["mail"], ARRIVES) == {"mail"}


@pytest.mark.core
@pytest.mark.spec("WAKE-05")
async def test_wake_by_insert_reaches_the_queues_with_new_due_jobs(store: Store) -> None:
    """Only queues that received a job that is due are woken; one of many jobs is enough."""
    await store.insert(
        store.draft(queue="mail"),
        store.draft(queue="mail"),
        store.draft(queue="later", delay=HOUR),
        store.draft(queue="post"),
    )
    assert await store.engine.jobs.wait(["mail"], ARRIVES) == {"mail"}
    assert await store.engine.jobs.wait(["mail"], _NEVER) == frozenset()
    assert await store.engine.jobs.wait(["later"], _NEVER) == frozenset()
    assert await store.engine.jobs.wait(["post"], ARRIVES) == {"post"}


@pytest.mark.core
@pytest.mark.spec("WAKE-05")
async def test_wake_by_insert_needs_a_new_job(store: Store) -> None:
    """A deduplicated draft and a repeated call wake no waiter."""
    draft = store.draft(unique=Unique("k"), queue="mail")
    await store.insert(draft)
    await store.quiet("mail")
    await store.add(unique=Unique("k"), queue="mail")
    await store.insert(draft)
    assert await store.engine.jobs.wait(["mail"], _NEVER) == frozenset()


@pytest.mark.spec("WAKE-05")
async def test_wake_sent_while_no_worker_waits_reaches_the_next_waiter(store: Store) -> None:
    """A job stored while there is no waiter is not missed."""
    await store.add(queue="mail")
    assert await store.engine.jobs.wait(["mail"], ARRIVES) == {"mail"}


@pytest.mark.spec("WAKE-06")
async def test_wake_by_run_now_reaches_a_sleeper(store: Store) -> None:
    """A sleeper is released when a scheduled job of its queue is made due."""
    job = await store.add(queue="mail", delay=HOUR)
    await store.quiet("mail")
    sleeper = asyncio.create_task(store.engine.jobs.wait(["mail"], ARRIVES))
    await asyncio.sleep(0.01)
    await store.engine.operator.alter(Selection((job,)), RunNow())
    assert await asyncio.wait_for(sleeper, ARRIVES - 1) == {"mail"}


@pytest.mark.core
@pytest.mark.spec("WAKE-07")
async def test_wake_of_control_reaches_every_engine(store: Store) -> None:
    """Canceling a running job wakes the keepers of all engines on the store, not only one of them."""
    twins = [store.engine.for_loop() for _ in range(2)]
    for twin in twins:
        await twin.open()
    try:
        job = await store.add()
        await store.take()
        engines = [store.engine, *twins]
        for engine in engines:
            await engine.jobs.wait([CONTROL], 0.01)  # from now on it listens, and remembers what comes in between
        sleepers = [asyncio.create_task(engine.jobs.wait([CONTROL], ARRIVES)) for engine in engines]
        await store.engine.operator.alter(Selection((job,)), Cancel())
        assert await asyncio.wait_for(asyncio.gather(*sleepers), ARRIVES - 1) == [{CONTROL}] * 3
    finally:
        for twin in twins:
            await twin.close()


@pytest.mark.core
@pytest.mark.spec("WAKE-07")
async def test_wake_of_control_is_remembered_by_each_listener(store: Store) -> None:
    """An engine that waited before gets, once, the wake-up that came while it did not wait."""
    twin = store.engine.for_loop()
    await twin.open()
    try:
        for engine in (store.engine, twin):
            assert await engine.jobs.wait([CONTROL], 0.01) == frozenset()
        await store.engine.jobs.wake([CONTROL])
        for engine in (store.engine, twin):
            assert await engine.jobs.wait([CONTROL], ARRIVES) == {CONTROL}
            assert await engine.jobs.wait([CONTROL], _NEVER) == frozenset()
    finally:
        await twin.close()


@pytest.mark.spec("WAKE-07")
async def test_wake_of_control_is_spared_when_nothing_runs(store: Store) -> None:
    """Canceling a job that only waits asks no keeper to look."""
    job = await store.add()
    await store.quiet(CONTROL)
    await store.engine.operator.alter(Selection((job,)), Cancel())
    assert await store.engine.jobs.wait([CONTROL], _NEVER) == frozenset()


# --- how long to sleep ------------------------------------------------------------------------------------------


@pytest.mark.core
@pytest.mark.spec("WAKE-08", "WAKE-11")
async def test_a_worker_may_sleep_until_the_next_job_is_due(store: Store) -> None:
    """The time is exact, over all queues and priorities, shrinks with the clock, and is 0 from the due time on."""
    await store.insert(
        store.draft(queue="mail", delay=HOUR),
        store.draft(queue="mail", delay=MINUTE, priority=7),
        store.draft(queue="post", delay=5 * SECOND),
        store.draft(queue="other", delay=SECOND),
    )
    assert await store.engine.jobs.ahead(["mail"]) == NextDue(frozenset({"mail"}), MINUTE)
    assert await store.engine.jobs.ahead(["mail", "post"]) == NextDue(frozenset({"mail", "post"}), 5 * SECOND)
    store.pass_time(5 * SECOND - 1)
    assert (await store.engine.jobs.ahead(["mail", "post"])).wait == 1
    assert await store.claim(queue="post") == []
    store.pass_time(1)
    assert await store.engine.jobs.ahead(["mail", "post"]) == NextDue(frozenset({"mail", "post"}), 0, 55 * SECOND)
    assert len(await store.claim(queue="post")) == 1
    assert (await store.engine.jobs.ahead(["mail", "post"])).wait == 55 * SECOND


@pytest.mark.core
@pytest.mark.spec("WAKE-08")
@pytest.mark.parametrize("outcome", [Failed("boom", after=3 * SECOND), Snoozed(3 * SECOND), Throttled(3 * SECOND)])
async def test_a_worker_may_sleep_until_a_job_comes_back(store: Store, outcome: Outcome) -> None:
    """A retry, a snooze and a throttle each set when the next job can be taken."""
    await store.add()
    await store.finish(await store.take(), outcome)
    assert (await store.engine.jobs.ahead([QUEUE])).wait == 3 * SECOND
    store.pass_time(3 * SECOND)
    assert len(await store.claim()) == 1


@pytest.mark.core
@pytest.mark.spec("WAKE-08")
async def test_a_worker_of_nothing_sleeps_until_it_is_woken(store: Store) -> None:
    """Empty queues, queues that were never used, and no queues at all have no time, and are open."""
    await store.finish(await _taken(store), Done())
    assert await store.engine.jobs.ahead([QUEUE, "unheard.of"]) == NextDue(frozenset({QUEUE, "unheard.of"}), None)
    assert await store.engine.jobs.ahead([]) == NextDue(frozenset(), None)


@pytest.mark.core
@pytest.mark.spec("WAKE-09")
async def test_a_cooling_queue_is_slept_over_until_its_deadline(store: Store) -> None:
    """Jobs that are due inside the window are no reason to wake; the deadline is, and then the jobs are there."""
    await store.insert(store.draft(), store.draft())
    await store.finish(await store.take(), Throttled(20 * SECOND))
    assert await store.engine.jobs.ahead([QUEUE, "other"]) == NextDue(frozenset({"other"}), 20 * SECOND)
    store.pass_time(20 * SECOND)
    assert (await store.engine.jobs.ahead([QUEUE])).open == {QUEUE}
    assert len(await store.claim(n=5)) == 2


@pytest.mark.core
@pytest.mark.spec("WAKE-09")
async def test_a_paused_queue_is_slept_over_until_it_is_resumed(store: Store) -> None:
    """Neither its due jobs nor its later ones wake a worker; resuming does, at once."""
    await store.insert(store.draft(queue="mail"), store.draft(queue="mail", delay=MINUTE))
    await store.engine.control.tune("mail", Tuning(paused=True))
    await store.quiet("mail")
    assert await store.engine.jobs.ahead(["mail"]) == NextDue(frozenset(), None)
    sleeper = asyncio.create_task(store.engine.jobs.wait(["mail"], ARRIVES))
    await asyncio.sleep(0.01)
    await store.engine.control.tune("mail", Tuning(paused=False))
    assert await asyncio.wait_for(sleeper, ARRIVES - 1) == {"mail"}
    assert await store.engine.jobs.ahead(["mail"]) == NextDue(frozenset({"mail"}), 0)


@pytest.mark.core
@pytest.mark.spec("WAKE-10")
async def test_a_job_that_is_due_soon_moves_the_alarm_of_a_sleeper(store: Store) -> None:
    """A worker that waits for a later job is woken by an earlier one, also of another process, and gets its time."""
    await store.add(queue="mail", delay=HOUR)
    await store.quiet("mail")
    assert (await store.engine.jobs.ahead(["mail"])).wait == HOUR
    sleeper = asyncio.create_task(store.engine.jobs.wait(["mail"], ARRIVES))
    await asyncio.sleep(0.05)
    twin = store.engine.for_loop()
    await twin.open()
    try:
        await twin.jobs.insert([store.draft(queue="mail", delay=SOON)])
        assert await asyncio.wait_for(sleeper, ARRIVES - 1) == {"mail"}
    finally:
        await twin.close()
    assert (await store.engine.jobs.ahead(["mail"])).wait == SOON


@pytest.mark.spec("WAKE-10")
async def test_a_job_that_is_due_later_wakes_no_waiter(store: Store) -> None:
    """One microsecond beyond what a worker looks ahead no wake-up is spent."""
    await store.insert(*(store.draft(queue="mail", delay=SOON + 1) for _ in range(3)))
    await store.add(queue="mail", at=store.now() + HOUR)
    assert await store.engine.jobs.wait(["mail"], _NEVER) == frozenset()
