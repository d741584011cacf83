"""The census: every count at one instant, and always the same as counting by hand."""

from __future__ import annotations

from collections import Counter
from typing import get_args

import pytest

from stoker.engines.base import Feature
from stoker.model.job import Options, Settlement, Status, Verdict
from stoker.model.outcome import Canceled, Crashed, Done, Failed, HandedBack, Rejected, Snoozed, Throttled
from stoker.model.query import (
    Cancel,
    Clone,
    Delete,
    Discard,
    Due,
    Move,
    Prioritize,
    Query,
    Requeue,
    Retention,
    RunNow,
    Selection,
    Totals,
    counted,
)
from stoker.model.steps import Signaled
from stoker.model.time import DAY, HOUR, SECOND
from stoker.model.unique import Unique
from stoker.testing.conformance.harness import Store, needs
from stoker.testing.conformance.limit_helpers import limited
from stoker.testing.conformance.step_helpers import signal, suspend


async def _check(store: Store) -> None:
    """Compare the census with the records, one by one."""
    counts: Counter[tuple[str, str, Status]] = Counter()
    later: Counter[str] = Counter()
    waiting: Counter[str] = Counter()
    ready: dict[str, int] = {}
    query = Query(order="oldest", limit=1_000)
    while True:
        page = await store.engine.operator.find(query)
        for job in page.jobs:
            counts[job.queue, job.kind, job.status] += 1
            if job.status is Status.PENDING and job.scheduled_at > store.now():
                later[job.queue] += 1
                waiting[job.queue] += job.suspended
            elif job.status is Status.PENDING:
                ready[job.queue] = min(ready.get(job.queue, job.scheduled_at), job.scheduled_at)
        if page.cursor is None:
            break
        query = Query(order="oldest", limit=1_000, cursor=page.cursor)
    census = await store.engine.operator.census()
    assert census.at == store.now()
    assert {(count.queue, count.kind, count.status): count.n for count in census.counts} == counts
    assert len(census.counts) == len(counts)
    assert all(count.n > 0 for count in census.counts)
    assert (census.later, census.waiting) == (later, +waiting)
    assert census.oldest_ready == ready


async def _totals(store: Store, kind: str = "work") -> Totals:
    return (await store.engine.operator.census()).totals[kind]


@pytest.mark.core
@pytest.mark.spec("CENSUS-01")
async def test_census_of_an_empty_store_is_all_zeros(store: Store) -> None:
    """Nothing stored: nothing counted, and the counts of any queue are zero."""
    census = await store.engine.operator.census()
    assert (census.at, census.counts, census.totals) == (store.now(), (), {})
    assert (census.later, census.oldest_ready, census.oldest_running) == ({}, {}, {})
    assert census.by_status() == dict.fromkeys(Status, 0)
    assert (census.ready("default"), census.lag("default"), census.kinds()) == (0, 0, [])


@pytest.mark.core
@pytest.mark.spec("CENSUS-01")
async def test_census_has_no_queues_that_were_never_used(store: Store) -> None:
    """An unknown queue counts zero of everything."""
    await store.add(queue="known")
    census = await store.engine.operator.census()
    assert census.by_status("unknown") == dict.fromkeys(Status, 0)
    assert (census.ready("unknown"), census.lag("unknown"), census.kinds("unknown")) == (0, 0, [])


@pytest.mark.core
@pytest.mark.spec("CENSUS-02")
async def test_census_counts_by_queue_kind_and_status(store: Store) -> None:
    """Each combination is counted apart, and no combination appears twice."""
    await store.insert(
        store.draft("a", queue="x"),
        store.draft("a", queue="x"),
        store.draft("b", queue="x"),
        store.draft("a", queue="y"),
    )
    await store.take(queue="y")
    census = await store.engine.operator.census()
    assert {(c.queue, c.kind, c.status, c.n) for c in census.counts} == {
        ("x", "a", Status.PENDING, 2),
        ("x", "b", Status.PENDING, 1),
        ("y", "a", Status.RUNNING, 1),
    }
    assert len(census.counts) == 3
    await _check(store)


@pytest.mark.core
@pytest.mark.spec("CENSUS-03")
async def test_census_follows_every_way_a_run_can_end(store: Store) -> None:
    """After each kind of settlement the counts equal a recount."""
    for outcome in (
        Done(),
        Done(b"1"),
        Failed("again", after=SECOND),
        Failed("never again", retry=False),
        Rejected("no"),
        Snoozed(HOUR),
        Snoozed(0),
        HandedBack(),
        Crashed("signal 9"),
        Canceled(),
        Throttled(retry_after=SECOND, queue=False),
    ):
        await store.add(type(outcome).__name__, queue="line")
        await _check(store)
        claim = await store.take(queue="line")
        await _check(store)
        await store.finish(claim, outcome)
        await _check(store)
        store.pass_time(DAY)
        await _check(store)
        for claim in await store.claim(queue="line", n=10):
            await store.finish(claim, Done())
        await _check(store)


