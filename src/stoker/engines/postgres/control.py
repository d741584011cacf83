"""Queue settings, budgets, named locks and presences.

What operators ask and tune uses the connections of reads, what workers do all the time those of writes. The arithmetic
is the model's; this module locks a row, reads it and writes it in one transaction. An absent row cannot be locked, so
it is created first; if another transaction was faster, the row is read again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from stoker.engines.postgres import audit, counters, subqueues
from stoker.engines.postgres.statements import sql
from stoker.engines.postgres.unit_of_work import Unit
from stoker.engines.sql.exchanges import Exchange, Row
from stoker.engines.sql.packing import pack_budget, pack_queue, read_budget, read_queue
from stoker.model.audit import By, of_setting
from stoker.model.control import (
    Budget,
    NamedLock,
    Presence,
    Queue,
    Tuning,
    budgeted,
    may_release,
    may_take,
    opens,
    tuned,
)
from stoker.model.job import check_name, check_span
from stoker.model.subqueues import SubqueueView
from stoker.model.throttle import Bucket, Grant, Rate, drained, wait_hint
from stoker.model.throttle import spend as spent
from stoker.model.time import Instant, Span

if TYPE_CHECKING:
    from stoker.engines.postgres.store import Store

_QUEUES = sql("queues")
_NAMED = sql("queues_named")
_QUEUE_HOLD = sql("queue_hold")
_REPIN = sql("subqueue_repin")
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


def _queues() -> Exchange[list[Queue]]:
    rows: list[Row] = yield _QUEUES, ()
    return [Queue(name=row[0]) if row[1] is None else read_queue(row) for row in rows]


async def tune(store: Store, name: str, tuning: Tuning | Rate, *, declared: bool, by: By | None = None) -> bool:
    """Patch a queue or set a budget."""
    if isinstance(tuning, Rate):
        return await store.write(lambda unit: _tune_budget(unit, name, tuning, declared=declared, by=by), lane="desk")
    return await store.write(lambda unit: _tune_queue(unit, name, tuning, declared=declared, by=by), lane="desk")


def _tune_queue(unit: Unit, name: str, tuning: Tuning, *, declared: bool, by: By | None) -> Exchange[bool]:
    rows: list[Row] = yield _QUEUE_HOLD, (name,)
    before = read_queue(rows[0]) if rows else Queue(name=name)
    after = tuned(before, tuning, unit.now, declared=declared)
    if after != before and not rows:
        [row] = yield _QUEUE_LOCK, pack_queue(before)
        before = read_queue(row)
        after = tuned(before, tuning, unit.now, declared=declared)
    if after == before:
        return False
    yield from unit.write_queue(after)
    yield from audit.write(unit, by, of_setting("queues.tune", f"queue {name}", before, after))
    if after.limits != before.limits:
        yield _REPIN, (name,)
    if opens(before, after):
        unit.woken.add(name)
    return True


# --- budgets ----------------------------------------------------------------------------------------------------


async def subqueues_of(
    store: Store, name: str, after: str | None, limit: int, names: Sequence[str] | None
) -> list[SubqueueView]:
    """Subqueues of a queue, by name."""

    def look(now: Instant) -> Exchange[list[SubqueueView]]:
        rows: list[Row] = yield _NAMED, ([name],)
        queue = read_queue(rows[0]) if rows else Queue(name=name)
        return (yield from subqueues.subqueues(queue, after, limit, names, now))

    return await store.read(look)


def _tune_budget(unit: Unit, name: str, rate: Rate, *, declared: bool, by: By | None) -> Exchange[bool]:
    while True:
        before = yield from _budget(name)
        after = budgeted(before, name, rate, unit.now, declared=declared)
        if after == before:
            return False
        if before is not None:
            yield _BUDGET_WRITE, pack_budget(after)
        elif not (yield _BUDGET_MAKE, pack_budget(after)):
            continue
        yield from audit.write(unit, by, of_setting("limits.tune", f"limit {name}", before, after))
        return True


async def budgets(store: Store) -> list[Budget]:
    """Every budget, by name."""
    return await store.read(lambda _: _budgets())


def _budgets() -> Exchange[list[Budget]]:
    return [read_budget(row) for row in (yield _BUDGETS, ())]


async def spend(store: Store, name: str, n: int) -> Grant:
    """Take `n` tokens or none."""
    return await store.write(lambda unit: _spend(unit, name, n), lax=True)


def _spend(unit: Unit, name: str, n: int) -> Exchange[Grant]:
    budget = yield from _budget(name)
    if budget is None:
        return Grant(granted=False, wait=wait_hint(None))
    after, grant = spent(budget.bucket, n, unit.now)
    if grant.granted:
        yield from _fill(budget, after)
    return grant


async def drain(store: Store, name: str) -> bool:
    """Empty a budget."""
    return await store.write(lambda unit: _drain(unit, name), lax=True)


def _drain(unit: Unit, name: str) -> Exchange[bool]:
    budget = yield from _budget(name)
    if budget is None:
        return False
    yield from _fill(budget, drained(budget.bucket, unit.now))
    return True


def _budget(name: str) -> Exchange[Budget | None]:
    rows: list[Row] = yield _BUDGET_LOCK, (name,)
    return read_budget(rows[0]) if rows else None


def _fill(budget: Budget, bucket: Bucket) -> Exchange[None]:
    yield _BUDGET_WRITE, pack_budget(msgspec.structs.replace(budget, bucket=bucket))


# --- locks ------------------------------------------------------------------------------------------------------


async def lock(store: Store, name: str, owner: str, lease: Span) -> bool:
    """Take or extend a named lock."""
    check_name("lock", name)
    check_span("lease", lease)
    return await store.write(lambda unit: _take_lock(unit, name, owner, lease), lax=True)


def _take_lock(unit: Unit, name: str, owner: str, lease: Span) -> Exchange[bool]:
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


def _release_lock(name: str, owner: str) -> Exchange[bool]:
    if not may_release((yield from _named_lock(name)), owner):
        return False
    yield _UNLOCK, (name,)
    return True


def _named_lock(name: str) -> Exchange[NamedLock | None]:
    rows: list[Row] = yield _LOCK, (name,)
    return NamedLock(*rows[0]) if rows else None


# --- presences --------------------------------------------------------------------------------------------------


async def beat(store: Store, presence: Presence) -> None:
    """Show a worker, stamped with the store's now. Living workers also keep the counters short."""
    await store.write(lambda unit: _beat(unit, presence), lax=True)
    await store.write(lambda _: counters.fold(), lax=True)


def _beat(unit: Unit, presence: Presence) -> Exchange[None]:
    stamped = msgspec.structs.replace(presence, seen_at=unit.now)
    yield _BEAT, (presence.worker, unit.now, _encode(stamped).decode())


async def workers(store: Store) -> list[Presence]:
    """Every presence, by worker."""
    return await store.read(lambda _: _presences())


def _presences() -> Exchange[list[Presence]]:
    return [_decode(row[0]) for row in (yield _PRESENCES, ())]
