"""Limits by key: of the jobs of one queue that share a name and a key no more run than allowed."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from stoker.engines.base import LEASE, Feature
from stoker.model.ahead import Ahead
from stoker.model.control import Tuning
from stoker.model.ids import JobId
from stoker.model.job import Claim, Demand, Draft, Options, Status, Stored, Verdict
from stoker.model.lifecycle import conclude
from stoker.model.limit import Slot
from stoker.model.outcome import (
    Canceled,
    Done,
    Failed,
    HandedBack,
    Outcome,
    Snoozed,
    Throttled,
)
from stoker.model.query import (
    Cancel,
    Clone,
    Delete,
    Expired,
    Move,
    Prioritize,
    Query,
    Repair,
    Requeue,
    Restore,
    Retention,
    RunNow,
    Selection,
    Sweep,
)
from stoker.model.subqueues import SubqueueView
from stoker.model.time import HOUR, MINUTE, SECOND
from stoker.model.unique import Unique
from stoker.testing.conformance.harness import ARRIVES, QUEUE, Miscount, Store, needs


def limited(store: Store, key: str | None = "a", n: int | None = 1, **options: Any) -> Draft:
    """A draft under a limit."""
    slot = Slot(options.pop("name", "api"), key, n, options.pop("hold", "running"), options.pop("rate", None))
    return store.draft(options.pop("kind", "work"), options=Options(limit=slot), **options)


def ids(claims: Sequence[Claim]) -> list[JobId]:
    return [claim.id for claim in claims]


async def running(store: Store, queue: str = QUEUE) -> dict[str, int]:
    """What the store says runs in each subqueue of which something runs or waits."""
    views = await store.engine.subqueues(queue)
    return {one.name: one.running for one in views if one.running or one.due is not None}


async def alter(store: Store, change: Any, *jobs: JobId) -> None:
    """Change jobs; every one of them must be changed or asked to stop."""
    tally = await store.engine.alter(Selection(tuple(jobs)), change)
    assert tally.changed + tally.cancel_requested == len(jobs)


# --- what a limit holds back ------------------------------------------------------------------------------------


@pytest.mark.core
@pytest.mark.spec("LIMIT-01")
async def test_no_more_jobs_of_a_key_run_than_its_limit(store: Store) -> None:
    """Of five jobs two run; each that ends lets one start, however many workers ask."""
    jobs = await store.insert(*(limited(store, n=2) for _ in range(5)))
    first = await store.claim("w1", n=9)
    assert ids(first) == jobs[:2]
    assert await store.claim("w2", n=9) == []
    await store.finish(first[0], Done())
    second = await store.claim("w2", n=9)
    assert ids(second) == jobs[2:3]
    assert await store.claim("w1", n=9) == []
    await store.finish(first[1], Done())
    await store.finish(second[0], Done())
    assert ids(await store.claim("w1", n=9)) == jobs[3:]


@pytest.mark.core
@pytest.mark.spec("LIMIT-02")
async def test_a_full_key_hinders_nobody_else(store: Store) -> None:
    """Behind a full key other keys, plain jobs and lower priorities start at once."""
    await store.insert(*(limited(store, priority=-5) for _ in range(20)))
    assert len(await store.claim(n=9)) == 1
    other = await store.insert(limited(store, "b"), store.draft(), store.draft(priority=9), limited(store, None))
    found = await store.claim(n=9)
    assert set(ids(found)) == set(other)
    assert await store.claim(n=9) == []


@pytest.mark.core
@pytest.mark.spec("LIMIT-03")
async def test_the_order_is_that_of_the_queue(store: Store) -> None:
    """Priority, due time, id, over the main line and all keys together."""
    drafts: list[Draft] = []
    for n in range(24):
        options: dict[str, Any] = {"priority": n % 3, "at": store.now() - (n * 7 % 5)}
        drafts.append(store.draft(**options) if n % 4 == 0 else limited(store, f"k{n % 4}", 20, **options))
    await store.insert(*drafts)
    expected = [one.id for one in sorted(drafts, key=lambda one: (one.priority, one.at, one.id))]
    found: list[JobId] = []
    for n in (1, 2, 5, 7, 9):
        found += ids(await store.claim(n=n))
    assert found == expected


@pytest.mark.core
@pytest.mark.spec("LIMIT-03")
async def test_a_job_of_a_key_that_becomes_due_goes_before_those_of_lower_priority(store: Store) -> None:
    """The head of a key changes with time alone."""
    late = limited(store, n=5, priority=-1, delay=SECOND)
    early = [limited(store, n=5, priority=1) for _ in range(2)]
    plain = store.draft(priority=0)
    await store.insert(late, *early, plain)
    assert ids(await store.claim()) == [plain.id]
    assert ids(await store.claim()) == [early[0].id]
    store.pass_time(SECOND)
    assert ids(await store.claim(n=9)) == [late.id, early[1].id]


@pytest.mark.core
@pytest.mark.spec("LIMIT-16")
async def test_a_delayed_job_of_a_key_blocks_nobody(store: Store) -> None:
    """Later jobs of its key run before it; it runs when it is due."""
    late = await store.insert(limited(store, delay=MINUTE))
    soon = await store.insert(limited(store))
    await store.finish(await store.take(), Done())
    assert await store.status(soon[0]) is Status.DONE
    assert await store.claim() == []
    assert (await store.engine.ahead([QUEUE])).wait == MINUTE
    store.pass_time(MINUTE)
    assert ids(await store.claim()) == late


@pytest.mark.spec("LIMIT-17")
async def test_a_limit_without_a_key_counts_all_jobs_of_its_name(store: Store) -> None:
    jobs = await store.insert(*(limited(store, None, 2) for _ in range(4)))
    assert ids(await store.claim(n=9)) == jobs[:2]


@pytest.mark.spec("LIMIT-18")
async def test_jobs_of_different_kinds_share_a_limit_by_its_name(store: Store) -> None:
    """The name counts, not the kind; and not the queue: another one counts by itself."""
    jobs = await store.insert(*(limited(store, name="gpu", kind=kind, n=2) for kind in ("cut", "join", "cut")))
    await store.insert(*(limited(store, name="gpu", kind="cut", n=2, queue="other") for _ in range(3)))
    assert ids(await store.claim(n=9)) == jobs[:2]
    assert len(await store.claim(n=9, queue="other")) == 2
    assert len(await store.claim(n=9)) == 0


@pytest.mark.spec("LIMIT-19")
async def test_the_newest_job_sets_the_number_of_its_key(store: Store) -> None:
    """A deployment raises a limit at once; lowering it stops nothing that runs."""
    jobs = await store.insert(*(limited(store, n=1) for _ in range(3)))
    first = await store.claim(n=9)
    assert ids(first) == jobs[:1]
    jobs += await store.insert(limited(store, n=3))
    second = await store.claim(n=9)
    assert ids(second) == jobs[1:3]
    await store.insert(limited(store, n=1))
    assert await store.claim(n=9) == []
    for claim in (*first, *second):
        assert await store.finish(claim, Done()) is Verdict.APPLIED
    assert ids(await store.claim(n=9)) == jobs[3:4]


@pytest.mark.spec("LIMIT-29")
async def test_a_thousand_jobs_of_a_thousand_keys_start_in_order(store: Store) -> None:
    drafts = [limited(store, f"key {n}") for n in range(1_000)]
    await store.insert(*drafts)
    found: list[JobId] = []
    for n in (1, 99, 400, 1_000):
        found += ids(await store.claim(n=n))
    assert found == [one.id for one in drafts]
    assert await store.claim(n=9) == []


@pytest.mark.core
@pytest.mark.spec("LIMIT-34")
async def test_two_engines_and_fifty_claims_at_once_never_exceed_a_limit(store: Store) -> None:
    """Whoever asks, and however often: of each key as many start as its limit says, and none is left behind."""
    keys = {"a": 1, "b": 3, "c": 5}
    await store.insert(*(limited(store, key, n) for key, n in keys.items() for _ in range(20)))
    twin = store.engine.for_loop()
    await twin.open()
    try:
        for worker in range(5):
            await store.enlist(f"w{worker}", lease=9 * LEASE)
        for round_ in range(3):
            demands = [Demand(f"w{n % 5}", ((QUEUE, n % 4 + 1),)) for n in range(50)]
            engines = (store.engine, twin)
            found = await asyncio.gather(*(engines[n % 2].claim(demand) for n, demand in enumerate(demands)))
            claims = [claim for one in found for claim in one]
            # A claim that met another one may have come back short: what is left is there for the next.
            claims += await store.engine.claim(Demand("w0", ((QUEUE, 50),)))
            assert len({claim.id for claim in claims}) == len(claims)
            counted = {key: sum(_key(claim) == key for claim in claims) for key in keys}
            assert counted == keys, round_
            verdicts = await asyncio.gather(
                *(engines[n % 2].settle([conclude(one, Done())]) for n, one in enumerate(claims))
            )
            assert all(one.verdicts == [Verdict.APPLIED] for one in verdicts)
    finally:
        await twin.close()


def _key(claim: Claim) -> str | None:
    assert claim.options.limit is not None
    return claim.options.limit.key


# --- how a slot comes back --------------------------------------------------------------------------------------


_ENDS: dict[str, tuple[Outcome, Status]] = {
    "LIMIT-04": (Done(), Status.DONE),
    "LIMIT-05": (Failed("broken", retry=False), Status.DEAD),
    "LIMIT-06": (Canceled(), Status.CANCELED),
    "LIMIT-08": (Failed("broken", after=MINUTE), Status.RETRYING),
    "LIMIT-09": (Snoozed(MINUTE), Status.PENDING),
    "LIMIT-10": (Throttled(queue=False, retry_after=MINUTE), Status.PENDING),
}


@pytest.mark.core
@pytest.mark.spec("LIMIT-04", "LIMIT-05", "LIMIT-06", "LIMIT-08", "LIMIT-09", "LIMIT-10")
@pytest.mark.parametrize("case", _ENDS)
async def test_an_end_frees_the_slot(store: Store, case: str) -> None:
    """However a run ends: the next job of the key starts, and one that was put back waits for its turn."""
    outcome, status = _ENDS[case]
    jobs = await store.insert(limited(store), limited(store))
    claim = await store.take()
    assert await store.finish(claim, outcome) is Verdict.APPLIED
    assert await store.status(jobs[0]) is status
    assert ids(await store.claim(n=9)) == jobs[1:]
    assert (await running(store))["api/a"] == 1


@pytest.mark.core
@pytest.mark.spec("LIMIT-06", "LIMIT-15")
async def test_a_cancel_request_keeps_the_slot_until_the_run_ends(store: Store) -> None:
    jobs = await store.insert(limited(store), limited(store))
    claim = await store.take()
    await alter(store, Cancel(), jobs[0])
    assert await store.claim(n=9) == []
    assert await store.finish(claim, Canceled()) is Verdict.APPLIED
    assert ids(await store.claim(n=9)) == jobs[1:]


@pytest.mark.core
@pytest.mark.spec("LIMIT-07", "LIMIT-14")
async def test_a_forced_cancel_frees_the_slot_once(store: Store) -> None:
    """The worker's own settlement comes too late and frees nothing again."""
    jobs = await store.insert(*(limited(store) for _ in range(3)))
    claim = await store.take()
    await alter(store, Cancel(force=True), jobs[0])
    assert ids(await store.claim(n=9)) == jobs[1:2]
    assert await store.finish(claim, Done()) is Verdict.LOST
    assert await store.claim(n=9) == []
    assert await running(store) == {"api/a": 1}


