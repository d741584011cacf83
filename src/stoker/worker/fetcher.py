"""Decides what to claim: turns free slots into demands, and gives the claims to the lanes they were asked for.

Usually each queue has a lane of its own; under strict or weighted order all queues share one lane and its slots, but
for queues whose jobs run in chunks.

A lane prefetches as deep as it is fast: as many claims as its slots will run within `HORIZON`. So quick jobs are
claimed in large batches, which cost the store less per job, and slow jobs stay available to other workers.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from random import random
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeAlias

from stoker.model.control import Presence, Queue, share_of
from stoker.model.errors import InvalidInput
from stoker.model.ids import JobId
from stoker.model.job import Claim, Demand

if TYPE_CHECKING:
    from stoker.worker.chunks import ChunkQueue


HORIZON = 0.05
"""Seconds of work a lane takes in advance."""

BATCH_HORIZON = 0.02
"""Seconds of work that are worth a call, unless the size of a batch was set."""

SMALLEST, LARGEST = 100, 500
"""Jobs that are worth a call of a lane that is slow or new, and most jobs in a call, unless the size was set."""

DEEPEST = 5
"""Batches of a size that was set which a buffer holds at most."""

DEEPEST_ALONE = 1_000
"""Jobs that it holds at most otherwise."""

SHORTEST_WORK = 0.005
"""Seconds of work that a lane's speed is measured over at least: so it takes ten times in advance of what it ran."""


class Lane:
    """Some slots, the queues they serve and the claims prefetched for them.

    `size`: how many jobs a slot runs at a time. `finished`: how many its slots have run lately; `rate`: per second of
    work. Waiting for the store is no work while the store has more jobs than the lane takes; with few jobs it is, so
    that a lane that runs now and then a quick one does not hoard.
    """

    size = 1

    def __init__(self, queues: tuple[str, ...], slots: int, batch: int | None = None) -> None:
        self.queues = queues
        self.slots = slots
        self.most = batch or LARGEST
        self.batch = batch or SMALLEST
        """How many jobs a lane must want before a call is worth it while something runs."""
        self.deepest = DEEPEST * batch if batch else DEEPEST_ALONE
        self.buffer: deque[Claim] = deque()
        self.idle: deque[asyncio.Future[None]] = deque()
        self.busy = 0
        self.asked = 0
        self.may_have_more = True
        self.woken = False
        self.since = 0.0
        self._fed = 0
        self.finished = 0.0
        self.rate = 0.0
        self._worked = 0.0
        self._counted_at = 0.0
        self._dry_since: float | None = 0.0
        self._adapts = batch is None

    def wanted(self) -> int:
        """How many claims would be welcome now, beside those that were asked for already."""
        ahead = min(int(self.rate * HORIZON), self.deepest)
        return (self.slots - self.busy) * self.size + ahead - len(self.buffer) - self.asked

    def worth_asking(self, room: int) -> bool:
        """Is it worth a call to ask for so many? Not for a few while there is enough to run."""
        return room >= self.batch or len(self.buffer) <= self.batch // 2

    def received(self, claims: list[Claim], asked: int, number: int, now: float) -> None:
        """Claims came in: fewer than requested mean an empty queue.

        Not if it was woken since, nor if a later request (of a higher number) was filled.
        """
        self.asked -= asked
        filled = len(claims) >= asked
        if filled:
            self.may_have_more, self._fed = True, max(self._fed, number)
        elif number > self._fed:
            self.may_have_more = self.woken
        if not self.buffer:
            self.since = now
        if claims and self._dry_since is not None:
            if not filled:
                self._worked += min(now - self._dry_since, HORIZON)
            self._dry_since, self._counted_at = None, now
        self.buffer.extend(claims)
        self.wake_slot()

    def remove(self, claim: Claim) -> None:
        """Take one claim out of the buffer."""
        self.buffer.remove(claim)

    def empty(self) -> list[Claim]:
        """Take every claim out of the buffer."""
        found = list(self.buffer)
        self.buffer.clear()
        return found

    def wake_slot(self) -> None:
        """Wake an idle slot if there is a claim for it. It wakes the next one when its handler begins to wait.

        Handlers that never wait are run by one slot, one after the other: the others would only find nothing left.
        """
        while self.buffer and self.idle:
            sleeper = self.idle.popleft()
            if not sleeper.done():
                sleeper.set_result(None)
                return

    async def rest(self) -> None:
        """A slot with nothing to do waits for claims."""
        if not self.busy and not self.buffer and self._dry_since is None:
            self.run_dry(time.monotonic())
        sleeper = asyncio.get_running_loop().create_future()
        self.idle.append(sleeper)
        await sleeper

    def run_dry(self, now: float) -> None:
        """Note that no slot has anything to do from now on."""
        self._worked += now - self._counted_at
        self._dry_since = now

    def measure(self, now: float) -> None:
        """Learn how fast the lane is; called whenever outcomes are written."""
        if self._dry_since is None:
            self._worked += now - self._counted_at
            self._counted_at = now
        self.rate = self.finished / max(self._worked, SHORTEST_WORK)
        if self._worked > HORIZON:  # what is long ago counts less and less
            self.finished *= HORIZON / self._worked
            self._worked = HORIZON
        if self._adapts:
            self.batch = min(max(int(self.rate * BATCH_HORIZON), SMALLEST), LARGEST)

    def wake_all(self) -> None:
        """Let every idle slot look around: the worker is stopping."""
        for sleeper in self.idle:
            if not sleeper.done():
                sleeper.set_result(None)
        self.idle.clear()


