"""Settle: what an outcome does to a job, its history, its counters and its budget."""

from __future__ import annotations

import itertools

import pytest

from stoker.engines.base import LEASE, ORPHANED_AFTER
from stoker.executors.choose import SUSPECT_AFTER
from stoker.model.control import Tuning
from stoker.model.ids import JobId
from stoker.model.job import LARGEST_PAYLOAD, LONGEST_HISTORY, Failure, Options, Status, Verdict
from stoker.model.lifecycle import KEEP_DEAD, RESULT_WARNING, UNFIT_SINCE, Rules, conclude
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
    TimedOut,
    Unfit,
)
from stoker.model.query import Discard, Query, Requeue, Selection
from stoker.model.retry import Curve, Fixed, Never
from stoker.model.run_origins import number
from stoker.model.time import DAY, HOUR, LONGEST, MINUTE, SECOND
from stoker.testing.conformance.harness import Store
from stoker.worker.maintenance import Death, reap

_ODD_TEXT = "Traceback:\n\tboom ' \" \\ % {} é 日本 🧨"


async def _requeue(store: Store, job: bytes) -> None:
    tally = await store.engine.operator.alter(Selection((job,)), Requeue())
    assert tally.changed == 1


# --- success --------------------------------------------------------------------------------------------------------


@pytest.mark.core
@pytest.mark.spec("SETTLE-01")
async def test_success_finishes_the_job(store: Store) -> None:
    """Done, with its finish time, without owner, counted once."""
    job = await store.add()
    claim = await store.take()
    store.pass_time(SECOND)
    assert await store.finish(claim, Done()) is Verdict.APPLIED
    record = await store.job(job)
    assert (record.status, record.worker, record.finished_at) == (Status.DONE, None, store.now())
    assert (record.attempts, record.started_at, record.result) == (1, claim.claimed_at, None)
    assert record.history == ()
    assert await store.counts() == {Status.DONE: 1}


@pytest.mark.core
@pytest.mark.spec("SETTLE-01")
@pytest.mark.parametrize("result", [b"null", b"[]", str(2**70).encode(), '{"é": [0.10]}'.encode(), None])
async def test_a_result_is_kept_byte_for_byte(store: Store, result: bytes | None) -> None:
    """The stored result is exactly what the handler's value was encoded to; no result is not null."""
    job = await store.add()
    await store.finish(await store.take(), Done(result))
    assert (await store.job(job)).result == result


@pytest.mark.spec("SETTLE-01")
async def test_the_largest_result_fits(store: Store) -> None:
    """A result of one mebibyte is stored whole."""
    result = b'"' + b"x" * (LARGEST_PAYLOAD - 2) + b'"'
    job = await store.add()
    await store.finish(await store.take(), Done(result))
    assert (await store.job(job)).result == result


@pytest.mark.spec("SETTLE-01")
async def test_a_result_that_cannot_be_kept_is_flagged(store: Store) -> None:
    """The job is done without result, and its metadata gives the reason."""
    job = await store.add()
    await store.finish(await store.take(), Done(None, warning="not JSON"))
    record = await store.job(job)
    assert (record.status, record.result) == (Status.DONE, None)
    assert record.metadata[RESULT_WARNING] == "not JSON"


@pytest.mark.spec("SETTLE-01", "HANDLE-07")
async def test_a_result_that_cannot_be_kept_is_flagged_after_a_requeue(store: Store) -> None:
    """Beside what earlier runs noted; a null result of the same job's sibling is not flagged."""
    jobs = [await store.add(attempts=1) for _ in range(2)]
    for claim in await store.claim(n=2):
        await store.settle(conclude(claim, Failed("boom"), metadata={"exec_note": "first"}))
    assert (await store.engine.operator.alter(Selection(tuple(jobs)), Requeue())).changed == 2
    refused, null = await store.claim(n=2)
    await store.settle(conclude(refused, Done(None, "is no JSON")), conclude(null, Done()))
    assert (await store.job(refused.id)).metadata == {"exec_note": "first", RESULT_WARNING: "is no JSON"}
    assert (await store.job(null.id)).metadata == {"exec_note": "first"}


