"""Holding back: a whole queue that a limiter refused, and budgets that are spent before the limiter has to.

*Cool-down.* A throttled handler opens a window in which the queue hands out nothing. Only the first throttle of a
window counts: the settlement carries the count its claim saw, and the store changes deadline and count only if the
count is still that one and the window is not open. The next window is longer, until a success well after the last
deadline (`DECAY_GRACE`) clears the count.

*Budgets.* A token bucket per name. The store reads the bucket, calls `spend` and writes its result in one step.
"""

from __future__ import annotations

import math

import msgspec

from stoker.model.errors import InvalidInput
from stoker.model.retry import DEEPEST_EXPONENT, Curve
from stoker.model.time import MINUTE, SECOND, Instant, Span

FLAT_COOLDOWN: Span = MINUTE
DECAY_GRACE: Span = 2 * MINUTE
MOST_EVENTS = DEEPEST_EXPONENT
"""The count of consecutive limiter events stops here; the delay stops growing long before."""


class Cool(msgspec.Struct, frozen=True, gc=False):
    """What a settlement wants of its queue: open a window of `delay`, or clear (`delay=None`)."""

    seen: int
    delay: Span | None = None


class Cooldown(msgspec.Struct, frozen=True, gc=False):
    """A queue's window: the gate is shut while `until` lies strictly in the future."""

    until: Instant | None = None
    count: int = 0

    def shut(self, now: Instant) -> bool:
        return self.until is not None and self.until > now


OPEN = Cooldown()


def cooldown_delay(curve: Curve, count: int, retry_after: Span | None) -> Span:
    """Length of the next window: the named time, at least the queue's curve; a minute without either."""
    if curve.on:
        return max(curve.delay(count), retry_after or 0)
    return FLAT_COOLDOWN if retry_after is None else retry_after


def cooled(now: Instant, state: Cooldown, cool: Cool) -> Cooldown:
    """The window after a settlement that applied. Unchanged state means: nothing to write."""
    if cool.delay is None:
        return OPEN if _decayed(now, state) else state
    if state.count != cool.seen or state.shut(now):
        return state
    return Cooldown(now + cool.delay, min(state.count + 1, MOST_EVENTS))


def _decayed(now: Instant, state: Cooldown) -> bool:
    return state.count > 0 and (state.until is None or state.until + DECAY_GRACE <= now)


class Bucket(msgspec.Struct, frozen=True, gc=False):
    """A rate budget: at most `capacity` tokens, refilled at `rate` per second."""

    capacity: float
    rate: float
    tokens: float
    refilled_at: Instant


class Grant(msgspec.Struct, frozen=True, gc=False):
    """The result of a request for tokens; a refusal carries how long to wait before the next."""

    granted: bool
    wait: Span = 0


def full(capacity: float, rate: float, now: Instant) -> Bucket:
    """A new budget, checked."""
    if not math.isfinite(capacity) or capacity < 1:
        raise InvalidInput("budget capacity", capacity, "must be a number of at least 1")
    if not math.isfinite(rate) or rate < 0:
        raise InvalidInput("budget rate", rate, "must be a number per second, 0 or more")
    return Bucket(capacity, rate, capacity, now)


def spend(bucket: Bucket, n: int, now: Instant) -> tuple[Bucket, Grant]:
    """Take `n` tokens or none. A refusal leaves the bucket as it was; a clock that steps back takes nothing away."""
    if n < 1:
        raise InvalidInput("tokens", n, "must be at least 1")
    elapsed = max(0, now - bucket.refilled_at) / SECOND
    tokens = min(bucket.capacity, bucket.tokens + elapsed * bucket.rate)
    if tokens < n:
        return bucket, Grant(granted=False, wait=wait_hint(bucket.rate))
    left = Bucket(bucket.capacity, bucket.rate, tokens - n, max(now, bucket.refilled_at))
    return left, Grant(granted=True)


def drained(bucket: Bucket, now: Instant) -> Bucket:
    """An empty bucket: the real limiter refused although the bucket had tokens."""
    return Bucket(bucket.capacity, bucket.rate, 0.0, max(now, bucket.refilled_at))


def retuned(bucket: Bucket, capacity: float, rate: float) -> Bucket:
    """The same budget under new settings; tokens at hand are kept as far as they fit."""
    checked = full(capacity, rate, bucket.refilled_at)
    return Bucket(checked.capacity, checked.rate, min(bucket.tokens, capacity), bucket.refilled_at)


def wait_hint(rate: float | None) -> Span:
    """Two tokens' worth of refill, between a second and a minute; a minute when there is no rate."""
    if rate is None or not math.isfinite(rate) or rate <= 0:
        return MINUTE
    return round(min(max(2 / rate, 1), 60) * SECOND)
