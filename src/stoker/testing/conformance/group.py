"""Groups: members are counted by whatever door they end, and a group closes once."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
import pytest

from stoker.engines.base import LEASE, Feature
from stoker.model.control import Tuning
from stoker.model.errors import GroupClosed, InvalidInput, NotFound
from stoker.model.groups import ABANDONED_AFTER, GROUP, MOST_KNOWN, Group, Swept, into_group, new_group
from stoker.model.ids import JobId, text
from stoker.model.job import LARGEST_BATCH, Demand, Draft, Options, Status, Verdict, chain
from stoker.model.lifecycle import conclude
from stoker.model.outcome import (
    Canceled,
    Crashed,
    Done,
    Expired,
    Failed,
    HandedBack,
    Lost,
    Outcome,
    Panicked,
    Rejected,
    Snoozed,
    Throttled,
    Unfit,
)
from stoker.model.query import Cancel, Clone, Delete, Discard, Move, Prioritize, Requeue, Retention, RunNow, Selection
from stoker.model.time import DAY, HOUR, MINUTE, SECOND
from stoker.model.unique import Unique
from stoker.testing.conformance.harness import QUEUE, Store, needs

AFTER = "after"
"""The queue of the callbacks, so that a case can claim members alone."""


class _Callbacks(msgspec.Struct):
    then: Draft
    on_failure: Draft
    on_finish: Draft


def _callbacks(store: Store) -> _Callbacks:
    return _Callbacks(*(store.draft(kind, queue=AFTER) for kind in ("then", "on_failure", "on_finish")))


async def _make(store: Store, *drafts: Draft, sealed: bool = True, **callbacks: Draft) -> tuple[JobId, list[JobId]]:
    """A group with these members; callbacks unless given: one of each sort."""
    group = store.mint()
    chosen = callbacks or msgspec.structs.asdict(_callbacks(store))
    members = into_group(group, drafts)
    receipts = await store.engine.insert(members, group=new_group(group, sealed=sealed, **chosen))
    return group, [receipt.id for receipt in receipts]


async def _add(store: Store, group: JobId, *drafts: Draft) -> list[JobId]:
    return [receipt.id for receipt in await store.engine.insert(into_group(group, drafts))]


async def _close(store: Store) -> None:
    """Where closing a group is a write of its own, do it now."""
    if Feature.CLOSES_AT_ONCE not in store.engine.features:
        await store.engine.sweep_groups()


async def _look(store: Store, group: JobId) -> Group:
    """The group; where closing is a write of its own, after that write."""
    await _close(store)
    [found] = await store.engine.groups([group])
    assert found is not None
    return found


async def _called(store: Store) -> list[str]:
    """The kinds of the callbacks that are stored, waiting or not."""
    await _close(store)
    claims = await store.claim("caller", 10, AFTER)
    await store.settle(*(conclude(claim, Done()) for claim in claims))
    return [claim.kind for claim in claims]


async def _numbers(store: Store, group: JobId) -> tuple[int, int, int, int, int]:
    found = await _look(store, group)
    return found.total, found.done, found.dead, found.canceled, found.waiting


# --- closing --------------------------------------------------------------------------------------------------------


@pytest.mark.core
@pytest.mark.spec("GROUP-01", "GROUP-02")
async def test_a_group_closes_with_the_success_of_its_last_member(store: Store) -> None:
    """Then and on_finish are stored once, in their queue, with the group in their metadata; on_failure is not."""
    calls = _callbacks(store)
    group, members = await _make(store, store.draft(), store.draft(), **msgspec.structs.asdict(calls))
    first, second = await store.claim(n=2)
    await store.finish(first, Done())
    found = await _look(store, group)
    assert (found.closed_at, found.total, found.done, found.waiting) == (None, 2, 1, 1)
    assert found.members == tuple(members)
    assert await _called(store) == []
    store.pass_time(SECOND)
    assert await store.finish(second, Done()) is Verdict.APPLIED
    found = await _look(store, group)
    assert (found.closed_at, found.total, found.done, found.succeeded) == (store.now(), 2, 2, True)
    assert (await store.job(calls.then.id)).options.metadata == {GROUP: text(group)}
    assert await _called(store) == ["then", "on_finish"]
    assert await store.gone(calls.on_failure.id)


@pytest.mark.core
@pytest.mark.spec("GROUP-02")
async def test_a_group_with_a_dead_member_fails_when_the_last_one_ends(store: Store) -> None:
    """On_failure and on_finish are stored, not at the death but at the end of the last member."""
    group, _ = await _make(store, store.draft(), store.draft())
    first, second = await store.claim(n=2)
    await store.finish(first, Rejected("no"))
    assert await _numbers(store, group) == (2, 0, 1, 0, 1)
    assert await _called(store) == []
    await store.finish(second, Done())
    assert await _numbers(store, group) == (2, 1, 1, 0, 0)
    assert await _called(store) == ["on_failure", "on_finish"]


@pytest.mark.core
@pytest.mark.spec("GROUP-02")
async def test_a_group_without_callbacks_closes_too(store: Store) -> None:
    """It is only counted."""
    group = store.mint()
    await store.engine.insert(into_group(group, [store.draft()]), group=new_group(group, sealed=True))
    await store.finish(await store.take(), Done())
    assert (await _look(store, group)).closed_at is not None
    assert await store.counts() == {Status.DONE: 1}


@pytest.mark.core
@pytest.mark.spec("GROUP-03")
@pytest.mark.parametrize(
    ("outcome", "numbers"),
    [
        (Done(), (1, 0, 0)),
        (Rejected("no"), (0, 1, 0)),
        (Failed("boom", retry=False), (0, 1, 0)),
        (Panicked("exit"), (0, 1, 0)),
        (Canceled(), (0, 0, 1)),
        (Expired(), (0, 0, 1)),
    ],
)
async def test_a_settlement_ends_a_member(store: Store, outcome: Outcome, numbers: tuple[int, int, int]) -> None:
    """As done, dead or canceled."""
    group, _ = await _make(store, store.draft())
    await store.finish(await store.take(), outcome)
    assert await _numbers(store, group) == (1, *numbers, 0)
    assert await _called(store) == ["then" if isinstance(outcome, Done) else "on_failure", "on_finish"]


@pytest.mark.core
@pytest.mark.spec("GROUP-03")
async def test_a_member_whose_success_removes_it_is_done(store: Store) -> None:
    """A retention of zero removes the record, not what the group counted."""
    group, _ = await _make(store, store.draft(options=Options(keep=0)))
    await store.finish(await store.take(), Done())
    assert await _numbers(store, group) == (1, 1, 0, 0, 0)
    assert await _called(store) == ["then", "on_finish"]


async def _by_cancel(store: Store, job: JobId) -> None:
    await store.engine.alter(Selection((job,)), Cancel())


async def _by_force(store: Store, job: JobId) -> None:
    claim = await store.take()
    await store.engine.alter(Selection((job,)), Cancel())
    await store.engine.alter(Selection((job,)), Cancel(force=True))
    assert await store.finish(claim, Done()) is Verdict.LOST


async def _by_delete(store: Store, job: JobId) -> None:
    await store.engine.alter(Selection((job,)), Delete())


async def _by_delete_while_running(store: Store, job: JobId) -> None:
    claim = await store.take()
    await store.engine.alter(Selection((job,)), Delete())
    assert await store.finish(claim, Canceled()) is Verdict.APPLIED


@pytest.mark.core
@pytest.mark.spec("GROUP-03")
@pytest.mark.parametrize("door", [_by_cancel, _by_force, _by_delete, _by_delete_while_running])
async def test_an_operator_ends_a_member(store: Store, door: Callable[[Store, JobId], Awaitable[None]]) -> None:
    """Canceled or deleted, waiting or running: it counts as canceled, once."""
    group, [job] = await _make(store, store.draft())
    await door(store, job)
    assert await _numbers(store, group) == (1, 0, 0, 1, 0)
    assert await _called(store) == ["on_failure", "on_finish"]


@pytest.mark.core
@pytest.mark.spec("GROUP-03")
async def test_a_newer_job_with_its_key_ends_a_member(store: Store) -> None:
    """A superseded member is dead."""
    group, _ = await _make(store, store.draft(unique=Unique("k"), attempts=2))
    await store.finish(await store.take(), Failed("boom", after=HOUR))
    assert await _numbers(store, group) == (1, 0, 0, 0, 1)
    await store.add(unique=Unique("k"))
    assert await _numbers(store, group) == (1, 0, 1, 0, 0)
    assert await _called(store) == ["on_failure", "on_finish"]


@pytest.mark.core
@pytest.mark.spec("GROUP-03")
async def test_a_member_of_a_lapsed_worker_ends_with_the_reapers_settlement(store: Store) -> None:
    """The reap itself counts nothing, and what the former worker sends is lost."""
    group, _ = await _make(store, store.draft(attempts=1))
    former = await store.take()
    store.pass_time(LEASE + SECOND)
    await store.enlist("reaper")
    [claim] = await store.engine.reap("reaper", 10)
    assert await _numbers(store, group) == (1, 0, 0, 0, 1)
    assert await store.finish(former, Done()) is Verdict.LOST
    assert await store.finish(claim, Lost()) is Verdict.APPLIED
    assert await _numbers(store, group) == (1, 0, 1, 0, 0)
    assert await _called(store) == ["on_failure", "on_finish"]


@pytest.mark.core
@pytest.mark.spec("GROUP-04")
@pytest.mark.parametrize(
    "outcome", [Failed("boom"), Snoozed(0), HandedBack(), Throttled(0, queue=False), Unfit("unknown"), Crashed("9")]
)
async def test_what_goes_on_is_not_counted(store: Store, outcome: Outcome) -> None:
    """A retry, a snooze, a hand-back, a throttle and a crash leave the group as it is."""
    group, _ = await _make(store, store.draft())
    await store.finish(await store.take(), outcome)
    store.pass_time(HOUR)
    assert await _numbers(store, group) == (1, 0, 0, 0, 1)
    await store.finish(await store.take(), Done())
    assert await _numbers(store, group) == (1, 1, 0, 0, 0)
    assert await _called(store) == ["then", "on_finish"]


@pytest.mark.spec("GROUP-04")
async def test_changes_that_end_nothing_are_not_counted(store: Store) -> None:
    """A move, a priority, run now, a cancel request and a discard."""
    group, [job, dead] = await _make(store, store.draft(delay=HOUR), store.draft(priority=-1))
    await store.finish(await store.take(), Rejected("no"))
    await store.engine.alter(Selection((dead,)), Discard())
    for change in (Prioritize(5), RunNow()):
        assert (await store.engine.alter(Selection((job,)), change)).changed == 1
    if Feature.ACROSS_QUEUES in store.engine.features:
        assert (await store.engine.alter(Selection((job,)), Move("other"))).changed == 1
    await store.claim(queue="other" if Feature.ACROSS_QUEUES in store.engine.features else QUEUE)
    await store.engine.alter(Selection((job,)), Cancel())
    assert await _numbers(store, group) == (2, 0, 1, 0, 1)
    assert await _called(store) == []


@pytest.mark.core
@pytest.mark.spec("GROUP-05")
async def test_a_lost_or_repeated_settlement_counts_nothing(store: Store) -> None:
    """Only the settlement that applies is counted."""
    group, _ = await _make(store, store.draft(), store.draft())
    claim = await store.take()
    settlement = conclude(claim, Done())
    stale = msgspec.structs.replace(settlement, token=settlement.token - 1, ref=None)
    assert await store.settle(stale) == [Verdict.LOST]
    assert await store.settle(settlement) == [Verdict.APPLIED]
    assert Verdict.APPLIED not in await store.settle(settlement, stale)
    assert await _numbers(store, group) == (2, 1, 0, 0, 1)
    await store.finish(await store.take(), Done())
    assert Verdict.APPLIED not in await store.settle(settlement)
    assert await _called(store) == ["then", "on_finish"]
    assert await _called(store) == []


@pytest.mark.spec("GROUP-05")
async def test_a_settlement_that_a_cancel_refuses_counts_nothing(store: Store) -> None:
    """It is concluded again, as canceled."""
    group, [job] = await _make(store, store.draft())
    claim = await store.take()
    await store.engine.alter(Selection((job,)), Cancel())
    assert await store.finish(claim, Failed("boom", retry=False)) is Verdict.CANCELING
    assert await _numbers(store, group) == (1, 0, 0, 0, 1)
    assert await store.finish(claim, Canceled()) is Verdict.APPLIED
    assert await _numbers(store, group) == (1, 0, 0, 1, 0)


@pytest.mark.spec("GROUP-06")
async def test_removing_finished_members_changes_nothing(store: Store) -> None:
    """Deleted by an operator, or past their retention, while the group is open."""
    group, [done, dead, _] = await _make(store, *(store.draft() for _ in range(3)))
    first, second, third = await store.claim(n=3)
    await store.settle(conclude(first, Done()), conclude(second, Rejected("no")))
    assert (await store.engine.alter(Selection((done, dead)), Delete())).changed == 2
    assert await _numbers(store, group) == (3, 1, 1, 0, 1)
    await store.finish(third, Done())
    assert await _called(store) == ["on_failure", "on_finish"]


@pytest.mark.spec("GROUP-06")
async def test_the_retention_of_a_member_does_not_change_its_group(store: Store) -> None:
    """The record goes, the count stays."""
    group, _ = await _make(store, store.draft(options=Options(keep=SECOND)), store.draft(priority=1, delay=HOUR))
    await store.finish(await store.take(), Done())
    store.pass_time(MINUTE)
    assert (await store.engine.expire(Retention())).jobs == 1
    assert await _numbers(store, group) == (2, 1, 0, 0, 1)


# --- sealing --------------------------------------------------------------------------------------------------------


@pytest.mark.core
@pytest.mark.spec("GROUP-07")
async def test_an_unsealed_group_waits_for_its_seal(store: Store) -> None:
    """It takes members, also after all before them have ended, and closes when it is sealed."""
    group, _ = await _make(store, store.draft(), sealed=False)
    await store.finish(await store.take(), Done())
    assert (await _look(store, group)).closed_at is None
    await _add(store, group, store.draft(), store.draft())
    for claim in await store.claim(n=2):
        await store.finish(claim, Done())
    assert await _numbers(store, group) == (3, 3, 0, 0, 0)
    assert await _called(store) == []
    assert await store.engine.seal(group)
    assert (await _look(store, group)).closed_at == store.now()
    assert await _called(store) == ["then", "on_finish"]
    assert not await store.engine.seal(group)
    assert not await store.engine.seal(group, abandoned=True)
    assert (await _look(store, group)).succeeded
    assert await _called(store) == []


@pytest.mark.core
@pytest.mark.spec("GROUP-07")
async def test_a_group_that_is_sealed_first_closes_with_its_last_member(store: Store) -> None:
    """Sealing does not close what still runs."""
    group, _ = await _make(store, store.draft(), sealed=False)
    claim = await store.take()
    assert await store.engine.seal(group)
    found = await _look(store, group)
    assert (found.sealed, found.closed_at) == (True, None)
    await store.finish(claim, Done())
    assert (await _look(store, group)).closed_at == store.now()
    assert await _called(store) == ["then", "on_finish"]


@pytest.mark.core
@pytest.mark.spec("GROUP-08")
@pytest.mark.parametrize("sealed", [True, False])
async def test_an_empty_group_closes_when_it_is_sealed(store: Store, sealed: bool) -> None:
    """At once, and successfully."""
    group, _ = await _make(store, sealed=sealed)
    assert sealed or await store.engine.seal(group)
    found = await _look(store, group)
    assert (found.total, found.closed_at, found.succeeded) == (0, store.now(), True)
    assert await _called(store) == ["then", "on_finish"]


@pytest.mark.core
@pytest.mark.spec("GROUP-09")
async def test_an_abandoned_group_fails_when_its_members_have_ended(store: Store) -> None:
    """Even if all of them are done; an empty one at once."""
    group, _ = await _make(store, store.draft(), sealed=False)
    claim = await store.take()
    assert await store.engine.seal(group, abandoned=True)
    assert await _called(store) == []
    await store.finish(claim, Done())
    found = await _look(store, group)
    assert (found.done, found.abandoned, found.succeeded) == (1, True, False)
    assert await _called(store) == ["on_failure", "on_finish"]
    empty, _ = await _make(store, sealed=False)
    assert await store.engine.seal(empty, abandoned=True)
    assert (await _look(store, empty)).closed_at is not None
    assert await _called(store) == ["on_failure", "on_finish"]
    late = new_group(store.mint(), **msgspec.structs.asdict(_callbacks(store))).seal(abandoned=True)
    await store.engine.insert([], group=late)
    assert (await _look(store, late.id)).abandoned
    assert await _called(store) == ["on_failure", "on_finish"]


@pytest.mark.spec("GROUP-09")
async def test_a_group_that_stays_unsealed_is_abandoned(store: Store) -> None:
    """An hour after its last member joined, by a sweep."""
    group, _ = await _make(store, store.draft(), sealed=False)
    store.pass_time(ABANDONED_AFTER)
    await _add(store, group, store.draft())
    for claim in await store.claim(n=2):
        await store.finish(claim, Done())
    store.pass_time(ABANDONED_AFTER)
    assert (await store.engine.sweep_groups()).abandoned == 0
    assert not (await _look(store, group)).sealed
    store.pass_time(1)
    assert (await store.engine.sweep_groups()).abandoned == 1
    found = await _look(store, group)
    assert (found.abandoned, found.closed_at) == (True, store.now())
    assert await _called(store) == ["on_failure", "on_finish"]
    assert (await store.engine.sweep_groups()) == Swept()


@pytest.mark.spec("GROUP-10")
async def test_a_closed_group_is_kept_like_a_finished_job(store: Store) -> None:
    """By the retention of its first member's queue; an open one is kept for ever."""
    await store.engine.tune(QUEUE, Tuning(keep_done=HOUR))
    group, _ = await _make(store, store.draft())
    other, _ = await _make(store, store.draft())
    await store.finish(await store.take(), Done())
    assert (await _look(store, group)).expires_at == store.now() + HOUR
    store.pass_time(HOUR)
    assert (await store.engine.sweep_groups()) == Swept()
    store.pass_time(1)
    assert (await store.engine.sweep_groups()).removed == 1
    assert await store.engine.groups([group]) == [None]
    store.pass_time(400 * DAY)
    assert (await store.engine.sweep_groups()) == Swept()
    assert (await _look(store, other)).waiting == 1


