"""Steps: rows that running jobs save, under their fence, and what becomes of them."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from stoker.engines.base import LEASE, Feature
from stoker.model.control import Tuning
from stoker.model.job import Options, Status, Stored, Verdict
from stoker.model.lifecycle import conclude
from stoker.model.limit import Slot
from stoker.model.outcome import Done, Failed, HandedBack, Rejected, Snoozed
from stoker.model.query import Cancel, Clone, Delete, Fork, Requeue, Retention, Selection
from stoker.model.steps import (
    LARGEST_BROUGHT,
    LARGEST_VALUE,
    LONGEST_ROW,
    MOST_BROUGHT,
    MOST_STEPS,
    Step,
    StepState,
)
from stoker.model.time import DAY, HOUR, SECOND
from stoker.model.unique import Unique
from stoker.testing.conformance.harness import QUEUE, Store, needs
from stoker.testing.conformance.step_helpers import calls, rows, save, saved, signal, suspend, values, wait


class _Trouble(Exception):
    """What a user's code raises in the middle of a transaction."""


@pytest.mark.core
@pytest.mark.spec("STEP-04")
async def test_a_saved_step_is_read_back(store: Store) -> None:
    """With its state, its value byte for byte, the token of its run and the store's time; by time, then by name."""
    job, other = await store.add(), await store.add(delay=HOUR)
    claim = await store.take()
    assert await store.engine.steps.get([]) == []
    assert await store.engine.steps.get([job, other, store.mint()]) == [[], [], []]
    began = store.now()
    first = (Step("b", value=b'"it\'s \xe2\x82\xac\\u0000"'), Step("a", StepState.FAILED, b'{"kind":"E"}'))
    assert await save(store, claim, *first) is Verdict.APPLIED
    store.pass_time(SECOND)
    assert await save(store, claim, Step("0")) is Verdict.APPLIED
    [found, none] = await store.engine.steps.get([job, other])
    assert none == []
    assert found == [
        Step("a", StepState.FAILED, b'{"kind":"E"}', None, claim.token, began),
        Step("b", StepState.DONE, b'"it\'s \xe2\x82\xac\\u0000"', None, claim.token, began),
        Step("0", StepState.DONE, None, None, claim.token, began + SECOND),
    ]


@pytest.mark.core
@pytest.mark.spec("STEP-04")
async def test_saves_of_many_jobs_in_one_call(store: Store) -> None:
    """Each under its own fence, several of one job too; verdicts in their order; none: an empty list."""
    await store.insert(*(store.draft() for _ in range(5)))
    claims = await store.claim(n=5)
    assert await store.finish(claims[3], Done()) is Verdict.APPLIED
    batch = [saved(claim, Step("a", value=b"%d" % n)) for n, claim in enumerate(claims)]
    batch.append(saved(claims[0], Step("b", value=b"9")))
    verdicts = [Verdict.LOST if n == 3 else Verdict.APPLIED for n in range(6)]
    assert await store.engine.steps.save(batch) == verdicts
    found = await store.engine.steps.get([claim.id for claim in claims])
    assert [[(row.name, row.value) for row in one] for one in found] == [
        [("a", b"0"), ("b", b"9")],
        [("a", b"1")],
        [("a", b"2")],
        [],
        [("a", b"4")],
    ]
    assert await store.engine.steps.save([]) == []


@pytest.mark.spec("STEP-04")
async def test_a_newer_row_of_a_name_counts(store: Store) -> None:
    """In one save, in one call, and from one run to the next."""
    job = await store.add()
    claim = await store.take()
    assert await save(store, claim, Step("a", value=b"1"), Step("a", value=b"2")) is Verdict.APPLIED
    assert await values(store, job) == {"a": (StepState.DONE, b"2")}
    both = [saved(claim, Step("a", value=b"3")), saved(claim, Step("a", value=b"4"))]
    assert await store.engine.steps.save(both) == [Verdict.APPLIED] * 2
    assert await values(store, job) == {"a": (StepState.DONE, b"4")}
    await store.finish(claim, Snoozed(0))
    again = await store.take()
    assert await save(store, again, Step("a", value=b"5")) is Verdict.APPLIED
    assert (await rows(store, job))["a"] == Step("a", StepState.DONE, b"5", None, again.token, store.now())


