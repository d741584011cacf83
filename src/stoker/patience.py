"""How long a caller waits for the end of a job or of a group: `result()`, `wait()` and the like."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from stoker.model.errors import InvalidArgument
from stoker.model.time import SECOND, Seconds, span

if TYPE_CHECKING:
    from stoker.app import Stoker

TRUSTED = 1.0
"""Seconds for which a caller in a `TestKit` trusts that a worker is about to run what it waits for."""

LOOK = 0.25
"""Seconds after which it looks again whether one does."""


class Patience:
    """The time that a caller gives, in seconds from now (`limit`); without one it waits up to `longest` per look.

    Where the app knows that no worker runs its jobs (`Stoker.unattended`), the time is over as soon as that is seen.
    """

    __slots__ = ("_app", "_longest", "_trusts", "_until", "limit")

    def __init__(self, app: Stoker, timeout: Seconds | None, longest: float) -> None:
        self._app = app
        self._longest = longest
        self.limit = None if timeout is None else span(timeout, "timeout", InvalidArgument) / SECOND
        now = time.monotonic()
        self._until = None if self.limit is None else now + self.limit
        self._trusts = now + TRUSTED

    @property
    def over(self) -> bool:
        """Is the time over?"""
        return self._until is not None and time.monotonic() >= self._until

    async def left(self) -> float:
        """Seconds to wait before the next look; 0 when the time is over."""
        now = time.monotonic()
        left = self._longest if self._until is None else max(self._until - now, 0)
        if self._app.unattended is None:
            return left
        if now >= self._trusts and await self._app.unattended():
            self._until = now
            return 0
        return min(left, LOOK)

    async def hint(self) -> str:
        """What to do where no worker runs the jobs of the app; empty: one may."""
        return "" if self._app.unattended is None else await self._app.unattended()
