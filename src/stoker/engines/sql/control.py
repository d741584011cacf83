"""Queue settings, rate budgets, named locks and presences.

The rules are the model's: a row is read and locked, changed by the model and written in one transaction. An absent row
cannot be locked, so it is made; if another transaction was faster, the row is read again.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import ClassVar

import msgspec

from stoker.engines.call_times import timed
from stoker.engines.sql.audit import AuditLog
from stoker.engines.sql.exchanges import Exchange, Row
from stoker.engines.sql.facet import Sql, SqlFacet, U
from stoker.engines.sql.packing import pack_budget, read_budget, read_queue
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

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(Presence).decode


class Statements:
    """The statements of an engine. Those that read one budget or lock hold its row until the transaction ends."""

    def __init__(self, sql: Sql) -> None:
        self.log = AuditLog(sql)
        self.queues = sql("queues")
        self.budgets = sql("budgets")
        self.budget = sql("budget")
        self.budget_make = sql("budget_make")
        self.budget_write = sql("budget_write")
        self.lock = sql("lock")
        self.lock_make = sql("lock_make")
        self.lock_write = sql("lock_write")
        self.unlock = sql("unlock")
        self.beat = sql("beat")
        self.presences = sql("presences")


class Control(SqlFacet[U], ABC):
    """Queue settings, budgets, named locks and presences."""

    _sql: ClassVar[Statements]

    # --- by the engine ------------------------------------------------------------------------------------------

    @abstractmethod
    def _change_queue(self, unit: U, name: str, change: Callable[[Queue], Queue]) -> Exchange[tuple[Queue, Queue]]:
        """Change a queue, and the limits of its subqueues; returns it as it was and as it is."""

    @abstractmethod
    def _subqueues(
        self, queue: str, after: str | None, limit: int, names: Sequence[str] | None, now: Instant
    ) -> Exchange[list[SubqueueView]]:
        """Return subqueues of a queue, by name."""

    # --- queues -------------------------------------------------------------------------------------------------

    @timed(write=False)
    async def queues(self) -> list[Queue]:
        def work(_: Instant) -> Exchange[list[Queue]]:
            rows: list[Row] = yield self._sql.queues, ()
            return [Queue(name=row[0]) if row[1] is None else read_queue(row) for row in rows]

        return await self._store.read(work)

    @timed(write=True)
    async def tune(self, name: str, tuning: Tuning | Rate, *, declared: bool = False, by: By | None = None) -> bool:
        def work(unit: U) -> Exchange[bool]:
            if isinstance(tuning, Rate):
                return self._tune_budget(unit, name, tuning, declared=declared, by=by)
            return self._tune_queue(unit, name, tuning, declared=declared, by=by)

        return await self._store.change(work)

    def _tune_queue(self, unit: U, name: str, tuning: Tuning, *, declared: bool, by: By | None) -> Exchange[bool]:
        before, after = yield from self._change_queue(
            unit, name, lambda queue: tuned(queue, tuning, unit.now, declared=declared)
        )
        if after == before:
            return False
        yield from self._sql.log.write(unit, by, of_setting("queues.tune", f"queue {name}", before, after))
        if opens(before, after):
            unit.woken.add(name)
        return True

    @timed(write=False)
    async def subqueues(
        self, queue: str, *, after: str | None = None, limit: int = 100, names: Sequence[str] | None = None
    ) -> list[SubqueueView]:
        return await self._store.read(lambda now: self._subqueues(queue, after, limit, names, now))

    # --- budgets ------------------------------------------------------------------------------------------------

    def _tune_budget(self, unit: U, name: str, rate: Rate, *, declared: bool, by: By | None) -> Exchange[bool]:
        while True:
            before = yield from self._budget(name)
            after = budgeted(before, name, rate, unit.now, declared=declared)
            if after == before:
                return False
            if before is not None:
                yield self._sql.budget_write, pack_budget(after)
            elif not (yield self._sql.budget_make, pack_budget(after)):
                continue
            yield from self._sql.log.write(unit, by, of_setting("limits.tune", f"limit {name}", before, after))
            return True

    @timed(write=False)
    async def budgets(self) -> list[Budget]:
        def work(_: Instant) -> Exchange[list[Budget]]:
            return [read_budget(row) for row in (yield self._sql.budgets, ())]

        return await self._store.read(work)

    @timed(write=True)
    async def spend(self, name: str, n: int = 1) -> Grant:
        def work(unit: U) -> Exchange[Grant]:
            budget = yield from self._budget(name)
            if budget is None:
                return Grant(granted=False, wait=wait_hint(None))
            after, grant = spent(budget.bucket, n, unit.now)
            if grant.granted:
                yield from self._fill(budget, after)
            return grant

        return await self._store.refresh(work)

    @timed(write=True)
    async def drain(self, name: str) -> bool:
        def work(unit: U) -> Exchange[bool]:
            budget = yield from self._budget(name)
            if budget is None:
                return False
            yield from self._fill(budget, drained(budget.bucket, unit.now))
            return True

        return await self._store.refresh(work)

    def _budget(self, name: str) -> Exchange[Budget | None]:
        rows: list[Row] = yield self._sql.budget, (name,)
        return read_budget(rows[0]) if rows else None

    def _fill(self, budget: Budget, bucket: Bucket) -> Exchange[None]:
        yield self._sql.budget_write, pack_budget(msgspec.structs.replace(budget, bucket=bucket))

    # --- locks --------------------------------------------------------------------------------------------------

    @timed(write=True)
    async def lock(self, name: str, owner: str, lease: Span) -> bool:
        check_name("lock", name)
        check_span("lease", lease)

        def work(unit: U) -> Exchange[bool]:
            while True:
                held = yield from self._named_lock(name)
                if not may_take(held, owner, unit.now):
                    return False
                made = yield (
                    self._sql.lock_make if held is None else self._sql.lock_write,
                    (name, owner, unit.now + lease),
                )
                if made or held is not None:
                    return True

        return await self._store.refresh(work)

    @timed(write=True)
    async def unlock(self, name: str, owner: str) -> bool:
        def work(_: U) -> Exchange[bool]:
            if not may_release((yield from self._named_lock(name)), owner):
                return False
            yield self._sql.unlock, (name,)
            return True

        return await self._store.refresh(work)

    def _named_lock(self, name: str) -> Exchange[NamedLock | None]:
        rows: list[Row] = yield self._sql.lock, (name,)
        return NamedLock(*rows[0]) if rows else None

    # --- presences ----------------------------------------------------------------------------------------------

    @timed(write=True)
    async def beat(self, presence: Presence) -> None:
        await self._store.refresh(lambda unit: self._beat(unit, presence))

    def _beat(self, unit: U, presence: Presence) -> Exchange[None]:
        stamped = _encode(msgspec.structs.replace(presence, seen_at=unit.now))
        yield self._sql.beat, (presence.worker, unit.now, self._store.column(stamped))

    @timed(write=False)
    async def workers(self) -> list[Presence]:
        def work(_: Instant) -> Exchange[list[Presence]]:
            return [_decode(row[0]) for row in (yield self._sql.presences, ())]

        return await self._store.read(work)
