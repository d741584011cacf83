"""Claim: due jobs go to workers, in order, each to one worker only."""

from __future__ import annotations

import pytest

from stoker.engines.base import LEASE, ORPHANED_AFTER
from stoker.model.control import Tuning
from stoker.model.ids import JobId
from stoker.model.job import Claim, Demand, Options, Status, Verdict
from stoker.model.lifecycle import conclude
from stoker.model.outcome import Canceled, Crashed, Done, Failed, HandedBack, Rejected, Snoozed, Throttled
from stoker.model.query import Cancel, Requeue, RunNow, Selection
from stoker.model.retry import Curve, Fixed
from stoker.model.time import DAY, HOUR, MINUTE, SECOND
from stoker.model.unique import Unique
from stoker.testing.conformance.harness import Store


def _ids(claims: list[Claim]) -> list[JobId]:
    return [claim.id for claim in claims]


async def _demand(store: Store, *queues: tuple[str, int], total: int | None = None, worker: str = "w1") -> list[Claim]:
    """Claim from several queues, with a live lease."""
    await store.enlist(worker)
    return await store.engine.jobs.claim(Demand(worker, queues, total))


# --- order --------------------------------------------------------------------------------------------------------


@pytest.mark.core
@pytest.mark.spec("CLAIM-01")
async def test_lower_priority_numbers_go_first(store: Store) -> None:
    """Priority beats every other order, over its whole range."""
    drafts = [store.draft(priority=priority) for priority in (0, 1000, -1, 5, -1000)]
    await store.insert(*drafts)
    expected = sorted(drafts, key=lambda draft: draft.priority)
    assert _ids(await store.claim(n=10)) == [draft.job_id for draft in expected]


@pytest.mark.core
@pytest.mark.spec("CLAIM-01")
async def test_within_a_priority_the_earlier_schedule_goes_first(store: Store) -> None:
    """Of two due jobs of one priority the one that was due earlier is handed out first."""
    now = store.now()
    late, early, middle = await store.insert(
        store.draft(at=now), store.draft(at=now - HOUR), store.draft(at=now - MINUTE)
    )
    assert _ids(await store.claim(n=10)) == [early, middle, late]


@pytest.mark.spec("CLAIM-01")
async def test_equal_schedules_go_by_id(store: Store) -> None:
    """When all else is equal the smaller id goes first, whatever order they were inserted in."""
    drafts = [store.draft() for _ in range(6)]
    await store.insert(*reversed(drafts))
    assert _ids(await store.claim(n=10)) == [draft.job_id for draft in drafts]


@pytest.mark.core
@pytest.mark.spec("CLAIM-01")
async def test_jobs_enqueued_one_after_another_are_claimed_in_that_order(store: Store) -> None:
    """Plain jobs come out first in, first out, also when the clock does not move in between."""
    ids = [await store.add() for _ in range(20)]
    taken = [(await store.take()).id for _ in range(20)]
    assert taken == ids


@pytest.mark.spec("CLAIM-01")
async def test_the_whole_order_at_once(store: Store) -> None:
    """Priority, then schedule, then id, in one batch and one by one alike."""
    now = store.now()
    drafts = [
        store.draft(priority=priority, at=now - age)
        for priority in (1, 0, -1)
        for age in (0, SECOND, MINUTE)
        for _ in range(2)
    ]
    await store.insert(*drafts)
    expected = [draft.job_id for draft in sorted(drafts, key=lambda draft: (draft.priority, draft.at, draft.job_id))]
    assert _ids(await store.claim(n=7)) == expected[:7]
    assert [(await store.take()).id for _ in range(11)] == expected[7:]


@pytest.mark.spec("CLAIM-02")
async def test_a_retry_waits_behind_jobs_that_were_due_earlier(store: Store) -> None:
    """A retry keeps its id, but its later schedule puts it behind its younger siblings."""
    first = await store.add()
    claim = await store.take()
    second = await store.add()
    await store.finish(claim, Failed("boom", after=SECOND))
    store.pass_time(SECOND)
    assert _ids(await store.claim(n=10)) == [second, first]


# --- which jobs -----------------------------------------------------------------------------------------------------