@pytest.mark.core
@pytest.mark.spec("STEP-07")
async def test_a_run_that_lost_its_claim_saves_nothing(store: Store) -> None:
    """After a takeover neither the old token nor the old worker stores a row; the new one does."""
    job = await store.add()
    old = await store.take("w1")
    store.pass_time(LEASE + 1)
    await store.enlist("w2")
    [new] = await store.engine.jobs.reap("w2", 10)
    call = calls(store, store.draft("kid"))
    lost = saved(old, Step("a"), drafts=call.drafts, groups=(call.group,))
    assert await store.engine.steps.save([lost, saved(new, Step("b"))]) == [Verdict.LOST, Verdict.APPLIED]
    assert list(await rows(store, job)) == ["b"]
    assert await store.gone(call.drafts[0].job_id)
    assert await store.engine.groups.get([call.group]) == [None]
    assert await store.finish(new, Done()) is Verdict.APPLIED
    assert await save(store, new, Step("c")) is Verdict.LOST
    assert list(await rows(store, job)) == ["b"]


@pytest.mark.spec("STEP-07")
async def test_a_claim_without_its_ref_saves_too(store: Store) -> None:
    """The reference of a claim only makes it faster."""
    job = await store.add(unique=Unique("k"))
    claim = await store.take()
    bare = msgspec.structs.replace(claim, ref=None)
    assert await save(store, bare, Step("a")) is Verdict.APPLIED
    assert list(await rows(store, job)) == ["a"]


@pytest.mark.spec("STEP-08")
async def test_a_request_to_stop_does_not_hinder_a_save(store: Store) -> None:
    """The work is done, so it is stored."""
    job = await store.add()
    claim = await store.take()
    await store.engine.operator.alter(Selection((job,)), Cancel())
    assert await save(store, claim, Step("a"), wait("b")) is Verdict.APPLIED
    assert sorted(await rows(store, job)) == ["a", "b"]


@pytest.mark.core
@pytest.mark.spec("ANSWER-05")
async def test_a_wait_that_was_answered_does_not_time_out(store: Store) -> None:
    """A run that ends it as failed meanwhile stores nothing of its save and learns that there is an answer."""
    job = await store.add()
    claim = await store.take()
    assert await save(store, claim, wait("go", store.now())) is Verdict.APPLIED
    await signal(store, job, "go", b"7")
    call = calls(store, store.draft("kid"))
    timeout = Step("go", StepState.FAILED, b'{"kind":"TimeoutError"}')
    late = saved(claim, Step("a"), timeout, drafts=call.drafts, groups=(call.group,))
    assert await store.engine.steps.save([late, saved(claim, Step("b"))]) == [Verdict.ANSWERED, Verdict.APPLIED]
    assert await values(store, job) == {"go": (StepState.DONE, b"7"), "b": (StepState.DONE, None)}
    assert await store.gone(call.drafts[0].job_id)


@pytest.mark.spec("ANSWER-05")
async def test_a_wait_that_timed_out_takes_no_answer(store: Store) -> None:
    """The failure was stored first, so the signal is refused."""
    job = await store.add()
    claim = await store.take()
    await save(store, claim, wait("go", store.now()))
    assert await save(store, claim, Step("go", StepState.FAILED, b"{}")) is Verdict.APPLIED
    assert await signal(store, job) == "answered"
    assert await values(store, job) == {"go": (StepState.FAILED, b"{}")}