# --- joining --------------------------------------------------------------------------------------------------------


@pytest.mark.core
@pytest.mark.spec("GROUP-11")
async def test_a_member_may_add_members(store: Store) -> None:
    """They join with its success, so the group cannot close in between."""
    group, _ = await _make(store, store.draft())
    [more] = into_group(group, [store.draft("more")])
    await store.finish(await store.take(), Done(followups=(more,)))
    found = await _look(store, group)
    assert (found.total, found.done, found.waiting, found.closed_at) == (2, 1, 1, None)
    assert more.id in found.members
    await store.finish(await store.take(), Done())
    assert await _numbers(store, group) == (2, 2, 0, 0, 0)
    assert await _called(store) == ["then", "on_finish"]


@pytest.mark.core
@pytest.mark.spec("GROUP-11")
async def test_what_stands_behind_a_member_is_a_member(store: Store) -> None:
    """The group waits for the whole chain; a dead link ends it."""
    group, _ = await _make(store, chain(store.draft("a"), store.draft("b"), store.draft("c")))
    await store.finish(await store.take(), Done())
    assert await _numbers(store, group) == (2, 1, 0, 0, 1)
    await store.finish(await store.take(), Rejected("no"))
    assert await _numbers(store, group) == (2, 1, 1, 0, 0)
    assert await _called(store) == ["on_failure", "on_finish"]


