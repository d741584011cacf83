"""The call in which an engine waits for a token, and the way to end it before its time.

`CLIENT UNBLOCK` comes over a second connection and never loses a token: what the call had taken by then is its answer.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

from stoker.engines.redis.connection import Connection, Socket, blocking, hang_up
from stoker.model.errors import EngineError

LONGEST_BLOCK = 20
LONGEST_UNBLOCK = 1.0
"""Seconds until a block that was ended has to answer."""


class Block:
    """One call that waits for a token of some queues, until it is ended."""

    def __init__(self, line: Line, topics: frozenset[str]) -> None:
        self.topics = topics
        self._line = line
        self._over = asyncio.Event()
        self._ending: asyncio.Task[None] | None = None

    def end(self) -> None:
        """Have it answer soon: with the token that it had taken by then, else with nothing."""
        if self._ending is None:
            self._ending = asyncio.get_running_loop().create_task(self._end())

    async def over(self) -> None:
        """It has answered."""
        self._over.set()
        if self._ending is not None:
            await self._ending

    async def _end(self) -> None:
        """Again and again: the order may overtake the block. One that does not end hangs on a dead connection."""
        try:
            async with asyncio.timeout(LONGEST_UNBLOCK):
                while not self._over.is_set():
                    await self._line.unblock()
                    with contextlib.suppress(TimeoutError):
                        async with asyncio.timeout(0.005):
                            await self._over.wait()
        except (EngineError, TimeoutError):
            await self._line.close()


class Line:
    """The connection an engine blocks on, and a second one to end the block."""

    def __init__(self, connection: Connection, key: str) -> None:
        self._connection = connection
        self._key = key
        self._socket: Socket | None = None
        self._second: Socket | None = None
        self._id: Any = None

    async def pop(self, keys: list[bytes]) -> bytes | None:
        """The list a token was taken from; None when time ran out or the block was ended."""
        if self._socket is None:
            self._socket = await self._connection.dedicated(self._key)
            self._id = await blocking(self._socket, ("CLIENT", "ID"), 0)
        found = await blocking(self._socket, ("BLPOP", *keys, LONGEST_BLOCK), LONGEST_BLOCK)
        return None if found is None else found[0]

    async def unblock(self) -> None:
        """End a block, if there is one."""
        if self._id is not None:
            if self._second is None:
                self._second = await self._connection.dedicated(self._key)
            await blocking(self._second, ("CLIENT", "UNBLOCK", self._id), 0)

    async def close(self) -> None:
        """Hang up; whoever blocks is told that the connection is lost."""
        sockets, self._socket, self._second, self._id = (self._socket, self._second), None, None, None
        for socket in sockets:
            if socket is not None:
                await hang_up(socket)
