"""Cancel: waiting jobs end at once, running ones are asked, and only success outruns the request."""

from __future__ import annotations

import msgspec
import pytest

from stoker.model.job import Claim, Note, Status, Verdict
from stoker.model.lifecycle import KEEP_DEAD, conclude
from stoker.model.outcome import (
    Canceled,
    Crashed,
    Done,
    Failed,
    HandedBack,
    Outcome,
    Rejected,
    Snoozed,
    Throttled,
    TimedOut,
)
from stoker.model.query import CANCEL_REASON, LONGEST_REASON, Cancel, Change, Delete, Requeue, Selection, Tally
from stoker.model.time import HOUR, SECOND
from stoker.testing.conformance.harness import Store

_UNLESS_SUCCESS = pytest.mark.parametrize(
    "outcome",
    [
        Failed("boom"),
        Rejected("no"),
        TimedOut(SECOND),
        Snoozed(SECOND),
        Throttled(),
        HandedBack(),
        Crashed("signal 9"),
    ],
    ids=["failed", "rejected", "timed out", "snoozed", "throttled", "handed back", "crashed"],
)


async def _cancel(store: Store, *jobs: bytes, force: bool = False) -> Tally:
    return await store.engine.operator.alter(Selection(jobs), Cancel(force=force))


def _told(claim: Claim) -> Claim:
    """The claim as its worker knows it after hearing of the request."""
    return msgspec.structs.replace(claim, cancel_requested=True)


@pytest.mark.core
@pytest.mark.spec("CANCEL-01")
@pytest.mark.parametrize("delay", [0, HOUR], ids=["due", "scheduled"])
async def test_a_pending_job_is_canceled_at_once(store: Store, delay: int) -> None:
    """Canceled, finished, kept for a while, and never handed out."""
    job = await store.add(delay=delay)
    tally = await _cancel(store, job)
    assert (tally.changed, tally.cancel_requested) == (1, 0)
    record = await store.job(job)
    assert (record.status, record.finished_at, record.attempts) == (Status.CANCELED, store.now(), 0)
    assert record.expires_at == store.now() + KEEP_DEAD
    store.pass_time(HOUR)
    assert await store.claim(n=10) == []
    assert await store.counts() == {Status.CANCELED: 1}


@pytest.mark.spec("CANCEL-01")
async def test_a_retrying_job_is_canceled_at_once(store: Store) -> None:
    """A job that waits for its retry ends canceled and is not retried; what it went through stays on record."""
    job = await store.add()
    await store.finish(await store.take(), Failed("boom", after=SECOND))
    assert (await _cancel(store, job)).changed == 1
    store.pass_time(HOUR)
    assert await store.claim() == []
    record = await store.job(job)
    assert (record.status, record.attempts) == (Status.CANCELED, 1)
    assert record.history[0].error == "boom"


@pytest.mark.spec("CANCEL-01")
async def test_a_job_is_either_canceled_or_claimed(store: Store) -> None:
    """A cancel that comes after the claim is a request; one that came before leaves nothing to claim."""
    early, late = await store.insert(store.draft(), store.draft())
    assert (await _cancel(store, early)).changed == 1
    [claim] = await store.claim(n=10)
    assert claim.id == late
    tally = await _cancel(store, late)
    assert (tally.changed, tally.cancel_requested) == (0, 1)
    assert await store.status(late) is Status.RUNNING


@pytest.mark.core
@pytest.mark.spec("CANCEL-02")
async def test_a_running_job_is_asked_to_stop(store: Store) -> None:
    """The record is flagged and runs on; the claim is still its worker's."""
    job = await store.add()
    claim = await store.take()
    tally = await _cancel(store, job)
    assert (tally.changed, tally.cancel_requested) == (0, 1)
    record = await store.job(job)
    assert (record.status, record.cancel_requested) == (Status.RUNNING, True)
    assert (record.worker, record.token) == (claim.worker, claim.token)
    assert await store.finish(claim, Canceled()) is Verdict.APPLIED
    assert await store.status(job) is Status.CANCELED


