"""An app's engines: one for every loop that uses the app, twins of one another on one store.

An engine is opened by the first coroutine of its loop that needs it, while the others wait. The engine that all are
twins of is never opened, so that a fork finds nothing in use; one that the user made himself serves the first loop that
comes, because a transaction belongs to the engine it was begun on. After a fork the child opens its own engines and
touches nothing of its parent's.
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
from collections.abc import Callable

from stoker.engines.base import Engine
from stoker.model.errors import StokerError
from stoker.timeline import Buffer

logger = logging.getLogger("stoker.app")


class Home:
    """What an app has on one loop: an engine, and the timer of the next write of events."""

    __slots__ = ("_flushing", "_opening", "_timer", "_warned", "engine", "is_open", "loop")

    def __init__(self, loop: asyncio.AbstractEventLoop, engine: Engine) -> None:
        self.loop = loop
        self.engine = engine
        self.is_open = False
        self._warned = False
        self._opening = asyncio.Lock()
        self._timer: asyncio.TimerHandle | None = None
        self._flushing: asyncio.Task[None] | None = None

    async def open(self) -> None:
        """Open the engine, once."""
        async with self._opening:
            if not self.is_open:
                await self.engine.open()
                self.is_open = True

    async def close(self, buffer: Buffer | None) -> None:
        """Write the events that are still buffered and close the engine, whatever becomes of the events."""
        if self._timer is not None:
            self._timer.cancel()
        if self._flushing is not None:
            self._flushing.cancel()
            await asyncio.gather(self._flushing, return_exceptions=True)
        try:
            if self.is_open and buffer is not None and len(buffer):
                await buffer.flush(self.engine)
        finally:
            self.is_open = False
            await self.engine.close()

    def flush_soon(self, buffer: Buffer, after: float) -> None:
        """See to it that what was buffered is written within `after` seconds."""
        if self._timer is None:
            self._timer = self.loop.call_later(after, self._begin, buffer, after)

    def _begin(self, buffer: Buffer, after: float) -> None:
        self._flushing = self.loop.create_task(self._flush(buffer, after), name="stoker-events")

    async def _flush(self, buffer: Buffer, after: float) -> None:
        try:
            if self.is_open and len(buffer):
                await buffer.flush(self.engine)
                self._warned = False
        except StokerError as error:
            level = logging.DEBUG if self._warned else logging.WARNING  # once until it works again
            logger.log(level, "events could not be written to the timeline: %s Trying again.", error)
            self._warned = True
        self._timer = self._flushing = None
        if self.is_open and len(buffer):
            self.flush_soon(buffer, after)


class Homes:
    """The homes of one app, by loop."""

    def __init__(self, make: Callable[[], Engine], given: Engine | None = None) -> None:
        self._make = make
        self._given = given
        self._root = given
        self._spare = given
        self._homes: dict[int, Home] = {}
        self._abandoned: list[dict[int, Home]] = []
        self._lock = threading.RLock()
        self._pid = os.getpid()

    def root(self) -> Engine:
        """The engine all others are twins of."""
        with self._lock:
            if self._root is None:
                self._root = self._make()
            return self._root

    def nearby(self) -> Engine:
        """An engine for a call that needs no loop: an open one if there is one, this loop's first.

        Only an open engine can tell others of what a user commits later.
        """
        if self._given is not None or self._pid != os.getpid():
            return self.root()
        try:
            here = id(asyncio.get_running_loop())
        except RuntimeError:
            here = 0
        with self._lock:
            homes = sorted(self._homes.items(), key=lambda item: item[0] != here)
            return next((home.engine for _, home in homes if home.is_open and not home.loop.is_closed()), self.root())

    async def here(self) -> Home:
        """The home of the running loop, open."""
        loop = asyncio.get_running_loop()
        home = self._homes.get(id(loop))
        if home is None or home.loop is not loop or self._pid != os.getpid():
            home = self._settle_in(loop)
        if not home.is_open:
            await home.open()
        return home

    def leave(self) -> Home | None:
        """Give up the running loop's home; None when there is none."""
        loop = asyncio.get_running_loop()
        home = self._homes.get(id(loop))
        if home is None or home.loop is not loop or self._pid != os.getpid():
            return None
        del self._homes[id(loop)]
        if home.engine is self._given:
            self._spare = self._given
        return home

    def has_home_on(self, loop: asyncio.AbstractEventLoop | None) -> bool:
        """Does another loop of this process have one?"""
        home = self._homes.get(id(loop))
        return home is not None and home.loop is loop and self._pid == os.getpid() and not home.loop.is_closed()

    def _settle_in(self, loop: asyncio.AbstractEventLoop) -> Home:
        if self._pid != os.getpid():
            self._after_fork()
        with self._lock:
            home = self._homes.get(id(loop))
            if home is None or home.loop is not loop:
                self._homes = {key: other for key, other in self._homes.items() if not other.loop.is_closed()}
                engine, self._spare = self._spare or self.root().for_loop(), None
                home = self._homes[id(loop)] = Home(loop, engine)
            return home

    def _after_fork(self) -> None:
        """Only one thread survives a fork. What the parent opened is kept, because even closing it would touch it."""
        self._lock = threading.RLock()
        self._abandoned.append(self._homes)
        self._homes = {}
        self._spare = None
        self._pid = os.getpid()
