"""Operators' changes to jobs, in one transaction: the careful path decides about each in the order of the selection."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from stoker.engines.postgres import audit
from stoker.engines.shared.careful import check
from stoker.engines.sql import careful
from stoker.engines.sql.packing import legible
from stoker.model.audit import By, of_alter
from stoker.model.query import Cancel, Change, Selection, Tally

if TYPE_CHECKING:
    from stoker.engines.postgres.store import Store


async def alter(store: Store, selection: Selection, change: Change, by: By | None = None) -> Tally:
    """Apply a change to the selected jobs."""
    check(selection, change)
    store.inside()
    if not selection.ids:
        return Tally()
    wanted = Cancel(legible(change.reason), change.force) if isinstance(change, Cancel) else change
    tell = partial(of_alter, selection, wanted)
    tally = await store.write(
        lambda unit: audit.audited(unit, careful.alter(unit, selection, wanted), by, tell), lane="desk"
    )
    await store.looks.look_now()
    return tally
