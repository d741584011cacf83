"""Operators' changes: which jobs one applies to, what it answers, and unique keys that stand in its way.

Every change is judged by the status a job has inside the write, so a result that was on a screen for an hour cannot
undo what happened since. One job that cannot be changed never hinders the others.
"""

from __future__ import annotations

from typing import Any

import pytest

from stoker.engines.base import Feature
from stoker.model.actions import action_of
from stoker.model.ids import JobId
from stoker.model.job import Job, Status, Verdict
from stoker.model.outcome import Done, Failed, Rejected, Snoozed
from stoker.model.query import (
    Cancel,
    Change,
    Clone,
    Delete,
    Discard,
    Move,
    Prioritize,
    Query,
    Requeue,
    RunNow,
    Tally,
)
from stoker.model.time import HOUR, SECOND
from stoker.model.unique import SUPERSEDED, Unique
from stoker.testing.conformance.alter_helpers import alter, dead_job, each_status, retrying_job
from stoker.testing.conformance.harness import Store, needs

# --- who may be changed -----------------------------------------------------------------------------------------


@pytest.mark.core
@pytest.mark.spec("ALTER-01", "ALTER-02")
@pytest.mark.parametrize(
    "change",
    [
        Cancel(),
        Cancel(force=True),
        Requeue(),
        Clone(()),
        Discard(),
        Delete(),
        RunNow(),
        Move("elsewhere"),
        Prioritize(7),
    ],
    ids=lambda change: f"{type(change).__name__}{'-force' if getattr(change, 'force', False) else ''}",
)
async def test_alter_obeys_the_table_of_statuses(store: Store, change: Change) -> None:
    """In one call over a job of every status the allowed ones change and the others are refused, untouched."""
    jobs = await each_status(store)
    if isinstance(change, Clone):
        change = Clone(tuple(store.mint() for _ in jobs))
    before = {status: await store.job(job) for status, job in jobs.items()}
    tally = await alter(store, change, *jobs.values())
    asked = isinstance(change, Delete) or (isinstance(change, Cancel) and not change.force)
    allowed = action_of(change).statuses
    stopping = allowed & {Status.RUNNING} if asked else frozenset[Status]()
    assert tally.changed == len(allowed - stopping)
    assert tally.cancel_requested == len(stopping)
    assert tally.refused == {status: 1 for status in Status if status not in allowed}
    assert (tally.missing, tally.blocked) == (0, 0)
    assert set(tally.changed_ids) >= {jobs[status] for status in allowed - stopping}
    assert not set(tally.changed_ids) & {jobs[status] for status in frozenset(Status) - allowed}
    for status, job in jobs.items():
        [after] = await store.engine.operator.get([job])
        if status in allowed:
            assert after != before[status], status
        else:
            assert after == before[status], status


@pytest.mark.core
@pytest.mark.spec("ALTER-02")
async def test_alter_narrows_to_the_statuses_the_operator_saw(store: Store) -> None:
    """A job that is no longer in the status in which it was seen is refused, although the change would be allowed."""
    pending, retrying = await store.add(queue="other"), await retrying_job(store)
    tally = await alter(store, Cancel(), pending, retrying, statuses=[Status.RETRYING, Status.RETRYING])
    assert (tally.changed, tally.refused, tally.changed_ids) == (1, {Status.PENDING: 1}, (retrying,))
    assert await store.status(pending) is Status.PENDING
    assert await store.status(retrying) is Status.CANCELED


@pytest.mark.core
@pytest.mark.spec("ALTER-02")
async def test_alter_compares_each_job_with_the_status_it_was_seen_in(store: Store) -> None:
    """Two jobs that have changed places since they were read are both refused."""
    canceled, dead = await store.add(), await dead_job(store, queue="other")
    await alter(store, Cancel(), canceled)
    swapped = [Status.DEAD, Status.CANCELED]
    tally = await alter(store, Requeue(), canceled, dead, statuses=swapped)
    assert (tally.changed, tally.refused) == (0, {Status.CANCELED: 1, Status.DEAD: 1})
    assert (await alter(store, Requeue(), canceled, dead, statuses=swapped[::-1])).changed == 2


