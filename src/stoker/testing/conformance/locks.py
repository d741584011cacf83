"""Named locks: one owner at a time, for a while."""

from __future__ import annotations

import asyncio

import pytest

from stoker.model.errors import InvalidInput
from stoker.model.time import HOUR, SECOND
from stoker.testing.conformance.harness import Store


@pytest.mark.core
@pytest.mark.spec("LOCK-01")
async def test_locks_have_one_owner(store: Store) -> None:
    """A free lock is taken; another owner is refused; other names are other locks."""
    assert await store.engine.lock("janitor", "a", SECOND)
    assert not await store.engine.lock("janitor", "b", SECOND)
    assert await store.engine.lock("ticker", "b", SECOND)


@pytest.mark.core
@pytest.mark.spec("LOCK-02")
async def test_locks_are_extended_by_their_owner(store: Store) -> None:
    """Taking an owned lock again moves its end; a refused attempt does not."""
    await store.engine.lock("janitor", "a", 10 * SECOND)
    store.pass_time(9 * SECOND)
    assert not await store.engine.lock("janitor", "b", HOUR)
    assert await store.engine.lock("janitor", "a", 10 * SECOND)
    store.pass_time(9 * SECOND)
    assert not await store.engine.lock("janitor", "b", SECOND)
    store.pass_time(SECOND)
    assert await store.engine.lock("janitor", "b", SECOND)


@pytest.mark.spec("LOCK-02")
async def test_locks_can_be_shortened_by_their_owner(store: Store) -> None:
    """An extension counts from now, also when that ends earlier than before."""
    await store.engine.lock("janitor", "a", HOUR)
    await store.engine.lock("janitor", "a", SECOND)
    store.pass_time(SECOND)
    assert await store.engine.lock("janitor", "b", SECOND)


@pytest.mark.core
@pytest.mark.spec("LOCK-03")
async def test_locks_lapse_exactly_at_their_end(store: Store) -> None:
    """Held through the last microsecond, free at the end itself; the former owner has lost it."""
    await store.engine.lock("janitor", "a", SECOND)
    store.pass_time(SECOND - 1)
    assert not await store.engine.lock("janitor", "b", SECOND)
    store.pass_time(1)
    assert await store.engine.lock("janitor", "b", SECOND)
    assert not await store.engine.lock("janitor", "a", SECOND)
    assert not await store.engine.unlock("janitor", "a")


@pytest.mark.core
@pytest.mark.spec("LOCK-04")
async def test_locks_are_released_only_by_their_owner(store: Store) -> None:
    """The owner releases once; no other owner can; a released lock is free."""
    assert not await store.engine.unlock("janitor", "a")
    await store.engine.lock("janitor", "a", HOUR)
    assert not await store.engine.unlock("janitor", "b")
    assert not await store.engine.lock("janitor", "b", HOUR)
    assert await store.engine.unlock("janitor", "a")
    assert not await store.engine.unlock("janitor", "a")
    assert await store.engine.lock("janitor", "b", HOUR)


@pytest.mark.core
@pytest.mark.spec("LOCK-05")
async def test_locks_are_won_by_one_of_many(store: Store) -> None:
    """Twenty who try at once through two engines: one gets it."""
    twin = store.engine.for_loop()
    await twin.open()
    try:
        won = await asyncio.gather(
            *((twin, store.engine)[n % 2].lock("janitor", f"owner-{n}", SECOND) for n in range(20))
        )
        assert sum(won) == 1
        store.pass_time(SECOND)
        won = await asyncio.gather(*(twin.lock("janitor", f"next-{n}", SECOND) for n in range(20)))
        assert sum(won) == 1
    finally:
        await twin.close()


@pytest.mark.spec("LOCK-06")
async def test_locks_with_impossible_names_are_refused(store: Store) -> None:
    """A name outside the alphabet is refused."""
    with pytest.raises(InvalidInput):
        await store.engine.lock("two words", "a", SECOND)
