"""Limits by key: which jobs start, and which wait because others of their key run."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from stoker.engines.base import LEASE
from stoker.model.ids import JobId
from stoker.model.job import Claim, Demand, Draft, Status, Verdict
from stoker.model.lifecycle import conclude
from stoker.model.outcome import Done
from stoker.model.time import MINUTE, SECOND
from stoker.testing.conformance.harness import QUEUE, Store
from stoker.testing.conformance.limit_helpers import ids, limited


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
    expected = [one.job_id for one in sorted(drafts, key=lambda one: (one.priority, one.at, one.job_id))]
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
    assert ids(await store.claim()) == [plain.job_id]
    assert ids(await store.claim()) == [early[0].job_id]
    store.pass_time(SECOND)
    assert ids(await store.claim(n=9)) == [late.job_id, early[1].job_id]


@pytest.mark.core
@pytest.mark.spec("LIMIT-16")
async def test_a_delayed_job_of_a_key_blocks_nobody(store: Store) -> None:
    """Later jobs of its key run before it; it runs when it is due."""
    late = await store.insert(limited(store, delay=MINUTE))
    soon = await store.insert(limited(store))
    await store.finish(await store.take(), Done())
    assert await store.status(soon[0]) is Status.DONE
    assert await store.claim() == []
    assert (await store.engine.jobs.ahead([QUEUE])).wait == MINUTE
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
    assert found == [one.job_id for one in drafts]
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
            found = await asyncio.gather(*(engines[n % 2].jobs.claim(demand) for n, demand in enumerate(demands)))
            claims = [claim for one in found for claim in one]
            # A claim that met another one may have come back short: what is left is there for the next.
            claims += await store.engine.jobs.claim(Demand("w0", ((QUEUE, 50),)))
            assert len({claim.id for claim in claims}) == len(claims)
            counted = {key: sum(_key(claim) == key for claim in claims) for key in keys}
            assert counted == keys, round_
            verdicts = await asyncio.gather(
                *(engines[n % 2].jobs.settle([conclude(one, Done())]) for n, one in enumerate(claims))
            )
            assert all(one.verdicts == [Verdict.APPLIED] for one in verdicts)
    finally:
        await twin.close()


def _key(claim: Claim) -> str | None:
    assert claim.options.limit is not None
    return claim.options.limit.key