@pytest.mark.core
@pytest.mark.spec("LIMIT-11")
async def test_a_hand_back_frees_the_slot(store: Store) -> None:
    """The job that was handed back is the first again."""
    jobs = await store.insert(limited(store), limited(store))
    assert await store.finish(await store.take(), HandedBack()) is Verdict.APPLIED
    assert ids(await store.claim("w2", n=9)) == jobs[:1]


@pytest.mark.core
@pytest.mark.spec("LIMIT-12", "LIMIT-14", "LIMIT-15")
async def test_a_reaped_claim_keeps_its_slot_until_it_ends(store: Store) -> None:
    """The slot passes on with the claim; the zombie's settlement frees nothing, that of the new owner once."""
    jobs = await store.insert(*(limited(store) for _ in range(3)))
    zombie = await store.take("w1")
    store.pass_time(LEASE + 1)
    await store.enlist("w2")
    [passed] = await store.engine.reap("w2", 9)
    assert passed.options.limit == zombie.options.limit
    assert await store.claim("w2", n=9) == []
    assert await store.finish(zombie, Done()) is Verdict.LOST
    assert await store.claim("w2", n=9) == []
    assert await store.finish(passed, Done()) is Verdict.APPLIED
    assert ids(await store.claim("w2", n=9)) == jobs[1:2]
    assert await store.finish(zombie, Done()) is Verdict.LOST
    assert await store.claim("w2", n=9) == []


