"""Queue settings, rate budgets, named locks and worker presences.

The rules are in the model; here a value is read, changed by the model and written in one transaction.
"""

from __future__ import annotations

import msgspec

from stoker.engines.sql.steps import Row, Steps
from stoker.engines.sqlite.statements import sql
from stoker.engines.sqlite.unit_of_work import Unit, read_queue
from stoker.model.control import Budget, NamedLock, Presence, Queue, Rate, Tuning, may_release, may_take, tuned
from stoker.model.job import check_name, check_span
from stoker.model.throttle import Bucket, Grant, drained, full, retuned, spend, wait_hint
from stoker.model.time import Span

_QUEUES = sql("queues")
_BUDGET = sql("budget")
_BUDGETS = sql("budgets")
_BUDGET_WRITE = sql("budget_write")
_LOCK = sql("lock")
_LOCK_WRITE = sql("lock_write")
_UNLOCK = sql("unlock")
_BEAT = sql("beat")
_PRESENCES = sql("presences")

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(Presence).decode


def queues() -> Steps[list[Queue]]:
    """Return every queue that was tuned, cooled or used, by name."""
    return [read_queue(row).queue for row in (yield _QUEUES, ())]


def tune(unit: Unit, name: str, tuning: Tuning | Rate, *, if_absent: bool) -> Steps[bool]:
    """Patch a queue or set a budget."""
    if isinstance(tuning, Rate):
        return (yield from _tune_budget(unit, name, tuning, if_absent=if_absent))
    stored = yield from unit.find_queue(name)
    # A queue that was only used or cooled, never tuned, counts as absent.
    if if_absent and stored is not None and stored.tuned:
        return False
    before = Queue(name=name) if stored is None else stored.queue
    after = tuned(before, tuning)
    yield from unit.write_queue(after, tuned=True)
    if before.paused and not after.paused:
        unit.woken.add(name)
    return True


def _tune_budget(unit: Unit, name: str, rate: Rate, *, if_absent: bool) -> Steps[bool]:
    check_name("budget", name)
    before = yield from _bucket(name)
    if before is not None and if_absent:
        return False
    if before is None:
        yield from _write_bucket(name, full(rate.capacity, rate.rate, unit.now))
    else:
        yield from _write_bucket(name, retuned(before, rate.capacity, rate.rate))
    return True


def budgets() -> Steps[list[Budget]]:
    """Return every budget, by name."""
    return [Budget(row[0], Bucket(*row[1:])) for row in (yield _BUDGETS, ())]


def take_tokens(unit: Unit, name: str, n: int) -> Steps[Grant]:
    """Take `n` tokens or none."""
    bucket = yield from _bucket(name)
    if bucket is None:
        return Grant(granted=False, wait=wait_hint(None))
    after, grant = spend(bucket, n, unit.now)
    if after != bucket:
        yield from _write_bucket(name, after)
    return grant


def drain(unit: Unit, name: str) -> Steps[bool]:
    """Empty a budget."""
    bucket = yield from _bucket(name)
    if bucket is None:
        return False
    yield from _write_bucket(name, drained(bucket, unit.now))
    return True


def _bucket(name: str) -> Steps[Bucket | None]:
    rows: list[Row] = yield _BUDGET, (name,)
    return Bucket(*rows[0][1:]) if rows else None


def _write_bucket(name: str, bucket: Bucket) -> Steps[None]:
    yield _BUDGET_WRITE, (name, bucket.capacity, bucket.rate, bucket.tokens, bucket.refilled_at)


def lock(unit: Unit, name: str, owner: str, lease: Span) -> Steps[bool]:
    """Take or extend a named lock."""
    check_name("lock", name)
    check_span("lease", lease)
    if not may_take((yield from _named_lock(name)), owner, unit.now):
        return False
    yield _LOCK_WRITE, (name, owner, unit.now + lease)
    return True


def unlock(name: str, owner: str) -> Steps[bool]:
    """Release a named lock if this owner holds it."""
    if not may_release((yield from _named_lock(name)), owner):
        return False
    yield _UNLOCK, (name,)
    return True


def _named_lock(name: str) -> Steps[NamedLock | None]:
    rows: list[Row] = yield _LOCK, (name,)
    return NamedLock(*rows[0]) if rows else None


def beat(unit: Unit, presence: Presence) -> Steps[None]:
    """Write a worker's presence, stamped with the store's now."""
    stamped = msgspec.structs.replace(presence, seen_at=unit.now)
    yield _BEAT, (presence.worker, unit.now, _encode(stamped))


def presences() -> Steps[list[Presence]]:
    """Return every presence, by worker."""
    return [_decode(row[0]) for row in (yield _PRESENCES, ())]