@pytest.mark.core
@pytest.mark.spec("GROUP-12")
async def test_a_closed_group_takes_no_members(store: Store) -> None:
    """`GroupClosed`, and nothing of the call is stored."""
    group, _ = await _make(store)
    assert (await _look(store, group)).closed_at is not None
    plain, member = store.draft(), store.draft()
    with pytest.raises(GroupClosed) as refused:
        await store.engine.insert([plain, *into_group(group, [member])])
    assert refused.value.group_id == text(group)
    assert await store.engine.get([plain.id, member.id]) == [None, None]
    assert (await _look(store, group)).total == 0


@pytest.mark.core
@pytest.mark.spec("GROUP-12")
async def test_a_group_of_another_store_takes_no_members(store: Store) -> None:
    """`NotFound` names it, and nothing of the call is stored."""
    foreign, plain, member = store.mint(), store.draft(), store.draft()
    with pytest.raises(NotFound, match=text(foreign)):
        await store.engine.insert([plain, *into_group(foreign, [member])])
    assert await store.engine.get([plain.id, member.id]) == [None, None]
    assert not await store.engine.seal(foreign)
    assert await store.engine.groups([foreign]) == [None]


@pytest.mark.core
@pytest.mark.spec("GROUP-12")
async def test_a_stored_job_does_not_become_a_member(store: Store) -> None:
    """Else the group would close without it: `InvalidInput`, and nothing of the call is stored."""
    stored, fresh = store.draft(), store.draft()
    await store.insert(stored)
    group = store.mint()
    with pytest.raises(InvalidInput, match="stored job"):
        await store.engine.insert(into_group(group, [fresh, stored]), group=new_group(group, sealed=True))
    assert await store.gone(fresh.id)
    assert await store.engine.groups([group]) == [None]