@pytest.mark.core
@pytest.mark.spec("CENSUS-03")
async def test_census_follows_every_action_of_an_operator(store: Store) -> None:
    """After each change, applied or refused, the counts equal a recount."""
    dead, gone, waiting, running, clone = (await store.insert(*(store.draft() for _ in range(4)))) + [store.mint()]
    claims = await store.claim(n=2)
    for claim in claims:
        await store.finish(claim, Rejected("no"))
    await store.engine.operator.alter(Selection((waiting,)), Move("later"))
    await store.take()
    everything = Selection((dead, gone, waiting, running, store.mint()))
    for change in (
        Move("elsewhere"),
        Prioritize(3),
        RunNow(),
        Discard(),
        Requeue(),
        Cancel(),
        Requeue(),
        Cancel(force=True),
        Requeue(),
    ):
        await store.engine.operator.alter(everything, change)
        await _check(store)
    for claim in [*await store.claim(n=9), *await store.claim(queue="elsewhere", n=9)]:
        await store.finish(claim, Rejected("no"))
    await _check(store)
    await store.engine.operator.alter(Selection((dead,)), Clone((clone,)))
    await _check(store)
    await store.engine.operator.alter(everything, Delete())
    await _check(store)
    assert await store.counts() == {Status.PENDING: 1}


@pytest.mark.spec("CENSUS-03")
async def test_census_follows_superseded_replaced_and_deduplicated_jobs(store: Store) -> None:
    """An insert that meets a key changes the counts exactly as it changes the records."""
    needs(store, Feature.KEYS_ACROSS_QUEUES)
    first = await store.add(unique=Unique("k"))
    await store.add(unique=Unique("k"))
    await _check(store)
    await store.add(unique=Unique("k", mode="replace"), queue="other", delay=HOUR)
    await _check(store)
    await store.engine.operator.alter(Selection((first,)), RunNow())
    queue = (await store.job(first)).queue
    await store.finish(await store.take(queue=queue), Failed("again", after=HOUR))
    await _check(store)
    await store.add(unique=Unique("k"))
    assert await store.status(first) is Status.DEAD
    await _check(store)


@pytest.mark.spec("CENSUS-03")
async def test_census_follows_lapsed_workers(store: Store) -> None:
    """A claim that passes to another worker is still one running job."""
    await store.add()
    await store.take("w1")
    store.pass_time(HOUR)
    await store.enlist("w2")
    [claim] = await store.engine.jobs.reap("w2", 10)
    await _check(store)
    assert await store.counts() == {Status.RUNNING: 1}
    await store.finish(claim, Failed("lost", after=SECOND))
    await _check(store)


@pytest.mark.spec("CENSUS-03")
async def test_census_is_not_moved_by_what_does_not_apply(store: Store) -> None:
    """A lost settlement, a repeated insert and a refused change count nothing, also not in the totals."""
    draft = store.draft()
    await store.insert(draft)
    claim = await store.take()
    await store.finish(claim, Snoozed(0))
    again = await store.take("w2")
    before = await store.engine.operator.census()
    await store.settle(Settlement(claim.id, claim.worker, claim.token, Status.DEAD, error="late"))
    await store.settle(Settlement(store.mint(), "unknown", 1, Status.DONE))
    await store.insert(draft)
    await store.engine.operator.alter(Selection((draft.job_id, store.mint())), Requeue())
    assert await store.engine.operator.census() == before
    await store.finish(again, Done())
    await _check(store)


@pytest.mark.spec("CENSUS-04")
async def test_census_forgets_what_is_deleted_and_expired(store: Store) -> None:
    """Deleted and expired jobs leave the counts, and counts never fall below zero."""
    jobs = await store.insert(*(store.draft() for _ in range(4)))
    for claim in await store.claim(n=2):
        await store.finish(claim, Done())
    await store.engine.operator.alter(Selection((jobs[0], jobs[2])), Delete())
    await _check(store)
    assert await store.counts() == {Status.DONE: 1, Status.PENDING: 1}
    store.pass_time(8 * DAY)
    assert (await store.engine.operator.expire(Retention())).jobs == 1
    await store.engine.operator.alter(Selection(tuple(jobs)), Delete())
    await store.engine.operator.alter(Selection(tuple(jobs)), Delete())
    await _check(store)
    assert (await store.engine.operator.census()).counts == ()


@pytest.mark.spec("CENSUS-04")
async def test_census_forgets_jobs_that_are_not_kept(store: Store) -> None:
    """A job that is deleted on success leaves no count behind, but is in the totals."""
    await store.add(options=Options(keep=0))
    await store.finish(await store.take(), Done())
    await _check(store)
    census = await store.engine.operator.census()
    assert census.counts == ()
    assert (census.totals["work"].enqueued, census.totals["work"].completed) == (1, 1)


