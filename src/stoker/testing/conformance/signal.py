"""Signals: an answer to a wait, which lets a suspended job run, or is kept until the job waits."""

from __future__ import annotations

import pytest

from stoker.engines.base import Feature
from stoker.model.audit import AuditQuery, By
from stoker.model.ids import text
from stoker.model.job import Status, Verdict
from stoker.model.outcome import Done, Failed, Snoozed
from stoker.model.steps import MOST_EARLY, Signal, Signaled, Step, StepState, Wakes
from stoker.model.time import HOUR, MINUTE, SECOND
from stoker.testing.conformance.harness import ARRIVES, QUEUE, Store, needs
from stoker.testing.conformance.step_helpers import rows, save, signal, suspend, values, wait

DONE, FAILED, WAITING, EARLY, CALLED = StepState


@pytest.mark.core
@pytest.mark.spec("ANSWER-01")
async def test_a_signal_lets_a_suspended_job_run(store: Store) -> None:
    """The answer is stored, the job is due now, and a waiter of its queue is woken."""
    job = await store.add()
    claim = await store.take()
    await suspend(store, claim, wait("go", store.now() + HOUR), after=HOUR)
    await store.quiet(QUEUE)
    store.pass_time(SECOND)
    assert await signal(store, job, "go", b'{"yes":true}') is Signaled.TAKEN
    assert await store.engine.jobs.wait([QUEUE], ARRIVES) == {QUEUE}
    until = store.now() - SECOND + HOUR
    assert await rows(store, job) == {"go": Step("go", DONE, b'{"yes":true}', until, claim.token, store.now())}
    found = await store.job(job)
    assert (found.status, found.scheduled_at, found.view(store.now())) == (Status.PENDING, store.now(), "ready")
    assert (await store.take()).id == job


@pytest.mark.core
@pytest.mark.spec("ANSWER-02")
async def test_an_early_signal_is_found_by_the_suspension(store: Store) -> None:
    """Sent before the first run, and while it runs: the job is due at once, whatever its deadline."""
    job = await store.add()
    assert await signal(store, job, "a", b"1") is Signaled.EARLY
    assert await rows(store, job) == {"a": Step("a", EARLY, b"1", None, 0, store.now())}
    claim = await store.take()
    assert await signal(store, job, "b", b"2") is Signaled.EARLY
    assert await suspend(store, claim, wait("a"), after=HOUR) is Verdict.APPLIED
    assert await values(store, job) == {"a": (DONE, b"1"), "b": (EARLY, b"2")}
    assert (await store.job(job)).scheduled_at == store.now()
    await suspend(store, await store.take(), wait("b"))
    assert await values(store, job) == {"a": (DONE, b"1"), "b": (DONE, b"2")}
    await store.finish(await store.take(), Done())


@pytest.mark.core
@pytest.mark.spec("ANSWER-02")
async def test_a_signal_to_a_running_job_is_found_by_its_next_suspension(store: Store) -> None:
    """It answers the open wait of an earlier run, and changes nothing about the claim."""
    job = await store.add()
    await suspend(store, await store.take(), wait("go"), wait("other"))
    await signal(store, job, "other")
    claim = await store.take()
    assert await signal(store, job, "go", b"7") is Signaled.TAKEN
    assert (await store.job(job)).token == claim.token
    await suspend(store, claim, wait("go"))
    again = await store.take()
    assert (again.id, (await values(store, job))["go"]) == (job, (DONE, b"7"))


@pytest.mark.core
@pytest.mark.spec("ANSWER-03", "ANSWER-07")
async def test_every_answer_in_its_order(store: Store) -> None:
    """Independently of each other, also several to one job: the second one sees the first."""
    ended, waiting, fresh = await store.add(), await store.add(), await store.add(delay=HOUR)
    claims = {claim.id: claim for claim in await store.claim(n=2)}
    await store.finish(claims[ended], Done())
    await suspend(store, claims[waiting], wait("go"))
    sent = [
        Signal(ended, "go"),
        Signal(waiting, "go", b"1"),
        Signal(store.mint(), "go"),
        Signal(waiting, "go", b"2"),
        Signal(fresh, "go", b"3"),
        Signal(fresh, "go", b"4"),
    ]
    assert await store.engine.steps.signal(sent) == [
        Signaled.ENDED,
        Signaled.TAKEN,
        Signaled.MISSING,
        Signaled.ANSWERED,
        Signaled.EARLY,
        Signaled.ANSWERED,
    ]
    assert await store.engine.steps.signal([]) == []
    assert await values(store, ended) == {}
    assert await values(store, waiting) == {"go": (DONE, b"1")}
    assert await values(store, fresh) == {"go": (EARLY, b"3")}


