"""Settle claims.

Plain successes, nearly all settlements, are settled as a batch: one statement deletes the rows of `running`, one
inserts rows of `done`. If fewer rows were deleted than the batch has, a claim was lost or its job is to be canceled:
then the transaction runs again, one by one. Every other settlement goes that way from the start.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING

from stoker.engines.base import Transaction, needs_transaction
from stoker.engines.call_times import timed
from stoker.engines.shared import one_by_one
from stoker.engines.sql import one_by_one as exchanges
from stoker.engines.sql.exchanges import Exchange, Many, Row
from stoker.engines.sqlite import subqueues
from stoker.engines.sqlite.columns import DONE, FINISH, RUNNING
from stoker.engines.sqlite.facet import Facet
from stoker.engines.sqlite.statements import sql
from stoker.engines.sqlite.unit_of_work import COMPLETED, Mismatch, Unit
from stoker.model.groups import GroupChange
from stoker.model.ids import JobId
from stoker.model.job import Claim, Demand, Note, Settled, Settlement, Verdict
from stoker.model.lifecycle import check_settlements
from stoker.model.run_origins import number

if TYPE_CHECKING:
    from stoker.engines.sqlite.store import Store

_FENCE = sql("settle_fence")
_APPLIED = Verdict.APPLIED


class Settler(Facet):
    """Settles claims and writes notes on running jobs."""

    def __init__(self, store: Store, claim: Callable[[Demand], Awaitable[list[Claim]]]) -> None:
        super().__init__(store)
        self._claim = claim

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
            verdicts = await self._store.join(tx, lambda unit: settle(unit, settlements))
            return Settled(verdicts, [] if demand is None else await self._claim(demand))
        strict = bool(settlements)
        settled: Settled = await self._store.request(strict=strict, settlements=settlements, demand=demand)
        self._store.ends.settled(settlements, settled.verdicts)
        return settled

    @timed(write=True)
    async def note(self, notes: Sequence[Note], *, tx: Transaction | None = None) -> list[Verdict]:
        if tx is not None:
            return await self._store.join(tx, lambda unit: exchanges.note(unit, notes))
        return await self._store.write(lambda unit: exchanges.note(unit, notes))

    async def settle_last(self, settlement: Settlement, *, tx: Transaction) -> bool:
        needs_transaction("settle_last", tx)
        return (await self.settle([settlement], tx=tx)).verdicts == [Verdict.APPLIED]

    def notify_settled(self, settlements: Sequence[Settlement]) -> None:
        self._store.resources()
        self._store.ends.settled(settlements, [Verdict.APPLIED] * len(settlements))


def settle(unit: Unit, settlements: Sequence[Settlement]) -> Exchange[list[Verdict]]:
    """Settle claims; returns verdicts in their order."""
    verdicts = [_APPLIED] * len(settlements)
    others = list(range(len(settlements)))
    if unit.swift:
        others = yield from _together(unit, settlements)
    if others:
        yield from unit.load(one_by_one.wanted_by_settlements(settlements[position] for position in others))
    left = set(others)
    for position, settlement in enumerate(settlements):
        if position in left:
            verdicts[position] = one_by_one.settle_one(unit, settlement)
        else:  # settled in the batch; the last settlement of a kind decides about the kind's last error
            unit.last_errors[settlement.ref[3]] = None
    yield from unit.write()
    return verdicts


def _together(unit: Unit, settlements: Sequence[Settlement]) -> Exchange[list[int]]:
    """Settle the plain ones, or raise `Mismatch`; returns the positions of the others."""
    now = unit.now
    others: list[int] = []
    fences: list[Row] = []
    rows: list[Row] = []
    kinds: defaultdict[tuple[int, str], int] = defaultdict(int)
    keeps: dict[int, int] = {}
    wids: dict[str, int | None] = {}
    done: defaultdict[JobId, int] = defaultdict(int)
    freed: defaultdict[int, Counter[str]] = defaultdict(Counter)
    for position, settlement in enumerate(settlements):
        if not _is_plain(settlement):
            others.append(position)
            continue
        id_, seq, qid, kind, attempt, claimed, group, subqueue = settlement.ref
        worker, token, keep = settlement.worker, settlement.token, settlement.keep
        if worker not in wids:
            wids[worker] = yield from unit.wid(worker)
        if qid not in keeps:
            keeps[qid] = (yield from unit.queue_of(qid)).queue.keep_done
        fences.append((wids[worker], seq, token))
        expires = now + (keeps[qid] if keep is None else keep)
        rows.append((id_, seq, qid, token, attempt, claimed, now, expires, number(worker), settlement.result))
        kinds[qid, kind] += 1
        if group is not None:
            done[group] += 1
        if subqueue is not None:
            freed[qid][subqueue] += 1
    if fences:
        applied = yield Many(_FENCE, fences)
        if applied != len(fences):
            raise Mismatch
        yield Many(FINISH, rows)
    for (qid, kind), n in kinds.items():
        unit.moved(qid, kind, RUNNING, DONE, n)
        unit.count(qid, kind, COMPLETED, n)
    for qid, slots in freed.items():
        yield from subqueues.free_all(unit, qid, slots)
    for group, n in done.items():
        unit.count_group(group, GroupChange(done=n))
    return others


def _is_plain(settlement: Settlement) -> bool:
    """Return whether a settlement is a plain success of a job without a key or past, which is kept."""
    ref = settlement.ref
    return settlement.plain and type(ref) is tuple and ref[0] == settlement.id and settlement.keep != 0