@pytest.mark.core
@pytest.mark.spec("ALTER-28")
async def test_alter_repeated_with_its_moment_touches_no_job_twice(store: Store) -> None:
    """A requeued job that ended or waits again, and one that was created later, are refused; others change."""
    dead, again = await dead_job(store), await retrying_job(store, queue="other")
    bound = await store.engine.now()
    assert (await alter(store, Requeue(), dead, again, bound=bound)).changed == 2
    store.pass_time(SECOND)
    await store.finish(await store.take(), Rejected("no"))
    await store.finish(await store.take(queue="other"), Failed("again", after=HOUR))
    late = await store.add(queue="late")
    await alter(store, Cancel(), late)
    tally = await alter(store, Requeue(), dead, again, late, bound=bound)
    assert (tally.changed, tally.refused) == (0, {Status.DEAD: 1, Status.RETRYING: 1, Status.CANCELED: 1})
    assert (await alter(store, Discard(), dead, bound=bound)).refused == {Status.DEAD: 1}
    assert (await alter(store, Cancel(), again, bound=bound)).changed == 1, "it has no end, and a cancel starts nothing"
    assert (await alter(store, Requeue(), dead, again, late, bound=await store.engine.now())).changed == 3


@pytest.mark.spec("ALTER-28")
async def test_alter_repeated_with_its_moment_starts_no_snoozed_job(store: Store) -> None:
    """A job that was made due, ran and sleeps again is left to sleep."""
    job = await store.add(delay=HOUR)
    bound = await store.engine.now()
    assert (await alter(store, RunNow(), job, bound=bound)).changed == 1
    store.pass_time(SECOND)
    await store.finish(await store.take(), Snoozed(HOUR))
    assert (await alter(store, RunNow(), job, bound=bound)).refused == {Status.PENDING: 1}
    assert (await alter(store, RunNow(), job, bound=await store.engine.now())).changed == 1


@pytest.mark.core
@pytest.mark.spec("ALTER-03")
async def test_alter_counts_what_is_missing(store: Store) -> None:
    """Ids without a record are counted as missing and do not hinder the others."""
    job = await store.add()
    tally = await alter(store, Cancel(), store.mint(), job, store.mint())
    assert (tally.changed, tally.missing, tally.refused) == (1, 2, {})


@pytest.mark.core
@pytest.mark.spec("ALTER-03")
@pytest.mark.parametrize(
    "change", [Cancel(), Requeue(), Clone(()), Delete(), Move("x")], ids=lambda c: type(c).__name__
)
async def test_alter_without_a_selection_does_nothing(store: Store, change: Change) -> None:
    """An empty selection returns a tally of zeros."""
    await store.add()
    assert await alter(store, change) == Tally()
    assert await store.counts() == {Status.PENDING: 1}


@pytest.mark.spec("ALTER-03")
async def test_alter_names_whom_it_changed_in_the_order_of_the_selection(store: Store) -> None:
    """`changed_ids` follows the selection, not the ids."""
    a, b, c = await store.insert(*(store.draft() for _ in range(3)))
    assert (await alter(store, Prioritize(1), c, a, store.mint(), b)).changed_ids == (c, a, b)


@pytest.mark.spec("ALTER-03")
async def test_alter_changes_a_job_that_is_named_twice_once(store: Store) -> None:
    """A repeated id is one job."""
    job = await store.add()
    assert (await alter(store, Cancel(), job, job)).changed == 1
    assert (await store.engine.operator.census()).totals["work"].canceled == 1


@pytest.mark.spec("ALTER-03")
async def test_alter_takes_the_largest_selection(store: Store) -> None:
    """A thousand jobs change in one call."""
    jobs = await store.insert(*(store.draft() for _ in range(1_000)))
    tally = await alter(store, Cancel(), *jobs)
    assert (tally.changed, len(tally.changed_ids)) == (1_000, 1_000)
    assert await store.counts() == {Status.CANCELED: 1_000}