@pytest.mark.core
@pytest.mark.spec("CLAIM-03")
async def test_a_job_is_due_exactly_at_its_time(store: Store) -> None:
    """One microsecond early gets nothing; the very instant gets the job."""
    job = await store.add(delay=MINUTE)
    store.pass_time(MINUTE - 1)
    assert await store.claim() == []
    store.pass_time(1)
    assert _ids(await store.claim()) == [job]


@pytest.mark.spec("CLAIM-03")
async def test_a_job_of_the_future_does_not_hide_one_that_is_due(store: Store) -> None:
    """The most urgent priority does not help a job that is not due, nor hinder one that is."""
    await store.add(priority=-1000, delay=HOUR)
    due = await store.add(priority=1000)
    assert _ids(await store.claim(n=10)) == [due]
    assert await store.claim(n=10) == []


@pytest.mark.core
@pytest.mark.spec("CLAIM-04")
async def test_a_retrying_job_is_claimed_when_it_is_due(store: Store) -> None:
    """A job that waits for its retry is claimable at its time, without a step that promotes it first."""
    job = await store.add()
    await store.finish(await store.take(), Failed("boom", after=10 * SECOND))
    store.pass_time(10 * SECOND - 1)
    assert await store.claim() == []
    store.pass_time(1)
    claim = await store.take()
    assert (claim.id, claim.attempt) == (job, 2)
    assert await store.finish(claim, Done()) is Verdict.APPLIED


@pytest.mark.spec("CLAIM-04")
@pytest.mark.parametrize("status", [Status.RUNNING, Status.DONE, Status.DEAD, Status.CANCELED])
async def test_no_other_status_is_ever_handed_out(store: Store, status: Status) -> None:
    """A running or finished job is not claimable, however much time passes."""
    job = await store.add()
    if status is Status.CANCELED:
        await store.engine.operator.alter(Selection((job,)), Cancel())
    else:
        claim = await store.take()
        if status is Status.DONE:
            await store.finish(claim, Done())
        elif status is Status.DEAD:
            await store.finish(claim, Rejected("no"))
    assert await store.status(job) is status
    for _ in range(3):
        assert await store.claim("w2", 10) == []
        store.pass_time(DAY)


@pytest.mark.spec("CLAIM-05")
async def test_only_demanded_queues_are_served(store: Store) -> None:
    """A worker never gets a job of a queue it did not ask for."""
    mail = await store.add(queue="mail")
    await store.add(queue="media")
    assert _ids(await _demand(store, ("mail", 10), ("nowhere", 10))) == [mail]
    assert await store.counts("media") == {Status.PENDING: 1}


@pytest.mark.spec("CLAIM-05")
async def test_queue_names_are_compared_exactly(store: Store) -> None:
    """Names that differ only in case, or where one starts with the other, are different queues."""
    await store.insert(*(store.draft(queue=name) for name in ("Mail", "mail.eu", "mai", "mail_eu")))
    assert await _demand(store, ("mail", 10)) == []
    assert len(await _demand(store, ("mail.eu", 10))) == 1


@pytest.mark.core
@pytest.mark.spec("CLAIM-06")
async def test_each_queue_gives_at_most_its_number(store: Store) -> None:
    """The limit counts per queue, and the rest stays pending."""
    await store.insert(*(store.draft(queue=queue) for queue in ("a", "b") for _ in range(5)))
    claims = await _demand(store, ("a", 2), ("b", 3))
    assert [claim.queue for claim in claims] == ["a", "a", "b", "b", "b"]
    assert await store.counts() == {Status.PENDING: 5, Status.RUNNING: 5}


@pytest.mark.spec("CLAIM-06")
async def test_the_total_limits_all_queues_together(store: Store) -> None:
    """Queues are served as demanded until the total is reached."""
    await store.insert(*(store.draft(queue=queue) for queue in ("a", "b", "c") for _ in range(3)))
    claims = await _demand(store, ("b", 2), ("a", 3), ("c", 3), total=4)
    assert [claim.queue for claim in claims] == ["b", "b", "a", "a"]


@pytest.mark.spec("CLAIM-06")
async def test_the_total_is_not_spent_on_empty_queues(store: Store) -> None:
    """What an earlier queue does not have is left for the later ones."""
    await store.insert(*(store.draft(queue="b") for _ in range(3)))
    assert len(await _demand(store, ("a", 2), ("b", 3), total=3)) == 3


