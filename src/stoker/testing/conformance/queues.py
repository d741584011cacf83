"""Queues as operators tune them and code declares them: patches, pauses, retention, the failure curve."""

from __future__ import annotations

from typing import Any

import pytest

from stoker.model.control import LONGEST_REASON, MOST_WORKERS, SETTINGS, Pause, Queue, Tuning
from stoker.model.errors import InvalidInput
from stoker.model.job import Demand, Status, Verdict
from stoker.model.lifecycle import KEEP_DEAD
from stoker.model.next_due import NextDue
from stoker.model.outcome import Done, Failed, Rejected, Throttled
from stoker.model.query import Move, Selection
from stoker.model.retry import OFF, Curve
from stoker.model.throttle import OPEN, Rate, full
from stoker.model.time import DAY, HOUR, LONGEST, MINUTE, SECOND
from stoker.testing.conformance.harness import ARRIVES, Store


def _plain(store: Store, name: str, **tuned: Any) -> Queue:
    """A queue with nothing but these settings of its own."""
    return Queue(name=name, keep_done=store.engine.keep_done, **tuned)


async def _queue(store: Store, name: str) -> Queue:
    return next(queue for queue in await store.engine.control.queues() if queue.name == name)


@pytest.mark.core
@pytest.mark.spec("QUEUE-01")
async def test_queues_of_a_fresh_store_are_none(store: Store) -> None:
    """Nothing tuned, nothing used: no queues."""
    assert await store.engine.control.queues() == []


@pytest.mark.core
@pytest.mark.spec("QUEUE-01")
async def test_queues_are_listed_by_name(store: Store) -> None:
    """Tuned and used queues appear once each, sorted by name."""
    await store.engine.control.tune("mail", Tuning(workers=1))
    await store.insert(
        store.draft(queue="zoo"), store.draft(queue="B"), store.draft(queue="mail"), store.draft(queue="b")
    )
    assert [queue.name for queue in await store.engine.control.queues()] == ["B", "b", "mail", "zoo"]


@pytest.mark.core
@pytest.mark.spec("QUEUE-01")
async def test_queues_lists_a_queue_that_was_only_cooled(store: Store) -> None:
    """A throttled queue shows its window, and keeps it when it is tuned afterwards."""
    await store.add(queue="api")
    await store.finish(await store.take(queue="api"), Throttled())
    cooled = await _queue(store, "api")
    assert (cooled.cooldown.until, cooled.cooldown.count) == (store.now() + MINUTE, 1)
    await store.engine.control.tune("api", Tuning(workers=2))
    tuned = await _queue(store, "api")
    assert (tuned.cooldown, tuned.workers) == (cooled.cooldown, 2)


@pytest.mark.core
@pytest.mark.spec("QUEUE-02")
async def test_queues_that_were_never_tuned_act_by_default(store: Store) -> None:
    """A queue that is merely used has every default; one that was never used hands out nothing."""
    await store.add(queue="plain")
    assert await _queue(store, "plain") == _plain(store, "plain")
    assert await store.claim(queue="unheard") == []
    claim = await store.take(queue="plain")
    assert (claim.curve, claim.cool_count) == (OFF, 0)
    await store.finish(claim, Done())
    record = await store.job(claim.id)
    assert record.expires_at == store.now() + store.engine.keep_done


@pytest.mark.core
@pytest.mark.spec("QUEUE-03")
async def test_queues_tune_is_a_patch(store: Store) -> None:
    """Only what is given changes; the rest keeps its value, defaults included."""
    curve = Curve(on=True, base=2 * SECOND, max=HOUR)
    assert await store.engine.control.tune("mail", Tuning(workers=3))
    assert await _queue(store, "mail") == _plain(store, "mail", workers=3)
    assert await store.engine.control.tune("mail", Tuning(paused=True, keep_done=HOUR))
    assert await store.engine.control.tune("mail", Tuning(curve=curve, keep_dead=DAY))
    assert await store.engine.control.tune("mail", Tuning(paused=False))
    assert await _queue(store, "mail") == Queue(
        name="mail", workers=3, keep_done=HOUR, keep_dead=DAY, curve=curve, cooldown=OPEN
    )