@pytest.mark.core
@pytest.mark.spec("LIMIT-14")
async def test_a_repeated_settlement_frees_nothing_again(store: Store) -> None:
    await store.insert(*(limited(store) for _ in range(3)))
    claim = await store.take()
    assert await store.finish(claim, Done()) is Verdict.APPLIED
    second = await store.take()
    assert await store.finish(claim, Done()) in (Verdict.REPEATED, Verdict.LOST)
    assert await store.claim(n=9) == []
    assert await store.finish(second, Done()) is Verdict.APPLIED
    assert len(await store.claim(n=9)) == 1


@pytest.mark.core
@pytest.mark.spec("LIMIT-15")
async def test_a_paused_or_cooling_queue_keeps_its_slots(store: Store) -> None:
    await store.insert(*(limited(store, n=2) for _ in range(4)))
    first, second = await store.claim(n=2)
    await store.engine.tune(QUEUE, Tuning(paused=True))
    assert await store.finish(first, Done()) is Verdict.APPLIED
    assert await store.claim(n=9) == []
    assert (await running(store))["api/a"] == 1
    await store.engine.tune(QUEUE, Tuning(paused=False))
    assert len(await store.claim(n=9)) == 1
    assert await store.finish(second, Throttled(retry_after=MINUTE)) is Verdict.APPLIED
    assert await store.claim(n=9) == []
    store.pass_time(MINUTE)
    assert len(await store.claim("w2", n=9)) == 1


