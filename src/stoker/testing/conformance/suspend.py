"""Suspensions: a run that only waits ends, and its job is pending until what it waits for is there."""

from __future__ import annotations

import msgspec
import pytest

from stoker.engines.base import LEASE, Feature
from stoker.model.control import Tuning
from stoker.model.errors import InvalidInput
from stoker.model.ids import JobId
from stoker.model.job import Demand, Options, Settlement, Status, Stored, Verdict
from stoker.model.lifecycle import conclude
from stoker.model.limit import Slot
from stoker.model.next_due import NextDue
from stoker.model.outcome import Crashed, Done, Failed, Snoozed, Suspended
from stoker.model.query import Cancel, Delete, Due, Move, Order, Query, Requeue, Restore, RunNow, Selection
from stoker.model.steps import NEVER, Step, StepState, Wakes, told
from stoker.model.time import DAY, HOUR, SECOND
from stoker.model.unique import Unique
from stoker.testing.conformance.harness import QUEUE, Store, needs
from stoker.testing.conformance.step_helpers import calls, rows, save, signal, suspend, values, wait


@pytest.mark.spec("STEP-36")
@pytest.mark.parametrize("order", ["newest", "due"])
async def test_waiting_jobs_are_found(store: Store, order: Order) -> None:
    """Those whose last run was suspended and that are not due; a list of scheduled jobs leaves them out."""
    waits, sleeps, snoozes, later = [await store.add() for _ in range(3)] + [await store.add(delay=HOUR)]
    await store.add()
    for job in (waits, sleeps, snoozes):
        claim = await store.take()
        assert claim.id == job
        if job == snoozes:
            await store.finish(claim, Snoozed(HOUR))
        else:
            until = None if job == waits else store.now() + HOUR
            await suspend(store, claim, wait("go", until), after=None if until is None else HOUR)

    async def found(due: Due) -> set[JobId]:
        page = await store.engine.operator.find(Query(statuses=frozenset({Status.PENDING}), due=due, order=order))
        return {one.id for one in page.jobs}

    assert await found("waiting") == {waits, sleeps}
    assert await found("later") == {snoozes, later}
    store.pass_time(HOUR)
    assert await found("waiting") == {waits}
    assert await signal(store, waits) == "taken"
    assert await found("waiting") == set()


@pytest.mark.core
@pytest.mark.spec("STEP-46")
async def test_jobs_that_ask_are_found_by_their_rows(store: Store) -> None:
    """Largest id first, page by page; sleeps and answered waits are none, and rows go with their job."""
    question, failure = told(ask="May we?"), told(kind="OSError", error="no", tries=1)
    jobs = sorted([await store.add() for _ in range(8)])
    claims = {claim.id: claim for claim in [await store.take() for _ in jobs]}
    for place, job in enumerate(jobs):
        waits = [wait("go", None, question), wait("also", None, question)][: place % 3]
        rows = waits or [wait("nap", store.now() + HOUR), wait("deliver", store.now() + HOUR, failure)]
        assert await suspend(store, claims[job], Step("reserve", value=b"1"), *rows) is Verdict.APPLIED
    asking = [job for place, job in enumerate(jobs) if place % 3][::-1]
    assert await store.engine.steps.asking() == asking
    assert await store.engine.steps.asking(limit=2) == asking[:2]
    assert await store.engine.steps.asking(before=asking[1], limit=2) == asking[2:4]
    assert await store.engine.steps.asking(before=asking[-1]) == []
    one, both = asking[-1], asking[-2]
    assert await signal(store, one) == "taken"
    assert await signal(store, both) == "taken"
    assert await store.engine.steps.asking() == asking[:-1], "one of two questions is open"
    await store.engine.operator.alter(Selection((asking[0],)), Cancel())
    assert await store.engine.steps.asking() == asking[:-1], "whether a job goes on is for others to ask"
    await store.engine.operator.alter(Selection((asking[0],)), Delete())
    assert await store.engine.steps.asking() == asking[1:-1]


