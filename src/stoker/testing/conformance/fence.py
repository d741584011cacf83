"""The fence: whatever a worker sends about a claim that is no longer its own changes nothing."""

from __future__ import annotations

import msgspec
import pytest

from stoker.engines.base import LEASE, Feature
from stoker.model.job import Claim, Demand, Note, Settlement, Status, Verdict
from stoker.model.lifecycle import conclude
from stoker.model.outcome import Canceled, Done, Failed, HandedBack, Lost, Outcome, Rejected, Snoozed, Throttled
from stoker.model.time import MINUTE, SECOND
from stoker.testing.conformance.harness import Store

_PUT_BACK = pytest.mark.parametrize(
    "outcome",
    [Failed("boom", after=SECOND), Snoozed(SECOND), HandedBack(), Throttled(SECOND)],
    ids=["retrying", "snoozed", "handed back", "throttled"],
)
_ENDED = pytest.mark.parametrize(
    "outcome",
    [Done(b'"late"'), Failed("late", after=0), Snoozed(0), Throttled(), HandedBack(), Rejected("late"), Canceled()],
    ids=["done", "failed", "snoozed", "throttled", "handed back", "rejected", "canceled"],
)


async def _taken_over(store: Store) -> tuple[Claim, Claim]:
    """A claim whose worker stalled, and the claim of the same job that a reaper took over."""
    await store.add()
    stale = await store.take("stalled")
    store.pass_time(LEASE + 1)
    await store.enlist("reaper")
    [fresh] = await store.engine.jobs.reap("reaper", 10)
    return stale, fresh


@pytest.mark.core
@pytest.mark.spec("FENCE-01")
@pytest.mark.parametrize("again", ["w1", "w2"], ids=["same worker", "another worker"])
@_PUT_BACK
async def test_an_old_settlement_is_lost_once_the_job_was_claimed_again(
    store: Store, outcome: Outcome, again: str
) -> None:
    """A settlement that applied once and is sent again after the next claim is lost and changes nothing."""
    job = await store.add()
    old = conclude(await store.take("w1"), outcome)
    assert await store.settle(old) == [Verdict.APPLIED]
    store.pass_time(2 * MINUTE)
    fresh = await store.take(again)
    before = await store.snapshot([job])
    assert await store.settle(old) == [Verdict.LOST]
    assert await store.snapshot([job]) == before
    assert await store.finish(fresh, Done()) is Verdict.APPLIED


@pytest.mark.core
@pytest.mark.spec("FENCE-02")
@_ENDED
async def test_a_stalled_worker_cannot_settle_what_a_reaper_took_over(store: Store, outcome: Outcome) -> None:
    """Every write of a stalled worker after the takeover is lost; the new owner's count."""
    stale, fresh = await _taken_over(store)
    before = await store.snapshot([stale.id])
    assert await store.finish(stale, outcome) is Verdict.LOST
    assert await store.snapshot([stale.id]) == before
    assert await store.finish(fresh, Done()) is Verdict.APPLIED
    assert await store.status(stale.id) is Status.DONE


@pytest.mark.spec("FENCE-02")
async def test_a_stalled_throttle_does_not_free_the_job_for_a_third_worker(store: Store) -> None:
    """A late throttle neither makes a job claimable that runs elsewhere nor cools its queue."""
    await store.add()
    stale = await store.take("stalled")
    store.pass_time(LEASE + 1)
    await store.enlist("reaper")
    [taken] = await store.engine.jobs.reap("reaper", 10)
    assert await store.finish(taken, Lost()) is Verdict.APPLIED
    fresh = await store.take("second")
    assert await store.finish(stale, Throttled()) is Verdict.LOST
    store.pass_time(SECOND)
    assert await store.claim("third") == []
    assert await store.finish(fresh, Done()) is Verdict.APPLIED


@pytest.mark.spec("FENCE-03")
async def test_the_right_token_of_the_wrong_worker_is_lost(store: Store) -> None:
    """A settlement that names another worker changes nothing."""
    job = await store.add()
    claim = await store.take("w1")
    await store.enlist("w2")
    before = await store.snapshot([job])
    wrong = msgspec.structs.replace(conclude(claim, Done()), worker="w2")
    assert await store.settle(wrong) == [Verdict.LOST]
    assert await store.snapshot([job]) == before


