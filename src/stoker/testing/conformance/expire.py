"""Retention: what is removed when its time is over, and what is never removed."""

from __future__ import annotations

from typing import Any

import pytest

from stoker.engines.base import Feature, outbox_of
from stoker.model.control import Presence, Tuning
from stoker.model.events import Event, EventCount, EventType, Point, Window
from stoker.model.ids import JobId
from stoker.model.job import Options, Status
from stoker.model.lifecycle import KEEP_DEAD
from stoker.model.outcome import Canceled, Done, Failed, Outcome, Rejected
from stoker.model.query import (
    KINDS_BEHIND,
    Cancel,
    Clone,
    Discard,
    Expired,
    Query,
    Requeue,
    Retention,
    Selection,
    Sweep,
)
from stoker.model.stats import BY_KIND
from stoker.model.time import DAY, HOUR, MINUTE, SECOND, Span
from stoker.testing.conformance.harness import Store


async def _ended(store: Store, outcome: Outcome, **options: Any) -> JobId:
    job = await store.add(**options)
    claim = await store.take(queue=options.get("queue", "default"))
    assert claim.id == job
    await store.finish(claim, outcome)
    return job


async def _expire(store: Store, **retention: Any) -> Expired:
    return await store.engine.operator.expire(Retention(**retention))


async def _lives_for(store: Store, job: JobId, keep: Span) -> None:
    """Check that the job is kept through its last microsecond and gone in the next."""
    record = await store.job(job)
    assert record.finished_at is not None
    assert record.expires_at == record.finished_at + keep
    store.clock.set(record.expires_at)
    await _expire(store)
    assert not await store.gone(job)
    store.pass_time(1)
    assert (await _expire(store)).jobs == 1
    assert await store.gone(job)


@pytest.mark.core
@pytest.mark.spec("EXPIRE-01")
async def test_expire_with_nothing_to_do_answers_zeros(store: Store) -> None:
    """An empty store and a store of young things lose nothing."""
    assert await _expire(store) == Expired()
    await _ended(store, Done())
    await store.engine.control.lock("l", "me", HOUR)
    await store.engine.control.beat(Presence(worker="w", host="h", pid=1, queues={}))
    at = store.now()
    await store.engine.timeline.record(
        [Event(at, EventType.STARTED, store.mint(), "q", "k")], [Point("q", "m", at, 1)], now=at
    )
    assert await _expire(store) == Expired()


@pytest.mark.core
@pytest.mark.spec("EXPIRE-02")
async def test_expire_removes_done_jobs_after_their_time(store: Store) -> None:
    """A job that is done stays for the engine's time unless its queue or itself sets another, to the microsecond."""
    await _lives_for(store, await _ended(store, Done()), store.engine.keep_done)


@pytest.mark.core
@pytest.mark.spec("EXPIRE-02")
@pytest.mark.parametrize("outcome", [Rejected("no"), Canceled()], ids=["dead", "canceled"])
async def test_expire_removes_dead_and_canceled_jobs_after_theirs(store: Store, outcome: Outcome) -> None:
    """A job that did not succeed stays thirty days."""
    await _lives_for(store, await _ended(store, outcome), KEEP_DEAD)


@pytest.mark.spec("EXPIRE-02")
async def test_expire_removes_what_operators_ended(store: Store) -> None:
    """Canceled, discarded and cloned jobs go as well when their time is over, and the clone stays."""
    canceled = await store.add(queue="x", delay=HOUR)
    discarded, retried = [await _ended(store, Rejected("no")) for _ in range(2)]
    clone = store.mint()
    await store.engine.operator.alter(Selection((canceled,)), Cancel())
    await store.engine.operator.alter(Selection((discarded,)), Discard())
    await store.engine.operator.alter(Selection((retried,)), Clone((clone,)))
    store.pass_time(KEEP_DEAD + 1)
    assert (await _expire(store)).jobs == 3
    assert await store.engine.operator.get([canceled, discarded, retried]) == [None, None, None]
    assert await store.counts() == {Status.PENDING: 1}


