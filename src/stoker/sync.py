"""One loop in a thread per process, for callers that have none.

`jobs.run(awaitable)` and every method that ends in `_sync` go through here. `in_sync` makes such a method of an async
one: `pause_sync = in_sync(pause)`. The thread starts on first use and is made anew after a fork, where threads do not
survive.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import os
import threading
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Concatenate, ParamSpec, TypeVar

from stoker.model.errors import StokerError

P = ParamSpec("P")
S = TypeVar("S")
T = TypeVar("T")


class LoopThread:
    """Runs coroutines on its own loop while the calling thread waits."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._pid = 0

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The loop, started if need be."""
        with self._lock:
            if self._loop is None or self._pid != os.getpid() or self._loop.is_closed():
                self._loop = asyncio.new_event_loop()
                self._pid = os.getpid()
                threading.Thread(target=self._serve, args=(self._loop,), name="stoker-sync", daemon=True).start()
            return self._loop

    @property
    def started(self) -> asyncio.AbstractEventLoop | None:
        """The loop if it runs in this process already."""
        return self._loop if self._pid == os.getpid() else None

    @staticmethod
    def _serve(loop: asyncio.AbstractEventLoop) -> None:
        asyncio.set_event_loop(loop)
        loop.run_forever()

    def run(self, awaitable: Awaitable[T], instead: str) -> T:
        """Run an awaitable to its end and return its result.

        Raises inside a running loop, which it would block; `instead` names the alternative. Interrupting the wait
        (Ctrl-C) cancels the awaitable.
        """
        try:
            check_no_loop(instead)
        except StokerError:
            if inspect.iscoroutine(awaitable):
                awaitable.close()
            raise
        future = asyncio.run_coroutine_threadsafe(_awaited(awaitable), self.loop)
        try:
            return future.result()
        finally:
            future.cancel()


def check_no_loop(instead: str) -> None:
    """Refuse to block a thread that runs an event loop; `instead` names the alternative."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return
    raise StokerError(f"this thread runs an event loop, which a waiting call would block; use {instead} here")


async def _awaited(awaitable: Awaitable[T]) -> T:
    return await awaitable


shared = LoopThread()
if hasattr(os, "register_at_fork"):  # there is no fork on Windows
    os.register_at_fork(after_in_child=shared.__init__)  # type: ignore[misc]


def in_sync(method: Callable[Concatenate[S, P], Coroutine[Any, Any, T]]) -> Callable[Concatenate[S, P], T]:
    """The same method for code without a loop, under its name with `_sync`."""
    name = method.__name__

    @functools.wraps(method)
    def waiting(self: S, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return shared.run(method(self, *args, **kwargs), f"`await {name}(...)` of {self!r}")

    waiting.__name__, waiting.__qualname__ = f"{name}_sync", f"{method.__qualname__}_sync"
    waiting.__doc__ = f"`{name}` for code without a loop."
    return waiting
