"""Decides what to claim: turns free slots into demands, and gives the claims to the lanes they were asked for.

Usually each queue has a lane of its own; under strict or weighted order all queues share one lane and its slots, but
for queues whose jobs run in chunks.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from random import random
from typing import Literal, NamedTuple, TypeAlias

from stoker.model.control import Presence, Queue, share_of
from stoker.model.errors import InvalidInput
from stoker.model.ids import JobId
from stoker.model.job import Claim, Demand
from stoker.worker.chunks import ChunkLane, ChunkQueue
from stoker.worker.lane import Lane


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
        self.lanes[:] = [ChunkLane(queue, self._weights[queue], chunks[queue], self._batch) for queue in gathering]
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

    def measure(self, claims: list[Claim]) -> None:
        """Let lanes learn how fast they are from what was finished."""
        now = time.monotonic()
        for lane in self.lanes:
            mine = len(claims) if len(self.lanes) == 1 else sum(claim.queue in lane.queues for claim in claims)
            lane.measure(mine, now)

    @property
    def batch(self) -> int:
        """The batch of the fastest lane."""
        return max((lane.batch for lane in self.lanes), default=1)

    @property
    def busy(self) -> int:
        """How many slots are running a job."""
        return sum(lane.busy for lane in self.lanes)
