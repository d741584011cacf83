"""An engine's hold on its file: opening and closing, writing through the coalescer, reading, waiting, waking.

The engine's face is in `engine`; this is what all its methods stand on. Reads are short and run on the loop, on a
connection of their own, each in one snapshot; only the walk of a page is cut into slices with the loop's other work in
between, so that neither the loop nor the log ever waits for it.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Any, TypeVar

import msgspec

from stoker.engines.base import CONTROL, Clock, Transaction
from stoker.engines.notices import warn_once
from stoker.engines.sql.steps import Steps
from stoker.engines.sqlite import claim, user_transaction
from stoker.engines.sqlite.connection import Journal
from stoker.engines.sqlite.opening import Inside, opened
from stoker.engines.sqlite.unit_of_work import Unit
from stoker.engines.sqlite.wakeup import EVERYTHING
from stoker.model.ahead import SOON
from stoker.model.errors import EngineBusy, EngineClosed, EngineRefused
from stoker.model.time import SECOND, Instant, Span

log = logging.getLogger("stoker.engines.sqlite")

T = TypeVar("T")

SLICE = 64
"""Statements of a long walk between two turns of the loop."""


class Options(msgspec.Struct, frozen=True):
    """How a file is used."""

    clock: Clock | None
    durability: str
    journal: Journal
    patience: float


class Store:
    """One file, held by one engine."""

    def __init__(self, path: str, options: Options) -> None:
        self.path = path
        self.options = options
        self.clock: Clock = options.clock or system_clock
        self._inside: Inside | None = None
        self._opening = asyncio.Lock()

    # --- life ---------------------------------------------------------------------------------------------------

    async def open(self) -> None:
        async with self._opening:
            if self._inside is not None and self._inside.pid == os.getpid():
                return
            self._inside = await opened(
                self.path,
                clock=self.clock,
                journal=self.options.journal,
                fsync=self.options.durability == "power",
                patience=self.options.patience,
                told=self._told_here,
            )
        for warning in self._inside.warnings:
            warn_once(log, self.path, warning)

    async def close(self) -> None:
        inside, self._inside = self._inside, None
        if inside is not None and inside.pid == os.getpid():
            await inside.close()

    def inside(self) -> Inside:
        """What is open, for whoever may use it."""
        inside = self._inside
        if inside is None:
            raise EngineClosed(f"the engine on {self.path} is not open. Await open() first")
        if inside.pid != os.getpid():
            raise EngineClosed(
                f"the engine on {self.path} was opened in process {inside.pid} and this is process {os.getpid()}: a "
                "connection does not survive a fork. Make another with for_loop()"
            )
        if asyncio.get_running_loop() is not inside.loop:
            raise EngineRefused(f"the engine on {self.path} belongs to another event loop. Use for_loop() to make one")
        return inside

    # --- writing ------------------------------------------------------------------------------------------------

    def ask(self, *, strict: bool = False, **what: Any) -> Awaitable[Any]:
        """Have a request done with the next group."""
        return self.inside().coalescer.ask(strict=strict, **what)

    def write(self, make: Callable[[Unit], Steps[T]], *, strict: bool = False, bare: bool = False) -> Awaitable[T]:
        """Have steps done with the next group."""
        return self.inside().coalescer.ask(strict=strict, make=make, bare=bare)

    async def join(self, tx: Transaction, make: Callable[[Unit], Steps[T]], *, undo: bool = False) -> T:
        """Have steps done in somebody else's transaction; needs neither a loop nor an open engine by itself."""
        unit = Unit(self.clock())
        door = user_transaction.undoing(make(unit)) if undo else make(unit)
        if not isinstance(tx, user_transaction.Own):
            return await user_transaction.on_theirs(self.path, tx, unit, door)
        if tx.owner is not self:
            raise EngineRefused("tx= is a transaction of another engine. Use the engine it was made by")
        return tx.run(unit, door)

    # --- reading ------------------------------------------------------------------------------------------------

    async def read(self, make: Callable[[Instant], Steps[T]]) -> T:
        """Ask in one snapshot. A rollback journal may shut readers out for a moment; a log never does."""
        deadline = time.monotonic() + self.options.patience
        while True:
            try:
                return self._glance(self.inside(), make)
            except EngineBusy:
                if time.monotonic() >= deadline:
                    raise
            await asyncio.sleep(0.001)

    def _glance(self, inside: Inside, make: Callable[[Instant], Steps[T]]) -> T:
        return inside.reader.glance(user_transaction.at_now(self.clock(), make))

    async def stroll(self, make: Callable[[Instant], Steps[T]]) -> T:
        """Ask slice by slice: others come in between, so no snapshot is held."""
        steps = user_transaction.at_now(self.clock(), make)
        done, answer = self.inside().reader.slice(steps, None, SLICE)
        while not done:
            await asyncio.sleep(0)
            done, answer = self.inside().reader.slice(steps, answer, SLICE)
        return answer  # type: ignore[no-any-return]

    # --- waiting and waking -------------------------------------------------------------------------------------

    async def wait(self, topics: Sequence[str], timeout: float) -> frozenset[str]:
        inside = self.inside()
        self._listen(inside, topics)
        if inside.stirred:
            inside.stirred = False
            queues = [topic for topic in topics if topic != CONTROL]
            if found := await self.read(lambda now: claim.due_queues(queues, now + SOON)):
                return frozenset(found)
        return await inside.hub.wait(topics, timeout)

    def told(self, topics: set[str]) -> None:
        """Wake who has something to do, here and elsewhere."""
        if topics:
            self._told_here(topics)
            self.inside().wake_socket.notify(topics)

    def _told_here(self, topics: set[str], dropped: Span = 0) -> None:
        """After a commit, of which others know already."""
        if dropped:
            ahead = dropped / SECOND
            log.warning(
                "the store's clock of %s was %.0f s ahead of this machine's and follows it now", self.path, ahead
            )
        if (inside := self._inside) is not None:
            for topic in topics:
                inside.hub.wake(topic)

    def _listen(self, inside: Inside, topics: Sequence[str]) -> None:
        """Only whoever waits listens: a process that only enqueues costs the others nothing.

        Commits that nobody rings for can only bring jobs, so who waits for `CONTROL` alone does not watch for them.
        """
        queues = any(topic != CONTROL for topic in topics)
        if not inside.listening:
            inside.listening = True
            inside.wake_socket.listen(self._heard, control_only=not queues)
        if not inside.watching and queues:
            inside.watching = True
            inside.wake_socket.listen_to_all()
            inside.wake_socket.watch(self.path, self._stirred, inside.probe)

    def _heard(self, topics: frozenset[str]) -> None:
        """Another engine rang."""
        if (inside := self._inside) is None:
            return
        if EVERYTHING in topics:
            topics = topics.union(inside.hub.waited_for(), {CONTROL}) - {EVERYTHING}
            inside.stirred = True
        for topic in topics:
            inside.hub.wake(topic)

    def _stirred(self) -> None:
        """Somebody committed without ringing: look whether it concerns anybody, now or at the next wait."""
        if (inside := self._inside) is None:
            return
        inside.stirred = True
        waited_for = inside.hub.waited_for()
        if waited_for:
            with suppress(EngineBusy):
                found = self._glance(inside, lambda now: claim.due_queues(waited_for, now + SOON))
                inside.stirred = False
                for topic in found:
                    inside.hub.wake(topic)


def system_clock() -> Instant:
    """This machine's clock."""
    return time.time_ns() // 1000