@pytest.mark.core
@pytest.mark.spec("GROUP-13")
async def test_a_repeated_call_adds_nothing(store: Store) -> None:
    """The same group and members again, before and after the end."""
    group = store.mint()
    made, members = new_group(group, sealed=True), into_group(group, [store.draft(), store.draft()])
    await store.engine.insert(members, group=made)
    receipts = await store.engine.insert(members, group=made)
    assert [receipt.stored for receipt in receipts] == ["existing", "existing"]
    assert await _numbers(store, group) == (2, 0, 0, 0, 2)
    await store.engine.insert([members[0]])
    assert await _numbers(store, group) == (2, 0, 0, 0, 2)


@pytest.mark.spec("GROUP-14")
async def test_a_draft_that_met_the_holder_of_its_key_is_no_member(store: Store) -> None:
    """The group waits for what it stored."""
    holder = await store.add(unique=Unique("k"), priority=9)
    group, ids = await _make(store, store.draft(unique=Unique("k")), store.draft())
    assert ids[0] == holder
    assert (await _look(store, group)).members == (ids[1],)
    await store.finish(await store.take(), Done())
    assert await _numbers(store, group) == (1, 1, 0, 0, 0)


@pytest.mark.spec("GROUP-14")
async def test_a_member_that_a_newer_draft_replaces_leaves_its_group(store: Store) -> None:
    """Its former group counts it as canceled, the newer draft's group as a member."""
    unique = Unique("k", mode="replace")
    former, [job] = await _make(store, store.draft(unique=unique))
    group, ids = await _make(store, store.draft(unique=unique))
    assert ids == [job]
    assert await _numbers(store, former) == (1, 0, 0, 1, 0)
    assert await _called(store) == ["on_failure", "on_finish"]
    await _add(store, group, store.draft(unique=unique))
    assert await _numbers(store, group) == (1, 0, 0, 0, 1)
    await store.finish(await store.take(), Done())
    assert await _numbers(store, group) == (1, 1, 0, 0, 0)
    assert await _called(store) == ["then", "on_finish"]