@pytest.mark.spec("LIMIT-33")
async def test_a_settlement_with_a_demand_takes_the_slot_it_freed(store: Store) -> None:
    jobs = await store.insert(*(limited(store) for _ in range(3)))
    claim = await store.take()
    demand = Demand("w1", ((QUEUE, 5),))
    settled = await store.engine.settle([conclude(claim, Done())], demand=demand)
    assert ids(settled.claims) == jobs[1:2]
    settled = await store.engine.settle([conclude(settled.claims[0], Snoozed(HOUR))], demand=demand)
    assert ids(settled.claims) == jobs[2:]


@pytest.mark.core
@pytest.mark.spec("LIMIT-35")
async def test_a_slot_that_is_freed_wakes_a_waiter(store: Store) -> None:
    """And nothing says that a worker must look before: a full key is no due job."""
    await store.insert(limited(store), limited(store))
    claim = await store.take()
    assert await store.engine.ahead([QUEUE]) == Ahead(frozenset({QUEUE}), None)
    await store.quiet(QUEUE)
    waiting = asyncio.create_task(store.engine.wait([QUEUE], ARRIVES))
    await asyncio.sleep(0)
    await store.finish(claim, Done())
    assert await waiting == {QUEUE}
    assert (await store.engine.ahead([QUEUE])).wait == 0


# --- what operators and newer jobs do ---------------------------------------------------------------------------


@pytest.mark.spec("LIMIT-20")
async def test_an_operators_number_counts_for_all_keys_of_a_name(store: Store) -> None:
    """Until it is cleared, whatever jobs bring; raising it wakes a waiter, lowering it stops nothing."""
    jobs = await store.insert(*(limited(store, key) for _ in range(3) for key in ("a", "b")))
    assert ids(await store.claim(n=9)) == jobs[:2]
    await store.quiet(QUEUE)
    waiting = asyncio.create_task(store.engine.wait([QUEUE], ARRIVES))
    await asyncio.sleep(0)
    assert await store.engine.tune(QUEUE, Tuning(limits=(("api", 2),)))
    assert await waiting == {QUEUE}
    second = await store.claim(n=9)
    assert ids(second) == jobs[2:4]
    views = await store.engine.subqueues(QUEUE)
    assert [(one.name, one.running, one.most, one.pinned) for one in views] == [
        ("api/a", 2, 2, True),
        ("api/b", 2, 2, True),
    ]
    jobs += await store.insert(*(limited(store, "c", n=1) for _ in range(3)))
    assert ids(await store.claim(n=9)) == jobs[6:8]
    assert await store.engine.tune(QUEUE, Tuning(limits=(("api", None),)))
    assert not await store.engine.tune(QUEUE, Tuning(limits=(("api", None),)))
    assert await store.claim(n=9) == []
    for claim in second:
        assert await store.finish(claim, Done()) is Verdict.APPLIED
    assert await store.claim(n=9) == []
    [queue] = [one for one in await store.engine.queues() if one.name == QUEUE]
    assert queue.limits == ()


