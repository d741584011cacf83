"""The second door: due jobs become claims.

A claim's `ref` says where its bit is and what a settlement needs to know of the job, so that ending a run reads
nothing. It is a `Ref`; claims of one lease share their `Lot`.

Taken rows stay in the index until the server cleans up, and while somebody holds an old snapshot it cannot. So a line
that is drained fast is not looked at from its head each time but from a mark behind which everything was taken; from
the head again once a second, when the marks give too little, and after every write of this engine that may have put a
job before them.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from stoker.engines.postgres.texts import sql
from stoker.engines.sql.packing import read_options, read_unique
from stoker.engines.sql.steps import Row
from stoker.model.errors import CorruptRecord
from stoker.model.ids import JobId
from stoker.model.job import PLAIN, Claim, Demand, Draft, Settlement, Status
from stoker.model.retry import OFF, Curve
from stoker.model.time import MILLISECOND, Instant, Span

if TYPE_CHECKING:
    from stoker.engines.postgres.store import Store

_CLAIM = sql("claim")
_CLAIM_FROM = sql("claim_from")
_decode_past = msgspec.json.Decoder(tuple[int, int, int, dict[str, str] | None]).decode

SLACK: Span = 500 * MILLISECOND
SWEEP = 0.05
"""Others commit later than they were stamped: every so many seconds a look begins this far before the marks."""

OFTEN = 1.0
"""Seconds after which a line is looked at from its head in any case."""

FEW = 256
"""Jobs taken from a line in such a while that are not worth a mark."""

SLOW = 0.020
"""Seconds from which on a look at the head is dear, and then takes only a small part of the time."""

SELDOM = 20
"""So many times as long as it took passes between two dear looks."""


class Lot:
    """What the claims of one lease have in common."""

    __slots__ = ("claimed", "lease", "queue", "size", "token", "worker")

    def __init__(self, lease: int, token: int, claimed: Instant, worker: str, queue: str, size: int) -> None:
        self.lease = lease
        self.token = token
        self.claimed = claimed
        self.worker = worker
        self.queue = queue
        self.size = size


class Ref(NamedTuple):
    """Where a claim is stored, and what of the job its settlement must know. None of it changes while it runs."""

    lot: Lot
    id: JobId
    pos: int
    kind: str
    attempt: int
    priority: int
    slot: str | None
    crashes: int = 0
    throttles: int = 0


class Marks:
    """What is known of one queue's line."""

    __slots__ = ("cost", "last", "levels", "looked", "since", "swept", "taken")

    def __init__(self) -> None:
        self.levels: dict[int, Instant] = {}
        self.looked = self.since = self.swept = self.last = self.cost = 0.0
        self.taken = 0

    def look(self, began: float, cost: float) -> None:
        """The head was looked at. A hiccup is not a long line: only two slow looks in a row are dear."""
        self.cost, self.last = min(cost, self.last), cost
        if began - self.since >= OFTEN:
            self.since, self.taken = began, 0
        self.looked = self.swept = began
        self.levels.clear()

    def starts(self) -> list[tuple[int, Instant]]:
        """Where to look from, priority by priority."""
        now = time.monotonic()
        slack = SLACK if now - self.swept >= SWEEP else 0
        if slack:
            self.swept = now
        return [(priority, mark - slack) for priority, mark in sorted(self.levels.items())]


