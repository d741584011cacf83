"""Leases: who is alive, what is lost, and how claims of the lapsed pass on."""

from __future__ import annotations

import math
from typing import Any

import pytest

from stoker.admin import documents
from stoker.engines.base import LEASE, ORPHANED_AFTER
from stoker.model.control import Tuning
from stoker.model.errors import InvalidInput
from stoker.model.job import Claim, Demand, Status, Verdict
from stoker.model.orders import Orders, ordered, read
from stoker.model.outcome import Canceled, Done, Failed, HandedBack, Lost
from stoker.model.query import Cancel, Query, Selection
from stoker.model.retry import Curve
from stoker.model.time import HOUR, LONGEST, MINUTE, SECOND, rfc3339
from stoker.testing.conformance.harness import Store


async def _lapse(store: Store, n: int = 1, worker: str = "lapsed") -> list[Claim]:
    """Claims of a worker whose lease has just lapsed."""
    await store.insert(*(store.draft() for _ in range(n)))
    claims = await store.claim(worker, n)
    assert len(claims) == n
    store.pass_time(LEASE + 1)
    return claims


async def _reap(store: Store, by: str = "reaper", limit: int = 100, dead: tuple[str, ...] = ()) -> list[Claim]:
    await store.enlist(by)
    return await store.engine.jobs.reap(by, limit, dead=dead)


# --- renewing -------------------------------------------------------------------------------------------------------


@pytest.mark.core
@pytest.mark.spec("LEASE-01")
async def test_a_worker_is_known_after_its_first_renewal(store: Store) -> None:
    """A stranger is unknown; with first it gets a lease, and a repeated first renewal is harmless."""
    assert not (await store.engine.jobs.renew("w1", [])).known
    renewal = await store.engine.jobs.renew("w1", [], first=True)
    assert (renewal.known, renewal.lost, renewal.canceling, renewal.orphaned) == (True, [], [], [])
    assert (await store.engine.jobs.renew("w1", [], first=True)).known
    assert (await store.engine.jobs.renew("w1", [])).known


@pytest.mark.spec("LEASE-01")
async def test_an_unknown_worker_that_renews_gets_no_lease(store: Store) -> None:
    """A renewal that returns unknown leaves nothing behind: no lease, no claim."""
    await store.add()
    assert not (await store.engine.jobs.renew("w1", [])).known
    assert await store.engine.jobs.claim(Demand("w1", (("default", 1),))) == []


@pytest.mark.core
@pytest.mark.spec("LEASE-18")
async def test_a_renewal_returns_the_orders_of_its_worker(store: Store) -> None:
    """As they are stored, each time, also with claims in hand; not those of another worker."""
    await store.enlist("w1")
    await store.enlist("w2")
    assert (await store.engine.jobs.renew("w1", [])).orders is None
    quiet = ordered(None, "w1", "quiet", store.now())
    assert await documents.put_orders(store.engine, None, quiet)
    await store.insert(*(store.draft() for _ in range(3)))
    held = [(claim.id, claim.token) for claim in await store.claim("w1", 3)]
    for pairs in (held, [], held):
        assert read((await store.engine.jobs.renew("w1", pairs)).orders) == quiet
    assert (await store.engine.jobs.renew("w2", [])).orders is None
    more = ordered(quiet, "w1", "stack", store.now())
    assert not await documents.put_orders(store.engine, Orders(worker="w1"), more), "others were stored meanwhile"
    assert await documents.put_orders(store.engine, quiet, more)
    assert read((await store.engine.jobs.renew("w1", held)).orders) == more
    await documents.drop(store.engine, more)
    assert (await store.engine.jobs.renew("w1", held)).orders is None


@pytest.mark.core
@pytest.mark.spec("LEASE-02")
async def test_renewing_keeps_a_long_run_safe(store: Store) -> None:
    """A handler may run far longer than a lease as long as its worker renews."""
    job = await store.add()
    claim = await store.take("w1")
    for _ in range(20):
        store.pass_time(LEASE)
        assert await _reap(store) == []
        renewal = await store.engine.jobs.renew("w1", [(job, claim.token)])
        assert (renewal.known, renewal.lost) == (True, [])
    assert await store.finish(claim, Done()) is Verdict.APPLIED


