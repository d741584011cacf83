"""Unique keys that a success keeps for a time: no other job with the key runs meanwhile."""

from __future__ import annotations

import asyncio

import pytest

from stoker.model.errors import Duplicate
from stoker.model.ids import JobId, text
from stoker.model.job import Options, Receipt, Settlement, Status, Stored, Verdict
from stoker.model.lifecycle import conclude
from stoker.model.outcome import Canceled, Done, Rejected
from stoker.model.query import Cancel, Clone, Delete, Requeue, Retention, Selection, Sweep
from stoker.model.time import HOUR, LONGEST, MINUTE, SECOND
from stoker.model.unique import Unique
from stoker.testing.conformance.harness import Store

HELD = Unique("k", for_=60)


async def _put(store: Store, **options: object) -> Receipt:
    """Insert one draft with key k, or as given; return its receipt."""
    [receipt] = await store.engine.jobs.insert([store.draft(**{"unique": Unique("k"), **options})])  # type: ignore[arg-type]
    return receipt


async def _kept(store: Store, **options: object) -> JobId:
    """A job whose success, ten seconds after its enqueue, keeps key k for fifty more."""
    job = await store.add(unique=HELD, **options)  # type: ignore[arg-type]
    store.pass_time(10 * SECOND)
    assert await store.finish(await store.take(), Done(b"1")) is Verdict.APPLIED
    return job


@pytest.mark.core
@pytest.mark.spec("KEY-18")
@pytest.mark.parametrize("keep", [None, 0], ids=["kept job", "deleted job"])
async def test_a_success_keeps_its_key_for_a_time(store: Store, keep: int | None) -> None:
    """Newcomers get the id of the job that succeeded, gone or not, until so long after its enqueue; then it is free."""
    job = await _kept(store, options=Options(keep=keep))
    held = Receipt(job, Stored.EXISTING)
    for mode in ("existing", "replace"):
        assert await _put(store, unique=Unique("k", mode=mode)) == held
    assert await _put(store, unique=HELD) == held
    with pytest.raises(Duplicate) as refused:
        await _put(store, unique=Unique("k", mode="raise"))
    assert (refused.value.key, refused.value.job_id) == ("k", text(job))
    assert await _put(store, unique=Unique("other")) != held
    store.pass_time(50 * SECOND - 1)
    assert await _put(store) == held
    store.pass_time(1)
    newer = await _put(store, unique=HELD)
    assert (newer.stored, newer.id == job) == (Stored.INSERTED, False)
    assert await _put(store) == Receipt(newer.id, Stored.EXISTING)


@pytest.mark.core
@pytest.mark.spec("KEY-18")
async def test_a_key_that_was_kept_is_kept_again(store: Store) -> None:
    """The next job takes over a lapsed key, and its own success keeps it from its own enqueue on."""
    await _kept(store)
    store.pass_time(HOUR)
    again = await _kept(store)
    assert await _put(store) == Receipt(again, Stored.EXISTING)
    store.pass_time(50 * SECOND)
    assert (await _put(store)).stored is Stored.INSERTED


@pytest.mark.core
@pytest.mark.spec("KEY-18")
async def test_how_long_a_success_keeps_the_key_is_stored_with_the_job(store: Store) -> None:
    """Read back from the record and from the claim, to the microsecond; a late success keeps nothing."""
    unique = Unique("k", scope="kind", mode="replace", hold="retrying", for_=0.000_001)
    job = await store.add(unique=unique)
    assert (await store.job(job)).unique == unique
    claim = await store.take()
    assert claim.unique == unique
    longest = await store.add(kind="other", unique=Unique("k", for_=LONGEST / SECOND))
    assert (await store.job(longest)).unique == Unique("k", for_=LONGEST / SECOND)
    store.pass_time(1)
    await store.finish(claim, Done())
    assert (await _put(store)).stored is Stored.INSERTED


@pytest.mark.spec("KEY-18")
@pytest.mark.parametrize("end", ["dead", "canceled", "canceled before", "deleted before"])
async def test_only_a_success_keeps_the_key(store: Store, end: str) -> None:
    """What failed, was canceled or deleted frees its key at once, so that it can be tried again."""
    job = await store.add(unique=HELD)
    if end.endswith("before"):
        await store.engine.operator.alter(Selection((job,)), Cancel() if "canceled" in end else Delete())
    else:
        await store.finish(await store.take(), Rejected("no") if end == "dead" else Canceled("stop"))
    assert (await _put(store)).stored is Stored.INSERTED


@pytest.mark.core
@pytest.mark.spec("KEY-19")
async def test_a_kept_key_outlives_its_job_unless_an_operator_deletes_that(store: Store) -> None:
    """Retention removes the job and not the key; an operator who deletes the job frees the key."""
    job = await _kept(store, options=Options(keep=SECOND))
    store.pass_time(2 * SECOND)
    await store.engine.operator.expire(Retention())
    assert await store.gone(job)
    assert await _put(store) == Receipt(job, Stored.EXISTING)
    assert (await store.engine.diagnose()).idle_keys == 0
    store.pass_time(HOUR)
    first = await _kept(store)
    await store.engine.operator.alter(Selection((first,)), Delete())
    newer = await _put(store)
    assert newer.stored is Stored.INSERTED
    assert (await store.engine.diagnose()).idle_keys == 0


