"""Schedules and their ticks."""

from __future__ import annotations

from collections.abc import Sequence

from stoker.engines.base import CONTROL
from stoker.engines.memory.access import Facet
from stoker.engines.memory.insert import room
from stoker.engines.memory.store import Store
from stoker.engines.shared import one_by_one
from stoker.engines.shared.schedules import decide, fire
from stoker.engines.shared.unit_of_work import UnitOfWork
from stoker.model import schedule as rules
from stoker.model.audit import By, of_setting
from stoker.model.job import Draft
from stoker.model.schedule import Edit, Fired, Schedule, Tick


class Schedules(Facet):
    """Schedules and their ticks."""

    async def read(self) -> list[Schedule]:
        with self._read as store:
            return [schedule for _, schedule in sorted(store.schedules.items())]

    async def put(self, given: Schedule | Edit, *, keep_edited: bool = False, by: By | None = None) -> Schedule | None:
        with self._write as store:
            before = store.schedules.get(given.name)
            after = rules.put(before, given, store.now(), keep_edited=keep_edited)
            if after is not None and after is not before:
                store.schedules[given.name] = after
                store.wake(CONTROL)
            store.enter(by, of_setting("schedules.put", f"schedule {given.name}", before, after))
            return after

    async def drop(self, name: str, *, by: By | None = None) -> bool:
        with self._write as store:
            before = store.schedules.pop(name, None)
            store.enter(by, of_setting("schedules.drop", f"schedule {name}", before, None))
            return before is not None

    async def fire(self, tick: Tick, drafts: Sequence[Draft] = ()) -> Fired:
        return await fire(self._fire, tick, drafts)

    async def _fire(self, tick: Tick, drafts: Sequence[Draft]) -> Fired:
        return self._run(None, _fire, tick, drafts)


def _fire(store: Store, unit: UnitOfWork, tick: Tick, drafts: Sequence[Draft]) -> Fired:
    """Store a tick with its jobs, if it applies."""
    store.load(unit, one_by_one.wanted_by_drafts(drafts))
    with room(store, unit):
        fired = decide(unit, store.schedules.get(tick.name), tick, drafts)
    if fired.applied and fired.schedule is not None:
        store.schedules[tick.name] = fired.schedule
    return fired
