"""How a handler learns that it should stop: its worker stops, or its run is over."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Generator
from contextlib import suppress
from enum import Enum
from typing import Any


class Stopping:
    """Whether the worker is stopping: true from the beginning of the grace, until which running jobs may finish.

    A long handler looks at it now and then (`if current().stopping:`), or waits for it: `await current().stopping`
    in an async handler, `current().stopping.wait(5)` in a thread or process. Then it saves what it has and raises
    `Snooze`, and the next run goes on from there.
    """

    __slots__ = ("_event", "_lock", "_waiters")

    def __init__(self) -> None:
        self._event = threading.Event()
        self._lock = threading.Lock()
        self._waiters: set[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = set()

    def __bool__(self) -> bool:
        return self._event.is_set()

    def wait(self, timeout: float | None = None) -> bool:
        """Block this thread until the worker is stopping, at most `timeout` seconds; returns whether it is."""
        return self._event.wait(timeout)

    def __await__(self) -> Generator[Any, None, None]:
        return self._set_by_worker().__await__()

    async def _set_by_worker(self) -> None:
        waiter = asyncio.get_running_loop(), asyncio.Event()
        with self._lock:
            if self._event.is_set():
                return
            self._waiters.add(waiter)
        try:
            await waiter[1].wait()
        finally:
            with self._lock:
                self._waiters.discard(waiter)

    def set(self) -> None:
        """Mark the worker as stopping; may be called from any thread."""
        with self._lock:
            self._event.set()
            waiters = list(self._waiters)
        for loop, event in waiters:
            with suppress(RuntimeError):  # that loop is closed: nothing waits there any more
                loop.call_soon_threadsafe(event.set)


class CancelToken:
    """Whether the run should stop, and why: the user, a shutdown, a timeout or a lost claim.

    An async handler is also interrupted by CancelledError; a sync one in its thread has to check here. `cause` is what
    the worker knows of it (`executors.outcomes.Cause`).
    """

    __slots__ = ("cause", "reason")

    def __init__(self) -> None:
        self.reason: str | None = None
        self.cause: Enum | None = None

    @property
    def requested(self) -> bool:
        """Should this run stop?"""
        return self.reason is not None

    def __bool__(self) -> bool:
        return self.reason is not None
