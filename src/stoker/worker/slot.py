"""A slot: one long-lived coroutine that runs job after job. No Task is made per job, not even for a timeout."""

from __future__ import annotations

import asyncio

from stoker.context import Context
from stoker.executors.outcomes import Cause

AGAIN_AFTER = 1.0
MOST_TRIES = 5


class Slot:
    """What others need to know about a slot in order to interrupt its run."""

    __slots__ = ("abandoned", "cause", "context", "on_loop", "shaken", "task", "tries")

    def __init__(self, task: asyncio.Task[None]) -> None:
        self.task = task
        self.context: Context | None = None
        self.cause: Cause | None = None
        self.on_loop = True
        self.tries = 0
        self.abandoned = False
        self.shaken = False

    def interrupt(self, cause: Cause, reason: str) -> None:
        """Ask the run to stop. The first cause stays; a thread only sees the token unless its time is up."""
        if self.context is None:
            return
        if self.cause is None:
            self.cause = cause
            self.context.cancel.reason = reason
        if self.on_loop or cause in (Cause.TIMEOUT, Cause.SHUTDOWN):
            self.tries += 1
            self.task.cancel()

    @property
    def stuck(self) -> bool:
        """Has the handler swallowed every interruption so far?"""
        return self.tries > MOST_TRIES

    def recover(self) -> None:
        """Take back interruptions that were delivered, so that the slot's Task can go on."""
        self.shaken = True
        self._take_back()

    def _take_back(self) -> None:
        while self.task.cancelling():
            self.task.uncancel()

    async def calm_down(self) -> None:
        """Swallow an interruption that came too late for the run it was meant for: the next one is innocent.

        It may be Stoker's own, or one by which the handler meant itself.
        """
        self.shaken = False
        try:
            await asyncio.sleep(0)
        except asyncio.CancelledError:
            self._take_back()
