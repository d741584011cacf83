"""Queues as operators tune them: patches, pause and resume, retention, the failure curve."""

from __future__ import annotations

from typing import Any

import pytest

from stoker.model.control import MOST_WORKERS, Queue, Tuning
from stoker.model.errors import InvalidInput
from stoker.model.job import Demand, Status, Verdict
from stoker.model.lifecycle import KEEP_DEAD
from stoker.model.outcome import Done, Failed, Rejected, Throttled
from stoker.model.query import Move, Selection
from stoker.model.retry import OFF, Curve
from stoker.model.throttle import OPEN
from stoker.model.time import DAY, HOUR, LONGEST, MINUTE, SECOND
from stoker.testing.conformance.harness import Store

_SOON = 5.0


def _plain(store: Store, name: str, **tuned: Any) -> Queue:
    """A queue with nothing but these settings of its own."""
    return Queue(name=name, keep_done=store.engine.keep_done, **tuned)


async def _queue(store: Store, name: str) -> Queue:
    return next(queue for queue in await store.engine.queues() if queue.name == name)


@pytest.mark.core
@pytest.mark.spec("QUEUE-01")
async def test_queues_of_a_fresh_store_are_none(store: Store) -> None:
    """Nothing tuned, nothing used: no queues."""
    assert await store.engine.queues() == []


@pytest.mark.core
@pytest.mark.spec("QUEUE-01")
async def test_queues_are_listed_by_name(store: Store) -> None:
    """Tuned and used queues appear once each, sorted by name."""
    await store.engine.tune("mail", Tuning(workers=1))
    await store.insert(
        store.draft(queue="zoo"), store.draft(queue="B"), store.draft(queue="mail"), store.draft(queue="b")
    )
    assert [queue.name for queue in await store.engine.queues()] == ["B", "b", "mail", "zoo"]


@pytest.mark.core
@pytest.mark.spec("QUEUE-01")
async def test_queues_lists_a_queue_that_was_only_cooled(store: Store) -> None:
    """A throttled queue shows its window, and keeps it when it is tuned afterwards."""
    await store.add(queue="api")
    await store.finish(await store.take(queue="api"), Throttled())
    cooled = await _queue(store, "api")
    assert (cooled.cooldown.until, cooled.cooldown.count) == (store.now() + MINUTE, 1)
    await store.engine.tune("api", Tuning(workers=2))
    tuned = await _queue(store, "api")
    assert (tuned.cooldown, tuned.workers) == (cooled.cooldown, 2)


@pytest.mark.core
@pytest.mark.spec("QUEUE-02")
async def test_queues_nobody_tuned_act_by_default(store: Store) -> None:
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
    assert await store.engine.tune("mail", Tuning(workers=3))
    assert await _queue(store, "mail") == _plain(store, "mail", workers=3)
    assert await store.engine.tune("mail", Tuning(paused=True, keep_done=HOUR))
    assert await store.engine.tune("mail", Tuning(curve=curve, keep_dead=DAY))
    assert await store.engine.tune("mail", Tuning(paused=False))
    assert await _queue(store, "mail") == Queue(
        name="mail", paused=False, workers=3, keep_done=HOUR, keep_dead=DAY, curve=curve, cooldown=OPEN
    )


@pytest.mark.core
@pytest.mark.spec("QUEUE-04")
async def test_queues_tune_pulls_values_into_range(store: Store) -> None:
    """Worker counts, retention and curves outside their bounds are stored as the nearest bound."""
    await store.engine.tune("low", Tuning(workers=-3, keep_done=-1, keep_dead=-1, curve=Curve(on=True, base=0, max=0)))
    low = await _queue(store, "low")
    assert (low.workers, low.keep_done, low.keep_dead, low.curve) == (0, 0, 0, Curve(on=True, base=SECOND, max=SECOND))
    huge = 2 * LONGEST
    await store.engine.tune("high", Tuning(workers=999, keep_done=huge, keep_dead=huge, curve=Curve(True, huge, huge)))
    high = await _queue(store, "high")
    assert (high.workers, high.keep_done, high.keep_dead) == (MOST_WORKERS, LONGEST, LONGEST)
    assert high.curve == Curve(on=True, base=DAY, max=DAY)


@pytest.mark.core
@pytest.mark.spec("QUEUE-05")
async def test_queues_seeding_keeps_what_people_tuned(store: Store) -> None:
    """`if_absent` writes a new queue and leaves an existing one alone, and returns which it was."""
    assert await store.engine.tune("mail", Tuning(workers=5), if_absent=True)
    assert not await store.engine.tune("mail", Tuning(workers=9, paused=True), if_absent=True)
    assert await _queue(store, "mail") == _plain(store, "mail", workers=5)
    assert await store.engine.tune("mail", Tuning(workers=9))
    assert (await _queue(store, "mail")).workers == 9


