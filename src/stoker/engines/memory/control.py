"""Queue settings, rate budgets, named locks and presences.

The model decides; a method here reads a value, asks the model and writes the result, all under the store's lock.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from stoker.engines.memory.access import Facet
from stoker.engines.memory.store import Store
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
    is_full,
    spend_of,
)
from stoker.model.control import NamedLock, Presence, Queue, Tuning, may_release, may_take, opens, tuned
from stoker.model.ids import JobId
from stoker.model.job import check_name, check_span
from stoker.model.query import Repair
from stoker.model.subqueues import SubqueueView, recounted, slot_of, suspicious, view
from stoker.model.throttle import Grant, Rate
from stoker.model.time import Instant, Span


class Control(Facet):
    """Queue settings, budgets, locks and presences."""

    async def queues(self) -> list[Queue]:
        with self._read as store:
            return [store.queue(name) for name in sorted(store.rows.keys() | store.waiting.keys())]

    async def tune(
        self, name: str, tuning: Tuning | Rate | Rates, *, declared: bool = False, by: By | None = None
    ) -> bool:
        with self._write as store:
            if not isinstance(tuning, Tuning):
                budget = store.budgets.get(name)
                store.budgets[name] = rated = budgeted(budget, name, tuning, store.now(), declared=declared)
                store.enter(by, of_setting("limits.tune", f"limit {name}", budget, rated))
                return rated != budget
            queue = store.queue(name)
            changed = _tune_queue(store, queue, tuning, store.now(), declared=declared)
            store.enter(by, of_setting("queues.tune", f"queue {name}", queue, store.queue(name)))
            return changed

    async def subqueues(
        self,
        queue: str,
        *,
        after: str | None = None,
        limit: int = 100,
        names: Sequence[str] | None = None,
        counted: bool = False,
    ) -> list[SubqueueView]:
        with self._read as store:
            found = store.subqueues.get(queue)
            states = {} if found is None else found.states
            chosen = sorted(states if names is None else states.keys() & set(names))
            page = [name for name in chosen if after is None or name > after][: max(limit, 0)]
            holders = _holders(store, queue, set(page))
            waiting = found.waiting(store.now()) if found is not None and counted else None
            return [view(queue, states[name], sorted(holders[name]), waiting) for name in page]

    async def budgets(self) -> list[Budget]:
        with self._read as store:
            return [budget for _, budget in sorted(store.budgets.items())]

    async def buckets(self, budget: str, *, limit: int = 100, keys: Sequence[str] | None = None) -> list[KeyBuckets]:
        with self._read as store:
            known, kept = store.budgets.get(budget), store.budget_keys.get(budget, {})
            chosen = [key for key in kept if keys is None or key in keys]
            chosen.sort(key=lambda key: (full_at(kept[key]), key), reverse=True)
            found = [(key, at_hand(known, key, kept[key], store.now())) for key in chosen[: max(limit, 0)]]
            return [KeyBuckets(key, buckets) for key, buckets in found if buckets is not None]

    async def spend(self, name: str, n: int | Spend = 1) -> Grant:
        asked = spend_of(n)
        with self._write as store:
            after, grant = asked.of(store.budgets.get(name), _kept(store, name, asked.key), store.now())
            if after is not None:
                _keep(store, name, asked.key, after)
            return grant

    async def drain(self, name: str, *, key: str | None = None) -> bool:
        with self._write as store:
            after = emptied(store.budgets.get(name), key, _kept(store, name, key), store.now())
            if after is not None:
                _keep(store, name, key, after)
            return after is not None

    async def lock(self, name: str, owner: str, lease: Span) -> bool:
        check_name("lock", name)
        check_span("lease", lease)
        with self._write as store:
            now = store.now()
            if not may_take(store.locks.get(name), owner, now):
                return False
            store.locks[name] = NamedLock(owner, now + lease)
            return True

    async def unlock(self, name: str, owner: str) -> bool:
        with self._write as store:
            if not may_release(store.locks.get(name), owner):
                return False
            del store.locks[name]
            return True

    async def beat(self, presence: Presence) -> None:
        with self._write as store:
            store.presences[presence.worker] = msgspec.structs.replace(presence, seen_at=store.now())

    async def workers(self) -> list[Presence]:
        with self._read as store:
            return [presence for _, presence in sorted(store.presences.items())]


def _tune_queue(store: Store, before: Queue, tuning: Tuning, now: Instant, *, declared: bool) -> bool:
    """Patch a queue."""
    after = tuned(before, tuning, now, keep_done=store.keep_done, declared=declared)
    if after == before:
        return False
    store.set_queue(after)
    if after.limits != before.limits and after.name in store.subqueues:
        store.subqueues[after.name].pin(dict(after.limits), now)
    if opens(before, after):
        store.wake(after.name)
    return True


def _kept(store: Store, budget: str, key: str | None) -> Buckets | None:
    return None if key is None else store.budget_keys.get(budget, {}).get(key)


def _keep(store: Store, budget: str, key: str | None, buckets: Buckets) -> None:
    if key is None:
        store.budgets[budget] = msgspec.structs.replace(store.budgets[budget], buckets=buckets)
    else:
        store.budget_keys.setdefault(budget, {})[key] = buckets


def forget_full(store: Store, limit: int, now: Instant) -> int:
    """Forget keys of budgets whose buckets are full again, up to `limit` of them."""
    gone = [
        (budget, key)
        for budget, kept in store.budget_keys.items()
        if forgets(store.budgets[budget], now)
        for key, buckets in kept.items()
        if is_full(buckets, now)
    ][: max(limit, 0)]
    for budget, key in gone:
        del store.budget_keys[budget][key]
    return len(gone)


def _holders(store: Store, queue: str, names: set[str]) -> dict[str, list[JobId]]:
    """The jobs that hold slots of these subqueues."""
    found: dict[str, list[JobId]] = {name: [] for name in names}
    for record in store.jobs.values():
        slot = slot_of(record)
        if slot is not None and slot[0] == queue and slot[1] in found:
            found[slot[1]].append(record.id)
    return found


def recount(store: Store, limit: int, now: Instant) -> list[Repair]:
    """Count the slots of subqueues that have been full for long; repairs up to `limit` wrong numbers."""
    repairs: list[Repair] = []
    for queue, found in store.subqueues.items():
        full = {name for name, state in found.states.items() if suspicious(state, now)}
        for name, holders in sorted(_holders(store, queue, full).items()) if full else ():
            before = found.states[name]
            after = recounted(before, len(holders))
            if after is not None and len(repairs) < limit:
                found.put(after, now)
                store.wake(queue)
                repairs.append(Repair(queue, name, before.running, len(holders)))
    return repairs