# --- again ----------------------------------------------------------------------------------------------------------


@pytest.mark.core
@pytest.mark.spec("GROUP-15")
@pytest.mark.parametrize("outcome", [Rejected("no"), Canceled()])
async def test_a_requeued_member_of_an_open_group_is_unfinished_again(store: Store, outcome: Outcome) -> None:
    """The group closes by how it ends at last."""
    group, [job, _] = await _make(store, store.draft(), store.draft())
    first, second = await store.claim(n=2)
    await store.finish(first, outcome)
    assert (await store.engine.alter(Selection((job,)), Requeue())).changed == 1
    assert await _numbers(store, group) == (2, 0, 0, 0, 2)
    await store.finish(second, Done())
    assert await _called(store) == []
    await store.finish(await store.take(), Done())
    assert await _numbers(store, group) == (2, 2, 0, 0, 0)
    assert await _called(store) == ["then", "on_finish"]


@pytest.mark.core
@pytest.mark.spec("GROUP-15")
async def test_nothing_fires_again_after_the_closing(store: Store) -> None:
    """Requeued and copied members run; the group stays as it closed."""
    group, members = await _make(store, store.draft(), store.draft())
    for claim in await store.claim(n=2):
        await store.finish(claim, Rejected("no"))
    closed = await _look(store, group)
    assert await _called(store) == ["on_failure", "on_finish"]
    await store.engine.alter(Selection((members[0],)), Requeue())
    await store.engine.alter(Selection((members[1],)), Clone((store.mint(),)))
    [more] = into_group(group, [store.draft("more")])
    for claim in await store.claim(n=2):
        await store.finish(claim, Done(followups=(more,)))
    await store.finish(await store.take(), Done())
    assert await store.status(more.id) is Status.DONE
    assert await _look(store, group) == closed
    assert await _called(store) == []


