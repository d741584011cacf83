"""Called jobs: stored with the rows of their caller, in a group whose closing answers the caller's wait."""

from __future__ import annotations

import msgspec
import pytest

from stoker.model.ids import JobId
from stoker.model.job import Status, Verdict
from stoker.model.lifecycle import conclude
from stoker.model.outcome import Done, Failed, Rejected
from stoker.model.query import Cancel, Delete, Selection
from stoker.model.steps import Step, StepState, Wakes
from stoker.model.time import HOUR, SECOND
from stoker.testing.conformance.group_helpers import close, look
from stoker.testing.conformance.harness import ARRIVES, QUEUE, Store
from stoker.testing.conformance.step_helpers import Calls, calls, rows, save, saved, signal, suspend, values, wait

KIDS = "kids"
"""The queue of called jobs."""


async def _call(store: Store, n: int = 2, **more: int) -> tuple[JobId, Calls]:
    """A job that called some others, and is suspended until they have ended."""
    parent = await store.add()
    call = calls(store, *(store.draft("kid", queue=KIDS, **more) for _ in range(n)))
    claim = await store.take()
    assert await suspend(store, claim, call.wait, called=call.drafts, groups=(call.group,)) is Verdict.APPLIED
    return parent, call


@pytest.mark.core
@pytest.mark.spec("CALL-01")
async def test_a_suspension_stores_the_jobs_it_calls(store: Store) -> None:
    """In its own write, as members of a sealed group; a waiter of their queue is woken."""
    parent = await store.add()
    call = calls(store, *(store.draft("kid", queue=KIDS) for _ in range(2)))
    claim = await store.take()
    await store.quiet(KIDS)
    row = Step("call:kid", StepState.CALLED, b'{"job":1}')
    await suspend(store, claim, row, call.wait, called=call.drafts, groups=(call.group,))
    assert await store.engine.jobs.wait([KIDS], ARRIVES) == {KIDS}
    group = await look(store, call.group)
    assert (group.sealed, group.total, group.waiting, group.closed_at) == (True, 2, 2, None)
    assert group.wakes == (parent, call.wait.name)
    assert await values(store, parent) == {
        "call:kid": (StepState.CALLED, b'{"job":1}'),
        call.wait.name: (StepState.WAITING, None),
    }
    assert await store.claim() == []
    assert len(await store.claim("w2", 9, KIDS)) == 2


@pytest.mark.core
@pytest.mark.spec("CALL-02")
async def test_the_end_of_the_last_called_job_lets_its_caller_run(store: Store) -> None:
    """Once, whatever the others came to; a waiter of the caller's queue is woken."""
    parent, call = await _call(store, 3)
    kids = await store.claim("w2", 3, KIDS)
    await store.finish(kids[0], Done(b"1"))
    await store.finish(kids[1], Rejected("no"))
    await close(store)
    assert await store.claim() == []
    await store.quiet(QUEUE)
    store.pass_time(SECOND)
    await store.finish(kids[2], Done(b"3"))
    await close(store)
    assert await store.engine.jobs.wait([QUEUE], ARRIVES) == {QUEUE}
    assert (await values(store, parent))[call.wait.name] == (StepState.DONE, b"null")
    claim = await store.take()
    assert (claim.id, claim.scheduled_at) == (parent, store.now())
    await store.finish(claim, Done())
    await close(store)
    assert await store.claim() == []


@pytest.mark.spec("CALL-02")
async def test_called_jobs_count_by_whatever_door_they_end(store: Store) -> None:
    """Canceled, deleted, or removed by their success."""
    parent, call = await _call(store, 3)
    ids = [draft.job_id for draft in call.drafts]
    await store.engine.operator.alter(Selection((ids[0],)), Cancel())
    await store.engine.operator.alter(Selection((ids[1],)), Delete())
    await close(store)
    assert await store.claim() == []
    [kid] = await store.claim("w2", 3, KIDS)
    await store.settle(msgspec.structs.replace(conclude(kid, Done()), keep=0))
    await close(store)
    assert (await store.take()).id == parent