@pytest.mark.core
@pytest.mark.spec("LIMIT-21")
async def test_a_moved_job_counts_in_its_new_queue(store: Store) -> None:
    """It leaves one subqueue and joins the other queue's."""
    needs(store, Feature.ACROSS_QUEUES)
    jobs = await store.insert(limited(store), limited(store), limited(store, queue="other"))
    first = await store.take(queue="other")
    await alter(store, Move("other"), jobs[0])
    assert ids(await store.claim(n=9)) == jobs[1:2]
    assert await store.claim(n=9, queue="other") == []
    await store.finish(first, Done())
    assert ids(await store.claim(n=9, queue="other")) == jobs[:1]
    assert await running(store) == await running(store, "other") == {"api/a": 1}


@pytest.mark.spec("LIMIT-22", "LIMIT-23")
async def test_prioritize_and_run_now_give_a_new_place_in_the_key(store: Store) -> None:
    jobs = await store.insert(limited(store, n=9), limited(store, n=9), limited(store, n=9, delay=HOUR))
    await alter(store, Prioritize(-1), jobs[1])
    assert ids(await store.claim()) == jobs[1:2]
    await alter(store, RunNow(), jobs[2])
    await alter(store, Prioritize(-9), jobs[2])
    assert ids(await store.claim(n=9)) == [jobs[2], jobs[0]]


@pytest.mark.core
@pytest.mark.spec("LIMIT-24")
async def test_a_replaced_job_has_the_limit_of_the_newer_draft(store: Store) -> None:
    """Another key, no key, and where the store can another queue."""
    unique = Unique("u", mode="replace")
    first, full = await store.insert(limited(store, unique=unique), limited(store))
    [receipt] = await store.engine.insert([limited(store, "b", unique=unique)])
    assert (receipt.id, receipt.stored) == (first, Stored.REPLACED)
    assert ids(await store.claim(n=9)) == [first, full]
    assert await running(store) == {"api/a": 1, "api/b": 1}
    [third] = await store.insert(limited(store, "c", unique=Unique("v", mode="replace")))
    [receipt] = await store.engine.insert([store.draft(unique=Unique("v", mode="replace"))])
    assert receipt.id == third
    assert ids(await store.claim(n=9)) == [third]
    assert "api/c" not in await running(store)
    if Feature.ACROSS_QUEUES in store.engine.features:
        [fourth] = await store.insert(limited(store, "d", unique=Unique("w", mode="replace")))
        await store.insert(limited(store, "d", unique=Unique("w", mode="replace"), queue="other"))
        assert await store.claim(n=9) == []
        assert ids(await store.claim(n=9, queue="other")) == [fourth]


@pytest.mark.spec("LIMIT-25")
async def test_a_superseded_job_leaves_its_key(store: Store) -> None:
    """A newer job ends the one that waits for its retry; the key goes on."""
    unique = Unique("u")
    await store.insert(limited(store, unique=unique))
    await store.finish(await store.take(), Failed("broken", after=0))
    [newer] = await store.insert(limited(store, unique=unique))
    assert ids(await store.claim(n=9)) == [newer]
    assert await running(store) == {"api/a": 1}


@pytest.mark.core
@pytest.mark.spec("LIMIT-26", "LIMIT-27")
async def test_requeued_and_cloned_jobs_join_their_key(store: Store) -> None:
    jobs = await store.insert(*(limited(store, attempts=1) for _ in range(2)))
    for _ in jobs:
        await store.finish(await store.take(), Failed("broken"))
    [blocker] = await store.insert(limited(store))
    holder = await store.take()
    await alter(store, Requeue(), jobs[0])
    clone = store.mint()
    await alter(store, Clone((clone,)), jobs[1])
    assert await store.claim(n=9) == []
    assert await store.finish(holder, Done()) is Verdict.APPLIED
    [claim] = await store.claim(n=9)
    assert claim.id in (jobs[0], clone)
    assert blocker not in ids([claim])
    await store.finish(claim, Done())
    assert {claim.id, *ids(await store.claim(n=9))} == {jobs[0], clone}


@pytest.mark.core
@pytest.mark.spec("LIMIT-30", "LIMIT-36")
async def test_canceled_and_deleted_jobs_leave_their_key(store: Store) -> None:
    """The head of a full key may go: the next one starts, and a key without jobs leaves nothing behind."""
    jobs = await store.insert(*(limited(store) for _ in range(4)))
    claim = await store.take()
    await alter(store, Cancel(), jobs[1])
    await alter(store, Cancel(), jobs[2])
    await alter(store, Delete(), jobs[2])
    await store.finish(claim, Done())
    [last] = await store.claim(n=9)
    assert last.id == jobs[3]
    await store.finish(last, Done())
    assert await store.claim(n=9) == []
    assert await store.engine.subqueues(QUEUE) == []