@pytest.mark.spec("STEP-05")
async def test_a_saved_wait_belongs_to_no_suspension(store: Store) -> None:
    """It has no token, and since when it is open stays; its answer wakes no job that is suspended on another one."""
    job = await store.add()
    claim = await store.take()
    opened = store.now()
    await save(store, claim, wait("side", opened + HOUR, b'"which?"'))
    store.pass_time(SECOND)
    await save(store, claim, wait("side", opened + DAY))
    assert await rows(store, job) == {"side": Step("side", StepState.WAITING, None, opened + DAY, 0, opened)}
    await suspend(store, claim, wait("go"))
    assert await signal(store, job, "side") == "taken"
    assert await store.claim() == []
    assert await signal(store, job, "go") == "taken"
    assert (await store.take()).id == job


@pytest.mark.spec("ANSWER-02")
async def test_a_saved_wait_finds_an_early_signal(store: Store) -> None:
    """The row is answered, not open."""
    job = await store.add()
    assert await signal(store, job, "go", b"7") == "early"
    claim = await store.take()
    await save(store, claim, wait("go"))
    assert await values(store, job) == {"go": (StepState.DONE, b"7")}


@pytest.mark.core
@pytest.mark.spec("STEP-09")
async def test_rows_are_removed_with_their_job(store: Store) -> None:
    """By its own success, by an operator, and by its retention; a job of that id begins without rows."""
    deleted, done, expired = [store.draft() for _ in range(3)]
    await store.insert(deleted, done, expired)
    claims = {claim.id: claim for claim in await store.claim(n=3)}
    for claim in claims.values():
        await save(store, claim, Step("a"))
        await signal(store, claim.id, "early")
    await store.settle(msgspec.structs.replace(conclude(claims[done.job_id], Done()), keep=0))
    await store.finish(claims[deleted.job_id], Rejected("no"))
    await store.finish(claims[expired.job_id], Done())
    await store.engine.operator.alter(Selection((deleted.job_id,)), Delete())
    ids = [deleted.job_id, done.job_id, expired.job_id]
    assert [len(one) for one in await store.engine.steps.get(ids)] == [0, 0, 2]
    store.pass_time(40 * DAY)
    await store.engine.operator.expire(Retention())
    assert await store.engine.steps.get(ids) == [[], [], []]
    await store.insert(deleted, done, expired)
    assert await store.engine.steps.get(ids) == [[], [], []]


@pytest.mark.spec("STEP-09")
async def test_rows_stay_through_retries_requeues_and_ends(store: Store) -> None:
    """A job that runs again goes on behind its stored steps."""
    job = await store.add(attempts=2)
    claim = await store.take()
    await save(store, claim, Step("a"))
    await store.finish(claim, Failed("boom", after=0))
    claim = await store.take()
    await save(store, claim, Step("b"))
    await store.finish(claim, Failed("boom"))
    assert await store.status(job) is Status.DEAD
    assert sorted(await rows(store, job)) == ["a", "b"]
    await store.engine.operator.alter(Selection((job,)), Requeue())
    claim = await store.take()
    await store.finish(claim, Done())
    assert sorted(await rows(store, job)) == ["a", "b"]


@pytest.mark.core
@pytest.mark.spec("STEP-34")
async def test_a_copy_takes_the_rows_along(store: Store) -> None:
    """A dead job that is retried as a copy goes on behind its steps; the original keeps its own."""
    dead, other = await store.add(), await store.add()
    for claim in await store.claim(n=2):
        await save(store, claim, Step("a", value=b"1"), wait("go"))
        await store.finish(claim, Rejected("no"))
    copies = (store.mint(), store.mint())
    tally = await store.engine.operator.alter(Selection((dead, other)), Clone(copies))
    assert tally.created == copies
    for job in (dead, other, *copies):
        assert await values(store, job) == {"a": (StepState.DONE, b"1"), "go": (StepState.WAITING, None)}
    await store.engine.operator.alter(Selection((dead,)), Delete())
    claims = await store.claim(n=2)
    assert [(claim.id, claim.fresh) for claim in claims] == [(copy, False) for copy in copies]
    await suspend(store, claims[0], wait("go"))
    assert await signal(store, copies[0]) == "taken"
    assert await values(store, copies[1]) == {"a": (StepState.DONE, b"1"), "go": (StepState.WAITING, None)}
    assert (await store.take()).id == copies[0]