@pytest.mark.core
@pytest.mark.spec("CALL-03")
async def test_a_save_starts_the_jobs_it_calls(store: Store) -> None:
    """They run while their caller does; ended before it suspends, they let it run at once."""
    parent = await store.add()
    claim = await store.take()
    call = calls(store, store.draft("kid", queue=KIDS))
    row = Step("call:kid", StepState.CALLED)
    await store.quiet(KIDS)
    assert await save(store, claim, row, call.wait, drafts=call.drafts, groups=(call.group,)) is Verdict.APPLIED
    assert await store.engine.jobs.wait([KIDS], ARRIVES) == {KIDS}
    await store.finish(await store.take("w2", KIDS), Done(b"1"))
    await close(store)
    assert (await store.job(parent)).status is Status.RUNNING
    assert await suspend(store, claim, call.wait) is Verdict.APPLIED
    assert (await store.take()).id == parent


@pytest.mark.spec("CALL-03")
async def test_a_save_that_is_sent_twice_calls_once(store: Store) -> None:
    """Also after the called job has ended and its group is closed."""
    parent = await store.add()
    claim = await store.take()
    call = calls(store, store.draft("kid", queue=KIDS))
    twice = saved(claim, call.wait, drafts=call.drafts, groups=(call.group,))
    for _ in range(2):
        assert await store.engine.steps.save([twice]) == [Verdict.APPLIED]
        group = await look(store, call.group)
        assert (group.total, group.waiting) == (1, 1)
    await store.finish(await store.take("w2", KIDS), Done(b"1"))
    closed = await look(store, call.group)
    assert await store.engine.steps.save([twice]) == [Verdict.APPLIED]
    assert await look(store, call.group) == closed
    assert (await rows(store, parent))[call.wait.name].state is StepState.DONE
    assert await store.claim("w2", 9, KIDS) == []


@pytest.mark.core
@pytest.mark.spec("CALL-04")
async def test_a_caller_waits_for_several_groups(store: Store) -> None:
    """For the first of them, or for all: one run, however many jobs were called."""
    for wakes, after_first in ((Wakes.ANY, True), (Wakes.ALL, False)):
        parent = await store.add()
        claim = await store.take()
        first, second = (calls(store, store.draft("kid", queue=queue)) for queue in (KIDS, "others"))
        assert await save(store, claim, first.wait, drafts=first.drafts, groups=(first.group,)) is Verdict.APPLIED
        both = await suspend(
            store, claim, first.wait, second.wait, wakes=wakes, called=second.drafts, groups=(second.group,)
        )
        assert both is Verdict.APPLIED
        await store.finish(await store.take("w2", KIDS), Done())
        await close(store)
        claims = await store.claim()
        assert [one.id for one in claims] == ([parent] if after_first else [])
        await store.finish(await store.take("w2", "others"), Done())
        await close(store)
        if not after_first:
            claims = await store.claim()
        assert [one.id for one in claims] == [parent]
        await store.finish(claims[0], Done())


@pytest.mark.spec("CALL-02")
async def test_a_called_job_that_waits_for_a_retry_has_not_ended(store: Store) -> None:
    """Nor has one that is itself suspended."""
    parent, _ = await _call(store, 1)
    kid = await store.take("w2", KIDS)
    await store.finish(kid, Failed("boom", after=HOUR))
    await close(store)
    assert await store.claim() == []
    store.pass_time(HOUR)
    kid = await store.take("w2", KIDS)
    await suspend(store, kid, wait("go"))
    await close(store)
    assert await store.claim() == []
    await signal(store, kid.id)
    await store.finish(await store.take("w2", KIDS), Done())
    await close(store)
    assert (await store.take()).id == parent


@pytest.mark.spec("CALL-05")
async def test_a_caller_that_has_ended_is_not_woken(store: Store) -> None:
    """Canceled or deleted meanwhile: the group closes all the same."""
    for change in (Cancel(), Delete()):
        parent, call = await _call(store, 1)
        await store.engine.operator.alter(Selection((parent,)), change)
        await store.finish(await store.take("w2", KIDS), Done())
        assert (await look(store, call.group)).closed_at == store.now()
        assert await store.claim() == []


@pytest.mark.spec("CALL-06")
async def test_a_sweep_repeats_nothing(store: Store) -> None:
    """The caller ran on and waits for other jobs: a sweep of closed groups does not wake it."""
    parent, _ = await _call(store, 1)
    await store.finish(await store.take("w2", KIDS), Done())
    await close(store)
    claim = await store.take()
    await suspend(store, claim, wait("go"))
    await store.engine.groups.sweep()
    assert await store.claim() == []
    assert (await store.job(parent)).suspended
