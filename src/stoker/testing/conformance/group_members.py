"""Groups: who is a member, who counts again, and how many there can be."""

from __future__ import annotations

import msgspec
import pytest

from stoker.model.errors import GroupClosed, InvalidInput, NotFound
from stoker.model.groups import MOST_KNOWN, into_group, new_group
from stoker.model.ids import text
from stoker.model.job import LARGEST_BATCH, Status, Verdict, chain
from stoker.model.lifecycle import conclude
from stoker.model.outcome import (
    Canceled,
    Done,
    Outcome,
    Rejected,
)
from stoker.model.query import Cancel, Clone, Requeue, Selection
from stoker.model.unique import Unique
from stoker.testing.conformance.group_helpers import add, called, counts_of, each_callback, look, make
from stoker.testing.conformance.harness import QUEUE, Store

# --- joining --------------------------------------------------------------------------------------------------------


@pytest.mark.core
@pytest.mark.spec("GROUP-11")
async def test_a_member_may_add_members(store: Store) -> None:
    """They join with its success, so the group cannot close in between."""
    group, _ = await make(store, store.draft())
    [more] = into_group(group, [store.draft("more")])
    await store.finish(await store.take(), Done(followups=(more,)))
    found = await look(store, group)
    assert (found.total, found.done, found.waiting, found.closed_at) == (2, 1, 1, None)
    assert more.job_id in found.members
    await store.finish(await store.take(), Done())
    assert await counts_of(store, group) == (2, 2, 0, 0, 0)
    assert await called(store) == ["then", "on_finish"]


@pytest.mark.core
@pytest.mark.spec("GROUP-11")
async def test_what_stands_behind_a_member_is_a_member(store: Store) -> None:
    """The group waits for the whole chain; a dead link ends it."""
    group, _ = await make(store, chain(store.draft("a"), store.draft("b"), store.draft("c")))
    await store.finish(await store.take(), Done())
    assert await counts_of(store, group) == (2, 1, 0, 0, 1)
    await store.finish(await store.take(), Rejected("no"))
    assert await counts_of(store, group) == (2, 1, 1, 0, 0)
    assert await called(store) == ["on_failure", "on_finish"]


@pytest.mark.core
@pytest.mark.spec("GROUP-12")
async def test_a_closed_group_takes_no_members(store: Store) -> None:
    """`GroupClosed`, and nothing of the call is stored."""
    group, _ = await make(store)
    assert (await look(store, group)).closed_at is not None
    plain, member = store.draft(), store.draft()
    with pytest.raises(GroupClosed) as refused:
        await store.engine.jobs.insert([plain, *into_group(group, [member])])
    assert refused.value.group_id == text(group)
    assert await store.engine.operator.get([plain.job_id, member.job_id]) == [None, None]
    assert (await look(store, group)).total == 0


@pytest.mark.core
@pytest.mark.spec("GROUP-12")
async def test_a_group_of_another_store_takes_no_members(store: Store) -> None:
    """`NotFound` names it, and nothing of the call is stored."""
    foreign, plain, member = store.mint(), store.draft(), store.draft()
    with pytest.raises(NotFound, match=text(foreign)):
        await store.engine.jobs.insert([plain, *into_group(foreign, [member])])
    assert await store.engine.operator.get([plain.job_id, member.job_id]) == [None, None]
    assert not await store.engine.groups.seal(foreign)
    assert await store.engine.groups.get([foreign]) == [None]


@pytest.mark.core
@pytest.mark.spec("GROUP-12")
async def test_a_stored_job_does_not_become_a_member(store: Store) -> None:
    """Else the group would close without it: `InvalidInput`, and nothing of the call is stored."""
    stored, fresh = store.draft(), store.draft()
    await store.insert(stored)
    group = store.mint()
    with pytest.raises(InvalidInput, match="stored job"):
        await store.engine.jobs.insert(into_group(group, [fresh, stored]), group=new_group(group, sealed=True))
    assert await store.gone(fresh.job_id)
    assert await store.engine.groups.get([group]) == [None]


