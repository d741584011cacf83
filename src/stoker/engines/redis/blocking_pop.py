"""The blocking pop in which an engine waits for a wake-up token, and how it is ended early.

`CLIENT UNBLOCK`, sent over a second connection, ends the pop. It never loses a token: a pop that had taken one by then
returns it.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

from stoker.engines.redis.connection import Connection, Socket, blocking, hang_up
from stoker.model.errors import EngineError

LONGEST_BLOCK = 20
LONGEST_UNBLOCK = 1.0
"""Seconds within which a pop that was ended must return; otherwise its connection counts as dead."""


class BlockedPop:
    """One pop that waits for a token of some queues, until it is ended."""

    def __init__(self, connection: PopConnection, topics: frozenset[str]) -> None:
        self.topics = topics
        self._connection = connection
        self._over = asyncio.Event()
        self._ending: asyncio.Task[None] | None = None

    def end(self) -> None:
        """Make it return soon: with the token that it had taken by then, otherwise with nothing."""
        if self._ending is None:
            self._ending = asyncio.get_running_loop().create_task(self._end())

    async def over(self) -> None:
        """Note that it has returned."""
        self._over.set()
        if self._ending is not None:
            await self._ending

    async def _end(self) -> None:
        """Unblock until the pop returns: the first request may arrive at the server before the pop does."""
        try:
            async with asyncio.timeout(LONGEST_UNBLOCK):
                while not self._over.is_set():
                    await self._connection.unblock()
                    with contextlib.suppress(TimeoutError):
                        async with asyncio.timeout(0.005):
                            await self._over.wait()
        except (EngineError, TimeoutError):
            await self._connection.close()


class PopConnection:
    """The connection an engine blocks on, and a second one to end the block."""

    def __init__(self, connection: Connection, key: str) -> None:
        self._connection = connection
        self._key = key
        self._socket: Socket | None = None
        self._second: Socket | None = None
        self._id: Any = None

    async def pop(self, keys: list[bytes]) -> bytes | None:
        """The list a token was taken from; None when time ran out or the pop was ended."""
        if self._socket is None:
            self._socket = await self._connection.dedicated(self._key)
            self._id = await blocking(self._socket, ("CLIENT", "ID"), 0)
        found = await blocking(self._socket, ("BLPOP", *keys, LONGEST_BLOCK), LONGEST_BLOCK)
        return None if found is None else found[0]

    async def unblock(self) -> None:
        """End a pop, if there is one."""
        if self._id is not None:
            if self._second is None:
                self._second = await self._connection.dedicated(self._key)
            await blocking(self._second, ("CLIENT", "UNBLOCK", self._id), 0)

    async def close(self) -> None:
        """Close both connections; a pop that still blocks raises that its connection is lost."""
        sockets, self._socket, self._second, self._id = (self._socket, self._second), None, None, None
        for socket in sockets:
            if socket is not None:
                await hang_up(socket)