@pytest.mark.core
@pytest.mark.spec("STEP-10")
async def test_a_suspended_job_runs_again_at_its_deadline(store: Store) -> None:
    """It is pending at no cost, holds no claim, and is due when the first of its waits is over."""
    job = await store.add()
    claim = await store.take()
    until = store.now() + HOUR
    steps = (wait("sleep", until, b"null"), wait("go"))
    assert await suspend(store, claim, *steps, after=HOUR) is Verdict.APPLIED
    found = await store.job(job)
    assert (found.status, found.suspended, found.worker, found.scheduled_at) == (Status.PENDING, True, None, until)
    assert (found.attempts, found.base, found.view(store.now())) == (0, 0, "waiting")
    assert await rows(store, job) == {
        "sleep": Step("sleep", StepState.WAITING, b"null", until, claim.token, store.now()),
        "go": Step("go", StepState.WAITING, None, None, claim.token, store.now()),
    }
    assert await store.counts() == {Status.PENDING: 1}
    store.pass_time(HOUR - 1)
    assert await store.claim() == []
    store.pass_time(1)
    again = await store.take()
    assert (again.id, again.attempt, again.fresh) == (job, 1, False)
    assert again.token > claim.token
    assert not (await store.job(job)).suspended


@pytest.mark.core
@pytest.mark.spec("STEP-10")
async def test_without_a_deadline_a_job_is_never_due(store: Store) -> None:
    """No worker is told to look for it."""
    job = await store.add()
    await suspend(store, await store.take())
    assert (await store.job(job)).scheduled_at == NEVER
    assert await store.engine.jobs.ahead([QUEUE]) == NextDue(frozenset({QUEUE}), None)
    store.pass_time(1_000 * DAY)
    assert await store.claim() == []
    await store.add(delay=HOUR)
    assert await store.engine.jobs.ahead([QUEUE]) == NextDue(frozenset({QUEUE}), HOUR)


@pytest.mark.spec("STEP-10")
async def test_a_suspension_begins_the_budget_anew(store: Store) -> None:
    """Failures and deaths before it do not count any more; those behind it do."""
    job = await store.add(attempts=2)
    await store.finish(await store.take(), Crashed("signal 9", shared=True))
    claim = await store.take()
    assert claim.crashes == 1
    await store.finish(claim, Failed("boom", after=0))
    await suspend(store, await store.take(), after=0)
    found = await store.job(job)
    assert (found.attempts, found.base, found.crashes, len(found.history)) == (1, 1, 0, 2)
    claim = await store.take()
    assert (claim.attempt, claim.base, claim.crashes) == (2, 1, 0)
    await store.finish(claim, Failed("boom", after=0))
    claim = await store.take()
    await store.finish(claim, Failed("boom", after=0))
    assert await store.status(job) is Status.DEAD


@pytest.mark.spec("STEP-10")
async def test_suspensions_go_with_other_settlements_and_claims(store: Store) -> None:
    """Each independently of the others; a claim in the same call gets what is due."""
    jobs = await store.insert(*(store.draft() for _ in range(4)))
    claims = {claim.id: claim for claim in await store.claim(n=4)}
    await signal(store, jobs[1])
    settlements = [
        conclude(claims[jobs[0]], Suspended((wait(),))),
        conclude(claims[jobs[1]], Suspended((wait(),))),
        conclude(claims[jobs[2]], Done()),
        conclude(msgspec.structs.replace(claims[jobs[3]], token=1), Suspended((wait(),))),
    ]
    settled = await store.engine.jobs.settle(settlements, demand=Demand("w1", ((QUEUE, 9),)))
    assert settled.verdicts == [Verdict.APPLIED, Verdict.APPLIED, Verdict.APPLIED, Verdict.LOST]
    assert [claim.id for claim in settled.claims] == [jobs[1]]
    assert [list(await rows(store, job)) for job in jobs] == [["go"], ["go"], [], []]
    assert await store.counts() == {Status.PENDING: 1, Status.RUNNING: 2, Status.DONE: 1}


@pytest.mark.core
@pytest.mark.spec("STEP-16")
async def test_a_lost_suspension_stores_nothing(store: Store) -> None:
    """No row, no called job, no group."""
    job = await store.add()
    claim = await store.take()
    store.pass_time(LEASE + 1)
    await store.enlist("w2")
    [new] = await store.engine.jobs.reap("w2", 1)
    call = calls(store, store.draft("kid"))
    lost = await suspend(store, claim, wait(), call.wait, called=call.drafts, groups=(call.group,))
    assert lost is Verdict.LOST
    assert await rows(store, job) == {}
    assert await store.gone(call.drafts[0].job_id)
    assert await store.engine.groups.get([call.group]) == [None]
    assert await store.finish(new, Done()) is Verdict.APPLIED


