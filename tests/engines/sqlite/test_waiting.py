"""Sleeping and waking inside one loop."""

from __future__ import annotations

import asyncio

import pytest

from stoker.engines.base import CONTROL
from stoker.engines.sqlite.waiting import Hub


async def asleep(hub: Hub, *topics: str, timeout: float = 10.0) -> asyncio.Task[frozenset[str]]:
    task = asyncio.ensure_future(hub.wait(topics, timeout))
    await asyncio.sleep(0)
    return task


@pytest.mark.spec("SQLITE-80")
async def test_a_wake_up_in_the_tick_of_a_cancel_goes_to_the_next_or_is_remembered() -> None:
    hub = Hub()
    gone, next_ = await asleep(hub, "mail"), await asleep(hub, "mail")
    gone.cancel()
    hub.wake("mail")
    assert await next_ == {"mail"}
    gone = await asleep(hub, "mail")
    gone.cancel()
    hub.wake("mail")
    assert await hub.wait(["mail"], 0) == {"mail"}


@pytest.mark.spec("SQLITE-80")
async def test_whoever_is_canceled_after_being_released_passes_the_wake_up_on() -> None:
    hub = Hub()
    released, next_ = await asleep(hub, "mail", CONTROL), await asleep(hub, "mail")
    hub.wake("mail")
    released.cancel()
    with pytest.raises(asyncio.CancelledError):
        await released
    assert await next_ == {"mail"}


@pytest.mark.spec("SQLITE-80")
async def test_who_sleeps_too_long_or_while_the_engine_closes_goes_home_empty_handed() -> None:
    hub = Hub()
    assert await hub.wait(["mail"], 0) == frozenset()
    late, gone = await asleep(hub, "mail", CONTROL), await asleep(hub, "mail")
    gone.cancel()
    hub.dismiss()
    assert await late == frozenset()
    assert hub.waited_for() == []