@pytest.mark.core
@pytest.mark.spec("QUEUE-04")
async def test_queues_tune_pulls_values_into_range(store: Store) -> None:
    """Worker counts, retention and curves outside their bounds are stored as the nearest bound."""
    await store.engine.control.tune(
        "low", Tuning(workers=-3, keep_done=-1, keep_dead=-1, curve=Curve(on=True, base=0, max=0))
    )
    low = await _queue(store, "low")
    assert (low.workers, low.keep_done, low.keep_dead, low.curve) == (0, 0, 0, Curve(on=True, base=SECOND, max=SECOND))
    huge = 2 * LONGEST
    await store.engine.control.tune(
        "high", Tuning(workers=99_999, keep_done=huge, keep_dead=huge, curve=Curve(True, huge, huge))
    )
    high = await _queue(store, "high")
    assert (high.workers, high.keep_done, high.keep_dead) == (MOST_WORKERS, LONGEST, LONGEST)
    assert high.curve == Curve(on=True, base=DAY, max=DAY)


@pytest.mark.core
@pytest.mark.spec("QUEUE-06")
async def test_queues_paused_hand_out_nothing(store: Store) -> None:
    """Jobs of a paused queue wait, urgent ones too; other queues go on; inserts are welcome."""
    await store.engine.control.tune("mail", Tuning(paused=True))
    job = await store.add(queue="mail", priority=-1000)
    other = await store.add()
    await store.enlist("w1")
    claims = await store.engine.jobs.claim(Demand("w1", (("mail", 5), ("default", 5))))
    assert [claim.id for claim in claims] == [other]
    assert await store.status(job) is Status.PENDING
    await store.engine.control.tune("mail", Tuning(paused=False))
    assert (await store.take(queue="mail")).id == job


@pytest.mark.core
@pytest.mark.spec("QUEUE-06")
async def test_queues_paused_let_running_jobs_finish(store: Store) -> None:
    """Pausing does not disturb what runs: it can be renewed and settled, and a retry waits for the resume."""
    first, second = await store.insert(store.draft(queue="mail"), store.draft(queue="mail"))
    one, two = await store.claim(n=2, queue="mail")
    await store.engine.control.tune("mail", Tuning(paused=True))
    assert (await store.engine.jobs.renew("w1", [(one.id, one.token), (two.id, two.token)])).lost == []
    assert await store.finish(one, Done()) is Verdict.APPLIED
    assert await store.finish(two, Failed("again", after=0)) is Verdict.APPLIED
    assert await store.status(first) is Status.DONE
    assert await store.claim(queue="mail") == []
    await store.engine.control.tune("mail", Tuning(paused=False))
    assert (await store.take(queue="mail")).id == second


@pytest.mark.spec("QUEUE-06")
async def test_queues_paused_hold_jobs_that_are_moved_in(store: Store) -> None:
    """A job moved into a paused queue waits there; moved out again it can be claimed."""
    await store.engine.control.tune("mail", Tuning(paused=True))
    job = await store.add()
    await store.engine.operator.alter(Selection((job,)), Move("mail"))
    assert await store.claim() == await store.claim(queue="mail") == []
    await store.engine.operator.alter(Selection((job,)), Move("default"))
    assert (await store.take()).id == job


@pytest.mark.core
@pytest.mark.spec("QUEUE-07")
async def test_queues_resume_wakes_a_waiter(store: Store) -> None:
    """A worker that sleeps on a paused queue is woken when it is resumed."""
    await store.engine.control.tune("mail", Tuning(paused=True))
    await store.quiet("mail")
    await store.engine.control.tune("mail", Tuning(paused=False))
    assert await store.engine.jobs.wait(["mail"], ARRIVES) == {"mail"}


@pytest.mark.spec("QUEUE-08")
async def test_queues_retention_is_stamped_when_a_job_ends(store: Store) -> None:
    """Done and dead jobs carry the expiry their queue gave them at that moment."""
    await store.engine.control.tune("mail", Tuning(keep_done=HOUR, keep_dead=DAY))
    done, dead = await store.insert(store.draft(queue="mail"), store.draft(queue="mail"))
    one, two = await store.claim(n=2, queue="mail")
    await store.finish(one, Done())
    await store.finish(two, Rejected("no"))
    assert (await store.job(done)).expires_at == store.now() + HOUR
    assert (await store.job(dead)).expires_at == store.now() + DAY
    other = await store.add()
    await store.finish(await store.take(), Rejected("no"))
    assert (await store.job(other)).expires_at == store.now() + KEEP_DEAD