@pytest.mark.core
@pytest.mark.spec("SETTLE-02")
async def test_keeping_nothing_deletes_the_job_on_success(store: Store) -> None:
    """With a keep of zero the record and its count are gone when the call returns."""
    job = await store.add(options=Options(keep=0))
    claim = await store.take()
    assert await store.finish(claim, Done(b"1")) is Verdict.APPLIED
    assert await store.gone(job)
    assert await store.counts() == {}
    assert await store.finish(claim, Done(b"1")) in {Verdict.LOST, Verdict.REPEATED}


@pytest.mark.spec("SETTLE-02")
async def test_keeping_nothing_concerns_only_success(store: Store) -> None:
    """A failed or canceled job is kept for operators, whatever its `keep`."""
    dead = await store.add(options=Options(keep=0))
    await store.finish(await store.take(), Rejected("no"))
    assert await store.status(dead) is Status.DEAD
    canceled = await store.add(options=Options(keep=0))
    await store.finish(await store.take(), Canceled())
    assert await store.status(canceled) is Status.CANCELED


@pytest.mark.spec("SETTLE-03")
@pytest.mark.parametrize(
    ("own", "task", "expected"),
    [(None, None, None), (HOUR, None, HOUR), (None, DAY, DAY), (HOUR, DAY, HOUR), (LONGEST, None, LONGEST)],
    ids=["queue", "job", "task", "job before task", "longest"],
)
async def test_success_stamps_its_expiry(store: Store, own: int | None, task: int | None, expected: int | None) -> None:
    """The job's `keep` counts before the task's, and that before the queue's."""
    job = await store.add(options=Options(keep=own))
    await store.finish(await store.take(), Done(), Rules(keep=task))
    kept = store.engine.keep_done if expected is None else expected
    assert (await store.job(job)).expires_at == store.now() + kept


@pytest.mark.spec("SETTLE-03")
@pytest.mark.parametrize("outcome", [Rejected("no"), Canceled()], ids=["dead", "canceled"])
async def test_every_other_end_is_kept_by_the_queues_word(store: Store, outcome: Outcome) -> None:
    """Dead and canceled jobs expire after the queue's time for failures, not after the job's keep."""
    job = await store.add(options=Options(keep=HOUR))
    await store.finish(await store.take(), outcome)
    assert (await store.job(job)).expires_at == store.now() + KEEP_DEAD


@pytest.mark.spec("SETTLE-03")
async def test_a_tuned_retention_is_used_for_the_next_finish(store: Store) -> None:
    """Expiry follows the queue's settings at the moment of the finish."""
    await store.engine.control.tune("default", Tuning(keep_done=HOUR, keep_dead=2 * HOUR))
    done, dead = await store.insert(store.draft(), store.draft())
    await store.finish(await store.take(), Done())
    await store.finish(await store.take(), Rejected("no"))
    assert (await store.job(done)).expires_at == store.now() + HOUR
    assert (await store.job(dead)).expires_at == store.now() + 2 * HOUR


@pytest.mark.spec("SETTLE-03")
async def test_an_active_job_has_no_expiry(store: Store) -> None:
    """Waiting, running and requeued jobs carry no expiry and no finish time."""
    job = await store.add(attempts=1)
    assert (await store.job(job)).expires_at is None
    claim = await store.take()
    assert (await store.job(job)).expires_at is None
    await store.finish(claim, Failed("boom"))
    assert (await store.job(job)).expires_at is not None
    await _requeue(store, job)
    record = await store.job(job)
    assert (record.status, record.expires_at, record.finished_at) == (Status.PENDING, None, None)


# --- failure --------------------------------------------------------------------------------------------------------


@pytest.mark.core
@pytest.mark.spec("SETTLE-04")
async def test_a_failure_with_budget_left_waits_for_its_retry(store: Store) -> None:
    """Retrying, due after the delay by the store's clock, with error and history, without owner, not finished."""
    job = await store.add()
    claim = await store.take()
    store.pass_time(SECOND)
    assert await store.finish(claim, Failed(_ODD_TEXT, after=30 * SECOND)) is Verdict.APPLIED
    record = await store.job(job)
    assert (record.status, record.worker, record.finished_at) == (Status.RETRYING, None, None)
    assert record.scheduled_at == store.now() + 30 * SECOND
    assert (record.attempts, record.last_error) == (1, _ODD_TEXT)
    assert record.history == (Failure(store.now(), 1, _ODD_TEXT, number(claim.worker)),)
    assert await store.counts() == {Status.RETRYING: 1}


