"""Groups: how long a closed one is kept."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from stoker.engines.base import Feature
from stoker.model.control import Tuning
from stoker.model.groups import LEAST_KEPT, LOOKED_AGAIN, MOST_KNOWN, Swept, into_group, new_group
from stoker.model.ids import JobId
from stoker.model.job import Draft, Options
from stoker.model.lifecycle import KEEP_DEAD, conclude
from stoker.model.outcome import Done, Rejected
from stoker.model.query import Cancel, Discard, Requeue, Retention, Selection
from stoker.model.time import DAY, HOUR, MINUTE, Span
from stoker.testing.conformance.group_helpers import AFTER, close, look
from stoker.testing.conformance.harness import QUEUE, Store, needs

BRIEF = Options(keep=0)


@dataclass
class Kept:
    """A group, and what a case asks about it."""

    store: Store
    id: JobId

    async def until(self) -> Span:
        """Return how long after now the store removes it, as far as it knows."""
        found = await look(self.store, self.id)
        assert found.expires_at is not None
        return found.expires_at - self.store.now()

    async def stays(self, span: Span) -> None:
        """It is there after so long, whatever is swept, and gone right after."""
        await close(self.store)
        self.store.pass_time(span)
        await self.sweep(removed=0)
        assert await self.store.engine.groups.get([self.id]) != [None]
        self.store.pass_time(1)
        await self.sweep(removed=1)
        assert await self.store.engine.groups.get([self.id]) == [None]
        assert await self.store.engine.groups.sweep() == Swept()

    async def sweep(self, *, removed: int) -> None:
        """Sweep groups, then jobs."""
        assert (await self.store.engine.groups.sweep()).removed == removed
        await self.store.engine.operator.expire(Retention())


async def make(store: Store, *drafts: Draft, keep: Span | None = None, then: Draft | None = None) -> Kept:
    """A sealed group without other callbacks."""
    group = store.mint()
    await store.engine.jobs.insert(into_group(group, drafts), group=new_group(group, then=then, keep=keep, sealed=True))
    return Kept(store, group)


async def succeed(store: Store, queue: str = QUEUE) -> None:
    """End every job of a queue that is due."""
    while claims := await store.claim(n=500, queue=queue):
        await store.settle(*(conclude(claim, Done()) for claim in claims))
    await close(store)


# --- counted from the closing ---------------------------------------------------------------------------------------


@pytest.mark.core
@pytest.mark.spec("GROUP-10")
async def test_a_closed_group_is_kept_as_long_as_its_app_says(store: Store) -> None:
    """Counted from its closing, not from the end of its first member."""
    kept = await make(store, store.draft(options=BRIEF), store.draft(options=BRIEF, delay=HOUR), keep=2 * HOUR)
    await succeed(store)
    store.pass_time(HOUR)
    await succeed(store)
    assert await kept.until() == 2 * HOUR
    await kept.stays(2 * HOUR)


@pytest.mark.spec("GROUP-10")
async def test_without_a_word_of_its_app_a_group_is_kept_like_a_done_job(store: Store) -> None:
    """By the engine's default, also if it has no members."""
    kept = await make(store, store.draft(options=BRIEF))
    empty = await make(store)
    await succeed(store)
    assert await kept.until() == await empty.until() == store.engine.keep_done


@pytest.mark.spec("GROUP-10")
async def test_an_empty_group_is_kept_as_long_as_its_app_says(store: Store) -> None:
    """It has no queue that could say otherwise."""
    kept = await make(store, keep=3 * HOUR)
    await kept.stays(3 * HOUR)


@pytest.mark.spec("GROUP-10")
async def test_the_retention_of_a_tuned_queue_goes_before_the_apps(store: Store) -> None:
    """That of its first member's queue; an open group is kept for ever."""
    await store.engine.control.tune(QUEUE, Tuning(keep_done=5 * HOUR))
    kept = await make(store, store.draft(), keep=2 * HOUR)
    other = await make(store, store.draft(delay=500 * DAY), keep=2 * HOUR)
    await succeed(store)
    assert await kept.until() == 5 * HOUR
    await kept.stays(5 * HOUR)
    store.pass_time(400 * DAY)
    assert await store.engine.groups.sweep() == Swept()
    assert (await look(store, other.id)).waiting == 1


@pytest.mark.spec("GROUP-10")
async def test_a_group_stays_for_a_minute_at_least(store: Store) -> None:
    """So that a caller who waits for its end can read it, also if the app keeps no job that is done."""
    kept = await make(store, store.draft(options=BRIEF), keep=0)
    await succeed(store)
    await kept.stays(LEAST_KEPT)


