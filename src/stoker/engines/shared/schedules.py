"""Fire ticks: the part that is the same in every engine."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TypeAlias

from stoker.engines.shared import one_by_one
from stoker.engines.shared.insert_batcher import InsertBatcher
from stoker.engines.shared.unit_of_work import UnitOfWork
from stoker.model.errors import EngineFull, EngineRefused, InvalidInput
from stoker.model.job import Draft, Receipt
from stoker.model.schedule import Fired, Schedule, Tick, after_tick, applies, check_id, failed, met
from stoker.model.time import Instant

Firing: TypeAlias = tuple[Tick, Sequence[Draft]]
"""A tick, and a draft for each instant at which it fires."""

MOST = 250
"""Ticks that are stored in one step."""

PARALLEL = 2
"""Steps under way at the same time."""

REFUSALS = (InvalidInput, EngineRefused)
"""A store refuses the jobs of a tick, and would again. One that is full stores nothing and is asked again."""


class TickBatcher:
    """Stores concurrent ticks together by `store`: a thousand that are due at once take a few steps.

    When one of them is refused, or fails with one of `alone`, each is stored alone.
    """

    def __init__(
        self, store: Callable[[Sequence[Firing]], Awaitable[list[Fired]]], alone: tuple[type[Exception], ...] = ()
    ) -> None:
        refusals = (*REFUSALS, EngineFull, *alone)
        self._batcher = InsertBatcher(store, parallel=PARALLEL, most=MOST, small=MOST, refusals=refusals)

    async def fire(self, tick: Tick, drafts: Sequence[Draft]) -> Fired:
        """Store a tick with its jobs, if it applies."""
        [fired] = await self._batcher.put([(tick, drafts)])
        return fired

    async def close(self) -> None:
        """Store what is still waiting."""
        await self._batcher.close()


async def fire(
    store: Callable[[Tick, Sequence[Draft]], Awaitable[Fired]], tick: Tick, drafts: Sequence[Draft]
) -> Fired:
    """Store a tick with its jobs, or without them if the store refuses them."""
    if len(drafts) != len(tick.fires):
        raise InvalidInput("drafts", len(drafts), f"must be one for each of {len(tick.fires)} instants")
    try:
        return await store(tick, drafts)
    except REFUSALS as error:
        if not drafts:
            raise
        return await store(failed(tick, str(error)), ())


def decide(unit: UnitOfWork, stored: Schedule | None, tick: Tick, drafts: Sequence[Draft]) -> Fired:
    """Insert the jobs of a tick that applies; the unit holds what `one_by_one.wanted_by_drafts` names."""
    if stored is None or not applies(stored, tick, unit.now):
        return Fired(applied=False, now=unit.now, schedule=stored)
    receipts = tuple(insert_occurrence(unit, draft) for draft in drafts)
    return Fired(True, unit.now, after_tick(stored, met(tick, drafts, receipts)), receipts)


def insert_occurrence(unit: UnitOfWork, draft: Draft) -> Receipt:
    """Store the job of an occurrence, unless it is there already."""
    check_id(draft, unit.get(draft.job_id))
    return one_by_one.insert_followup(unit, draft)


def chosen(stored: Mapping[str, Schedule], ticks: Sequence[Firing], now: Instant) -> dict[str, Firing]:
    """The ticks that apply, by the name of their schedule; of two about one schedule the first."""
    found: dict[str, Firing] = {}
    for tick, drafts in ticks:
        if tick.name in stored and applies(stored[tick.name], tick, now):
            found.setdefault(tick.name, (tick, drafts))
    return found


def decide_each(unit: UnitOfWork, stored: Mapping[str, Schedule], ticks: Sequence[Firing]) -> list[Fired]:
    """Insert the jobs of several ticks; answers in their order. The unit holds what those that apply need."""
    now: dict[str, Schedule] = dict(stored)
    apply = chosen(stored, ticks, unit.now)
    found: list[Fired] = []
    for tick, drafts in ticks:
        if tick.name in apply and apply[tick.name][0] is tick:
            found.append(decide(unit, now[tick.name], tick, drafts))
            now[tick.name] = found[-1].schedule or now[tick.name]
        else:
            found.append(Fired(applied=False, now=unit.now, schedule=now.get(tick.name)))
    return found


def moved(fired: Sequence[Fired]) -> dict[str, Schedule]:
    """The schedules that ticks have moved on, by name."""
    return {one.schedule.name: one.schedule for one in fired if one.applied and one.schedule is not None}