@pytest.mark.spec("SETTLE-04")
async def test_the_longest_delay_is_a_delay(store: Store) -> None:
    """Ten years of waiting neither overflow nor wrap around."""
    job = await store.add()
    await store.finish(await store.take(), Failed("boom", after=LONGEST))
    assert (await store.job(job)).scheduled_at == store.now() + LONGEST
    assert await store.claim() == []


@pytest.mark.spec("SETTLE-04", "RETRY-05")
async def test_the_jobs_own_backoff_decides_the_wait(store: Store) -> None:
    """A strategy stored with the job is asked before the queue's curve."""
    await store.engine.control.tune("default", Tuning(curve=Curve(on=True, base=HOUR, max=DAY)))
    job = await store.add(options=Options(backoff=Fixed(7)))
    await store.finish(await store.take(), Failed("boom"))
    assert (await store.job(job)).scheduled_at == store.now() + 7 * SECOND


@pytest.mark.spec("SETTLE-04", "RETRY-05")
async def test_the_queues_curve_decides_when_the_job_has_no_opinion(store: Store) -> None:
    """With a curve that is on, the first failure waits twice the base, the second four times."""
    await store.engine.control.tune("default", Tuning(curve=Curve(on=True, base=10 * SECOND, max=HOUR)))
    job = await store.add()
    for delay in (20 * SECOND, 40 * SECOND):
        await store.finish(await store.take(), Failed("boom"))
        assert (await store.job(job)).scheduled_at == store.now() + delay
        store.pass_time(delay)


@pytest.mark.core
@pytest.mark.spec("SETTLE-05")
async def test_the_last_failure_of_the_budget_is_final(store: Store) -> None:
    """Dead, with finish time, last error and one more entry of the history, without owner."""
    job = await store.add(attempts=2)
    await store.finish(await store.take(), Failed("one", after=0))
    claim = await store.take()
    store.pass_time(SECOND)
    assert await store.finish(claim, Failed("two", after=0)) is Verdict.APPLIED
    record = await store.job(job)
    assert (record.status, record.worker, record.finished_at) == (Status.DEAD, None, store.now())
    assert (record.attempts, record.last_error) == (2, "two")
    assert [(failure.attempt, failure.error) for failure in record.history] == [(1, "one"), (2, "two")]
    assert await store.counts() == {Status.DEAD: 1}


@pytest.mark.spec("SETTLE-05")
@pytest.mark.parametrize(
    "outcome",
    [Rejected("never"), Panicked("SystemExit"), Failed("hopeless", retry=False)],
    ids=["rejected", "panicked", "not worth it"],
)
async def test_some_failures_are_final_at_once(store: Store, outcome: Outcome) -> None:
    """A rejection, a panic and an error not worth a retry end the job whatever budget is left."""
    job = await store.add(attempts=50)
    await store.finish(await store.take(), outcome)
    record = await store.job(job)
    assert (record.status, record.attempts, record.worker) == (Status.DEAD, 1, None)
    assert record.last_error is not None


@pytest.mark.spec("SETTLE-05")
async def test_a_job_that_must_not_be_retried_dies_at_its_first_failure(store: Store) -> None:
    """The strategy that allows no retry makes the first failure the last."""
    job = await store.add(options=Options(backoff=Never()))
    await store.finish(await store.take(), Failed("boom"))
    assert await store.status(job) is Status.DEAD


@pytest.mark.spec("SETTLE-05")
async def test_a_timeout_is_a_failure_that_names_the_limit(store: Store) -> None:
    """A run over its limit is retried like any failure, and its record names the limit."""
    job = await store.add()
    await store.finish(await store.take(), TimedOut(30 * SECOND))
    record = await store.job(job)
    assert record.status is Status.RETRYING
    assert "30 s" in (record.last_error or "")


@pytest.mark.spec("SETTLE-06")
async def test_every_failure_adds_one_entry_of_its_own_run(store: Store) -> None:
    """The history holds time, attempt and message per failed run, oldest first; the last error is its newest."""
    job = await store.add(attempts=9)
    expected = []
    for attempt in (1, 2, 3):
        claim = await store.take()
        store.pass_time(SECOND)
        await store.finish(claim, Failed(f"error {attempt}", after=0))
        expected.append(Failure(store.now(), attempt, f"error {attempt}", number(claim.worker)))
    record = await store.job(job)
    assert record.history == tuple(expected)
    assert record.last_error == "error 3"