@pytest.mark.core
@pytest.mark.spec("QUEUE-09")
async def test_queues_curve_travels_with_the_claim(store: Store) -> None:
    """A claim carries its queue's curve of that moment, so that a failure waits as the queue wants it to."""
    curve = Curve(on=True, base=3 * SECOND, max=MINUTE)
    await store.engine.control.tune("mail", Tuning(curve=curve))
    job = await store.add(queue="mail")
    claim = await store.take(queue="mail")
    assert claim.curve == curve
    await store.finish(claim, Failed("no"))
    assert (await store.job(job)).scheduled_at == store.now() + curve.delay(1)
    await store.engine.control.tune("mail", Tuning(curve=OFF))
    store.pass_time(MINUTE)
    assert (await store.take(queue="mail")).curve == OFF


@pytest.mark.core
@pytest.mark.spec("QUEUE-10")
async def test_queues_are_the_same_for_every_engine_on_the_store(store: Store) -> None:
    """What one engine tunes, another on the store sees and obeys."""
    twin = store.engine.for_loop()
    await twin.open()
    try:
        await twin.control.tune("mail", Tuning(paused=True, workers=4))
        assert (
            await store.engine.control.queues()
            == await twin.control.queues()
            == [_plain(store, "mail", pause=Pause(), workers=4)]
        )
        await store.add(queue="mail")
        assert await store.claim(queue="mail") == []
    finally:
        await twin.close()


@pytest.mark.spec("QUEUE-11")
async def test_queues_with_impossible_names_are_refused(store: Store) -> None:
    """A name outside the alphabet is refused by name and nothing is stored."""
    for name in ("", "two words", "über", "-dash", "x" * 129, "semi;colon"):
        with pytest.raises(InvalidInput):
            await store.engine.control.tune(name, Tuning(paused=True))
    assert await store.engine.control.queues() == []


# --- pauses -----------------------------------------------------------------------------------------------------


@pytest.mark.core
@pytest.mark.spec("QUEUE-12")
async def test_queues_paused_for_a_while_open_by_themselves(store: Store) -> None:
    """Exactly at the end of the pause the queue hands out jobs; no call resumes it."""
    job = await store.add(queue="mail")
    await store.engine.control.tune("mail", Tuning(paused=True, pause_for=HOUR))
    assert (await _queue(store, "mail")).pause == Pause(store.now() + HOUR)
    assert await store.engine.jobs.ahead(["mail", "other"]) == NextDue(frozenset({"other"}), HOUR)
    store.pass_time(HOUR - 1)
    assert await store.claim(queue="mail") == []
    assert (await store.engine.jobs.ahead(["mail"])).wait == 1
    store.pass_time(1)
    assert (await store.engine.jobs.ahead(["mail"])).open == {"mail"}
    assert (await store.take(queue="mail")).id == job


@pytest.mark.core
@pytest.mark.spec("QUEUE-12")
async def test_queues_paused_for_a_while_survive_a_reopen(store: Store) -> None:
    """A store that is closed and opened meanwhile keeps the pause and its end."""
    job = await store.add(queue="mail")
    await store.engine.control.tune("mail", Tuning(paused=True, pause_for=HOUR, reason="deploy", by="ann"))
    before = await _queue(store, "mail")
    await store.engine.close()
    await store.engine.open()
    assert await _queue(store, "mail") == before
    assert await store.claim(queue="mail") == []
    store.pass_time(HOUR)
    assert (await store.take(queue="mail")).id == job


@pytest.mark.core
@pytest.mark.spec("QUEUE-13")
async def test_queues_paused_say_why_and_by_whom(store: Store) -> None:
    """A new pause replaces the one before, a resume ends it early, and the other settings stay."""
    settings = Tuning(workers=3, keep_done=HOUR, rate=Rate(5))
    await store.engine.control.tune("mail", settings)
    before = await _queue(store, "mail")
    reason = "ü" * LONGEST_REASON
    await store.engine.control.tune("mail", Tuning(paused=True, pause_for=HOUR, reason=reason, by="ann"))
    assert (await _queue(store, "mail")).pause == Pause(store.now() + HOUR, reason, "ann")
    await store.engine.control.tune("mail", Tuning(paused=True, by="bob"))
    assert (await _queue(store, "mail")).pause == Pause(None, None, "bob")
    await store.engine.control.tune("mail", Tuning(workers=3))
    assert (await _queue(store, "mail")).pause == Pause(None, None, "bob")
    await store.engine.control.tune("mail", Tuning(paused=False))
    assert await _queue(store, "mail") == before


@pytest.mark.spec("QUEUE-07", "QUEUE-13")
async def test_queues_paused_for_less_wake_a_waiter(store: Store) -> None:
    """A waiter that sleeps until the end of a pause learns of an earlier end."""
    await store.engine.control.tune("mail", Tuning(paused=True, pause_for=HOUR))
    await store.quiet("mail")
    await store.engine.control.tune("mail", Tuning(paused=True, pause_for=SECOND))
    assert await store.engine.jobs.wait(["mail"], ARRIVES) == {"mail"}


