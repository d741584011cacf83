"""Sleeping and waking.

A queue has a list with at most one token: whoever stores something due puts it in, one sleeper takes it out. An engine
blocks on one connection for all queues its own waiters ask for. A token that comes when nobody here waits any more is
put back at once, for another process or the next waiter, so none is lost; `CLIENT UNBLOCK` ends a block without ever
losing one on the way. `CONTROL` is a channel: an engine that once waited for it stays subscribed and remembers one
wake-up, and losing the subscription counts as one, because nobody knows what was missed.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Collection, Sequence

from stoker.engines.base import CONTROL
from stoker.engines.redis.blocking_pop import BlockedPop, PopConnection
from stoker.engines.redis.connection import Connection, Socket, blocking, hang_up, listening
from stoker.engines.redis.keys import WAKE, Shard
from stoker.engines.shared.ends import OVER, WANT, Ends, Interest, Look, Word
from stoker.model.errors import EngineError
from stoker.model.ids import JobId

LINGER = 0.2
"""A block and its connection are kept this long without a waiter: fetchers mostly come back for the same queues."""

LONGEST_SILENCE = 20.0
PAUSE = 0.5
LAST_WORDS = 1.0
"""Seconds a closing engine waits for what it still has to say."""


class Waiter:
    """One sleeping coroutine. `heard` is what released it; None means that time ran out."""

    __slots__ = ("future", "heard", "topics")

    def __init__(self, topics: Sequence[str]) -> None:
        self.future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.topics = frozenset(topics)
        self.heard: str | None = None

    def release(self, topic: str | None = None) -> None:
        if not self.future.done():
            self.heard = topic
            self.future.set_result(None)


class Hub:
    """The waiters of one engine, in the order they came."""

    def __init__(self, connection: Connection, home: Shard, channel: str, interest: Interest) -> None:
        self.channel = channel
        self.ends: Ends | None = None
        self._interest = interest
        self._saying: set[asyncio.Task[None]] = set()
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
            if waiter.heard is not None:
                self._pass_on(waiter.heard)
            raise
        finally:
            timer.cancel()
            self._waiters.pop(waiter, None)
            self._left()
        return frozenset() if waiter.heard is None else frozenset({waiter.heard})

    async def close(self) -> None:
        """Send everybody home empty-handed; tokens stay with the server."""
        self._closing = True
        if self.ends is not None:
            self.ends.close()
        for waiter in list(self._waiters):
            waiter.release()
        self._waiters.clear()
        self._came.set()
        self._end_block()
        if self._saying:  # before the connections go
            await asyncio.wait(self._saying, timeout=LAST_WORDS)
        for task in (self._pump, self._listener):
            if task is not None:
                if task is self._listener:
                    task.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await task
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
        """What a canceled waiter had heard goes to the next one."""
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
        """Somebody waits for these: a block that is not about all of them gives way to one that is."""
        if not queues:
            return
        self._came.set()
        self._stay()
        if self._pump is None or self._pump.done():
            self._pump = asyncio.get_running_loop().create_task(self._run())
        elif self._block is not None and not queues <= self._block.topics:
            self._end_block()

    def _left(self) -> None:
        """Whoever waited comes back in a moment, or nobody needs the block any more."""
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
        """Take tokens for as long as somebody wants them."""
        pops = PopConnection(self._connection, self._home.key("jobs"))
        try:
            while await self._somebody():
                try:
                    await self._take(pops, self._wanted())
                    await asyncio.sleep(0)  # whoever was woken goes first
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

    async def _somebody(self) -> bool:
        """Does anybody wait for a queue, now or before those who left have stayed away for too long?"""
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

    def wait_for_ends(self, look: Look) -> Ends:
        """The waiters for ends of jobs."""
        self.ends = Ends(look, self._attend, self._say, self._interest)
        return self.ends

    async def _attend(self) -> None:
        await self._subscribe(1.0)

    def _say(self, word: Word, jobs: Collection[JobId]) -> None:
        """Tell others who waits for which job, or that it is over; nobody waits for that."""
        task = asyncio.get_running_loop().create_task(self._publish(word.encode() + b"".join(jobs)))
        self._saying.add(task)
        task.add_done_callback(self._saying.discard)

    async def _publish(self, message: bytes) -> None:
        with contextlib.suppress(EngineError):
            await self._connection.pipeline([("PUBLISH", self.channel, message)])

    def _heard(self, message: bytes) -> None:
        word, ids = message[: len(WANT)], message[len(WANT) :]
        jobs = [JobId(ids[at : at + 16]) for at in range(0, len(ids), 16)]
        if word == WANT.encode():
            self._interest.note(jobs)
        elif word == OVER.encode():
            if self.ends is not None:
                self.ends.over(jobs)
        else:
            self._pass_on(CONTROL)

    async def _listen(self) -> None:
        """Hear the channel until the engine closes."""
        lost = False
        while True:
            socket: Socket | None = None
            try:
                socket = await self._connection.dedicated(self._home.key("jobs"))
                await blocking(socket, ("SUBSCRIBE", self.channel), 0)
                if lost:
                    self._pass_on(CONTROL)
                    if self.ends is not None:
                        self.ends.look_again()
                self._subscribed.set()
                while True:
                    message = await listening(socket, LONGEST_SILENCE)
                    if message is None:
                        # A connection that is half open would be silent for ever: whoever lives answers.
                        message = await blocking(socket, ("PING",), 0)
                    if message[0] == b"message":
                        self._heard(message[2])
            except EngineError:
                lost = True
                await asyncio.sleep(PAUSE * random.uniform(0.5, 1.5))
            finally:
                if socket is not None:
                    await hang_up(socket)


_tasks: set[asyncio.Task[None]] = set()
"""The loop itself keeps only weak references."""