@pytest.mark.spec("SETTLE-06")
async def test_the_history_keeps_the_newest_entries(store: Store) -> None:
    """Beyond its limit the oldest entries are dropped."""
    job = await store.add(attempts=100)
    runs = LONGEST_HISTORY + 5
    for attempt in range(1, runs + 1):
        await store.finish(await store.take(), Failed(f"error {attempt}", after=0))
    record = await store.job(job)
    assert [failure.attempt for failure in record.history] == list(range(6, runs + 1))
    assert (record.attempts, record.last_error) == (runs, f"error {runs}")


@pytest.mark.spec("SETTLE-06")
async def test_success_keeps_the_history(store: Store) -> None:
    """A job that succeeded at its third attempt still has the first two in its history."""
    job = await store.add()
    for _ in range(2):
        await store.finish(await store.take(), Failed("boom", after=0))
    await store.finish(await store.take(), Done())
    assert [failure.attempt for failure in (await store.job(job)).history] == [1, 2]


@pytest.mark.spec("SETTLE-06")
async def test_a_large_error_is_kept(store: Store) -> None:
    """A long traceback is stored whole, in the record and in the history."""
    text = "x" * 60_000
    job = await store.add()
    await store.finish(await store.take(), Failed(text, after=0))
    record = await store.job(job)
    assert (record.last_error, record.history[-1].error) == (text, text)


# --- put back -------------------------------------------------------------------------------------------------------


@pytest.mark.core
@pytest.mark.spec("SETTLE-07", "ATTEMPT-02")
@pytest.mark.parametrize(
    ("outcome", "delay"),
    [
        (Snoozed(HOUR), HOUR),
        (HandedBack(), 0),
        (Throttled(5 * MINUTE, queue=False), 5 * MINUTE),
        (Unfit("no such task"), SECOND),
    ],
    ids=["snoozed", "handed back", "throttled", "unfit"],
)
async def test_putting_back_costs_no_attempt(store: Store, outcome: Outcome, delay: int) -> None:
    """Pending again after the delay, the attempt refunded, no error and no history entry."""
    job = await store.add()
    assert await store.finish(await store.take(), outcome) is Verdict.APPLIED
    record = await store.job(job)
    assert (record.status, record.worker, record.attempts) == (Status.PENDING, None, 0)
    assert record.scheduled_at == store.now() + delay
    assert (record.last_error, record.history, record.finished_at) == (None, (), None)
    if delay:
        assert await store.claim() == []
    store.pass_time(delay)
    assert (await store.take()).attempt == 1


@pytest.mark.core
@pytest.mark.spec("SETTLE-22")
async def test_a_job_handed_back_keeps_its_place_and_the_lag_of_its_queue(store: Store) -> None:
    """The scheduled time stays, so jobs that came later stay behind and the lag goes on; a second hand-back too."""
    since = store.now()
    early = [await store.add() for _ in range(3)]
    store.pass_time(MINUTE)
    await store.add(priority=0)
    for worker in ("w1", "w2"):
        store.pass_time(MINUTE)
        claims = await store.claim(worker, 3)
        assert [claim.id for claim in claims] == early
        assert set(await store.settle(*(conclude(claim, HandedBack()) for claim in claims))) == {Verdict.APPLIED}
        assert [(await store.job(job)).scheduled_at for job in early] == [since] * 3
        assert (await store.engine.operator.census()).oldest_ready == {"default": since}
    assert [claim.id for claim in await store.claim("w3", 3)] == early


@pytest.mark.spec("SETTLE-22")
async def test_a_retry_and_an_orphan_handed_back_keep_their_scheduled_time(store: Store) -> None:
    """A retry returns to when it was due, and so does a claim that a renewal reports as an orphan."""
    job = await store.add()
    await store.finish(await store.take(), Failed("boom", after=MINUTE))
    due = store.now() + MINUTE
    store.pass_time(HOUR)
    await store.take("w1")
    store.pass_time(ORPHANED_AFTER + SECOND)
    [orphan] = (await store.engine.jobs.renew("w1", [])).orphaned
    assert await store.finish(orphan, HandedBack()) is Verdict.APPLIED
    record = await store.job(job)
    assert (record.status, record.attempts, record.scheduled_at) == (Status.PENDING, 1, due)