@pytest.mark.core
@pytest.mark.spec("EXPIRE-03")
async def test_expire_follows_the_queue(store: Store) -> None:
    """A queue's own retention counts for jobs that finish in it, and for no other queue."""
    await store.engine.control.tune("short", Tuning(keep_done=MINUTE, keep_dead=2 * MINUTE))
    done, dead = await _ended(store, Done(), queue="short"), await _ended(store, Rejected("no"), queue="short")
    elsewhere = await _ended(store, Done())
    await _lives_for(store, done, MINUTE)
    await _lives_for(store, dead, 2 * MINUTE)
    assert not await store.gone(elsewhere)


@pytest.mark.spec("EXPIRE-03")
async def test_expire_of_a_queue_that_keeps_nothing(store: Store) -> None:
    """A retention of zero makes finished jobs go as soon as any time has passed."""
    await store.engine.control.tune("none", Tuning(keep_done=0, keep_dead=0))
    await _lives_for(store, await _ended(store, Done(), queue="none"), 0)
    await _lives_for(store, await _ended(store, Rejected("no"), queue="none"), 0)


@pytest.mark.core
@pytest.mark.spec("EXPIRE-04")
async def test_expire_follows_the_jobs_own_wish(store: Store) -> None:
    """`keep` of the job goes before the queue's, longer or shorter, but only for success."""
    await store.engine.control.tune("default", Tuning(keep_done=DAY, keep_dead=2 * DAY))
    await _lives_for(store, await _ended(store, Done(), options=Options(keep=SECOND)), SECOND)
    await _lives_for(store, await _ended(store, Done(), options=Options(keep=3 * DAY)), 3 * DAY)
    await _lives_for(store, await _ended(store, Rejected("no"), options=Options(keep=SECOND)), 2 * DAY)


@pytest.mark.core
@pytest.mark.spec("EXPIRE-05")
async def test_expire_takes_the_events_along(store: Store) -> None:
    """Young events of an expired job go with it, but still count; those of others stay."""
    gone, kept = await _ended(store, Done(), options=Options(keep=1)), await store.add()
    store.pass_time(HOUR)
    at = store.now()
    await store.engine.timeline.record(
        [Event(at, EventType.COMPLETED, job, "default", "work") for job in (gone, kept)], now=at
    )
    assert (await _expire(store)).jobs == 1
    assert [event.job for event in await store.engine.timeline.events(Window(at, at + 1))] == [kept]
    assert await store.engine.timeline.event_counts(at, at + 1) == [
        EventCount("default", EventType.COMPLETED, 2, "work")
    ]
    await store.engine.timeline.record([Event(at, EventType.COMPLETED, gone, "default", "work")], now=at)
    assert [event.job for event in await store.engine.timeline.events(Window(at, at + 1))] == [kept, gone], (
        "what a process tells later of a job that is kept for no time"
    )


@pytest.mark.core
@pytest.mark.spec("EXPIRE-06")
async def test_expire_removes_no_more_than_its_limit(store: Store) -> None:
    """A call removes up to `limit` jobs; the rest waits for the next calls."""
    for _ in range(5):
        await _ended(store, Done())
    store.pass_time(store.engine.keep_done + 1)
    assert [(await _expire(store, limit=2)).jobs for _ in range(4)] == [2, 2, 1, 0]
    assert await store.counts() == {}


@pytest.mark.core
@pytest.mark.spec("EXPIRE-07")
async def test_expire_never_touches_active_jobs(store: Store) -> None:
    """Pending, scheduled, running and retrying jobs stay, however old they are."""
    await store.engine.control.tune("default", Tuning(keep_done=0, keep_dead=0))
    ready, retrying, running = await store.insert(store.draft(priority=9), store.draft(), store.draft())
    later = await store.add(delay=900 * DAY, options=Options(keep=1))
    await store.finish(await store.take(), Failed("again", after=SECOND))
    await store.take()
    store.pass_time(800 * DAY)
    assert (await _expire(store, finished=0)).jobs == 0
    found = [await store.status(job) for job in (ready, retrying, running, later)]
    assert found == [Status.PENDING, Status.RETRYING, Status.RUNNING, Status.PENDING]