@pytest.mark.core
@pytest.mark.spec("LIMIT-28")
async def test_a_job_of_a_transaction_counts_if_it_commits(store: Store) -> None:
    """A rollback leaves nothing; an open transaction delays no other job of the key."""
    needs(store, Feature.OWN_TRANSACTION)
    engine = store.engine

    class Undone(Exception):
        pass

    with pytest.raises(Undone):
        async with engine.transaction() as tx:
            await engine.insert([limited(store)], tx=tx)
            raise Undone
    assert await store.claim(n=9) == []
    assert await store.engine.subqueues(QUEUE) == []
    async with engine.transaction() as tx:
        [receipt] = await engine.insert([limited(store)], tx=tx)
        if Feature.BESIDE_TRANSACTIONS in engine.features:
            other = await store.insert(limited(store))
            claim = await store.take()
            assert [claim.id] == other
            await store.finish(claim, Done())
    assert ids(await store.claim(n=9)) == [receipt.id]


@pytest.mark.spec("LIMIT-31")
async def test_subqueues_name_what_runs_and_who_holds(store: Store) -> None:
    """By name, page by page, with the number, the first due time and the holders."""
    jobs = await store.insert(*(limited(store, key, 2) for key in ("a", "b") for _ in range(3)))
    await store.insert(limited(store, None, 1, name="late", delay=HOUR), store.draft())
    await store.claim(n=9)
    views = await store.engine.subqueues(QUEUE)
    assert [msgspec.structs.replace(one, due=None) for one in views] == [
        SubqueueView(QUEUE, "api/a", "api", "a", 2, 2, holders=tuple(jobs[:2])),
        SubqueueView(QUEUE, "api/b", "api", "b", 2, 2, holders=tuple(jobs[3:5])),
        SubqueueView(QUEUE, "late", "late", None, 0, 1),
    ]
    assert [one.due for one in views] == [store.now(), store.now(), store.now() + HOUR]
    assert [one.name for one in await store.engine.subqueues(QUEUE, after="api/a", limit=1)] == ["api/b"]
    assert [one.name for one in await store.engine.subqueues(QUEUE, names=["late", "none"])] == ["late"]
    assert await store.engine.subqueues("other") == []


@pytest.mark.core
@pytest.mark.spec("LIMIT-32")
async def test_a_number_that_is_wrong_is_repaired_after_a_minute(store: Store, request: pytest.FixtureRequest) -> None:
    """A slot comes back: `expire` counts what has been full for a minute, reports it, wakes a waiter."""
    jobs = await store.insert(*(limited(store) for _ in range(3)), limited(store, "b"), limited(store, "b"))
    first, other = await store.claim(n=9)
    await _miscount(store, request, "api/a", 2)
    await store.finish(first, Done())
    store.pass_time(MINUTE - 1)
    assert await store.claim(n=9) == []
    assert await _recount(store) == ()
    store.pass_time(1)
    await store.quiet(QUEUE)
    waiting = asyncio.create_task(store.engine.wait([QUEUE], ARRIVES))
    await asyncio.sleep(0)
    assert await _recount(store) == (Repair(QUEUE, "api/a", 1, 0),)
    assert await waiting == {QUEUE}
    assert await _recount(store) == ()
    assert ids(await store.claim(n=9)) == jobs[1:2]
    assert await running(store) == {"api/a": 1, "api/b": 1}
    store.pass_time(MINUTE)
    assert await _recount(store) == ()
    await store.enlist("w1")
    assert await store.finish(other, Done()) is Verdict.APPLIED
    assert ids(await store.claim(n=9)) == jobs[4:]


@pytest.mark.spec("LIMIT-32")
async def test_a_recount_knows_the_slots_that_waiting_jobs_keep(store: Store, request: pytest.FixtureRequest) -> None:
    """And no more wrong numbers are repaired at once than its limit says."""
    keys = ("a", "b", "c")
    await store.insert(*(limited(store, key, 2, hold="retrying") for key in keys for _ in range(3)))
    for claim in await store.claim(n=9):
        await store.finish(claim, Snoozed(HOUR))
    for key in keys:
        await _miscount(store, request, f"api/{key}", 3)
    store.pass_time(MINUTE)
    assert await _recount(store, limit=0) == ()
    found = [await _recount(store, limit=2), await _recount(store, limit=2)]
    assert [len(repairs) for repairs in found] == [2, 1]
    assert await _recount(store) == ()
    repairs = sorted((*found[0], *found[1]), key=lambda one: one.name)
    assert repairs == [Repair(QUEUE, f"api/{key}", 3, 2) for key in keys]
    assert await running(store) == {f"api/{key}": 2 for key in keys}
    assert await store.claim(n=9) == []


