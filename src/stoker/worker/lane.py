"""A lane: some slots, the queues they serve and the claims prefetched for them.

A lane prefetches as deep as it is fast: as many claims as its slots will run within `HORIZON`. So quick jobs are
claimed in large batches, which cost the store less per job, and slow jobs stay available to other workers.
"""

from __future__ import annotations

import asyncio
from collections import deque

from stoker.model.job import Claim

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

SHORTEST_MEASURE = 0.0005
"""Seconds over which a lane's speed can be told."""

RESTED = 0.05
"""Seconds without a job after which a lane's speed is measured anew."""


class Lane:
    """Some slots and what they will run next. `size`: how many jobs a slot runs at a time."""

    size = 1

    def __init__(self, queues: tuple[str, ...], slots: int, batch: int | None = None) -> None:
        self.queues = queues
        self.slots = slots
        self.most = batch or LARGEST
        self.batch = batch or SMALLEST
        """So many are worth a call while there is something to run."""
        self.deepest = DEEPEST * batch if batch else DEEPEST_ALONE
        self.buffer: deque[Claim] = deque()
        self.idle: deque[asyncio.Future[None]] = deque()
        self.busy = 0
        self.asked = 0
        self.may_have_more = True
        self.woken = False
        self.since = 0.0
        self._fed = 0
        self._finished = 0
        self._measured_at = 0.0
        self._rate = 0.0
        self._adapts = batch is None

    def wanted(self) -> int:
        """How many claims would be welcome now, beside those that were asked for already."""
        ahead = min(int(self._rate * HORIZON), self.deepest)
        return (self.slots - self.busy) * self.size + ahead - len(self.buffer) - self.asked

    def worth_asking(self, room: int) -> bool:
        """Is it worth a call to ask for so many? Not for a few while there is enough to run."""
        return room >= self.batch or len(self.buffer) <= self.batch // 2

    def received(self, claims: list[Claim], asked: int, number: int, now: float) -> None:
        """Claims came in; a short answer means that the queue has no more, unless it was woken since it was asked.

        Nor does it mean so when a question that was asked later (of a higher number) found plenty.
        """
        self.asked -= asked
        if len(claims) >= asked:
            self.may_have_more, self._fed = True, max(self._fed, number)
        elif number > self._fed:
            self.may_have_more = self.woken
        if not self.buffer:
            self.since = now
            if not self.busy and now - self._measured_at > RESTED:  # rest says nothing about how fast the lane is
                self._finished, self._measured_at = 0, now
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
        sleeper = asyncio.get_running_loop().create_future()
        self.idle.append(sleeper)
        await sleeper

    def measure(self, finished: int, now: float) -> None:
        """Learn how fast the lane is; called whenever outcomes are written."""
        self._finished += finished
        elapsed = now - self._measured_at
        if elapsed >= SHORTEST_MEASURE:
            fresh = self._finished / elapsed
            self._rate = fresh if elapsed > 1 else (self._rate + fresh) / 2
            self._finished, self._measured_at = 0, now
            if self._adapts:
                self.batch = min(max(int(self._rate * BATCH_HORIZON), SMALLEST), LARGEST)

    def wake_all(self) -> None:
        """Let every idle slot look around: the worker is stopping."""
        for sleeper in self.idle:
            if not sleeper.done():
                sleeper.set_result(None)
        self.idle.clear()
