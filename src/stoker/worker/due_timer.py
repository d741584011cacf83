"""The alarm of an idle worker: it rings when the next job of the worker's queues is due.

The store is asked for that time (`ahead`) whenever a claim found less than it asked for, and with every look. What this
worker itself puts back for later is known without asking. A queue that cools down rings at its deadline; one that is
paused does not ring, and no claim is spent on either meanwhile.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

from stoker.model.errors import StokerError
from stoker.model.time import SECOND, Span

if TYPE_CHECKING:
    from stoker.worker.worker import Worker

SETTLE_DOWN = 0.003
"""Seconds between a claim and the question what comes next: the job that was claimed goes first."""

ASK_EVERY = 0.02
"""Seconds between two questions, at least: a worker that is woken all the time does not ask all the time."""

LATER = 0.001
"""Seconds the alarm rings behind the due time, because a claim that comes too early finds nothing."""


class DueTimer:
    """When to look for work that nobody announces."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        self._engine = worker.engine
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._stirred = asyncio.Event()
        self._rang = False
        self._asked = 0.0
        self.pause = LATER
        """Seconds until a job that is due but was not handed out is asked for again."""
        self.open: frozenset[str] | None = None
        """The queues that hand out jobs, as far as known; None before the first answer."""

    @property
    def rings_in(self) -> float | None:
        """Seconds until the alarm rings; None when it is not set."""
        return None if self._timer is None else self._timer.when() - self._loop.time()

    def reset(self) -> None:
        """Something may have changed: ask the store again."""
        self._stirred.set()

    def expect(self, after: Span) -> None:
        """A job of this worker was put back for so long."""
        self._arm(after / SECOND + LATER)

    async def run(self) -> None:
        """Ask, sleep, ring."""
        try:
            while True:
                await self._stirred.wait()
                self._stirred.clear()
                pause = max(SETTLE_DOWN, self._asked + ASK_EVERY - time.monotonic())
                if self._rang:
                    self._rang = False
                    self._worker.fetcher.wake()
                    await self._worker.store_loop.answer()
                    pause = SETTLE_DOWN  # the next job may be due right behind this one
                await asyncio.sleep(pause)
                await self._ask()
        finally:
            self._disarm()

    async def _ask(self) -> None:
        queues = [queue for lane in self._worker.lanes if not lane.may_have_more for queue in lane.queues]
        if not queues:
            return  # whoever is hungry asks for work anyway, and comes back here when there is none
        if not self._rang:
            self._stirred.clear()
        self._disarm()  # what is put back while the store is asked sets it again
        self._asked = time.monotonic()
        try:
            ahead = await self._engine.ahead(queues)
        except StokerError:
            return  # the next look asks again
        closed = frozenset(queues) - ahead.open
        served = {queue for lane in self._worker.lanes for queue in lane.queues}
        self.open = frozenset(served if self.open is None else self.open | ahead.open) - closed
        if ahead.wait is None or ahead.wait > 0:
            self.pause = LATER
            if ahead.wait is not None:
                self._arm(ahead.wait / SECOND + LATER)
        else:
            # Due, but not handed out: others are at it, or this worker has its share. Less and less often.
            self._arm(self.pause)
            self.pause = min(self.pause * 2, self._worker.settings.poll / SECOND)

    def _arm(self, delay: float) -> None:
        """Ring after so many seconds, unless the alarm is set to an earlier time."""
        if self._timer is not None and self._timer.when() <= self._loop.time() + delay:
            return
        self._disarm()
        self._timer = self._loop.call_later(delay, self._ring)

    def _ring(self) -> None:
        self._timer = None
        self._rang = True
        self._stirred.set()

    def _disarm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
