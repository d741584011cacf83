from __future__ import annotations

import math
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from stoker import controls
from stoker.app import Stoker
from stoker.engines.base import Engine
from stoker.engines.memory import MemoryEngine
from stoker.model.budgets import ONLY
from stoker.model.errors import InvalidInput, InvalidName, LockLost, StokerError
from stoker.model.job import Status
from stoker.model.throttle import Rate
from stoker.testing.clock import VirtualClock
from stoker.views import Curve
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
    await (await timed_jobs.engine()).control.tune("stripe", Rate(1, per=2, burst=2))
    granted, refused = await stripe.spend(2), await stripe.spend()
    assert (bool(granted), granted.wait) == (True, timedelta(0))
    assert (bool(refused), refused.wait) == (False, timedelta(seconds=4))
    clock.advance(refused.wait)
    assert await stripe.drain() is True
    assert not await stripe.spend()
    assert repr(stripe) == "<BudgetHandle stripe>"


@pytest.mark.spec("QUEUE-17")
async def test_a_pause_may_end_by_itself(timed_jobs: Stoker, clock: VirtualClock) -> None:
    @timed_jobs.task(queue="mail")
    async def send() -> None: ...

    mail = timed_jobs.queue("mail")
    now = datetime.fromtimestamp(clock() / 1e6, UTC)
    job = await send.enqueue()
    for pause in ({"for_": 600}, {"for_": timedelta(minutes=10)}, {"until": now + timedelta(minutes=10)}):
        await mail.pause(**pause, reason="deploy", by="ann")
        settings = await mail.settings()
        assert (settings.paused, settings.paused_until) == (True, now + timedelta(minutes=10))
        assert (settings.reason, settings.paused_by) == ("deploy", "ann")
    await drain(timed_jobs)
    assert (await job.refresh()).status is Status.PENDING
    clock.advance(600)
    settings = await mail.settings()
    assert (settings.paused, settings.paused_until, settings.reason, settings.paused_by) == (False, None, None, None)
    await drain(timed_jobs)
    assert (await job.refresh()).status is Status.DONE


@pytest.mark.spec("QUEUE-17")
async def test_a_pause_that_makes_no_sense_is_refused(timed_jobs: Stoker, clock: VirtualClock) -> None:
    mail = timed_jobs.queue("mail")
    now = datetime.fromtimestamp(clock() / 1e6, UTC)
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"for_": 0}, "for_"),
        ({"for_": -1}, "for_"),
        ({"for_": math.nan}, "for_"),
        ({"until": now}, "until"),
        ({"until": now - timedelta(days=1)}, "until"),
        ({"until": datetime(2100, 1, 1)}, "until"),
        ({"until": now + timedelta(days=1), "for_": 5}, "until"),
        ({"reason": "x" * 1001}, "reason"),
        ({"reason": ""}, "reason"),
        ({"by": "a\0b"}, "by"),
    ]
    for given, field in wrong:
        with pytest.raises(InvalidInput) as refused:
            await mail.pause(**given)
        assert refused.value.field == field
    assert await (await timed_jobs.engine()).control.queues() == []


@pytest.mark.spec("QUEUE-17")
async def test_a_queue_is_tuned_and_cleared_for_every_worker(timed_jobs: Stoker) -> None:
    mail = timed_jobs.queue("mail")
    plain = await mail.settings()
    assert (plain.workers, plain.rate, plain.curve, plain.paused, plain.changed) == (
        None,
        None,
        None,
        False,
        frozenset(),
    )
    await mail.tune(workers=3, rate=Rate(100, per=60), keep_done=3600, curve=Curve(base=5, max=timedelta(minutes=1)))
    await mail.tune(keep_dead=timedelta(days=1))
    tuned = await mail.settings()
    assert (tuned.workers, tuned.rate, tuned.curve) == (3, Rate(100, per=60), Curve(5, 60))
    assert (tuned.keep_done, tuned.keep_dead) == (timedelta(hours=1), timedelta(days=1))
    await mail.clear("workers", "rate", "keep_done")
    left = await mail.settings()
    assert (left.workers, left.rate, left.keep_done, left.curve) == (None, None, plain.keep_done, Curve(5, 60))
    await mail.clear("keep_dead", "curve")
    assert await mail.settings() == plain
    for call in (mail.tune(rate=5), mail.tune(curve=5), mail.tune(workers=1.5), mail.clear("paused")):  # type: ignore[arg-type]
        with pytest.raises(InvalidInput):
            await call
    with pytest.raises(InvalidInput, match=r"Curve\.base"):
        Curve(base=-1)
    assert await mail.settings() == plain