@pytest.mark.core
@pytest.mark.spec("GROUP-16")
async def test_a_copy_takes_the_place_of_the_dead_member(store: Store) -> None:
    """The group waits for the copy and succeeds with it."""
    group, [job, other] = await _make(store, store.draft(), store.draft(priority=5))
    await store.finish(await store.take(), Rejected("no"))
    copy = store.mint()
    assert (await store.engine.alter(Selection((job,)), Clone((copy,)))).changed == 1
    assert await _numbers(store, group) == (2, 0, 0, 0, 2)
    assert (await _look(store, group)).members == (job, other, copy)
    for claim in await store.claim(n=2):
        await store.finish(claim, Done())
    assert await _numbers(store, group) == (2, 2, 0, 0, 0)
    assert await _called(store) == ["then", "on_finish"]


# --- many -----------------------------------------------------------------------------------------------------------


@pytest.mark.spec("GROUP-17")
async def test_a_full_batch_of_ends_in_one_call(store: Store) -> None:
    """A thousand members of one group; it closes once."""
    group, members = await _make(store, *(store.draft() for _ in range(LARGEST_BATCH)))
    found = await _look(store, group)
    assert (found.total, found.members) == (LARGEST_BATCH, tuple(members))
    claims = await store.claim(n=LARGEST_BATCH)
    await store.settle(*(conclude(claim, Done()) for claim in claims))
    assert await _numbers(store, group) == (LARGEST_BATCH, LARGEST_BATCH, 0, 0, 0)
    assert await _called(store) == ["then", "on_finish"]


