"""Queue settings, budgets, named locks and presences.

What operators ask and tune uses the connections of reads, what workers do all the time those of writes. The arithmetic
is the model's; this module locks a row, reads it and writes it in one transaction. An absent row cannot be locked, so
it is created first; if another transaction was faster, the row is read again.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from stoker.engines.call_times import timed
from stoker.engines.postgres import audit, counters, subqueues
from stoker.engines.postgres.facet import Facet
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


class Control(Facet):
    """Queue settings, budgets, named locks and presences."""

    @timed(write=False)
    async def queues(self) -> list[Queue]:
        return await self._store.read(lambda _: _queues())

    @timed(write=True)
    async def tune(self, name: str, tuning: Tuning | Rate, *, declared: bool = False, by: By | None = None) -> bool:
        def change(unit: Unit) -> Exchange[bool]:
            if isinstance(tuning, Rate):
                return _tune_budget(unit, name, tuning, declared=declared, by=by)
            return _tune_queue(unit, name, tuning, declared=declared, by=by)

        return await self._store.write(change, lane="admin")

    @timed(write=False)
    async def subqueues(
        self, queue: str, *, after: str | None = None, limit: int = 100, names: Sequence[str] | None = None
    ) -> list[SubqueueView]:
        return await self._store.read(lambda now: _subqueues(queue, after, limit, names, now))

    @timed(write=False)
    async def budgets(self) -> list[Budget]:
        return await self._store.read(lambda _: _budgets())

    @timed(write=True)
    async def spend(self, name: str, n: int = 1) -> Grant:
        return await self._store.write(lambda unit: _spend(unit, name, n), lax=True)

    @timed(write=True)
    async def drain(self, name: str) -> bool:
        return await self._store.write(lambda unit: _drain(unit, name), lax=True)

    @timed(write=True)
    async def lock(self, name: str, owner: str, lease: Span) -> bool:
        check_name("lock", name)
        check_span("lease", lease)
        return await self._store.write(lambda unit: _take_lock(unit, name, owner, lease), lax=True)

    @timed(write=True)
    async def unlock(self, name: str, owner: str) -> bool:
        return await self._store.write(lambda _: _release_lock(name, owner), lax=True)

    @timed(write=True)
    async def beat(self, presence: Presence) -> None:
        await self._store.write(lambda unit: _beat(unit, presence), lax=True)
        # Living workers also keep the counters short.
        await self._store.write(lambda _: counters.fold(), lax=True)

    @timed(write=False)
    async def workers(self) -> list[Presence]:
        return await self._store.read(lambda _: _presences())


# --- queues -----------------------------------------------------------------------------------------------------


def _queues() -> Exchange[list[Queue]]:
    rows: list[Row] = yield _QUEUES, ()
    return [Queue(name=row[0]) if row[1] is None else read_queue(row) for row in rows]


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


def _subqueues(
    name: str, after: str | None, limit: int, names: Sequence[str] | None, now: Instant
) -> Exchange[list[SubqueueView]]:
    rows: list[Row] = yield _NAMED, ([name],)
    queue = read_queue(rows[0]) if rows else Queue(name=name)
    return (yield from subqueues.subqueues(queue, after, limit, names, now))


# --- budgets ----------------------------------------------------------------------------------------------------


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


def _budgets() -> Exchange[list[Budget]]:
    return [read_budget(row) for row in (yield _BUDGETS, ())]


def _spend(unit: Unit, name: str, n: int) -> Exchange[Grant]:
    budget = yield from _budget(name)
    if budget is None:
        return Grant(granted=False, wait=wait_hint(None))
    after, grant = spent(budget.bucket, n, unit.now)
    if grant.granted:
        yield from _fill(budget, after)
    return grant


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


def _release_lock(name: str, owner: str) -> Exchange[bool]:
    if not may_release((yield from _named_lock(name)), owner):
        return False
    yield _UNLOCK, (name,)
    return True


def _named_lock(name: str) -> Exchange[NamedLock | None]:
    rows: list[Row] = yield _LOCK, (name,)
    return NamedLock(*rows[0]) if rows else None


# --- presences --------------------------------------------------------------------------------------------------


def _beat(unit: Unit, presence: Presence) -> Exchange[None]:
    stamped = msgspec.structs.replace(presence, seen_at=unit.now)
    yield _BEAT, (presence.worker, unit.now, _encode(stamped).decode())


def _presences() -> Exchange[list[Presence]]:
    return [_decode(row[0]) for row in (yield _PRESENCES, ())]
