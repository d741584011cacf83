"""The ear of a process: one connection that listens, for all its engines on one database.

Engines come and go, on loops of their own, and any of those loops may be held up by a handler. So the ear belongs to
none of them: it has a thread with a loop, from the first engine that waits until the last one that waited is closed,
and passes on what it hears. When its connection is lost it is made anew, and everybody is woken, because nobody knows
what was missed. Where nobody can listen (behind a pooler) that is said once, and workers find their jobs by asking.

A message begins with the schema it is meant for and the name of the engine that said it, which knows it already.
"""

from __future__ import annotations

import asyncio
import logging
import os
import random
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple

from stoker.engines.base import CONTROL
from stoker.engines.postgres.connection import DESK, Connection, DriverError, Pooler, Retriable
from stoker.model.errors import EngineError

if TYPE_CHECKING:
    from stoker.engines.postgres.store import Options

CHANNEL = "stoker"
"""The one channel of all schemas."""

EVERYTHING = "*"
"""The topic that stands for all: more was said than fits, or something may have been missed."""

PULSE = 4.0
"""Seconds between two questions whether the listener's server still answers, and how long the answer may take."""

LONGEST_BACKOFF = 5.0

CANNOT_LISTEN = (
    "%s is behind a pooler in transaction mode, where LISTEN is not possible: workers find new jobs by asking, at the "
    "interval of their poll setting. Give a URL past the pooler with direct= to have them woken at once"
)

_log = logging.getLogger("stoker.engines.postgres")


class Address(NamedTuple):
    """Engines with the same one share an ear, whatever their schema."""

    url: str
    pooler: Pooler


class Hearer:
    """An engine's place at the ear. What is heard is put down here, and the engine's loop is asked once to fetch it.

    So a loop that is held up, or was left without being closed, has one call waiting for it and not thousands.
    """

    def __init__(self, schema: str, name: str, hear: Callable[[frozenset[str]], None]) -> None:
        self.schema = schema
        self.name = name
        self.loop = asyncio.get_running_loop()
        self.queues = False
        """Does it wait for more than `CONTROL`? A keeper does not, and is spared what is only about queues."""
        self.settled = asyncio.Event()
        self.released = asyncio.Event()
        self._hear = hear
        self._heard: set[str] = set()
        self._lock = threading.Lock()

    def tell(self, topics: frozenset[str]) -> None:
        """Pass on what was heard, from any thread."""
        if not self.queues:
            topics &= {CONTROL, EVERYTHING}
        if not topics:
            return
        with self._lock:
            asked = bool(self._heard)
            self._heard |= topics
        if not asked:
            self.call(self._fetch)

    def call(self, what: Callable[[], object]) -> None:
        """Have something done on the engine's loop. One that was closed without its engine is found by the ear."""
        with suppress(RuntimeError):
            self.loop.call_soon_threadsafe(what)

    def _fetch(self) -> None:
        with self._lock:
            heard, self._heard = frozenset(self._heard), set()
        self._hear(heard)


