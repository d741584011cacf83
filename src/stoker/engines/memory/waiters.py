"""Coroutines that wait for a wake-up, in one loop and across the loops of all engines on a store.

Each engine has a `Hub`. A wake-up reaches every hub on the store; a hub releases one of its waiters, or remembers the
wake-up once when it has none. `CONTROL` releases all waiters of a hub and is remembered only by a hub that ever waited
for it. A waiter that was released but canceled before it could run passes its wake-up on, so none is lost.

A waiter of another loop is released through that loop. Call what is not `async` under the store's lock.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from contextlib import suppress

from stoker.engines.base import CONTROL


class Waiter:
    """One waiting coroutine. `topic` is what released it; None: its time ran out."""

    __slots__ = ("_loop", "future", "topic", "topics")

    def __init__(self, topics: Sequence[str] = ()) -> None:
        self._loop = asyncio.get_running_loop()
        self.future: asyncio.Future[None] = self._loop.create_future()
        self.topics = topics
        self.topic: str | None = None

    def fire(self) -> None:
        """Resume the coroutine; on its own loop only."""
        if not self.future.done():
            self.future.set_result(None)

    def release(self, topic: str | None = None) -> bool:
        """Resume the coroutine, from any thread, also one without a loop. False when its loop is closed."""
        self.topic = topic
        with suppress(RuntimeError):
            if asyncio.get_running_loop() is self._loop:
                self.fire()
                return True
        try:
            self._loop.call_soon_threadsafe(self.fire)
        except RuntimeError:
            return False
        return True

    def rearm(self) -> None:
        """Get ready to sleep again."""
        self.future = self._loop.create_future()


class Hub:
    """The waiters of one engine, by topic in the order they came, and what is remembered for the next one."""

    __slots__ = ("_control_waited", "_lock", "_remembered", "_waiters")

    def __init__(self, lock: threading.Lock) -> None:
        self._lock = lock
        self._waiters: dict[str, dict[Waiter, None]] = {}
        self._remembered: set[str] = set()
        self._control_waited = False

    async def wait(self, topics: Sequence[str], timeout: float) -> frozenset[str]:
        """Sleep until a topic is woken, or as long as allowed."""
        waiter = Waiter(topics)
        with self._lock:
            remembered = self._recall(topics)
            if remembered:
                return remembered
            self._join(waiter)
        timer = asyncio.get_running_loop().call_later(max(timeout, 0), waiter.fire)
        try:
            await waiter.future
        except asyncio.CancelledError:
            with self._lock:
                if waiter.topic is not None:
                    self.wake(waiter.topic)
            raise
        finally:
            timer.cancel()
            with self._lock:
                self._leave(waiter)
        return frozenset() if waiter.topic is None else frozenset({waiter.topic})

    def wake(self, topic: str) -> None:
        """Release one waiter (of `CONTROL` all), or remember."""
        reached = False
        while waiting := self._waiters.get(topic):
            waiter = next(iter(waiting))
            self._leave(waiter)
            reached = waiter.release(topic) or reached
            if reached and topic != CONTROL:
                return
        if not reached and (topic != CONTROL or self._control_waited):
            self._remembered.add(topic)

    def dismiss(self) -> None:
        """Release all waiters without a topic: the engine closes."""
        for waiter in {waiter for waiting in self._waiters.values() for waiter in waiting}:
            waiter.release()
        self._waiters.clear()
        self._remembered.clear()

    def _recall(self, topics: Sequence[str]) -> frozenset[str]:
        """Return and forget the remembered wake-ups of these topics."""
        if CONTROL in topics:
            self._control_waited = True
        found = self._remembered.intersection(topics)
        self._remembered -= found
        return frozenset(found)

    def _join(self, waiter: Waiter) -> None:
        for topic in waiter.topics:
            self._waiters.setdefault(topic, {})[waiter] = None

    def _leave(self, waiter: Waiter) -> None:
        for topic in waiter.topics:
            waiting = self._waiters.get(topic)
            if waiting is not None:
                waiting.pop(waiter, None)
                if not waiting:
                    del self._waiters[topic]
