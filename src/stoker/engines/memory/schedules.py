"""Schedules and their ticks, under the store's lock."""

from __future__ import annotations

from collections.abc import Sequence

from stoker.engines.base import CONTROL
from stoker.engines.memory import unit_of_work
from stoker.engines.memory.store import Store
from stoker.engines.shared import careful
from stoker.engines.shared.schedules import decide
from stoker.engines.shared.unit_of_work import UnitOfWork
from stoker.model import schedule as rules
from stoker.model.job import Draft
from stoker.model.schedule import Edit, Fired, Schedule, Tick
from stoker.model.time import Instant


def put(store: Store, given: Schedule | Edit, now: Instant, *, keep_edited: bool) -> Schedule | None:
    """Store or change a schedule."""
    before = store.schedules.get(given.name)
    after = rules.put(before, given, now, keep_edited=keep_edited)
    if after is not None and after is not before:
        store.schedules[given.name] = after
        store.wake(CONTROL)
    return after


def fire(store: Store, unit: UnitOfWork, tick: Tick, drafts: Sequence[Draft]) -> Fired:
    """Store a tick with its jobs, if it applies."""
    store.load(unit, careful.wanted_by_drafts(drafts))
    with unit_of_work.room(store, unit):
        fired = decide(unit, store.schedules.get(tick.name), tick, drafts)
    if fired.applied and fired.schedule is not None:
        store.schedules[tick.name] = fired.schedule
    return fired