@pytest.mark.spec("STEP-35")
async def test_a_fork_keeps_the_finished_steps_up_to_one(store: Store) -> None:
    """The original stays as it is, with its key; without a step a fork begins from the beginning."""
    job = await store.add(unique=Unique("order-7"), payload=b"[7]")
    claim = await store.take()
    await save(store, claim, Step("a", value=b"1"), Step("no", StepState.FAILED, b'"x"'))
    store.pass_time(SECOND)
    await save(store, claim, Step("b", value=b"2"))
    store.pass_time(SECOND)
    await save(store, claim, Step("c", value=b"3"))
    await suspend(store, claim, wait("go"))
    behind, anew, other = store.mint(), store.mint(), store.mint()
    tally = await store.engine.operator.alter(Selection((job,)), Fork((behind,), "b"))
    assert (tally.created, tally.changed_ids, tally.changed) == ((behind,), (job,), 1)
    assert (await store.engine.operator.alter(Selection((job,)), Fork((anew,)))).created == (anew,)
    await store.engine.operator.alter(Selection((job,)), Fork((other,), "a", b"[8]"))
    assert (await store.engine.operator.alter(Selection((job,)), Fork((other,)))).blocked == 1
    assert await values(store, behind) == {
        "a": (StepState.DONE, b"1"),
        "no": (StepState.FAILED, b'"x"'),
        "b": (StepState.DONE, b"2"),
    }
    assert await values(store, anew) == {}
    found = {one.id: one for one in await store.engine.operator.get([behind, anew, other]) if one}
    assert [(found[id_].unique, found[id_].payload) for id_ in (behind, anew, other)] == [
        (None, b"[7]"),
        (None, b"[7]"),
        (None, b"[8]"),
    ]
    assert set(await values(store, other)) == {"a", "no"}
    assert {claim.id: claim.fresh for claim in await store.claim(n=3)} == {behind: False, anew: True, other: False}
    [found_original] = await store.engine.operator.get([job])
    assert found_original is not None
    assert found_original.view(store.now()) == "waiting"
    assert await signal(store, job) == "taken"
    assert (await store.take()).id == job


@pytest.mark.spec("STEP-06")
async def test_a_settlement_brings_rows_along(store: Store) -> None:
    """Whatever the run ends in; a failure that its handler caught is there for the next run."""
    job = await store.add()
    caught = Step("charge", StepState.FAILED, b'"no"')
    claim = await store.take()
    [verdict] = await store.settle(conclude(claim, Failed("boom", after=0), steps=(caught,)))
    assert verdict is Verdict.APPLIED
    assert await values(store, job) == {"charge": (StepState.FAILED, b'"no"')}
    claim = await store.take()
    await store.engine.operator.alter(Selection((job,)), Cancel())
    assert await store.settle(conclude(claim, Failed("boom"), steps=(Step("x"),))) == [Verdict.CANCELING]
    assert list(await rows(store, job)) == ["charge"]
    assert await store.settle(conclude(claim, Done(), steps=(Step("last"),))) == [Verdict.APPLIED]
    assert sorted(await rows(store, job)) == ["charge", "last"]
    assert await store.status(job) is Status.DONE


@pytest.mark.spec("STEP-03")
async def test_the_largest_row_is_kept(store: Store) -> None:
    """A name of full length in several scripts, and a value of a mebibyte."""
    job = await store.add()
    claim = await store.take()
    name, value = "call:kid:" + "é" * (LONGEST_ROW - 9), b'"' + b"x" * (LARGEST_VALUE - 2) + b'"'
    assert await save(store, claim, Step(name, value=value)) is Verdict.APPLIED
    assert await values(store, job) == {name: (StepState.DONE, value)}