@pytest.mark.spec("SETTLE-22")
async def test_a_job_handed_back_by_a_reaper_keeps_its_scheduled_time(store: Store) -> None:
    """A planned stop of a dead process: its claims are reaped and handed back in its name."""
    since = store.now()
    job = await store.add()
    await store.take("dead")
    await store.enlist("heir")
    store.pass_time(SECOND)
    [claim] = await store.engine.jobs.reap("heir", 1, dead=["dead"])
    assert await store.finish(claim, HandedBack()) is Verdict.APPLIED
    assert (await store.job(job)).scheduled_at == since
    assert (await store.take("next")).id == job


@pytest.mark.spec("SETTLE-07")
async def test_a_snooze_between_failures_keeps_what_is_known(store: Store) -> None:
    """A refund takes back only its own start; earlier attempts, error and history stay."""
    job = await store.add()
    await store.finish(await store.take(), Failed("boom", after=0))
    await store.finish(await store.take(), Snoozed(0))
    record = await store.job(job)
    assert (record.status, record.attempts, record.last_error) == (Status.PENDING, 1, "boom")
    assert len(record.history) == 1
    assert (await store.take()).attempt == 2


@pytest.mark.spec("SETTLE-07", "ATTEMPT-02")
async def test_any_number_of_snoozes_never_spends_the_budget(store: Store) -> None:
    """A job with a single attempt may be put back again and again and still run."""
    job = await store.add(attempts=1)
    for _ in range(10):
        claim = await store.take()
        assert claim.attempt == 1
        await store.finish(claim, Snoozed(0))
    assert (await store.job(job)).attempts == 0
    await store.finish(await store.take(), Done())
    assert await store.status(job) is Status.DONE


@pytest.mark.spec("SETTLE-08", "THROTTLE-01")
async def test_throttles_are_counted_per_job_until_it_succeeds(store: Store) -> None:
    """Every throttled run raises the job's counter, a failure leaves it, success clears it."""
    job = await store.add()
    for count in (1, 2):
        await store.finish(await store.take(), Throttled(0, queue=False))
        assert (await store.job(job)).throttles == count
    await store.finish(await store.take(), Failed("boom", after=0))
    assert (await store.job(job)).throttles == 2
    await store.finish(await store.take(), Snoozed(0))
    assert (await store.job(job)).throttles == 2
    await store.finish(await store.take(), Done())
    assert (await store.job(job)).throttles == 0


@pytest.mark.spec("SETTLE-08")
async def test_a_job_that_no_worker_can_run_is_not_put_back_for_ever(store: Store) -> None:
    """The first meeting is remembered with the job; an hour later it is dead, and its error names what is missing."""
    job = await store.add()
    first_met = store.now()
    runs = 0
    while await store.status(job) is Status.PENDING:
        await store.finish(await store.take(), Unfit("no task 'work' here"))
        assert (await store.job(job)).metadata.get(UNFIT_SINCE) == str(first_met)
        store.pass_time(5 * MINUTE)
        runs += 1
        assert runs < 100
    record = await store.job(job)
    assert (record.status, record.last_error) == (Status.DEAD, "no task 'work' here")
    assert first_met + HOUR <= store.now() <= first_met + HOUR + 10 * MINUTE


# --- crashes, cancels -----------------------------------------------------------------------------------------------


@pytest.mark.spec("SETTLE-09")
async def test_witnessed_crashes_are_counted(store: Store) -> None:
    """Each process death under the job counts; the third ends it dead whatever budget is left."""
    job = await store.add(attempts=50)
    for count in (1, 2):
        await store.finish(await store.take(), Crashed("signal 9"))
        record = await store.job(job)
        assert (record.status, record.crashes) == (Status.RETRYING, count)
        store.pass_time(HOUR)
    claim = await store.take()
    assert (claim.attempt, claim.crashes) == (3, 2)
    await store.finish(claim, Crashed("signal 9"))
    record = await store.job(job)
    assert (record.status, record.crashes, record.attempts) == (Status.DEAD, 3, 3)
    assert "signal 9" in (record.last_error or "")


