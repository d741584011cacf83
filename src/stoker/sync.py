"""One loop in a thread per process, for callers that have none.

`jobs.run(awaitable)` and `enqueue_sync` go through here. The thread starts on first use and is made anew after a fork,
where threads do not survive.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Coroutine
from typing import Any, TypeVar

from stoker.model.errors import StokerError

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

    @staticmethod
    def _serve(loop: asyncio.AbstractEventLoop) -> None:
        asyncio.set_event_loop(loop)
        loop.run_forever()

    def run(self, coroutine: Coroutine[Any, Any, T], instead: str) -> T:
        """Run a coroutine to its end. Refused inside a running loop, which it would block: `instead` names the way."""
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            return asyncio.run_coroutine_threadsafe(coroutine, self.loop).result()
        coroutine.close()
        raise StokerError(f"this thread runs an event loop, which a waiting call would block; use {instead} here")


shared = LoopThread()
os.register_at_fork(after_in_child=shared.__init__)  # type: ignore[misc]