@pytest.mark.core
@pytest.mark.spec("ALTER-04")
async def test_alter_from_a_stale_screen_is_refused(store: Store) -> None:
    """An operator saw a dead job; meanwhile it was requeued and runs again: the slow second request is refused."""
    job = await dead_job(store)
    await alter(store, Requeue(), job)
    claim = await store.take("w2")
    for change in (Requeue(), Discard(), Clone((store.mint(),))):
        tally = await alter(store, change, job, statuses=[Status.DEAD])
        assert (tally.changed, tally.refused, tally.created) == (0, {Status.RUNNING: 1}, ())
        assert (await alter(store, change, job)).refused == {Status.RUNNING: 1}
    assert (await alter(store, Delete(), job, statuses=[Status.DEAD])).refused == {Status.RUNNING: 1}
    assert not (await store.job(job)).cancel_requested
    assert await store.finish(claim, Done()) is Verdict.APPLIED


@pytest.mark.core
@pytest.mark.spec("ALTER-23")
async def test_alter_changes_no_other_job(store: Store) -> None:
    """Jobs that were not selected are the same before and after every kind of change."""
    others = await each_status(store)
    before = [await store.job(job) for job in others.values()]
    dead = await dead_job(store, queue="mine")
    waiting = await store.add(queue="mine", delay=HOUR)
    for change in (
        Move("ours"),
        Prioritize(1),
        RunNow(),
        Discard(),
        Requeue(),
        Cancel(),
        Requeue(),
        Cancel(force=True),
        Clone((store.mint(), store.mint())),
        Delete(),
    ):
        await alter(store, change, dead, waiting)
    after: list[Job | None] = await store.engine.operator.get(list(others.values()))
    assert after == before


# --- keys -------------------------------------------------------------------------------------------------------


@pytest.mark.core
@pytest.mark.spec("ALTER-11")
@pytest.mark.parametrize("change", [Requeue(), Clone(())], ids=lambda change: type(change).__name__)
@pytest.mark.parametrize("mode", ["existing", "replace", "raise"])
@pytest.mark.parametrize("holder", ["pending", "running", "strong"])
async def test_alter_is_blocked_by_an_active_holder(store: Store, change: Change, mode: Any, holder: str) -> None:
    """A dead job whose key is taken stays dead, whatever its mode, and the holder is untouched."""
    job = await dead_job(store, unique=Unique("k", mode=mode))
    hold: Any = "retrying" if holder == "strong" else "active"
    other = await store.add(unique=Unique("k", hold=hold))
    if holder != "pending":
        claim = await store.take()
        if holder == "strong":
            await store.finish(claim, Failed("again", after=HOUR))
    change = Clone((store.mint(),)) if isinstance(change, Clone) else change
    before = await store.snapshot([job, other])
    assert await alter(store, change, job) == Tally(blocked=1)
    assert await store.snapshot([job, other]) == before


@pytest.mark.core
@pytest.mark.spec("ALTER-12")
@pytest.mark.parametrize("change", [Requeue(), Clone(())], ids=lambda change: type(change).__name__)
async def test_alter_supersedes_a_holder_that_waits_for_a_retry(store: Store, change: Change) -> None:
    """A weak holder ends dead in the same step and the key goes to the job that became active."""
    job = await dead_job(store, unique=Unique("k"))
    weak = await retrying_job(store, unique=Unique("k"))
    change = Clone((store.mint(),)) if isinstance(change, Clone) else change
    assert (await alter(store, change, job)).changed == 1
    loser = await store.job(weak)
    assert (loser.status, loser.last_error, loser.finished_at) == (Status.DEAD, SUPERSEDED, store.now())
    winner = change.ids[0] if isinstance(change, Clone) else job
    assert await store.status(winner) is Status.PENDING
    assert await store.add(unique=Unique("k")) == winner
    store.pass_time(2 * HOUR)
    assert [claim.id for claim in await store.claim(n=9)] == [winner]


