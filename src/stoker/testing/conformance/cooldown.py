"""Cool-down: one throttled job shuts its whole queue, once per window, and success reopens it only later."""

from __future__ import annotations

import msgspec
import pytest

from stoker.engines.base import LEASE
from stoker.model.control import Tuning
from stoker.model.job import Claim, Status, Verdict
from stoker.model.lifecycle import conclude
from stoker.model.outcome import Done, Failed, Snoozed, Throttled
from stoker.model.retry import Curve
from stoker.model.throttle import DECAY_GRACE, FLAT_COOLDOWN, MOST_EVENTS, OPEN, Cool, Cooldown
from stoker.model.time import DAY, HOUR, MINUTE, SECOND
from stoker.testing.conformance.harness import ARRIVES, QUEUE, Store

_CURVE = Curve(on=True, base=MINUTE, max=30 * MINUTE)


async def _cooldown(store: Store, queue: str = QUEUE) -> Cooldown:
    return next((each.cooldown for each in await store.engine.control.queues() if each.name == queue), OPEN)


async def _running(store: Store, n: int) -> list[Claim]:
    """Jobs running under as many workers."""
    await store.insert(*(store.draft() for _ in range(n)))
    return [await store.take(f"w{index}") for index in range(n)]


async def _open_window(store: Store) -> Cooldown:
    """Throttle one job and move to the end of the window it opened."""
    [claim] = await _running(store, 1)
    assert await store.finish(claim, Throttled()) is Verdict.APPLIED
    window = await _cooldown(store)
    assert window.until is not None
    store.clock.set(window.until)
    return window


@pytest.mark.core
@pytest.mark.spec("COOL-01")
async def test_a_throttle_shuts_the_whole_queue(store: Store) -> None:
    """During the window even due jobs of the highest priority stay; other queues go on."""
    [claim] = await _running(store, 1)
    await store.insert(store.draft(priority=-1000), store.draft(queue="other"))
    assert await store.finish(claim, Throttled()) is Verdict.APPLIED
    assert await store.claim("w0", 10) == []
    assert await store.claim("stranger", 10) == []
    assert len(await store.claim("w0", 10, queue="other")) == 1
    assert await _cooldown(store) == Cooldown(store.now() + FLAT_COOLDOWN, 1)
    assert await _cooldown(store, "other") == OPEN


@pytest.mark.core
@pytest.mark.spec("COOL-01")
async def test_the_gate_opens_exactly_at_the_deadline(store: Store) -> None:
    """Shut one microsecond before, open at the deadline, with the count still in place."""
    [claim] = await _running(store, 1)
    waiting = await store.add()
    await store.finish(claim, Throttled())
    store.pass_time(FLAT_COOLDOWN - 1)
    assert await store.claim("w1", 10) == []
    store.pass_time(1)
    assert waiting in [claim.id for claim in await store.claim("w1", 10)]
    assert (await _cooldown(store)).count == 1


@pytest.mark.spec("COOL-02")
async def test_the_throttled_job_waits_as_long_as_its_queue(store: Store) -> None:
    """Pending again after the window, at no cost, with its throttle counted."""
    [claim] = await _running(store, 1)
    await store.finish(claim, Throttled(5 * MINUTE))
    record = await store.job(claim.id)
    assert (record.status, record.attempts, record.throttles) == (Status.PENDING, 0, 1)
    assert record.scheduled_at == store.now() + 5 * MINUTE
    assert await _cooldown(store) == Cooldown(store.now() + 5 * MINUTE, 1)


@pytest.mark.core
@pytest.mark.spec("COOL-11")
async def test_a_named_time_is_the_window(store: Store) -> None:
    """A queue without a curve is closed for exactly the time that the handler named, however short."""
    [claim] = await _running(store, 1)
    waiting = await store.add()
    await store.finish(claim, Throttled(2 * SECOND))
    assert await _cooldown(store) == Cooldown(store.now() + 2 * SECOND, 1)
    assert (await store.job(claim.id)).scheduled_at == store.now() + 2 * SECOND
    store.pass_time(2 * SECOND - 1)
    assert await store.claim("w1", 10) == []
    store.pass_time(1)
    assert {each.id for each in await store.claim("w1", 10)} == {claim.id, waiting}


@pytest.mark.spec("COOL-11")
async def test_a_curve_is_the_least_of_the_window(store: Store) -> None:
    """A short time does not shorten what the queue's curve asks for; a longer one counts."""
    await store.engine.control.tune(QUEUE, Tuning(curve=_CURVE))
    [claim] = await _running(store, 1)
    await store.finish(claim, Throttled(2 * SECOND))
    assert await _cooldown(store) == Cooldown(store.now() + MINUTE, 1)
    store.pass_time(MINUTE)
    await store.finish(await store.take(), Throttled(HOUR))
    assert await _cooldown(store) == Cooldown(store.now() + HOUR, 2)


