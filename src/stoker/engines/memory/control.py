"""Queue settings, rate budgets and named locks.

The model decides; a function here reads a value, asks the model and writes the result, all under the store's lock.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from stoker.engines.memory.store import Store
from stoker.model.control import Budget, NamedLock, Queue, Tuning, budgeted, may_release, may_take, opens, tuned
from stoker.model.ids import JobId
from stoker.model.job import check_name, check_span
from stoker.model.query import Repair
from stoker.model.subqueues import SubqueueView, recounted, slot_of, suspicious, view
from stoker.model.throttle import Bucket, Grant, Rate, drained, spend, wait_hint
from stoker.model.time import Instant, Span


def queues(store: Store) -> list[Queue]:
    """Every queue that was tuned, cooled or used, by name."""
    return [store.queue(name) for name in sorted(store.rows.keys() | store.waiting.keys())]


def tune_queue(store: Store, name: str, tuning: Tuning, now: Instant, *, declared: bool) -> bool:
    """Patch a queue."""
    before = store.queue(name)
    after = tuned(before, tuning, now, keep_done=store.keep_done, declared=declared)
    if after == before:
        return False
    store.set_queue(after)
    if after.limits != before.limits and name in store.subqueues:
        store.subqueues[name].pin(dict(after.limits), now)
    if opens(before, after):
        store.wake(name)
    return True


def subqueues(
    store: Store, queue: str, after: str | None, limit: int, names: Sequence[str] | None
) -> list[SubqueueView]:
    """The subqueues of a queue, by name."""
    found = store.subqueues.get(queue)
    states = {} if found is None else found.states
    chosen = sorted(states if names is None else states.keys() & set(names))
    page = [name for name in chosen if after is None or name > after][: max(limit, 0)]
    holders = _holders(store, queue, set(page))
    return [view(queue, states[name], sorted(holders[name])) for name in page]


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


def tune_budget(store: Store, name: str, rate: Rate, now: Instant, *, declared: bool) -> bool:
    """Set a budget; one that exists keeps the tokens it has."""
    before = store.budgets.get(name)
    after = budgeted(before, name, rate, now, declared=declared)
    if after == before:
        return False
    store.budgets[name] = after
    return True


def take_tokens(store: Store, name: str, n: int, now: Instant) -> Grant:
    """Take `n` tokens or none."""
    budget = store.budgets.get(name)
    if budget is None:
        return Grant(granted=False, wait=wait_hint(None))
    bucket, grant = spend(budget.bucket, n, now)
    _fill(store, budget, bucket)
    return grant


def drain(store: Store, name: str, now: Instant) -> bool:
    """Empty a budget."""
    budget = store.budgets.get(name)
    if budget is None:
        return False
    _fill(store, budget, drained(budget.bucket, now))
    return True


def _fill(store: Store, budget: Budget, bucket: Bucket) -> None:
    store.budgets[budget.name] = msgspec.structs.replace(budget, bucket=bucket)


def lock(store: Store, name: str, owner: str, lease: Span, now: Instant) -> bool:
    """Take or extend a named lock."""
    check_name("lock", name)
    check_span("lease", lease)
    if not may_take(store.locks.get(name), owner, now):
        return False
    store.locks[name] = NamedLock(owner, now + lease)
    return True


def unlock(store: Store, name: str, owner: str) -> bool:
    """Release a lock that `owner` holds."""
    if not may_release(store.locks.get(name), owner):
        return False
    del store.locks[name]
    return True
