"""What happens to a failing job, from its first minute to the dead list.

1. The handler raises. `worth_retrying` asks the policies of its task and its app: can this error pass?
2. If attempts of the budget are left, `lifecycle.conclude` asks `next_delay` whether and when to retry. The policy is
   the job's backoff, else the queue's failure curve, else the app's default. It alone allows a retry; the handler may
   only choose another time for one that it allows.
3. The job is retrying until then, keeps its id, and is claimed again with a higher attempt number.
4. When the budget is spent, or the backoff's own limit is, or the error is not worth it, the job is dead and waits for
   an operator.

Strategies are data: they travel with the job, so a worker that never saw the task still waits the right time.
Randomness comes in as `roll`, a number in [0, 1).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, TypeAlias

import msgspec

from stoker.model.errors import InvalidInput
from stoker.model.time import LONGEST, MINUTE, SECOND, Seconds, Span, span

Jitter = Literal["none", "some", "full"]
"""none: exact · some: plus or minus a quarter · full: anywhere between zero and the delay."""

FALLBACK_DELAY: Span = MINUTE
"""Used where neither job, task, queue nor app sets one."""

DEEPEST_EXPONENT = 30
MOST_DELAYS = 100
"""Durations of one `Delays`: it travels with every job."""


def _check(strategy: msgspec.Struct, limit: int | None, *durations: str, name: str = "") -> None:
    name = name or type(strategy).__name__
    for field in durations:
        micros = span(getattr(strategy, field), f"{name}.{field}")
        msgspec.structs.force_setattr(strategy, field, micros / SECOND)
    if limit is not None and (not isinstance(limit, int) or limit < 0):
        raise InvalidInput(f"{name}.limit", limit, "must be a whole number, 0 or more")


class Never(msgspec.Struct, frozen=True, tag="never"):
    """One run, no retry."""


class Fixed(msgspec.Struct, frozen=True, tag="fixed"):
    """Wait `interval` before every retry, at most `limit` times."""

    interval: Seconds
    limit: int | None = None

    def __post_init__(self) -> None:
        _check(self, self.limit, "interval")


class Linear(msgspec.Struct, frozen=True, tag="linear"):
    """Wait `initial`, then `increment` longer each time, up to `max`."""

    initial: Seconds
    increment: Seconds
    max: Seconds = 900.0
    limit: int | None = None

    def __post_init__(self) -> None:
        _check(self, self.limit, "initial", "increment", "max")


class Exponential(msgspec.Struct, frozen=True, tag="exponential"):
    """Wait `base`, then `factor` times longer each time, up to `max`."""

    base: Seconds = 1.0
    factor: float = 2.0
    max: Seconds = 900.0
    limit: int | None = None
    jitter: Jitter = "some"

    def __post_init__(self) -> None:
        _check(self, self.limit, "base", "max")
        if not isinstance(self.factor, int | float) or not 1 <= self.factor <= 1000:
            raise InvalidInput("Exponential.factor", self.factor, "must be between 1 and 1000")
        if self.jitter not in ("none", "some", "full"):
            raise InvalidInput("Exponential.jitter", self.jitter, "must be none, some or full")


class DelayList(msgspec.Struct, frozen=True, tag="delays"):
    """What `Delays` makes: wait each of these in turn, and the last before every further retry."""

    delays: tuple[Seconds, ...]
    limit: int | None = None

    def __post_init__(self) -> None:
        _check(self, self.limit, name="Delays")
        if not 1 <= len(self.delays) <= MOST_DELAYS:
            why = f"must be 1 to {MOST_DELAYS} durations, such as Delays(10, 30, 60)"
            raise InvalidInput("Delays", self.delays, why)
        seconds = tuple(span(delay, "Delays") / SECOND for delay in self.delays)
        msgspec.structs.force_setattr(self, "delays", seconds)

    def __repr__(self) -> str:
        limit = "" if self.limit is None else f", limit={self.limit}"
        return f"Delays({', '.join(map(repr, self.delays))}{limit})"


def Delays(*delays: Seconds, limit: int | None = None) -> DelayList:  # noqa: N802 - named like the other strategies
    """Wait each of these durations in turn, and the last before every further retry, at most `limit` times."""
    return DelayList(delays, limit)


Backoff: TypeAlias = Never | Fixed | Linear | Exponential | DelayList

DEFAULT_BACKOFF = Exponential()
"""1, 2, 4 … s up to 15 min, give or take a quarter."""


def backoff_delay(strategy: Backoff, n: int, roll: float) -> Span | None:
    """Delay before retry number `n` (the first is 1); None when the strategy allows no such retry."""
    if isinstance(strategy, Never) or (strategy.limit is not None and n > strategy.limit):
        return None
    n = max(n, 1)
    if isinstance(strategy, Fixed):
        return span(strategy.interval)
    if isinstance(strategy, Linear):
        return min(span(strategy.initial) + span(strategy.increment) * (n - 1), span(strategy.max))
    if isinstance(strategy, DelayList):
        return span(strategy.delays[min(n, len(strategy.delays)) - 1])
    try:
        growth = float(strategy.factor) ** (n - 1)
    except OverflowError:
        growth = float(LONGEST)
    return _jittered(round(min(span(strategy.base) * growth, span(strategy.max))), strategy.jitter, roll)


def _jittered(delay: Span, jitter: Jitter, roll: float) -> Span:
    if jitter == "some":
        return min(round(delay * (0.75 + roll / 2)), LONGEST)
    return round(delay * roll) if jitter == "full" else delay


class Curve(msgspec.Struct, frozen=True):
    """A queue's own opinion about waiting: base, doubled per attempt, up to a maximum. Off by default."""

    on: bool = False
    base: Span = MINUTE
    max: Span = 30 * MINUTE

    def delay(self, exponent: int) -> Span:
        """`base * 2**exponent` within the maximum; any stored exponent is survivable."""
        return min(self.base << min(max(exponent, 0), DEEPEST_EXPONENT), self.max)