@pytest.mark.spec("ALTER-12")
async def test_alter_requeue_of_a_superseded_job_supersedes_in_turn(store: Store) -> None:
    """Requeueing the superseded loser while the winner waits for a retry leaves one active job and claims that work."""
    loser = await retrying_job(store, unique=Unique("k"))
    winner = await store.add(unique=Unique("k"))
    assert await store.status(loser) is Status.DEAD
    claim = await store.take()
    assert claim.id == winner
    await store.finish(claim, Failed("again", after=SECOND))
    other = await store.add(queue="default")
    assert (await alter(store, Requeue(), loser)).changed == 1
    assert (await store.status(loser), await store.status(winner)) == (Status.PENDING, Status.DEAD)
    store.pass_time(HOUR)
    assert {claim.id for claim in await store.claim(n=9)} == {loser, other}


@pytest.mark.core
@pytest.mark.spec("ALTER-12")
async def test_alter_requeue_of_the_weak_holder_itself_makes_its_key_strong(store: Store) -> None:
    """A retrying job is not in its own way, and once pending it holds its key against newcomers."""
    job = await retrying_job(store, unique=Unique("k"))
    assert (await alter(store, Requeue(), job)).changed == 1
    assert await store.add(unique=Unique("k")) == job
    assert await store.status(job) is Status.PENDING


@pytest.mark.core
@pytest.mark.spec("ALTER-13")
async def test_alter_requeues_the_first_of_several_jobs_with_one_key(store: Store) -> None:
    """Of selected jobs that share a key only the first in the selection is requeued, the rest are blocked."""
    first, second, third = [await dead_job(store, unique=Unique("k")) for _ in range(3)]
    tally = await alter(store, Requeue(), second, first, third)
    assert (tally.changed, tally.blocked, tally.changed_ids) == (1, 2, (second,))
    assert await store.counts() == {Status.PENDING: 1, Status.DEAD: 2}


@pytest.mark.core
@pytest.mark.spec("ALTER-13")
async def test_alter_blocked_rows_do_not_hinder_the_others(store: Store) -> None:
    """A batch with a blocked job in its middle changes the jobs around it."""
    before, blocked, after = [await dead_job(store, unique=key) for key in (None, Unique("k"), None)]
    await store.add(unique=Unique("k"))
    tally = await alter(store, Requeue(), before, blocked, after)
    assert (tally.changed, tally.blocked, tally.changed_ids) == (2, 1, (before, after))


@pytest.mark.spec("ALTER-13")
async def test_alter_frees_the_key_of_what_it_ends(store: Store) -> None:
    """A canceled or deleted holder lets go of its key in the same step; a requeue in the next call may have it."""
    job = await dead_job(store, unique=Unique("k"))
    for change in (Cancel(), Delete()):
        holder = await store.add(unique=Unique("k"))
        assert (await alter(store, Requeue(), job)).blocked == 1
        await alter(store, change, holder)
        assert (await alter(store, Requeue(), job)).changed == 1
        await alter(store, Cancel(), job)


@pytest.mark.core
@pytest.mark.spec("ALTER-14")
async def test_alter_of_everything_passes_blocked_rows_and_ends(store: Store) -> None:
    """A walk over all dead jobs whose first pages are entirely blocked still reaches the last and terminates."""
    needs(store, Feature.KEYS_ACROSS_QUEUES)
    blocked = [await dead_job(store, unique=Unique(f"k{n}")) for n in range(6)]
    free = [await dead_job(store) for _ in range(3)]
    await store.insert(*(store.draft(unique=Unique(f"k{n}"), queue="other") for n in range(6)))
    changed: list[JobId] = []
    cursor: JobId | None = None
    pages = 0
    while True:
        page = await store.engine.operator.find(
            Query(statuses=frozenset({Status.DEAD}), order="oldest", limit=2, cursor=cursor)
        )
        pages += 1
        seen = [job.status for job in page.jobs]
        tally = await alter(store, Requeue(), *(job.id for job in page.jobs), statuses=seen)
        changed += tally.changed_ids
        cursor = page.cursor
        if cursor is None:
            break
        assert pages < 20
    assert changed == free
    assert {await store.status(job) for job in blocked} == {Status.DEAD}