@pytest.mark.spec("STEP-16")
async def test_a_suspension_that_is_sent_twice_applies_once(store: Store) -> None:
    """Also after the job became due: called jobs are there once."""
    needs(store, Feature.REPEATED)
    job = await store.add()
    claim = await store.take()
    call = calls(store, store.draft("kid", delay=HOUR))
    twice = conclude(claim, Suspended((call.wait, wait()), called=call.drafts, groups=(call.group,)))
    assert await store.settle(twice) == [Verdict.APPLIED]
    assert await store.settle(twice) == [Verdict.REPEATED]
    assert await store.settle(conclude(claim, Done())) == [Verdict.LOST]
    await signal(store, job)
    assert await store.settle(twice) == [Verdict.REPEATED]
    assert await store.counts() == {Status.PENDING: 2}
    [group] = await store.engine.groups.get([call.group])
    assert group is not None
    assert (group.total, group.waiting) == (1, 1)
    assert (await store.take()).id == job


@pytest.mark.core
@pytest.mark.spec("STEP-14")
async def test_a_suspension_that_meets_a_cancel_is_refused(store: Store) -> None:
    """The run concludes again, as canceled; nothing of the suspension is stored."""
    job = await store.add()
    claim = await store.take()
    await store.engine.operator.alter(Selection((job,)), Cancel())
    call = calls(store, store.draft("kid"))
    refused = Suspended((wait(), call.wait), called=call.drafts, groups=(call.group,))
    assert await store.finish(claim, refused) is Verdict.CANCELING
    assert await rows(store, job) == {}
    assert await store.gone(call.drafts[0].job_id)
    asked = msgspec.structs.replace(claim, cancel_requested=True)
    assert await store.finish(asked, refused) is Verdict.APPLIED
    assert await store.status(job) is Status.CANCELED


@pytest.mark.spec("STEP-14")
async def test_a_suspended_job_is_canceled_at_once(store: Store) -> None:
    """Taken back, it waits as before; canceled again and requeued, it runs."""
    job = await store.add()
    await suspend(store, await store.take())
    tally = await store.engine.operator.alter(Selection((job,)), Cancel())
    assert (tally.changed, await store.status(job)) == (1, Status.CANCELED)
    assert await signal(store, job) == "ended"
    await store.engine.operator.alter(Selection((job,)), Restore(tally.former))
    found = await store.job(job)
    assert (found.status, found.suspended, found.scheduled_at) == (Status.PENDING, True, NEVER)
    assert await signal(store, job) == "taken"
    await suspend(store, await store.take(), wait("more"))
    await store.engine.operator.alter(Selection((job,)), Cancel())
    await store.engine.operator.alter(Selection((job,)), Requeue())
    assert (await store.take()).id == job


@pytest.mark.spec("STEP-11")
async def test_a_suspended_job_keeps_its_unique_key(store: Store) -> None:
    """A newer draft does not overwrite what is half done, whatever its mode."""
    job = await store.add(unique=Unique("k"), payload=b"1")
    await suspend(store, await store.take())
    for unique in (Unique("k"), Unique("k", mode="replace")):
        [receipt] = await store.engine.jobs.insert([store.draft(unique=unique, payload=b"2")])
        assert (receipt.id, receipt.stored) == (job, Stored.EXISTING)
    assert (await store.job(job)).payload == b"1"
    await signal(store, job)
    [receipt] = await store.engine.jobs.insert([store.draft(unique=Unique("k", mode="replace"), payload=b"2")])
    assert (receipt.id, receipt.stored) == (job, Stored.EXISTING)
    await store.finish(await store.take(), Done())
    assert (await store.engine.jobs.insert([store.draft(unique=Unique("k"))]))[0].stored is Stored.INSERTED


@pytest.mark.spec("STEP-13")
async def test_a_suspended_job_gives_the_slot_of_its_limit_back(store: Store) -> None:
    """Another job of the key runs meanwhile."""
    first, second = [store.draft(options=Options(limit=Slot("api", "a", 1))) for _ in range(2)]
    await store.insert(first, second)
    await suspend(store, await store.take())
    other = await store.take()
    assert other.id == second.job_id
    await signal(store, first.job_id)
    assert await store.claim() == []
    await store.finish(other, Done())
    assert (await store.take()).id == first.job_id


@pytest.mark.spec("STEP-13")
async def test_a_limit_that_holds_keeps_the_slot_of_a_suspended_job(store: Store) -> None:
    """Until the job ends, is canceled or moved; without its slot it runs again, since it may have been woken."""
    slot = Options(limit=Slot("line", "a", 1, "retrying"))
    first, second = [store.draft(options=slot) for _ in range(2)]
    await store.insert(first, second)
    await suspend(store, await store.take())
    assert await store.claim() == []
    await signal(store, first.job_id)
    claim = await store.take()
    assert claim.id == first.job_id
    await suspend(store, claim, wait("more"))
    tally = await store.engine.operator.alter(Selection((first.job_id,)), Cancel())
    other = await store.take()
    assert other.id == second.job_id
    await store.engine.operator.alter(Selection((first.job_id,)), Restore(tally.former))
    await store.finish(other, Done())
    assert (await store.take()).id == first.job_id