@pytest.mark.core
@pytest.mark.spec("LEASE-02")
async def test_a_lease_exactly_at_its_end_has_not_lapsed(store: Store) -> None:
    """Nothing is reaped at the last instant of a lease; one microsecond later it is."""
    await store.add()
    await store.take("w1")
    store.pass_time(LEASE)
    assert await _reap(store) == []
    store.pass_time(1)
    assert len(await _reap(store)) == 1


@pytest.mark.spec("LEASE-02")
async def test_a_renewal_counts_from_now(store: Store) -> None:
    """A lease ends one lease after the last renewal, with the length that renewal asked for."""
    await store.add()
    await store.take("w1")
    store.pass_time(10 * SECOND)
    await store.engine.jobs.renew("w1", [], lease=MINUTE)
    store.pass_time(MINUTE)
    assert await _reap(store) == []
    store.pass_time(1)
    assert len(await _reap(store)) == 1


@pytest.mark.spec("LEASE-02")
async def test_a_lapsed_worker_that_was_not_reaped_may_renew(store: Store) -> None:
    """Lapsing alone does not make a worker unknown; it goes on with what it holds."""
    [claim] = await _lapse(store)
    renewal = await store.engine.jobs.renew("lapsed", [(claim.id, claim.token)])
    assert (renewal.known, renewal.lost) == (True, [])
    assert await _reap(store) == []


@pytest.mark.core
@pytest.mark.spec("LEASE-03")
async def test_a_renewal_tells_what_is_lost(store: Store) -> None:
    """Held but finished, put back, re-claimed, forced away or never existing: lost. Still running here: not."""
    await store.insert(*(store.draft() for _ in range(5)))
    keep, done, back, forced, retaken = await store.claim("w1", 5)
    await store.finish(done, Done())
    await store.finish(back, Failed("boom", after=HOUR))
    await store.engine.operator.alter(Selection((forced.id,)), Cancel(force=True))
    await store.finish(retaken, HandedBack())
    fresh = await store.take("w1")
    assert fresh.id == retaken.id
    unknown = (store.mint(), store.now())
    held = [(claim.id, claim.token) for claim in (keep, done, back, forced, retaken, fresh)]
    renewal = await store.engine.jobs.renew("w1", [*held, unknown])
    lost = [(claim.id, claim.token) for claim in (done, back, forced, retaken)]
    assert sorted(renewal.lost) == sorted([*lost, unknown])
    assert (renewal.known, renewal.canceling, renewal.orphaned) == (True, [], [])


@pytest.mark.spec("LEASE-03")
async def test_a_job_held_by_another_worker_is_lost(store: Store) -> None:
    """The token of another worker's claim does not give a worker the claim."""
    await store.add()
    claim = await store.take("w1")
    await store.enlist("w2")
    assert (await store.engine.jobs.renew("w2", [(claim.id, claim.token)])).lost == [(claim.id, claim.token)]
    assert (await store.engine.jobs.renew("w1", [(claim.id, claim.token)])).lost == []


@pytest.mark.core
@pytest.mark.spec("LEASE-04")
async def test_a_claim_its_worker_never_got_is_an_orphan(store: Store) -> None:
    """Stored under the worker, not held, and older than five seconds: it comes back as a whole claim."""
    job = await store.add(payload=b"[1]")
    claim = await store.take("w1")
    store.pass_time(ORPHANED_AFTER)
    assert (await store.engine.jobs.renew("w1", [])).orphaned == []
    store.pass_time(1)
    [orphan] = (await store.engine.jobs.renew("w1", [])).orphaned
    assert (orphan.id, orphan.worker, orphan.token) == (job, "w1", claim.token)
    assert (orphan.payload, orphan.attempt, orphan.kind) == (b"[1]", 1, "work")
    assert (await store.engine.jobs.renew("w1", [(job, claim.token)])).orphaned == []