@pytest.mark.spec("FENCE-03")
@pytest.mark.parametrize("shift", [-1, 1], ids=["older", "newer"])
async def test_the_right_worker_with_the_wrong_token_is_lost(store: Store, shift: int) -> None:
    """A settlement whose token is off by one in either direction changes nothing."""
    job = await store.add()
    claim = await store.take()
    before = await store.snapshot([job])
    wrong = msgspec.structs.replace(conclude(claim, Done()), token=claim.token + shift)
    assert await store.settle(wrong) == [Verdict.LOST]
    assert await store.snapshot([job]) == before


@pytest.mark.spec("FENCE-03")
async def test_a_worker_with_two_jobs_settles_only_the_one_it_names(store: Store) -> None:
    """The fence belongs to the claim: the token of one job does not open another job of the same worker."""
    await store.insert(store.draft(), store.draft())
    one = await store.take()
    store.pass_time(SECOND)
    two = await store.take()
    crossed = msgspec.structs.replace(conclude(two, Done()), token=one.token)
    assert await store.settle(crossed) == [Verdict.LOST]
    assert await store.finish(one, Done()) is Verdict.APPLIED
    assert (await store.status(one.id), await store.status(two.id)) == (Status.DONE, Status.RUNNING)


@pytest.mark.spec("FENCE-04")
async def test_settling_a_job_that_never_existed_is_lost(store: Store) -> None:
    """An unknown id is a verdict, not an error."""
    await store.enlist("w1")
    unknown = Settlement(store.mint(), "w1", 1, Status.DONE)
    assert await store.settle(unknown) == [Verdict.LOST]
    assert await store.counts() == {}


@pytest.mark.spec("FENCE-04")
@pytest.mark.parametrize("status", [Status.DONE, Status.DEAD, Status.PENDING, Status.RETRYING, Status.CANCELED])
async def test_settling_a_job_that_is_not_running_is_lost(store: Store, status: Status) -> None:
    """A job that was never claimed cannot be settled into anything, whatever token is tried."""
    job = await store.add()
    await store.enlist("w1")
    before = await store.snapshot([job])
    guesses = [Settlement(job, "w1", token, status, error="guess") for token in (0, 1, store.now())]
    assert await store.settle(*guesses) == [Verdict.LOST] * 3
    assert await store.snapshot([job]) == before


@pytest.mark.core
@pytest.mark.spec("FENCE-05")
@pytest.mark.parametrize("outcome", [Done(b"1"), Failed("boom", after=MINUTE), Snoozed(MINUTE), Rejected("no")])
async def test_a_settlement_sent_twice_applies_once(store: Store, outcome: Outcome) -> None:
    """Sending the same settlement again changes nothing; a store with that feature reports that it applied before."""
    job = await store.add()
    settlement = conclude(await store.take(), outcome)
    assert await store.settle(settlement) == [Verdict.APPLIED]
    before = await store.snapshot([job])
    again = Verdict.REPEATED if Feature.REPEATED in store.engine.features else Verdict.LOST
    assert await store.settle(settlement) == [again]
    assert await store.snapshot([job]) == before


@pytest.mark.spec("FENCE-05")
async def test_a_settlement_twice_in_one_call_applies_once(store: Store) -> None:
    """Of two equal settlements in one call the first applies and the second does not."""
    job = await store.add()
    settlement = conclude(await store.take(), Failed("boom", after=MINUTE))
    first, second = await store.settle(settlement, settlement)
    assert first is Verdict.APPLIED
    assert second in {Verdict.REPEATED, Verdict.LOST}
    assert len((await store.job(job)).history) == 1


@pytest.mark.spec("FENCE-05")
async def test_a_settlement_that_was_lost_is_never_told_to_have_applied(store: Store) -> None:
    """Repeating a lost settlement is lost again, also after the new owner finished the job."""
    stale, fresh = await _taken_over(store)
    late = conclude(stale, Done(b"1"))
    assert await store.settle(late) == [Verdict.LOST]
    assert await store.finish(fresh, Done(b"2")) is Verdict.APPLIED
    assert await store.settle(late) == [Verdict.LOST]
    assert (await store.job(stale.id)).result == b"2"