@pytest.mark.spec("GROUP-17")
async def test_many_groups_close_in_one_call(store: Store) -> None:
    """Each by its own members, beside jobs without a group and other outcomes."""
    made = [await _make(store, store.draft(), store.draft()) for _ in range(5)]
    await store.insert(*(store.draft(priority=1) for _ in range(3)))
    claims = {claim.id: claim for claim in await store.claim(n=13)}
    dead = {made[1][1][0], made[3][1][1]}
    ends = [conclude(claim, Rejected("no") if job in dead else Done()) for job, claim in claims.items()]
    assert await store.settle(*ends) == [Verdict.APPLIED] * 13
    for place, (group, _) in enumerate(made):
        assert await _numbers(store, group) == ((2, 1, 1, 0, 0) if place in (1, 3) else (2, 2, 0, 0, 0))
    kinds = await _called(store)
    assert sorted(kinds) == ["on_failure"] * 2 + ["on_finish"] * 5 + ["then"] * 3


@pytest.mark.spec("GROUP-17")
async def test_the_ids_of_many_members_are_not_kept(store: Store) -> None:
    """More than a thousand: they are counted only."""
    group, _ = await _make(store, *(store.draft() for _ in range(MOST_KNOWN)), sealed=False)
    await _add(store, group, store.draft())
    await _add(store, group, store.draft())
    found = await _look(store, group)
    assert (found.total, found.members) == (MOST_KNOWN + 2, ())


@pytest.mark.core
@pytest.mark.spec("GROUP-17")
async def test_groups_come_in_the_order_of_their_ids(store: Store) -> None:
    """None where there is none; with their callbacks as they were given."""
    calls = _callbacks(store)
    one, _ = await _make(store, store.draft(), sealed=False, **msgspec.structs.asdict(calls))
    two, _ = await _make(store, store.draft())
    missing = store.mint()
    assert await store.engine.groups([]) == []
    second, none, first = await store.engine.groups([two, missing, one])
    assert none is None
    assert second is not None
    assert first is not None
    assert (first.id, second.id, first.sealed, second.sealed) == (one, two, False, True)
    kept = new_group(one, **msgspec.structs.asdict(calls))
    assert (first.then, first.on_failure, first.on_finish) == (kept.then, kept.on_failure, kept.on_finish)
    assert (first.queue, first.created_at, first.touched_at) == (QUEUE, store.now(), store.now())


# --- around ---------------------------------------------------------------------------------------------------------


