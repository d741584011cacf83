"""Presences: workers as they show themselves."""

from __future__ import annotations

import msgspec
import pytest

from stoker.model.control import Presence
from stoker.model.query import Retention
from stoker.model.time import HOUR, SECOND
from stoker.testing.conformance.harness import Store

_SHOWN = Presence(
    worker="w1",
    host="alpha",
    pid=7,
    queues={"mail": 5, "default": 20},
    kinds={"send": "shop.mail.send"},
    running=3,
    version="1.2",
    lease=40 * SECOND,
)


@pytest.mark.core
@pytest.mark.spec("PRESENCE-01")
async def test_without_workers_presences_are_empty(store: Store) -> None:
    """There are none before a worker reports itself; claiming and renewing alone are no report."""
    await store.enlist("w1")
    assert await store.engine.control.workers() == []


@pytest.mark.core
@pytest.mark.spec("PRESENCE-02")
async def test_presence_is_stamped_by_the_store(store: Store) -> None:
    """A presence comes back as it was reported, with the store's time instead of its own."""
    await store.engine.control.beat(msgspec.structs.replace(_SHOWN, seen_at=12345))
    assert await store.engine.control.workers() == [msgspec.structs.replace(_SHOWN, seen_at=store.now())]


@pytest.mark.core
@pytest.mark.spec("PRESENCE-03")
async def test_presence_replaces_the_same_workers_earlier_one(store: Store) -> None:
    """A worker is listed once, as it showed itself last, down to the queues it serves."""
    await store.engine.control.beat(_SHOWN)
    store.pass_time(SECOND)
    later = msgspec.structs.replace(_SHOWN, queues={"mail": 1}, running=0, state="stopping", host="beta")
    await store.engine.control.beat(later)
    assert await store.engine.control.workers() == [msgspec.structs.replace(later, seen_at=store.now())]


@pytest.mark.core
@pytest.mark.spec("PRESENCE-04")
async def test_presence_lists_workers_by_name(store: Store) -> None:
    """The order is that of the worker ids, not of their arrival."""
    for worker in ("w2", "w10", "a"):
        await store.engine.control.beat(msgspec.structs.replace(_SHOWN, worker=worker))
    assert [presence.worker for presence in await store.engine.control.workers()] == ["a", "w10", "w2"]


@pytest.mark.core
@pytest.mark.spec("PRESENCE-05")
async def test_presence_lasts_until_it_is_swept_and_comes_back_with_a_sign(store: Store) -> None:
    """A silent worker is listed until `expire` removes it, and again as soon as it shows itself."""
    await store.engine.control.beat(_SHOWN)
    store.pass_time(HOUR)
    assert len(await store.engine.control.workers()) == 1
    assert (await store.engine.operator.expire(Retention())).presences == 1
    assert await store.engine.control.workers() == []
    await store.engine.control.beat(_SHOWN)
    assert [presence.seen_at for presence in await store.engine.control.workers()] == [store.now()]


@pytest.mark.spec("PRESENCE-05")
async def test_presence_has_nothing_to_do_with_the_lease(store: Store) -> None:
    """Sweeping a presence takes no claim away and ends no lease."""
    await store.engine.control.beat(_SHOWN)
    job = await store.add()
    claim = await store.take("w1")
    await store.engine.jobs.renew("w1", [], lease=2 * HOUR)
    store.pass_time(HOUR)
    await store.engine.operator.expire(Retention())
    renewal = await store.engine.jobs.renew("w1", [(job, claim.token)])
    assert (renewal.known, renewal.lost) == (True, [])


@pytest.mark.spec("PRESENCE-02")
async def test_presence_is_seen_through_every_engine_on_the_store(store: Store) -> None:
    """A twin lists the same workers."""
    await store.engine.control.beat(_SHOWN)
    twin = store.engine.for_loop()
    await twin.open()
    try:
        assert await twin.control.workers() == await store.engine.control.workers() != []
    finally:
        await twin.close()