@pytest.mark.spec("FENCE-06")
async def test_a_lapsed_lease_alone_forfeits_nothing(store: Store) -> None:
    """Until another worker reaps the claim its worker may still settle it, however late."""
    job = await store.add()
    claim = await store.take()
    store.pass_time(10 * LEASE)
    assert await store.finish(claim, Done()) is Verdict.APPLIED
    assert await store.status(job) is Status.DONE


@pytest.mark.core
@pytest.mark.spec("FENCE-07")
async def test_tokens_rise_while_the_clock_stands_still(store: Store) -> None:
    """Claims of one job at one instant carry strictly rising tokens, also when the attempt is refunded each time."""
    await store.add()
    tokens = []
    for _ in range(5):
        claim = await store.take()
        tokens.append(claim.token)
        assert claim.attempt == 1
        assert await store.finish(claim, HandedBack()) is Verdict.APPLIED
    assert tokens == sorted(set(tokens))


@pytest.mark.spec("FENCE-07")
async def test_tokens_rise_while_the_clock_goes_back(store: Store) -> None:
    """A takeover after the clock stepped back still carries a higher token, and the old one is lost."""
    store.pass_time(MINUTE)
    job = await store.add()
    stale = await store.take("w1")
    await store.enlist("w2")
    store.pass_time(-5 * SECOND)
    [fresh] = await store.engine.jobs.reap("w2", 10, dead=["w1"])
    assert fresh.token > stale.token
    assert await store.finish(stale, Done()) is Verdict.LOST
    assert await store.finish(fresh, Done()) is Verdict.APPLIED
    assert await store.status(job) is Status.DONE


@pytest.mark.spec("FENCE-07")
async def test_tokens_rise_from_claim_to_takeover_to_claim(store: Store) -> None:
    """Over a whole life of claims and takeovers every token is higher than the one before."""
    await store.add(attempts=10)
    tokens = []
    for turn in range(3):
        claim = await store.take(f"w{turn}")
        await store.enlist(f"r{turn}")
        [taken] = await store.engine.jobs.reap(f"r{turn}", 1, dead=[f"w{turn}"])
        tokens += [claim.token, taken.token]
        assert await store.finish(taken, Lost()) is Verdict.APPLIED
    assert tokens == sorted(set(tokens))


@pytest.mark.spec("FENCE-08")
async def test_a_lost_settlement_leaves_no_trace_anywhere(store: Store) -> None:
    """Record, history, counts, totals, cool-down, key and follow-ups are as if it had never been sent."""
    stale, fresh = await _taken_over(store)
    follow = store.draft("follow")
    before = await store.snapshot([stale.id, follow.job_id])
    late = conclude(stale, Throttled())
    late = msgspec.structs.replace(late, error="late", metadata={"late": "yes"}, followups=(follow,), crash=True)
    assert await store.settle(late) == [Verdict.LOST]
    assert await store.snapshot([stale.id, follow.job_id]) == before
    assert await store.gone(follow.job_id)
    assert await store.finish(fresh, Done()) is Verdict.APPLIED


@pytest.mark.spec("FENCE-09")
async def test_a_note_of_a_stalled_worker_is_lost(store: Store) -> None:
    """Progress of a worker that lost its claim does not reach the record."""
    stale, _ = await _taken_over(store)
    before = await store.snapshot([stale.id])
    note = Note(stale.id, stale.worker, stale.token, 0.5, {"late": "yes"}, ("late",), stale.ref)
    assert await store.engine.jobs.note([note]) == [Verdict.LOST]
    assert await store.snapshot([stale.id]) == before


@pytest.mark.spec("FENCE-10")
async def test_a_lost_settlement_does_not_hinder_the_claim_in_the_same_call(store: Store) -> None:
    """A worker that lost one job still gets its next one in the same step."""
    stale, _ = await _taken_over(store)
    waiting = await store.add()
    await store.enlist("fresh")
    demand = Demand("fresh", (("default", 1),))
    settled = await store.engine.jobs.settle([conclude(stale, Done())], demand=demand)
    assert settled.verdicts == [Verdict.LOST]
    assert [claim.id for claim in settled.claims] == [waiting]
