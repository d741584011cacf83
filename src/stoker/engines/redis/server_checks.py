"""Looking after the servers' settings: when the engine is opened, and from time to time after that.

Policies are changed at run time. While a server may evict, nothing new is promised: inserts are refused, and everything
that is stored already goes on.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable

from stoker.engines.redis.connection import Connection
from stoker.engines.redis.describe import REMEDY, eviction, objection, warnings
from stoker.engines.redis.server_info import ServerInfo, inspect
from stoker.engines.redis.write_counter import WriteCounter
from stoker.model.errors import EngineError, EngineRefused

_log = logging.getLogger("stoker.engines.redis")

LOOK_EVERY = 30.0
"""Seconds between two looks at the settings."""

SIGN_EVERY = 0.25
"""Seconds between two looks at whether the store went back."""


class ServerChecks:
    """Looks at the servers' settings when the engine is opened and from time to time after that."""

    def __init__(self, connection: Connection, counter: WriteCounter | None = None, every: float = LOOK_EVERY) -> None:
        self._connection = connection
        self._write_counter = counter
        self._every = every
        self._told: set[str] = set()
        self._task: asyncio.Task[None] | None = None
        self._over = False
        self.evicting: str | None = None

    async def admit(self) -> None:
        """Refuse servers that Stoker may not use; say once what people should know about the others."""
        nodes = await inspect(self._connection)
        refusal = objection(nodes)
        if refusal is not None:
            raise refusal
        self._tell(nodes)

    async def look(self) -> list[ServerInfo]:
        """Read the settings again and tell what is new."""
        nodes = await inspect(self._connection)
        self._tell(nodes)
        return nodes

    def insist(self) -> None:
        """Raise `EngineRefused` while the server may drop what it would be given."""
        if self.evicting is not None:
            raise EngineRefused(f"{self.evicting} Nothing was stored; jobs that are stored go on. {REMEDY}")

    def start(self) -> None:
        """Look from time to time, in the background."""
        self._over = False
        self._task = asyncio.create_task(self._keep_looking(), name="stoker-redis-server-checks")

    async def stop(self) -> None:
        """Look no more."""
        if self._task is None:
            return
        self._over = True
        while not self._task.done():
            self._task.cancel()  # the driver may swallow one
            await asyncio.wait([self._task], timeout=0.5)
        self._task = None
        if self._write_counter is not None:
            with contextlib.suppress(EngineError):
                await self._write_counter.remove()

    async def _keep_looking(self) -> None:
        looked = time.monotonic()
        # Not only until it is canceled: a driver may take a cancellation for a timeout of its own.
        while not self._over:
            await asyncio.sleep(min(SIGN_EVERY, self._every))
            await self._attempt(self._look_for_losses)
            if time.monotonic() - looked >= self._every:
                looked = time.monotonic()
                await self._attempt(self.look)

    async def _look_for_losses(self) -> None:
        for told in await self._write_counter.leave() if self._write_counter is not None else ():
            _log.error(told)

    async def _attempt(self, something: Callable[[], Awaitable[object]]) -> None:
        try:
            await something()
        except EngineError:
            pass  # A server that cannot be asked now has other troubles, which others tell.
        except Exception:  # noqa: BLE001 - a guard that dies guards nothing
            _log.exception("a look at the Redis server failed; the next one is due soon")

    def _tell(self, nodes: list[ServerInfo]) -> None:
        before, self.evicting = self.evicting, eviction(nodes)
        found = warnings(nodes)
        for text in found:
            if text not in self._told:
                _log.warning(text)
        if before is not None and self.evicting is None:
            _log.warning("the server evicts no longer: inserts are accepted again")
        self._told = set(found)