@pytest.mark.spec("LEASE-04")
async def test_an_orphan_is_handed_back_without_cost(store: Store) -> None:
    """The orphan's claim can be settled: the job is pending again and its attempt refunded."""
    job = await store.add(attempts=1)
    await store.take("w1")
    store.pass_time(ORPHANED_AFTER + 1)
    [orphan] = (await store.engine.jobs.renew("w1", [])).orphaned
    assert await store.finish(orphan, HandedBack()) is Verdict.APPLIED
    assert (await store.engine.jobs.renew("w1", [])).orphaned == []
    claim = await store.take("w2")
    assert (claim.id, claim.attempt) == (job, 1)


@pytest.mark.spec("LEASE-04")
async def test_an_orphan_that_was_asked_to_stop_ends_canceled(store: Store) -> None:
    """A cancel request is not lost with the reply to the claim."""
    job = await store.add()
    await store.take("w1")
    await store.engine.operator.alter(Selection((job,)), Cancel())
    store.pass_time(ORPHANED_AFTER + 1)
    [orphan] = (await store.engine.jobs.renew("w1", [])).orphaned
    assert orphan.cancel_requested
    assert await store.finish(orphan, HandedBack()) is Verdict.APPLIED
    assert await store.status(job) is Status.CANCELED


@pytest.mark.spec("LEASE-04")
async def test_an_old_token_does_not_hide_an_orphan(store: Store) -> None:
    """Holding an earlier claim of the job is not holding the one that is stored."""
    await store.add()
    old = await store.take("w1")
    await store.finish(old, HandedBack())
    fresh = await store.take("w1")
    store.pass_time(ORPHANED_AFTER + 1)
    renewal = await store.engine.jobs.renew("w1", [(old.id, old.token)])
    assert renewal.lost == [(old.id, old.token)]
    assert [claim.token for claim in renewal.orphaned] == [fresh.token]


# --- reaping --------------------------------------------------------------------------------------------------------


@pytest.mark.core
@pytest.mark.spec("LEASE-05")
async def test_a_lapsed_claim_passes_to_the_reaper(store: Store) -> None:
    """New owner, higher token, same attempt, with former owner and former claim time; the job keeps running."""
    [old] = await _lapse(store)
    [taken] = await _reap(store)
    assert (taken.id, taken.worker, taken.attempt) == (old.id, "reaper", old.attempt)
    assert taken.token > old.token
    assert (taken.former, taken.former_at) == ("lapsed", old.claimed_at)
    assert (taken.payload, taken.queue, taken.budget) == (old.payload, old.queue, old.budget)
    record = await store.job(old.id)
    assert (record.status, record.worker, record.token) == (Status.RUNNING, "reaper", taken.token)
    assert (record.attempts, record.history, record.last_error) == (1, (), None)
    assert await store.counts() == {Status.RUNNING: 1}


@pytest.mark.core
@pytest.mark.spec("LEASE-06")
async def test_a_reaped_job_tells_what_happened(store: Store) -> None:
    """Settled as lost it waits for its retry; its error names the visibility timeout, the owner and the claim time."""
    [old] = await _lapse(store)
    [taken] = await _reap(store)
    assert await store.finish(taken, Lost()) is Verdict.APPLIED
    record = await store.job(old.id)
    assert (record.status, record.attempts, record.scheduled_at) == (Status.RETRYING, 1, store.now())
    error = record.last_error or ""
    assert "visibility timeout" in error
    assert "lapsed" in error
    assert rfc3339(old.claimed_at) in error
    assert [(failure.attempt, failure.error) for failure in record.history] == [(1, error)]
    assert (await store.take("next")).attempt == 2


@pytest.mark.spec("LEASE-06")
async def test_the_last_allowed_run_that_lapses_is_final(store: Store) -> None:
    """A lapse of the last attempt ends dead instead of running once more."""
    job = await store.add(attempts=1)
    await store.take("w1")
    store.pass_time(LEASE + 1)
    [taken] = await _reap(store)
    await store.finish(taken, Lost())
    record = await store.job(job)
    assert (record.status, record.worker) == (Status.DEAD, None)
    assert "visibility timeout" in (record.last_error or "")


