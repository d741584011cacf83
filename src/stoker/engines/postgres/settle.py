"""Settling: claims end.

Plain successes, which are nearly all, are settled as a batch: one statement clears bits in leases and inserts rows of
`done`. Every other settlement is decided by itself, in one transaction with what it brings along (a cool-down,
follow-ups). A settlement that meets a lock of another transaction is left out and returned as held; the others are
written.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from functools import partial
from operator import itemgetter
from typing import TYPE_CHECKING, NamedTuple

from stoker.engines.call_times import timed
from stoker.engines.postgres import step_rows
from stoker.engines.postgres.claim import Claimer, Ref
from stoker.engines.postgres.columns import CODES, unless_empty
from stoker.engines.postgres.errors import Locked
from stoker.engines.postgres.facet import Facet
from stoker.engines.postgres.lease_bits import BitMasks, Fenced, Item, known_refs, looked_up
from stoker.engines.postgres.statements import sql
from stoker.engines.postgres.unit_of_work import Place, Unit
from stoker.engines.shared.one_by_one import settle_one, wanted_by_settlements
from stoker.engines.shared.unit_of_work import Wanted
from stoker.engines.sql.exchanges import Exchange, Row
from stoker.engines.sql.one_by_one import decided
from stoker.model.ids import JobId
from stoker.model.job import Claim, Demand, Settled, Settlement, Verdict
from stoker.model.lifecycle import KEEP_DONE, check_settlements
from stoker.model.throttle import cooled
from stoker.model.time import Instant

if TYPE_CHECKING:
    from stoker.engines.base import Transaction
    from stoker.engines.postgres.store import Store
    from stoker.engines.postgres.user_transaction import Transactions

_DONE, _MEMBERS, _SLOTS = sql("settle_done"), sql("settle_members"), sql("settle_slots")
_SETTLED = sql("settled")
_LOCK_CLAIMS = sql("lock_claims")

LOCK_WAIT = 0.2
"""Seconds a settlement waits for a key that another open transaction has taken."""

LOCK_WAIT_AGAIN = 0.05
"""The same for the rest of its call, after one settlement has waited in vain."""

_APPLIED, _LOST = Verdict.APPLIED, Verdict.LOST


class Settler(Facet):
    """Ends claims."""

    def __init__(self, store: Store, claimer: Claimer, transactions: Transactions) -> None:
        super().__init__(store)
        self._claimer = claimer
        self._transactions = transactions

    @timed(write=True)
    async def settle(
        self,
        settlements: Sequence[Settlement],
        *,
        tx: Transaction | None = None,
        demand: Demand | None = None,
    ) -> Settled:
        check_settlements(settlements)
        if tx is not None:
            verdicts = await self._transactions.join(tx, lambda unit: settle(unit, settlements), moves_jobs=True)
            return Settled(verdicts, await self._claims(demand))
        if not settlements:
            return Settled([], await self._claims(demand))
        self._claimer.succeeded(settlements)
        if demand is not None and all(is_plain(one) and one.ref.subqueue is None for one in settlements):
            # Plain successes make no job claimable, so both run concurrently.
            claiming = asyncio.ensure_future(self._claimer.take(demand))
            try:
                verdicts = await self._close(settlements)
            except BaseException:
                # The claims it made reach no worker: they are reaped, like every claim whose reply is lost.
                await asyncio.wait([claiming])
                if not claiming.cancelled():
                    claiming.exception()
                raise
            self._store.notifier.ends.settled(settlements, verdicts)
            return Settled(verdicts, await claiming)
        verdicts = await self._close(settlements)
        self._claimer.settled(settlements)
        self._store.notifier.ends.settled(settlements, verdicts)
        return Settled(verdicts, await self._claims(demand))

    async def _claims(self, demand: Demand | None) -> list[Claim]:
        return [] if demand is None else await self._claimer.take(demand)

    def notify_settled(self, settlements: Sequence[Settlement]) -> None:
        self._store.inside()
        self._store.notifier.ends.settled(settlements, [Verdict.APPLIED] * len(settlements))

    async def _close(self, settlements: Sequence[Settlement]) -> list[Verdict]:
        """End claims; verdicts in their order. A batch of plain successes is a transaction by itself."""
        store, plain = self._store, _plain(settlements)
        if len(plain) == len(settlements):
            verdicts = await store.each("settle", lambda: _settle_plain(store.now(), plain, len(settlements)))
            if freed := _freed(plain, verdicts):
                store.notify(freed)
            if groups := {item.ref.group for item in plain if item.ref.group is not None}:
                store.group_closer.add(groups)
            return verdicts
        if any(settlement.slots or settlement.steps for settlement in settlements):
            return await self._around_locks(settlements)
        return await store.write(lambda unit: settle(unit, settlements), lane="settle")

    async def _around_locks(self, settlements: Sequence[Settlement]) -> list[Verdict]:
        """End claims whose follow-ups have keys, or whose jobs are signaled, in a user's open transaction perhaps.

        A settlement that waits in vain is held, together with all that want one of its keys; the others are sent again.
        """
        verdicts = [Verdict.HELD] * len(settlements)
        places, wait, skip = list(range(len(settlements))), LOCK_WAIT, False
        while places:
            batch = [settlements[place] for place in places]
            try:
                found = await self._store.write(
                    lambda unit, batch=batch, skip=skip: settle(unit, batch, skip=skip),  # type: ignore[misc]
                    lane="settle",
                    lock_wait=wait,
                )
            except Locked as error:
                if not skip and any(one.steps for one in batch):
                    skip = True
                    continue
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


def settle(unit: Unit, settlements: Sequence[Settlement], *, skip: bool = False) -> Exchange[list[Verdict]]:
    """End claims; verdicts in their order. `skip`: what has steps and waits for another transaction is held."""
    plain = _plain(settlements)
    verdicts = yield from _settle_plain(unit.now, plain, len(settlements))
    unit.touched_groups.update(item.ref.group for item in plain if item.ref.group is not None)
    unit.woken |= _freed(plain, verdicts)
    for round_ in _rounds(settlements, {item.place for item in plain}, skip=skip):
        try:
            yield from decided(unit, partial(_load, unit, round_), partial(_decide, unit, round_, verdicts))
        except Locked as error:
            if len(round_.others) == 1:
                error.place = round_.others[0][0]
            raise
    return verdicts


class Round(NamedTuple):
    """Settlements that are loaded and written together, by place: plain ones that were settled, and others.

    `skip`: those with steps whose job another transaction has locked are `held`.
    """

    batched: list[tuple[int, Settlement]]
    others: list[tuple[int, Settlement]]
    held: set[JobId]
    skip: bool


def _rounds(settlements: Sequence[Settlement], batched: set[int], *, skip: bool) -> list[Round]:
    """Return the settlements in rounds, unless all were settled as a batch.

    With keys a round has one settlement that is not plain: a follow-up may meet a job that another settlement ends, and
    a lock that is waited for in vain is then known to be that settlement's.
    """
    if len(batched) == len(settlements):
        return []
    rounds = [Round([], [], set(), skip)]
    alone = any(one.slots for place, one in enumerate(settlements) if place not in batched)
    for place, one in enumerate(settlements):
        if place in batched:
            rounds[-1].batched.append((place, one))
        else:
            if alone and rounds[-1].others:
                rounds.append(Round([], [], set(), skip))
            rounds[-1].others.append((place, one))
    return rounds


# --- plain successes --------------------------------------------------------------------------------------------


def is_plain(settlement: Settlement) -> bool:
    """Whether it is a plain success of a job that is kept, holds no key and was not throttled before."""
    ref = settlement.ref
    return settlement.plain and type(ref) is Ref and ref.slot is None and not ref.throttles and settlement.keep != 0


def is_simple(settlement: Settlement) -> bool:
    """Whether it is a plain success of a job in no group and no subqueue whose claim has a lease of its own."""
    ref = settlement.ref
    return (
        is_plain(settlement)
        and ref.id == settlement.id
        and ref.lease.size == 1
        and ref.group is None
        and ref.subqueue is None
    )


def _freed(items: Sequence[Item], verdicts: Sequence[Verdict]) -> set[str]:
    """Return the queues in which plain successes gave slots back."""
    return {
        item.ref.lease.queue for item in items if item.ref.subqueue is not None and verdicts[item.place] is _APPLIED
    }


def _plain(settlements: Sequence[Settlement]) -> list[Item]:
    """Return the plain successes whose job occurs once in the call."""
    ids = [settlement.id for settlement in settlements]
    twice: set[JobId] = set()
    if len(set(ids)) != len(ids):
        twice = {job for job, n in Counter(ids).items() if n > 1}
    return [
        Item(place, settlement, settlement.ref)
        for place, settlement in enumerate(settlements)
        if is_plain(settlement) and settlement.ref.id == settlement.id and settlement.id not in twice
    ]


def _settle_plain(now: Instant | None, items: list[Item], n: int) -> Exchange[list[Verdict]]:
    """Settle plain successes as `Record.settle` does; verdicts for a call of `n` settlements."""
    verdicts = [_LOST] * n
    if not items:
        return verdicts
    masks = BitMasks(items)
    values = (now, *masks.fences(), masks.bits(), *_columns(items, masks.numbers), masks.origins())
    groups = [item.ref.group for item in items]
    slots = [item.ref.subqueue for item in items]
    if slots.count(None) < len(slots):
        rows = yield _SLOTS, (*values, groups, slots)
    elif groups.count(None) == len(groups):
        rows = yield _DONE, values
    else:
        rows = yield _MEMBERS, (*values, groups)
    closed: dict[int, str] = dict(rows)
    lost: list[Item] = []
    for item, number in zip(items, masks.numbers, strict=True):
        if number in closed and closed[number][item.ref.pos] == "1":
            verdicts[item.place] = _APPLIED
        elif item.settlement.token > 0:
            lost.append(item)
    if lost:
        # A job whose last run was ended like this under this token was ended by this very settlement.
        rows = yield _SETTLED, ([item.settlement.id for item in lost],)
        ended = {(job, token, status) for job, token, status in rows}
        for place, one, _ in lost:
            if (one.id, one.token, CODES[one.status]) in ended:
                verdicts[place] = Verdict.REPEATED
    return verdicts


def _columns(items: list[Item], numbers: list[int]) -> Row:
    kinds = [ref.kind for _, _, ref in items]
    attempts = [ref.attempt for _, _, ref in items]
    results = [settlement.result for _, settlement, _ in items]
    return (
        [number << 16 | ref.pos for number, (_, _, ref) in zip(numbers, items, strict=True)],
        [ref.id for _, _, ref in items],
        [] if kinds.count(kinds[0]) == len(kinds) else kinds,
        [] if attempts.count(1) == len(attempts) else attempts,
        unless_empty([settlement.keep for _, settlement, _ in items]),
        unless_empty([None if result is None else result.decode() for result in results]),
        KEEP_DONE,
        kinds[0],
    )


# --- everything else --------------------------------------------------------------------------------------------


def _load(unit: Unit, round_: Round) -> Exchange[None]:
    """Lock the leases of the claims, read their jobs, and load what they bring along.

    A job that does not run under its claim's lease is read as it is, without a lock: its settlement changes nothing.
    """
    stepping = {one.id for _, one in round_.others if one.steps}
    if stepping:
        locked = yield from step_rows.lock(stepping, skip=round_.skip)
        round_.held.clear()
        if round_.skip:
            round_.held.update(stepping - locked)
    others = [one for _, one in round_.others if one.id not in round_.held]
    places = yield from open_places(others)
    yield from unit.load_places(places)
    running = [one for one in others if places[one.id] is not None]
    yield from _lock_cooled(unit, running)
    if stepping:
        wanted = wanted_by_settlements(running)
        yield from step_rows.load(unit, unit.missing(Wanted(steps=wanted.steps)))
        yield from step_rows.load_groups(unit, wanted.groups)
    yield from unit.load_drafts([draft for one in running for draft in one.followups], joins=False)


def open_places(fenced: Sequence[Fenced], *, again: bool = False) -> Exchange[dict[JobId, Place | None]]:
    """Lock the leases of claims; returns where their jobs run, None for one whose bit is not open there.

    `again`: look for a claim that is not under its known lease, because a block has given it one of its own.
    """
    refs = yield from known_refs(fenced)
    places: dict[JobId, Place | None] = dict.fromkeys(one.id for one in fenced)
    while refs:
        bits: dict[int, str] = dict((yield _LOCK_CLAIMS, (sorted({ref.lease.id for ref in refs.values()}),)))
        for place, ref in refs.items():
            open_ = bits.get(ref.lease.id)
            if open_ is not None and open_[ref.pos] == "1":
                places[fenced[place].id] = Place(lease=ref.lease.id, bit=ref.pos, size=len(open_))
        moved = [place for place in refs if places[fenced[place].id] is None] if again else []
        refs, again = (yield from looked_up(fenced, moved)), False
    return places


def _decide(unit: Unit, round_: Round, verdicts: list[Verdict]) -> None:
    """Settle the others of a round. The last settlement of a kind decides about the kind's last error."""
    batched = dict(round_.batched)
    for place, one in sorted([*round_.batched, *round_.others], key=itemgetter(0)):
        if place not in batched:
            verdicts[place] = Verdict.HELD if one.id in round_.held else settle_one(unit, one)
        elif verdicts[place] is _APPLIED:
            unit.last_errors[one.ref.kind] = None


def _lock_cooled(unit: Unit, settlements: list[Settlement]) -> Exchange[None]:
    """Lock the queues whose cool-down would change: only those, or all that are throttled would wait for each other."""
    names: set[str] = set()
    for one in settlements:
        record = unit.get(one.id)
        if one.cool is not None and record is not None:
            cooldown = unit.queue(record.queue).cooldown
            if cooled(unit.now, cooldown, one.cool) != cooldown:
                names.add(record.queue)
    for name in sorted(names):
        yield from unit.lock_queue(name)