@pytest.mark.spec("ANSWER-03")
async def test_a_signal_goes_to_the_open_use_of_a_name(store: Store) -> None:
    """`approval#2` in a loop; a name with a number means that very row."""
    job = await store.add()
    claim = await store.take()
    await save(store, claim, Step("approval", value=b"1"), Step("approval-x"), Step("approval#x"))
    await suspend(store, claim, wait("approval#2"), wait("approval#10"), wait("approvals"))
    assert await signal(store, job, "approval", b"2") is Signaled.TAKEN
    assert await signal(store, job, "approval", b"3") is Signaled.TAKEN
    assert await signal(store, job, "approval", b"4") is Signaled.ANSWERED
    assert await signal(store, job, "approval#3", b"5") is Signaled.EARLY
    found = await values(store, job)
    assert [found[f"approval#{n}"] for n in (2, 3, 10)] == [(DONE, b"2"), (EARLY, b"5"), (DONE, b"3")]
    assert found["approvals"] == (WAITING, None)


@pytest.mark.spec("ANSWER-04")
async def test_appended_signals_are_numbered(store: Store) -> None:
    """The first free number: an open wait is free, an answered one is not."""
    job = await store.add()
    for value in (b"1", b"2", b"3"):
        assert await signal(store, job, "message", value, append=True) is Signaled.EARLY
    await suspend(store, await store.take(), wait("message"))
    await suspend(store, await store.take(), wait("message#4"))
    assert await signal(store, job, "message", b"4", append=True) is Signaled.TAKEN
    assert await signal(store, job, "message", b"5", append=True) is Signaled.EARLY
    assert await values(store, job) == {
        "message": (DONE, b"1"),
        "message#2": (EARLY, b"2"),
        "message#3": (EARLY, b"3"),
        "message#4": (DONE, b"4"),
        "message#5": (EARLY, b"5"),
    }


@pytest.mark.spec("ANSWER-06")
async def test_an_answer_is_given_again(store: Store) -> None:
    """In place of one that the handler could not read; a suspended job runs."""
    job = await store.add()
    claim = await store.take()
    await suspend(store, claim, wait("go"))
    await signal(store, job, "go", b'"bad"')
    await store.finish(await store.take(), Failed("boom", after=HOUR))
    assert await signal(store, job, "go", b'"good"', again=True) is Signaled.TAKEN
    assert await values(store, job) == {"go": (DONE, b'"good"')}
    assert (await store.status(job), await store.claim()) == (Status.RETRYING, [])


@pytest.mark.core
@pytest.mark.spec("STEP-21")
async def test_a_signal_shortens_no_backoff_and_no_snooze(store: Store) -> None:
    """Only a job that is suspended on that very wait is woken."""
    retrying, snoozed, later = await store.add(), await store.add(), await store.add()
    for outcome in (Failed("boom", after=HOUR), Snoozed(HOUR), Snoozed(HOUR)):
        claim = await store.take()
        await suspend(store, claim, after=0)
        claim = await store.take()
        await store.finish(claim, outcome)
    due = store.now() + HOUR
    for job in (retrying, snoozed, later):
        assert await signal(store, job) is Signaled.TAKEN
        assert (await store.job(job)).scheduled_at == due
    assert await store.claim(n=9) == []
    store.pass_time(HOUR)
    assert len(await store.claim(n=9)) == 3


@pytest.mark.spec("STEP-22")
async def test_a_wait_of_an_earlier_run_wakes_nobody(store: Store) -> None:
    """The run after it went another way, and suspended on something else."""
    job = await store.add()
    await suspend(store, await store.take(), wait("old"), after=0)
    await suspend(store, await store.take(), wait("new"))
    assert await signal(store, job, "old") is Signaled.TAKEN
    assert await store.claim() == []
    assert await signal(store, job, "new") is Signaled.TAKEN
    assert (await store.take()).id == job


@pytest.mark.core
@pytest.mark.spec("STEP-20")
async def test_the_first_answer_of_several_waits_lets_a_job_run(store: Store) -> None:
    """The others stay open."""
    job = await store.add()
    await suspend(store, await store.take(), wait("a"), wait("b"))
    await signal(store, job, "b")
    claim = await store.take()
    assert await values(store, job) == {"a": (WAITING, None), "b": (DONE, b"1")}
    await suspend(store, claim, wait("a"))
    assert await store.claim() == []


@pytest.mark.core
@pytest.mark.spec("STEP-20")
async def test_a_job_may_wait_for_all_answers(store: Store) -> None:
    """It runs when the last one is there, early ones counted, or at the first deadline."""
    job = await store.add()
    await signal(store, job, "c")
    await suspend(store, await store.take(), wait("a"), wait("b"), wait("c"), wakes=Wakes.ALL)
    assert await signal(store, job, "b") is Signaled.TAKEN
    assert await store.claim() == []
    assert await signal(store, job, "a") is Signaled.TAKEN
    claim = await store.take()
    await suspend(store, claim, wait("a"), wait("b"), wakes=Wakes.ALL)
    claim = await store.take()
    await suspend(store, claim, wait("d"), wait("e"), after=MINUTE, wakes=Wakes.ALL)
    await signal(store, job, "d")
    assert await store.claim() == []
    store.pass_time(MINUTE)
    assert (await store.take()).id == job


