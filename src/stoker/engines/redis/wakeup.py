"""Wakes waiters of queues and of `CONTROL`, across processes.

A queue has a list with at most one token: a script that stores a due job adds it, one waiting engine pops it. An engine
blocks on one connection for the queues of all its waiters (`BlockedPop`). When a token arrives and its waiter has
left, the engine puts it back for another process or the next waiter, so none is lost. `CONTROL` is a channel: an engine
that once waited for it stays subscribed and remembers one wake-up. A lost subscription counts as a wake-up, because
messages may have been missed.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Collection, Sequence
from typing import Any

from stoker.engines.base import CONTROL
from stoker.engines.redis.connection import Connection, Socket, blocking, end, hang_up, listening
from stoker.engines.redis.keys import WAKE, Shard
from stoker.engines.shared.job_end_waiters import MESSAGES, WANT, Interest, JobEndWaiters, Message, QueryEnded
from stoker.model.errors import EngineError
from stoker.model.ids import JobId

LINGER = 0.2
"""Seconds for which a pop goes on without a waiter: most waiters soon return for the same queues."""

LONGEST_SILENCE = 20.0
PAUSE = 0.5
LAST_MESSAGES = 1.0
"""Seconds for which a closing engine waits until its messages are sent."""

LONGEST_BLOCK = 20
LONGEST_UNBLOCK = 1.0
"""Seconds within which a pop that was ended must return; otherwise its connection counts as dead."""


class Waiter:
    """One sleeping coroutine. `woken_by` is the topic that released it; None: its time ran out."""

    __slots__ = ("future", "topics", "woken_by")

    def __init__(self, topics: Sequence[str]) -> None:
        self.future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.topics = frozenset(topics)
        self.woken_by: str | None = None

    def release(self, topic: str | None = None) -> None:
        if not self.future.done():
            self.woken_by = topic
            self.future.set_result(None)


class Notifier:
    """The wake-ups of one engine: its waiters, in the order they came, and its subscription."""

    def __init__(
        self, connection: Connection, home: Shard, channel: str, interest: Interest, query: QueryEnded
    ) -> None:
        self.channel = channel
        self.ends = JobEndWaiters(query, self._listen_for_ends, self._notify_ends, interest)
        self._sending: set[asyncio.Task[None]] = set()
        self._connection = connection
        self._home = home
        self._waiters: dict[Waiter, None] = {}
        self._came = asyncio.Event()
        self._pump: asyncio.Task[None] | None = None
        self._block: BlockedPop | None = None
        self._idle: asyncio.TimerHandle | None = None
        self._listener: asyncio.Task[None] | None = None
        self._subscribed = asyncio.Event()
        self._remembered = False
        self._closing = False

    async def wait(self, topics: Sequence[str], timeout: float) -> frozenset[str]:
        """Sleep until a topic is woken, or as long as allowed."""
        self._connection.inside()
        self._closing = False
        if CONTROL in topics:
            await self._subscribe(timeout)
            if self._remembered:
                self._remembered = False
                return frozenset({CONTROL})
        waiter = Waiter(topics)
        self._waiters[waiter] = None
        self._arrived(waiter.topics - {CONTROL})
        timer = asyncio.get_running_loop().call_later(max(timeout, 0), waiter.release)
        try:
            await waiter.future
        except asyncio.CancelledError:
            if waiter.woken_by is not None:
                self._pass_on(waiter.woken_by)
            raise
        finally:
            timer.cancel()
            self._waiters.pop(waiter, None)
            self._left()
        return frozenset() if waiter.woken_by is None else frozenset({waiter.woken_by})

    async def ended(self, job: JobId, timeout: float) -> bool:
        """Sleep until a job has ended, or as long as allowed; whether it has."""
        self._connection.inside()
        return await self.ends.wait(job, timeout)

    async def news(self, job: JobId, seen: int, timeout: float) -> int:
        """Sleep until there is news of a job."""
        self._connection.inside()
        return await self.ends.news(job, seen, timeout)

    async def close(self) -> None:
        """Release all waiters without a topic; tokens stay on the server."""
        self._closing = True
        self.ends.close()
        for waiter in list(self._waiters):
            waiter.release()
        self._waiters.clear()
        self._came.set()
        self._end_block()
        if self._sending:  # before the connections go
            await asyncio.wait(self._sending, timeout=LAST_MESSAGES)
        if self._pump is not None:
            with contextlib.suppress(asyncio.CancelledError):
                await self._pump
        if self._listener is not None:
            await end(self._listener)
        self._pump = self._listener = None
        self._subscribed.clear()
        self._remembered = False

    def _wanted(self) -> frozenset[str]:
        return frozenset().union(*(waiter.topics for waiter in self._waiters)) - {CONTROL}

    def _give(self, topic: str) -> bool:
        """Release the first waiter of a topic, of `CONTROL` all."""
        found = [waiter for waiter in self._waiters if topic in waiter.topics and not waiter.future.done()]
        for waiter in found if topic == CONTROL else found[:1]:
            waiter.release(topic)
            self._waiters.pop(waiter, None)
        return bool(found)

    def _pass_on(self, topic: str) -> None:
        """Give the wake-up of a canceled waiter to the next one."""
        if topic == CONTROL:
            self._remembered = self._remembered or not self._give(topic)
        elif not self._give(topic):
            task = asyncio.get_running_loop().create_task(self._put_back(topic))
            _tasks.add(task)
            task.add_done_callback(_tasks.discard)

    async def _put_back(self, topic: str) -> None:
        key = self._home.of_queue(WAKE, topic)
        with contextlib.suppress(EngineError):
            await self._connection.pipeline([("RPUSH", key, "1"), ("LTRIM", key, -1, -1)])

    # --- queues -------------------------------------------------------------------------------------------------

    def _arrived(self, queues: frozenset[str]) -> None:
        """Pop for these queues too: a pop that lacks some of them is ended, and the next one has all."""
        if not queues:
            return
        self._came.set()
        self._stay()
        if self._pump is None or self._pump.done():
            self._pump = asyncio.get_running_loop().create_task(self._run())
        elif self._block is not None and not queues <= self._block.topics:
            self._end_block()

    def _left(self) -> None:
        """End the pop soon, unless a waiter returns before."""
        if self._idle is None and not self._closing and not self._wanted():
            self._idle = asyncio.get_running_loop().call_later(LINGER, self._give_up)

    def _give_up(self) -> None:
        self._idle = None
        self._came.set()
        self._end_block()

    def _stay(self) -> None:
        if self._idle is not None:
            self._idle.cancel()
            self._idle = None

    def _end_block(self) -> None:
        self._stay()
        if self._block is not None:
            self._block.end()

    async def _run(self) -> None:
        """Pop tokens while there are waiters."""
        pops = PopConnection(self._connection, self._home.key("jobs"))
        try:
            while await self._has_waiters():
                try:
                    await self._take(pops, self._wanted())
                    await asyncio.sleep(0)  # the woken waiter runs first
                except EngineError:
                    await pops.close()
                    await asyncio.sleep(PAUSE * random.uniform(0.5, 1.5))
        finally:
            await pops.close()
        if self._wanted():  # a waiter came while the connection was being closed
            self._pump = asyncio.get_running_loop().create_task(self._run())

    async def _take(self, pops: PopConnection, topics: frozenset[str]) -> None:
        keys = {self._home.of_queue(WAKE, topic).encode(): topic for topic in sorted(topics)}
        self._block = BlockedPop(pops, topics)
        try:
            found = await pops.pop(list(keys))
        finally:
            block, self._block = self._block, None
            await block.over()
        if found is not None and not self._give(keys[found]):
            await self._put_back(keys[found])

    async def _has_waiters(self) -> bool:
        """Is there a waiter of a queue, now or before the pop is given up?"""
        if self._idle is not None and not self._closing:
            self._came.clear()
            await self._came.wait()
        return bool(self._wanted())

    # --- control ------------------------------------------------------------------------------------------------

    async def _subscribe(self, timeout: float) -> None:
        if self._listener is None or self._listener.done():
            self._listener = asyncio.get_running_loop().create_task(self._listen())
        if not self._subscribed.is_set():
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(max(timeout, 1.0)):
                    await self._subscribed.wait()

    async def _listen_for_ends(self) -> None:
        await self._subscribe(1.0)

    def _notify_ends(self, message: Message, jobs: Collection[JobId]) -> None:
        """Publish which jobs are waited for or have ended, without waiting."""
        task = asyncio.get_running_loop().create_task(self._publish(message.encode() + b"".join(jobs)))
        self._sending.add(task)
        task.add_done_callback(self._sending.discard)

    async def _publish(self, message: bytes) -> None:
        with contextlib.suppress(EngineError):
            await self._connection.pipeline([("PUBLISH", self.channel, message)])

    def _receive(self, message: bytes) -> None:
        kind, ids = message[: len(WANT)], message[len(WANT) :]
        jobs = [JobId(ids[at : at + 16]) for at in range(0, len(ids), 16)]
        known = next((one for one in MESSAGES if one.encode() == kind), None)
        if known is not None:
            self.ends.take(known, jobs)
        else:
            self._pass_on(CONTROL)

    async def _listen(self) -> None:
        """Receive messages of the channel until the engine closes."""
        lost = False
        while True:
            socket: Socket | None = None
            try:
                socket = await self._connection.dedicated(self._home.key("jobs"))
                await blocking(socket, ("SUBSCRIBE", self.channel), 0)
                if lost:
                    self._pass_on(CONTROL)
                    self.ends.query_again()
                self._subscribed.set()
                while True:
                    message = await listening(socket, LONGEST_SILENCE)
                    if message is None:
                        # A half-open connection would stay silent for ever: the server must reply.
                        message = await blocking(socket, ("PING",), 0)
                    if message[0] == b"message":
                        self._receive(message[2])
            except EngineError:
                lost = True
                await asyncio.sleep(PAUSE * random.uniform(0.5, 1.5))
            finally:
                if socket is not None:
                    await hang_up(socket)


_tasks: set[asyncio.Task[None]] = set()
"""References that keep tasks alive: the loop has only weak ones."""


class BlockedPop:
    """One pop that waits for a token of some queues, until it is ended.

    `CLIENT UNBLOCK`, sent over a second connection, ends the pop. It never loses a token: a pop that had taken one by
    then returns it.
    """

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
