"""Fire a tick: the part that is the same in every engine."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

from stoker.engines.shared import careful
from stoker.engines.shared.unit_of_work import UnitOfWork
from stoker.model.errors import EngineFull, EngineRefused, InvalidInput
from stoker.model.job import Draft, Receipt
from stoker.model.schedule import Fired, Schedule, Tick, after_tick, applies, check_id, failed, met


async def fire(
    store: Callable[[Tick, Sequence[Draft]], Awaitable[Fired]], tick: Tick, drafts: Sequence[Draft]
) -> Fired:
    """Store a tick with its jobs, or without them if the store refuses them."""
    if len(drafts) != len(tick.fires):
        raise InvalidInput("drafts", len(drafts), f"must be one for each of {len(tick.fires)} instants")
    try:
        return await store(tick, drafts)
    except (InvalidInput, EngineRefused, EngineFull) as error:
        if not drafts:
            raise
        return await store(failed(tick, str(error)), ())


def decide(unit: UnitOfWork, stored: Schedule | None, tick: Tick, drafts: Sequence[Draft]) -> Fired:
    """Insert the jobs of a tick that applies; the unit holds what `careful.wanted_by_drafts` names."""
    if stored is None or not applies(stored, tick, unit.now):
        return Fired(applied=False, now=unit.now, schedule=stored)
    receipts = tuple(insert_occurrence(unit, draft) for draft in drafts)
    return Fired(True, unit.now, after_tick(stored, met(tick, drafts, receipts)), receipts)


def insert_occurrence(unit: UnitOfWork, draft: Draft) -> Receipt:
    """Store the job of an occurrence, unless it is there already."""
    check_id(draft, unit.get(draft.job_id))
    return careful.insert_followup(unit, draft)
