"""Callers that wait until the store has room for their jobs, each on a loop of its own."""

from __future__ import annotations

import asyncio


class Waiter:
    """One waiting caller, which any thread may release."""

    __slots__ = ("_loop", "future")

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self.future: asyncio.Future[None] = self._loop.create_future()

    def release(self) -> bool:
        """Let the caller try again. False when its loop is closed."""
        try:
            self._loop.call_soon_threadsafe(self._fire)
        except RuntimeError:
            return False
        return True

    def rearm(self) -> None:
        """Get ready to sleep again."""
        self.future = self._loop.create_future()

    def _fire(self) -> None:
        if not self.future.done():
            self.future.set_result(None)
