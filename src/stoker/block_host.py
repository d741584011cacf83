"""A context manager in a Task of its own: a cancel of the handler cannot end a transaction half-way."""

from __future__ import annotations

import asyncio
from contextlib import AbstractAsyncContextManager
from typing import Any


class Host:
    """Enters and leaves an async context manager in a Task of its own, which no cancel of the handler reaches."""

    def __init__(self, manager: AbstractAsyncContextManager[Any]) -> None:
        self._manager = manager
        self._task: asyncio.Task[None] | None = None

    async def enter(self) -> Any:
        """Enter it; returns what it yields, and raises what entering raises."""
        loop = asyncio.get_running_loop()
        self._entered: asyncio.Future[Any] = loop.create_future()
        self._left: asyncio.Future[BaseException | None] = loop.create_future()
        self._task = loop.create_task(self._live(), name="stoker-block")
        try:
            await asyncio.wait([self._entered, self._task], return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            self._task.cancel()
            await asyncio.wait([self._task])
            if not self._task.cancelled():
                self._task.exception()
            raise
        if not self._entered.done():
            self._task.result()
        return self._entered.result()

    async def leave(self, error: BaseException | None) -> None:
        """Leave it, with an error or without; raises what leaving raises."""
        assert self._task is not None
        if not self._left.done():
            self._left.set_result(error)
        await asyncio.wait([self._task])
        self._task.result()

    async def _live(self) -> None:
        handle = await self._manager.__aenter__()
        self._entered.set_result(handle)
        try:
            error = await self._left
        except asyncio.CancelledError as canceled:  # the caller was canceled while the manager was entered
            error = canceled
        if error is None:
            await self._manager.__aexit__(None, None, None)
        else:
            await self._manager.__aexit__(type(error), error, error.__traceback__)