# --- at least as long as its jobs -----------------------------------------------------------------------------------


@pytest.mark.core
@pytest.mark.spec("GROUP-33")
async def test_a_group_stays_as_long_as_a_dead_member(store: Store) -> None:
    """That is kept for longer than what is done."""
    kept = await make(store, store.draft(options=Options(keep=HOUR)), store.draft(), keep=HOUR)
    first, second = await store.claim(n=2)
    await store.settle(conclude(first, Done()), conclude(second, Rejected("no")))
    assert await kept.until() == HOUR
    await kept.stays(KEEP_DEAD)


@pytest.mark.spec("GROUP-33")
async def test_a_group_stays_as_long_as_a_done_member(store: Store) -> None:
    """Which has a retention of its own."""
    kept = await make(store, store.draft(options=Options(keep=3 * DAY)), store.draft(options=BRIEF), keep=HOUR)
    for claim in await store.claim(n=2):
        await store.settle(conclude(claim, Done()))
    await kept.stays(3 * DAY)


@pytest.mark.core
@pytest.mark.spec("GROUP-33")
async def test_a_group_stays_as_long_as_a_callback(store: Store) -> None:
    """While it waits, while it runs, and as long as it is kept afterwards."""
    then = store.draft("then", queue=AFTER, options=Options(keep=2 * DAY))
    kept = await make(store, store.draft(options=BRIEF), keep=HOUR, then=then)
    await succeed(store)
    store.pass_time(90 * DAY)
    await kept.sweep(removed=0)
    assert await kept.until() == LOOKED_AGAIN
    claim = await store.take(queue=AFTER)
    store.pass_time(MINUTE)
    await kept.sweep(removed=0)
    await store.finish(claim, Done())
    await kept.stays(2 * DAY)


@pytest.mark.spec("GROUP-33")
async def test_a_callback_that_was_not_stored_keeps_no_group(store: Store) -> None:
    """The other one of `then` and `on_failure`."""
    group = store.mint()
    other = store.draft("on_failure", queue=AFTER)
    made = new_group(group, on_failure=other, keep=HOUR, sealed=True)
    await store.engine.jobs.insert(into_group(group, [store.draft(options=BRIEF)]), group=made)
    await succeed(store)
    await Kept(store, group).stays(HOUR)


@pytest.mark.spec("GROUP-33")
async def test_a_member_that_is_requeued_or_discarded_keeps_its_group(store: Store) -> None:
    """What happens to it after the closing counts."""
    kept = await make(store, store.draft(), store.draft(), keep=HOUR)
    for claim in await store.claim(n=2):
        await store.finish(claim, Rejected("no"))
    [group] = await store.engine.groups.get([kept.id])
    assert group is not None
    one, other = group.members
    store.pass_time(KEEP_DEAD - DAY)
    assert (await store.engine.operator.alter(Selection((one,)), Requeue())).changed == 1
    assert (await store.engine.operator.alter(Selection((other,)), Discard())).changed == 1
    store.pass_time(2 * KEEP_DEAD)
    await kept.sweep(removed=0)
    assert (await store.engine.operator.alter(Selection((one,)), Cancel())).changed == 1
    await kept.stays(KEEP_DEAD)


@pytest.mark.spec("GROUP-33")
async def test_a_member_past_its_retention_keeps_no_group(store: Store) -> None:
    """Also if no cleaning has removed it yet."""
    kept = await make(store, store.draft(options=Options(keep=HOUR)), keep=HOUR)
    await succeed(store)
    store.pass_time(HOUR + 1)
    assert (await store.engine.groups.sweep()).removed == 1
    assert await store.engine.groups.get([kept.id]) == [None]


@pytest.mark.spec("GROUP-33")
async def test_a_sweep_decides_about_each_group_alone(store: Store) -> None:
    """Those beside one that stays are removed."""
    groups = [
        await make(store, store.draft(options=Options(keep=keep)), keep=HOUR) for keep in (MINUTE, DAY, HOUR, 2 * DAY)
    ]
    await succeed(store)
    store.pass_time(HOUR + 1)
    await groups[0].sweep(removed=2)
    found = await store.engine.groups.get([one.id for one in groups])
    assert [one is None for one in found] == [True, False, True, False]
    assert [await one.until() for one in groups[1::2]] == [DAY - HOUR - 1, 2 * DAY - HOUR - 1]


