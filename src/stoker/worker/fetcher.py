"""Turns free slots into a demand, and claims that came back into work for the slots."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterable, Mapping
from random import random
from typing import Literal, NamedTuple, TypeAlias

from stoker.model.errors import InvalidInput
from stoker.model.ids import JobId
from stoker.model.job import Claim, Demand
from stoker.worker.lane import Lane
from stoker.worker.shares import Shares

Order: TypeAlias = Literal["own", "strict", "weighted"]
"""own: every queue has its own slots · strict: shared slots, queues served in the order given · weighted: shared slots,
a queue with a larger number is asked first more often."""

STALE_AFTER = 2.0
"""Seconds a claim may wait in a buffer before it is handed back for somebody with a free slot."""


class Asked(NamedTuple):
    """A demand, how many of its claims each lane waits for, and a number that rises with every demand."""

    demand: Demand
    rooms: dict[Lane, int]
    number: int


class Fetcher:
    """The lanes of one worker."""

    def __init__(
        self, queues: Mapping[str, int], order: Order, batch: int | None = None, shares: Shares | None = None
    ) -> None:
        if not queues:
            raise InvalidInput("queues", queues, "must name at least one queue")
        for queue, slots in queues.items():
            if slots < 1:
                raise InvalidInput(f"queues[{queue!r}]", slots, "must be at least one slot")
        self._weights = dict(queues)
        self._order = order
        if order == "own":
            self.lanes = [Lane((queue,), slots, batch) for queue, slots in queues.items()]
        else:
            self.lanes = [Lane(tuple(queues), sum(queues.values()), batch)]
        self._lane_of = {queue: lane for lane in self.lanes for queue in lane.queues}
        self._numbers = itertools.count(1)
        self.shares = shares or Shares(lambda _queue: 0)

    def ask(self, worker: str) -> Asked | None:
        """What to ask the store for now; None when nothing is wanted or nothing is to be had."""
        wanted: list[tuple[str, int]] = []
        rooms: dict[Lane, int] = {}
        for lane in self.lanes:
            hungry = lane.hungry or (self.shares.caps and self.shares.eased(lane))
            room = min(lane.wanted(), lane.most) if hungry else 0
            if room <= 0 or (room < lane.batch and len(lane.buffer) > lane.batch // 2):
                continue
            portions = self.shares.portions(lane, room, self._sequence(lane))
            if not portions:
                lane.hungry = bool(lane.busy or lane.buffer)  # without any share there is nothing to be had
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
        """The store did not answer, or what it answered is for nobody here."""
        for lane, room in asked.rooms.items():
            lane.asked -= room

    @property
    def wants_batch(self) -> bool:
        """Is there room for a whole batch that nobody has asked for yet?"""
        return any(lane.hungry and lane.wanted() >= lane.batch for lane in self.lanes)

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
            lane.hungry = lane.woken = True

    def stale(self) -> list[Claim]:
        """Claims that wait behind slow handlers, no slot having taken one for too long; taken out of the buffers."""
        now = time.monotonic()
        found: list[Claim] = []
        for lane in self.lanes:
            if lane.buffer and lane.busy >= lane.slots and now - lane.since > STALE_AFTER:
                found += lane.buffer
                lane.buffer.clear()
        return found

    def empty(self) -> list[Claim]:
        """Everything that was not started."""
        found = [claim for lane in self.lanes for claim in lane.buffer]
        for lane in self.lanes:
            lane.buffer.clear()
        return found

    def remove(self, job: JobId) -> Claim | None:
        """Take one claim out of its buffer; None when it is in none."""
        for lane in self.lanes:
            for claim in lane.buffer:
                if claim.id == job:
                    lane.buffer.remove(claim)
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
        return max(lane.batch for lane in self.lanes)

    @property
    def busy(self) -> int:
        """How many slots are running a job."""
        return sum(lane.busy for lane in self.lanes)
