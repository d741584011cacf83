"""Waking workers across processes: what is said after a commit, and one ear for what others say.

A wake-up is a hint. It is sent after the commit and in a transaction of its own, so no user's transaction waits for
it; several within a moment go out as one. Whoever waits has one connection that listens; when it is lost it is made
anew, and everybody is woken, because nobody knows what was missed. Without an ear (a pooler in between, a server
that is away) workers find their jobs by asking, as they always do now and then; and whoever waits sleeps no longer
than until the next job of its queues is due.
"""

from __future__ import annotations

import asyncio
import logging
import os
import random
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple

from stoker.engines.base import CONTROL
from stoker.engines.postgres.connection import DESK, Connection, DriverError
from stoker.engines.postgres.texts import sql
from stoker.engines.sql.waiting import Hub
from stoker.model.errors import EngineError
from stoker.model.time import SECOND

if TYPE_CHECKING:
    from stoker.engines.postgres.store import Store

CHANNEL = "stoker"
"""The one channel of all schemas; a message begins with the schema it is meant for."""

EVERYTHING = "*"
LARGEST = 7_000
"""Bytes in a message; the server takes 8,000."""

PAUSES = (0.01, 0.02, 0.05)
"""Seconds between two messages of one process: the longer it has something to say, the less often it does."""

PULSE = 4.0
"""Seconds between two questions whether the listener's server still answers, and how long the answer may take."""

FIRST_LISTEN = 2.0
"""Seconds the first waiter waits for the ear to be there."""

LONGEST_BACKOFF = 5.0
LATELY = 0.25
"""Seconds for which it is known when the next job is due."""

CANNOT_LISTEN = (
    "%s is behind a pooler in transaction mode, where LISTEN is not possible: workers find new jobs by asking, at the "
    "interval of their poll setting. Give a URL past the pooler with direct= to have them woken at once"
)

_log = logging.getLogger("stoker.engines.postgres")
_NOTIFY = sql("notify")
_NEXT_DUE = sql("next_due")


class Ahead(NamedTuple):
    """What was found out about the next job of some queues: which of them has it, and when it is due."""

    queues: tuple[str, ...]
    asked: float
    queue: str | None
    due: float


