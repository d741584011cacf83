"""Groups: members count by whatever door they end, and a group closes once."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
import pytest

from stoker.engines.base import LEASE, Feature
from stoker.model.groups import ABANDONED_AFTER, GROUP, Swept, into_group, new_group
from stoker.model.ids import JobId, text
from stoker.model.job import Demand, Draft, Options, Status, Verdict
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
from stoker.model.query import Cancel, Delete, Discard, Move, Prioritize, Retention, RunNow, Selection
from stoker.model.time import HOUR, MINUTE, SECOND
from stoker.model.unique import Unique
from stoker.testing.conformance.group_helpers import AFTER, add, called, close, counts_of, each_callback, look, make
from stoker.testing.conformance.harness import QUEUE, Store, needs

# --- closing --------------------------------------------------------------------------------------------------------


@pytest.mark.core
@pytest.mark.spec("GROUP-01", "GROUP-02")
async def test_a_group_closes_with_the_success_of_its_last_member(store: Store) -> None:
    """Then and on_finish are stored once, in their queue, with the group in their metadata; on_failure is not."""
    calls = each_callback(store)
    group, members = await make(store, store.draft(), store.draft(), **msgspec.structs.asdict(calls))
    first, second = await store.claim(n=2)
    await store.finish(first, Done())
    found = await look(store, group)
    assert (found.closed_at, found.total, found.done, found.waiting) == (None, 2, 1, 1)
    assert found.members == tuple(members)
    assert await called(store) == []
    store.pass_time(SECOND)
    assert await store.finish(second, Done()) is Verdict.APPLIED
    found = await look(store, group)
    assert (found.closed_at, found.total, found.done, found.succeeded) == (store.now(), 2, 2, True)
    assert (await store.job(calls.then.job_id)).options.metadata == {GROUP: text(group)}
    assert await called(store) == ["then", "on_finish"]
    assert await store.gone(calls.on_failure.job_id)


@pytest.mark.core
@pytest.mark.spec("GROUP-02")
async def test_a_group_with_a_dead_member_fails_when_the_last_one_ends(store: Store) -> None:
    """On_failure and on_finish are stored, not at the death but at the end of the last member."""
    group, _ = await make(store, store.draft(), store.draft())
    first, second = await store.claim(n=2)
    await store.finish(first, Rejected("no"))
    assert await counts_of(store, group) == (2, 0, 1, 0, 1)
    assert await called(store) == []
    await store.finish(second, Done())
    assert await counts_of(store, group) == (2, 1, 1, 0, 0)
    assert await called(store) == ["on_failure", "on_finish"]


@pytest.mark.core
@pytest.mark.spec("GROUP-02")
async def test_a_group_without_callbacks_closes_too(store: Store) -> None:
    """It is only counted."""
    group = store.mint()
    await store.engine.jobs.insert(into_group(group, [store.draft()]), group=new_group(group, sealed=True))
    await store.finish(await store.take(), Done())
    assert (await look(store, group)).closed_at is not None
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
    group, _ = await make(store, store.draft())
    await store.finish(await store.take(), outcome)
    assert await counts_of(store, group) == (1, *numbers, 0)
    assert await called(store) == ["then" if isinstance(outcome, Done) else "on_failure", "on_finish"]


@pytest.mark.core
@pytest.mark.spec("GROUP-03")
async def test_a_member_whose_success_removes_it_is_done(store: Store) -> None:
    """A retention of zero removes the record, not what the group counted."""
    group, _ = await make(store, store.draft(options=Options(keep=0)))
    await store.finish(await store.take(), Done())
    assert await counts_of(store, group) == (1, 1, 0, 0, 0)
    assert await called(store) == ["then", "on_finish"]


async def _by_cancel(store: Store, job: JobId) -> None:
    await store.engine.operator.alter(Selection((job,)), Cancel())


async def _by_force(store: Store, job: JobId) -> None:
    claim = await store.take()
    await store.engine.operator.alter(Selection((job,)), Cancel())
    await store.engine.operator.alter(Selection((job,)), Cancel(force=True))
    assert await store.finish(claim, Done()) is Verdict.LOST


async def _by_delete(store: Store, job: JobId) -> None:
    await store.engine.operator.alter(Selection((job,)), Delete())


async def _by_delete_while_running(store: Store, job: JobId) -> None:
    claim = await store.take()
    await store.engine.operator.alter(Selection((job,)), Delete())
    assert await store.finish(claim, Canceled()) is Verdict.APPLIED


@pytest.mark.core
@pytest.mark.spec("GROUP-03")
@pytest.mark.parametrize("door", [_by_cancel, _by_force, _by_delete, _by_delete_while_running])
async def test_an_operator_ends_a_member(store: Store, door: Callable[[Store, JobId], Awaitable[None]]) -> None:
    """Canceled or deleted, waiting or running: it counts as canceled, once."""
    group, [job] = await make(store, store.draft())
    await door(store, job)
    assert await counts_of(store, group) == (1, 0, 0, 1, 0)
    assert await called(store) == ["on_failure", "on_finish"]


@pytest.mark.core
@pytest.mark.spec("GROUP-03")
async def test_a_newer_job_with_its_key_ends_a_member(store: Store) -> None:
    """A superseded member is dead."""
    group, _ = await make(store, store.draft(unique=Unique("k"), attempts=2))
    await store.finish(await store.take(), Failed("boom", after=HOUR))
    assert await counts_of(store, group) == (1, 0, 0, 0, 1)
    await store.add(unique=Unique("k"))
    assert await counts_of(store, group) == (1, 0, 1, 0, 0)
    assert await called(store) == ["on_failure", "on_finish"]


@pytest.mark.core
@pytest.mark.spec("GROUP-03")
async def test_a_member_of_a_lapsed_worker_ends_with_the_reapers_settlement(store: Store) -> None:
    """The reap itself counts nothing, and what the former worker sends is lost."""
    group, _ = await make(store, store.draft(attempts=1))
    former = await store.take()
    store.pass_time(LEASE + SECOND)
    await store.enlist("reaper")
    [claim] = await store.engine.jobs.reap("reaper", 10)
    assert await counts_of(store, group) == (1, 0, 0, 0, 1)
    assert await store.finish(former, Done()) is Verdict.LOST
    assert await store.finish(claim, Lost()) is Verdict.APPLIED
    assert await counts_of(store, group) == (1, 0, 1, 0, 0)
    assert await called(store) == ["on_failure", "on_finish"]


@pytest.mark.core
@pytest.mark.spec("GROUP-04")
@pytest.mark.parametrize(
    "outcome", [Failed("boom"), Snoozed(0), HandedBack(), Throttled(0, queue=False), Unfit("unknown"), Crashed("9")]
)
async def test_what_goes_on_is_not_counted(store: Store, outcome: Outcome) -> None:
    """A retry, a snooze, a hand-back, a throttle and a crash leave the group as it is."""
    group, _ = await make(store, store.draft())
    await store.finish(await store.take(), outcome)
    store.pass_time(HOUR)
    assert await counts_of(store, group) == (1, 0, 0, 0, 1)
    await store.finish(await store.take(), Done())
    assert await counts_of(store, group) == (1, 1, 0, 0, 0)
    assert await called(store) == ["then", "on_finish"]


@pytest.mark.spec("GROUP-04")
async def test_changes_that_end_nothing_are_not_counted(store: Store) -> None:
    """A move, a priority, run now, a cancel request and a discard."""
    group, [job, dead] = await make(store, store.draft(delay=HOUR), store.draft(priority=-1))
    await store.finish(await store.take(), Rejected("no"))
    await store.engine.operator.alter(Selection((dead,)), Discard())
    for change in (Prioritize(5), RunNow()):
        assert (await store.engine.operator.alter(Selection((job,)), change)).changed == 1
    if Feature.ACROSS_QUEUES in store.engine.features:
        assert (await store.engine.operator.alter(Selection((job,)), Move("other"))).changed == 1
    await store.claim(queue="other" if Feature.ACROSS_QUEUES in store.engine.features else QUEUE)
    await store.engine.operator.alter(Selection((job,)), Cancel())
    assert await counts_of(store, group) == (2, 0, 1, 0, 1)
    assert await called(store) == []


@pytest.mark.core
@pytest.mark.spec("GROUP-05")
async def test_a_lost_or_repeated_settlement_counts_nothing(store: Store) -> None:
    """Only the settlement that applies is counted."""
    group, _ = await make(store, store.draft(), store.draft())
    claim = await store.take()
    settlement = conclude(claim, Done())
    stale = msgspec.structs.replace(settlement, token=settlement.token - 1, ref=None)
    assert await store.settle(stale) == [Verdict.LOST]
    assert await store.settle(settlement) == [Verdict.APPLIED]
    assert Verdict.APPLIED not in await store.settle(settlement, stale)
    assert await counts_of(store, group) == (2, 1, 0, 0, 1)
    await store.finish(await store.take(), Done())
    assert Verdict.APPLIED not in await store.settle(settlement)
    assert await called(store) == ["then", "on_finish"]
    assert await called(store) == []


@pytest.mark.spec("GROUP-05")
async def test_a_settlement_that_a_cancel_refuses_counts_nothing(store: Store) -> None:
    """It is concluded again, as canceled."""
    group, [job] = await make(store, store.draft())
    claim = await store.take()
    await store.engine.operator.alter(Selection((job,)), Cancel())
    assert await store.finish(claim, Failed("boom", retry=False)) is Verdict.CANCELING
    assert await counts_of(store, group) == (1, 0, 0, 0, 1)
    assert await store.finish(claim, Canceled()) is Verdict.APPLIED
    assert await counts_of(store, group) == (1, 0, 0, 1, 0)


@pytest.mark.spec("GROUP-06")
async def test_removing_finished_members_changes_nothing(store: Store) -> None:
    """Deleted by an operator, or past their retention, while the group is open."""
    group, [done, dead, _] = await make(store, *(store.draft() for _ in range(3)))
    first, second, third = await store.claim(n=3)
    await store.settle(conclude(first, Done()), conclude(second, Rejected("no")))
    assert (await store.engine.operator.alter(Selection((done, dead)), Delete())).changed == 2
    assert await counts_of(store, group) == (3, 1, 1, 0, 1)
    await store.finish(third, Done())
    assert await called(store) == ["on_failure", "on_finish"]


@pytest.mark.spec("GROUP-06")
async def test_the_retention_of_a_member_does_not_change_its_group(store: Store) -> None:
    """The record goes, the count stays."""
    group, _ = await make(store, store.draft(options=Options(keep=SECOND)), store.draft(priority=1, delay=HOUR))
    await store.finish(await store.take(), Done())
    store.pass_time(MINUTE)
    assert (await store.engine.operator.expire(Retention())).jobs == 1
    assert await counts_of(store, group) == (2, 1, 0, 0, 1)


# --- sealing --------------------------------------------------------------------------------------------------------


@pytest.mark.core
@pytest.mark.spec("GROUP-07")
async def test_an_unsealed_group_waits_for_its_seal(store: Store) -> None:
    """It takes members, also after all before them have ended, and closes when it is sealed."""
    group, _ = await make(store, store.draft(), sealed=False)
    await store.finish(await store.take(), Done())
    assert (await look(store, group)).closed_at is None
    await add(store, group, store.draft(), store.draft())
    for claim in await store.claim(n=2):
        await store.finish(claim, Done())
    assert await counts_of(store, group) == (3, 3, 0, 0, 0)
    assert await called(store) == []
    assert await store.engine.groups.seal(group)
    assert (await look(store, group)).closed_at == store.now()
    assert await called(store) == ["then", "on_finish"]
    assert not await store.engine.groups.seal(group)
    assert not await store.engine.groups.seal(group, abandoned=True)
    assert (await look(store, group)).succeeded
    assert await called(store) == []


@pytest.mark.core
@pytest.mark.spec("GROUP-07")
async def test_a_group_that_is_sealed_first_closes_with_its_last_member(store: Store) -> None:
    """Sealing does not close what still runs."""
    group, _ = await make(store, store.draft(), sealed=False)
    claim = await store.take()
    assert await store.engine.groups.seal(group)
    found = await look(store, group)
    assert (found.sealed, found.closed_at) == (True, None)
    await store.finish(claim, Done())
    assert (await look(store, group)).closed_at == store.now()
    assert await called(store) == ["then", "on_finish"]


@pytest.mark.core
@pytest.mark.spec("GROUP-08")
@pytest.mark.parametrize("sealed", [True, False])
async def test_an_empty_group_closes_when_it_is_sealed(store: Store, sealed: bool) -> None:
    """At once, and successfully."""
    group, _ = await make(store, sealed=sealed)
    assert sealed or await store.engine.groups.seal(group)
    found = await look(store, group)
    assert (found.total, found.closed_at, found.succeeded) == (0, store.now(), True)
    assert await called(store) == ["then", "on_finish"]


@pytest.mark.core
@pytest.mark.spec("GROUP-09")
async def test_an_abandoned_group_fails_when_its_members_have_ended(store: Store) -> None:
    """Even if all of them are done; an empty one at once."""
    group, _ = await make(store, store.draft(), sealed=False)
    claim = await store.take()
    assert await store.engine.groups.seal(group, abandoned=True)
    assert await called(store) == []
    await store.finish(claim, Done())
    found = await look(store, group)
    assert (found.done, found.abandoned, found.succeeded) == (1, True, False)
    assert await called(store) == ["on_failure", "on_finish"]
    empty, _ = await make(store, sealed=False)
    assert await store.engine.groups.seal(empty, abandoned=True)
    assert (await look(store, empty)).closed_at is not None
    assert await called(store) == ["on_failure", "on_finish"]
    late = new_group(store.mint(), **msgspec.structs.asdict(each_callback(store))).seal(abandoned=True)
    await store.engine.jobs.insert([], group=late)
    assert (await look(store, late.id)).abandoned
    assert await called(store) == ["on_failure", "on_finish"]


@pytest.mark.spec("GROUP-09")
async def test_a_group_that_stays_unsealed_is_abandoned(store: Store) -> None:
    """An hour after its last member joined, by a sweep."""
    group, _ = await make(store, store.draft(), sealed=False)
    store.pass_time(ABANDONED_AFTER)
    await add(store, group, store.draft())
    for claim in await store.claim(n=2):
        await store.finish(claim, Done())
    store.pass_time(ABANDONED_AFTER)
    assert (await store.engine.groups.sweep()).abandoned == 0
    assert not (await look(store, group)).sealed
    store.pass_time(1)
    assert (await store.engine.groups.sweep()).abandoned == 1
    found = await look(store, group)
    assert (found.abandoned, found.closed_at) == (True, store.now())
    assert await called(store) == ["on_failure", "on_finish"]
    assert (await store.engine.groups.sweep()) == Swept()


# --- around ---------------------------------------------------------------------------------------------------------


@pytest.mark.spec("GROUP-18")
async def test_a_closing_group_wakes_a_worker_of_its_callbacks(store: Store) -> None:
    """A waiter of the callback's queue is woken."""
    then = store.draft("then", queue=AFTER)
    await make(store, store.draft(), then=then)
    claim = await store.take()
    waiter = asyncio.ensure_future(store.engine.jobs.wait([AFTER], 60))
    await asyncio.sleep(0.05)
    await store.finish(claim, Done())
    await close(store)
    assert await waiter == {AFTER}