@pytest.mark.spec("LEASE-06")
async def test_a_lapse_waits_by_the_queues_curve(store: Store) -> None:
    """With the curve on a reaped job waits like a failed one; without it there is no wait."""
    await store.engine.control.tune("default", Tuning(curve=Curve(on=True, base=10 * SECOND, max=HOUR)))
    [old] = await _lapse(store)
    [taken] = await _reap(store)
    await store.finish(taken, Lost())
    assert (await store.job(old.id)).scheduled_at == store.now() + 20 * SECOND


@pytest.mark.core
@pytest.mark.spec("LEASE-07")
async def test_a_reaped_worker_is_unknown_for_ever(store: Store) -> None:
    """It cannot renew, cannot claim, and what it settles is lost; also much later."""
    [old] = await _lapse(store)
    [taken] = await _reap(store)
    await store.add()
    for _ in range(2):
        assert not (await store.engine.jobs.renew("lapsed", [(old.id, old.token)])).known
        assert await store.engine.jobs.claim(Demand("lapsed", (("default", 5),))) == []
        store.pass_time(HOUR)
    assert await store.finish(old, Done()) is Verdict.LOST
    assert await store.finish(taken, Done()) is Verdict.APPLIED
    assert not (await store.engine.jobs.renew("lapsed", [])).known


@pytest.mark.spec("LEASE-07")
async def test_a_reaped_worker_cannot_start_over_under_its_old_name(store: Store) -> None:
    """A first renewal is for workers never seen: one that was reaped must take a new name."""
    await _lapse(store)
    await _reap(store)
    await store.add()
    assert not (await store.engine.jobs.renew("lapsed", [], first=True)).known
    assert await store.engine.jobs.claim(Demand("lapsed", (("default", 5),))) == []


@pytest.mark.spec("LEASE-07")
async def test_a_partly_reaped_worker_loses_the_rest_later(store: Store) -> None:
    """A limit may leave claims behind; the next reap takes them and then the worker is unknown."""
    claims = await _lapse(store, 3)
    assert len(await _reap(store, limit=2)) == 2
    [last] = await _reap(store, limit=2)
    assert last.id == claims[2].id
    assert not (await store.engine.jobs.renew("lapsed", [])).known


@pytest.mark.spec("LEASE-08")
async def test_a_reap_takes_the_oldest_claims_first(store: Store) -> None:
    """Over all lapsed workers the longest running claim goes first, up to the limit."""
    ids = []
    for worker in ("w3", "w1", "w2"):
        ids.append(await store.add())
        await store.take(worker)
        store.pass_time(SECOND)
    store.pass_time(MINUTE)
    reaped = [await _reap(store, limit=1) for _ in range(4)]
    assert [[claim.id for claim in claims] for claims in reaped] == [[ids[0]], [ids[1]], [ids[2]], []]


@pytest.mark.spec("LEASE-08")
async def test_reaping_twice_moves_nothing_the_second_time(store: Store) -> None:
    """What was taken is not taken again, by the same reaper or another living one."""
    await _lapse(store, 3)
    assert len(await _reap(store)) == 3
    assert await _reap(store) == []
    assert await _reap(store, by="second") == []


@pytest.mark.spec("LEASE-08")
async def test_reaping_without_a_lapsed_worker_moves_nothing(store: Store) -> None:
    """Waiting, finished and healthy running jobs are of no interest to a reaper."""
    ids = await store.insert(*(store.draft() for _ in range(3)))
    await store.finish(await store.take("w1"), Done())
    await store.take("w1")
    before = await store.snapshot(ids)
    assert await _reap(store) == []
    assert await store.snapshot(ids) == before


@pytest.mark.core
@pytest.mark.spec("LEASE-09")
async def test_a_job_finished_before_the_reap_stays_done(store: Store) -> None:
    """A lapsed worker that settles first wins; the reaper finds nothing and revives nothing."""
    done, running = await _lapse(store, 2)
    await store.finish(done, Done(b"1"))
    assert [claim.id for claim in await _reap(store)] == [running.id]
    record = await store.job(done.id)
    assert (record.status, record.result) == (Status.DONE, b"1")
    held = (await store.engine.operator.find(Query(statuses=frozenset({Status.RUNNING})))).jobs
    assert [(job.id, job.worker) for job in held] == [(running.id, "reaper")]