@pytest.mark.spec("CLAIM-06")
async def test_queues_come_in_the_order_of_the_demand(store: Store) -> None:
    """The first queue named goes first, even if another one has more urgent jobs."""
    await store.insert(store.draft(queue="a", priority=-1000), store.draft(queue="b", priority=1000))
    assert [claim.queue for claim in await _demand(store, ("b", 1), ("a", 1))] == ["b", "a"]


@pytest.mark.spec("CLAIM-06")
async def test_asking_for_nothing_gets_nothing(store: Store) -> None:
    """No queues, a number of zero and a total of zero all return an empty list."""
    await store.add()
    assert await _demand(store) == []
    assert await _demand(store, ("default", 0)) == []
    assert await _demand(store, ("default", 5), total=0) == []
    assert await store.counts() == {Status.PENDING: 1}


@pytest.mark.spec("CLAIM-07")
async def test_a_paused_queue_hands_out_nothing(store: Store) -> None:
    """Pausing keeps the jobs pending, other queues go on, and resuming hands them out."""
    job, other = await store.insert(store.draft(), store.draft(queue="other"))
    await store.engine.control.tune("default", Tuning(paused=True))
    assert _ids(await _demand(store, ("default", 5), ("other", 5))) == [other]
    assert await store.status(job) is Status.PENDING
    await store.engine.control.tune("default", Tuning(paused=False))
    assert _ids(await store.claim()) == [job]


@pytest.mark.spec("CLAIM-08")
async def test_a_saturated_queue_does_not_delay_another(store: Store) -> None:
    """A crowd in one queue is no reason to leave another one's job waiting."""
    await store.insert(*(store.draft(queue="crowd") for _ in range(50)))
    lone = await store.add(queue="lone")
    claims = await _demand(store, ("crowd", 1), ("lone", 1))
    assert claims[-1].id == lone


@pytest.mark.spec("CLAIM-08")
async def test_a_dead_job_does_not_block_its_queue(store: Store) -> None:
    """A job that failed for good is out of the way of those behind it."""
    poison, healthy = await store.insert(store.draft(priority=-1, attempts=1), store.draft())
    await store.finish(await store.take(), Failed("poison"))
    assert await store.status(poison) is Status.DEAD
    assert (await store.take()).id == healthy


# --- what a claim does and holds ------------------------------------------------------------------------------------


@pytest.mark.core
@pytest.mark.spec("CLAIM-09")
async def test_a_claimed_job_runs_under_its_worker(store: Store) -> None:
    """When the call returns the record is running, with owner, token, start and one more attempt."""
    job = await store.add()
    store.pass_time(SECOND)
    claim = await store.take("w1")
    record = await store.job(job)
    assert (record.status, record.worker, record.token) == (Status.RUNNING, "w1", claim.token)
    assert (record.attempts, record.started_at, record.finished_at) == (1, store.now(), None)
    assert (claim.worker, claim.attempt, claim.claimed_at) == ("w1", 1, store.now())
    assert claim.token >= store.now()
    assert await store.counts() == {Status.RUNNING: 1}


@pytest.mark.spec("CLAIM-09", "ATTEMPT-01")
async def test_every_claim_counts_one_start(store: Store) -> None:
    """Attempts are starts: one, two, three, as the handler sees them."""
    job = await store.add()
    for attempt in (1, 2, 3):
        claim = await store.take()
        assert claim.attempt == (await store.job(job)).attempts == attempt
        await store.finish(claim, Failed("boom", after=0))
    assert (await store.job(job)).attempts == 3