# --- clear and declare ------------------------------------------------------------------------------------------


@pytest.mark.core
@pytest.mark.spec("QUEUE-14")
async def test_queues_settings_can_be_cleared(store: Store) -> None:
    """A cleared setting has its default again, the engine's own where it has one; the others stay."""
    curve = Curve(on=True, base=SECOND, max=MINUTE)
    await store.engine.control.tune(
        "mail", Tuning(workers=3, rate=Rate(5), keep_done=HOUR // 2, keep_dead=DAY, curve=curve, paused=True)
    )
    assert await store.engine.control.tune("mail", Tuning(clear=frozenset({"workers", "keep_done"})))
    left = await _queue(store, "mail")
    assert (left.workers, left.keep_done) == (None, store.engine.keep_done)
    assert (left.rate, left.keep_dead, left.curve, left.pause) == (Rate(5), DAY, curve, Pause())
    assert await store.engine.control.tune("mail", Tuning(clear=frozenset(SETTINGS)))
    assert await _queue(store, "mail") == _plain(store, "mail", pause=Pause())
    assert not await store.engine.control.tune("mail", Tuning(clear=frozenset(SETTINGS)))


@pytest.mark.core
@pytest.mark.spec("QUEUE-15")
async def test_queues_follow_the_code_until_people_change_them(store: Store) -> None:
    """A setting with the value that was declared last follows; one that people changed stays."""
    first = Tuning(workers=3, rate=Rate(5), keep_dead=DAY)
    assert await store.engine.control.tune("mail", first, declared=True)
    bucket = full(Rate(5), store.now())
    declared = _plain(store, "mail", workers=3, bucket=bucket, keep_dead=DAY, declared=first)
    assert await _queue(store, "mail") == declared
    await store.engine.control.tune("mail", Tuning(workers=7, paused=True))
    second = Tuning(workers=4, rate=Rate(6), curve=Curve(on=True))
    assert await store.engine.control.tune("mail", second, declared=True)
    queue = await _queue(store, "mail")
    assert (queue.workers, queue.rate, queue.keep_dead, queue.curve) == (7, Rate(6), KEEP_DEAD, Curve(on=True))
    assert (queue.declared, queue.pause) == (second, Pause())
    await store.engine.control.tune("mail", Tuning(workers=4))
    assert await store.engine.control.tune("mail", Tuning(keep_dead=HOUR), declared=True)
    assert await _queue(store, "mail") == _plain(
        store, "mail", keep_dead=HOUR, pause=Pause(), declared=Tuning(keep_dead=HOUR)
    )


@pytest.mark.core
@pytest.mark.spec("QUEUE-15")
async def test_queues_declared_again_are_not_written(store: Store) -> None:
    """Every start of a worker declares; the same declaration changes nothing and says so."""
    assert await store.engine.control.tune("mail", Tuning(workers=3), declared=True)
    before = await store.engine.control.queues()
    assert not await store.engine.control.tune("mail", Tuning(workers=3), declared=True)
    assert await store.engine.control.queues() == before


@pytest.mark.spec("QUEUE-15")
async def test_queues_tuned_before_the_first_declaration_stay(store: Store) -> None:
    """People came first: what they set stays; a queue that was only used or cooled follows the code."""
    await store.engine.control.tune("tuned", Tuning(workers=9))
    await store.add(queue="used")
    await store.add(queue="cooled")
    await store.finish(await store.take(queue="cooled"), Throttled())
    for name in ("tuned", "used", "cooled"):
        assert await store.engine.control.tune(name, Tuning(workers=3, keep_done=HOUR // 2), declared=True)
    assert [(await _queue(store, name)).workers for name in ("tuned", "used", "cooled")] == [9, 3, 3]
    assert [(await _queue(store, name)).keep_done for name in ("tuned", "used", "cooled")] == [HOUR // 2] * 3
    assert (await _queue(store, "cooled")).cooldown.count == 1


@pytest.mark.spec("QUEUE-16")
async def test_queues_declarations_only_declare(store: Store) -> None:
    """A declaration that pauses or clears is refused and nothing is stored."""
    for tuning in (Tuning(paused=True), Tuning(clear=frozenset({"workers"}))):
        with pytest.raises(InvalidInput):
            await store.engine.control.tune("mail", tuning, declared=True)
    assert await store.engine.control.queues() == []