async def _one_dies_with_all(store: Store, poison: JobId, rules: Rules, worker: str) -> int | None:
    """Run what is due as a worker would, a job with two crash-ends in a process of its own; return the deaths.

    The poison kills the process it runs in. None: nothing is left to run.
    """
    store.pass_time(HOUR)
    claims = await store.claim(worker, 50)
    suspects = [claim for claim in claims if claim.crashes >= SUSPECT_AFTER]
    together = [claim for claim in claims if claim not in suspects]
    for claim in suspects:
        await store.finish(claim, Crashed("signal 9") if claim.id == poison else Done(), rules)
    if any(claim.id == poison for claim in together):
        reaper = await store.enlist(f"reaper of {worker}")
        death = Death("signal 9", [worker])
        # Twenty-one jobs: the last step meets one alone, and still knows of those before it.
        while (await reap(store.engine, reaper, lambda _: rules, limit=4, death=death))[0]:
            pass
        return 1
    for claim in together:
        await store.finish(claim, Done())
    return sum(claim.id == poison for claim in suspects) if claims else None


@pytest.mark.core
@pytest.mark.spec("ATTEMPT-06")
@pytest.mark.parametrize("attempts", [1, 2, 5])
async def test_a_poison_job_takes_no_neighbour_with_it(store: Store, attempts: int) -> None:
    """It is dead after three deaths at most; twenty neighbours with one attempt meet two of them and are done."""
    neighbours = [await store.add(attempts=1) for _ in range(20)]
    poison = await store.add(attempts=attempts)
    deaths = 0
    for turn in itertools.count():
        died = await _one_dies_with_all(store, poison, Rules(), f"w{turn}")
        if died is None:
            break
        deaths += died
    record = await store.job(poison)
    assert (deaths, record.status, record.crashes, record.attempts) == (3, Status.DEAD, 3, 1)
    assert len(record.history) == 3
    for job in neighbours:
        record = await store.job(job)
        assert (record.status, record.crashes, record.attempts) == (Status.DONE, 2, 1)


@pytest.mark.spec("ATTEMPT-06")
async def test_a_job_alone_in_its_process_pays_for_its_death(store: Store) -> None:
    """So does one without a crash limit, which would run for ever otherwise."""
    job = await store.add(attempts=1)
    assert await _one_dies_with_all(store, job, Rules(), "w1") == 1
    record = await store.job(job)
    assert (record.status, record.crashes, record.attempts) == (Status.DEAD, 1, 1)
    unlimited, other = await store.add(attempts=2), await store.add(attempts=2)
    for turn in (2, 3):
        assert await _one_dies_with_all(store, unlimited, Rules(crash_limit=None), f"w{turn}") == 1
    for each in (unlimited, other):
        record = await store.job(each)
        assert (record.status, record.crashes, record.attempts) == (Status.DEAD, 2, 2)


@pytest.mark.spec("SETTLE-09")
async def test_other_ends_do_not_count_as_crashes(store: Store) -> None:
    """Failures, lapses and snoozes leave the crash counter alone."""
    job = await store.add(attempts=50)
    await store.finish(await store.take(), Failed("boom", after=0))
    await store.finish(await store.take(), Lost())
    await store.finish(await store.take(), Snoozed(0))
    assert (await store.job(job)).crashes == 0


@pytest.mark.spec("SETTLE-10")
async def test_a_canceled_run_ends_canceled(store: Store) -> None:
    """A handler that stopped on request leaves a canceled job with the reason."""
    job = await store.add()
    await store.finish(await store.take(), Canceled("by hand"))
    record = await store.job(job)
    assert (record.status, record.worker, record.finished_at) == (Status.CANCELED, None, store.now())
    assert record.last_error == "by hand"


@pytest.mark.spec("SETTLE-10")
async def test_a_job_claimed_too_late_ends_canceled_without_an_attempt(store: Store) -> None:
    """A job that expired before its start is canceled, with that as its error, and counts no start."""
    job = await store.add(options=Options(expires=MINUTE))
    store.pass_time(MINUTE + 1)
    await store.finish(await store.take(), Expired())
    record = await store.job(job)
    assert (record.status, record.attempts) == (Status.CANCELED, 0)
    assert "expired" in (record.last_error or "")


# --- budgets --------------------------------------------------------------------------------------------------------


