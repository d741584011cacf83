"""Named locks: one owner at a time, for a while."""

from __future__ import annotations

import asyncio

import pytest

from stoker.engines.base import CONTROL
from stoker.model.errors import InvalidInput
from stoker.model.time import HOUR, MINUTE, SECOND
from stoker.testing.conformance.harness import ARRIVES, Store


@pytest.mark.core
@pytest.mark.spec("LOCK-01")
async def test_locks_have_one_owner(store: Store) -> None:
    """A free lock is taken; another owner is refused; other names are other locks."""
    assert await store.engine.control.lock("janitor", "a", SECOND)
    assert not await store.engine.control.lock("janitor", "b", SECOND)
    assert await store.engine.control.lock("ticker", "b", SECOND)


@pytest.mark.core
@pytest.mark.spec("LOCK-02")
async def test_locks_are_extended_by_their_owner(store: Store) -> None:
    """Taking an owned lock again moves its end; a refused attempt does not."""
    await store.engine.control.lock("janitor", "a", 10 * SECOND)
    store.pass_time(9 * SECOND)
    assert not await store.engine.control.lock("janitor", "b", HOUR)
    assert await store.engine.control.lock("janitor", "a", 10 * SECOND)
    store.pass_time(9 * SECOND)
    assert not await store.engine.control.lock("janitor", "b", SECOND)
    store.pass_time(SECOND)
    assert await store.engine.control.lock("janitor", "b", SECOND)


@pytest.mark.spec("LOCK-02")
async def test_locks_can_be_shortened_by_their_owner(store: Store) -> None:
    """An extension counts from now, also when that ends earlier than before."""
    await store.engine.control.lock("janitor", "a", HOUR)
    await store.engine.control.lock("janitor", "a", SECOND)
    store.pass_time(SECOND)
    assert await store.engine.control.lock("janitor", "b", SECOND)


@pytest.mark.core
@pytest.mark.spec("LOCK-03")
async def test_locks_lapse_exactly_at_their_end(store: Store) -> None:
    """Held through the last microsecond, free at the end itself; the former owner has lost it."""
    await store.engine.control.lock("janitor", "a", SECOND)
    store.pass_time(SECOND - 1)
    assert not await store.engine.control.lock("janitor", "b", SECOND)
    store.pass_time(1)
    assert await store.engine.control.lock("janitor", "b", SECOND)
    assert not await store.engine.control.lock("janitor", "a", SECOND)
    assert not await store.engine.control.unlock("janitor", "a")


@pytest.mark.core
@pytest.mark.spec("LOCK-04")
async def test_locks_are_released_only_by_their_owner(store: Store) -> None:
    """The owner releases once; no other owner can; a released lock is free."""
    assert not await store.engine.control.unlock("janitor", "a")
    await store.engine.control.lock("janitor", "a", HOUR)
    assert not await store.engine.control.unlock("janitor", "b")
    assert not await store.engine.control.lock("janitor", "b", HOUR)
    assert await store.engine.control.unlock("janitor", "a")
    assert not await store.engine.control.unlock("janitor", "a")
    assert await store.engine.control.lock("janitor", "b", HOUR)


@pytest.mark.core
@pytest.mark.spec("LOCK-09")
async def test_a_lapsed_lock_is_released_by_its_last_owner(store: Store) -> None:
    """So an owner learns whether anybody else had it since, also one who has given it back."""
    await store.engine.control.lock("janitor", "a", SECOND)
    store.pass_time(MINUTE)
    assert await store.engine.control.unlock("janitor", "a")
    await store.engine.control.lock("janitor", "a", SECOND)
    store.pass_time(MINUTE)
    assert await store.engine.control.lock("janitor", "b", SECOND)
    assert await store.engine.control.unlock("janitor", "b")
    assert not await store.engine.control.unlock("janitor", "a")


@pytest.mark.core
@pytest.mark.spec("LOCK-05")
async def test_locks_are_won_by_one_of_many(store: Store) -> None:
    """Twenty who try at once through two engines: one gets it."""
    twin = store.engine.for_loop()
    await twin.open()
    try:
        won = await asyncio.gather(
            *((twin, store.engine)[n % 2].control.lock("janitor", f"owner-{n}", SECOND) for n in range(20))
        )
        assert sum(won) == 1
        store.pass_time(SECOND)
        won = await asyncio.gather(*(twin.control.lock("janitor", f"next-{n}", SECOND) for n in range(20)))
        assert sum(won) == 1
    finally:
        await twin.close()


@pytest.mark.core
@pytest.mark.spec("LOCK-07")
@pytest.mark.parametrize("how", ["lapsed", "named dead", "named dead, with jobs", "stopped"])
async def test_locks_of_a_dead_worker_are_released_by_its_reaper(store: Store, how: str) -> None:
    """Every lock under its id is free at once and `CONTROL` is woken; a user's lock and a living worker's stay."""
    await store.engine.jobs.renew("gone", [], lease=MINUTE if how == "lapsed" else HOUR, first=True)
    await store.engine.jobs.renew("alive", [], lease=HOUR, first=True)
    if how == "named dead, with jobs":
        await store.insert(*(store.draft() for _ in range(3)))
        assert len(await store.claim("gone", 3)) == 3
    for name, owner in (("ticker", "gone"), ("rollup", "gone"), ("sweeper", "alive"), ("import", "a user's block")):
        assert await store.engine.control.lock(name, owner, HOUR)
    if how == "lapsed":
        store.pass_time(MINUTE + 1)
    if how == "stopped":
        await store.engine.jobs.renew("gone", [], lease=0)
    await store.quiet(CONTROL)
    await store.engine.jobs.reap("alive", 100, dead=["gone"] if "named" in how else [])
    assert await store.engine.jobs.wait([CONTROL], ARRIVES) == {CONTROL}
    taken = [await store.engine.control.lock(name, "next", HOUR) for name in ("ticker", "rollup", "sweeper", "import")]
    assert taken == [True, True, False, False]


@pytest.mark.spec("LOCK-07")
async def test_a_reap_without_locks_wakes_no_service(store: Store) -> None:
    """The reaper's own lock stays, also when it names itself as dead."""
    await store.enlist("gone")
    await store.enlist("alive")
    assert await store.engine.control.lock("ticker", "alive", HOUR)
    await store.quiet(CONTROL)
    await store.engine.jobs.reap("alive", 100, dead=["gone", "alive"])
    assert await store.engine.jobs.wait([CONTROL], 0.04) == frozenset()
    assert not await store.engine.control.lock("ticker", "next", HOUR)


@pytest.mark.spec("LOCK-06")
async def test_locks_with_impossible_names_are_refused(store: Store) -> None:
    """A name outside the alphabet is refused."""
    with pytest.raises(InvalidInput):
        await store.engine.control.lock("two words", "a", SECOND)