class Line:
    """The lines of an engine's queues, as far as it has marks in them."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._marks: dict[str, Marks] = {}

    def forget(self, queues: Iterable[str] | None = None) -> None:
        """Jobs may have been put before the marks: of these queues, or of any."""
        for queue in self._marks if queues is None else queues:
            if queue in self._marks:
                self._marks[queue].levels.clear()

    def inserted(self, drafts: Iterable[Draft]) -> None:
        """A job of the past, or of a priority nobody looks at, stands before the marks."""
        if self._marks:
            for draft in drafts:
                marks = self._marks.get(draft.queue)
                if marks is not None and (draft.at is not None or draft.priority not in marks.levels):
                    marks.levels.clear()

    def settled(self, settlements: Iterable[Settlement]) -> None:
        """The same of jobs that were put back, and of follow-ups."""
        if self._marks:
            for settlement in settlements:
                ref = settlement.ref
                self.inserted(settlement.followups)
                if settlement.status is not Status.DONE and type(ref) is Ref:
                    marks = self._marks.get(ref.lot.queue)
                    if marks is not None and ref.priority not in marks.levels:
                        marks.levels.clear()

    async def claim(self, demand: Demand) -> list[Claim]:
        """Hand due jobs to a worker with a live lease."""
        self._store.inside()
        wanted, total = wants(demand)
        if total <= 0:
            return []
        rest = {queue: n for queue, n in wanted.items() if not self._marked(queue)}
        marked = {queue: n for queue, n in wanted.items() if queue not in rest}
        if not marked or (rest and all(self._marks[queue].cost < SLOW for queue in marked)):
            return await self._from_head(demand.worker, wanted, total)
        found = await self._from_marks(demand.worker, marked, total)
        if len(found) < min(total, sum(marked.values())) and self._worth_a_look(marked):
            for claim in found:
                marked[claim.queue] -= 1
            rest.update({queue: n for queue, n in marked.items() if n > 0})
        if rest and len(found) < total:
            found += await self._from_head(demand.worker, rest, total - len(found))
            order = {queue: place for place, queue in enumerate(wanted)}
            found.sort(key=lambda claim: (order[claim.queue], claim.priority, claim.scheduled_at, claim.id))
        return found

    async def _from_head(self, worker: str, wanted: dict[str, int], total: int) -> list[Claim]:
        began = time.monotonic()
        values = (self._store.now(), worker, list(wanted), list(wanted.values()), total)
        found = handed_over(worker, await self._store.once("claim", _CLAIM, values))
        cost = time.monotonic() - began
        for queue in wanted:
            marks = self._marks.get(queue)
            if marks is None:
                marks = self._marks[queue] = Marks()
            marks.look(began, cost)
        self._mark(found)
        return found

    async def _from_marks(self, worker: str, wanted: dict[str, int], total: int) -> list[Claim]:
        levels = [(queue, *start) for queue in wanted for start in self._marks[queue].starts()]
        where = [list(column) for column in zip(*levels, strict=True)]
        values = (self._store.now(), worker, list(wanted), list(wanted.values()), total, *where)
        found = handed_over(worker, await self._store.once("claim", _CLAIM_FROM, values))
        self._mark(found)
        return found

    def _mark(self, found: list[Claim]) -> None:
        for claim in found:
            marks = self._marks.get(claim.queue)
            if marks is not None:
                marks.taken += 1
                marks.levels[claim.priority] = claim.scheduled_at

    def _marked(self, queue: str) -> bool:
        """Are its marks of use, and is it not time to look at its head?"""
        marks = self._marks.get(queue)
        if marks is None or not marks.levels:
            return False
        now = time.monotonic()
        if now - marks.looked >= max(OFTEN, SELDOM * marks.cost):
            return False
        return marks.taken >= FEW or marks.cost >= SLOW

    def _worth_a_look(self, queues: Iterable[str]) -> bool:
        now = time.monotonic()
        marks = [self._marks[queue] for queue in queues if queue in self._marks]
        return all(one.cost < SLOW or now - one.looked >= SELDOM * one.cost for one in marks)


def wants(demand: Demand) -> tuple[dict[str, int], int]:
    """How many from which queue, and in all."""
    wanted: dict[str, int] = {}
    for queue, n in demand.queues:
        if n > 0:
            wanted[queue] = wanted.get(queue, 0) + n
    most = sum(wanted.values())
    return wanted, most if demand.total is None else min(most, demand.total)


def handed_over(worker: str, rows: list[Row]) -> list[Claim]:
    """Claims of the rows that were taken; rows of a lease stand together in the order of its bits, and only the first
    of them says what all have in common.
    """
    claims: list[Claim] = []
    lot: Any = None
    pos, curve, cool = 0, OFF, 0
    lease = token = claimed = 0
    queue = ""
    mixed = False
    for row in rows:
        (
            new, token_, claimed_, queue_, settings, id_, kind, payload, attempt, budget, created, due, priority,
            options, key, traits, tenant, past, error,
        ) = row  # fmt: skip
        if new is not None:
            if lot is not None:
                lot.size = pos
            mixed = mixed or queue == queue_
            lease, token, claimed, queue, pos = new, token_, claimed_, queue_, 0
            lot = Lot(lease, token, claimed, worker, queue, 0)
            curve, cool = settings_of(settings)
        unique, slot = None, None
        if key is not None:
            unique = read_unique(key, traits)
            slot = None if unique is None else unique.slot(kind)
        base, crashes, throttles, metadata = (0, 0, 0, None) if past is None else past_of(past)
        # fmt: off
        claim_ = Claim(
            id_, kind, queue, payload.encode(), attempt, base, budget, worker, token, claimed, created, due, priority,
            PLAIN if options is None else read_options(options), unique, tenant, crashes, throttles, error, False,
            metadata, curve, cool, None, None, Ref(lot, id_, pos, kind, attempt, priority, slot, crashes, throttles),
        )
        # fmt: on
        claims.append(claim_)
        pos += 1
    if lot is not None:
        lot.size = pos
    if mixed:
        order = {queue: place for place, queue in enumerate(dict.fromkeys(claim.queue for claim in claims))}
        claims.sort(key=lambda claim: (order[claim.queue], claim.priority, claim.scheduled_at, claim.id))
    return claims


def settings_of(settings: list[int] | None) -> tuple[Curve, int]:
    """A queue's curve and throttle count, which most queues do not have."""
    if settings is None:
        return OFF, 0
    on, base, top, count = settings
    return Curve(bool(on), base, top), count


def past_of(past: str | None) -> tuple[int, int, int, dict[str, str] | None]:
    """What earlier runs left: base, crashes, throttles, metadata."""
    if past is None:
        return 0, 0, 0, None
    try:
        return _decode_past(past)
    except (msgspec.MsgspecError, ValueError) as error:
        raise CorruptRecord(f"what earlier runs left cannot be read: {error}") from error
