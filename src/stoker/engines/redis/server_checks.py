"""Checks the servers' settings, when the engine is opened and every half minute after that.

Administrators change policies at run time. While a server may evict, the engine refuses inserts; stored jobs go on.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable

from stoker.engines.redis.connection import Connection, end
from stoker.engines.redis.describe import REMEDY, eviction, objection, version, warnings
from stoker.engines.redis.lost_writes import WriteCounter
from stoker.engines.redis.server_info import ServerInfo, inspect
from stoker.model.errors import EngineError, EngineRefused

_log = logging.getLogger("stoker.engines.redis")

LOOK_EVERY = 30.0
"""Seconds between two checks of the settings."""

REPORT_EVERY = 0.25
"""Seconds between two checks for lost writes."""


class ServerChecks:
    """Checks the servers of one engine in the background."""

    def __init__(self, connection: Connection, counter: WriteCounter | None = None, every: float = LOOK_EVERY) -> None:
        self._connection = connection
        self._write_counter = counter
        self._every = every
        self._logged: set[str] = set()
        self._task: asyncio.Task[None] | None = None
        self._over = False
        self.evicting: str | None = None
        self.version = ""

    async def admit(self) -> None:
        """Refuse servers that Stoker may not use; log warnings about the others."""
        nodes = await inspect(self._connection)
        refusal = objection(nodes)
        if refusal is not None:
            raise refusal
        self._log_changes(nodes)

    async def look(self) -> list[ServerInfo]:
        """Read the settings again and log what is new."""
        nodes = await inspect(self._connection)
        self._log_changes(nodes)
        return nodes

    def insist(self) -> None:
        """Raise `EngineRefused` while a server may evict keys."""
        if self.evicting is not None:
            raise EngineRefused(f"{self.evicting} Nothing was stored; jobs that are stored go on. {REMEDY}")

    def start(self) -> None:
        """Begin to check in the background."""
        self._over = False
        self._task = asyncio.create_task(self._keep_looking(), name="stoker-redis-server-checks")

    async def stop(self) -> None:
        """End the checks."""
        if self._task is None:
            return
        self._over = True
        await end(self._task)
        self._task = None
        if self._write_counter is not None:
            with contextlib.suppress(EngineError):
                await self._write_counter.remove()

    async def _keep_looking(self) -> None:
        looked = time.monotonic()
        # Not only until it is canceled: the driver may take a cancellation for its own timeout.
        while not self._over:
            await asyncio.sleep(min(REPORT_EVERY, self._every))
            await self._attempt(self._look_for_losses)
            if time.monotonic() - looked >= self._every:
                looked = time.monotonic()
                await self._attempt(self.look)

    async def _look_for_losses(self) -> None:
        for loss in await self._write_counter.report() if self._write_counter is not None else ():
            _log.error(loss)

    async def _attempt(self, something: Callable[[], Awaitable[object]]) -> None:
        try:
            await something()
        except EngineError:
            pass  # The calls of jobs and workers report a server that cannot be reached.
        except Exception:  # noqa: BLE001 - the checks must go on
            _log.exception("a check of the Redis server failed; the next one follows soon")

    def _log_changes(self, nodes: list[ServerInfo]) -> None:
        self.version = version(nodes)
        before, self.evicting = self.evicting, eviction(nodes)
        found = warnings(nodes)
        for text in found:
            if text not in self._logged:
                _log.warning(text)
        if before is not None and self.evicting is None:
            _log.warning("the server no longer evicts keys: inserts are accepted again")
        self._logged = set(found)