@pytest.mark.spec("KEY-19")
async def test_deleting_an_earlier_job_leaves_the_key_to_its_holder(store: Store) -> None:
    """A done job whose time is over has no key any more, also when another job has it now."""
    first = await _kept(store)
    store.pass_time(HOUR)
    newer = await _kept(store)
    await store.engine.operator.alter(Selection((first,)), Delete())
    assert await _put(store) == Receipt(newer, Stored.EXISTING)
    store.pass_time(HOUR)
    active = await store.add(unique=Unique("k"))
    await store.engine.operator.alter(Selection((newer,)), Delete())
    assert await _put(store) == Receipt(active, Stored.EXISTING)


@pytest.mark.core
@pytest.mark.spec("KEY-20")
async def test_expire_removes_keys_whose_time_is_over(store: Store) -> None:
    """And leaves those that are kept still, or that an active job took since."""
    await _kept(store)
    await store.add(kind="long", unique=Unique("k", for_=7_200))
    await store.finish(await store.take(), Done())
    await store.add(kind="taken", unique=HELD)
    await store.finish(await store.take(), Done())
    keys = Retention(sweeps=frozenset({Sweep.KEYS}))
    assert (await store.engine.operator.expire(keys)).keys == 0
    store.pass_time(HOUR)
    active = await store.add(kind="taken", unique=Unique("k"))
    assert (await store.engine.operator.expire(keys)).keys == 1
    assert (await store.engine.operator.expire(keys)).keys == 0
    assert await _put(store, kind="taken") == Receipt(active, Stored.EXISTING)
    assert (await _put(store, kind="long")).stored is Stored.EXISTING
    assert (await _put(store)).stored is Stored.INSERTED


@pytest.mark.spec("KEY-21")
async def test_requeues_and_copies_are_blocked_by_a_kept_key(store: Store) -> None:
    """A dead job with the key comes back only when the time is over."""
    dead = await store.add(unique=Unique("k"))
    await store.finish(await store.take(), Rejected("no"))
    done = await _kept(store)
    copy = store.mint()
    for change in (Requeue(), Clone((copy,))):
        tally = await store.engine.operator.alter(Selection((dead,)), change)
        assert (tally.changed, tally.blocked) == (0, 1)
    store.pass_time(HOUR)
    tally = await store.engine.operator.alter(Selection((dead,)), Requeue())
    assert (tally.changed, tally.blocked) == (1, 0)
    assert await _put(store) == Receipt(dead, Stored.EXISTING)
    assert (await store.job(done)).status is Status.DONE


@pytest.mark.spec("KEY-21")
async def test_a_follow_up_meets_the_key_that_its_own_success_keeps(store: Store) -> None:
    """A job that keeps its key does not hand it on; other follow-ups are stored."""
    job = await store.add(unique=HELD)
    same, other = store.draft(unique=Unique("k", mode="raise")), store.draft()
    claim = await store.take()
    settlement = Settlement(
        job, claim.worker, claim.token, Status.DONE, result=b"1", followups=(same, other), ref=claim.ref
    )
    assert (await store.engine.jobs.settle([settlement])).verdicts == [Verdict.APPLIED]
    assert await store.gone(same.job_id)
    assert (await store.job(other.job_id)).status is Status.PENDING
    assert await _put(store) == Receipt(job, Stored.EXISTING)


@pytest.mark.spec("KEY-18")
async def test_drafts_of_one_call_meet_a_kept_key_each(store: Store) -> None:
    """All of them get the id of the job that keeps it; with `raise` nothing of the call is stored."""
    job = await _kept(store)
    receipts = await store.engine.jobs.insert([store.draft(unique=HELD), store.draft(unique=Unique("k"))])
    assert receipts == [Receipt(job, Stored.EXISTING)] * 2
    plain = store.draft()
    with pytest.raises(Duplicate):
        await store.engine.jobs.insert([plain, store.draft(unique=Unique("k", mode="raise"))])
    assert await store.gone(plain.job_id)


@pytest.mark.core
@pytest.mark.spec("KEY-11", "KEY-18")
async def test_callers_at_the_same_moment_take_a_lapsed_key_once(store: Store) -> None:
    """One of them stores its job, the others get its id."""
    await _kept(store)
    store.pass_time(HOUR)
    receipts = await asyncio.gather(*(_put(store, unique=HELD) for _ in range(8)))
    assert sorted(one.stored for one in receipts) == [Stored.EXISTING] * 7 + [Stored.INSERTED]
    assert len({one.id for one in receipts}) == 1


@pytest.mark.core
@pytest.mark.spec("KEY-18", "KEY-20")
async def test_many_keys_are_kept_and_removed_together(store: Store) -> None:
    """Successes of one call keep their keys each, beside one that keeps nothing."""
    await store.insert(*(store.draft(unique=Unique(f"k{n}", for_=60)) for n in range(120)), store.draft())
    claims = await store.claim(n=200)
    assert set(await store.settle(*(conclude(claim, Done()) for claim in claims))) == {Verdict.APPLIED}
    again = await store.engine.jobs.insert([store.draft(unique=Unique(f"k{n}")) for n in range(120)])
    assert {one.stored for one in again} == {Stored.EXISTING}
    store.pass_time(MINUTE)
    assert (await store.engine.operator.expire(Retention(sweeps=frozenset({Sweep.KEYS})))).keys == 120