@pytest.mark.core
@pytest.mark.spec("CANCEL-03")
@_UNLESS_SUCCESS
async def test_an_end_without_success_has_to_be_concluded_again(store: Store, outcome: Outcome) -> None:
    """A settlement made in ignorance of the request changes nothing; made again in its knowledge it cancels."""
    job = await store.add()
    claim = await store.take()
    await _cancel(store, job)
    before = await store.snapshot([job])
    assert await store.finish(claim, outcome) is Verdict.CANCELING
    assert await store.snapshot([job]) == before
    assert await store.finish(_told(claim), outcome) is Verdict.APPLIED
    record = await store.job(job)
    assert (record.status, record.worker, record.finished_at) == (Status.CANCELED, None, store.now())
    assert "canceled" in (record.last_error or "")
    assert await store.counts() == {Status.CANCELED: 1}


@pytest.mark.core
@pytest.mark.spec("CANCEL-04")
@pytest.mark.parametrize("informed", [False, True], ids=["unaware", "aware"])
async def test_success_wins_over_a_cancel(store: Store, *, informed: bool) -> None:
    """A handler that returned is done, whether or not its worker knew of the request."""
    job = await store.add()
    claim = await store.take()
    await _cancel(store, job)
    assert await store.finish(_told(claim) if informed else claim, Done(b"1")) is Verdict.APPLIED
    record = await store.job(job)
    assert (record.status, record.result) == (Status.DONE, b"1")
    assert record.cancel_requested, "the record tells that it was asked to stop"


@pytest.mark.spec("CANCEL-05")
async def test_a_canceling_verdict_stores_no_follow_up(store: Store) -> None:
    """Nothing of a settlement that has to be concluded again is kept, and it does not hinder its neighbours."""
    await store.insert(store.draft(), store.draft())
    flagged, plain = await store.claim(n=2)
    await _cancel(store, flagged.id)
    child = store.draft("child")
    refused = msgspec.structs.replace(conclude(flagged, Failed("boom")), followups=(child,), metadata={"a": "b"})
    assert await store.settle(refused, conclude(plain, Done())) == [Verdict.CANCELING, Verdict.APPLIED]
    assert await store.gone(child.job_id)
    assert "a" not in (await store.job(flagged.id)).metadata
    assert await store.status(plain.id) is Status.DONE


@pytest.mark.spec("CANCEL-05")
async def test_a_stale_settlement_of_a_flagged_job_is_lost(store: Store) -> None:
    """The fence comes before the request: only the owner gets `canceling`."""
    job = await store.add()
    stale = await store.take("w1")
    await store.finish(stale, HandedBack())
    await store.take("w2")
    await _cancel(store, job)
    assert await store.finish(stale, Failed("late")) in {Verdict.LOST, Verdict.REPEATED}
    assert await store.status(job) is Status.RUNNING


@pytest.mark.core
@pytest.mark.spec("CANCEL-06")
async def test_a_forced_cancel_takes_the_claim_away(store: Store) -> None:
    """The job is canceled at once, its worker gets `lost`, and even its success is refused."""
    job = await store.add()
    claim = await store.take("w1")
    tally = await _cancel(store, job, force=True)
    assert (tally.changed, tally.cancel_requested) == (1, 0)
    record = await store.job(job)
    assert (record.status, record.worker, record.finished_at) == (Status.CANCELED, None, store.now())
    assert (await store.engine.jobs.renew("w1", [(job, claim.token)])).lost == [(job, claim.token)]
    before = await store.snapshot([job])
    assert await store.finish(claim, Done()) is Verdict.LOST
    assert await store.finish(_told(claim), Canceled()) is Verdict.LOST
    assert await store.snapshot([job]) == before


@pytest.mark.spec("CANCEL-06")
async def test_force_changes_nothing_for_waiting_jobs(store: Store) -> None:
    """A waiting job is canceled the same way with and without force."""
    job = await store.add()
    assert (await _cancel(store, job, force=True)).changed == 1
    assert await store.status(job) is Status.CANCELED


@pytest.mark.core
@pytest.mark.spec("CANCEL-07")
async def test_deleting_a_running_job_is_a_request_to_stop(store: Store) -> None:
    """The record stays until its worker ends it."""
    job = await store.add()
    claim = await store.take()
    tally = await store.engine.operator.alter(Selection((job,)), Delete())
    assert (tally.changed, tally.cancel_requested) == (0, 1)
    record = await store.job(job)
    assert (record.status, record.cancel_requested) == (Status.RUNNING, True)
    assert await store.finish(claim, Failed("boom")) is Verdict.CANCELING
    assert await store.finish(_told(claim), Failed("boom")) is Verdict.APPLIED
    assert await store.status(job) is Status.CANCELED


