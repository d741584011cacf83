"""Pacing: how much a consumer takes at once and how long a partition rests in between.

`delivery` calls it when it concludes a turn. A batch that fails again and again shrinks until the message that breaks
it is alone; each success doubles it back to its normal size. After a success the partition is due at once, after a
retry it waits longer with each failure in a row. Size and failures are stored in the cursor, so that another worker
goes on with them.
"""

from __future__ import annotations

import enum
from typing import Literal, TypeAlias, assert_never, get_args

import msgspec

from stoker.model.errors import InvalidOption
from stoker.model.outbox.cursor import LARGEST_BATCH
from stoker.model.time import LONGEST, MILLISECOND, MINUTE, SECOND, Span

DEEPEST_EXPONENT = 30
SEQUENCER_BASE: Span = 100 * MILLISECOND
SEQUENCER_MAX: Span = 30 * SECOND
PARTITIONS_AT_ONCE = 4

Profile: TypeAlias = Literal["default", "low_latency", "high_throughput", "relaxed"]


class Ending(enum.StrEnum):
    """The result of a delivery on a partition, for the batch size and reports."""

    DELIVERED = "delivered"
    RETRY = "retry"
    REJECTED = "rejected"


class Pace(msgspec.Struct, frozen=True):
    """Sizes and rests of one consumer.

    `batch`: messages in a normal turn · `breath`: least rest between two turns · `idle`: rest when there is nothing to
    lease and no wake-up comes · `retry_base`, `retry_max`: rest after the first and after many failures · `threshold`:
    failures in a row before the batch shrinks.
    """

    batch: int = 100
    breath: Span = 0
    idle: Span = SECOND
    retry_base: Span = SECOND
    retry_max: Span = MINUTE
    threshold: int = 2

    def __post_init__(self) -> None:
        if not 1 <= self.batch <= LARGEST_BATCH:
            raise InvalidOption("batch", self.batch, f"must be between 1 and {LARGEST_BATCH}")
        if self.threshold < 1:
            raise InvalidOption("threshold", self.threshold, "must be at least 1")
        if not 0 < self.idle <= LONGEST:
            raise InvalidOption("idle", self.idle, "must be longer than nothing and at most ten years")
        if not 0 <= self.breath <= self.idle:
            raise InvalidOption("breath", self.breath, f"must be between nothing and idle ({self.idle} µs)")
        if not 0 < self.retry_base <= LONGEST:
            raise InvalidOption("retry_base", self.retry_base, "must be longer than nothing and at most ten years")
        if not self.retry_base <= self.retry_max <= LONGEST:
            why = f"must be between retry_base ({self.retry_base} µs) and ten years"
            raise InvalidOption("retry_max", self.retry_max, why)


PROFILES: dict[Profile, Pace] = {
    "default": Pace(),
    "low_latency": Pace(batch=10, idle=50 * MILLISECOND, retry_base=100 * MILLISECOND, retry_max=10 * SECOND),
    "high_throughput": Pace(batch=500, idle=500 * MILLISECOND, threshold=3),
    "relaxed": Pace(batch=50, breath=100 * MILLISECOND, idle=10 * SECOND, retry_base=5 * SECOND, retry_max=10 * MINUTE),
}


def pace(profile: Profile) -> Pace:
    """The pace of a profile, to use as it is or to `msgspec.structs.replace` a value of."""
    if profile not in PROFILES:
        raise InvalidOption("profile", profile, f"must be one of {', '.join(get_args(Profile))}")
    return PROFILES[profile]


# --- how much -------------------------------------------------------------------------------------------------------


class Size(msgspec.Struct, frozen=True):
    """The batch size of the moment and the failures in a row behind it."""

    current: int
    failures: int = 0


def resized(size: Size, ending: Ending, processed: int | None, length: int, rules: Pace) -> Size:
    """The size for the next turn, after one of `length` messages of which `processed` were done (None: unknown)."""
    shrunk = min(size.current, max(min(processed or 0, length), 1))
    match ending:
        case Ending.DELIVERED:
            return Size(min(size.current * 2, rules.batch))
        case Ending.REJECTED:
            return Size(shrunk)
        case Ending.RETRY:
            failures = size.failures + 1
            return Size(shrunk if failures >= rules.threshold else size.current, failures)
        case _:
            assert_never(ending)


# --- how long -------------------------------------------------------------------------------------------------------


def retry_delay(failures: int, base: Span, longest: Span) -> Span:
    """`base`, doubled for each failure after the first, never above `longest`."""
    exponent = min(max(failures - 1, 0), DEEPEST_EXPONENT)
    return min(base << exponent, longest)


def rest(ending: Ending, failures: int, rules: Pace) -> Span:
    """How long the partition waits before its next turn."""
    return retry_delay(failures, rules.retry_base, rules.retry_max) if ending is Ending.RETRY else rules.breath


def sequencer_wait(failures: int) -> Span:
    """How long a consumer leaves a store alone after its `failures`-th failure in a row, counted from 0."""
    return min(SEQUENCER_BASE << min(max(failures, 0), DEEPEST_EXPONENT), SEQUENCER_MAX)