@pytest.mark.spec("QUEUE-19")
async def test_the_apps_retention_of_dead_jobs_counts_in_queues_without_their_own(clock: VirtualClock) -> None:
    app = Stoker(MemoryEngine(clock=clock), keep_dead=timedelta(days=90))
    app.queue("mail", keep_dead=60, workers=2)
    app.queue("sms", workers=3)

    @app.task(attempts=1)
    async def fail() -> None:
        raise ValueError("no")

    async with app:
        made = {queue: await fail.using(queue=queue).enqueue() for queue in ("default", "mail", "sms", "elsewhere")}
        await drain(app, queues={"default": 1, "mail": 1, "sms": 1, "push": 1})
        await drain(app, queues={"elsewhere": 1})
        kept = {}
        for queue, job in made.items():
            record = await job.refresh()
            assert record.expires_at is not None and record.finished_at is not None
            kept[queue] = record.expires_at - record.finished_at
        days = timedelta(days=90)
        assert kept == {"default": days, "mail": timedelta(seconds=60), "sms": days, "elsewhere": days}
        await app.queue("push").tune(keep_dead=1)
        await drain(app, queues={"push": 1})
        assert (await app.queue("push").settings()).keep_dead == timedelta(seconds=1), "people changed it"
    with pytest.raises(InvalidInput, match="keep_dead"):
        Stoker("memory://", keep_dead=-1)


@pytest.mark.spec("QUEUE-18")
async def test_what_code_declares_is_stored_when_a_worker_starts(timed_jobs: Stoker) -> None:
    mail = timed_jobs.queue("mail", workers=3, rate=Rate(5))
    sms = timed_jobs.budget("sms", Rate(1, per=2, burst=9))
    assert (await mail.settings()).workers is None
    assert not await sms.spend()
    await drain(timed_jobs)
    assert ((await mail.settings()).workers, (await mail.settings()).rate) == (3, Rate(5))
    assert (await timed_jobs.spend("sms", 9)).granted
    await mail.tune(workers=7)
    await sms.tune(Rate(4))
    await drain(timed_jobs)
    settings = await mail.settings()
    assert (settings.workers, settings.rate, settings.changed) == (7, Rate(5), frozenset({"workers"}))
    [budget] = await (await timed_jobs.engine()).control.budgets()
    assert budget.buckets[ONLY].rate == Rate(4)


@pytest.mark.spec("QUEUE-18")
async def test_another_declaration_changes_what_people_did_not(engine: Engine) -> None:
    """As after a deployment: another app on the same store declares other values."""
    before, after = Stoker(engine), Stoker(engine)
    before.queue("mail", workers=3, keep_done=60)
    await drain(before)
    await before.queue("mail").tune(keep_done=90)
    after.queue("mail", workers=4, keep_done=70)
    await drain(after)
    settings = await after.queue("mail").settings()
    assert (settings.workers, settings.keep_done) == (4, timedelta(seconds=90))
    await before.close()
    await after.close()


@pytest.mark.spec("QUEUE-18")
async def test_two_values_for_one_setting_are_refused_where_they_are_written(jobs: Stoker) -> None:
    jobs.queue("mail", workers=3)
    jobs.queue("mail", workers=3, rate=Rate(5))
    jobs.queue("mail")
    jobs.budget("sms", Rate(5))
    jobs.budget("sms", Rate(5))
    jobs.budget("sms")
    with pytest.raises(InvalidInput, match="queue 'mail' is declared with 3 already"):
        jobs.queue("mail", workers=4)
    with pytest.raises(InvalidInput, match="budget 'sms' is declared with"):
        jobs.budget("sms", Rate(6))
    with pytest.raises(InvalidInput, match="must be a Rate"):
        jobs.budget("other", 5)  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match="must be a Rate"):
        jobs.queue("other", rate=5)  # type: ignore[arg-type]
    assert (list(jobs.declarations.queues), list(jobs.declarations.budgets)) == (["mail"], ["sms"])