@pytest.mark.spec("GROUP-18")
async def test_a_closing_group_wakes_a_worker_of_its_callbacks(store: Store) -> None:
    """A waiter of the callback's queue is woken."""
    then = store.draft("then", queue=AFTER)
    await _make(store, store.draft(), then=then)
    claim = await store.take()
    waiter = asyncio.ensure_future(store.engine.wait([AFTER], 10))
    await asyncio.sleep(0.05)
    await store.finish(claim, Done())
    await _close(store)
    assert await waiter == {AFTER}


@pytest.mark.spec("GROUP-18")
async def test_a_callback_whose_key_is_held_is_not_stored(store: Store) -> None:
    """Its holder stands for it, whatever its mode; the group closes all the same."""
    holder = await store.add("then", queue=AFTER, unique=Unique("k"))
    then = store.draft("then", queue=AFTER, unique=Unique("k", mode="raise"))
    group, _ = await _make(store, store.draft(), then=then)
    await store.finish(await store.take(), Done())
    assert (await _look(store, group)).closed_at is not None
    assert await store.gone(then.id)
    assert (await store.take(queue=AFTER)).id == holder


@pytest.mark.spec("GROUP-18")
async def test_a_callback_may_end_a_member_of_another_group(store: Store) -> None:
    """Taking its key: that group closes too."""
    other, _ = await _make(
        store, store.draft("then", queue=AFTER, unique=Unique("k"), attempts=2), on_finish=store.draft()
    )
    await store.finish(await store.take(queue=AFTER), Failed("boom", after=HOUR))
    group, _ = await _make(store, store.draft(priority=-1), then=store.draft("then", queue=AFTER, unique=Unique("k")))
    await store.finish(await store.take(), Done())
    assert await _numbers(store, group) == (1, 1, 0, 0, 0)
    found = await _look(store, other)
    assert (found.dead, found.closed_at) == (1, store.now())


@pytest.mark.core
@pytest.mark.spec("GROUP-19")
async def test_a_group_in_a_transaction_exists_with_its_commit(store: Store) -> None:
    """Rolled back, it leaves nothing."""
    needs(store, Feature.OWN_TRANSACTION)

    async def make(tx: Any) -> tuple[JobId, Draft]:
        group, draft = store.mint(), store.draft()
        made = new_group(group, then=store.draft("then", queue=AFTER), sealed=True)
        await store.engine.insert(into_group(group, [draft]), tx=tx, group=made)
        return group, draft

    with pytest.raises(ZeroDivisionError):
        async with store.engine.transaction() as tx:
            gone, draft = await make(tx)
            raise ZeroDivisionError
    assert await store.engine.groups([gone]) == [None]
    assert await store.gone(draft.id)
    async with store.engine.transaction() as tx:
        group, draft = await make(tx)
    claim = await store.take()
    assert claim.id == draft.id
    async with store.engine.transaction() as tx:
        await store.engine.settle([conclude(claim, Done())], tx=tx)
    assert await _numbers(store, group) == (1, 1, 0, 0, 0)
    assert await _called(store) == ["then"]


@pytest.mark.spec("GROUP-19")
async def test_a_settlement_that_is_rolled_back_is_not_counted(store: Store) -> None:
    """The member runs on."""
    needs(store, Feature.OWN_TRANSACTION)
    group, _ = await _make(store, store.draft())
    claim = await store.take()
    with pytest.raises(ZeroDivisionError):
        async with store.engine.transaction() as tx:
            await store.engine.settle([conclude(claim, Done())], tx=tx)
            raise ZeroDivisionError
    assert await _numbers(store, group) == (1, 0, 0, 0, 1)
    await store.finish(claim, Done())
    assert await _numbers(store, group) == (1, 1, 0, 0, 0)


@pytest.mark.spec("GROUP-01")
async def test_a_settlement_with_demand_counts_too(store: Store) -> None:
    """The worker's usual call: settle and claim in one step."""
    group, _ = await _make(store, store.draft(), store.draft())
    claim = await store.take()
    settled = await store.engine.settle([conclude(claim, Done(b"1"))], demand=Demand("w1", ((QUEUE, 1),)))
    [second] = settled.claims
    assert await _numbers(store, group) == (2, 1, 0, 0, 1)
    await store.engine.settle([conclude(second, Done(b"2"))], demand=Demand("w1", ((QUEUE, 1),)))
    assert await _numbers(store, group) == (2, 2, 0, 0, 0)
    assert await _called(store) == ["then", "on_finish"]
