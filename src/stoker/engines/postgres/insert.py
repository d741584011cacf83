"""Inserting: drafts become pending jobs.

Fresh drafts without keys go in as one statement, a large batch of them by COPY. Whatever is not that simple (a key, an
id that is stored already, a user's transaction) goes in rounds: a statement stores everything that meets nobody, and
each draft that met a holder does what `unique.meet` says about it, until every draft has its receipt.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from stoker.engines.postgres import keys
from stoker.engines.postgres.columns import NEVER_SETTLED, PENDING
from stoker.engines.postgres.statements import sql
from stoker.engines.postgres.unit_of_work import Unit
from stoker.engines.postgres.wakeup.listener import CHANNEL
from stoker.engines.sql.packing import pack_unique
from stoker.engines.sql.steps import Row, Steps
from stoker.model.ahead import wakes
from stoker.model.errors import Duplicate, InvalidPayload
from stoker.model.ids import JobId
from stoker.model.job import PLAIN, Draft, Options, Receipt, Stored, pack
from stoker.model.time import Instant
from stoker.model.unique import Meeting, Mode, Unique, meet

if TYPE_CHECKING:
    from stoker.engines.postgres.connection import Connection
    from stoker.engines.postgres.store import Store

_INSERT = sql("insert")
_COUNT = sql("insert_count")
_NEW = sql("insert_new")
_PUT = sql("put")
_KNOWN = sql("known")
_REPLACE = sql("replace")
_INSERTED, _EXISTING, _REPLACED = Stored.INSERTED, Stored.EXISTING, Stored.REPLACED

SLOWEST = 2_000_000
"""Bytes of payload that even a slow server stores in a second."""

COPIED = 2_000
"""So many drafts are worth a transaction of five round trips instead of one statement.

