"""Sending wake-ups to other processes with NOTIFY, and waiting for theirs.

A wake-up is a hint. It follows the commit, in a transaction of its own that does not wait for the fsync, because the
server lets one transaction at a time commit that notifies. Up to `RATE` wake-ups a second are sent at once, so that a
trickle of jobs is as prompt as a single job; above that rate several are merged into one message. An engine that waits
subscribes to the listener of its process. Without a listener (behind a pooler, or while the server is away) workers
find their jobs by polling, which they always do now and then.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Collection, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

from stoker.engines.base import CONTROL
from stoker.engines.postgres import find
from stoker.engines.postgres.statements import sql
from stoker.engines.postgres.wakeup.listener import CHANNEL, EVERYTHING, Listener, Subscriber, join, leave
from stoker.engines.shared.job_end_waiters import OVER, Interest, JobEndWaiters, Message, topics_of
from stoker.engines.shared.waiters import TopicWaiters
from stoker.model.errors import EngineError
from stoker.model.ids import JobId

if TYPE_CHECKING:
    from stoker.engines.postgres.store import Store

LARGEST = 7_000
"""Bytes in a message; the server takes 8,000."""

RATE = 400.0
"""Wake-ups a second of one engine up to which each is sent at once.

The server lets one transaction at a time commit that notifies, and every listener reads every message: a producer in a
tight loop must not send one per job.
"""

BURST = 40
"""Wake-ups above that rate which are still sent at once."""

PAUSES = (0.005, 0.01, 0.02)
"""Seconds between two messages above that rate: the longer it is exceeded, the longer."""

FIRST_LISTEN = 2.0
"""Seconds the first waiter waits until the process listens."""

LAST_WAIT = 1.0
"""Seconds a closing engine waits for its pending messages, and for the listener to end if it was the last user."""

_NOTIFY = sql("notify")


class Flow:
    """A leaky bucket that counts wake-ups; while it is full they are merged. It leaks at `RATE`.

    Merged wake-ups count as well, so the merging lasts for as long as the rate is exceeded, and little longer.
    """

    def __init__(self) -> None:
        self._level = 0.0
        self._at = 0.0

    def add(self, now: float) -> bool:
        """Count one more; return whether it may be sent at once."""
        level = max(0.0, self._level - (now - self._at) * RATE)
        self._level, self._at = min(level + 1.0, 2.0 * BURST), now
        return level < BURST

    def full(self, now: float) -> bool:
        """Return whether one more would be merged."""
        return self._level - (now - self._at) * RATE >= BURST


class Notifier:
    """The wake-ups of one open engine: its waiters, its subscription and what it has to send.

    It subscribes with the first waiter, and starts its sending task with the first message.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._waiters = TopicWaiters()
        self._name = os.urandom(6).hex()
        self._subscription: tuple[Listener, Subscriber] | None = None
        self._unsent: set[str] = set()
        self._sender: asyncio.Task[None] | None = None
        self._flow = Flow()
        self._turn = 0
        self._closing = asyncio.Event()
        self.ends = JobEndWaiters(partial(find.ended, store), self._listen_for_ends, self._notify_ends, Interest())

    # --- waiting ------------------------------------------------------------------------------------------------

    async def wait(self, topics: Sequence[str], timeout: float) -> frozenset[str]:
        """Sleep until a topic is woken, or time runs out."""
        self._store.inside()
        await self._listening(topics)
        if self._closing.is_set():
            return frozenset()
        return await self._waiters.wait(topics, timeout)

    async def _listen_for_ends(self) -> None:
        await self._listening((OVER,))

    # --- sending ------------------------------------------------------------------------------------------------

    def notify(self, topics: set[str]) -> None:
        """Wake the waiters of this engine, and notify other processes, at once or merged."""
        for topic in topics:
            self._waiters.wake(topic)
        self._flow.add(time.monotonic())
        self._unsent |= topics
        self._send()

    def _notify_ends(self, message: Message, jobs: Collection[JobId]) -> None:
        """Notify other processes which jobs are waited for, or have ended."""
        self._flow.add(time.monotonic())
        self._unsent |= topics_of(message, jobs)
        self._send()

    def _send(self) -> None:
        if self._sender is None or self._sender.done():
            self._sender = asyncio.get_running_loop().create_task(self._send_pending(), name="stoker-notify")

    async def _send_pending(self) -> None:
        """Send pending topics until none is left, with growing pauses above the rate."""
        while self._unsent:
            if self._flow.full(time.monotonic()):
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._closing.wait(), PAUSES[min(self._turn, len(PAUSES) - 1)])
                self._turn += 1
            else:
                self._turn = 0
            topics, self._unsent = self._unsent, set()
            # A hint that cannot be sent is not worth an error: waiting workers poll before long.
            with suppress(EngineError):
                await self._store.once("notify", _NOTIFY, (CHANNEL, self._message(topics)))

    def _message(self, topics: set[str]) -> str:
        head = f"{self._store.options.schema} {self._name} "
        text = " ".join(sorted(topics))
        return head + (text if len(head) + len(text) <= LARGEST else EVERYTHING)

    # --- listening ----------------------------------------------------------------------------------------------

    async def _listening(self, topics: Sequence[str]) -> None:
        """Subscribe to the listener; the first waiter waits until it listens, and misses nothing sent afterwards."""
        if self._subscription is None:
            subscriber = Subscriber(self._store.options.schema, self._name, self._received)
            self._subscription = join(self._store.options, subscriber), subscriber
        _, subscriber = self._subscription
        subscriber.queues = subscriber.queues or any(topic != CONTROL for topic in topics)
        if not subscriber.settled.is_set():
            with suppress(TimeoutError):
                async with asyncio.timeout(FIRST_LISTEN):
                    await subscriber.settled.wait()

    def _received(self, topics: frozenset[str]) -> None:
        topics = self.ends.receive(topics)
        if EVERYTHING in topics:
            self.ends.query_again()
        for topic in (*self._waiters.waited_for(), CONTROL) if EVERYTHING in topics else topics:
            self._waiters.wake(topic)

    async def close(self) -> None:
        """Release the waiters, send what is pending, and unsubscribe."""
        self._closing.set()
        self.ends.close()
        self._waiters.dismiss()
        subscription, sender = self._subscription, self._sender
        if subscription is not None:
            leave(*subscription)
        if sender is not None:
            await asyncio.wait((sender,), timeout=LAST_WAIT)
            sender.cancel()
            await asyncio.gather(sender, return_exceptions=True)
        if subscription is not None:
            with suppress(TimeoutError):
                async with asyncio.timeout(LAST_WAIT):
                    await subscription[1].released.wait()