@pytest.mark.core
@pytest.mark.spec("CENSUS-11")
async def test_census_tells_waiting_from_scheduled(store: Store) -> None:
    """Suspended jobs are counted until they are due, by time or by an answer, or are gone, whatever took them away."""
    jobs = [await store.add() for _ in range(5)]
    jobs += await store.insert(limited(store))
    claims = {claim.id: claim for claim in await store.claim(n=9)}
    for place, after in enumerate((None, HOUR, None, None, None, None)):
        assert await suspend(store, claims[jobs[place]], after=after) is Verdict.APPLIED
    await store.add(delay=DAY)
    await _check(store)
    census = await store.engine.operator.census()
    assert (census.suspended("default"), census.scheduled("default"), census.ready("default")) == (6, 1, 0)
    assert await signal(store, jobs[0]) is Signaled.TAKEN
    await store.engine.operator.alter(Selection((jobs[2],)), Cancel())
    await store.engine.operator.alter(Selection((jobs[3],)), Delete())
    await store.engine.operator.alter(Selection((jobs[4],)), RunNow())
    await _check(store)
    store.pass_time(HOUR)
    await _check(store)
    census = await store.engine.operator.census()
    assert (census.suspended("default"), census.scheduled("default"), census.ready("default")) == (1, 1, 3)
    counts = {due: counted(Query(due=due, statuses=frozenset({Status.PENDING})), census) for due in get_args(Due)}
    assert counts == {"now": 3, "later": 1, "waiting": 1}
    for due, n in counts.items():
        found = await store.engine.operator.find(Query(due=due, statuses=frozenset({Status.PENDING})))
        assert len(found.jobs) == n
    for claim in await store.claim(n=9):
        assert await suspend(store, claim) is Verdict.APPLIED
    await _check(store)
    assert (await store.engine.operator.census()).waiting == {"default": 3}  # one has its answer


@pytest.mark.core
@pytest.mark.spec("CENSUS-05")
async def test_census_tells_scheduled_from_ready(store: Store) -> None:
    """Pending jobs of the future are counted per queue; a retry that waits is not one of them."""
    await store.insert(
        store.draft(), store.draft(delay=SECOND), store.draft(delay=HOUR), store.draft(queue="b", delay=1)
    )
    await store.add(queue="r")
    await store.finish(await store.take(queue="r"), Failed("again", after=HOUR))
    census = await store.engine.operator.census()
    assert census.later == {"default": 2, "b": 1}
    assert (census.ready("default"), census.ready("b"), census.ready("r")) == (1, 0, 0)
    store.pass_time(SECOND)
    census = await store.engine.operator.census()
    assert census.later == {"default": 1}
    assert (census.ready("default"), census.ready("b"), census.ready("r")) == (2, 1, 0)


@pytest.mark.core
@pytest.mark.spec("CENSUS-06")
async def test_census_knows_the_oldest_ready_job(store: Store) -> None:
    """The smallest scheduled time of due pending jobs per queue; scheduled, retrying and finished ones do not count."""
    start = store.now()
    await store.add(queue="future", delay=HOUR)
    await store.add(queue="retrying")
    await store.finish(await store.take(queue="retrying"), Failed("again", after=SECOND))
    await store.add(queue="done")
    await store.finish(await store.take(queue="done"), Done())
    await store.add(delay=SECOND, priority=-9)
    await store.add(priority=9)
    store.pass_time(10 * SECOND)
    census = await store.engine.operator.census()
    assert census.oldest_ready == {"default": start}
    assert census.lag("default") == 10 * SECOND
    await store.claim(n=1)
    assert (await store.engine.operator.census()).oldest_ready == {"default": start}
    await store.claim(n=1)
    assert (await store.engine.operator.census()).oldest_ready == {}


@pytest.mark.core
@pytest.mark.spec("CENSUS-07")
async def test_census_knows_the_oldest_running_job(store: Store) -> None:
    """The earliest claim that still runs, per queue, gone when nothing runs any more."""
    await store.insert(store.draft(), store.draft(), store.draft(queue="b"))
    first = await store.take()
    early = store.now()
    store.pass_time(SECOND)
    second = await store.take()
    other = await store.take(queue="b")
    assert (await store.engine.operator.census()).oldest_running == {"default": early, "b": early + SECOND}
    await store.finish(first, Done())
    assert (await store.engine.operator.census()).oldest_running == {"default": early + SECOND, "b": early + SECOND}
    await store.finish(second, Snoozed(0))
    await store.finish(other, Rejected("no"))
    assert (await store.engine.operator.census()).oldest_running == {}