@pytest.mark.spec("STEP-22")
async def test_all_answers_are_those_of_the_suspension(store: Store) -> None:
    """Neither a wait of an earlier run nor one that the run saved and gave up is waited for."""
    job = await store.add()
    await suspend(store, await store.take(), wait("old"), after=0)
    claim = await store.take()
    await save(store, claim, wait("given-up"))
    await suspend(store, claim, wait("a"), wait("b"), wakes=Wakes.ALL)
    await signal(store, job, "a")
    assert await store.claim() == []
    await signal(store, job, "b")
    assert (await store.take()).id == job


@pytest.mark.spec("STEP-20")
async def test_two_answers_in_one_call_complete_a_job(store: Store) -> None:
    """The second one sees the first."""
    job = await store.add()
    await suspend(store, await store.take(), wait("a"), wait("b"), wakes=Wakes.ALL)
    both = await store.engine.steps.signal([Signal(job, "a"), Signal(job, "b")])
    assert both == [Signaled.TAKEN, Signaled.TAKEN]
    assert (await store.take()).id == job


@pytest.mark.spec("ANSWER-08")
async def test_early_signals_are_bounded(store: Store) -> None:
    """The next one is refused until the job waits for one of them; an answer to an open wait is always taken."""
    job = await store.add()
    many = [Signal(job, "message", b"%d" % n, append=True) for n in range(MOST_EARLY)]
    assert set(await store.engine.steps.signal(many)) == {Signaled.EARLY}
    assert await signal(store, job, "message", append=True) is Signaled.FULL
    assert await signal(store, job, "other") is Signaled.FULL
    assert len(await rows(store, job)) == MOST_EARLY
    await suspend(store, await store.take(), wait("go"), wait("message"))
    assert await signal(store, job, "go") is Signaled.TAKEN
    assert await signal(store, job, "message", append=True) is Signaled.EARLY


@pytest.mark.core
@pytest.mark.spec("ANSWER-10")
async def test_a_signal_joins_a_transaction(store: Store) -> None:
    """It is there, and its job due, if and only if that commits."""
    needs(store, Feature.OWN_TRANSACTION)
    job = await store.add()
    await suspend(store, await store.take())
    with pytest.raises(RuntimeError):
        async with store.engine.transaction() as tx:
            assert await store.engine.steps.signal([Signal(job, "go", b"1")], tx=tx) == [Signaled.TAKEN]
            raise RuntimeError
    assert await values(store, job) == {"go": (WAITING, None)}
    assert await store.claim() == []
    async with store.engine.transaction() as tx:
        answers = await store.engine.steps.signal([Signal(job, "go", b"2"), Signal(job, "early", b"3")], tx=tx)
        assert answers == [Signaled.TAKEN, Signaled.EARLY]
    assert await values(store, job) == {"go": (DONE, b"2"), "early": (EARLY, b"3")}
    assert (await store.take()).id == job


@pytest.mark.spec("ANSWER-11")
async def test_a_signal_by_a_person_is_in_the_audit_log(store: Store) -> None:
    """With the name and without the value, in the step that stores it; a refused one, and one by code, is not."""
    maria = By("maria", "page")
    job = await store.add()
    await suspend(store, await store.take())
    sent = [Signal(job, "go", b'"secret"'), Signal(job, "go", b'"again"')]
    assert await store.engine.steps.signal(sent, by=maria) == [Signaled.TAKEN, Signaled.ANSWERED]
    await signal(store, job, "more")
    [entry] = await store.engine.audit.read(AuditQuery())
    assert (entry.at, entry.by, entry.deed.action) == (store.now(), maria, "jobs.signal")
    assert (entry.deed.target, entry.deed.after) == (f"job {text(job)}", {"name": "go"})
    assert "secret" not in str(entry)


@pytest.mark.core
@pytest.mark.spec("ANSWER-14")
async def test_an_open_wait_refuses_what_it_does_not_ask_for(store: Store) -> None:
    """By the JSON Schema in its row. The wait stays open, of a numbered name too; an early signal is not judged."""
    job = await store.add()
    asks = b'{"ask":null,"schema":{"type":"integer"}}'
    await suspend(store, await store.take(), wait("go", value=asks), wait("side#2", value=asks), wait("free"))
    before = await rows(store, job)
    assert await signal(store, job, "go", b'"yes"') is Signaled.UNFIT
    assert await signal(store, job, "side", b"null") is Signaled.UNFIT
    assert await rows(store, job) == before
    assert (await store.job(job)).suspended
    assert await signal(store, job, "later", b'"yes"') is Signaled.EARLY
    assert await signal(store, job, "free", b'"yes"') is Signaled.TAKEN
    assert await signal(store, job, "side", b"7") is Signaled.TAKEN
    assert (await values(store, job))["side#2"] == (DONE, b"7")