@pytest.mark.spec("LEASE-09")
async def test_a_reaped_claim_that_its_reaper_settled_is_over(store: Store) -> None:
    """The reaper's settlement is fenced like any other: sent twice it applies once."""
    [old] = await _lapse(store)
    [taken] = await _reap(store)
    await store.finish(taken, Lost())
    before = await store.snapshot([old.id])
    assert await store.finish(taken, Lost()) in {Verdict.LOST, Verdict.REPEATED}
    assert await store.snapshot([old.id]) == before


@pytest.mark.core
@pytest.mark.spec("LEASE-10")
async def test_a_worker_never_reaps_itself(store: Store) -> None:
    """Neither its own stale lease nor its own name among the dead makes a worker take its own claims."""
    await store.add()
    claim = await store.take("w1")
    assert await store.engine.jobs.reap("w1", 10, dead=["w1"]) == []
    store.pass_time(LEASE + 1)
    assert await store.engine.jobs.reap("w1", 10) == []
    assert await store.engine.jobs.reap("w1", 10, dead=["w1"]) == []
    assert await store.finish(claim, Done()) is Verdict.APPLIED


@pytest.mark.spec("LEASE-10")
async def test_only_the_living_reap(store: Store) -> None:
    """A worker without a live lease is given nothing, so no claim passes to a worker that is gone."""
    [claim] = await _lapse(store)
    before = await store.snapshot([claim.id])
    assert await store.engine.jobs.reap("stranger", 10) == []
    assert await store.snapshot([claim.id]) == before


@pytest.mark.spec("LEASE-10")
async def test_workers_with_similar_names_are_different(store: Store) -> None:
    """Names are compared exactly: a peer whose name starts with the dead one's keeps its jobs."""
    mine, peers = await store.insert(store.draft(), store.draft())
    await store.take("host")
    await store.take("host-1")
    assert [claim.id for claim in await _reap(store, dead=("host",))] == [mine]
    assert (await store.job(peers)).worker == "host-1"


@pytest.mark.core
@pytest.mark.spec("LEASE-11")
async def test_workers_named_dead_are_reaped_at_once(store: Store) -> None:
    """A supervisor that saw its child die need not wait for the lease; the child is unknown afterwards."""
    job, other = await store.insert(store.draft(), store.draft())
    old = await store.take("child")
    await store.take("healthy")
    [taken] = await _reap(store, dead=("child", "never.seen"))
    assert (taken.id, taken.former, taken.former_at) == (job, "child", old.claimed_at)
    assert not (await store.engine.jobs.renew("child", [])).known
    assert (await store.engine.jobs.renew("healthy", [])).known
    assert (await store.job(other)).worker == "healthy"


@pytest.mark.core
@pytest.mark.spec("LEASE-12")
async def test_a_farewell_lapses_at_once(store: Store) -> None:
    """A renewal with a lease of nothing frees what is left for others at the same instant, and claims no more."""
    await store.insert(store.draft(), store.draft())
    claim = await store.take("leaving")
    assert (await store.engine.jobs.renew("leaving", [(claim.id, claim.token)], lease=0)).known
    assert await store.engine.jobs.claim(Demand("leaving", (("default", 1),))) == []
    [taken] = await _reap(store)
    assert (taken.id, taken.former) == (claim.id, "leaving")


@pytest.mark.core
@pytest.mark.spec("LEASE-13")
async def test_a_reaper_that_dies_is_reaped_in_turn(store: Store) -> None:
    """A takeover is itself a claim: when its owner lapses, the next one takes over, the attempt still the same."""
    [old] = await _lapse(store)
    [first] = await _reap(store, by="reaper-1")
    taken_at = store.now()
    store.pass_time(LEASE + 1)
    [second] = await _reap(store, by="reaper-2")
    assert (second.id, second.attempt, second.former) == (old.id, 1, "reaper-1")
    assert second.former_at == taken_at
    assert second.token > first.token
    assert await store.finish(first, Lost()) is Verdict.LOST
    assert await store.finish(second, Lost()) is Verdict.APPLIED
    assert (await store.job(old.id)).attempts == 1