@pytest.mark.spec("CENSUS-08")
async def test_census_totals_of_a_draft_that_was_replaced_in_its_call(store: Store) -> None:
    """What was enqueued counts under the kind that it was enqueued as, though the job has another kind now."""
    needs(store, Feature.KEYS_ACROSS_QUEUES)
    first = store.draft("push", unique=Unique("k", scope="global"))
    await store.insert(first, store.draft("send", unique=Unique("k", scope="global", mode="replace")))
    assert (await store.engine.operator.census()).totals == {"push": Totals(enqueued=1)}


@pytest.mark.core
@pytest.mark.spec("CENSUS-08")
async def test_census_totals_only_grow(store: Store) -> None:
    """Per kind: enqueued, completed, retried, failed and canceled, each raised by exactly what happened."""
    await store.insert(*(store.draft() for _ in range(4)), store.draft("other"))
    assert await _totals(store) == Totals(enqueued=4)
    a, b, c, d = await store.claim(n=4)
    await store.finish(a, Done())
    await store.finish(b, Failed("again", after=HOUR))
    await store.finish(c, Rejected("no"))
    await store.finish(d, Canceled())
    totals = await _totals(store)
    assert (totals.enqueued, totals.completed, totals.retried, totals.failed, totals.canceled) == (4, 1, 1, 1, 1)
    assert await _totals(store, "other") == Totals(enqueued=1)


@pytest.mark.spec("CENSUS-08")
async def test_census_totals_outlive_the_jobs(store: Store) -> None:
    """Deleting and expiring jobs takes nothing out of the totals."""
    kept = await store.add()
    await store.add()
    for claim in await store.claim(n=2):
        await store.finish(claim, Done())
    before = (await store.engine.operator.census()).totals
    await store.engine.operator.alter(Selection((kept,)), Delete())
    store.pass_time(DAY * 40)
    await store.engine.operator.expire(Retention())
    assert (await store.engine.operator.census()).totals == before
    assert before["work"].completed == 2


@pytest.mark.spec("CENSUS-08")
async def test_census_totals_do_not_count_what_is_free_of_charge(store: Store) -> None:
    """A snooze, a hand-back and a throttle are neither retries nor failures; a deduplicated insert is no enqueue."""
    await store.add(unique=Unique("k"))
    await store.add(unique=Unique("k"))
    for outcome in (Snoozed(0), HandedBack(), Throttled(retry_after=0, queue=False)):
        await store.finish(await store.take(), outcome)
    assert await _totals(store) == Totals(enqueued=1)


@pytest.mark.spec("CENSUS-08")
async def test_census_totals_count_an_operators_cancel(store: Store) -> None:
    """Canceling a waiting job counts once, refused repetitions do not."""
    job = await store.add()
    for _ in range(2):
        await store.engine.operator.alter(Selection((job,)), Cancel())
    assert (await _totals(store)).canceled == 1


@pytest.mark.core
@pytest.mark.spec("CENSUS-09")
async def test_census_shows_the_last_error_until_a_success(store: Store) -> None:
    """The kind's newest error stays until one of its jobs succeeds; other kinds keep theirs."""
    await store.insert(store.draft("a"), store.draft("a"), store.draft("a"), store.draft("b"))
    first, second, third, other = await store.claim(n=4)
    await store.finish(first, Failed("one", after=HOUR))
    assert (await _totals(store, "a")).last_error == "one"
    await store.finish(second, Rejected("two"))
    await store.finish(other, Rejected("three"))
    assert (await _totals(store, "a")).last_error == "two"
    await store.finish(third, Done())
    assert (await _totals(store, "a")).last_error is None
    assert (await _totals(store, "b")).last_error == "three"


@pytest.mark.spec("CENSUS-10")
async def test_census_is_exact_beyond_ten_thousand_scheduled_jobs(store: Store) -> None:
    """Far more scheduled jobs than are counted one by one, of several priorities, some due, some retrying."""
    for _ in range(10):
        await store.insert(*(store.draft(delay=HOUR, priority=n % 2) for n in range(1_000)))
    await store.insert(*(store.draft(delay=2 * HOUR) for _ in range(50)))
    assert (
        (await store.engine.operator.census()).later,
        (await store.engine.operator.census()).ready("default"),
    ) == (
        {"default": 10_050},
        0,
    )
    await store.insert(*(store.draft() for _ in range(7)))
    await store.finish(await store.take(), Failed("boom", after=HOUR))
    await store.finish(await store.take(), Failed("boom", after=0))
    census = await store.engine.operator.census()
    assert (census.later, census.ready("default")) == ({"default": 10_050}, 5)
    store.pass_time(HOUR)
    census = await store.engine.operator.census()
    assert (census.later, census.ready("default")) == ({"default": 50}, 10_005)