@pytest.mark.core
@pytest.mark.spec("EXPIRE-08")
async def test_expire_does_not_remember_the_expiry_of_a_former_life(store: Store) -> None:
    """A requeued job is not removed when the expiry of its earlier end comes, whatever it does by then."""
    job = await _ended(store, Rejected("no"))
    await store.engine.operator.alter(Selection((job,)), Requeue())
    store.pass_time(KEEP_DEAD + HOUR)
    assert (await _expire(store)).jobs == 0
    claim = await store.take()
    assert (await _expire(store)).jobs == 0
    await store.finish(claim, Done())
    assert (await _expire(store)).jobs == 0
    await _lives_for(store, job, store.engine.keep_done)


@pytest.mark.spec("EXPIRE-09")
async def test_expire_bounds_the_number_of_finished_jobs(store: Store) -> None:
    """With a bound the finished jobs nearest to their expiry go before it; active ones neither count nor go."""
    finished = []
    for n in range(5):
        finished.append(await _ended(store, Rejected("no") if n % 2 else Done()))
        store.pass_time(SECOND)
    active = await store.add()
    assert (await _expire(store, finished=2)).jobs == 3
    left = [job.id for job in (await store.engine.operator.find(Query(order="oldest"))).jobs]
    assert left == [finished[1], finished[3], active], "what failed is kept for longer than what is done"
    assert (await _expire(store, finished=2)).jobs == 0


@pytest.mark.core
@pytest.mark.spec("EXPIRE-10")
async def test_expire_removes_lapsed_locks(store: Store) -> None:
    """A named lock whose time is over is swept and counted; one that is held stays."""
    await store.engine.control.lock("short", "a", SECOND)
    await store.engine.control.lock("long", "a", HOUR)
    store.pass_time(SECOND + 1)
    assert (await _expire(store)).locks == 1
    assert not await store.engine.control.lock("long", "b", HOUR)
    assert not await store.engine.control.unlock("short", "a")
    assert (await _expire(store)).locks == 0


@pytest.mark.core
@pytest.mark.spec("EXPIRE-11")
async def test_expire_removes_presences_that_fell_silent(store: Store) -> None:
    """A worker that did not show itself for the time given disappears from the list."""
    for worker in ("silent", "alive"):
        await store.engine.control.beat(Presence(worker=worker, host="h", pid=1, queues={"q": 1}))
    store.pass_time(50 * SECOND)
    await store.engine.control.beat(Presence(worker="alive", host="h", pid=1, queues={"q": 1}))
    assert (await _expire(store)).presences == 0
    store.pass_time(11 * SECOND)
    assert (await _expire(store, presences=MINUTE)).presences == 1
    assert [presence.worker for presence in await store.engine.control.workers()] == ["alive"]


@pytest.mark.core
@pytest.mark.spec("EXPIRE-12")
async def test_expire_removes_old_events_and_points(store: Store) -> None:
    """Events and points older than the time given go, younger ones stay, each by its own limit."""
    start = store.now()
    job = await store.add()
    await store.engine.timeline.record(
        [Event(start + n * DAY, EventType.STARTED, job, "default", "work") for n in range(4)],
        [Point("default", "m", start + n * DAY, n) for n in range(4)],
        now=start,
    )
    store.pass_time(4 * DAY)
    swept = await _expire(store, events=2 * DAY + HOUR, points=3 * DAY + HOUR)
    assert (swept.events, swept.points, swept.jobs) == (2, 1, 0)
    events = await store.engine.timeline.events(Window(start, start + 9 * DAY))
    points = await store.engine.timeline.points(start, start + 9 * DAY, ["m"])
    assert [event.at for event in events] == [start + 2 * DAY, start + 3 * DAY]
    assert [point.count for point in points] == [1, 2, 3]


