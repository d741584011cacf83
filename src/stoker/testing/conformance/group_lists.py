"""Groups: found without their ids, those that are open and those that are closed."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from stoker.model.groups import Group
from stoker.model.ids import JobId
from stoker.model.outcome import Done
from stoker.model.query import Place, Retention
from stoker.model.time import DAY, SECOND
from stoker.testing.conformance.group_helpers import called, close, look, make
from stoker.testing.conformance.harness import Store


async def pages(store: Store, *, closed: bool, limit: int = 2) -> list[Group]:
    """All pages of a list."""
    found: list[Group] = []
    behind: Place | None = None
    while page := await store.engine.groups.find(closed=closed, behind=behind, limit=limit):
        assert len(page) <= limit
        found += page
        behind = page[-1].created_at, page[-1].id
    return found


async def ids_of(store: Store, *, closed: bool) -> list[JobId]:
    return [group.id for group in await pages(store, closed=closed)]


@pytest.mark.core
@pytest.mark.spec("GROUP-34")
async def test_groups_are_listed_newest_first(store: Store) -> None:
    """Page by page, as `get` shows them, without the ids of members; of one instant the larger id comes first."""
    assert await pages(store, closed=False) == []
    assert await pages(store, closed=True) == []
    made = []
    for n in range(5):
        group, _ = await make(store, store.draft(), sealed=n % 2 == 0)
        made.append(group)
        if n != 2:
            store.pass_time(SECOND)
    expected = [made[4], *sorted(made[2:4], reverse=True), made[1], made[0]]
    found = await pages(store, closed=False)
    assert [group.id for group in found] == expected
    assert found == [replace(await look(store, group), members=()) for group in expected]
    assert [one.id for one in await store.engine.groups.find(closed=False)] == expected
    assert await pages(store, closed=True) == []


@pytest.mark.core
@pytest.mark.spec("GROUP-34")
async def test_a_group_is_among_the_open_ones_until_it_closes(store: Store) -> None:
    """However it closes: with its last member, by its seal, or empty; then it is a closed one until it is removed."""
    by_member, _ = await make(store, store.draft())
    store.pass_time(SECOND)
    by_seal, _ = await make(store, sealed=False)
    store.pass_time(SECOND)
    empty, _ = await make(store)
    await close(store)
    assert await ids_of(store, closed=False) == [by_seal, by_member]
    assert await ids_of(store, closed=True) == [empty]
    await store.finish(await store.take(), Done())
    await store.engine.groups.seal(by_seal)
    await close(store)
    assert await ids_of(store, closed=False) == []
    found = await pages(store, closed=True)
    assert [group.id for group in found] == [empty, by_seal, by_member]
    assert found == [replace(await look(store, group.id), members=()) for group in found]
    assert len(await called(store)) == 6
    for _ in range(2):
        store.pass_time(100 * DAY)
        await store.engine.operator.expire(Retention())
        await store.engine.groups.sweep()
    assert await ids_of(store, closed=True) == []