async def _runs(store: Store, job: bytes, end: str) -> int:
    """Run a job until it is not claimable any more, ending each run the same way; count the runs."""
    runs = 0
    while await store.status(job) in {Status.PENDING, Status.RETRYING}:
        runs += 1
        claim = await store.take(f"{end}-{runs}")
        assert claim.attempt - claim.base == runs
        if end == "lapse":
            store.pass_time(LEASE + 1)
            [claim] = await store.engine.jobs.reap(await store.enlist(f"reaper-{runs}"), 10)
        outcome: dict[str, Outcome] = {
            "failure": Failed("boom", after=0),
            "timeout": TimedOut(SECOND),
            "lapse": Lost(),
            "crash": Crashed("x"),
        }
        await store.finish(claim, outcome[end], Rules(crash_limit=None))
        store.pass_time(HOUR)
        assert runs < 20
    return runs


@pytest.mark.core
@pytest.mark.spec("ATTEMPT-03")
@pytest.mark.parametrize("end", ["failure", "timeout", "lapse", "crash"])
@pytest.mark.parametrize("budget", [1, 2, 3])
async def test_every_kind_of_failure_spends_the_budget_alike(store: Store, budget: int, end: str) -> None:
    """A job with N attempts is run N times and then dead, whichever way its runs end."""
    job = await store.add(attempts=budget)
    assert await _runs(store, job, end) == budget
    record = await store.job(job)
    assert (record.status, record.attempts, len(record.history)) == (Status.DEAD, budget, budget)


@pytest.mark.core
@pytest.mark.spec("ATTEMPT-04")
@pytest.mark.parametrize("budget", [1, 2])
async def test_a_requeue_grants_a_fresh_budget_and_keeps_counting(store: Store, budget: int) -> None:
    """After a requeue the job may run as often as at first, and its attempt numbers go on."""
    job = await store.add(attempts=budget)
    assert await _runs(store, job, "failure") == budget
    await _requeue(store, job)
    record = await store.job(job)
    assert (record.status, record.attempts, record.base) == (Status.PENDING, budget, budget)
    claim = await store.take("again")
    assert (claim.attempt, claim.base, claim.budget) == (budget + 1, budget, budget)
    await store.finish(claim, HandedBack())
    assert await _runs(store, job, "failure") == budget
    assert (await store.job(job)).attempts == 2 * budget


@pytest.mark.spec("ATTEMPT-04")
async def test_a_discarded_job_can_be_brought_back(store: Store) -> None:
    """Requeueing works from the discarded status as well, and the job runs again."""
    job = await store.add(attempts=1)
    await store.finish(await store.take(), Failed("boom"))
    await store.engine.operator.alter(Selection((job,)), Discard())
    assert await store.status(job) is Status.DISCARDED
    await _requeue(store, job)
    claim = await store.take()
    assert (claim.attempt, claim.last_error) == (2, "boom")
    assert await store.finish(claim, Done()) is Verdict.APPLIED


@pytest.mark.spec("ATTEMPT-05")
async def test_a_refund_after_a_requeue_stays_above_its_base(store: Store) -> None:
    """Putting a requeued job back returns to the number it was requeued with, never below."""
    job = await store.add(attempts=1)
    await store.finish(await store.take(), Failed("boom"))
    await _requeue(store, job)
    for _ in range(3):
        await store.finish(await store.take(), Snoozed(0))
        record = await store.job(job)
        assert (record.attempts, record.base) == (1, 1)


@pytest.mark.core
@pytest.mark.spec("SETTLE-20")
@pytest.mark.parametrize("metadata", [None, {"a": "b"}], ids=["plain", "noted"])
async def test_success_clears_the_last_error(store: Store, metadata: dict[str, str] | None) -> None:
    """A job that failed and then succeeded has no last error and is not found by it; its history has it."""
    job = await store.add()
    await store.finish(await store.take(), Failed("boom", after=0))
    assert (await store.job(job)).last_error == "boom"
    claim = await store.take()
    assert claim.last_error == "boom"
    assert await store.settle(conclude(claim, Done(), metadata=metadata)) == [Verdict.APPLIED]
    record = await store.job(job)
    assert (record.last_error, [failure.error for failure in record.history]) == (None, ["boom"])
    assert (await store.engine.operator.find(Query(text="boom"))).jobs == []
