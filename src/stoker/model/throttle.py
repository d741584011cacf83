"""Holding back: a whole queue that a limiter refused, and rates that are kept before the limiter has to.

*Cool-down.* A throttled handler opens a window in which the queue hands out nothing. Only the first throttle of a
window counts: the settlement carries the count its claim saw, and the store changes deadline and count only if the
count is still that one and the window is not open. The next window is longer, until a success well after the last
deadline (`DECAY_GRACE`) clears the count.

*Rates.* A token bucket for a queue, or for a budget that handlers spend from by hand. The store reads the bucket,
calls `spend` or `take` and writes the result in one step. A claim takes as many tokens as it hands out jobs.
"""

from __future__ import annotations

import math

import msgspec

from stoker.model.errors import InvalidInput
from stoker.model.retry import DEEPEST_EXPONENT, Curve
from stoker.model.time import HOUR, MINUTE, SECOND, Instant, Seconds, Span, span

FLAT_COOLDOWN: Span = MINUTE
DECAY_GRACE: Span = 2 * MINUTE
HIGHEST_RATE = 1_000_000_000
LONGEST_SLEEP: Span = MINUTE
"""A worker that waits for a token looks again at least this often."""

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


class Rate(msgspec.Struct, frozen=True, gc=False):
    """How fast: `n` per `per` seconds in the long run, at most `burst` at once (`n` unless given)."""

    n: float
    per: Seconds = 1
    burst: float | None = None

    def __post_init__(self) -> None:
        per = span(self.per, "Rate.per") / SECOND
        if per == 0:
            raise InvalidInput("Rate.per", self.per, "must be longer than nothing")
        n = _checked("Rate.n", self.n)
        burst = n if self.burst is None else _checked("Rate.burst", self.burst)
        if burst < 1:
            why = "must be at least 1, else nothing could ever start; write one every 5 s as Rate(1, per=5)"
            raise InvalidInput("Rate.n" if self.burst is None else "Rate.burst", burst, why)
        for field, value in (("n", n), ("per", per), ("burst", burst)):
            msgspec.structs.force_setattr(self, field, value)

    @property
    def refill(self) -> float:
        """Tokens per second."""
        return self.n / float(self.per)  # type: ignore[arg-type]  # read above: seconds

    @property
    def capacity(self) -> float:
        """The most tokens at once."""
        assert self.burst is not None
        return self.burst

    @property
    def in_words(self) -> str:
        """`100 per minute`, `5 per 10 s`."""
        n, per, _ = self.numbers
        return f"{n:,.15g} per {_NAMED.get(per, f'{per:g} s')}"

    @property
    def numbers(self) -> tuple[float, float, float]:
        """The three numbers as engines store them; `Rate(*numbers)` is the same rate."""
        return self.n, float(self.per), self.capacity  # type: ignore[arg-type]


_NAMED = {1: "second", MINUTE / SECOND: "minute", HOUR / SECOND: "hour"}


def _checked(field: str, value: float) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= HIGHEST_RATE:
        raise InvalidInput(field, value, f"must be a number above 0 and at most {HIGHEST_RATE:,}")
    return float(value)


class Bucket(msgspec.Struct, frozen=True, gc=False):
    """The tokens of a rate: how many there were at `refilled_at`."""

    rate: Rate
    tokens: float
    refilled_at: Instant


class Grant(msgspec.Struct, frozen=True, gc=False):
    """The result of a request for tokens; a refusal carries how long to wait before the next.

    A refusal of a budget that exists carries also its `capacity`, the `measure` that has too few tokens, and how long
    until that has `enough` if no job takes any.
    """

    granted: bool
    wait: Span = 0
    capacity: float | None = None
    measure: str = ""
    enough: Span = 0


def full(rate: Rate, now: Instant) -> Bucket:
    """A new bucket."""
    return Bucket(rate, rate.capacity, now)


def level(bucket: Bucket, now: Instant) -> float:
    """The tokens at hand. A clock that steps back neither takes nor gives any."""
    elapsed = max(0, now - bucket.refilled_at) / SECOND
    return min(bucket.rate.capacity, bucket.tokens + elapsed * bucket.rate.refill)


def take(bucket: Bucket, n: int, now: Instant) -> Bucket:
    """The bucket after `n` of its tokens went."""
    return Bucket(bucket.rate, level(bucket, now) - n, max(now, bucket.refilled_at))


def spend(bucket: Bucket, n: int, now: Instant) -> tuple[Bucket, Grant]:
    """Take `n` tokens or none. A refusal leaves the bucket as it was."""
    if not isinstance(n, int | float) or not n >= 1:  # NaN is no number of tokens, and would spoil the bucket
        raise InvalidInput("spend(n)", n, "must be a number, at least 1")
    if level(bucket, now) < n:
        enough = until_tokens(bucket, n, now)
        wait = min(max(wait_hint(bucket.rate), enough), MINUTE)
        return bucket, Grant(granted=False, wait=wait, capacity=bucket.rate.capacity, enough=enough)
    return take(bucket, n, now), Grant(granted=True)


def drained(bucket: Bucket, now: Instant) -> Bucket:
    """An empty bucket: the real limiter refused although the bucket had tokens. What it owes, it owes still."""
    return Bucket(bucket.rate, min(level(bucket, now), 0.0), max(now, bucket.refilled_at))


def retuned(bucket: Bucket, rate: Rate, now: Instant) -> Bucket:
    """The bucket under another rate: tokens at hand are kept as far as they fit."""
    if rate == bucket.rate:
        return bucket
    return Bucket(rate, min(level(bucket, now), rate.capacity), max(now, bucket.refilled_at))


def wait_hint(rate: Rate | None) -> Span:
    """Two tokens' worth of refill, between a second and a minute; a minute when there is no rate."""
    return MINUTE if rate is None else round(min(max(2 / rate.refill, 1), 60) * SECOND)


def until_tokens(bucket: Bucket, n: int, now: Instant) -> Span:
    """How long until the bucket has so many tokens, which it can hold, if no job takes any; 0: it has them."""
    missing = n - level(bucket, now)
    if missing <= 0:
        return 0
    return max(0, bucket.refilled_at - now) + math.ceil(missing / bucket.rate.refill * SECOND)


def until_token(bucket: Bucket, now: Instant) -> Span:
    """How long until the bucket has a whole token, at most `LONGEST_SLEEP`; 0: it has one."""
    missing = 1 - level(bucket, now)
    if missing <= 0:
        return 0
    behind = max(0, bucket.refilled_at - now)  # after a step back the clock has to catch up first
    return min(behind + math.ceil(min(missing / bucket.rate.refill, 60) * SECOND), LONGEST_SLEEP)