class QueueLimits:
    """`caps`: slots of this worker by queue, for queues that are limited. `running` counts slots that run a queue.

    Nothing is claimed from queues that are `closed`.
    """

    def __init__(self, running: Callable[[str], int]) -> None:
        self.caps: dict[str, int] = {}
        self.closed: set[str] = set()
        self._cut: set[str] = set()
        self._running = running

    def learn(self, worker: str, queues: Iterable[Queue], presences: Sequence[Presence]) -> bool:
        """Take in what people tuned and who is there; answers whether anything changed."""
        found = {queue.name: share_of(worker, queue, presences) for queue in queues}
        before, self.caps = self.caps, {name: share for name, share in found.items() if share is not None}
        self._cut &= self.caps.keys()
        return self.caps != before

    def portions(self, lane: Lane, room: int, queues: Iterable[str]) -> list[tuple[str, int]]:
        """How much of each queue to ask for, no more than its share leaves; queues with nothing left are left out."""
        if not self.caps and not self.closed:
            return [(queue, room) for queue in queues]
        found = [(queue, min(room, self._left(lane, queue, room))) for queue in queues]
        self._cut.difference_update(lane.queues)
        self._cut.update(queue for queue, n in found if n < room)
        return [(queue, n) for queue, n in found if n > 0]

    def answered(self, asked: Iterable[tuple[str, int]], claims: Iterable[Claim]) -> None:
        """Take note of what was had: a queue with fewer jobs than were asked of it has none for a larger share."""
        if self._cut:
            had = Counter(claim.queue for claim in claims)
            self._cut.difference_update(queue for queue, n in asked if had[queue] < n)

    def eased(self, lane: Lane) -> bool:
        """May more be asked of a queue of this lane than its share left room for the last time?"""
        return any(self._left(lane, queue, 0) > 0 for queue in self._cut.intersection(lane.queues))

    def surplus(self, lanes: Iterable[Lane]) -> list[Claim]:
        """Claims that wait here beyond their queue's share; taken out of the buffers."""
        found: list[Claim] = []
        for lane in lanes:
            for queue in self.caps.keys() & set(lane.queues):
                while self._left(lane, queue, 0) < 0 and (claim := _last(lane, queue)) is not None:
                    lane.remove(claim)
                    found.append(claim)
        return found

    def _left(self, lane: Lane, queue: str, room: int) -> int:
        if queue in self.closed:
            return 0
        cap = self.caps.get(queue)
        if cap is None:
            return room
        waiting = sum(claim.queue == queue for claim in lane.buffer)
        return (cap - self._running(queue)) * lane.size - waiting - lane.asked


def _last(lane: Lane, queue: str) -> Claim | None:
    return next((claim for claim in reversed(lane.buffer) if claim.queue == queue), None)


Order: TypeAlias = Literal["own", "strict", "weighted"]
"""own: every queue has its own slots · strict: shared slots, queues served in the order given · weighted: shared slots,
a queue with a larger number is asked first more often."""

STALE_AFTER = 2.0
"""Seconds a claim may wait in a buffer before it is handed back for a worker with a free slot."""


class Asked(NamedTuple):
    """A demand, how many of its claims each lane waits for, and a number that rises with every demand."""

    demand: Demand
    rooms: dict[Lane, int]
    number: int


