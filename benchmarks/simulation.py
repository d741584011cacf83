"""What many worker processes would do on one server: a small simulation with measured costs.

A worker process has a core of its own. It holds two batches: while it runs one, the store settles the other and hands
out the next. A call takes a round trip and the server's CPU for its jobs; on Postgres it ends with a commit, which
waits for the log. The disk syncs one at a time, and one sync serves every commit that waited when it began.

`shared` puts workers and server on the same few cores, as on the machine that was measured, so that the simulation can
be compared with what was seen there.
"""

from __future__ import annotations

import heapq
import itertools
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

SIMULATED = 20.0
"""Seconds of each simulation."""


@dataclass(frozen=True, slots=True)
class Costs:
    """What was measured. Times in seconds."""

    worker: float
    """CPU of a worker process for a job."""
    server: float
    """CPU of the server for a job, from its enqueue to its end."""
    batch: int
    """Jobs of a call."""
    sync: float = 0.0
    """A write of the log to the disk; 0: calls wait for none."""
    round_trip: float = 0.0


class Outcome(NamedTuple):
    """Jobs a second, and how busy the server's cores and its disk were."""

    rate: float
    server: float
    disk: float


Then = Callable[[], None]


class _Clock:
    def __init__(self) -> None:
        self.now = 0.0
        self._events: list[tuple[float, int, Then]] = []
        self._numbers = itertools.count()

    def after(self, seconds: float, then: Then) -> None:
        heapq.heappush(self._events, (self.now + seconds, next(self._numbers), then))

    def run(self, until: float) -> None:
        while self._events and self._events[0][0] <= until:
            self.now, _, then = heapq.heappop(self._events)
            then()


class _Cores:
    """Serve bursts of CPU in the order they come, so many at a time."""

    def __init__(self, clock: _Clock, number: int) -> None:
        self._clock = clock
        self._free = number
        self._waiting: deque[tuple[float, Then]] = deque()
        self.busy = 0.0

    def burst(self, seconds: float, then: Then) -> None:
        self._waiting.append((seconds, then))
        self._next()

    def _next(self) -> None:
        while self._free and self._waiting:
            seconds, then = self._waiting.popleft()
            self._free -= 1
            self.busy += seconds

            def done(then: Then = then) -> None:
                self._free += 1
                then()
                self._next()

            self._clock.after(seconds, done)


class _Disk:
    """Sync for all that wait when a sync begins."""

    def __init__(self, clock: _Clock, sync: float) -> None:
        self._clock = clock
        self._sync = sync
        self._waiting: list[Then] = []
        self._at_work = False
        self.busy = 0.0

    def commit(self, then: Then) -> None:
        if not self._sync:
            then()
            return
        self._waiting.append(then)
        if not self._at_work:
            self._begin()

    def _begin(self) -> None:
        served, self._waiting, self._at_work = self._waiting, [], True
        self.busy += self._sync

        def done() -> None:
            self._at_work = False
            for then in served:
                then()
            if self._waiting and not self._at_work:
                self._begin()

        self._clock.after(self._sync, done)


def simulate(costs: Costs, workers: int, cores: int, *, shared: bool = False) -> Outcome:
    """Let so many worker processes drain a store whose server has so many cores."""
    clock = _Clock()
    server, disk = _Cores(clock, cores), _Disk(clock, costs.sync)
    done = 0

    def start(own: _Cores) -> None:
        """One of the two batches of a worker: run it, then ask the store for the next."""

        def ran() -> None:
            clock.after(costs.round_trip / 2, lambda: server.burst(costs.server * costs.batch, stored))

        def stored() -> None:
            disk.commit(lambda: clock.after(costs.round_trip / 2, again))

        def again() -> None:
            nonlocal done
            done += costs.batch
            own.burst(costs.worker * costs.batch, ran)

        own.burst(costs.worker * costs.batch, ran)

    for _ in range(workers):
        own = server if shared else _Cores(clock, 1)
        start(own)
        start(own)
    clock.run(SIMULATED)
    return Outcome(done / SIMULATED, server.busy / (SIMULATED * cores), disk.busy / SIMULATED)
