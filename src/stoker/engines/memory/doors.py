"""The three doors over the store: drafts go in, claims come out, settlements close them.

The rules are the model's (`unique.meet`, `lifecycle.accepts`, `throttle.cooled`); this module asks them and makes their
answer true, all inside one call under the store's lock.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from stoker.engines.memory.record import Record, as_claim, drafted, due_at, grip
from stoker.engines.memory.store import Store
from stoker.model.errors import Duplicate, EngineFull
from stoker.model.job import (
    LONGEST_LOG,
    Claim,
    Demand,
    Draft,
    Mishap,
    Note,
    Receipt,
    Settlement,
    Status,
    Stored,
    Verdict,
    appended,
    noted,
    shown_error,
)
from stoker.model.lifecycle import accepts, check_settlements, deletes, due_again
from stoker.model.throttle import Cool, cooled
from stoker.model.time import Instant
from stoker.model.unique import SUPERSEDED, Meeting, Mode, Unique, meet

# --- in ---------------------------------------------------------------------------------------------------------


def insert(store: Store, drafts: Sequence[Draft], now: Instant) -> list[Receipt]:
    """Store drafts, all or none."""
    room = store.capacity is None or store.active + len(drafts) <= store.capacity
    if room and not any(draft.unique is not None and draft.unique.mode == "raise" for draft in drafts):
        return [add(store, draft, now) for draft in drafts]
    before = store.active
    with store.atomic():
        receipts = [add(store, draft, now) for draft in drafts]
        if store.capacity is not None and store.active > max(before, store.capacity):
            raise EngineFull(
                f"memory:// has room for {store.capacity} active jobs (capacity={store.capacity}) and {before} are "
                f"stored. Nothing of this call was stored. Try again when workers have caught up, raise capacity=, "
                f'or let callers wait with when_full="wait".'
            )
    return receipts


def add(store: Store, draft: Draft, now: Instant, mode: Mode | None = None) -> Receipt:
    """Store one draft, or say which job stands in its way. `mode` overrules the draft's own."""
    if draft.id in store.jobs:
        return Receipt(draft.id, Stored.EXISTING)
    if draft.unique is not None:
        met = _meet(store, draft, draft.unique, now, mode or draft.unique.mode)
        if met is not None:
            return met
    store.create(drafted(draft, store.cell(draft.queue, draft.kind), now), now)
    return Receipt(draft.id, Stored.INSERTED)


def _meet(store: Store, draft: Draft, unique: Unique, now: Instant, mode: Mode) -> Receipt | None:
    """Settle who has the key; None means that the draft may take it."""
    holder = store.holders.get(unique.slot(draft.kind))
    meeting = meet(grip(holder), mode)
    if holder is None or meeting is Meeting.TAKE:
        return None
    if meeting is Meeting.SUPERSEDE:
        supersede(store, holder, now)
        return None
    if meeting is Meeting.REFUSE:
        raise Duplicate(unique.key, holder.id)
    if meeting is Meeting.REPLACE:
        _replace(store, holder, draft, now)
        return Receipt(holder.id, Stored.REPLACED)
    return Receipt(holder.id, Stored.EXISTING)


def key_is_free(store: Store, record: Record, now: Instant) -> bool:
    """May this record become active? A weak holder of its key is ended on the way."""
    if record.unique is None:
        return True
    holder = store.holders.get(record.unique.slot(record.kind))
    if holder is record:
        return True
    meeting = meet(grip(holder), "existing")
    if holder is not None and meeting is Meeting.SUPERSEDE:
        supersede(store, holder, now)
    return meeting is not Meeting.EXISTING


def supersede(store: Store, holder: Record, now: Instant) -> None:
    """End a weak holder: a newer job takes its key."""
    store.lift(holder, now)
    store.finish(holder, Status.DEAD, now, SUPERSEDED)
    store.place(holder, now)


def _replace(store: Store, holder: Record, draft: Draft, now: Instant) -> None:
    """Overwrite a pending holder with everything the draft says, but its id."""
    store.lift(holder, now)
    holder.kind, holder.queue, holder.payload = draft.kind, draft.queue, draft.payload
    holder.cell = store.cell(draft.queue, draft.kind)
    holder.priority, holder.budget, holder.scheduled_at = draft.priority, draft.attempts, due_at(draft, now)
    holder.unique, holder.tenant, holder.options = draft.unique, draft.tenant, draft.options
    store.place(holder, now)
    if holder.scheduled_at <= now:
        store.wake(holder.queue)


# --- out --------------------------------------------------------------------------------------------------------