@pytest.mark.spec("GROUP-33")
@pytest.mark.parametrize("dead", [0, 1])
async def test_a_large_group_stays_as_long_as_dead_jobs_of_its_queue(store: Store, dead: int) -> None:
    """If it did not succeed: the ids of its members are not kept."""
    await store.engine.control.tune(QUEUE, Tuning(keep_dead=9 * DAY))
    group = store.mint()
    drafts = into_group(group, [store.draft(options=BRIEF) for _ in range(MOST_KNOWN + 1)])
    await store.engine.jobs.insert(drafts[:MOST_KNOWN], group=new_group(group, keep=HOUR))
    await store.engine.jobs.insert(drafts[MOST_KNOWN:])
    for claim in await store.claim(n=dead):
        await store.finish(claim, Rejected("no"))
    await succeed(store)
    assert await store.engine.groups.seal(group)
    await Kept(store, group).stays(9 * DAY if dead else HOUR)


# --- members that callbacks may read ----------------------------------------------------------------------------


@pytest.mark.core
@pytest.mark.spec("PASS-12")
@pytest.mark.parametrize("keep", [0, MINUTE, 3 * DAY, None])
async def test_members_stay_until_the_callbacks_have_ended(store: Store, keep: Span | None) -> None:
    """Whatever their `keep`: while the group is open, while a callback waits and runs; then they go by their `keep`."""
    group, then = store.mint(), store.draft("then", queue=AFTER, options=BRIEF)
    options = Options(keep=keep)
    early, late = into_group(group, [store.draft(options=options, delay=n) for n in (0, 1)], awaited=True)
    await store.engine.jobs.insert([early, late], group=new_group(group, then=then, keep=HOUR, sealed=True))
    await store.finish(await store.take(), Done(b"1"))
    store.pass_time(100 * DAY)
    await _sweep(store)
    assert (await store.job(early.job_id)).result == b"1"
    await store.finish(await store.take(), Done(b"2"))
    await close(store)
    for _ in range(2):
        store.pass_time(90 * DAY)
        await _sweep(store)
    claim = await store.take(queue=AFTER)
    store.pass_time(MINUTE)
    await _sweep(store)
    assert [(await store.job(job.job_id)).result for job in (early, late)] == [b"1", b"2"]
    await store.finish(claim, Done())
    for _ in range(3):
        store.pass_time(LOOKED_AGAIN + 1)
        await _sweep(store)
    assert await store.gone(early.job_id)
    assert await store.gone(late.job_id)
    assert await store.engine.groups.get([group]) == [None]


@pytest.mark.spec("PASS-12")
async def test_a_member_that_was_let_go_is_kept_as_it_asked_for(store: Store) -> None:
    """Counted from its end."""
    group = store.mint()
    drafts = [store.draft(options=Options(keep=keep)) for keep in (HOUR, 5 * DAY)]
    members = into_group(group, drafts, awaited=True)
    made = new_group(group, on_failure=store.draft("other", queue=AFTER), keep=HOUR, sealed=True)
    await store.engine.jobs.insert(members, group=made)
    await succeed(store)
    await close(store)
    for _ in range(3):
        store.pass_time(HOUR + 1)
        await _sweep(store)
    assert await store.gone(members[0].job_id)
    assert not await store.gone(members[1].job_id)
    store.pass_time(5 * DAY)
    await _sweep(store)
    assert await store.gone(members[1].job_id)


@pytest.mark.spec("PASS-12")
async def test_members_of_a_large_group_are_let_go_too(store: Store) -> None:
    """Their ids are not kept."""
    needs(store, Feature.DURABLE)  # a store in memory keeps fewer finished jobs than that
    group = store.mint()
    members = into_group(group, [store.draft(options=BRIEF) for _ in range(MOST_KNOWN + 1)], awaited=True)
    made = new_group(group, on_failure=store.draft("other", queue=AFTER), keep=HOUR)
    await store.engine.jobs.insert(members[:MOST_KNOWN], group=made)
    await store.engine.jobs.insert(members[MOST_KNOWN:])
    await store.engine.groups.seal(group)
    await succeed(store)
    await close(store)
    assert not await store.gone(members[0].job_id)
    for _ in range(3):
        store.pass_time(HOUR + 1)
        await _sweep(store)
    assert await store.counts() == {}


async def _sweep(store: Store) -> None:
    await store.engine.groups.sweep()
    for _ in range(3):
        await store.engine.operator.expire(Retention(limit=2 * MOST_KNOWN))