@pytest.mark.core
@pytest.mark.spec("CLAIM-10")
async def test_a_claim_tells_everything_about_a_fresh_job(store: Store) -> None:
    """Kind, queue, payload, budget, times, priority, options, key and tenant come with the claim."""
    options = Options(Fixed(2), MINUTE, HOUR, DAY, {"a": "b"}, "process")
    draft = store.draft(
        "mail.send",
        payload=b'{"to":"a"}',
        queue="mail",
        priority=-7,
        attempts=4,
        unique=Unique("k", store.scope, "raise", "retrying"),
        tenant="acme",
        options=options,
    )
    await store.insert(draft)
    inserted = store.now()
    store.pass_time(SECOND)
    claim = await store.take(queue="mail")
    assert (claim.id, claim.kind, claim.queue, claim.payload) == (draft.job_id, "mail.send", "mail", b'{"to":"a"}')
    assert (claim.attempt, claim.base, claim.budget, claim.priority) == (1, 0, 4, -7)
    assert (claim.created_at, claim.scheduled_at, claim.claimed_at) == (inserted, inserted, store.now())
    assert (claim.options, claim.unique, claim.tenant) == (options, draft.unique, "acme")
    assert (claim.crashes, claim.throttles, claim.last_error, claim.cancel_requested) == (0, 0, None, False)
    assert (claim.former, claim.former_at) == (None, None)


@pytest.mark.spec("CLAIM-10")
async def test_a_claim_tells_what_earlier_runs_left_behind(store: Store) -> None:
    """Crashes, throttles, the last error and noted metadata of earlier runs are in the hands of the next one."""
    job = await store.add(attempts=9)
    await store.finish(await store.take(), Crashed("signal 9"))
    store.pass_time(HOUR)
    await store.finish(await store.take(), Throttled(SECOND, queue=False))
    store.pass_time(HOUR)
    claim = await store.take()
    await store.settle(conclude(claim, Failed("not yet", after=0), metadata={"page": "7"}))
    claim = await store.take()
    assert (claim.id, claim.crashes, claim.throttles, claim.last_error) == (job, 1, 1, "not yet")
    assert (claim.metadata or {})["page"] == "7"
    assert claim.attempt == 3


@pytest.mark.spec("CLAIM-10")
async def test_a_claim_tells_the_previous_error(store: Store) -> None:
    """A retried handler can see why the run before it failed, and a first run sees nothing."""
    await store.add()
    claim = await store.take()
    assert claim.last_error is None
    await store.finish(claim, Failed("first reason", after=0))
    claim = await store.take()
    assert claim.last_error == "first reason"
    await store.finish(claim, Failed("second reason", after=0))
    assert (await store.take()).last_error == "second reason"


@pytest.mark.spec("CLAIM-10")
async def test_a_claim_tells_the_queues_curve_and_throttle_count(store: Store) -> None:
    """The queue's failure curve and its count of limiter events come with the claim."""
    curve = Curve(on=True, base=2 * SECOND, max=MINUTE)
    await store.engine.control.tune("default", Tuning(curve=curve))
    await store.add()
    claim = await store.take()
    assert (claim.curve, claim.cool_count) == (curve, 0)
    await store.finish(claim, Throttled())
    store.pass_time(HOUR)
    claim = await store.take()
    assert (claim.curve, claim.cool_count) == (curve, 1)


@pytest.mark.spec("CLAIM-11")
async def test_a_claim_leaves_payload_error_and_history_alone(store: Store) -> None:
    """Taking a retry changes nothing of what earlier runs recorded."""
    job = await store.add(payload=b"[1.50]")
    await store.finish(await store.take(), Failed("boom", after=0))
    before = await store.job(job)
    await store.take()
    after = await store.job(job)
    assert (after.payload, after.last_error, after.history) == (b"[1.50]", "boom", before.history)
    assert (after.created_at, after.scheduled_at) == (before.created_at, before.scheduled_at)


@pytest.mark.spec("CLAIM-12")
async def test_a_cancel_of_an_earlier_life_does_not_stop_the_next_run(store: Store) -> None:
    """A requeued job starts with a clean flag: it is not canceled, and it may fail and retry."""
    job = await store.add()
    claim = await store.take()
    await store.engine.operator.alter(Selection((job,)), Cancel())
    assert await store.finish(claim, Canceled()) is Verdict.APPLIED
    assert (await store.engine.operator.alter(Selection((job,)), Requeue())).changed == 1
    claim = await store.take()
    assert not claim.cancel_requested
    assert not (await store.job(job)).cancel_requested
    assert (await store.engine.jobs.renew("w1", [(job, claim.token)])).canceling == []
    assert await store.finish(claim, Failed("boom", after=0)) is Verdict.APPLIED
    assert await store.status(job) is Status.RETRYING


