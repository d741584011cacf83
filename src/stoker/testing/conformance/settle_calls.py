"""Settle: what one call does: many settlements, follow-ups stored with them, and a demand for further claims."""

from __future__ import annotations

import msgspec
import pytest

from stoker.engines.base import LEASE, Feature
from stoker.model.errors import InvalidTransition
from stoker.model.job import Demand, Options, Status, Verdict
from stoker.model.lifecycle import conclude
from stoker.model.outcome import (
    Canceled,
    Done,
    Failed,
    HandedBack,
    Outcome,
    Rejected,
    Snoozed,
    Throttled,
)
from stoker.model.time import HOUR, MINUTE
from stoker.model.unique import Unique
from stoker.testing.conformance.harness import Store, needs


class _RolledBack(Exception):
    """Ends a transaction without its changes."""


# --- batches --------------------------------------------------------------------------------------------------------


@pytest.mark.core
@pytest.mark.spec("SETTLE-11")
async def test_verdicts_come_in_order_and_independently(store: Store) -> None:
    """Good, lost and unknown settlements of one call each get their own verdict; the good ones apply."""
    await store.insert(*(store.draft() for _ in range(4)))
    claims = await store.claim(n=4)
    lost = msgspec.structs.replace(conclude(claims[1], Done()), token=claims[1].token - 1)
    unknown = msgspec.structs.replace(conclude(claims[3], Done()), id=store.mint(), ref=None)
    verdicts = await store.settle(
        conclude(claims[0], Done()), lost, conclude(claims[2], Failed("boom", after=MINUTE)), unknown
    )
    assert verdicts == [Verdict.APPLIED, Verdict.LOST, Verdict.APPLIED, Verdict.LOST]
    assert [await store.status(claim.id) for claim in claims] == [
        Status.DONE,
        Status.RUNNING,
        Status.RETRYING,
        Status.RUNNING,
    ]


@pytest.mark.spec("SETTLE-11")
async def test_settling_nothing_answers_nothing(store: Store) -> None:
    """An empty call has no verdicts and no claims."""
    settled = await store.engine.jobs.settle([])
    assert (settled.verdicts, settled.claims) == ([], [])


@pytest.mark.spec("SETTLE-11")
async def test_a_hundred_settlements_go_in_one_call(store: Store) -> None:
    """A large batch with every kind of end comes out right, job by job."""
    outcomes: list[tuple[Outcome, Status]] = [
        (Done(b"1"), Status.DONE),
        (Failed("boom", after=MINUTE), Status.RETRYING),
        (Rejected("no"), Status.DEAD),
        (Snoozed(MINUTE), Status.PENDING),
        (Canceled(), Status.CANCELED),
    ]
    await store.insert(*(store.draft() for _ in range(100)))
    claims = await store.claim(n=100)
    ends = [outcomes[index % 5] for index in range(100)]
    verdicts = await store.settle(*(conclude(claim, outcome) for claim, (outcome, _) in zip(claims, ends, strict=True)))
    assert verdicts == [Verdict.APPLIED] * 100
    assert [await store.status(claim.id) for claim in claims] == [status for _, status in ends]
    assert await store.counts() == {status: 20 for _, status in outcomes}


@pytest.mark.spec("SETTLE-12")
async def test_totals_tell_what_became_of_a_kind(store: Store) -> None:
    """Completed, retried, failed and canceled rise by one per settlement that applied; success clears the error."""
    await store.insert(*(store.draft("mail") for _ in range(4)))
    claims = await store.claim(n=4)
    await store.finish(claims[1], Failed("try again", after=MINUTE))
    await store.finish(claims[2], Rejected("for good"))
    totals = (await store.engine.operator.census()).totals["mail"]
    assert (totals.enqueued, totals.completed, totals.retried, totals.failed) == (4, 0, 1, 1)
    assert totals.last_error == "for good"
    await store.finish(claims[3], Canceled())
    await store.finish(claims[0], Done())
    await store.finish(claims[0], Done())
    totals = (await store.engine.operator.census()).totals["mail"]
    assert (totals.completed, totals.retried, totals.failed, totals.canceled) == (1, 1, 1, 1)
    assert totals.last_error is None


@pytest.mark.spec("SETTLE-16", "STATUS-01")
@pytest.mark.parametrize("status", [Status.RUNNING, Status.DISCARDED, Status.RETRIED])
async def test_a_settlement_cannot_ask_for_an_impossible_status(store: Store, status: Status) -> None:
    """A status no run can end in is refused by name, and nothing of the call is settled."""
    await store.insert(store.draft(), store.draft())
    good, bad = await store.claim(n=2)
    before = await store.snapshot([good.id, bad.id])
    wrong = msgspec.structs.replace(conclude(bad, Done()), status=status)
    with pytest.raises(InvalidTransition, match=f"running to {status}"):
        await store.engine.jobs.settle([conclude(good, Done()), wrong])
    assert await store.snapshot([good.id, bad.id]) == before


