"""The engines of an app: one for each event loop that uses it, all on one store.

The first coroutine of a loop that needs an engine opens it, while the others wait. The root engine, from which all
others are cloned, is never opened, so that a fork finds nothing in use. An engine that the user made serves the first
loop that uses the app, because a transaction belongs to the engine it was begun on. After a fork the child opens its
own engines and touches nothing of its parent's.
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
from collections.abc import Callable

from stoker.engines.base import Engine
from stoker.event_buffer import EventBuffer
from stoker.model.errors import StokerError, sentence
from stoker.model.humanize import count

logger = logging.getLogger("stoker.app")


class LoopEngine:
    """The engine of one loop, and the timer that flushes the event buffer. `turn`: held by an open block."""

    __slots__ = ("_flushing", "_opening", "_timer", "_warned", "engine", "is_open", "loop", "turn")

    def __init__(self, loop: asyncio.AbstractEventLoop, engine: Engine) -> None:
        self.loop = loop
        self.engine = engine
        self.is_open = False
        self._warned = False
        self._opening = asyncio.Lock()
        self.turn = asyncio.Lock()
        self._timer: asyncio.TimerHandle | None = None
        self._flushing: asyncio.Task[None] | None = None

    async def open(self) -> None:
        """Open the engine, once."""
        async with self._opening:
            if not self.is_open:
                await self.engine.open()
                self.is_open = True

    async def close(self, buffer: EventBuffer | None) -> None:
        """Flush the event buffer and close the engine, even if flushing fails.

        Events that cannot be written are a warning: their jobs are stored.
        """
        if self._timer is not None:
            self._timer.cancel()
        if self._flushing is not None:
            self._flushing.cancel()
            await asyncio.gather(self._flushing, return_exceptions=True)
        try:
            if self.is_open and buffer is not None and len(buffer):
                await buffer.flush(self.engine.timeline)
        except StokerError as error:
            logger.warning(
                "%s not written to the timeline when the app closed: %s The jobs are stored. What is left is written "
                "if this process uses the app again; otherwise it is missing.",
                count(len(buffer or ()), "event"),
                sentence(error),
            )
        finally:
            self.is_open = False
            await self.engine.close()

    def flush_soon(self, buffer: EventBuffer, after: float) -> None:
        """Flush the event buffer within `after` seconds; at once if it is crowded and the last flush went well."""
        if self._flushing is not None:
            return  # its end looks again
        if buffer.crowded and not self._warned:
            self._begin(buffer, after)
        elif self._timer is None:
            self._timer = self.loop.call_later(after, self._begin, buffer, after)

    def _begin(self, buffer: EventBuffer, after: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._flushing = self.loop.create_task(self._flush(buffer, after), name="stoker-events")

    async def _flush(self, buffer: EventBuffer, after: float) -> None:
        try:
            if self.is_open and len(buffer):
                await buffer.flush(self.engine.timeline)
                self._warned = False
        except StokerError as error:
            level = logging.DEBUG if self._warned else logging.WARNING  # warn once until a flush works again
            logger.log(level, "events could not be written to the timeline: %s Trying again.", sentence(error))
            self._warned = True
        self._flushing = None
        if self.is_open and len(buffer):
            self.flush_soon(buffer, after)


class EnginePool:
    """The engines of one app, by loop."""

    def __init__(
        self,
        make: Callable[[], Engine],
        given: Engine | None = None,
        *,
        around: Callable[[Engine], Engine] | None = None,
    ) -> None:
        if around is not None and given is not None:
            given = around(given)
        self.added: Callable[[LoopEngine], None] = lambda _: None
        """Called with the engine of each loop before it is used."""
        self._around = around
        """What every engine of the app is wrapped in."""
        self._make = make
        self._given = given
        self._root = given
        self._spare = given
        self._by_loop: dict[int, LoopEngine] = {}
        self._abandoned: list[dict[int, LoopEngine]] = []
        self._lock = threading.RLock()
        self._pid = os.getpid()

    def root(self) -> Engine:
        """The engine all others are cloned from; it is never opened."""
        with self._lock:
            if self._root is None:
                made = self._make()
                self._root = made if self._around is None else self._around(made)
            return self._root

    def point_at(self, make: Callable[[], Engine]) -> None:
        """Make engines by another function from now on. Refused while one is open."""
        with self._lock:
            if any(one.is_open for one in self._by_loop.values()) and self._pid == os.getpid():
                where = self.root().where
                raise StokerError(f"the store at {where} is in use; close the app before it gets another: jobs.close()")
            self._by_loop = {}
            self._make, self._root = make, None

    def any_open(self) -> Engine:
        """An engine for a call that needs no loop: an open one if there is one, this loop's first.

        Only an open engine can wake workers when the user commits later.
        """
        if self._given is not None or self._pid != os.getpid():
            return self.root()
        try:
            here = id(asyncio.get_running_loop())
        except RuntimeError:
            here = 0
        with self._lock:
            ordered = sorted(self._by_loop.items(), key=lambda item: item[0] != here)
            usable = (one.engine for _, one in ordered if one.is_open and not one.loop.is_closed())
            return next(usable, self.root())

    async def current(self) -> LoopEngine:
        """The engine of the running loop, open."""
        loop = asyncio.get_running_loop()
        member = self._by_loop.get(id(loop))
        if member is None or member.loop is not loop or self._pid != os.getpid():
            member = self._add(loop)
        if not member.is_open:
            await member.open()
        return member

    def remove_current(self) -> LoopEngine | None:
        """Remove the running loop's engine and return it; None when there is none."""
        loop = asyncio.get_running_loop()
        member = self._by_loop.get(id(loop))
        if member is None or member.loop is not loop or self._pid != os.getpid():
            return None
        del self._by_loop[id(loop)]
        if member.engine is self._given:
            self._spare = self._given
        return member

    def take_all(self) -> list[LoopEngine]:
        """Remove the engines of all loops of this process and return them."""
        with self._lock:
            taken, self._by_loop = self._by_loop, {}
        return list(taken.values()) if self._pid == os.getpid() else []

    def serves(self, loop: asyncio.AbstractEventLoop | None) -> bool:
        """Does this loop of this process have an engine?"""
        member = self._by_loop.get(id(loop))
        return member is not None and member.loop is loop and self._pid == os.getpid() and not member.loop.is_closed()

    def _add(self, loop: asyncio.AbstractEventLoop) -> LoopEngine:
        if self._pid != os.getpid():
            self._after_fork()
        with self._lock:
            member = self._by_loop.get(id(loop))
            if member is None or member.loop is not loop:
                self._by_loop = {key: other for key, other in self._by_loop.items() if not other.loop.is_closed()}
                engine, self._spare = self._spare or self.root().for_loop(), None
                member = self._by_loop[id(loop)] = LoopEngine(loop, engine)
                self.added(member)
            return member

    def _after_fork(self) -> None:
        """Forget the parent's engines without closing them; closing would touch the parent's connections."""
        self._lock = threading.RLock()
        self._abandoned.append(self._by_loop)
        self._by_loop = {}
        self._spare = None
        self._pid = os.getpid()
