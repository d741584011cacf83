"""Settling: claims end, by bulk statements where possible.

Plain successes, which are nearly all, go as one small statement, everything else as one large one; both clear bits in
leases and answer which. What a settlement brings along (a cool-down, follow-ups) is written in the same transaction.
A settlement whose bit was not open is asked about once more: whether it applied before.
A settlement that meets a lock of another transaction is left out and answered as held; the others are written.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from stoker.engines.postgres import insert
from stoker.engines.postgres.claim import Claimer, Ref
from stoker.engines.postgres.columns import CODES
from stoker.engines.postgres.errors import Locked
from stoker.engines.postgres.lease_bits import BitMasks, Item, located
from stoker.engines.postgres.statements import sql
from stoker.engines.postgres.unit_of_work import Unit
from stoker.engines.sql.packing import encode, legible
from stoker.engines.sql.settings import pack_queue, read_queue
from stoker.engines.sql.steps import Row, Steps
from stoker.model.control import Queue
from stoker.model.ids import JobId
from stoker.model.job import LONGEST_HISTORY, Claim, Demand, Settled, Settlement, Status, Verdict
from stoker.model.lifecycle import KEEP_DEAD, KEEP_DONE, deletes
from stoker.model.throttle import Cool, cooled
from stoker.model.time import Instant

if TYPE_CHECKING:
    from stoker.engines.postgres.store import Store

_SETTLE = sql("settle")
_DONE = sql("settle_done")
_SETTLED = sql("settled")
_TRIM = sql("trim")
_QUEUES = sql("queues_named")
_LOCK = sql("queue_lock")

LOCK_WAIT = 0.2
"""Seconds a settlement waits for a key that another open transaction has taken."""

LOCK_WAIT_AGAIN = 0.05
"""The same for the rest of its call, after one settlement has waited in vain."""

_APPLIED, _LOST = Verdict.APPLIED, Verdict.LOST
_SUCCESS = Status.DONE
_WAITING = (Status.PENDING, Status.RETRYING)


async def exchange(store: Store, claimer: Claimer, settlements: Sequence[Settlement], demand: Demand | None) -> Settled:
    """Settle and claim. Plain successes make no job claimable, so both run concurrently."""
    if not settlements:
        return Settled([], [] if demand is None else await claimer.claim(demand))
    if demand is not None and all(is_plain(settlement) for settlement in settlements):
        claiming = asyncio.ensure_future(claimer.claim(demand))
        try:
            verdicts = await close(store, settlements)
        except BaseException:
            # The claims it made reach no worker: they are reaped, like every claim whose reply is lost.
            await asyncio.wait([claiming])
            if not claiming.cancelled():
                claiming.exception()
            raise
        store.notifier.ends.settled(settlements, verdicts)
        return Settled(verdicts, await claiming)
    verdicts = await close(store, settlements)
    claimer.settled(settlements)
    store.notifier.ends.settled(settlements, verdicts)
    claims: list[Claim] = [] if demand is None else await claimer.claim(demand)
    return Settled(verdicts, claims)


async def close(store: Store, settlements: Sequence[Settlement]) -> list[Verdict]:
    """End claims; verdicts in their order. One statement is a transaction by itself."""
    if any(settlement.cool is not None or settlement.followups for settlement in settlements):
        if any(settlement.slots for settlement in settlements):
            return await _around_locks(store, settlements)
        return await store.write(lambda unit: settle(unit, unit.now, settlements), lane="settle")
    now = store.now()
    unit = Unit(now or 0)
    verdicts = await store.each("settle", lambda: settle(unit, now, settlements))
    if unit.woken:
        store.notify(unit.woken)
    return verdicts


async def _around_locks(store: Store, settlements: Sequence[Settlement]) -> list[Verdict]:
    """End claims whose follow-ups have keys, which a user's open transaction may hold.

    A settlement that waits in vain is held, together with all that want one of its keys; the others are sent again.
    """
    verdicts = [Verdict.HELD] * len(settlements)
    places, wait = list(range(len(settlements))), LOCK_WAIT
    while places:
        batch = [settlements[place] for place in places]
        try:
            found = await store.write(
                lambda unit, batch=batch: settle(unit, unit.now, batch),  # type: ignore[misc]
                lane="settle",
                lock_wait=wait,
            )
        except Locked as error:
            if error.place is None:
                raise
            slots = batch[error.place].slots
            del places[error.place]
            places = [place for place in places if slots.isdisjoint(settlements[place].slots)]
            wait = LOCK_WAIT_AGAIN
            continue
        for place, verdict in zip(places, found, strict=True):
            verdicts[place] = verdict
        break
    return verdicts


def settle(unit: Unit, now: Instant | None, settlements: Sequence[Settlement]) -> Steps[list[Verdict]]:
    """End claims; verdicts in their order."""
    verdicts = [_LOST] * len(settlements)
    for round_ in rounds(settlements):
        try:
            items = yield from located(round_)
            if items:
                yield from _end(now, items, verdicts)
            yield from _afterwards(unit, items, verdicts)
        except Locked as error:
            if len(round_) == 1:
                error.place = round_[0][0]
            raise
    yield from _recognise(settlements, verdicts)
    return verdicts


def rounds(settlements: Sequence[Settlement]) -> list[list[tuple[int, Settlement]]]:
    """The settlements with their places, cut so that in each round a job stands once.

    A follow-up with a key may meet a job that a later settlement ends: then each settlement is a round of its own.
    """
    if any(draft.unique is not None for settlement in settlements for draft in settlement.followups):
        return [[one] for one in enumerate(settlements)]
    left = list(enumerate(settlements))
    if len({settlement.id for settlement in settlements}) == len(settlements):
        return [left]
    found = []
    while left:
        seen: set[JobId] = set()
        now: list[tuple[int, Settlement]] = []
        later: list[tuple[int, Settlement]] = []
        for place, settlement in left:
            (later if settlement.id in seen else now).append((place, settlement))
            seen.add(settlement.id)
        found.append(now)
        left = later
    return found


def is_plain(settlement: Settlement) -> bool:
    """A success with nothing to say but its result, of a job that holds no key and was not throttled before."""
    ref = settlement.ref
    return (
        settlement.status is _SUCCESS
        and type(ref) is Ref
        and ref.slot is None
        and not ref.throttles
        and settlement.error is None
        and settlement.keep != 0
        and settlement.cool is None
        and not settlement.metadata
        and not settlement.followups
        and not settlement.crash
        and not settlement.throttled
    )


# --- clearing the bits ------------------------------------------------------------------------------------------


def _end(now: Instant | None, items: list[Item], verdicts: list[Verdict]) -> Steps[None]:
    """Clear the bits of a round and write down what it says."""
    masks = BitMasks(items)
    if all(is_plain(settlement) for _, settlement, _ in items):
        rows = yield _DONE, (now, *masks.fences(), masks.hard(), *_plain_columns(items, masks.numbers))
    else:
        values = (now, *masks.fences(), masks.soft(), masks.hard(), masks.numbers, *_columns(items))
        rows = yield _SETTLE, (*values, KEEP_DONE, KEEP_DEAD)
    answers: dict[int, tuple[str, str]] = {number: (open_, done) for number, open_, done in rows}
    for (place, _, ref), number in zip(items, masks.numbers, strict=True):
        answer = answers.get(number)
        if answer is None or answer[0][ref.pos] == "0":
            continue
        verdicts[place] = _APPLIED if answer[1][ref.pos] == "1" else Verdict.CANCELING


def _plain_columns(items: list[Item], numbers: list[int]) -> Row:
    kinds = [ref.kind for _, _, ref in items]
    attempts = [ref.attempt for _, _, ref in items]
    results = [settlement.result for _, settlement, _ in items]
    return (
        [number << 16 | ref.pos for number, (_, _, ref) in zip(numbers, items, strict=True)],
        [ref.id for _, _, ref in items],
        [] if kinds.count(kinds[0]) == len(kinds) else kinds,
        [] if attempts.count(1) == len(attempts) else attempts,
        insert.unless_plain([settlement.keep for _, settlement, _ in items]),
        insert.unless_plain([None if result is None else result.decode() for result in results]),
        KEEP_DONE,
        kinds[0],
    )


def _columns(items: list[Item]) -> Row:
    rows = [_row(settlement, ref) for _, settlement, ref in items]
    return tuple(list(column) for column in zip(*rows, strict=True))


def _row(settlement: Settlement, ref: Ref) -> Row:
    """One settlement as the large statement wants it: what stands there afterwards, not what changes."""
    status = settlement.status
    waits = status in _WAITING
    crashes = ref.crashes + settlement.crash
    throttles = 0 if status is _SUCCESS else ref.throttles + settlement.throttled
    return (
        ref.pos,
        ref.id,
        CODES[status],
        ref.kind,
        ref.attempt,
        max(0, ref.attempt - settlement.refund),
        settlement.after if waits else None,
        ref.priority,
        settlement.keep,
        settlement.result.decode() if settlement.result is not None and status is _SUCCESS else None,
        None if settlement.error is None else legible(settlement.error),
        ref.slot,
        deletes(settlement),
        waits or bool(settlement.metadata) or (crashes, throttles) != (ref.crashes, ref.throttles),
        crashes,
        throttles,
        encode(settlement.metadata).decode() if settlement.metadata else None,
        settlement.due if waits else None,
    )


def _recognise(settlements: Sequence[Settlement], verdicts: list[Verdict]) -> Steps[None]:
    """A job whose last run was ended like this under this token was ended by this very settlement."""
    lost = [place for place, verdict in enumerate(verdicts) if verdict is _LOST and settlements[place].token > 0]
    if not lost:
        return
    rows = yield _SETTLED, ([settlements[place].id for place in lost],)
    ended = {(job, token, status) for job, token, status in rows}
    for place in lost:
        one = settlements[place]
        if (one.id, one.token, CODES[one.status]) in ended:
            verdicts[place] = Verdict.REPEATED


# --- what comes along -------------------------------------------------------------------------------------------


def _afterwards(unit: Unit, items: list[Item], verdicts: list[Verdict]) -> Steps[None]:
    long: list[JobId] = []
    for place, settlement, ref in items:
        if verdicts[place] is not _APPLIED:
            continue
        if settlement.error is not None and ref.attempt > LONGEST_HISTORY:
            long.append(ref.id)
        if not settlement.after and settlement.status in _WAITING:
            unit.woken.add(ref.lease.queue)
        if settlement.cool is not None:
            yield from _cool(unit, ref.lease.queue, settlement.cool)
        if settlement.followups:
            yield from insert.admit(unit, settlement.followups, refuse=False)
    if long:
        yield _TRIM, (long, LONGEST_HISTORY)


def _cool(unit: Unit, name: str, wish: Cool) -> Steps[None]:
    """Apply a cool-down. The queue's row is locked, and read again, only if it would change."""
    queue = Queue(name=name)
    for row in (yield _QUEUES, ([name],)):
        queue = read_queue(row)
    if cooled(unit.now, queue.cooldown, wish) == queue.cooldown:
        return
    rows: Any = yield _LOCK, pack_queue(Queue(name=name))
    queue = read_queue(rows[0])
    cooldown = cooled(unit.now, queue.cooldown, wish)
    if cooldown != queue.cooldown:
        yield from unit.write_queue(msgspec.structs.replace(queue, cooldown=cooldown))