class Ear:
    """One thread, one loop, one connection. What others may look at changes under the registry's lock."""

    def __init__(self, address: Address, where: str, patience: float) -> None:
        self.address = address
        self.hearers: tuple[Hearer, ...] = ()
        self.settled = False
        self.ended = False
        self.last: Hearer | None = None
        self._where = where
        self._patience = patience
        self._task: asyncio.Task[None] | None = None
        self._runner = asyncio.Runner(loop_factory=asyncio.new_event_loop)
        self._loop = self._runner.get_loop()

    def start(self) -> None:
        """Begin to listen, in a thread that does not keep the process from ending."""
        threading.Thread(target=self._run, name="stoker-listen", daemon=True).start()

    def stop(self) -> None:
        """Ask the thread of a deserted ear to end at once, without waiting."""
        with suppress(RuntimeError):  # it has ended already
            self._loop.call_soon_threadsafe(self._stop)

    def _stop(self) -> None:
        if self._task is not None:
            self._task.cancel()

    def _run(self) -> None:
        try:
            with self._runner, suppress(asyncio.CancelledError):
                self._runner.run(self._listen())
        finally:
            self._settle()
            with _registry.lock:
                self.ended, last = True, self.last
            if last is not None:
                last.call(last.released.set)

    def _settle(self) -> None:
        """Nobody need wait for the ear any longer: it is there, or not for now."""
        with _registry.lock:
            self.settled, hearers = True, self.hearers
        for hearer in hearers:
            hearer.call(hearer.settled.set)

    async def _listen(self) -> None:
        """Keep an ear open, whatever happens to its connection."""
        self._task = asyncio.current_task()
        failures, missed = 0, False
        while not _registry.deserted(self):
            try:
                connection = await self._open()
            except Exception as error:  # noqa: BLE001 - whatever it is: jobs are found by asking, and it may pass
                if not failures:
                    # What is not in our words may quote the URL.
                    why = error if isinstance(error, EngineError) else type(error).__name__
                    _log.warning("cannot listen for wake-ups: %s. Until then jobs are found by asking", why)
                failures += 1
            else:
                if failures:
                    _log.info("listening for wake-ups again")
                failures = 0
                if connection is None:
                    return
                if missed:
                    self._tell_everybody()
                self._settle()
                await self._until_lost(connection)
            missed = True
            self._settle()
            await asyncio.sleep(min(LONGEST_BACKOFF, 0.1 * 2 ** min(failures, 6)) * random.uniform(0.5, 1.0))

    async def _open(self) -> Connection | None:
        """A connection that listens. None: here nobody can."""
        url, pooler = self.address
        connection = await Connection.open(url, self._where, settings=DESK, pooler=pooler, patience=self._patience)
        if connection.pooled:
            await connection.close()
            if _registry.first_to_say(self.address):
                _log.warning(CANNOT_LISTEN, self._where)
            return None
        try:
            async with asyncio.timeout(self._patience):
                await connection.link.add_listener(CHANNEL, self._heard)
        except BaseException as error:
            connection.terminate()
            if isinstance(error, (*DriverError, TimeoutError)):
                raise EngineError(f"{self._where} does not let us listen: {error}") from error
            raise
        return connection

    async def _until_lost(self, connection: Connection) -> None:
        """Stay until the connection ends, its server no longer answers, or nobody is left who would hear."""
        lost = asyncio.Event()
        connection.link.add_termination_listener(lambda _: lost.set())
        try:
            while connection.usable and not _registry.deserted(self):
                with suppress(TimeoutError):
                    async with asyncio.timeout(PULSE):
                        await lost.wait()
                    return
                await connection.run("SELECT 1", (), PULSE)
        except (EngineError, Retriable):
            pass
        finally:
            connection.terminate()

    def _heard(self, _link: Any, _pid: int, _channel: str, message: str) -> None:
        schema, _, said = message.partition(" ")
        name, *topics = said.split(" ")
        for hearer in self.hearers:
            if hearer.schema == schema and hearer.name != name:
                hearer.tell(frozenset(topics))

    def _tell_everybody(self) -> None:
        for hearer in self.hearers:
            hearer.tell(frozenset({EVERYTHING}))


class Registry:
    """The ears of a process. After a fork the child begins anew; what was its parent's is kept and never touched."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self._ears: dict[Address, Ear] = {}
        self._deaf: set[Address] = set()
        self._inherited: list[Ear] = []

    def join(self, options: Options, hearer: Hearer) -> Ear:
        """Hear from now on; the first one brings the ear to life. Called on the hearer's loop, as is `leave`."""
        direct, where = options.direct, options.where
        if direct is None:
            address = Address(options.url, options.pooler)
        else:
            address, where = Address(direct, "auto"), f"{where} (direct)"
        with self.lock:
            ear = self._ears.get(address)
            if ear is None:
                ear = Ear(address, where, options.patience)
                ear.start()
                self._ears[address] = ear
            ear.hearers = (*_present(ear), hearer)
            if ear.settled:
                hearer.settled.set()
        return ear

    def leave(self, ear: Ear, hearer: Hearer) -> None:
        """Hear no more. The last one to leave closes the ear, and `released` tells when that is done."""
        hearer.settled.set()
        with self.lock:
            ear.hearers = tuple(one for one in _present(ear) if one is not hearer)
            if ear.hearers or ear.ended:
                hearer.released.set()
            else:
                ear.last = hearer
                ear.stop()
            self._drop_deserted(ear)

    def deserted(self, ear: Ear) -> bool:
        """Is nobody left? Whoever's loop was closed without its engine does not count."""
        with self.lock:
            ear.hearers = _present(ear)
            self._drop_deserted(ear)
            return not ear.hearers

    def _drop_deserted(self, ear: Ear) -> None:
        """Whoever comes next gets a new one."""
        if not ear.hearers and self._ears.get(ear.address) is ear:
            del self._ears[ear.address]

    def first_to_say(self, address: Address) -> bool:
        """Has nobody in this process said yet that here nobody can listen?"""
        with self.lock:
            known = address in self._deaf
            self._deaf.add(address)
        return not known

    def forked(self) -> None:
        """Another thread may have held the lock; and even to forget the parent's connections would be to close them."""
        self._inherited += self._ears.values()
        self.lock = threading.Lock()
        self._ears, self._deaf = {}, set()


def _present(ear: Ear) -> tuple[Hearer, ...]:
    return tuple(hearer for hearer in ear.hearers if not hearer.loop.is_closed())


_registry = Registry()
join, leave = _registry.join, _registry.leave
if hasattr(os, "register_at_fork"):  # there is no fork on Windows
    os.register_at_fork(after_in_child=_registry.forked)