@pytest.mark.core
@pytest.mark.spec("GROUP-13")
async def test_a_repeated_call_adds_nothing(store: Store) -> None:
    """The same group and members again, before and after the end."""
    group = store.mint()
    made, members = new_group(group, sealed=True), into_group(group, [store.draft(), store.draft()])
    await store.engine.jobs.insert(members, group=made)
    receipts = await store.engine.jobs.insert(members, group=made)
    assert [receipt.stored for receipt in receipts] == ["existing", "existing"]
    assert await counts_of(store, group) == (2, 0, 0, 0, 2)
    await store.engine.jobs.insert([members[0]])
    assert await counts_of(store, group) == (2, 0, 0, 0, 2)


@pytest.mark.spec("GROUP-14")
async def test_a_draft_that_met_the_holder_of_its_key_is_no_member(store: Store) -> None:
    """The group waits for what it stored."""
    holder = await store.add(unique=Unique("k"), priority=9)
    group, ids = await make(store, store.draft(unique=Unique("k")), store.draft())
    assert ids[0] == holder
    assert (await look(store, group)).members == (ids[1],)
    await store.finish(await store.take(), Done())
    assert await counts_of(store, group) == (1, 1, 0, 0, 0)


@pytest.mark.spec("GROUP-14")
async def test_a_member_that_a_newer_draft_replaces_leaves_its_group(store: Store) -> None:
    """Its former group counts it as canceled, the newer draft's group as a member."""
    unique = Unique("k", mode="replace")
    former, [job] = await make(store, store.draft(unique=unique))
    group, ids = await make(store, store.draft(unique=unique))
    assert ids == [job]
    assert await counts_of(store, former) == (1, 0, 0, 1, 0)
    assert await called(store) == ["on_failure", "on_finish"]
    await add(store, group, store.draft(unique=unique))
    assert await counts_of(store, group) == (1, 0, 0, 0, 1)
    await store.finish(await store.take(), Done())
    assert await counts_of(store, group) == (1, 1, 0, 0, 0)
    assert await called(store) == ["then", "on_finish"]


# --- again ----------------------------------------------------------------------------------------------------------


@pytest.mark.core
@pytest.mark.spec("GROUP-15")
@pytest.mark.parametrize("outcome", [Rejected("no"), Canceled()])
async def test_a_requeued_member_of_an_open_group_is_unfinished_again(store: Store, outcome: Outcome) -> None:
    """The group closes by how it ends at last."""
    group, [job, _] = await make(store, store.draft(), store.draft())
    first, second = await store.claim(n=2)
    await store.finish(first, outcome)
    assert (await store.engine.operator.alter(Selection((job,)), Requeue())).changed == 1
    assert await counts_of(store, group) == (2, 0, 0, 0, 2)
    await store.finish(second, Done())
    assert await called(store) == []
    await store.finish(await store.take(), Done())
    assert await counts_of(store, group) == (2, 2, 0, 0, 0)
    assert await called(store) == ["then", "on_finish"]


@pytest.mark.spec("GROUP-05", "GROUP-15")
async def test_the_late_end_of_a_run_whose_job_was_requeued_counts_nothing(store: Store) -> None:
    """An operator ended the run by force and requeued the job: the group waits for the new run alone."""
    group, [job, _] = await make(store, store.draft(), store.draft())
    old, other = await store.claim(n=2)
    await store.engine.operator.alter(Selection((job,)), Cancel(force=True))
    await store.engine.operator.alter(Selection((job,)), Requeue())
    for outcome in (Done(), Rejected("no")):
        assert await store.finish(old, outcome) is Verdict.LOST
    assert await counts_of(store, group) == (2, 0, 0, 0, 2)
    await store.finish(other, Done())
    assert await called(store) == []
    await store.finish(await store.take(), Done())
    assert await store.finish(old, Done()) is Verdict.LOST
    assert await counts_of(store, group) == (2, 2, 0, 0, 0)
    assert await called(store) == ["then", "on_finish"]


@pytest.mark.core
@pytest.mark.spec("GROUP-15")
async def test_nothing_fires_again_after_the_closing(store: Store) -> None:
    """Requeued and copied members run; the group stays as it closed."""
    group, members = await make(store, store.draft(), store.draft())
    for claim in await store.claim(n=2):
        await store.finish(claim, Rejected("no"))
    closed = await look(store, group)
    assert await called(store) == ["on_failure", "on_finish"]
    await store.engine.operator.alter(Selection((members[0],)), Requeue())
    await store.engine.operator.alter(Selection((members[1],)), Clone((store.mint(),)))
    [more] = into_group(group, [store.draft("more")])
    for claim in await store.claim(n=2):
        await store.finish(claim, Done(followups=(more,)))
    await store.finish(await store.take(), Done())
    assert await store.status(more.job_id) is Status.DONE
    assert await look(store, group) == closed
    assert await called(store) == []