@pytest.mark.spec("STEP-03")
async def test_as_many_rows_as_a_job_may_have(store: Store) -> None:
    """All of them come back, and neither a suspension nor a signal minds them."""
    job = await store.add()
    claim = await store.take()
    names = [f"s{n:05}" for n in range(MOST_STEPS)]
    for at in range(0, MOST_STEPS, 1_000):
        steps = tuple(Step(name, value=b"1") for name in names[at : at + 1_000])
        assert await save(store, claim, *steps) is Verdict.APPLIED
    assert sorted(await rows(store, job)) == names
    await suspend(store, claim, wait("go"))
    assert await signal(store, job) == "taken"
    assert (await store.take()).id == job


@pytest.mark.core
@pytest.mark.spec("STEP-30")
async def test_a_claim_is_fresh_once(store: Store) -> None:
    """However the first run ended, also handed back unstarted, the next claim is not: rows may be stored."""
    for outcome in (Snoozed(0), HandedBack(), Failed("boom", after=0)):
        job = await store.add()
        claim = await store.take()
        assert (claim.id, claim.fresh) == (job, True)
        await store.finish(claim, outcome)
        claim = await store.take()
        assert (claim.id, claim.fresh) == (job, False)
        await store.finish(claim, Rejected("no"))
        await store.engine.operator.alter(Selection((job,)), Requeue())
        claim = await store.take()
        assert (claim.id, claim.fresh) == (job, False)
        await store.finish(claim, Done())
    job = await store.add()
    assert (await store.take("w1")).fresh
    store.pass_time(LEASE + 1)
    await store.enlist("w2")
    [claim] = await store.engine.jobs.reap("w2", 10)
    assert (claim.id, claim.fresh) == (job, False)


@pytest.mark.core
@pytest.mark.spec("STEP-47")
@pytest.mark.parametrize("more", [{}, {"options": Options(limit=Slot("gate", "g", 1))}])
async def test_the_claim_of_a_suspended_job_brings_its_rows(store: Store, more: dict[str, Any]) -> None:
    """As a read shows them, with the answer that made the job due; a claim after a failure or a snooze brings none."""
    job = await store.add(**more)
    claim = await store.take()
    assert claim.rows is None
    assert await save(store, claim, Step("a", value=b'"it\'s \xe2\x82\xac\\u0000"'), Step("b")) is Verdict.APPLIED
    await suspend(store, claim, wait("go", store.now() + HOUR, b'{"ask":"May we?"}'), after=HOUR)
    await signal(store, job, "go", b'{"yes":true}')
    claim = await store.take()
    assert claim.rows is not None
    assert {row.name: row for row in claim.rows} == await rows(store, job)
    assert sorted(row.name for row in claim.rows) == ["a", "b", "go"]
    for outcome in (Snoozed(0), HandedBack(), Failed("boom", after=0)):
        await store.finish(claim, outcome)
        claim = await store.take()
        assert (claim.id, claim.rows) == (job, None)