A copied row is 104 bytes less of the server's log (495 instead of 599 with a payload of 110). Measured in turns with
the statement: 1,000 drafts take 5 to 16 % longer, 2,000 take as long or a fifth less, 5,000 take 22 to 30 % less.
"""

JOB = ("id", "created", "due", "budget", "priority", "queue", "kind", "payload", "tenant", "options")
READY = ("due", "token", "id", "attempts", "priority", "status", "settled", "past", "queue")


# --- together ---------------------------------------------------------------------------------------------------


async def together(store: Store, drafts: Sequence[Draft]) -> list[Receipt]:
    """Store drafts in one statement; raise `Conflict` if one of the ids is stored already."""
    if len(drafts) == 1:
        return [await _alone(store, drafts[0])]
    if len(drafts) >= COPIED:
        return await _by_copy(store, drafts)
    extra = _extra(drafts)
    [(now,)] = await store.once("write", _INSERT, (store.now(), *columns(drafts)), extra=extra)
    woken = {draft.queue for draft in drafts if wakes(due_at(draft, now), now)}
    if woken:
        store.notify(woken)
    return [Receipt(draft.id, _INSERTED) for draft in drafts]


async def _alone(store: Store, draft: Draft) -> Receipt:
    """Store one draft. Below the rate of messages the server notifies workers before the fsync."""
    now_due = draft.at is None and not draft.delay
    message = store.take_message({draft.queue}) if now_due else None
    options = None if draft.options is PLAIN else wishes(draft.options)
    described = (draft.priority, draft.attempts, draft.id, text(draft), draft.delay or None, draft.at, draft.tenant)
    values = (CHANNEL, message, store.now(), draft.queue, draft.kind, *described, options)
    [(now,)] = await store.once("write", _PUT, values, extra=_extra([draft]))
    if wakes(due_at(draft, now), now):
        store.notify({draft.queue}, already_sent=message is not None if now_due else None)
    return Receipt(draft.id, _INSERTED)


async def _by_copy(store: Store, drafts: Sequence[Draft]) -> list[Receipt]:
    """Store drafts by COPY, which writes less WAL for each row."""
    # What cannot be stored is refused before anything is sent.
    bodies = [text(draft) for draft in drafts]
    counts = Counter([(draft.queue, draft.kind) for draft in drafts])

    async def work(connection: Connection, unit: Unit) -> None:
        schema, patience = store.options.schema, store.options.patience + _extra(drafts)
        now = unit.now
        dues = [due_at(draft, now) for draft in drafts]
        await connection.copy(schema, "job", JOB, job_rows(drafts, bodies, dues, now), patience)
        await connection.copy(schema, "ready", READY, ready_rows(drafts, dues), patience)
        unit.woken |= {draft.queue for draft, due in zip(drafts, dues, strict=True) if wakes(due, now)}

    queues, kinds = [queue for queue, _ in counts], [kind for _, kind in counts]
    await store.transact(work, first=(_COUNT, (queues, kinds, list(counts.values()))))
    return [Receipt(draft.id, _INSERTED) for draft in drafts]


async def in_rounds(store: Store, drafts: Sequence[Draft]) -> list[Receipt]:
    """Store drafts in a transaction that handles key holders and repeated ids."""
    return await store.write(lambda unit: admit(unit, drafts), lane="keyed")


# --- in rounds --------------------------------------------------------------------------------------------------


def admit(unit: Unit, drafts: Sequence[Draft], *, refuse: bool = True) -> Steps[list[Receipt]]:
    """Store drafts; receipts in their order. `Duplicate` leaves the undoing to the transaction.

    Without `refuse` nobody is left to hear of a refusal: what would raise it is not stored.
    """
    receipts: dict[int, Receipt] = {}
    for round_ in rounds(drafts):
        while round_:
            round_ = yield from _admit_round(unit, round_, receipts, refuse=refuse)
    return [receipts[place] for place in range(len(drafts))]


def rounds(drafts: Sequence[Draft]) -> list[list[tuple[int, Draft]]]:
    """Split drafts, with their indexes, into rounds in which every id and key occurs once."""
    found: list[list[tuple[int, Draft]]] = []
    seen: list[set[JobId | str]] = []
    for place, draft in enumerate(drafts):
        marks: set[JobId | str] = {draft.id}
        if draft.unique is not None:
            marks.add(draft.unique.slot(draft.kind))
        # The round after the last that has one of its marks: what comes later in the call meets what came before.
        turn = next((turn + 1 for turn in range(len(seen) - 1, -1, -1) if marks & seen[turn]), 0)
        if turn == len(found):
            found.append([])
            seen.append(set())
        found[turn].append((place, draft))
        seen[turn] |= marks
    return found


def _admit_round(
    unit: Unit, round_: list[tuple[int, Draft]], receipts: dict[int, Receipt], *, refuse: bool
) -> Steps[list[tuple[int, Draft]]]:
    """Fill in receipts; return the drafts to try again, because a holder changed meanwhile."""
    left = yield from _store_new(unit, round_, receipts)
    if not left:
        return []
    known = {job for (job,) in (yield _KNOWN, ([draft.id for _, draft in left],))}
    met: list[tuple[int, Draft, Unique]] = []
    for place, draft in left:
        if draft.id in known:
            receipts[place] = Receipt(draft.id, _EXISTING)
        elif draft.unique is not None:
            met.append((place, draft, draft.unique))
    if not met:
        return [(place, draft) for place, draft in left if place not in receipts]
    held = yield from keys.holders([unique.slot(draft.kind) for _, draft, unique in met])
    again: list[tuple[int, Draft]] = []
    for place, draft, unique in met:
        slot = unique.slot(draft.kind)
        if slot not in held:
            again.append((place, draft))
            continue
        holder, grip = held[slot]
        mode: Mode = "existing" if unique.mode == "raise" and not refuse else unique.mode
        meeting = meet(grip, mode)
        if meeting is Meeting.REFUSE:
            raise Duplicate(unique.key, holder)
        if meeting is Meeting.EXISTING:
            receipts[place] = Receipt(holder, _EXISTING)
        elif meeting is Meeting.REPLACE:
            if (yield from _replace(unit, holder, draft, slot, unique)):
                receipts[place] = Receipt(holder, _REPLACED)
            else:
                again.append((place, draft))
        elif (yield from keys.supersede(unit, [(holder, slot, draft.id, keys.firm(unique))])):
            yield from _store_new(unit, [(place, draft)], receipts, keyed=False)
            if place in receipts:
                receipts[place] = Receipt(draft.id, _INSERTED, holder)
        else:
            again.append((place, draft))
    return again


def _store_new(
    unit: Unit, round_: list[tuple[int, Draft]], receipts: dict[int, Receipt], *, keyed: bool = True
) -> Steps[list[tuple[int, Draft]]]:
    """Store the drafts that meet no holder; return the others. Without `keyed` they hold their keys already."""
    drafts = [draft for _, draft in round_]
    stored: set[JobId] = set()
    vain: list[tuple[str, JobId]] = []
    slots = {draft.id: draft.unique.slot(draft.kind) for draft in drafts if draft.unique is not None}
    for job, new in (yield _NEW, (unit.now, *columns(drafts), *key_columns(drafts, keyed=keyed))):
        if new:
            stored.add(job)
        else:
            vain.append((slots[job], job))
    yield from keys.let_go(vain)
    for place, draft in round_:
        if draft.id in stored:
            receipts[place] = Receipt(draft.id, _INSERTED)
            unit.due(draft.queue, due_at(draft, unit.now))
    return [(place, draft) for place, draft in round_ if draft.id not in stored]


def _replace(unit: Unit, holder: JobId, draft: Draft, slot: str, unique: Unique) -> Steps[bool]:
    """Overwrite a pending holder with the draft, except its id. False: it is no longer pending."""
    due = due_at(draft, unit.now)
    body = (draft.priority, draft.queue, draft.kind, text(draft), draft.attempts, draft.tenant, wishes(draft.options))
    rows = yield _REPLACE, (holder, due, *body, *pack_unique(unique), slot, keys.firm(unique))
    if rows:
        unit.due(draft.queue, due)
    return bool(rows)


# --- drafts as rows ---------------------------------------------------------------------------------------------


def job_rows(drafts: Sequence[Draft], bodies: list[str], dues: list[Instant], now: Instant) -> list[Row]:
    """Drafts as rows of `job`."""
    return [
        (
            draft.id,
            now,
            due,
            draft.attempts,
            draft.priority,
            draft.queue,
            draft.kind,
            body,
            draft.tenant,
            None if draft.options is PLAIN else wishes(draft.options),
        )
        for draft, body, due in zip(drafts, bodies, dues, strict=True)
    ]


def ready_rows(drafts: Sequence[Draft], dues: list[Instant]) -> list[Row]:
    """Drafts as rows of `ready`: no run yet, nothing settled, no past."""
    return [
        (due, 0, draft.id, 0, draft.priority, PENDING, NEVER_SETTLED, False, draft.queue)
        for draft, due in zip(drafts, dues, strict=True)
    ]


# --- drafts as columns ------------------------------------------------------------------------------------------


def columns(drafts: Sequence[Draft]) -> Row:
    """Drafts as the statements want them: what all have in common once, then a list per column.

    A list in which every draft would say the same, or nothing, is empty: the driver looks at each element of a list.
    """
    first = drafts[0]
    return (
        first.queue,
        first.kind,
        first.priority,
        first.attempts,
        [draft.id for draft in drafts],
        _unless_common([draft.queue for draft in drafts]),
        _unless_common([draft.kind for draft in drafts]),
        [text(draft) for draft in drafts],
        _unless_common([draft.priority for draft in drafts]),
        _unless_common([draft.attempts for draft in drafts]),
        unless_plain([draft.delay or None for draft in drafts]),
        unless_plain([draft.at for draft in drafts]),
        unless_plain([draft.tenant for draft in drafts]),
        unless_plain([None if draft.options is PLAIN else wishes(draft.options) for draft in drafts]),
    )


def key_columns(drafts: Sequence[Draft], *, keyed: bool) -> Row:
    """Their unique keys: key, traits, slot, firm."""
    packed = [pack_unique(draft.unique) for draft in drafts]
    slots = [draft.unique.slot(draft.kind) if keyed and draft.unique is not None else None for draft in drafts]
    firms = [draft.unique is not None and keys.firm(draft.unique) for draft in drafts]
    return ([key for key, _ in packed], [traits for _, traits in packed], slots, firms)


def _unless_common(column: list[Any]) -> list[Any]:
    return [] if column.count(column[0]) == len(column) else column


def unless_plain(column: list[Any]) -> list[Any]:
    """A column, or an empty one when there is nothing in it."""
    return [] if column.count(None) == len(column) else column


def text(draft: Draft) -> str:
    """The payload as the store keeps it."""
    try:
        return draft.payload.decode()
    except UnicodeDecodeError:
        raise InvalidPayload("payload", draft.payload[:40], "must be JSON in UTF-8") from None


def wishes(options: Options) -> str | None:
    """Options as the store keeps them."""
    packed = pack(options)
    return None if packed is None else packed.decode()


def _extra(drafts: Sequence[Draft]) -> float:
    """Seconds that so much payload may take beyond the usual."""
    return sum(len(draft.payload) for draft in drafts) / SLOWEST


def due_at(draft: Draft, now: Instant) -> Instant:
    """Return when a draft is due, by the store's clock."""
    return now + draft.delay if draft.at is None else draft.at
