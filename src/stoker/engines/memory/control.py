"""Queue settings, rate budgets and named locks.

The model decides; a function here reads a value, asks the model and writes the result, all under the store's lock.
"""

from __future__ import annotations

from stoker.engines.memory.store import Store
from stoker.model.control import Budget, NamedLock, Queue, Rate, Tuning, may_release, may_take, tuned
from stoker.model.job import check_name, check_span
from stoker.model.throttle import Grant, drained, full, retuned, spend, wait_hint
from stoker.model.time import Instant, Span


def queues(store: Store) -> list[Queue]:
    """Every queue that was tuned, cooled or used, by name."""
    return [store.queue(name) for name in sorted(store.rows.keys() | store.waiting.keys())]


def tune_queue(store: Store, name: str, tuning: Tuning, *, if_absent: bool) -> bool:
    """Patch a queue. One that was used or cooled but never tuned counts as absent."""
    if if_absent and name in store.tuned:
        return False
    before = store.queue(name)
    after = tuned(before, tuning)
    store.set_queue(after)
    store.tuned.add(name)
    if before.paused and not after.paused:
        store.wake(name)
    return True


def tune_budget(store: Store, name: str, rate: Rate, now: Instant, *, if_absent: bool) -> bool:
    """Set a budget; one that exists keeps the tokens it has."""
    check_name("budget", name)
    before = store.budgets.get(name)
    if before is not None and if_absent:
        return False
    bucket = full(rate.capacity, rate.rate, now) if before is None else retuned(before.bucket, rate.capacity, rate.rate)
    store.budgets[name] = Budget(name, bucket)
    return True


def take_tokens(store: Store, name: str, n: int, now: Instant) -> Grant:
    """Take `n` tokens or none."""
    budget = store.budgets.get(name)
    if budget is None:
        return Grant(granted=False, wait=wait_hint(None))
    bucket, grant = spend(budget.bucket, n, now)
    store.budgets[name] = Budget(name, bucket)
    return grant


def drain(store: Store, name: str, now: Instant) -> bool:
    """Empty a budget."""
    budget = store.budgets.get(name)
    if budget is None:
        return False
    store.budgets[name] = Budget(name, drained(budget.bucket, now))
    return True


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