def claim(store: Store, demand: Demand, now: Instant) -> list[Claim]:
    """Hand due jobs to a worker with a live lease."""
    if store.leases.get(demand.worker, -1) < now:
        return []
    claims: list[Claim] = []
    mine = store.held.setdefault(demand.worker, {})
    left = sum(n for _, n in demand.queues if n > 0) if demand.total is None else demand.total
    for name, wanted in demand.queues:
        line, queue = store.lines.get(name), store.queue(name)
        if line is None or queue.paused or queue.cooldown.shut(now):
            continue
        for record in line.take(min(wanted, left - len(claims)), now):
            before = record.status
            record.cell[before] -= 1
            record.cell[Status.RUNNING] += 1
            record.status = Status.RUNNING
            record.attempts += 1
            record.cancel_requested, record.cancel_requested_at = False, None
            record.former = record.former_at = record.settled = None
            hand_over(record, demand.worker, now)
            mine[record.id] = record
            claims.append(as_claim(record, queue, before))
    return claims


def hand_over(record: Record, worker: str, now: Instant) -> None:
    """Write the fence of a new claim."""
    record.worker = worker
    record.token = max(now, record.token + 1)
    record.started_at = now


# --- closed -----------------------------------------------------------------------------------------------------


def settle(store: Store, settlements: Sequence[Settlement], now: Instant) -> list[Verdict]:
    """End claims, each for itself."""
    check_settlements(settlements)
    return [_settle(store, settlement, now) for settlement in settlements]


def _settle(store: Store, settlement: Settlement, now: Instant) -> Verdict:
    record = store.jobs.get(settlement.id)
    if record is None:
        return Verdict.LOST
    if record.token != settlement.token or record.worker != settlement.worker or record.status is not Status.RUNNING:
        return Verdict.REPEATED if record.settled == settlement else Verdict.LOST
    if not accepts(settlement.status, cancel_requested=record.cancel_requested):
        return Verdict.CANCELING
    store.lift(record, now)
    _end_run(record, settlement, now)
    if settlement.status is Status.PENDING or settlement.status is Status.RETRYING:
        _wait_again(store, record, settlement, now)
    else:
        store.finish(record, settlement.status, now, keep=settlement.keep)
    _count(store, record.kind, settlement)
    if settlement.cool is not None:
        _cool(store, record.queue, settlement.cool, now)
    if deletes(settlement):
        store.forget(record)
    else:
        store.place(record, now)
    for draft in settlement.followups:
        # Nobody is left to hear of a refusal, and a key that is taken must not keep the claim from ending.
        add(store, draft, now, "existing" if draft.unique is not None and draft.unique.mode == "raise" else None)
    return Verdict.APPLIED


def _end_run(record: Record, settlement: Settlement, now: Instant) -> None:
    """What every settlement writes on the record, whatever becomes of the job."""
    if settlement.error is not None:
        record.last_error = settlement.error
        record.history = appended(record.history, Mishap(now, record.attempts, settlement.error))
    if settlement.refund:
        record.attempts = max(0, record.attempts - 1)
    if settlement.crash:
        record.crashes += 1
    if settlement.throttled:
        record.throttles += 1
    if settlement.status is Status.DONE:
        record.throttles = 0
        record.last_error = shown_error(settlement.status, record.last_error)
        record.result = settlement.result
    if settlement.metadata:
        record.metadata = noted(record.metadata, settlement.metadata)
    record.settled = settlement


def _wait_again(store: Store, record: Record, settlement: Settlement, now: Instant) -> None:
    record.status = settlement.status
    record.worker = None
    record.scheduled_at = due_again(settlement, now)
    if record.scheduled_at <= now:
        store.wake(record.queue)


def _count(store: Store, kind: str, settlement: Settlement) -> None:
    status = settlement.status
    if status is Status.PENDING:
        return
    sums = store.sums(kind)
    if status is Status.DONE:
        sums.completed += 1
        sums.last_error = None
    elif status is Status.CANCELED:
        sums.canceled += 1
    else:
        if status is Status.DEAD:
            sums.failed += 1
        else:
            sums.retried += 1
        if settlement.error is not None:
            sums.last_error = settlement.error


def _cool(store: Store, name: str, wish: Cool, now: Instant) -> None:
    queue = store.queue(name)
    cooldown = cooled(now, queue.cooldown, wish)
    if cooldown != queue.cooldown:
        store.set_queue(msgspec.structs.replace(queue, cooldown=cooldown))


def note(store: Store, notes: Sequence[Note]) -> list[Verdict]:
    """Write on running jobs what their handlers want to be known."""
    return [_note(store.jobs.get(one.id), one) for one in notes]


def _note(record: Record | None, one: Note) -> Verdict:
    if record is None or record.status is not Status.RUNNING:
        return Verdict.LOST
    if record.token != one.token or record.worker != one.worker:
        return Verdict.LOST
    if one.progress is not None:
        record.progress = one.progress
    record.metadata = noted(record.metadata, one.metadata)
    record.log = (*record.log, *one.lines)[-LONGEST_LOG:]
    return Verdict.APPLIED
