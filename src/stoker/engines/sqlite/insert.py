"""Insert drafts as pending jobs.

Drafts without keys are inserted as a batch: one statement for all rows of `body`, one for all rows of `ready`. A draft
with a key, or with an id that is stored already, goes one by one.
"""

from __future__ import annotations

from collections.abc import Sequence

from stoker.engines.base import Transaction
from stoker.engines.call_times import timed
from stoker.engines.sql import one_by_one
from stoker.engines.sql.exchanges import Exchange, Many, Row
from stoker.engines.sqlite import groups, subqueues
from stoker.engines.sqlite.columns import INSERT_BODY, INSERT_READY, PENDING, draft_row
from stoker.engines.sqlite.facet import Facet
from stoker.engines.sqlite.statements import sql
from stoker.engines.sqlite.unit_of_work import ENQUEUED, QueuePlace, Unit
from stoker.model.groups import Group
from stoker.model.job import PLAIN, Draft, Receipt, Stored
from stoker.model.limit import Slot
from stoker.model.next_due import wakes
from stoker.model.record import due_at
from stoker.model.subqueues import position
from stoker.model.time import Instant

_UNDO = sql("insert_undo")
_INSERTED = Stored.INSERTED


class Inserter(Facet):
    """Inserts drafts, in a transaction of their own or in a user's."""

    @timed(write=True)
    async def insert(
        self, drafts: Sequence[Draft], *, tx: Transaction | None = None, group: Group | None = None
    ) -> list[Receipt]:
        if tx is not None:
            undo = _may_raise(drafts)
            return await self._store.join(tx, lambda unit: insert(unit, drafts, group), undo=undo)
        strict = bool(drafts) or group is not None
        return await self._store.request(strict=strict, drafts=drafts, group=group)  # type: ignore[no-any-return]


def insert(unit: Unit, drafts: Sequence[Draft], group: Group | None = None) -> Exchange[list[Receipt]]:
    """Insert drafts, and a new group; returns receipts in their order. After an error the caller rolls back."""
    grouped = group is not None or any(draft.options.group is not None for draft in drafts)
    if grouped and not (yield from groups.admit(unit, drafts, group)):
        return [Receipt(draft.job_id, Stored.EXISTING) for draft in drafts]
    if all(draft.unique is None for draft in drafts) and (yield from _together(unit, drafts)):
        if grouped:
            for draft in drafts:
                unit.joined(draft)
            yield from unit.write()
        return [Receipt(draft.job_id, _INSERTED) for draft in drafts]
    return (yield from one_by_one.insert(unit, drafts))  # the group is admitted


def _together(unit: Unit, drafts: Sequence[Draft]) -> Exchange[bool]:
    """Insert a batch; False, with nothing inserted, if one of the ids is stored already."""
    if not drafts:
        return True
    now = unit.now
    base = yield from unit.numbers(len(drafts))
    rows: list[Row] = []
    places: dict[str, QueuePlace] = {}
    lines: dict[tuple[str, str, Slot | None, bool], int] = {}
    kinds: dict[tuple[int, str], int] = {}
    woken: set[str] = set()
    for seq, draft in enumerate(drafts, base):
        queue = draft.queue
        place = places.get(queue)
        if place is None:
            place = places[queue] = yield from unit.place(queue)
        qid = place.qid
        due = due_at(draft, now)
        if wakes(due, now):
            woken.add(queue)
        kind = draft.kind
        line: int | None = None
        if place.fair or draft.options is not PLAIN:
            line = yield from _line(unit, draft, due, lines, fair=place.fair)
        rows.append(draft_row(draft, seq, qid, due, now, line))
        kinds[qid, kind] = kinds.get((qid, kind), 0) + 1
    last = base + len(rows) - 1
    stored = yield Many(INSERT_BODY, rows)
    if stored != len(rows):
        yield _UNDO, (base, last)
        return False
    yield INSERT_READY, (base, last)
    for (qid, kind), n in kinds.items():
        unit.count(qid, kind, PENDING, n)
        unit.count(qid, kind, ENQUEUED, n)
    unit.woken |= woken
    return True


def _line(
    unit: Unit, draft: Draft, due: Instant, lines: dict[tuple[str, str, Slot | None, bool], int], *, fair: bool
) -> Exchange[int | None]:
    """Return the line of a subqueue that a draft joins; None: it waits in the main line.

    `lines` are those that drafts before it joined; a draft like the last one of its line touches nothing new.
    """
    slot = draft.options.limit
    name = position(slot, draft.tenant, fair=fair)
    if name is None:
        return None
    seen = (draft.queue, name, slot, due <= unit.now)
    line = lines.get(seen)
    if line is None or due > unit.now:
        queue = yield from unit.use_queue(draft.queue)
        line = lines[seen] = yield from subqueues.join(unit, queue, name, slot, due, anew=True)
    return line


def _may_raise(drafts: Sequence[Draft]) -> bool:
    """Return whether an insert of these drafts can raise half-way."""
    return any(
        (draft.unique is not None and draft.unique.mode == "raise") or draft.options.group is not None
        for draft in drafts
    )
