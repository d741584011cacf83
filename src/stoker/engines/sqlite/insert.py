"""The first door: drafts become pending jobs.

Fresh drafts without keys go in as a batch: one statement for all bodies, one for all places in the line. A lone one
needs a single statement. Whatever is not that simple (a key, an id that is stored already, a user's transaction) goes
one by one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from stoker.engines.sql import careful
from stoker.engines.sql.steps import Many, Row, Steps
from stoker.engines.sqlite.columns import INSERT_BODY, PENDING
from stoker.engines.sqlite.texts import sql
from stoker.engines.sqlite.unit_of_work import ENQUEUED, MARK_EVERY, Known, Unit
from stoker.model.ahead import wakes
from stoker.model.job import PLAIN, Draft, Receipt, Stored, pack
from stoker.model.record import due_at
from stoker.model.time import Instant

LONE_MEANS = (sql("lone_view"), sql("lone_trigger"))
"""What `LONE` takes to work: run once per connection."""

LONE = sql("lone")
_READY = sql("insert_ready")
_UNDO = sql("insert_undo")
_INSERTED = Stored.INSERTED


def insert(unit: Unit, drafts: Sequence[Draft]) -> Steps[list[Receipt]]:
    """Store drafts; receipts in their order. `Duplicate` leaves the undoing to the transaction."""
    if all(draft.unique is None for draft in drafts) and (yield from _together(unit, drafts)):
        return [Receipt(draft.id, _INSERTED) for draft in drafts]
    return (yield from careful.insert(unit, drafts))


class Lone(NamedTuple):
    """A draft that one statement can store: the values of `LONE`, the receipt, and whom to wake."""

    values: Row
    receipts: list[Receipt]
    woken: set[str]


def lone(known: Known, drafts: Sequence[Draft], now: Instant) -> Lone | None:
    """None: there are more, or something must be asked first."""
    if len(drafts) != 1:
        return None
    [draft] = drafts
    qid = known.qids.get(draft.queue)
    if draft.unique is not None or qid is None or (seq := known.take(1)) is None:
        return None
    due = due_at(draft, now)
    options = None if draft.options is PLAIN else pack(draft.options)
    # fmt: off
    values = (
        seq, draft.id, qid, draft.priority, due, draft.kind, draft.payload, draft.attempts, now,
        draft.tenant, options, now - MARK_EVERY,
    )
    # fmt: on
    return Lone(values, [Receipt(draft.id, _INSERTED)], {draft.queue} if wakes(due, now) else set())


def _together(unit: Unit, drafts: Sequence[Draft]) -> Steps[bool]:
    """All at once, or not at all when one of the ids is stored already."""
    if not drafts:
        return True
    now = unit.now
    base = yield from unit.numbers(len(drafts))
    rows: list[Row] = []
    qids: dict[str, int] = {}
    kinds: dict[tuple[int, str], int] = {}
    woken: set[str] = set()
    for seq, draft in enumerate(drafts, base):
        queue = draft.queue
        qid = qids.get(queue)
        if qid is None:
            qid = qids[queue] = yield from unit.qid(queue)
        due = due_at(draft, now)
        if wakes(due, now):
            woken.add(queue)
        kind = draft.kind
        options = None if draft.options is PLAIN else pack(draft.options)
        # fmt: off
        rows.append((
            seq, draft.id, qid, draft.priority, due, kind, draft.payload, draft.attempts, now,
            None, None, draft.tenant, options,
        ))
        # fmt: on
        kinds[qid, kind] = kinds.get((qid, kind), 0) + 1
    last = base + len(rows) - 1
    stored = yield Many(INSERT_BODY, rows)
    if stored != len(rows):
        yield _UNDO, (base, last)
        return False
    yield _READY, (base, last)
    for (qid, kind), n in kinds.items():
        unit.count(qid, kind, PENDING, n)
        unit.count(qid, kind, ENQUEUED, n)
    unit.woken |= woken
    return True
