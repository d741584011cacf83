"""How the SQL engines store queues and budgets: one column for each value, in one order for both.

What an app declared last is JSON: nothing searches it, and only the next declaration reads it.
"""

from __future__ import annotations

from typing import Any

import msgspec

from stoker.engines.sql.steps import Row
from stoker.model.control import Budget, Pause, Queue, Tuning
from stoker.model.retry import Curve
from stoker.model.throttle import OPEN, Bucket, Cooldown, Rate

_encode = msgspec.json.Encoder().encode
_tuning = msgspec.json.Decoder(Tuning).decode
_limits = msgspec.json.Decoder(tuple[tuple[str, int], ...]).decode
_rate = msgspec.json.Decoder(Rate).decode

NO_BUCKET = (None,) * 5


def pack_queue(queue: Queue) -> tuple[Any, ...]:
    """The columns of a queue: name, pause, workers, bucket, retention, curve, cool-down, declaration, turns."""
    pause, curve, cool = queue.pause, queue.curve, queue.cooldown
    return (
        queue.name,
        pause is not None,
        *((None, None, None) if pause is None else (pause.until, pause.reason, pause.by)),
        queue.workers,
        *(NO_BUCKET if queue.bucket is None else pack_bucket(queue.bucket)),
        queue.keep_done,
        queue.keep_dead,
        curve.on,
        curve.base,
        curve.max,
        cool.until,
        cool.count,
        None if queue.declared is None else _encode(queue.declared).decode(),
        queue.fair,
        _encode(queue.limits).decode() if queue.limits else None,
    )


def read_queue(row: Row) -> Queue:
    """What `pack_queue` wrote."""
    (
        name, paused, until, reason, by, workers, n, per, burst, tokens, refilled,
        keep_done, keep_dead, on, base, top, cool_until, count, declared, fair, limits,
    ) = row  # fmt: skip
    return Queue(
        name=name,
        pause=Pause(until, reason, by) if paused else None,
        workers=workers,
        bucket=read_bucket(n, per, burst, tokens, refilled),
        keep_done=keep_done,
        keep_dead=keep_dead,
        curve=Curve(bool(on), base, top),
        cooldown=OPEN if cool_until is None and not count else Cooldown(cool_until, count),
        declared=None if declared is None else _tuning(declared),
        fair=bool(fair),
        limits=() if limits is None else _limits(limits),
    )


def pack_bucket(bucket: Bucket) -> tuple[float, float, float, float, int]:
    """The columns of a bucket: n, per, burst, tokens, refilled."""
    return *bucket.rate.numbers, bucket.tokens, bucket.refilled_at


def read_bucket(n: float | None, per: float, burst: float, tokens: float, refilled: int) -> Bucket | None:
    """What `pack_bucket` wrote; None: the queue has no rate."""
    return None if n is None else Bucket(Rate(n, per, burst), tokens, refilled)


def pack_budget(budget: Budget) -> tuple[Any, ...]:
    """The columns of a budget: name, bucket, declaration."""
    declared = None if budget.declared is None else _encode(budget.declared).decode()
    return budget.name, *pack_bucket(budget.bucket), declared


def read_budget(row: Row) -> Budget:
    """What `pack_budget` wrote."""
    name, n, per, burst, tokens, refilled, declared = row
    bucket = Bucket(Rate(n, per, burst), tokens, refilled)
    return Budget(name, bucket, None if declared is None else _rate(declared))