@pytest.mark.spec("QUEUE-18")
async def test_an_app_that_declares_nothing_stores_nothing(jobs: Stoker, monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker of queues without settings makes not one call more."""
    engine = await jobs.engine()
    calls: list[str] = []

    async def tune(name: str, tuning: Any, *, declared: bool = False) -> bool:
        calls.append(name)
        return declared

    monkeypatch.setattr(engine.control, "tune", tune)
    jobs.queue("mail")
    jobs.budget("sms")
    await drain(jobs)
    assert calls == []


@pytest.mark.spec("API-25")
def test_queues_budgets_and_locks_have_sync_forms() -> None:
    app = Stoker("memory://")

    @app.task(queue="mail")
    def send() -> None: ...

    app.budget("stripe").tune_sync(Rate(1))
    app.queue("mail").tune_sync(workers=3)
    app.queue("mail").pause_sync(for_=60, reason="deploy")
    assert (app.queue("mail").settings_sync().reason, app.queue("mail").settings_sync().workers) == ("deploy", 3)
    app.queue("mail").clear_sync("workers")
    assert app.queue("mail").settings_sync().workers is None
    job = send.enqueue_sync()
    app.run(drain(app))
    assert app.run(job.refresh()).status is Status.PENDING
    app.queue("mail").resume_sync()
    app.run(drain(app))
    assert app.run(job.refresh()).status is Status.DONE
    stripe = app.budget("stripe")
    assert [bool(stripe.spend_sync()), bool(app.spend_sync("stripe")), stripe.drain_sync()] == [True, False, True]
    with app.lock("nightly") as first, app.lock("nightly") as second:
        assert (first, second) == (True, False)
    with app.lock("nightly") as again:
        assert again
    app.run(app.close())


@pytest.mark.spec("API-25")
async def test_sync_forms_inside_a_loop_name_the_async_one(jobs: Stoker) -> None:
    for call, form in (
        (jobs.queue("mail").pause_sync, r"await pause\(\.\.\.\)` of <QueueHandle mail>"),
        (jobs.queue("mail").resume_sync, r"await resume\(\.\.\.\)` of <QueueHandle mail>"),
        (jobs.queue("mail").tune_sync, r"await tune\(\.\.\.\)` of <QueueHandle mail>"),
        (jobs.queue("mail").clear_sync, r"await clear\(\.\.\.\)` of <QueueHandle mail>"),
        (jobs.queue("mail").settings_sync, r"await settings\(\.\.\.\)` of <QueueHandle mail>"),
        (jobs.budget("sms").spend_sync, r"await spend\(\.\.\.\)` of <BudgetHandle sms>"),
        (jobs.budget("sms").drain_sync, r"await drain\(\.\.\.\)` of <BudgetHandle sms>"),
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


@pytest.mark.spec("LOCK-06")
async def test_a_lease_of_no_length_is_refused(timed_jobs: Stoker) -> None:
    with pytest.raises(InvalidInput, match="lease: must be more than 0"):
        timed_jobs.lock("nightly", lease=0)
    async with timed_jobs.lock("nightly") as held:
        assert held
        with pytest.raises(InvalidInput, match="lease: must be more than 0"):
            await timed_jobs.lock("nightly").extend(timedelta(0))


@pytest.mark.spec("LOCK-08")
async def test_a_lock_can_be_extended_while_it_is_held(timed_jobs: Stoker, clock: VirtualClock) -> None:
    nightly = timed_jobs.lock("nightly", lease=30)
    assert (nightly.held, await nightly.extend()) == (False, False), "it is not entered"
    async with nightly as held:
        assert [held, nightly.held] == [True, True]
        clock.advance(20)
        assert await nightly.extend()
        clock.advance(20)
        async with timed_jobs.lock("nightly") as other:
            assert not other, "30 seconds from the extension"
        assert await nightly.extend(timedelta(minutes=5))
        clock.advance(200)
        async with timed_jobs.lock("nightly") as other:
            assert not other
        for wrong in (-1, "long"):
            with pytest.raises(InvalidInput, match="lease"):
                await nightly.extend(wrong)  # type: ignore[arg-type]
    assert [nightly.held] == [False]
    async with timed_jobs.lock("nightly") as first, timed_jobs.lock("nightly") as second:
        assert (first, second) == (True, False)


@pytest.mark.spec("LOCK-09")
async def test_a_block_that_lost_its_lock_is_notified(
    timed_jobs: Stoker, clock: VirtualClock, caplog: pytest.LogCaptureFixture
) -> None:
    nightly = timed_jobs.lock("nightly", lease=30)
    with pytest.raises(LockLost, match="lock 'nightly' was no longer held when its block ended"):
        async with nightly:
            clock.advance(31)
            async with timed_jobs.lock("nightly", lease=30) as other:
                assert other
                assert not await nightly.extend(), "another process has it"
    with pytest.raises(KeyError):  # the block's own error stays, the loss is logged
        async with nightly:
            clock.advance(31)
            async with timed_jobs.lock("nightly"):
                raise KeyError
    [line] = [one.getMessage() for one in caplog.records if one.name == "stoker.lock"]
    assert "was no longer held when its block ended" in line


@pytest.mark.spec("LOCK-09")
async def test_a_block_that_outlasts_a_lock_which_no_other_took_is_warned(
    timed_jobs: Stoker, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    now = 1000.0
    monkeypatch.setattr(controls, "monotonic", lambda: now)
    nightly = timed_jobs.lock("nightly", lease=30)
    async with nightly:
        now += 31
        assert [nightly.held] == [False]
        assert await nightly.extend(), "it lapsed, and was no other's since"
        assert [nightly.held] == [True]
        now += 31
    assert [nightly.held] == [False]
    [line] = [one.getMessage() for one in caplog.records if one.name == "stoker.lock"]
    assert "outlasted the lease" in line and "No other process took the lock" in line
    with pytest.raises(LockLost):
        async with nightly:
            now += 31
            engine = await timed_jobs.engine()
            [owner] = [nightly._owner]
            assert owner is not None and await engine.control.unlock("nightly", owner)
            assert not await nightly.extend(), "another process may have held it since"


@pytest.mark.spec("LOCK-08")
def test_a_lock_is_extended_from_code_without_a_loop() -> None:
    app = Stoker("memory://")
    nightly = app.lock("nightly")
    with nightly as held:
        assert held and nightly.extend_sync(60) and nightly.held
    assert not nightly.extend_sync()
    app.run(app.close())
