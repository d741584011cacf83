"""Schedules and their ticks: one packed row each, locked while the model changes it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from stoker.engines.base import CONTROL
from stoker.engines.postgres import audit
from stoker.engines.postgres.statements import sql
from stoker.engines.postgres.unit_of_work import Unit
from stoker.engines.shared.schedules import insert_occurrence
from stoker.engines.sql.careful import decided
from stoker.engines.sql.steps import Row, Steps
from stoker.model import schedule as rules
from stoker.model.audit import By, of_setting
from stoker.model.job import Draft
from stoker.model.schedule import Edit, Fired, Schedule, Tick, after_tick, applies, met, pack, unpack

if TYPE_CHECKING:
    from stoker.engines.postgres.store import Store

_SCHEDULES = sql("schedules")
_LOCK = sql("schedule_lock")
_MAKE = sql("schedule_make")
_WRITE = sql("schedule_write")
_DROP = sql("schedule_drop")


async def schedules(store: Store) -> list[Schedule]:
    """Every schedule, by name."""
    return [unpack(name, stored.encode()) for name, stored in await store.once("desk", _SCHEDULES, ())]


async def put(store: Store, given: Schedule | Edit, *, keep_edited: bool, by: By | None = None) -> Schedule | None:
    """Store or change a schedule."""
    return await store.write(lambda unit: _put(unit, given, keep_edited=keep_edited, by=by), lane="desk")


def _put(unit: Unit, given: Schedule | Edit, *, keep_edited: bool, by: By | None) -> Steps[Schedule | None]:
    while True:
        before = yield from _lock(given.name)
        after = rules.put(before, given, unit.now, keep_edited=keep_edited)
        if after is None or after is before:
            return after
        # An absent row cannot be locked: another transaction may be faster.
        if (yield _MAKE if before is None else _WRITE, (after.name, pack(after).decode())):
            unit.woken.add(CONTROL)
            yield from audit.write(unit, by, of_setting("schedules.put", f"schedule {after.name}", before, after))
            return after


async def drop(store: Store, name: str, by: By | None = None) -> bool:
    """Delete a schedule."""
    if by is None:
        return bool(await store.once("desk", _DROP, (name,)))
    return await store.write(lambda unit: _drop(unit, name, by), lane="desk")


def _drop(unit: Unit, name: str, by: By) -> Steps[bool]:
    before = yield from _lock(name)
    dropped = bool((yield _DROP, (name,)))
    if dropped:
        yield from audit.write(unit, by, of_setting("schedules.drop", f"schedule {name}", before, None))
    return dropped


async def fire(store: Store, tick: Tick, drafts: Sequence[Draft]) -> Fired:
    """Store a tick with its jobs, if it applies."""
    return await store.write(lambda unit: _fire(unit, tick, drafts), lane="keyed")


def _fire(unit: Unit, tick: Tick, drafts: Sequence[Draft]) -> Steps[Fired]:
    stored = yield from _lock(tick.name)
    if stored is None or not applies(stored, tick, unit.now):
        return Fired(applied=False, now=unit.now, schedule=stored)
    receipts = yield from decided(
        unit, lambda: unit.load_drafts(drafts), lambda: [insert_occurrence(unit, draft) for draft in drafts]
    )
    after = after_tick(stored, met(tick, drafts, receipts))
    yield _WRITE, (after.name, pack(after).decode())
    return Fired(True, unit.now, after, tuple(receipts))


def _lock(name: str) -> Steps[Schedule | None]:
    rows: list[Row] = yield _LOCK, (name,)
    return unpack(name, rows[0][0].encode()) if rows else None