class Ears:
    """One engine's waiters, its ear and its voice. Nothing is opened before somebody waits or has something to say."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._hub = Hub()
        self._name = os.urandom(6).hex()
        self._listener: asyncio.Task[None] | None = None
        self._settled = asyncio.Event()
        self._deaf = False
        self._unsaid: set[str] = set()
        self._speaker: asyncio.Task[None] | None = None
        self._closing = asyncio.Event()
        self._ahead = Ahead((), -LATELY, None, 0.0)

    # --- waiting ------------------------------------------------------------------------------------------------

    async def wait(self, topics: Sequence[str], timeout: float) -> frozenset[str]:
        """Sleep until a topic is woken, a job becomes due, or time runs out."""
        self._store.inside()
        await self._listening()
        queue, left = await self._next_due(tuple(topic for topic in topics if topic != CONTROL), timeout)
        if queue is None or left >= timeout:
            return await self._hub.wait(topics, timeout)
        return await self._hub.wait(topics, left) or frozenset({queue})

    async def _next_due(self, queues: tuple[str, ...], timeout: float) -> tuple[str | None, float]:
        """The queue whose next job is due first, and in how many seconds. An injected clock does not move by itself.

        Whoever is woken all the time comes by all the time: what was asked lately is not asked again.
        """
        if not queues or timeout <= 0 or self._store.options.clock is not None or self._hub.remembers(queues):
            return None, 0.0
        ahead = self._ahead
        if ahead.queues != queues or time.monotonic() - ahead.asked >= LATELY:
            try:
                async with asyncio.timeout(timeout):
                    rows = await self._store.once("desk", _NEXT_DUE, (list(queues),))
            except (EngineError, TimeoutError):
                return None, 0.0
            now = time.monotonic()
            found, due = (rows[0][0], now + rows[0][1] / SECOND + 0.001) if rows else (None, now)
            ahead = self._ahead = Ahead(queues, now, found, due)
        left = ahead.due - time.monotonic()
        return (ahead.queue, left) if left > 0 else (None, 0.0)

    # --- speaking -----------------------------------------------------------------------------------------------

    def told(self, topics: set[str]) -> None:
        """Wake waiters here at once, and those elsewhere in a moment."""
        for topic in topics:
            self._hub.wake(topic)
        self._unsaid |= topics
        if self._speaker is None or self._speaker.done():
            self._speaker = asyncio.get_running_loop().create_task(self._speak(), name="stoker-notify")

    async def _speak(self) -> None:
        """Say what is unsaid; the first word at once, the next after a pause that grows while there is more."""
        turn = 0
        while self._unsaid:
            topics, self._unsaid = self._unsaid, set()
            # A hint that cannot be sent is not worth a word: whoever waits asks by itself before long.
            with suppress(EngineError):
                await self._store.once("notify", _NOTIFY, (CHANNEL, self._message(topics)))
            with suppress(TimeoutError):
                await asyncio.wait_for(self._closing.wait(), PAUSES[min(turn, len(PAUSES) - 1)])
            turn += 1

    def _message(self, topics: set[str]) -> str:
        head = f"{self._store.options.schema} {self._name} "
        said = " ".join(sorted(topics))
        return head + (said if len(head) + len(said) <= LARGEST else EVERYTHING)

    # --- listening ----------------------------------------------------------------------------------------------

    async def _listening(self) -> None:
        """See that there is an ear. The first who waits waits for it, so that nothing said afterwards is missed."""
        if not self._deaf and (self._listener is None or self._listener.done()):
            self._listener = asyncio.get_running_loop().create_task(self._listen(), name="stoker-listen")
        if not self._settled.is_set():
            with suppress(TimeoutError):
                await asyncio.wait_for(self._settled.wait(), FIRST_LISTEN)

    async def _listen(self) -> None:
        """Keep an ear open, whatever happens to its connection."""
        failures, missed = 0, False
        while not self._deaf:
            try:
                connection = await self._open()
            except EngineError as error:
                if not failures:
                    _log.warning("cannot listen for wake-ups: %s. Until then jobs are found by asking", error)
                failures += 1
            else:
                if failures:
                    _log.info("listening for wake-ups again")
                failures = 0
                if connection is None:
                    break
                if missed:
                    self._wake_everybody()
                self._settled.set()
                await self._until_lost(connection)
            missed = True
            self._settled.set()
            await asyncio.sleep(min(LONGEST_BACKOFF, 0.1 * 2 ** min(failures, 6)) * random.uniform(0.5, 1.0))
        self._settled.set()

    async def _open(self) -> Connection | None:
        """A connection that listens. None: here nobody can."""
        options = self._store.options
        url, where = options.direct or options.url, options.where + (" (direct)" if options.direct else "")
        pooler = "auto" if options.direct else options.pooler
        connection = await Connection.open(url, where, settings=DESK, pooler=pooler, patience=options.patience)
        if connection.pooled:
            await connection.close()
            self._deaf = True
            _log.warning(CANNOT_LISTEN, where)
            return None
        try:
            async with asyncio.timeout(options.patience):
                await connection.link.add_listener(CHANNEL, self._heard)
        except BaseException as error:
            connection.terminate()
            if isinstance(error, (*DriverError, TimeoutError)):
                raise EngineError(f"{where} does not let us listen: {error}") from error
            raise
        return connection

    async def _until_lost(self, connection: Connection) -> None:
        """Stay until the connection ends, or its server no longer answers."""
        lost = asyncio.Event()
        connection.link.add_termination_listener(lambda _: lost.set())
        try:
            while connection.usable and not lost.is_set():
                with suppress(TimeoutError):
                    await asyncio.wait_for(lost.wait(), PULSE)
                    return
                await connection.run("SELECT 1", (), PULSE)
        except EngineError:
            pass
        finally:
            connection.terminate()

    def _heard(self, _link: Any, _pid: int, _channel: str, message: str) -> None:
        schema, name, *topics = message.split(" ")
        if schema != self._store.options.schema or name == self._name:
            return
        if EVERYTHING in topics:
            self._wake_everybody()
            return
        for topic in topics:
            self._hub.wake(topic)

    def _wake_everybody(self) -> None:
        for topic in (*self._hub.waited_for(), CONTROL):
            self._hub.wake(topic)

    async def close(self) -> None:
        """Send everybody home, say what is unsaid, and close the ear."""
        self._deaf = True
        self._closing.set()
        self._hub.dismiss()
        listener, speaker = self._listener, self._speaker
        self._listener = self._speaker = None
        if speaker is not None:
            await asyncio.wait((speaker,), timeout=1.0)
        tasks = [task for task in (listener, speaker) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._deaf = False
        # An engine may be opened again, on another loop.
        self._closing, self._settled = asyncio.Event(), asyncio.Event()