class Fetcher:
    """The lanes of one worker."""

    def __init__(
        self, queues: Mapping[str, int], order: Order, batch: int | None = None, limits: QueueLimits | None = None
    ) -> None:
        for queue, slots in queues.items():
            if slots < 1:
                raise InvalidInput(f"queues[{queue!r}]", slots, "must be at least one slot")
        self._weights = dict(queues)
        self._order = order
        self._batch = batch
        self._numbers = itertools.count(1)
        self.limits = limits or QueueLimits(lambda _queue: 0)
        self.lanes: list[Lane] = []
        self.make_lanes({})

    def make_lanes(self, chunks: Mapping[str, ChunkQueue]) -> None:
        """Make the lanes, before the slots start; each queue of `chunks` has its own slots in any order."""
        if self.lanes and not chunks:
            return
        shared = {queue: slots for queue, slots in self._weights.items() if queue not in chunks}
        gathering = [queue for queue in self._weights if queue in chunks]
        self.lanes[:] = [chunks[queue].lane(queue, self._weights[queue], self._batch) for queue in gathering]
        if self._order == "own":
            self.lanes += [Lane((queue,), slots, self._batch) for queue, slots in shared.items()]
        elif shared:
            self.lanes.append(Lane(tuple(shared), sum(shared.values()), self._batch))
        self._lane_of = {queue: lane for lane in self.lanes for queue in lane.queues}

    def ask(self, worker: str) -> Asked | None:
        """What to ask the store for now; None when nothing is wanted or nothing is to be had."""
        wanted: list[tuple[str, int]] = []
        rooms: dict[Lane, int] = {}
        for lane in self.lanes:
            may_have_more = lane.may_have_more or (self.limits.caps and self.limits.eased(lane))
            room = min(lane.wanted(), lane.most) if may_have_more else 0
            if room <= 0 or not lane.worth_asking(room):
                continue
            portions = self.limits.portions(lane, room, self._sequence(lane))
            if not portions:
                lane.may_have_more = bool(lane.busy or lane.buffer)  # without any share there is nothing to be had
                continue
            room = min(room, sum(n for _, n in portions))
            rooms[lane] = room
            lane.asked += room
            lane.woken = False
            wanted += portions
        if not wanted:
            return None
        return Asked(Demand(worker, tuple(wanted), sum(rooms.values())), rooms, next(self._numbers))

    def withdraw(self, asked: Asked) -> None:
        """The store did not answer, or its answer fits no queue here."""
        for lane, room in asked.rooms.items():
            lane.asked -= room

    @property
    def wants_batch(self) -> bool:
        """Is there room for a whole batch that no call has asked for yet?"""
        return any(lane.may_have_more and lane.wanted() >= lane.batch for lane in self.lanes)

    def _sequence(self, lane: Lane) -> Iterable[str]:
        if self._order != "weighted" or len(lane.queues) == 1:
            return lane.queues
        return sorted(lane.queues, key=lambda queue: -(random() ** (1 / self._weights[queue])))

    def distribute(self, asked: Asked, claims: list[Claim]) -> None:
        """Give claims to the lanes they were asked for; lanes that got less than they asked for wait for a wake-up."""
        now = time.monotonic()
        self.limits.answered(asked.demand.queues, claims)
        if len(asked.rooms) == 1:
            [(lane, room)] = asked.rooms.items()
            lane.received(claims, room, asked.number, now)
            return
        sorted_out: dict[Lane, list[Claim]] = {lane: [] for lane in asked.rooms}
        for claim in claims:
            sorted_out[self._lane_of[claim.queue]].append(claim)
        for lane, mine in sorted_out.items():
            lane.received(mine, asked.rooms[lane], asked.number, now)

    def wake(self, queues: Iterable[str] | None = None) -> None:
        """There may be work: ask again."""
        for lane in self.lanes if queues is None else {self._lane_of[q] for q in queues if q in self._lane_of}:
            lane.may_have_more = lane.woken = True

    def close(self, queue: str) -> None:
        """Claim nothing from a queue until it is reopened."""
        self.limits.closed.add(queue)

    def reopen(self, queue: str) -> None:
        """Claim from a queue again."""
        self.limits.closed.discard(queue)
        self.wake((queue,))

    def stale(self) -> list[Claim]:
        """Claims that wait behind slow handlers, no slot having taken one for too long; taken out of the buffers."""
        now = time.monotonic()
        found: list[Claim] = []
        for lane in self.lanes:
            if lane.buffer and lane.busy >= lane.slots and now - lane.since > STALE_AFTER:
                found += lane.empty()
        return found

    def empty(self) -> list[Claim]:
        """Everything that was not started."""
        return [claim for lane in self.lanes for claim in lane.empty()]

    def remove(self, job: JobId) -> Claim | None:
        """Take one claim out of its buffer; None when it is in none."""
        for lane in self.lanes:
            for claim in lane.buffer:
                if claim.id == job:
                    lane.remove(claim)
                    return claim
        return None

    def lane_of(self, queue: str) -> Lane:
        """The lane that serves a queue."""
        return self._lane_of[queue]

    def measure(self) -> None:
        """Let lanes learn how fast they are."""
        now = time.monotonic()
        for lane in self.lanes:
            lane.measure(now)

    @property
    def batch(self) -> int:
        """The batch of the fastest lane."""
        return max((lane.batch for lane in self.lanes), default=1)

    @property
    def busy(self) -> int:
        """How many slots are running a job."""
        return sum(lane.busy for lane in self.lanes)