async def _miscount(store: Store, request: pytest.FixtureRequest, name: str, running: int) -> None:
    """Make a number wrong with the fixture that every engine provides."""
    miscount: Miscount = request.getfixturevalue("miscount")
    await miscount(store.engine, QUEUE, name, running)


async def _recount(store: Store, limit: int = 9) -> tuple[Repair, ...]:
    """Sweep the limits alone."""
    expired = await store.engine.expire(Retention(sweeps=frozenset({Sweep.LIMITS}), limit=limit))
    assert expired == Expired(repairs=expired.repairs)
    assert expired.limits == len(expired.repairs)
    return expired.repairs


@pytest.mark.core
@pytest.mark.spec("LIMIT-37")
async def test_counts_and_records_do_not_know_of_subqueues(store: Store) -> None:
    """Census, pages and records of limited jobs are those of any job."""
    drafts = [limited(store, "a"), limited(store, "a"), limited(store, "b", delay=HOUR), store.draft()]
    jobs = await store.insert(*drafts)
    store.pass_time(SECOND)
    await store.claim(n=9)
    census = await store.engine.census()
    assert await store.counts(QUEUE) == {Status.PENDING: 2, Status.RUNNING: 2}
    assert census.scheduled == {QUEUE: 1}
    assert census.oldest_ready == {QUEUE: store.now() - SECOND}
    found = [await store.job(job) for job in jobs]
    assert [job.queue for job in found] == [QUEUE] * 4
    assert [job.options.limit for job in found] == [one.options.limit for one in drafts]
    assert [job.status for job in found] == [Status.RUNNING, Status.PENDING, Status.PENDING, Status.RUNNING]
    for queues in (frozenset[str](), frozenset({QUEUE})):
        page = await store.engine.find(Query(order="due", queues=queues))
        assert [job.id for job in page.jobs] == jobs[1:3]
        page = await store.engine.find(Query(order="oldest", statuses=frozenset({Status.PENDING}), queues=queues))
        assert [job.id for job in page.jobs] == jobs[1:3]


# --- hold="retrying" --------------------------------------------------------------------------------------------


def held(store: Store, key: str = "a", **options: Any) -> Draft:
    """A draft that keeps its slot while it waits for a retry."""
    return limited(store, key, 1, hold="retrying", **options)


_WAITS: dict[str, Outcome] = {
    "HOLD-01": Failed("broken", after=MINUTE),
    "HOLD-02": Snoozed(MINUTE),
    "HOLD-03": Throttled(queue=False, retry_after=MINUTE),
}


@pytest.mark.core
@pytest.mark.spec("HOLD-01", "HOLD-02", "HOLD-03")
@pytest.mark.parametrize("case", _WAITS)
async def test_nothing_of_a_key_overtakes_a_job_that_waits_for_its_retry(store: Store, case: str) -> None:
    jobs = await store.insert(held(store), held(store, priority=-9), held(store, "b"))
    first, other = await store.claim(n=9)
    assert {first.id, other.id} == {jobs[1], jobs[2]}
    claim = next(one for one in (first, other) if one.id == jobs[1])
    await store.finish(claim, _WAITS[case])
    assert await store.claim(n=9) == []
    assert await running(store) == {"api/a": 1, "api/b": 1}
    store.pass_time(MINUTE)
    [again] = await store.claim("w2", n=9)
    assert again.id == jobs[1]
    await store.finish(again, Done())
    assert ids(await store.claim("w2", n=9)) == jobs[:1]


@pytest.mark.core
@pytest.mark.spec("HOLD-04", "HOLD-05")
async def test_a_held_slot_survives_hand_back_and_reap(store: Store) -> None:
    jobs = await store.insert(held(store), held(store, priority=1))
    await store.finish(await store.take("w1"), HandedBack())
    await alter(store, Prioritize(5), jobs[0])
    assert ids(await store.claim("w1", n=9)) == jobs[:1]
    store.pass_time(LEASE + 1)
    await store.enlist("w2")
    [passed] = await store.engine.reap("w2", 9)
    await store.finish(passed, Failed("broken", after=SECOND))
    assert await store.claim("w2", n=9) == []
    store.pass_time(SECOND)
    assert ids(await store.claim("w2", n=9)) == jobs[:1]


