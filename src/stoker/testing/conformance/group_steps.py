"""Groups that are stored in steps: a call that is repeated goes on where one before it was interrupted."""

from __future__ import annotations

import asyncio

import pytest
from msgspec.structs import replace

from stoker.model.errors import InvalidInput
from stoker.model.groups import Group, into_group, new_group
from stoker.model.job import Draft, Options, Receipt, Stored
from stoker.model.lifecycle import conclude
from stoker.model.outcome import Done
from stoker.model.unique import Unique
from stoker.testing.conformance.find_helpers import found_ids
from stoker.testing.conformance.group_helpers import counts_of, look
from stoker.testing.conformance.harness import Store


async def place(store: Store, group: Group, drafts: list[Draft], placed: int) -> list[Receipt]:
    """One step of a call: drafts, after which so many are placed."""
    return await store.engine.jobs.insert(into_group(group.id, drafts), group=replace(group, placed=placed))


def fresh(store: Store, n: int) -> list[Draft]:
    """Drafts whose success removes them."""
    return [store.draft(options=Options(keep=0)) for _ in range(n)]


@pytest.mark.core
@pytest.mark.spec("GROUP-38")
async def test_a_step_is_stored_once_whatever_became_of_its_jobs(store: Store) -> None:
    """Each call makes its drafts anew, with other ids, and those of a step that is stored may be gone."""
    group = new_group(store.mint())
    first = await place(store, group, fresh(store, 2), 2)
    assert [one.stored for one in first] == [Stored.INSERTED] * 2
    for claim in await store.claim(n=2):
        await store.settle(conclude(claim, Done()))
    again = await place(store, group, fresh(store, 2), 2)
    assert [one.stored for one in again] == [Stored.EXISTING] * 2
    assert await counts_of(store, group.id) == (2, 2, 0, 0, 0)
    await place(store, group, fresh(store, 3), 5)
    await place(store, group, fresh(store, 3), 5)
    assert await counts_of(store, group.id) == (5, 2, 0, 0, 3)
    assert (await look(store, group.id)).placed == 5
    assert len(await found_ids(store, group=group.id)) == 3
    [listed] = await store.engine.groups.find(closed=False)
    assert (listed.id, listed.placed) == (group.id, 5)


@pytest.mark.spec("GROUP-38")
async def test_a_step_that_is_not_the_next_one_is_refused(store: Store) -> None:
    """Two calls with other drafts would else mix their jobs."""
    group = new_group(store.mint())
    await place(store, group, fresh(store, 2), 2)
    for n, placed in ((3, 4), (1, 4)):
        with pytest.raises(InvalidInput, match="another call makes it, too"):
            await place(store, group, fresh(store, n), placed)
    assert await counts_of(store, group.id) == (2, 0, 0, 0, 2)
    assert (await look(store, group.id)).placed == 2


@pytest.mark.spec("GROUP-38")
async def test_a_later_step_of_a_group_that_is_not_stored_is_refused(store: Store) -> None:
    """Its first drafts would be missing, and counted as placed."""
    group = new_group(store.mint())
    with pytest.raises(InvalidInput, match="has 0 drafts stored, and these begin at 2"):
        await place(store, group, fresh(store, 1), 3)
    assert await store.engine.groups.get([group.id]) == [None]
    await place(store, group, fresh(store, 2), 2)
    assert await counts_of(store, group.id) == (2, 0, 0, 0, 2)


@pytest.mark.spec("GROUP-38")
async def test_drafts_that_join_nothing_count_as_placed(store: Store) -> None:
    """A draft whose key is held is no member; the step of such drafts alone is a step all the same."""
    await store.add(unique=Unique("k"))
    group = new_group(store.mint())
    await place(store, group, fresh(store, 1), 1)
    [met] = await place(store, group, [store.draft(unique=Unique("k"))], 2)
    assert met.stored is Stored.EXISTING
    await place(store, group, [store.draft(unique=Unique("other")), *fresh(store, 1)], 4)
    found = await look(store, group.id)
    assert (found.total, found.placed) == (3, 4)
    await place(store, group, [store.draft(unique=Unique("other")), *fresh(store, 1)], 4)
    assert (await look(store, group.id)).total == 3


@pytest.mark.spec("GROUP-38")
async def test_of_two_calls_at_the_same_moment_each_step_is_stored_once(store: Store) -> None:
    """Also the first step, which makes the group."""
    group = new_group(store.mint())
    for placed in (50, 100):
        answers = await asyncio.gather(*(place(store, group, fresh(store, 50), placed) for _ in range(3)))
        assert sorted({one.stored for one in answer} for answer in answers if answer[0].stored is Stored.INSERTED) == [
            {Stored.INSERTED}
        ]
        assert sum(answer[0].stored is Stored.EXISTING for answer in answers) == 2
    assert await counts_of(store, group.id) == (100, 0, 0, 0, 100)
    assert await store.engine.groups.seal(group.id)