@pytest.mark.spec("LEASE-13")
async def test_a_takeover_is_not_an_orphan_at_once(store: Store) -> None:
    """Reaped claims get the same five seconds to arrive as fresh ones."""
    await _lapse(store)
    await _reap(store)
    assert (await store.engine.jobs.renew("reaper", [])).orphaned == []
    store.pass_time(ORPHANED_AFTER + 1)
    assert len((await store.engine.jobs.renew("reaper", [])).orphaned) == 1


@pytest.mark.spec("LEASE-14")
async def test_a_shutdown_hands_back_only_its_own_jobs(store: Store) -> None:
    """What one worker puts back is pending as before its claim; the jobs of others go on."""
    await store.insert(*(store.draft() for _ in range(3)))
    mine = await store.claim("w1", 2)
    theirs = await store.take("w2")
    for claim in mine:
        assert await store.finish(claim, HandedBack()) is Verdict.APPLIED
    for claim in mine:
        record = await store.job(claim.id)
        assert (record.status, record.attempts, record.worker) == (Status.PENDING, 0, None)
    assert (await store.job(theirs.id)).worker == "w2"
    assert [claim.id for claim in await store.claim("w2", 5)] == [claim.id for claim in mine]


@pytest.mark.spec("LEASE-15")
async def test_a_lapse_does_not_forget_a_cancel(store: Store) -> None:
    """The reaper sees the request in the claim it takes over, and the job ends canceled instead of running again."""
    job = await store.add()
    await store.take("w1")
    await store.engine.operator.alter(Selection((job,)), Cancel())
    store.pass_time(LEASE + 1)
    [taken] = await _reap(store)
    assert taken.cancel_requested
    assert await store.finish(taken, Lost()) is Verdict.APPLIED
    assert await store.status(job) is Status.CANCELED
    assert await store.claim("w2") == []


@pytest.mark.spec("LEASE-15")
async def test_a_renewal_tells_who_was_asked_to_stop(store: Store) -> None:
    """Only the flagged one of the held jobs is named, again and again until it ends."""
    await store.insert(store.draft(), store.draft())
    one, two = await store.claim("w1", 2)
    await store.engine.operator.alter(Selection((one.id,)), Cancel())
    held = [(one.id, one.token), (two.id, two.token)]
    for _ in range(2):
        renewal = await store.engine.jobs.renew("w1", held)
        assert (renewal.canceling, renewal.lost) == ([(one.id, one.token)], [])
    assert await store.finish(one, Canceled()) is Verdict.APPLIED
    renewal = await store.engine.jobs.renew("w1", held)
    assert (renewal.canceling, renewal.lost) == ([], [(one.id, one.token)])


@pytest.mark.core
@pytest.mark.spec("LEASE-16")
@pytest.mark.parametrize(
    "lease",
    [-1, -LEASE, LONGEST + 1, 10**30, math.nan, math.inf, 1.5, "15", None, True],
    ids=["-1", "negative", "ten years and more", "huge", "nan", "infinite", "a fraction", "text", "none", "yes"],
)
async def test_an_impossible_lease_is_refused_and_changes_nothing(store: Store, lease: Any) -> None:
    """Neither a first renewal nor a later one takes it; the earlier lease stays."""
    for known in (False, True):
        with pytest.raises(InvalidInput) as refused:
            await store.engine.jobs.renew("w1", [], lease=lease, first=True)
        assert refused.value.field == "lease"
        assert (await store.engine.jobs.renew("w1", [])).known is known
        if not known:
            await store.enlist("w1")
    await store.add()
    store.pass_time(LEASE)
    [claim] = await store.engine.jobs.claim(Demand("w1", (("default", 1),)))
    assert claim.worker == "w1"


@pytest.mark.spec("LEASE-16")
async def test_the_longest_lease_is_taken(store: Store) -> None:
    """Ten years, and no other worker gets its jobs."""
    await store.add()
    await store.enlist("w1", LONGEST)
    await store.engine.jobs.claim(Demand("w1", (("default", 1),)))
    store.pass_time(1_000 * LEASE)
    await store.enlist("w2")
    assert await store.engine.jobs.reap("w2", 10) == []
