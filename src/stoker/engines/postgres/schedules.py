"""Schedules and their ticks: one packed row each, locked while the model changes it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from stoker.engines.base import CONTROL
from stoker.engines.call_times import timed
from stoker.engines.postgres import audit
from stoker.engines.postgres.errors import Locked
from stoker.engines.postgres.facet import Facet
from stoker.engines.postgres.statements import sql
from stoker.engines.postgres.unit_of_work import Unit
from stoker.engines.shared.schedules import Firing, TickBatcher, chosen, decide_each, fire, moved
from stoker.engines.sql.exchanges import Exchange, Row
from stoker.engines.sql.one_by_one import decided
from stoker.model import schedule as rules
from stoker.model.audit import By, of_setting
from stoker.model.job import Draft
from stoker.model.schedule import Edit, Fired, Schedule, Tick, pack, unpack

if TYPE_CHECKING:
    from stoker.engines.postgres.claim import Claimer
    from stoker.engines.postgres.store import Store

_SCHEDULES = sql("schedules")
_LOCK = sql("schedule_lock")
_MAKE = sql("schedule_make")
_WRITE = sql("schedule_write")
_DROP = sql("schedule_drop")

LOCK_WAIT = 0.2
"""Seconds that the ticks of a transaction wait for a lock or key that another transaction holds."""


class Schedules(Facet):
    """Schedules and their ticks."""

    def __init__(self, store: Store, claimer: Claimer) -> None:
        super().__init__(store)
        self._claimer = claimer
        self._ticks = TickBatcher(self._fire, alone=(Locked,))

    @timed(write=False, name="read_schedules")
    async def read(self) -> list[Schedule]:
        return [unpack(name, stored.encode()) for name, stored in await self._store.once("admin", _SCHEDULES, ())]

    @timed(write=True)
    async def put(self, given: Schedule | Edit, *, keep_edited: bool = False, by: By | None = None) -> Schedule | None:
        return await self._store.write(lambda unit: _put(unit, given, keep_edited=keep_edited, by=by), lane="admin")

    @timed(write=True)
    async def drop(self, name: str, *, by: By | None = None) -> bool:
        if by is None:
            return bool(await self._store.once("admin", _DROP, (name,)))
        return await self._store.write(lambda unit: _drop(unit, name, by), lane="admin")

    @timed(write=True)
    async def fire(self, tick: Tick, drafts: Sequence[Draft] = ()) -> Fired:
        fired = await fire(self._ticks.fire, tick, drafts)
        self._claimer.inserted(drafts)
        return fired

    async def _fire(self, ticks: Sequence[Firing]) -> list[Fired]:
        # One tick waits for a lock as long as any call; several do not wait for the one among them that has to.
        wait = None if len(ticks) == 1 else LOCK_WAIT
        return await self._store.write(lambda unit: _fire(unit, ticks), lane="keyed", lock_wait=wait)

    async def close(self) -> None:
        """Store ticks that are still waiting."""
        await self._ticks.close()


def _put(unit: Unit, given: Schedule | Edit, *, keep_edited: bool, by: By | None) -> Exchange[Schedule | None]:
    while True:
        before = yield from _lock(given.name)
        after = rules.put(before, given, unit.now, keep_edited=keep_edited)
        if after is None or after is before:
            return after
        # An absent row cannot be locked: another transaction may be faster.
        if (yield _MAKE if before is None else _WRITE, ([after.name], [pack(after).decode()])):
            unit.woken.add(CONTROL)
            yield from audit.write(unit, by, of_setting("schedules.put", f"schedule {after.name}", before, after))
            return after


def _drop(unit: Unit, name: str, by: By) -> Exchange[bool]:
    before = yield from _lock(name)
    dropped = bool((yield _DROP, (name,)))
    if dropped:
        yield from audit.write(unit, by, of_setting("schedules.drop", f"schedule {name}", before, None))
    return dropped


def _fire(unit: Unit, ticks: Sequence[Firing]) -> Exchange[list[Fired]]:
    """Store ticks with their jobs, each if it applies."""
    before = yield from _locked({tick.name for tick, _ in ticks})
    wanted = [draft for _, drafts in chosen(before, ticks, unit.now).values() for draft in drafts]
    fired = yield from decided(unit, lambda: unit.load_drafts(wanted), lambda: decide_each(unit, before, ticks))
    if after := moved(fired):
        yield _WRITE, (list(after), [pack(one).decode() for one in after.values()])
    return fired


def _lock(name: str) -> Exchange[Schedule | None]:
    return (yield from _locked({name})).get(name)


def _locked(names: set[str]) -> Exchange[dict[str, Schedule]]:
    rows: list[Row] = yield _LOCK, (sorted(names),)
    return {name: unpack(name, stored.encode()) for name, stored in rows}