@pytest.mark.spec("GROUP-18")
async def test_a_callback_whose_key_is_held_is_not_stored(store: Store) -> None:
    """Its holder stands for it, whatever its mode; the group closes all the same."""
    holder = await store.add("then", queue=AFTER, unique=Unique("k"))
    then = store.draft("then", queue=AFTER, unique=Unique("k", mode="raise"))
    group, _ = await make(store, store.draft(), then=then)
    await store.finish(await store.take(), Done())
    assert (await look(store, group)).closed_at is not None
    assert await store.gone(then.job_id)
    assert (await store.take(queue=AFTER)).id == holder


@pytest.mark.spec("GROUP-18")
async def test_a_callback_may_end_a_member_of_another_group(store: Store) -> None:
    """Taking its key: that group closes too."""
    other, _ = await make(
        store, store.draft("then", queue=AFTER, unique=Unique("k"), attempts=2), on_finish=store.draft()
    )
    await store.finish(await store.take(queue=AFTER), Failed("boom", after=HOUR))
    group, _ = await make(store, store.draft(priority=-1), then=store.draft("then", queue=AFTER, unique=Unique("k")))
    await store.finish(await store.take(), Done())
    assert await counts_of(store, group) == (1, 1, 0, 0, 0)
    found = await look(store, other)
    assert (found.dead, found.closed_at) == (1, store.now())