@pytest.mark.core
@pytest.mark.spec("EXPIRE-15")
async def test_points_of_kinds_go_sooner(store: Store) -> None:
    """After a day, those of queues stay; a call looks only a little behind, and finds the rest with all points."""
    start = store.now() // MINUTE * MINUTE
    queue = [Point("q", "completed", start + n * MINUTE, 1) for n in range(4)]
    kinds = [Point("k", metric, start + n * MINUTE, 2) for n in range(4) for metric in BY_KIND]
    await store.engine.timeline.record([], [*queue, *kinds], now=store.now())

    async def left() -> list[int]:
        points = await store.engine.timeline.points(start, start + HOUR, [*BY_KIND, "completed"])
        assert [one for one in points if one.queue == "q"] == queue
        return sorted({(one.bucket - start) // MINUTE for one in points if one.queue == "k"})

    store.clock.set(start + DAY)
    assert (await _expire(store)).points == 0
    assert await left() == [0, 1, 2, 3]
    store.clock.set(start + DAY + 2 * MINUTE)
    assert (await _expire(store)).points == 2 * len(BY_KIND)
    assert await left() == [2, 3]
    store.clock.set(start + DAY + KINDS_BEHIND + 3 * MINUTE)
    assert (await _expire(store)).points == len(BY_KIND)
    assert await left() == [2], "it was not cleaned for long"
    store.clock.set(start + 31 * DAY)
    assert (await _expire(store)).points == len(queue) + len(BY_KIND)


@pytest.mark.spec("EXPIRE-13")
async def test_expire_keeps_no_more_finished_jobs_than_the_history(store: Store) -> None:
    """With `history` so many finished jobs stay, by age and not by status; twins know it, and active jobs never go."""
    ended = []
    for n in range(6):
        ended.append(await _ended(store, Rejected("no") if n == 0 else Done()))
        store.pass_time(SECOND)
    active = await store.add()
    store.engine.history = 3
    await _expire(store)
    left = [job.id for job in (await store.engine.operator.find(Query(order="oldest"))).jobs]
    assert left == [ended[0], *ended[-2:], active], (
        "what is done goes first, oldest first: dead jobs stay for operators"
    )
    twin = store.engine.for_loop()
    assert twin.history == 3
    store.engine.history = 2
    assert (await _expire(store, finished=5)).jobs == 1, "the lower bound counts"
    assert (await _expire(store, finished=0)).jobs == 2
    assert await store.counts() == {Status.PENDING: 1}


async def _outdated(store: Store) -> Expired:
    """Leave one thing for each sweep."""
    start = store.now()
    await _ended(store, Done())
    other = await store.add(queue="other")
    await store.engine.timeline.record(
        [Event(start, EventType.STARTED, other, "default", "work")],
        [Point("default", "m", start, 1)],
        now=start,
    )
    await store.engine.control.beat(Presence(worker="silent", host="h", pid=1, queues={}))
    await store.engine.control.lock("lapsed", "me", SECOND)
    received = Feature.OUTBOX in store.engine.features
    if received:
        async with store.engine.transaction() as tx:
            await outbox_of(store.engine).receive("inbox", ["1"], keep=SECOND, tx=tx)
    store.pass_time(40 * DAY)
    return Expired(jobs=1, events=1, points=1, presences=1, locks=1, receipts=int(received))


@pytest.mark.core
@pytest.mark.spec("EXPIRE-14")
@pytest.mark.parametrize("sweep", list(Sweep))
async def test_expire_removes_only_what_its_sweeps_name(store: Store, sweep: Sweep) -> None:
    """A sweep alone removes its own and nothing else; the others still find theirs."""
    everything = await _outdated(store)
    alone = await _expire(store, sweeps=frozenset({sweep}))
    expected: dict[str, Any] = {} if sweep is Sweep.LIMITS else {sweep: getattr(everything, sweep)}
    assert alone == Expired(**expected)
    assert await _expire(store, sweeps=frozenset({sweep})) == Expired()
    assert await _expire(store, sweeps=frozenset(Sweep) - {sweep}) + alone == everything
    assert await _expire(store) == Expired()


@pytest.mark.spec("EXPIRE-14")
async def test_expire_without_sweeps_removes_nothing(store: Store) -> None:
    """The empty case."""
    everything = await _outdated(store)
    assert await _expire(store, sweeps=frozenset()) == Expired()
    assert await _expire(store) == everything