@pytest.mark.spec("CANCEL-08")
@pytest.mark.parametrize("end", [Done(), Rejected("no"), Canceled()], ids=["done", "dead", "canceled"])
async def test_a_finished_job_cannot_be_canceled(store: Store, end: Outcome) -> None:
    """A cancel that comes too late is refused by status and changes nothing."""
    job = await store.add()
    await store.finish(await store.take(), end)
    before = await store.snapshot([job])
    tally = await _cancel(store, job)
    assert (tally.changed, tally.cancel_requested) == (0, 0)
    assert tally.refused == {await store.status(job): 1}
    assert await store.snapshot([job]) == before


@pytest.mark.spec("CANCEL-08")
async def test_a_running_job_cannot_be_requeued(store: Store) -> None:
    """A job is not taken from its worker by accident: requeue is refused while it runs."""
    job = await store.add()
    claim = await store.take()
    tally = await store.engine.operator.alter(Selection((job,)), Requeue())
    assert (tally.changed, tally.refused) == (0, {Status.RUNNING: 1})
    assert await store.finish(claim, Done()) is Verdict.APPLIED


@pytest.mark.spec("CANCEL-09")
async def test_a_canceled_job_can_be_brought_back(store: Store) -> None:
    """Requeueing a canceled job makes it pending, due, with a fresh budget and without the old request."""
    job = await store.add(attempts=1)
    claim = await store.take()
    await _cancel(store, job)
    await store.finish(_told(claim), Failed("boom"))
    assert (await store.engine.operator.alter(Selection((job,)), Requeue())).changed == 1
    record = await store.job(job)
    assert (record.status, record.scheduled_at, record.finished_at) == (Status.PENDING, store.now(), None)
    assert (record.attempts, record.base, record.expires_at) == (1, 1, None)
    claim = await store.take()
    assert (claim.attempt, claim.cancel_requested) == (2, False)


@pytest.mark.spec("CANCEL-10")
async def test_the_reason_of_a_request_is_on_the_record(store: Store) -> None:
    """It joins what the run noted, however the job ends; a later request wins, a long one is cut."""
    job = await store.add()
    claim = await store.take()
    await store.engine.jobs.note([Note(job, claim.worker, claim.token, metadata={"mine": "1"})])
    for reason in ("wrong customer", "x" * 5_000):
        await store.engine.operator.alter(Selection((job,)), Cancel(reason))
        assert (await store.job(job)).metadata == {"mine": "1", CANCEL_REASON: reason[:LONGEST_REASON]}
    await store.engine.operator.alter(Selection((job,)), Cancel(""))
    assert await store.finish(claim, Done()) is Verdict.APPLIED
    assert set((await store.job(job)).metadata) == {"mine", CANCEL_REASON}


@pytest.mark.core
@pytest.mark.spec("CANCEL-11")
@pytest.mark.parametrize("change", [Cancel(), Cancel(""), Delete()], ids=["cancel", "wordless", "delete"])
@pytest.mark.parametrize("end", [Done(), Canceled()], ids=["done", "canceled"])
async def test_a_request_to_stop_stores_its_moment(store: Store, change: Change, end: Outcome) -> None:
    """The first request counts; the moment stays when the job has ended, and goes when it is brought back."""
    job = await store.add()
    claim = await store.take()
    assert (await store.job(job)).cancel_requested_at is None
    store.pass_time(SECOND)
    asked = store.now()
    for _ in range(2):
        assert (await store.engine.operator.alter(Selection((job,)), change)).cancel_requested == 1
        store.pass_time(SECOND)
    await store.engine.jobs.note([Note(job, claim.worker, claim.token, 0.5)])
    assert (await store.job(job)).cancel_requested_at == asked
    ended = conclude(claim, end, metadata={"a": "b"})
    assert await store.settle(ended) == [Verdict.APPLIED]
    record = await store.job(job)
    assert (record.cancel_requested, record.cancel_requested_at) == (True, asked)
    if record.status is Status.CANCELED:
        await store.engine.operator.alter(Selection((job,)), Requeue())
        record = await store.job(job)
        assert (record.cancel_requested, record.cancel_requested_at) == (False, None)
        await store.take()
        await store.engine.operator.alter(Selection((job,)), change)
        assert (await store.job(job)).cancel_requested_at == store.now()
