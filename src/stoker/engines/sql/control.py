"""Queue settings, rate budgets, named locks and presences.

The rules are the model's: a row is read and locked, changed by the model and written in one transaction. An absent row
cannot be locked, so it is made; if another transaction was faster, the row is read again.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import ClassVar, TypeVar

import msgspec

from stoker.engines.call_times import timed
from stoker.engines.shared.budget_format import pack_buckets, pack_budget, read_buckets, read_budget
from stoker.engines.sql.audit import AuditLog
from stoker.engines.sql.exchanges import Exchange, Row
from stoker.engines.sql.facet import Sql, SqlFacet, U
from stoker.engines.sql.packing import read_queue
from stoker.model.audit import By, of_setting
from stoker.model.budgets import (
    Buckets,
    Budget,
    KeyBuckets,
    Rates,
    Spend,
    at_hand,
    budgeted,
    emptied,
    forgets,
    full_at,
    spend_of,
)
from stoker.model.control import NamedLock, Presence, Queue, Tuning, may_release, may_take, opens, tuned
from stoker.model.job import check_name, check_span
from stoker.model.subqueues import SubqueueView
from stoker.model.throttle import Grant, Rate
from stoker.model.time import Instant, Span

T = TypeVar("T")
Take = Callable[[Budget | None, Buckets | None, Instant], tuple[Buckets | None, T]]
"""From a budget, the buckets of its key and the time to the new buckets, if they change, and the result."""

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(Presence).decode


class Statements:
    """The statements of an engine. Those that read one budget, key or lock hold its row until the transaction ends.

    `listed` makes one parameter of a list of texts.
    """

    def __init__(self, sql: Sql, listed: Callable[[Sequence[str]], object]) -> None:
        self.listed = listed
        self.log = AuditLog(sql)
        self.queues = sql("queues")
        self.budgets = sql("budgets")
        self.budget = sql("budget")
        self.budget_make = sql("budget_make")
        self.budget_write = sql("budget_write")
        self.budget_seen = sql("budget_seen")
        self.key = sql("budget_key")
        self.key_make = sql("budget_key_make")
        self.key_write = sql("budget_key_write")
        self.keys = sql("budget_keys")
        self.keys_named = sql("budget_keys_named")
        self.keys_forget = sql("budget_keys_forget")
        self.lock = sql("lock")
        self.lock_make = sql("lock_make")
        self.lock_write = sql("lock_write")
        self.unlock = sql("unlock")
        self.beat = sql("beat")
        self.presences = sql("presences")


class Control(SqlFacet[U], ABC):
    """Queue settings, budgets, named locks and presences."""

    sql: ClassVar[Statements]

    # --- by the engine ------------------------------------------------------------------------------------------

    @abstractmethod
    def _change_queue(self, unit: U, name: str, change: Callable[[Queue], Queue]) -> Exchange[tuple[Queue, Queue]]:
        """Change a queue, and the limits of its subqueues; returns it as it was and as it is."""

    @abstractmethod
    def _subqueues(
        self, queue: str, after: str | None, limit: int, names: Sequence[str] | None, now: Instant, *, counted: bool
    ) -> Exchange[list[SubqueueView]]:
        """Return subqueues of a queue, by name."""

    # --- queues -------------------------------------------------------------------------------------------------

    @timed(write=False)
    async def queues(self) -> list[Queue]:
        def work(_: Instant) -> Exchange[list[Queue]]:
            rows: list[Row] = yield self.sql.queues, ()
            return [Queue(name=row[0]) if row[1] is None else read_queue(row) for row in rows]

        return await self._store.read(work)

    @timed(write=True)
    async def tune(
        self, name: str, tuning: Tuning | Rate | Rates, *, declared: bool = False, by: By | None = None
    ) -> bool:
        def work(unit: U) -> Exchange[bool]:
            if isinstance(tuning, Tuning):
                return self._tune_queue(unit, name, tuning, declared=declared, by=by)
            return self._tune_budget(unit, name, tuning, declared=declared, by=by)

        return await self._store.change(work)

    def _tune_queue(self, unit: U, name: str, tuning: Tuning, *, declared: bool, by: By | None) -> Exchange[bool]:
        before, after = yield from self._change_queue(
            unit, name, lambda queue: tuned(queue, tuning, unit.now, declared=declared)
        )
        if after == before:
            return False
        yield from self.sql.log.write(unit, by, of_setting("queues.tune", f"queue {name}", before, after))
        if opens(before, after):
            unit.woken.add(name)
        return True

    @timed(write=False)
    async def subqueues(
        self,
        queue: str,
        *,
        after: str | None = None,
        limit: int = 100,
        names: Sequence[str] | None = None,
        counted: bool = False,
    ) -> list[SubqueueView]:
        return await self._store.read(lambda now: self._subqueues(queue, after, limit, names, now, counted=counted))

    # --- budgets ------------------------------------------------------------------------------------------------

    def _tune_budget(self, unit: U, name: str, rates: Rate | Rates, *, declared: bool, by: By | None) -> Exchange[bool]:
        while True:
            rows: list[Row] = yield self.sql.budget, (name,)
            before = read_budget(name, rows[0][1]) if rows else None
            after = budgeted(before, name, rates, unit.now, declared=declared)
            if after == before:
                return False
            if rows:
                yield self.sql.budget_write, (name, pack_budget(after).decode())
            elif not (yield self.sql.budget_make, (name, pack_budget(after).decode())):
                continue
            yield from self.sql.log.write(unit, by, of_setting("limits.tune", f"limit {name}", before, after))
            return True

    @timed(write=False)
    async def budgets(self) -> list[Budget]:
        return await self._store.read(lambda _: _budgets(self.sql))

    @timed(write=False)
    async def buckets(self, budget: str, *, limit: int = 100, keys: Sequence[str] | None = None) -> list[KeyBuckets]:
        def work(now: Instant) -> Exchange[list[KeyBuckets]]:
            known = yield from self._budget(self.sql.budget_seen, budget)
            if keys is None:
                rows: list[Row] = yield self.sql.keys, (budget, max(limit, 0))
            else:
                rows = yield self.sql.keys_named, (budget, max(limit, 0), self.sql.listed(keys))
            found = [(key, at_hand(known, key, read_buckets(stored), now)) for key, stored in rows]
            return [KeyBuckets(key, buckets) for key, buckets in found if buckets is not None]

        return await self._store.read(work)

    @timed(write=True)
    async def spend(self, name: str, n: int | Spend = 1) -> Grant:
        asked = spend_of(n)
        return await self._store.refresh(lambda unit: self._take(unit.now, name, asked.key, asked.of))

    @timed(write=True)
    async def drain(self, name: str, *, key: str | None = None) -> bool:
        def drained(budget: Budget | None, kept: Buckets | None, now: Instant) -> tuple[Buckets | None, bool]:
            after = emptied(budget, key, kept, now)
            return after, after is not None

        return await self._store.refresh(lambda unit: self._take(unit.now, name, key, drained))

    def _take(self, now: Instant, name: str, key: str | None, decide: Take[T]) -> Exchange[T]:
        """Change the buckets of a budget, or of one of its keys: only these are locked."""
        while True:
            rows: list[Row] = yield (self.sql.budget, (name,)) if key is None else (self.sql.key, (name, key))
            budget = read_budget(name, rows[0][1]) if rows else None
            kept = None if key is None or not rows else rows[0][2]
            after, result = decide(budget, None if kept is None else read_buckets(kept), now)
            if budget is None or after is None:
                return result
            if key is None:
                changed = msgspec.structs.replace(budget, buckets=after)
                yield self.sql.budget_write, (name, pack_budget(changed).decode())
                return result
            row = name, key, pack_buckets(after).decode(), full_at(after)
            made = yield self.sql.key_make if kept is None else self.sql.key_write, row
            if made or kept is not None:
                return result

    def _budget(self, statement: str, name: str) -> Exchange[Budget | None]:
        rows: list[Row] = yield statement, (name,)
        return read_budget(name, rows[0][1]) if rows else None

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
                    self.sql.lock_make if held is None else self.sql.lock_write,
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
            yield self.sql.unlock, (name,)
            return True

        return await self._store.refresh(work)

    def _named_lock(self, name: str) -> Exchange[NamedLock | None]:
        rows: list[Row] = yield self.sql.lock, (name,)
        return NamedLock(*rows[0]) if rows else None

    # --- presences ----------------------------------------------------------------------------------------------

    @timed(write=True)
    async def beat(self, presence: Presence) -> None:
        await self._store.refresh(lambda unit: self._beat(unit, presence))

    def _beat(self, unit: U, presence: Presence) -> Exchange[None]:
        stamped = _encode(msgspec.structs.replace(presence, seen_at=unit.now))
        yield self.sql.beat, (presence.worker, unit.now, self._store.column(stamped))

    @timed(write=False)
    async def workers(self) -> list[Presence]:
        def work(_: Instant) -> Exchange[list[Presence]]:
            return [_decode(row[0]) for row in (yield self.sql.presences, ())]

        return await self._store.read(work)


def forget_full(sql: Statements, limit: int, now: Instant) -> Exchange[int]:
    """Forget keys of budgets whose buckets are full again, up to `limit` of them; return how many."""
    names = [one.name for one in (yield from _budgets(sql)) if forgets(one, now)]
    return len((yield sql.keys_forget, (sql.listed(names), now, max(limit, 0))))


def _budgets(sql: Statements) -> Exchange[list[Budget]]:
    rows: list[Row] = yield sql.budgets, ()
    return [budget for row in rows if (budget := read_budget(*row)) is not None]