@pytest.mark.core
@pytest.mark.spec("GROUP-19")
async def test_a_group_in_a_transaction_exists_with_its_commit(store: Store) -> None:
    """Rolled back, it leaves nothing."""
    needs(store, Feature.OWN_TRANSACTION)

    async def make(tx: Any) -> tuple[JobId, Draft]:
        group, draft = store.mint(), store.draft()
        made = new_group(group, then=store.draft("then", queue=AFTER), sealed=True)
        await store.engine.jobs.insert(into_group(group, [draft]), tx=tx, group=made)
        return group, draft

    with pytest.raises(ZeroDivisionError):
        async with store.engine.transaction() as tx:
            gone, draft = await make(tx)
            raise ZeroDivisionError
    assert await store.engine.groups.get([gone]) == [None]
    assert await store.gone(draft.job_id)
    async with store.engine.transaction() as tx:
        group, draft = await make(tx)
    claim = await store.take()
    assert claim.id == draft.job_id
    async with store.engine.transaction() as tx:
        await store.engine.jobs.settle([conclude(claim, Done())], tx=tx)
    assert await counts_of(store, group) == (1, 1, 0, 0, 0)
    assert await called(store) == ["then"]


@pytest.mark.spec("GROUP-19")
async def test_a_settlement_that_is_rolled_back_is_not_counted(store: Store) -> None:
    """The member runs on."""
    needs(store, Feature.OWN_TRANSACTION)
    group, _ = await make(store, store.draft())
    claim = await store.take()
    with pytest.raises(ZeroDivisionError):
        async with store.engine.transaction() as tx:
            await store.engine.jobs.settle([conclude(claim, Done())], tx=tx)
            raise ZeroDivisionError
    assert await counts_of(store, group) == (1, 0, 0, 0, 1)
    await store.finish(claim, Done())
    assert await counts_of(store, group) == (1, 1, 0, 0, 0)


@pytest.mark.spec("GROUP-01")
async def test_a_settlement_with_demand_counts_too(store: Store) -> None:
    """The worker's usual call: settle and claim in one step."""
    group, _ = await make(store, store.draft(), store.draft())
    claim = await store.take()
    settled = await store.engine.jobs.settle([conclude(claim, Done(b"1"))], demand=Demand("w1", ((QUEUE, 1),)))
    [second] = settled.claims
    assert await counts_of(store, group) == (2, 1, 0, 0, 1)
    await store.engine.jobs.settle([conclude(second, Done(b"2"))], demand=Demand("w1", ((QUEUE, 1),)))
    assert await counts_of(store, group) == (2, 2, 0, 0, 0)
    assert await called(store) == ["then", "on_finish"]
