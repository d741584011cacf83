"""Queue settings, rate budgets, named locks and worker presences.

The rules are in the model; here a value is read, changed by the model and written in one transaction.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from stoker.engines.call_times import timed
from stoker.engines.sql.exchanges import Exchange, Row
from stoker.engines.sql.packing import pack_budget, read_budget, read_queue
from stoker.engines.sqlite import audit, subqueues
from stoker.engines.sqlite.facet import Facet
from stoker.engines.sqlite.statements import sql
from stoker.engines.sqlite.unit_of_work import Unit
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
from stoker.model.throttle import Bucket, Grant, Rate, drained, spend, wait_hint
from stoker.model.time import Instant, Span

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


class Control(Facet):
    """Queue settings, budgets, locks and presences."""

    @timed(write=False)
    async def queues(self) -> list[Queue]:
        return await self._store.read(lambda _: queues())

    @timed(write=True)
    async def tune(self, name: str, tuning: Tuning | Rate, *, declared: bool = False, by: By | None = None) -> bool:
        return await self._store.write(lambda unit: tune(unit, name, tuning, declared=declared, by=by), strict=True)

    @timed(write=False)
    async def subqueues(
        self, queue: str, *, after: str | None = None, limit: int = 100, names: Sequence[str] | None = None
    ) -> list[SubqueueView]:
        return await self._store.read(lambda now: subqueues_of(now, queue, after, limit, names))

    @timed(write=False)
    async def budgets(self) -> list[Budget]:
        return await self._store.read(lambda _: budgets())

    @timed(write=True)
    async def spend(self, name: str, n: int = 1) -> Grant:
        return await self._store.write(lambda unit: take_tokens(unit, name, n))

    @timed(write=True)
    async def drain(self, name: str) -> bool:
        return await self._store.write(lambda unit: drain(unit, name))

    @timed(write=True)
    async def lock(self, name: str, owner: str, lease: Span) -> bool:
        return await self._store.write(lambda unit: lock(unit, name, owner, lease))

    @timed(write=True)
    async def unlock(self, name: str, owner: str) -> bool:
        return await self._store.write(lambda _: unlock(name, owner))

    @timed(write=True)
    async def beat(self, presence: Presence) -> None:
        await self._store.write(lambda unit: beat(unit, presence))

    @timed(write=False)
    async def workers(self) -> list[Presence]:
        return await self._store.read(lambda _: presences())


def queues() -> Exchange[list[Queue]]:
    """Return every queue that was tuned, cooled or used, by name."""
    return [read_queue(row[1:-1]) for row in (yield _QUEUES, ())]


def tune(unit: Unit, name: str, tuning: Tuning | Rate, *, declared: bool, by: By | None = None) -> Exchange[bool]:
    """Patch a queue or set a budget."""
    if isinstance(tuning, Rate):
        return (yield from _tune_budget(unit, name, tuning, declared=declared, by=by))
    stored = yield from unit.find_queue(name)
    before = Queue(name=name) if stored is None else stored.queue
    after = tuned(before, tuning, unit.now, declared=declared)
    if after == before:
        return False
    written = yield from unit.write_queue(after)
    if after.limits != before.limits:
        yield from subqueues.pin(unit, written)
    yield from audit.write(unit, by, of_setting("queues.tune", f"queue {name}", before, after))
    if opens(before, after):
        unit.woken.add(name)
    return True


def subqueues_of(
    now: Instant, name: str, after: str | None, limit: int, names: Sequence[str] | None
) -> Exchange[list[SubqueueView]]:
    """Return subqueues of a queue, by name."""
    queue = yield from Unit(now).find_queue(name)
    return (yield from subqueues.subqueues(queue, after, limit, names))


def _tune_budget(unit: Unit, name: str, rate: Rate, *, declared: bool, by: By | None) -> Exchange[bool]:
    before = yield from _budget(name)
    after = budgeted(before, name, rate, unit.now, declared=declared)
    if after == before:
        return False
    yield _BUDGET_WRITE, pack_budget(after)
    yield from audit.write(unit, by, of_setting("limits.tune", f"limit {name}", before, after))
    return True


def budgets() -> Exchange[list[Budget]]:
    """Return every budget, by name."""
    return [read_budget(row) for row in (yield _BUDGETS, ())]


def take_tokens(unit: Unit, name: str, n: int) -> Exchange[Grant]:
    """Take `n` tokens or none."""
    budget = yield from _budget(name)
    if budget is None:
        return Grant(granted=False, wait=wait_hint(None))
    after, grant = spend(budget.bucket, n, unit.now)
    if grant.granted:
        yield from _fill(budget, after)
    return grant


def drain(unit: Unit, name: str) -> Exchange[bool]:
    """Empty a budget."""
    budget = yield from _budget(name)
    if budget is None:
        return False
    yield from _fill(budget, drained(budget.bucket, unit.now))
    return True


def _budget(name: str) -> Exchange[Budget | None]:
    rows: list[Row] = yield _BUDGET, (name,)
    return read_budget(rows[0]) if rows else None


def _fill(budget: Budget, bucket: Bucket) -> Exchange[None]:
    yield _BUDGET_WRITE, pack_budget(msgspec.structs.replace(budget, bucket=bucket))


def lock(unit: Unit, name: str, owner: str, lease: Span) -> Exchange[bool]:
    """Take or extend a named lock."""
    check_name("lock", name)
    check_span("lease", lease)
    if not may_take((yield from _named_lock(name)), owner, unit.now):
        return False
    yield _LOCK_WRITE, (name, owner, unit.now + lease)
    return True


def unlock(name: str, owner: str) -> Exchange[bool]:
    """Release a named lock if this owner holds it."""
    if not may_release((yield from _named_lock(name)), owner):
        return False
    yield _UNLOCK, (name,)
    return True


def _named_lock(name: str) -> Exchange[NamedLock | None]:
    rows: list[Row] = yield _LOCK, (name,)
    return NamedLock(*rows[0]) if rows else None


def beat(unit: Unit, presence: Presence) -> Exchange[None]:
    """Write a worker's presence, stamped with the store's now."""
    stamped = msgspec.structs.replace(presence, seen_at=unit.now)
    yield _BEAT, (presence.worker, unit.now, _encode(stamped))


def presences() -> Exchange[list[Presence]]:
    """Return every presence, by worker."""
    return [_decode(row[0]) for row in (yield _PRESENCES, ())]