@pytest.mark.core
@pytest.mark.spec("GROUP-16")
async def test_a_copy_takes_the_place_of_the_dead_member(store: Store) -> None:
    """The group waits for the copy and succeeds with it."""
    group, [job, other] = await make(store, store.draft(), store.draft(priority=5))
    await store.finish(await store.take(), Rejected("no"))
    copy = store.mint()
    assert (await store.engine.operator.alter(Selection((job,)), Clone((copy,)))).changed == 1
    assert await counts_of(store, group) == (2, 0, 0, 0, 2)
    assert (await look(store, group)).members == (job, other, copy)
    for claim in await store.claim(n=2):
        await store.finish(claim, Done())
    assert await counts_of(store, group) == (2, 2, 0, 0, 0)
    assert await called(store) == ["then", "on_finish"]


# --- many -----------------------------------------------------------------------------------------------------------


@pytest.mark.spec("GROUP-17")
async def test_a_full_batch_of_ends_in_one_call(store: Store) -> None:
    """A thousand members of one group; it closes once."""
    group, members = await make(store, *(store.draft() for _ in range(LARGEST_BATCH)))
    found = await look(store, group)
    assert (found.total, found.members) == (LARGEST_BATCH, tuple(members))
    claims = await store.claim(n=LARGEST_BATCH)
    await store.settle(*(conclude(claim, Done()) for claim in claims))
    assert await counts_of(store, group) == (LARGEST_BATCH, LARGEST_BATCH, 0, 0, 0)
    assert await called(store) == ["then", "on_finish"]


@pytest.mark.spec("GROUP-17")
async def test_many_groups_close_in_one_call(store: Store) -> None:
    """Each by its own members, beside jobs without a group and other outcomes."""
    made = [await make(store, store.draft(), store.draft()) for _ in range(5)]
    await store.insert(*(store.draft(priority=1) for _ in range(3)))
    claims = {claim.id: claim for claim in await store.claim(n=13)}
    dead = {made[1][1][0], made[3][1][1]}
    ends = [conclude(claim, Rejected("no") if job in dead else Done()) for job, claim in claims.items()]
    assert await store.settle(*ends) == [Verdict.APPLIED] * 13
    for place, (group, _) in enumerate(made):
        assert await counts_of(store, group) == ((2, 1, 1, 0, 0) if place in (1, 3) else (2, 2, 0, 0, 0))
    kinds = await called(store)
    assert sorted(kinds) == ["on_failure"] * 2 + ["on_finish"] * 5 + ["then"] * 3


@pytest.mark.spec("GROUP-17")
async def test_the_ids_of_many_members_are_not_kept(store: Store) -> None:
    """More than a thousand: they are counted only."""
    group, _ = await make(store, *(store.draft() for _ in range(MOST_KNOWN)), sealed=False)
    await add(store, group, store.draft())
    await add(store, group, store.draft())
    found = await look(store, group)
    assert (found.total, found.members) == (MOST_KNOWN + 2, ())


@pytest.mark.core
@pytest.mark.spec("GROUP-17")
async def test_groups_come_in_the_order_of_their_ids(store: Store) -> None:
    """None where there is none; with their callbacks as they were given."""
    calls = each_callback(store)
    one, _ = await make(store, store.draft(), sealed=False, **msgspec.structs.asdict(calls))
    two, _ = await make(store, store.draft())
    missing = store.mint()
    assert await store.engine.groups.get([]) == []
    second, none, first = await store.engine.groups.get([two, missing, one])
    assert none is None
    assert second is not None
    assert first is not None
    assert (first.id, second.id, first.sealed, second.sealed) == (one, two, False, True)
    kept = new_group(one, **msgspec.structs.asdict(calls))
    assert (first.then, first.on_failure, first.on_finish) == (kept.then, kept.on_failure, kept.on_finish)
    assert (first.queue, first.created_at, first.touched_at) == (QUEUE, store.now(), store.now())