@pytest.mark.core
@pytest.mark.spec("HOLD-06")
@pytest.mark.parametrize("outcome", [Done(), Failed("hopeless", retry=False)])
async def test_an_end_frees_a_held_slot(store: Store, outcome: Outcome) -> None:
    jobs = await store.insert(held(store), held(store))
    await store.finish(await store.take(), Failed("broken", after=0))
    again = await store.take()
    assert again.id == jobs[0]
    await store.finish(again, outcome)
    assert ids(await store.claim(n=9)) == jobs[1:]
    assert await running(store) == {"api/a": 1}


@pytest.mark.core
@pytest.mark.spec("HOLD-07", "HOLD-08")
async def test_canceling_a_waiting_holder_frees_its_slot_once(store: Store) -> None:
    jobs = await store.insert(held(store), held(store), held(store))
    await store.finish(await store.take(), Failed("broken", after=HOUR))
    await alter(store, Cancel(), jobs[0])
    assert ids(await store.claim(n=9)) == jobs[1:2]
    await alter(store, Delete(), jobs[0])
    assert await store.claim(n=9) == []
    assert await running(store) == {"api/a": 1}


@pytest.mark.spec("HOLD-09")
async def test_moving_a_waiting_holder_frees_its_slot(store: Store) -> None:
    """In its new queue it waits for its turn like any other."""
    needs(store, Feature.ACROSS_QUEUES)
    jobs = await store.insert(held(store), held(store), held(store, queue="other"))
    await store.finish(await store.take(), Failed("broken", after=0))
    await store.take(queue="other")
    await alter(store, Move("other"), jobs[0])
    assert ids(await store.claim(n=9)) == jobs[1:2]
    assert await store.claim(n=9, queue="other") == []
    assert await running(store) == await running(store, "other") == {"api/a": 1}


@pytest.mark.spec("HOLD-10")
async def test_a_newer_job_that_ends_or_replaces_a_holder_frees_its_slot(store: Store) -> None:
    await store.insert(held(store, unique=Unique("u")))
    [second] = await store.insert(held(store))
    await store.finish(await store.take(), Failed("broken", after=HOUR))
    [third] = await store.insert(held(store, unique=Unique("u")))
    assert ids(await store.claim(n=9)) == [second]
    assert await running(store) == {"api/a": 1}
    unique = Unique("v", mode="replace")
    [fourth] = await store.insert(held(store, "b", unique=unique))
    await store.finish(await store.take(), Snoozed(HOUR))
    [receipt] = await store.engine.insert([held(store, "c", unique=unique)])
    assert (receipt.id, receipt.stored) == (fourth, Stored.REPLACED)
    assert ids(await store.claim(n=9)) == [fourth]
    assert await running(store) == {"api/a": 1, "api/c": 1}
    assert await store.status(third) is Status.PENDING


@pytest.mark.spec("HOLD-11")
async def test_a_requeued_holder_waits_for_its_turn(store: Store) -> None:
    jobs = await store.insert(held(store, attempts=2), held(store))
    await store.finish(await store.take(), Failed("broken", after=0))
    await store.finish(await store.take(), Failed("broken", after=0))
    assert await store.status(jobs[0]) is Status.DEAD
    other = await store.take()
    await alter(store, Requeue(), jobs[0])
    assert await store.claim(n=9) == []
    await store.finish(other, Done())
    assert ids(await store.claim(n=9)) == jobs[:1]


@pytest.mark.spec("HOLD-12")
@pytest.mark.parametrize("restored", [True, False])
async def test_a_canceled_holder_that_comes_back_waits_for_its_turn(store: Store, restored: bool) -> None:
    """The slot it kept went to another job when it was canceled."""
    jobs = await store.insert(held(store), held(store))
    await store.finish(await store.take(), Snoozed(SECOND))
    tally = await store.engine.alter(Selection(tuple(jobs[:1])), Cancel())
    other = await store.take()
    assert other.id == jobs[1]
    await alter(store, Restore(tally.former) if restored else Requeue(), jobs[0])
    store.pass_time(SECOND)
    assert await store.claim(n=9) == []
    assert await running(store) == {"api/a": 1}
    await store.finish(other, Done())
    assert ids(await store.claim(n=9)) == jobs[:1]
    assert await running(store) == {"api/a": 1}
