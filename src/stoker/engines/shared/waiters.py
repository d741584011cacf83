"""Coroutines that wait for a wake-up inside one loop.

A wake-up releases one waiter of its topic, or is remembered once when there is none. `CONTROL` releases all its waiters
and is remembered only where one ever waited for it. A waiter that is canceled after it was released passes its wake-up
on, so none is lost.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from stoker.engines.base import CONTROL

_NOTHING = ""


class TopicWaiters:
    """The waiters of one engine, by topic in the order they came."""

    __slots__ = ("_control_waited", "_remembered", "_waiters")

    def __init__(self) -> None:
        self._waiters: dict[str, dict[asyncio.Future[str], Sequence[str]]] = {}
        self._remembered: set[str] = set()
        self._control_waited = False

    async def wait(self, topics: Sequence[str], timeout: float) -> frozenset[str]:
        """Sleep until woken; the empty set when time ran out."""
        self._control_waited = self._control_waited or CONTROL in topics
        if found := self._remembered.intersection(topics):
            self._remembered -= found
            return frozenset(found)
        loop = asyncio.get_running_loop()
        future: asyncio.Future[str] = loop.create_future()
        for topic in topics:
            self._waiters.setdefault(topic, {})[future] = topics
        alarm = loop.call_later(max(timeout, 0), _give_up, future)
        try:
            return frozenset({await future} - {_NOTHING})
        except asyncio.CancelledError:
            if future.done() and not future.cancelled() and future.result() != _NOTHING:
                self.wake(future.result())
            raise
        finally:
            alarm.cancel()
            self._leave(future, topics)

    def wake(self, topic: str) -> None:
        """Release one waiter (of `CONTROL` all), or remember."""
        reached = False
        for future, topics in list(self._waiters.get(topic, {}).items()):
            self._leave(future, topics)
            # One whose time ran out, or that was canceled just now, is still listed but cannot be released.
            if not future.done():
                future.set_result(topic)
                reached = True
                if topic != CONTROL:
                    return
        if not reached:
            self.remember(topic)

    def remember(self, topic: str) -> None:
        """Keep a wake-up for the next waiter; of `CONTROL` only where one ever waited."""
        if topic != CONTROL or self._control_waited:
            self._remembered.add(topic)

    def remembers(self, topics: Sequence[str]) -> bool:
        """Whether a wait for these topics would return at once."""
        return not self._remembered.isdisjoint(topics)

    def waited_for(self) -> list[str]:
        """The topics that have waiters now."""
        return [topic for topic in self._waiters if topic != CONTROL]

    def dismiss(self) -> None:
        """Release all waiters without a topic: the engine closes."""
        for waiting in list(self._waiters.values()):
            for future, topics in list(waiting.items()):
                self._leave(future, topics)
                _give_up(future)

    def _leave(self, future: asyncio.Future[str], topics: Sequence[str]) -> None:
        for topic in topics:
            waiting = self._waiters.get(topic)
            if waiting is not None and waiting.pop(future, None) is not None and not waiting:
                del self._waiters[topic]


def _give_up(future: asyncio.Future[str]) -> None:
    if not future.done():
        future.set_result(_NOTHING)
