from __future__ import annotations

from datetime import timedelta

import pytest

from stoker.app import Stoker
from stoker.model.errors import InvalidName, StokerError
from stoker.model.job import Status
from stoker.model.throttle import Rate
from stoker.testing.clock import VirtualClock
from tests.harness.apps import drain


@pytest.mark.spec("API-25")
async def test_a_paused_queue_hands_out_nothing_until_it_is_resumed(jobs: Stoker) -> None:
    @jobs.task(queue="mail")
    async def send() -> None: ...

    mail = jobs.queue("mail")
    await mail.pause()
    job = await send.enqueue()
    await drain(jobs)
    assert (await job.refresh()).status is Status.PENDING
    await mail.resume()
    await drain(jobs)
    assert (await job.refresh()).status is Status.DONE
    assert repr(mail) == "<QueueHandle mail>"


@pytest.mark.spec("API-25")
async def test_a_budget_grants_or_returns_how_long_to_wait(timed_jobs: Stoker, clock: VirtualClock) -> None:
    stripe = timed_jobs.budget("stripe")
    assert not await stripe.spend(), "the budget is not set"
    assert await stripe.drain() is False
    await (await timed_jobs.engine()).tune("stripe", Rate(1, per=2, burst=2))
    granted, refused = await stripe.spend(2), await stripe.spend()
    assert (bool(granted), granted.wait) == (True, timedelta(0))
    assert (bool(refused), refused.wait) == (False, timedelta(seconds=4))
    clock.advance(refused.wait)
    assert await stripe.drain() is True
    assert not await stripe.spend()
    assert repr(stripe) == "<BudgetHandle stripe>"


@pytest.mark.spec("API-25")
def test_queues_budgets_and_locks_have_sync_forms() -> None:
    app = Stoker("memory://")

    @app.task(queue="mail")
    def send() -> None: ...

    async def prepare() -> None:
        await (await app.engine()).tune("stripe", Rate(1))

    app.run(prepare())
    app.queue("mail").pause_sync()
    job = send.enqueue_sync()
    app.run(drain(app))
    assert app.run(job.refresh()).status is Status.PENDING
    app.queue("mail").resume_sync()
    app.run(drain(app))
    assert app.run(job.refresh()).status is Status.DONE
    stripe = app.budget("stripe")
    assert [bool(stripe.spend_sync()), bool(stripe.spend_sync()), stripe.drain_sync()] == [True, False, True]
    with app.lock("nightly") as first, app.lock("nightly") as second:
        assert (first, second) == (True, False)
    with app.lock("nightly") as again:
        assert again
    app.run(app.close())


@pytest.mark.spec("API-25")
async def test_sync_forms_inside_a_loop_name_the_async_one(jobs: Stoker) -> None:
    for call, form in (
        (jobs.queue("mail").pause_sync, r"await jobs\.queue\('mail'\)\.pause\(\)"),
        (jobs.queue("mail").resume_sync, r"await jobs\.queue\('mail'\)\.resume\(\)"),
        (jobs.budget("sms").spend_sync, r"await jobs\.budget\('sms'\)\.spend\(\)"),
        (jobs.budget("sms").drain_sync, r"await jobs\.budget\('sms'\)\.drain\(\)"),
        (jobs.lock("x").__enter__, r"async with jobs\.lock\('x'\)"),
    ):
        with pytest.raises(StokerError, match=form):
            call()


@pytest.mark.spec("API-25")
async def test_names_are_checked_where_they_are_written(jobs: Stoker) -> None:
    for make in (jobs.queue, jobs.budget, jobs.lock):
        with pytest.raises(InvalidName):
            make("no such name")


@pytest.mark.spec("API-18")
async def test_a_lock_object_is_for_one_block_at_a_time(jobs: Stoker) -> None:
    nightly = jobs.lock("nightly")
    async with nightly as held:
        assert held
        with pytest.raises(StokerError, match="entered already"):
            await nightly.__aenter__()
    async with nightly as again, jobs.lock("nightly") as other:
        assert (again, other) == (True, False)
    assert repr(nightly) == "<LockHandle nightly>"