OFF = Curve()


def given_curve(base: Span, longest: Span) -> Curve:
    """The curve of two waits that a person gave, as it may be stored; the longest is not below the first."""
    if longest < base:
        why = "must not begin with a longer wait than it ends with"
        raise InvalidInput("curve", f"{base / SECOND:g} s to {longest / SECOND:g} s", why)
    return clamped_curve(Curve(on=True, base=base, max=longest))


def clamped_curve(curve: Curve) -> Curve:
    """A curve as it may be stored: both ends between a second and a day."""
    day = 86_400 * SECOND
    return Curve(curve.on, min(max(curve.base, SECOND), day), min(max(curve.max, SECOND), day))


def next_delay(
    n: int,
    *,
    own: Span | None,
    backoff: Backoff | None,
    curve: Curve,
    attempt: int,
    default: Backoff | None,
    roll: float,
) -> Span | None:
    """How long before retry `n`; None when the policy allows none, whatever time the handler asked for.

    The policy is the job's backoff, else the queue's curve (an off curve has no opinion), else the app's default, else
    one minute. `own`, the handler's time, replaces the delay of a retry that the policy allows.
    """
    allowed = _policy_delay(n, backoff=backoff, curve=curve, attempt=attempt, default=default, roll=roll)
    return allowed if allowed is None or own is None else own


def _policy_delay(
    n: int, *, backoff: Backoff | None, curve: Curve, attempt: int, default: Backoff | None, roll: float
) -> Span | None:
    if backoff is not None:
        return backoff_delay(backoff, n, roll)
    if curve.on:
        return curve.delay(attempt)
    if default is not None:
        return backoff_delay(default, n, roll)
    return FALLBACK_DELAY


Errors: TypeAlias = type[BaseException] | tuple[type[BaseException], ...]


class Policy(msgspec.Struct, frozen=True):
    """Which errors are worth a retry, as a task or an app says. `give_up_on` decides first, `retry_on` last."""

    retry_on: Errors | None = None
    give_up_on: Errors | None = None
    retry_if: Callable[[BaseException], bool] | None = None

    def __post_init__(self) -> None:
        for field in ("retry_on", "give_up_on"):
            given = getattr(self, field)
            each = given if isinstance(given, tuple) else () if given is None else (given,)
            if not all(isinstance(one, type) and issubclass(one, BaseException) for one in each):
                raise InvalidInput(field, given, "must be an exception class or a tuple of them")
        if self.retry_if is not None and not callable(self.retry_if):
            raise InvalidInput("retry_if", self.retry_if, "must be a function from an exception to True or False")

    def decides(self, error: BaseException) -> bool | None:
        """Whether this error is worth a retry; None: the policy does not say."""
        if self.give_up_on is not None and isinstance(error, self.give_up_on):
            return False
        if self.retry_if is not None:
            return bool(self.retry_if(error))
        return None if self.retry_on is None else isinstance(error, self.retry_on)


ANY_ERROR = Policy()


def worth_retrying(error: BaseException, task: Policy, app: Policy = ANY_ERROR) -> bool:
    """Whether this error is worth a retry: as the task says, else as its app says, else yes."""
    for policy in (task, app):
        if (decided := policy.decides(error)) is not None:
            return decided
    return True
