"""Queue settings, budgets, named locks and presences.

What operators ask and tune uses the connections of reads, what workers do all the time those of writes. The arithmetic
is the model's; this module locks a row, reads it and writes it in one transaction. An absent row cannot be locked, so
it is created first; if another transaction was faster, the row is read again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from stoker.engines.postgres import counters
from stoker.engines.postgres.statements import sql
from stoker.engines.postgres.unit_of_work import Unit, queue_of
from stoker.engines.sql.steps import Row, Steps
from stoker.model.control import Budget, NamedLock, Presence, Queue, Rate, Tuning, may_release, may_take, tuned
from stoker.model.job import check_name, check_span
from stoker.model.throttle import Bucket, Grant, drained, full, retuned, wait_hint
from stoker.model.throttle import spend as spent
from stoker.model.time import Span

if TYPE_CHECKING:
    from stoker.engines.postgres.store import Store

_QUEUES = sql("queues")
_QUEUE_LOCK = sql("queue_lock")
_BUDGETS = sql("budgets")
_BUDGET_LOCK = sql("budget_lock")
_BUDGET_MAKE = sql("budget_make")
_BUDGET_WRITE = sql("budget_write")
_LOCK = sql("lock")
_LOCK_MAKE = sql("lock_make")
_LOCK_WRITE = sql("lock_write")
_UNLOCK = sql("unlock")
_BEAT = sql("beat")
_PRESENCES = sql("presences")

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(Presence).decode


# --- queues -----------------------------------------------------------------------------------------------------


async def queues(store: Store) -> list[Queue]:
    """Every queue that was tuned, cooled or used, by name."""
    return await store.read(lambda _: _queues())


def _queues() -> Steps[list[Queue]]:
    rows: list[Row] = yield _QUEUES, ()
    return [Queue(name=row[0]) if row[1] is None else queue_of(row)[0] for row in rows]


async def tune(store: Store, name: str, tuning: Tuning | Rate, *, if_absent: bool) -> bool:
    """Patch a queue or set a budget."""
    if isinstance(tuning, Rate):
        return await store.write(lambda unit: _tune_budget(unit, name, tuning, if_absent=if_absent), lane="desk")
    return await store.write(lambda unit: _tune_queue(unit, name, tuning, if_absent=if_absent), lane="desk")


def _tune_queue(unit: Unit, name: str, tuning: Tuning, *, if_absent: bool) -> Steps[bool]:
    check_name("queue", name)
    plain = Queue(name=name)
    curve = plain.curve
    [row] = yield _QUEUE_LOCK, (name, plain.keep_done, plain.keep_dead, curve.on, curve.base, curve.max)
    before, chosen = queue_of(row)
    # A queue that was only used or cooled counts as absent: it was never tuned.
    if if_absent and chosen:
        return False
    after = tuned(before, tuning)
    yield from unit.write_queue(after, tuned=True)
    if before.paused and not after.paused:
        unit.woken.add(name)
    return True


# --- budgets ----------------------------------------------------------------------------------------------------


def _tune_budget(unit: Unit, name: str, rate: Rate, *, if_absent: bool) -> Steps[bool]:
    check_name("budget", name)
    while True:
        before = yield from _bucket(name)
        if before is not None:
            if not if_absent:
                yield from _write_bucket(name, retuned(before, rate.capacity, rate.rate))
            return not if_absent
        new = full(rate.capacity, rate.rate, unit.now)
        if (yield _BUDGET_MAKE, (name, new.capacity, new.rate, new.tokens, new.refilled_at)):
            return True


async def budgets(store: Store) -> list[Budget]:
    """Every budget, by name."""
    return await store.read(lambda _: _budgets())


def _budgets() -> Steps[list[Budget]]:
    return [Budget(row[0], Bucket(*row[1:])) for row in (yield _BUDGETS, ())]


async def spend(store: Store, name: str, n: int) -> Grant:
    """Take `n` tokens or none."""
    return await store.write(lambda unit: _spend(unit, name, n), lax=True)


def _spend(unit: Unit, name: str, n: int) -> Steps[Grant]:
    bucket = yield from _bucket(name)
    if bucket is None:
        return Grant(granted=False, wait=wait_hint(None))
    after, grant = spent(bucket, n, unit.now)
    if after != bucket:
        yield from _write_bucket(name, after)
    return grant


async def drain(store: Store, name: str) -> bool:
    """Empty a budget."""
    return await store.write(lambda unit: _drain(unit, name), lax=True)


def _drain(unit: Unit, name: str) -> Steps[bool]:
    bucket = yield from _bucket(name)
    if bucket is None:
        return False
    yield from _write_bucket(name, drained(bucket, unit.now))
    return True


def _bucket(name: str) -> Steps[Bucket | None]:
    rows: list[Row] = yield _BUDGET_LOCK, (name,)
    return Bucket(*rows[0]) if rows else None


def _write_bucket(name: str, bucket: Bucket) -> Steps[None]:
    yield _BUDGET_WRITE, (name, bucket.capacity, bucket.rate, bucket.tokens, bucket.refilled_at)


# --- locks ------------------------------------------------------------------------------------------------------


async def lock(store: Store, name: str, owner: str, lease: Span) -> bool:
    """Take or extend a named lock."""
    check_name("lock", name)
    check_span("lease", lease)
    return await store.write(lambda unit: _take_lock(unit, name, owner, lease), lax=True)


def _take_lock(unit: Unit, name: str, owner: str, lease: Span) -> Steps[bool]:
    while True:
        held = yield from _named_lock(name)
        if not may_take(held, owner, unit.now):
            return False
        if held is not None:
            yield _LOCK_WRITE, (name, owner, unit.now + lease)
            return True
        if (yield _LOCK_MAKE, (name, owner, unit.now + lease)):
            return True


async def unlock(store: Store, name: str, owner: str) -> bool:
    """Release a lock that the caller holds."""
    return await store.write(lambda _: _release_lock(name, owner), lax=True)


def _release_lock(name: str, owner: str) -> Steps[bool]:
    if not may_release((yield from _named_lock(name)), owner):
        return False
    yield _UNLOCK, (name,)
    return True


def _named_lock(name: str) -> Steps[NamedLock | None]:
    rows: list[Row] = yield _LOCK, (name,)
    return NamedLock(*rows[0]) if rows else None


# --- presences --------------------------------------------------------------------------------------------------


async def beat(store: Store, presence: Presence) -> None:
    """Show a worker, stamped with the store's now. Living workers also keep the counters short."""
    await store.write(lambda unit: _beat(unit, presence), lax=True)
    await store.write(lambda _: counters.fold(), lax=True)


def _beat(unit: Unit, presence: Presence) -> Steps[None]:
    stamped = msgspec.structs.replace(presence, seen_at=unit.now)
    yield _BEAT, (presence.worker, unit.now, _encode(stamped).decode())


async def workers(store: Store) -> list[Presence]:
    """Every presence, by worker."""
    return await store.read(lambda _: _presences())


def _presences() -> Steps[list[Presence]]:
    return [_decode(row[0]) for row in (yield _PRESENCES, ())]
