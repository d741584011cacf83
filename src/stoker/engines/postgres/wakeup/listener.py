"""Receiving wake-ups: one LISTEN connection per process and database.

Engines come and go on event loops of their own, and a handler may block any of those loops. So the listener has its
own thread and loop, from the first engine that waits until the last such engine is closed, and passes messages on to
its subscribers. When its connection is lost it reconnects and wakes every subscriber, because it may have missed
messages. Where LISTEN is impossible (behind a pooler) it logs that once, and workers find their jobs by polling.

A message begins with the schema it is meant for and the name of the engine that sent it; that engine ignores it.
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
from stoker.engines.postgres.connection import FOR_ADMIN, Connection, DriverError, Pooler, Retriable
from stoker.model.errors import EngineError

if TYPE_CHECKING:
    from stoker.engines.postgres.store import Options

CHANNEL = "stoker"
"""The one channel of all schemas."""

EVERYTHING = "*"
"""The topic that means all topics: there were more than fit a message, or messages may have been missed."""

PULSE = 4.0
"""Seconds between two checks that the server still answers, and the time limit of each."""

LONGEST_BACKOFF = 5.0

CANNOT_LISTEN = (
    "%s is behind a pooler in transaction mode, where LISTEN is not possible: workers poll for new jobs at the "
    "interval of their poll setting. Give a URL past the pooler with direct= to have them woken at once"
)

_log = logging.getLogger("stoker.engines.postgres")


class Address(NamedTuple):
    """Engines with the same one share an listener, whatever their schema."""

    url: str
    pooler: Pooler


class Subscriber:
    """An engine's subscription: collects messages and asks the engine's loop once to fetch them.

    So a blocked loop, or one that was abandoned without closing its engine, has one pending call, not thousands.
    """

    def __init__(self, schema: str, name: str, wake: Callable[[frozenset[str]], None]) -> None:
        self.schema = schema
        self.name = name
        self.loop = asyncio.get_running_loop()
        self.queues = False
        """Whether it waits for more than `CONTROL`. A lease keeper does not, and receives no topics of queues."""
        self.settled = asyncio.Event()
        self.released = asyncio.Event()
        self._wake = wake
        self._received: set[str] = set()
        self._lock = threading.Lock()

    def notify(self, topics: frozenset[str]) -> None:
        """Pass on what was received, from any thread."""
        if not self.queues:
            topics &= {CONTROL, EVERYTHING}
        if not topics:
            return
        with self._lock:
            asked = bool(self._received)
            self._received |= topics
        if not asked:
            self.call(self._fetch)

    def call(self, what: Callable[[], object]) -> None:
        """Have something done on the engine's loop. One that was closed without its engine is found by the listener."""
        with suppress(RuntimeError):
            self.loop.call_soon_threadsafe(what)

    def _fetch(self) -> None:
        with self._lock:
            received, self._received = frozenset(self._received), set()
        self._wake(received)