@pytest.mark.spec("COOL-02")
async def test_a_throttle_may_concern_only_its_job(store: Store) -> None:
    """Without the queue only the job waits; the gate stays open and the count at zero."""
    [claim] = await _running(store, 1)
    waiting = await store.add()
    await store.finish(claim, Throttled(HOUR, queue=False))
    assert await _cooldown(store) == OPEN
    assert [each.id for each in await store.claim("w1", 10)] == [waiting]


@pytest.mark.core
@pytest.mark.spec("COOL-03")
async def test_ten_throttles_in_one_window_count_once(store: Store) -> None:
    """Only the first one sets deadline and count, whether they come one by one or later in the window."""
    claims = await _running(store, 10)
    await store.finish(claims[0], Throttled())
    window = await _cooldown(store)
    for claim in claims[1:]:
        store.pass_time(SECOND)
        assert await store.finish(claim, Throttled(HOUR)) is Verdict.APPLIED
    assert await _cooldown(store) == window == Cooldown(window.until, 1)
    assert [(await store.job(claim.id)).throttles for claim in claims] == [1] * 10


@pytest.mark.spec("COOL-03")
async def test_throttles_of_one_call_count_once(store: Store) -> None:
    """Also ten settlements in one batch open one window; each job is put back."""
    claims = await _running(store, 10)
    verdicts = await store.settle(*(conclude(claim, Throttled()) for claim in claims))
    assert verdicts == [Verdict.APPLIED] * 10
    assert await _cooldown(store) == Cooldown(store.now() + FLAT_COOLDOWN, 1)
    assert await store.counts() == {Status.PENDING: 10}


@pytest.mark.core
@pytest.mark.spec("COOL-04")
async def test_a_success_inside_the_window_does_not_reopen_the_queue(store: Store) -> None:
    """A job that was already running when the window opened may succeed; the window stays."""
    throttled, lucky = await _running(store, 2)
    await store.add()
    await store.finish(throttled, Throttled())
    window = await _cooldown(store)
    store.pass_time(SECOND)
    assert await store.finish(lucky, Done()) is Verdict.APPLIED
    assert await _cooldown(store) == window
    assert await store.claim("w9", 10) == []


@pytest.mark.core
@pytest.mark.spec("COOL-05")
async def test_a_flapping_limiter_meets_longer_windows(store: Store) -> None:
    """One success right after a window does not start over: the next throttle waits twice as long."""
    await store.engine.control.tune(QUEUE, Tuning(curve=_CURVE))
    for count, minutes in enumerate((1, 2, 4, 8, 16, 30, 30)):
        await store.insert(store.draft(), store.draft())
        lucky, throttled = await store.claim("w1", 2)
        await store.finish(lucky, Done())
        assert throttled.cool_count == count
        await store.finish(throttled, Throttled())
        window = await _cooldown(store)
        assert window == Cooldown(store.now() + minutes * MINUTE, count + 1)
        store.pass_time(minutes * MINUTE)


@pytest.mark.spec("COOL-05")
async def test_the_count_has_a_ceiling(store: Store) -> None:
    """A limiter that never relents cannot push the count beyond its limit; one window is still one window there."""
    await store.engine.control.tune(QUEUE, Tuning(curve=Curve(on=True, base=SECOND, max=DAY)))
    await store.add()
    for _ in range(MOST_EVENTS + 3):
        await store.finish(await store.take(), Throttled())
        window = await _cooldown(store)
        assert window.until is not None
        store.clock.set(window.until)
    assert (await _cooldown(store)).count == MOST_EVENTS
    await store.add()
    first, second = await store.claim(n=2)
    await store.finish(first, Throttled())
    window = await _cooldown(store)
    await store.finish(second, Throttled(7 * DAY))
    assert await _cooldown(store) == window == Cooldown(store.now() + DAY, MOST_EVENTS)


@pytest.mark.core
@pytest.mark.spec("COOL-06")
async def test_a_success_well_after_the_window_clears_the_count(store: Store) -> None:
    """From the grace after the deadline on, the first success starts the count over; just before it does not."""
    window = await _open_window(store)
    await store.add()
    early, late = await store.claim("w1", 2)
    store.pass_time(DECAY_GRACE - 1)
    await store.finish(early, Done())
    assert await _cooldown(store) == window
    store.pass_time(1)
    await store.finish(late, Done())
    assert await _cooldown(store) == OPEN


@pytest.mark.spec("COOL-06")
async def test_only_success_clears_the_count(store: Store) -> None:
    """Failures and snoozes long after the window leave it as it is."""
    window = await _open_window(store)
    store.pass_time(HOUR)
    await store.finish(await store.take(), Failed("boom", after=0))
    await store.finish(await store.take(), Snoozed(0))
    assert await _cooldown(store) == window


