"""Schedules and their ticks: one packed row each, changed by the model in one transaction."""

from __future__ import annotations

from collections.abc import Sequence

from stoker.engines.base import CONTROL
from stoker.engines.call_times import timed
from stoker.engines.shared import one_by_one
from stoker.engines.shared import schedules as shared
from stoker.engines.shared.schedules import decide
from stoker.engines.sql.exchanges import Exchange, Row
from stoker.engines.sqlite import audit
from stoker.engines.sqlite.facet import Facet
from stoker.engines.sqlite.statements import sql
from stoker.engines.sqlite.unit_of_work import Unit
from stoker.model import schedule as rules
from stoker.model.audit import By, of_setting
from stoker.model.job import Draft
from stoker.model.schedule import Edit, Fired, Schedule, Tick, pack, unpack

_SCHEDULES = sql("schedules")
_SCHEDULE = sql("schedule")
_WRITE = sql("schedule_write")
_DROP = sql("schedule_drop")


class Schedules(Facet):
    """Schedules and their ticks."""

    @timed(write=False, name="read_schedules")
    async def read(self) -> list[Schedule]:
        return await self._store.read(lambda _: schedules())

    @timed(write=True)
    async def put(self, given: Schedule | Edit, *, keep_edited: bool = False, by: By | None = None) -> Schedule | None:
        return await self._store.write(lambda unit: put(unit, given, keep_edited=keep_edited, by=by), strict=True)

    @timed(write=True)
    async def drop(self, name: str, *, by: By | None = None) -> bool:
        return await self._store.write(lambda unit: drop(unit, name, by), strict=True)

    @timed(write=True)
    async def fire(self, tick: Tick, drafts: Sequence[Draft] = ()) -> Fired:
        return await shared.fire(self._fire, tick, drafts)

    async def _fire(self, tick: Tick, drafts: Sequence[Draft]) -> Fired:
        return await self._store.write(lambda unit: fire(unit, tick, drafts), strict=True)


def schedules() -> Exchange[list[Schedule]]:
    """Return every schedule, by name."""
    return [unpack(*row) for row in (yield _SCHEDULES, ())]


def put(unit: Unit, given: Schedule | Edit, *, keep_edited: bool, by: By | None = None) -> Exchange[Schedule | None]:
    """Store or change a schedule."""
    before = yield from _find(given.name)
    after = rules.put(before, given, unit.now, keep_edited=keep_edited)
    if after is not None and after is not before:
        yield _WRITE, (after.name, pack(after))
        unit.wake(CONTROL)
        yield from audit.write(unit, by, of_setting("schedules.put", f"schedule {after.name}", before, after))
    return after


def drop(unit: Unit, name: str, by: By | None = None) -> Exchange[bool]:
    """Delete a schedule."""
    before = yield from _find(name)
    dropped = bool((yield _DROP, (name,)))
    if dropped:
        yield from audit.write(unit, by, of_setting("schedules.drop", f"schedule {name}", before, None))
    return dropped


def fire(unit: Unit, tick: Tick, drafts: Sequence[Draft]) -> Exchange[Fired]:
    """Store a tick with its jobs, if it applies."""
    stored = yield from _find(tick.name)
    yield from unit.load(one_by_one.wanted_by_drafts(drafts))
    fired = decide(unit, stored, tick, drafts)
    if fired.applied and fired.schedule is not None:
        yield _WRITE, (tick.name, pack(fired.schedule))
    yield from unit.write()
    return fired


def _find(name: str) -> Exchange[Schedule | None]:
    rows: list[Row] = yield _SCHEDULE, (name,)
    return unpack(name, rows[0][0]) if rows else None