class Listener:
    """One thread, one loop, one connection. Its public fields change under the registry's lock."""

    def __init__(self, address: Address, where: str, patience: float) -> None:
        self.address = address
        self.subscribers: tuple[Subscriber, ...] = ()
        self.settled = False
        self.ended = False
        self.last: Subscriber | None = None
        self._where = where
        self._patience = patience
        self._task: asyncio.Task[None] | None = None
        self._runner = asyncio.Runner(loop_factory=asyncio.new_event_loop)
        self._loop = self._runner.get_loop()

    def start(self) -> None:
        """Start the listening thread, a daemon."""
        threading.Thread(target=self._run, name="stoker-listen", daemon=True).start()

    def stop(self) -> None:
        """Ask the thread to end, without waiting for it."""
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
        """Release engines that wait for the listener: it listens, or cannot for now."""
        with _registry.lock:
            self.settled, subscribers = True, self.subscribers
        for subscriber in subscribers:
            subscriber.call(subscriber.settled.set)

    async def _listen(self) -> None:
        """Listen until no subscriber is left, and reconnect after every loss."""
        self._task = asyncio.current_task()
        failures, missed = 0, False
        while not _registry.deserted(self):
            try:
                connection = await self._open()
            except Exception as error:  # noqa: BLE001 - whatever it is: workers poll, and it may pass
                if not failures:
                    # A driver's own message may quote the URL.
                    why = error if isinstance(error, EngineError) else type(error).__name__
                    _log.warning("cannot listen for wake-ups: %s. Until then workers poll for jobs", why)
                failures += 1
            else:
                if failures:
                    _log.info("listening for wake-ups again")
                failures = 0
                if connection is None:
                    return
                if missed:
                    self._wake_all()
                self._settle()
                await self._until_lost(connection)
            missed = True
            self._settle()
            await asyncio.sleep(min(LONGEST_BACKOFF, 0.1 * 2 ** min(failures, 6)) * random.uniform(0.5, 1.0))

    async def _open(self) -> Connection | None:
        """Open a connection that listens; None when a pooler makes that impossible."""
        url, pooler = self.address
        connection = await Connection.open(
            url, self._where, purpose="wake-ups", settings=FOR_ADMIN, pooler=pooler, patience=self._patience
        )
        if connection.pooled:
            await connection.close()
            if _registry.first_to_report(self.address):
                _log.warning(CANNOT_LISTEN, self._where)
            return None
        try:
            async with asyncio.timeout(self._patience):
                await connection.link.add_listener(CHANNEL, self._received)
        except BaseException as error:
            connection.terminate()
            if isinstance(error, (*DriverError, TimeoutError)):
                raise EngineError(f"{self._where} does not let us listen: {error}") from error
            raise
        return connection

    async def _until_lost(self, connection: Connection) -> None:
        """Return when the connection ends, its server stops answering, or no subscriber is left."""
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

    def _received(self, _link: Any, _pid: int, _channel: str, message: str) -> None:
        schema, _, rest = message.partition(" ")
        name, *topics = rest.split(" ")
        for subscriber in self.subscribers:
            if subscriber.schema == schema and subscriber.name != name:
                subscriber.notify(frozenset(topics))

    def _wake_all(self) -> None:
        for subscriber in self.subscribers:
            subscriber.notify(frozenset({EVERYTHING}))


class Registry:
    """The listeners of a process. A forked child starts its own and never touches its parent's."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self._listeners: dict[Address, Listener] = {}
        self._cannot_listen: set[Address] = set()
        self._inherited: list[Listener] = []

    def join(self, options: Options, subscriber: Subscriber) -> Listener:
        """Subscribe; the first subscriber starts the listener. Call it, and `leave`, on the subscriber's loop."""
        direct, where = options.direct, options.where
        if direct is None:
            address = Address(options.url, options.pooler)
        else:
            address, where = Address(direct, "auto"), f"{where} (direct)"
        with self.lock:
            listener = self._listeners.get(address)
            if listener is None:
                listener = Listener(address, where, options.patience)
                listener.start()
                self._listeners[address] = listener
            listener.subscribers = (*_present(listener), subscriber)
            if listener.settled:
                subscriber.settled.set()
        return listener

    def leave(self, listener: Listener, subscriber: Subscriber) -> None:
        """Receive no more. The last one to leave closes the listener, and `released` tells when that is done."""
        subscriber.settled.set()
        with self.lock:
            listener.subscribers = tuple(one for one in _present(listener) if one is not subscriber)
            if listener.subscribers or listener.ended:
                subscriber.released.set()
            else:
                listener.last = subscriber
                listener.stop()
            self._drop_deserted(listener)

    def deserted(self, listener: Listener) -> bool:
        """Return whether no subscriber is left. One whose loop was closed does not count."""
        with self.lock:
            listener.subscribers = _present(listener)
            self._drop_deserted(listener)
            return not listener.subscribers

    def _drop_deserted(self, listener: Listener) -> None:
        """Forget a listener without subscribers: the next engine gets a new one."""
        if not listener.subscribers and self._listeners.get(listener.address) is listener:
            del self._listeners[listener.address]

    def first_to_report(self, address: Address) -> bool:
        """Return whether this process has not yet logged that LISTEN is impossible here."""
        with self.lock:
            known = address in self._cannot_listen
            self._cannot_listen.add(address)
        return not known

    def forked(self) -> None:
        """Start afresh in a forked child. The parent's listeners are kept: dropping one closes its connection."""
        self._inherited += self._listeners.values()
        self.lock = threading.Lock()
        self._listeners, self._cannot_listen = {}, set()


def _present(listener: Listener) -> tuple[Subscriber, ...]:
    return tuple(subscriber for subscriber in listener.subscribers if not subscriber.loop.is_closed())


_registry = Registry()
join, leave = _registry.join, _registry.leave
if hasattr(os, "register_at_fork"):  # there is no fork on Windows
    os.register_at_fork(after_in_child=_registry.forked)