# --- together with the settlement -----------------------------------------------------------------------------------


@pytest.mark.core
@pytest.mark.spec("SETTLE-13")
async def test_follow_ups_are_stored_with_the_settlement(store: Store) -> None:
    """Drafts handed in with a success are pending jobs when it applied, in their order and due by the store's clock."""
    await store.add("parent")
    claim = await store.take()
    one, two = store.draft("child", payload=b"1"), store.draft("child", payload=b"2", delay=MINUTE)
    assert await store.finish(claim, Done(followups=(one, two))) is Verdict.APPLIED
    assert (await store.job(one.job_id)).payload == b"1"
    assert (await store.job(two.job_id)).scheduled_at == store.now() + MINUTE
    assert (await store.take()).id == one.job_id


@pytest.mark.spec("SETTLE-13")
async def test_follow_ups_of_a_deleted_success_live_on(store: Store) -> None:
    """A job that is not kept still leaves its follow-ups."""
    await store.add(options=Options(keep=0))
    child = store.draft("child")
    await store.finish(await store.take(), Done(followups=(child,)))
    assert await store.status(child.job_id) is Status.PENDING


@pytest.mark.spec("SETTLE-13")
async def test_follow_ups_of_a_settlement_that_did_not_apply_do_not_exist(store: Store) -> None:
    """A lost settlement stores no follow-up; the one that applies stores it once."""
    await store.add()
    claim = await store.take()
    child = store.draft("child")
    settlement = conclude(claim, Done(followups=(child,)))
    assert await store.settle(msgspec.structs.replace(settlement, worker="other")) == [Verdict.LOST]
    assert await store.gone(child.job_id)
    await store.settle(settlement)
    await store.settle(settlement)
    assert await store.counts() == {Status.DONE: 1, Status.PENDING: 1}


@pytest.mark.spec("SETTLE-13", "KEY-12")
async def test_a_follow_up_obeys_the_key_rule(store: Store) -> None:
    """A follow-up whose key is held is not stored; the settlement applies all the same."""
    await store.insert(store.draft("parent"), store.draft("child", unique=Unique("k"), delay=HOUR))
    claim = await store.take()
    child = store.draft("child", unique=Unique("k"))
    assert await store.finish(claim, Done(followups=(child,))) is Verdict.APPLIED
    assert await store.gone(child.job_id)
    assert await store.status(claim.id) is Status.DONE


@pytest.mark.spec("SETTLE-13", "KEY-12")
async def test_a_refusing_follow_up_does_not_keep_the_claim_from_ending(store: Store) -> None:
    """No caller is left to get a Duplicate: a follow-up of mode raise whose key is held is simply not stored."""
    await store.insert(store.draft("parent"), store.draft("child", unique=Unique("k"), delay=HOUR))
    child, sibling = store.draft("child", unique=Unique("k", mode="raise")), store.draft("sibling")
    assert await store.finish(await store.take(), Done(followups=(child, sibling))) is Verdict.APPLIED
    assert await store.gone(child.job_id)
    assert await store.status(sibling.job_id) is Status.PENDING


@pytest.mark.spec("SETTLE-13", "KEY-12")
async def test_a_job_can_hand_its_own_key_to_its_follow_up(store: Store) -> None:
    """A job that ends lets go of its key before its follow-up asks for it, so a job can enqueue its own successor."""
    await store.add("poll", unique=Unique("k"))
    successor = store.draft("poll", unique=Unique("k"), delay=MINUTE)
    assert await store.finish(await store.take(), Done(followups=(successor,))) is Verdict.APPLIED
    assert await store.status(successor.job_id) is Status.PENDING


@pytest.mark.spec("SETTLE-14")
async def test_metadata_of_runs_is_merged(store: Store) -> None:
    """What a run noted is added to what earlier runs noted; the newest value of a key wins, whatever the end."""
    job = await store.add(attempts=9)
    await store.settle(conclude(await store.take(), Failed("boom", after=0), metadata={"a": "1", "b": "1"}))
    await store.settle(conclude(await store.take(), Snoozed(0), metadata={"b": "2", "c": "2"}))
    await store.settle(conclude(await store.take(), Done(), metadata={"d": "ü '\""}))
    metadata = (await store.job(job)).metadata
    assert metadata == {"a": "1", "b": "2", "c": "2", "d": "ü '\""}