@pytest.mark.spec("STEP-47")
@pytest.mark.parametrize(
    ("number", "size", "brought"),
    [
        (MOST_BROUGHT, 1, True),
        (MOST_BROUGHT + 1, 1, False),
        (2, LARGEST_BROUGHT // 2, True),
        (2, LARGEST_BROUGHT // 2 + 1, False),
    ],
)
async def test_a_claim_brings_few_and_small_rows(store: Store, number: int, size: int, *, brought: bool) -> None:
    """Of a job with more none come: its run reads them."""
    job = await store.add()
    claim = await store.take()
    await save(store, claim, *(Step(f"s{n}", value=b"1" * size) for n in range(number - 1)))
    await suspend(store, claim, wait())
    await signal(store, job, value=b"1" * size)
    claim = await store.take()
    assert (claim.rows is not None and len(claim.rows) == number) is brought


@pytest.mark.spec("STEP-30")
async def test_claims_of_every_line_are_fresh_once(store: Store) -> None:
    """Jobs with a key, with options, under a limit, and of a fair queue."""
    await store.engine.control.tune("fair", Tuning(fair=True))
    drafts = [
        store.draft(unique=Unique("k")),
        store.draft(options=Options(timeout=SECOND)),
        store.draft(options=Options(limit=Slot("api", "a", 1))),
        store.draft(queue="fair", tenant="acme"),
    ]
    for draft in drafts:
        await store.insert(draft)
        for fresh in (True, False):
            claim = await store.take(queue=draft.queue)
            assert (claim.id, claim.fresh) == (draft.job_id, fresh)
            await store.finish(claim, HandedBack())
        await store.finish(await store.take(queue=draft.queue), Done())


@pytest.mark.spec("STEP-31")
async def test_a_draft_that_replaces_a_waiting_job_begins_without_its_rows(store: Store) -> None:
    """The payload is another one: what an earlier run stored belongs to the old."""
    unique = Unique("k", mode="replace")
    job = await store.add(unique=unique, payload=b"1")
    claim = await store.take()
    await save(store, claim, Step("a"))
    await store.finish(claim, Snoozed(0))
    [receipt] = await store.engine.jobs.insert([store.draft(unique=unique, payload=b"2")])
    assert (receipt.id, receipt.stored) == (job, Stored.REPLACED)
    claim = await store.take()
    assert (claim.payload, await rows(store, job)) == (b"2", {})


@pytest.mark.core
@pytest.mark.spec("STEP-32")
async def test_steps_join_a_transaction(store: Store) -> None:
    """Rows and called jobs exist if and only if it commits."""
    needs(store, Feature.OWN_TRANSACTION)
    job = await store.add()
    claim = await store.take()
    call = calls(store, store.draft("kid"))
    wanted = saved(claim, Step("a", value=b"1"), call.wait, drafts=call.drafts, groups=(call.group,))
    with pytest.raises(_Trouble):
        async with store.engine.transaction() as tx:
            assert await store.engine.steps.save([wanted], tx=tx) == [Verdict.APPLIED]
            raise _Trouble
    assert await rows(store, job) == {}
    assert await store.gone(call.drafts[0].job_id)
    async with store.engine.transaction() as tx:
        assert await store.engine.steps.save([wanted], tx=tx) == [Verdict.APPLIED]
        assert await store.engine.steps.save([saved(claim, Step("b"))], tx=tx) == [Verdict.APPLIED]
    assert sorted(await rows(store, job)) == sorted(["a", "b", call.wait.name])
    assert await store.status(call.drafts[0].job_id) is Status.PENDING
    assert (await store.take()).id == call.drafts[0].job_id


@pytest.mark.spec("STEP-32")
async def test_a_transaction_whose_claim_was_lost_saves_nothing(store: Store) -> None:
    """It learns so from the verdict."""
    needs(store, Feature.OWN_TRANSACTION)
    job = await store.add()
    claim = await store.take()
    await store.finish(claim, Snoozed(0))
    async with store.engine.transaction() as tx:
        assert await store.engine.steps.save([saved(claim, Step("a"))], tx=tx) == [Verdict.LOST]
    assert await rows(store, job) == {}


@pytest.mark.spec("STEP-04")
async def test_a_plain_success_after_a_save_is_settled(store: Store) -> None:
    """A save changes nothing about the claim."""
    await store.insert(*(store.draft() for _ in range(3)))
    claims = await store.claim(n=3, queue=QUEUE)
    assert await store.engine.steps.save([saved(claim, Step("a")) for claim in claims]) == [Verdict.APPLIED] * 3
    assert await store.settle(*(conclude(claim, Done(b"1")) for claim in claims)) == [Verdict.APPLIED] * 3
    assert await store.counts() == {Status.DONE: 3}