@pytest.mark.spec("COOL-06")
async def test_after_the_decay_windows_are_short_again(store: Store) -> None:
    """The next throttle after a cleared count waits as long as the very first."""
    await store.engine.control.tune(QUEUE, Tuning(curve=_CURVE))
    await _open_window(store)
    store.pass_time(DECAY_GRACE)
    await store.finish(await store.take(), Done())
    [claim] = await _running(store, 1)
    assert claim.cool_count == 0
    await store.finish(claim, Throttled())
    assert await _cooldown(store) == Cooldown(store.now() + MINUTE, 1)


@pytest.mark.core
@pytest.mark.spec("COOL-07")
async def test_a_window_opens_only_for_the_count_that_was_seen(store: Store) -> None:
    """A throttle whose claim saw another count defers its job and leaves the queue alone."""
    early, late = await _running(store, 2)
    await store.finish(early, Throttled())
    window = await _cooldown(store)
    store.pass_time(FLAT_COOLDOWN)
    assert late.cool_count == 0
    assert await store.finish(late, Throttled()) is Verdict.APPLIED
    assert await _cooldown(store) == window
    assert (await store.job(late.id)).scheduled_at == store.now() + FLAT_COOLDOWN
    assert len(await store.claim("w9", 10)) == 1


@pytest.mark.spec("COOL-07")
async def test_a_count_from_nowhere_opens_nothing(store: Store) -> None:
    """A settlement with an invented count cannot shut a queue."""
    [claim] = await _running(store, 1)
    invented = msgspec.structs.replace(conclude(claim, Throttled()), cool=Cool(7, DAY))
    assert await store.settle(invented) == [Verdict.APPLIED]
    assert await _cooldown(store) == OPEN


@pytest.mark.spec("COOL-08")
async def test_a_queue_that_was_never_tuned_can_cool_down(store: Store) -> None:
    """The queue's own row is made on first use, with default settings."""
    job = await store.add(queue="brand.new")
    await store.finish(await store.take(queue="brand.new"), Throttled())
    [queue] = [each for each in await store.engine.control.queues() if each.name == "brand.new"]
    assert queue.cooldown == Cooldown(store.now() + FLAT_COOLDOWN, 1)
    assert (queue.pause, queue.curve.on) == (None, False)
    store.pass_time(FLAT_COOLDOWN)
    assert (await store.take(queue="brand.new")).id == job


@pytest.mark.spec("COOL-08")
async def test_cooling_leaves_the_settings_alone(store: Store) -> None:
    """Settings survive windows, and tuning does not touch a window."""
    await store.engine.control.tune(QUEUE, Tuning(workers=3, keep_done=HOUR, curve=_CURVE))
    [claim] = await _running(store, 1)
    await store.finish(claim, Throttled())
    await store.engine.control.tune(QUEUE, Tuning(workers=4))
    [queue] = await store.engine.control.queues()
    assert (queue.workers, queue.keep_done, queue.curve) == (4, HOUR, _CURVE)
    assert queue.cooldown == Cooldown(store.now() + MINUTE, 1)


@pytest.mark.core
@pytest.mark.spec("COOL-09")
async def test_a_lost_throttle_cools_nothing(store: Store) -> None:
    """A worker that lost its claim cannot shut a queue, nor clear a count."""
    [stale] = await _running(store, 1)
    store.pass_time(LEASE + 1)
    await store.enlist("reaper")
    [taken] = await store.engine.jobs.reap("reaper", 10)
    assert await store.finish(stale, Throttled()) is Verdict.LOST
    assert await _cooldown(store) == OPEN
    await store.finish(taken, Throttled())
    window = await _cooldown(store)
    store.pass_time(DAY)
    lost = msgspec.structs.replace(conclude(stale, Done()), cool=Cool(1))
    assert await store.settle(lost) == [Verdict.LOST]
    assert await _cooldown(store) == window


@pytest.mark.spec("COOL-10")
async def test_a_success_on_an_open_queue_writes_nothing_about_it(store: Store) -> None:
    """Where nothing was throttled a success leaves the queues exactly as they are."""
    [claim] = await _running(store, 1)
    before = await store.engine.control.queues()
    assert conclude(claim, Done()).cool is None
    await store.finish(claim, Done())
    assert await store.engine.control.queues() == before


@pytest.mark.core
@pytest.mark.spec("COOL-12")
async def test_an_operator_ends_a_cool_down(store: Store) -> None:
    """The queue hands out jobs at once, a waiter is woken, and the next throttle starts from the beginning."""
    claims = await _running(store, 2)
    assert await store.finish(claims[0], Throttled()) is Verdict.APPLIED
    await store.add()
    assert await store.claim("w9") == []
    await store.quiet(QUEUE)
    assert await store.engine.control.tune(QUEUE, Tuning(reopen=True))
    assert await store.engine.jobs.wait([QUEUE], ARRIVES) == {QUEUE}
    assert await _cooldown(store) == OPEN
    assert len(await store.claim("w9")) == 1
    assert not await store.engine.control.tune(QUEUE, Tuning(reopen=True))