@pytest.mark.spec("STEP-13")
async def test_a_suspended_job_is_moved_with_its_rows(store: Store) -> None:
    """A signal wakes it in its new queue."""
    needs(store, Feature.ACROSS_QUEUES)
    job = await store.add()
    await suspend(store, await store.take())
    assert (await store.engine.operator.alter(Selection((job,)), Move("other"))).changed == 1
    assert await store.claim(queue="other") == []
    assert await signal(store, job) == "taken"
    assert (await store.take(queue="other")).id == job


@pytest.mark.spec("STEP-17")
async def test_a_suspended_job_can_be_run_now(store: Store) -> None:
    """It finds its wait open and may suspend again: since when it waits stays, and the new run counts."""
    job = await store.add()
    opened = store.now()
    first = await store.take()
    await suspend(store, first, wait("go", opened + DAY), after=DAY)
    store.pass_time(SECOND)
    await store.engine.operator.alter(Selection((job,)), RunNow())
    second = await store.take()
    assert await values(store, job) == {"go": (StepState.WAITING, None)}
    await suspend(store, second, wait("go", opened + DAY), after=DAY - SECOND)
    assert await rows(store, job) == {"go": Step("go", StepState.WAITING, None, opened + DAY, second.token, opened)}
    assert await signal(store, job) == "taken"
    assert (await store.take()).id == job


@pytest.mark.spec("STEP-17")
async def test_a_paused_queue_resumes_nobody(store: Store) -> None:
    """Signals are kept; the job runs when the queue does."""
    job = await store.add()
    await suspend(store, await store.take())
    await store.engine.control.tune(QUEUE, Tuning(paused=True))
    assert await signal(store, job) == "taken"
    assert await store.claim() == []
    await store.engine.control.tune(QUEUE, Tuning(paused=False))
    assert (await store.take()).id == job


@pytest.mark.spec("STEP-15")
async def test_an_impossible_suspension_is_refused(store: Store) -> None:
    """Nothing of the call is stored."""
    await store.insert(store.draft(), store.draft())
    claims = await store.claim(n=2)
    bad = Settlement(claims[0].id, "w1", claims[0].token, Status.PENDING, wakes=Wakes.ANY, ref=claims[0].ref)
    with pytest.raises(InvalidInput):
        await store.settle(conclude(claims[1], Done()), bad)
    assert await store.counts() == {Status.RUNNING: 2}


@pytest.mark.spec("STEP-12")
async def test_lists_show_what_is_suspended(store: Store) -> None:
    """A page holds it as a pending job that is suspended."""
    job, other = await store.add(), await store.add(delay=HOUR)
    await suspend(store, await store.take())
    page = await store.engine.operator.find(Query(statuses=frozenset({Status.PENDING})))
    assert {one.id: one.suspended for one in page.jobs} == {job: True, other: False}


@pytest.mark.spec("ANSWER-05")
async def test_a_settlement_does_not_overwrite_an_answer(store: Store) -> None:
    """A failure that comes with the end of a run, for a row that was answered meanwhile, is left out."""
    job = await store.add()
    claim = await store.take()
    await save(store, claim, wait("a"))
    await signal(store, job, "a", b"7")
    failed = Step("a", StepState.FAILED, b"{}")
    await store.settle(conclude(claim, Suspended((wait(),)), steps=(failed,)))
    assert await values(store, job) == {"a": (StepState.DONE, b"7"), "go": (StepState.WAITING, None)}


@pytest.mark.core
@pytest.mark.spec("STEP-33")
async def test_a_suspension_joins_a_transaction(store: Store) -> None:
    """The job is suspended if and only if it commits."""
    needs(store, Feature.OWN_TRANSACTION)
    job = await store.add()
    claim = await store.take()
    settlement = conclude(claim, Suspended((wait(),)))
    with pytest.raises(RuntimeError):
        async with store.engine.transaction() as tx:
            assert (await store.engine.jobs.settle([settlement], tx=tx)).verdicts == [Verdict.APPLIED]
            raise RuntimeError
    assert (await store.status(job), await rows(store, job)) == (Status.RUNNING, {})
    async with store.engine.transaction() as tx:
        assert (await store.engine.jobs.settle([settlement], tx=tx)).verdicts == [Verdict.APPLIED]
    assert (await store.job(job)).suspended
    assert await signal(store, job) == "taken"
    assert (await store.take()).id == job