@pytest.mark.spec("QUEUE-05")
async def test_queues_seeding_reaches_a_queue_that_was_only_used(store: Store) -> None:
    """A producer that came first or a limiter that cooled the queue does not keep the seeding out."""
    await store.add(queue="used")
    await store.add(queue="cooled")
    await store.finish(await store.take(queue="cooled"), Throttled())
    for name in ("used", "cooled"):
        assert await store.engine.tune(name, Tuning(workers=3), if_absent=True)
        assert (await _queue(store, name)).workers == 3
        assert not await store.engine.tune(name, Tuning(workers=4), if_absent=True)
    assert (await _queue(store, "cooled")).cooldown.count == 1


@pytest.mark.core
@pytest.mark.spec("QUEUE-06")
async def test_queues_paused_hand_out_nothing(store: Store) -> None:
    """Jobs of a paused queue wait, urgent ones too; other queues go on; inserts are welcome."""
    await store.engine.tune("mail", Tuning(paused=True))
    job = await store.add(queue="mail", priority=-1000)
    other = await store.add()
    await store.enlist("w1")
    claims = await store.engine.claim(Demand("w1", (("mail", 5), ("default", 5))))
    assert [claim.id for claim in claims] == [other]
    assert await store.status(job) is Status.PENDING
    await store.engine.tune("mail", Tuning(paused=False))
    assert (await store.take(queue="mail")).id == job


@pytest.mark.core
@pytest.mark.spec("QUEUE-06")
async def test_queues_paused_let_running_jobs_finish(store: Store) -> None:
    """Pausing does not disturb what runs: it can be renewed and settled, and a retry waits for the resume."""
    first, second = await store.insert(store.draft(queue="mail"), store.draft(queue="mail"))
    one, two = await store.claim(n=2, queue="mail")
    await store.engine.tune("mail", Tuning(paused=True))
    assert (await store.engine.renew("w1", [(one.id, one.token), (two.id, two.token)])).lost == []
    assert await store.finish(one, Done()) is Verdict.APPLIED
    assert await store.finish(two, Failed("again", after=0)) is Verdict.APPLIED
    assert await store.status(first) is Status.DONE
    assert await store.claim(queue="mail") == []
    await store.engine.tune("mail", Tuning(paused=False))
    assert (await store.take(queue="mail")).id == second


@pytest.mark.spec("QUEUE-06")
async def test_queues_paused_hold_jobs_that_are_moved_in(store: Store) -> None:
    """A job moved into a paused queue waits there; moved out again it can be claimed."""
    await store.engine.tune("mail", Tuning(paused=True))
    job = await store.add()
    await store.engine.alter(Selection((job,)), Move("mail"))
    assert await store.claim() == await store.claim(queue="mail") == []
    await store.engine.alter(Selection((job,)), Move("default"))
    assert (await store.take()).id == job


@pytest.mark.core
@pytest.mark.spec("QUEUE-07")
async def test_queues_resume_wakes_a_waiter(store: Store) -> None:
    """A worker that sleeps on a paused queue is woken when it is resumed."""
    await store.engine.tune("mail", Tuning(paused=True))
    while await store.engine.wait(["mail"], 0.05):
        pass
    await store.engine.tune("mail", Tuning(paused=False))
    assert await store.engine.wait(["mail"], _SOON) == {"mail"}


@pytest.mark.spec("QUEUE-08")
async def test_queues_retention_is_stamped_when_a_job_ends(store: Store) -> None:
    """Done and dead jobs carry the expiry their queue gave them at that moment."""
    await store.engine.tune("mail", Tuning(keep_done=HOUR, keep_dead=DAY))
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
    await store.engine.tune("mail", Tuning(curve=curve))
    job = await store.add(queue="mail")
    claim = await store.take(queue="mail")
    assert claim.curve == curve
    await store.finish(claim, Failed("no"))
    assert (await store.job(job)).scheduled_at == store.now() + curve.delay(1)
    await store.engine.tune("mail", Tuning(curve=OFF))
    store.pass_time(MINUTE)
    assert (await store.take(queue="mail")).curve == OFF


@pytest.mark.core
@pytest.mark.spec("QUEUE-10")
async def test_queues_are_the_same_for_every_engine_on_the_store(store: Store) -> None:
    """What one engine tunes, another on the store sees and obeys."""
    twin = store.engine.for_loop()
    await twin.open()
    try:
        await twin.tune("mail", Tuning(paused=True, workers=4))
        assert await store.engine.queues() == await twin.queues() == [_plain(store, "mail", paused=True, workers=4)]
        await store.add(queue="mail")
        assert await store.claim(queue="mail") == []
    finally:
        await twin.close()


@pytest.mark.spec("QUEUE-11")
async def test_queues_with_impossible_names_are_refused(store: Store) -> None:
    """A name outside the alphabet is refused by name and nothing is stored."""
    for name in ("", "two words", "über", "-dash", "x" * 129, "semi;colon"):
        with pytest.raises(InvalidInput):
            await store.engine.tune(name, Tuning(paused=True))
    assert await store.engine.queues() == []