# --- who ------------------------------------------------------------------------------------------------------------


@pytest.mark.core
@pytest.mark.spec("CLAIM-13")
async def test_two_workers_share_the_jobs_but_never_a_job(store: Store) -> None:
    """Two workers draining a queue in turns get every job once."""
    ids = await store.insert(*(store.draft() for _ in range(20)))
    taken: list[JobId] = []
    while claims := await store.claim("w1", 3) + await store.claim("w2", 2):
        taken += _ids(claims)
    assert sorted(taken) == sorted(ids)


@pytest.mark.core
@pytest.mark.spec("CLAIM-14")
async def test_a_worker_without_a_lease_gets_nothing(store: Store) -> None:
    """A worker the store never saw is handed no job, and the jobs stay as they are."""
    job = await store.add()
    before = await store.snapshot([job])
    assert await store.engine.jobs.claim(Demand("stranger", (("default", 5),))) == []
    assert await store.snapshot([job]) == before


@pytest.mark.spec("CLAIM-14")
async def test_a_worker_with_a_lapsed_lease_gets_nothing_until_it_renews(store: Store) -> None:
    """A lease is good up to its very end; after it the worker must renew before it takes more."""
    await store.insert(store.draft(), store.draft(), store.draft())
    await store.enlist("w1")
    demand = Demand("w1", (("default", 1),))
    store.pass_time(LEASE)
    assert len(await store.engine.jobs.claim(demand)) == 1
    store.pass_time(1)
    assert await store.engine.jobs.claim(demand) == []
    assert (await store.engine.jobs.renew("w1", [])).known
    assert len(await store.engine.jobs.claim(demand)) == 1


@pytest.mark.spec("CLAIM-15")
async def test_one_worker_may_hold_many_jobs(store: Store) -> None:
    """Claims add up; each has its own life."""
    await store.insert(*(store.draft() for _ in range(4)))
    held = await store.claim("w1", 2) + await store.claim("w1", 2)
    assert len({claim.id for claim in held}) == 4
    await store.finish(held[2], Done())
    assert await store.counts() == {Status.RUNNING: 3, Status.DONE: 1}


@pytest.mark.spec("CLAIM-16")
async def test_a_job_handed_back_is_claimable_at_once(store: Store) -> None:
    """What one worker gives back another takes at the same instant, as its first attempt."""
    job = await store.add()
    await store.finish(await store.take("w1"), HandedBack())
    claim = await store.take("w2")
    assert (claim.id, claim.attempt, claim.worker) == (job, 1, "w2")


@pytest.mark.spec("CLAIM-16")
async def test_a_snoozed_job_made_due_is_claimable_at_once(store: Store) -> None:
    """An operator's run-now shortens a snooze; the next claim has a higher token."""
    job = await store.add()
    first = await store.take()
    await store.finish(first, Snoozed(HOUR))
    assert await store.claim() == []
    assert (await store.engine.operator.alter(Selection((job,)), RunNow())).changed == 1
    assert (await store.take()).token > first.token


@pytest.mark.core
@pytest.mark.spec("CLAIM-17")
async def test_a_claim_carries_the_status_the_job_had(store: Store) -> None:
    """Pending after an insert, a snooze and a requeue, retrying after a failure, running when it changed hands."""
    job = await store.add()
    before = [(claim := await store.take()).before]
    await store.finish(claim, Failed("boom", after=0))
    before.append((claim := await store.take()).before)
    await store.finish(claim, Snoozed(0))
    before.append((claim := await store.take()).before)
    await store.finish(claim, Rejected("no"))
    await store.engine.operator.alter(Selection((job,)), Requeue())
    before.append((claim := await store.take()).before)
    store.pass_time(ORPHANED_AFTER + 1)
    [orphan] = (await store.engine.jobs.renew(claim.worker, [])).orphaned
    before.append(orphan.before)
    await store.enlist("w2")
    [reaped] = await store.engine.jobs.reap("w2", 1, dead=[claim.worker])
    before.append(reaped.before)
    pending, retrying, running = Status.PENDING, Status.RETRYING, Status.RUNNING
    assert before == [pending, retrying, pending, pending, running, running]
