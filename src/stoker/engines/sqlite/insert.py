"""The first door: drafts become pending jobs.

Fresh drafts without keys go in as a batch: one statement for all bodies, one for all places in the line. A lone one
needs a single statement. Whatever is not that simple (a key, an id that is stored already, a user's transaction) goes
one by one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from stoker.engines.sql.packing import pack_unique
from stoker.engines.sql.steps import Many, Row, Steps
from stoker.engines.sqlite import keys, moves
from stoker.engines.sqlite.records import Record
from stoker.engines.sqlite.texts import sql
from stoker.engines.sqlite.unit import ENQUEUED, MARK_EVERY, PENDING, Known, Unit
from stoker.model.ahead import wakes
from stoker.model.errors import Duplicate
from stoker.model.job import PLAIN, Draft, Receipt, Stored, pack
from stoker.model.time import Instant
from stoker.model.unique import Meeting, Mode

LONE_MEANS = (sql("lone_view"), sql("lone_trigger"))
"""What `LONE` takes to work: run once per connection."""

LONE = sql("lone")
_BODY = sql("insert_body")
_READY = sql("insert_ready")
_UNDO = sql("insert_undo")
_ONE = sql("insert_one")
_KNOWN = sql("known")
_REWRITE = sql("body_rewrite")
_INSERTED = Stored.INSERTED


def insert(unit: Unit, drafts: Sequence[Draft]) -> Steps[list[Receipt]]:
    """Store drafts; receipts in their order. `Duplicate` leaves the undoing to the transaction."""
    if all(draft.unique is None for draft in drafts) and (yield from _together(unit, drafts)):
        return [Receipt(draft.id, _INSERTED) for draft in drafts]
    receipts = []
    for draft in drafts:
        receipt = yield from admit(unit, draft)
        receipts.append(receipt)
    return receipts


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
        due = now + draft.delay if draft.at is None else draft.at
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
    stored = yield Many(_BODY, rows)
    if stored != len(rows):
        yield _UNDO, (base, last)
        return False
    yield _READY, (base, last)
    for (qid, kind), n in kinds.items():
        unit.count(qid, kind, PENDING, n)
        unit.count(qid, kind, ENQUEUED, n)
    unit.woken |= woken
    return True


def admit(unit: Unit, draft: Draft, mode: Mode | None = None) -> Steps[Receipt]:
    """One draft, with all its circumstances. `mode` overrules what its key says."""
    if (yield _KNOWN, (draft.id,)):
        return Receipt(draft.id, Stored.EXISTING)
    if draft.unique is not None:
        meeting, holder = yield from keys.approach(unit, draft.unique, draft.kind, mode or draft.unique.mode)
        if meeting is Meeting.REFUSE:
            assert holder is not None
            raise Duplicate(draft.unique.key, holder.id)
        if meeting is Meeting.EXISTING:
            assert holder is not None
            return Receipt(holder.id, Stored.EXISTING)
        if meeting is Meeting.REPLACE:
            assert holder is not None
            yield from _replace(unit, holder, draft)
            return Receipt(holder.id, Stored.REPLACED)
    yield from store(unit, draft, due_at(draft, unit.now))
    return Receipt(draft.id, Stored.INSERTED)


def store(unit: Unit, draft: Draft, due: Instant) -> Steps[None]:
    """A new job that nothing stands in the way of."""
    seq = yield from unit.numbers(1)
    qid = (yield from unit.use_queue(draft.queue)).qid
    key, traits = pack_unique(draft.unique)
    described = (draft.kind, draft.payload, draft.attempts, unit.now, key, traits, draft.tenant, pack(draft.options))
    yield _ONE, (seq, draft.id, qid, draft.priority, due, *described)
    yield _READY, (seq, seq)
    if draft.unique is not None:
        yield moves.HOLD, (draft.unique.slot(draft.kind), seq, 0)
    unit.count(qid, draft.kind, PENDING)
    unit.count(qid, draft.kind, ENQUEUED)
    unit.due(draft.queue, due)


def _replace(unit: Unit, record: Record, draft: Draft) -> Steps[None]:
    """Overwrite a pending holder: it keeps its id, its age and its history, everything else is the newcomer's."""
    yield from moves.leave(record)
    unit.count(record.qid, record.kind, PENDING, -1)
    shelf = yield from unit.use_queue(draft.queue)
    record.qid, record.priority, record.due = shelf.qid, draft.priority, due_at(draft, unit.now)
    record.kind, record.payload, record.budget, record.tenant = draft.kind, draft.payload, draft.attempts, draft.tenant
    record.ukey, record.utraits = pack_unique(draft.unique)
    record.options = pack(draft.options)
    described = (record.kind, record.payload, record.budget, record.ukey, record.utraits, record.tenant, record.options)
    yield _REWRITE, (record.seq, record.qid, record.priority, record.due, *described)
    if record.past:
        yield from moves.write_past(record)
    yield from moves.stand_in_line(record)
    yield from moves.grip(record)
    unit.count(record.qid, record.kind, PENDING)
    unit.due(draft.queue, record.due)


def due_at(draft: Draft, now: Instant) -> Instant:
    """When a draft wants to run, by the store's clock."""
    return now + draft.delay if draft.at is None else draft.at