@pytest.mark.core
@pytest.mark.spec("SETTLE-15")
async def test_settling_and_claiming_share_a_call(store: Store) -> None:
    """With a demand the same call ends one batch and returns the next."""
    ids = await store.insert(*(store.draft() for _ in range(3)))
    first = await store.take()
    settled = await store.engine.jobs.settle([conclude(first, Done())], demand=Demand("w1", (("default", 5),)))
    assert settled.verdicts == [Verdict.APPLIED]
    assert [claim.id for claim in settled.claims] == ids[1:]
    assert await store.counts() == {Status.DONE: 1, Status.RUNNING: 2}
    for claim in settled.claims:
        assert await store.finish(claim, Done()) is Verdict.APPLIED


@pytest.mark.spec("SETTLE-15")
async def test_the_claim_sees_what_the_same_call_put_back(store: Store) -> None:
    """Settlements come before the claim: a job handed back and a new follow-up may be claimed in the same step."""
    await store.insert(store.draft(), store.draft("parent", priority=1))
    back, parent = await store.claim(n=2)
    child = store.draft("child", priority=2)
    settled = await store.engine.jobs.settle(
        [conclude(back, HandedBack()), conclude(parent, Done(followups=(child,)))],
        demand=Demand("w1", (("default", 5),)),
    )
    assert [claim.id for claim in settled.claims] == [back.id, child.job_id]
    assert settled.claims[0].token > back.token
    assert settled.claims[0].attempt == 1


@pytest.mark.spec("SETTLE-15")
async def test_a_demand_without_settlements_is_a_claim(store: Store) -> None:
    """An empty batch with a demand only claims."""
    job = await store.add()
    await store.enlist("w1")
    settled = await store.engine.jobs.settle([], demand=Demand("w1", (("default", 1),)))
    assert (settled.verdicts, [claim.id for claim in settled.claims]) == ([], [job])


@pytest.mark.spec("SETTLE-15")
async def test_without_a_lease_the_same_call_settles_but_claims_nothing(store: Store) -> None:
    """A worker whose lease lapsed may still end what it holds, and gets nothing new."""
    await store.insert(store.draft(), store.draft())
    claim = await store.take()
    store.pass_time(LEASE + 1)
    settled = await store.engine.jobs.settle([conclude(claim, Done())], demand=Demand("w1", (("default", 1),)))
    assert (settled.verdicts, settled.claims) == ([Verdict.APPLIED], [])


@pytest.mark.spec("SETTLE-15")
async def test_a_throttle_shuts_the_queue_for_the_claim_of_the_same_call(store: Store) -> None:
    """The cool-down a settlement opened is already shut for the claim that follows it."""
    await store.insert(store.draft(), store.draft(), store.draft(queue="other"))
    claim = await store.take()
    settled = await store.engine.jobs.settle(
        [conclude(claim, Throttled())], demand=Demand("w1", (("default", 5), ("other", 5)))
    )
    assert [claim.queue for claim in settled.claims] == ["other"]


@pytest.mark.core
@pytest.mark.spec("SETTLE-21")
async def test_an_open_transaction_holds_up_only_settlements_that_need_its_key(store: Store) -> None:
    """Those may be answered `held` with nothing written; the others apply at once, and the held ones afterwards."""
    needs(store, Feature.OWN_TRANSACTION)
    needs(store, Feature.BESIDE_TRANSACTIONS)
    await store.insert(*(store.draft() for _ in range(6)))
    claims = await store.claim(n=6)
    child = {place: (store.draft("child", unique=Unique("k")),) for place in (1, 3)} | {4: (store.draft("child"),)}
    settlements = [conclude(claim, Done(followups=child.get(place, ()))) for place, claim in enumerate(claims)]
    with pytest.raises(_RolledBack):
        async with store.engine.transaction() as tx:
            await store.engine.jobs.insert([store.draft("child", unique=Unique("k"))], tx=tx)
            verdicts = await store.settle(*settlements)
            held = [place for place, verdict in enumerate(verdicts) if verdict is Verdict.HELD]
            assert set(held) <= {1, 3}
            assert {verdict for place, verdict in enumerate(verdicts) if place not in held} == {Verdict.APPLIED}
            for place in held:
                assert await store.status(claims[place].id) is Status.RUNNING
                assert await store.gone(child[place][0].job_id)
            raise _RolledBack
    again = await store.settle(*(settlements[place] for place in held))
    assert set(again) <= {Verdict.APPLIED}
    assert {await store.status(claim.id) for claim in claims} == {Status.DONE}
    assert await store.counts() == {Status.DONE: 6, Status.PENDING: 2}
