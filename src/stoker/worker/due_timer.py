"""The timer of an idle worker: it fires when the next job of the worker's queues is due.

The worker asks the store for that time (`ahead`) whenever a claim found less than it asked for, and at every poll. It
knows without asking when a job is due that it has put back itself. The timer also fires when a queue's cool-down ends.
It does not fire for a paused queue. The worker claims from neither meanwhile.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from stoker.model.errors import StokerError
from stoker.model.time import SECOND, Span

if TYPE_CHECKING:
    from stoker.engines.base import Engine
    from stoker.worker.fetcher import Fetcher

SETTLE_DOWN = 0.003
"""Seconds between a claim and asking what is next: the claimed job goes first."""

ASK_EVERY = 0.02
"""Shortest time in seconds between two calls, however often the worker is woken."""

LATER = 0.001
"""Seconds the timer fires after the due time, because a claim that comes too early finds nothing."""


class DueTimer:
    """Asks for jobs that become due without a wake-up. `poll`: longest pause in seconds between two tries."""

    def __init__(self, engine: Engine, fetcher: Fetcher, poll: float) -> None:
        self._engine = engine
        self._fetcher = fetcher
        self._poll = poll
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._changed = asyncio.Event()
        self._fired = False
        self._asked = 0.0
        self.pause = LATER
        """Seconds until the worker asks again for a job that is due but was not handed out."""
        self.open: frozenset[str] | None = None
        """The queues that hand out jobs, as far as known; None before the first call."""

    @property
    def fires_in(self) -> float | None:
        """Seconds until the timer fires; None when it is not set."""
        return None if self._timer is None else self._timer.when() - self._loop.time()

    @property
    def sleeps(self) -> bool:
        """Are all queues closed until a known time, the end of a cool-down for instance? Then a poll finds nothing."""
        return self.open == frozenset() and self._timer is not None

    def reset(self) -> None:
        """Ask the store again: the next due time may have changed."""
        self._changed.set()

    def expect(self, after: Span) -> None:
        """Expect a job that this worker has put back for so long."""
        self._arm(after / SECOND + LATER)

    async def run(self, ask_for_jobs: Callable[[], Awaitable[None]]) -> None:
        """Ask for the next due time, sleep, ask for jobs."""
        try:
            while True:
                await self._changed.wait()
                self._changed.clear()
                pause = max(SETTLE_DOWN, self._asked + ASK_EVERY - time.monotonic())
                if self._fired:
                    self._fired = False
                    self._fetcher.wake()
                    await ask_for_jobs()
                    pause = SETTLE_DOWN  # the next job may be due right behind this one
                await asyncio.sleep(pause)
                await self._ask()
        finally:
            self._disarm()

    async def _ask(self) -> None:
        queues = [queue for lane in self._fetcher.lanes if not lane.may_have_more for queue in lane.queues]
        if not queues:
            return  # a lane that may have more asks anyway, and resets the timer when it finds nothing
        if not self._fired:
            self._changed.clear()
        planned = self._disarm()  # a job that is put back during the call sets it again
        self._asked = time.monotonic()
        try:
            ahead = await self._engine.jobs.ahead(queues)
        except StokerError:
            return  # the next poll asks again
        closed = frozenset(queues) - ahead.open
        served = {queue for lane in self._fetcher.lanes for queue in lane.queues}
        self.open = frozenset(served if self.open is None else self.open | ahead.open) - closed
        next_due = ahead.wait
        if next_due == 0:
            # Due, but not handed out: other workers claim them, or a limit is reached. Ask less and less often. A try
            # that was planned stays: however often the worker is woken, that must not put the try off for ever.
            self._arm(self.pause if planned is None else min(self.pause, planned - self._loop.time()))
            next_due = ahead.later
        else:
            self.pause = LATER
        if next_due is not None:
            self._arm(next_due / SECOND + LATER)

    def _arm(self, delay: float) -> None:
        """Fire after so many seconds, unless the timer is set to an earlier time."""
        if self.fires_in is not None and self.fires_in <= delay:
            return
        self._disarm()
        self._timer = self._loop.call_later(delay, self._fire)

    def _fire(self) -> None:
        self._timer = None
        self._fired = True
        self.pause = min(self.pause * 2, self._poll)
        self._changed.set()

    def _disarm(self) -> float | None:
        """Stop the timer; returns the loop's time at which it would have fired."""
        if self._timer is None:
            return None
        timer, self._timer = self._timer, None
        timer.cancel()
        return timer.when()
