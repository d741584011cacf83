"""A wake-up that meets a sleeper in the very moment in which it leaves goes to another waiter, or is remembered."""

from __future__ import annotations

import asyncio

import pytest

from stoker.engines.base import CONTROL
from stoker.engines.shared.waiters import TopicWaiters

SOON = 120.0


@pytest.mark.spec("PGOP-17")
async def test_a_sleeper_whose_time_has_just_run_out_takes_no_wake_up_along() -> None:
    waiters = TopicWaiters()
    loop = asyncio.get_running_loop()
    late = asyncio.create_task(waiters.wait(["mail"], 0))
    await asyncio.sleep(0)
    # Both timers are due in one turn of the loop: the sleeper has been told, but has not got up yet.
    loop.call_later(0, waiters.wake, "mail")
    other = asyncio.create_task(waiters.wait(["mail"], SOON))
    assert sorted(map(len, await asyncio.gather(late, other))) == [0, 1]
    assert await waiters.wait(["mail"], 0) == frozenset()


@pytest.mark.spec("PGOP-17")
@pytest.mark.parametrize("topic", ["mail", CONTROL])
async def test_a_sleeper_that_was_just_canceled_takes_no_wake_up_along(topic: str) -> None:
    waiters = TopicWaiters()
    left = asyncio.create_task(waiters.wait([topic], SOON))
    await asyncio.sleep(0)
    left.cancel()
    waiters.wake(topic)
    with pytest.raises(asyncio.CancelledError):
        await left
    assert await asyncio.wait_for(waiters.wait([topic], SOON), SOON / 2) == {topic}


@pytest.mark.spec("PGOP-17")
async def test_a_sleeper_canceled_after_it_was_woken_passes_the_wake_up_on() -> None:
    waiters = TopicWaiters()
    first = asyncio.create_task(waiters.wait(["mail"], SOON))
    second = asyncio.create_task(waiters.wait(["mail"], SOON))
    await asyncio.sleep(0)
    waiters.wake("mail")
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    assert await asyncio.wait_for(second, SOON / 2) == {"mail"}


@pytest.mark.spec("PGOP-17")
async def test_a_wake_up_is_remembered_once_and_can_be_seen() -> None:
    waiters = TopicWaiters()
    waiters.wake("mail")
    waiters.wake("mail")
    waiters.wake(CONTROL)
    assert waiters.remembers(["post", "mail"])
    assert not waiters.remembers([CONTROL]), "no waiter here ever waited for it"
    assert await waiters.wait(["mail", "post"], SOON) == {"mail"}
    assert not waiters.remembers(["mail"])
