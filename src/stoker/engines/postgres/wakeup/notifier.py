"""Waking workers across processes: what is said after a commit, and who waits for what others say.

A wake-up is a hint. It is sent in a transaction that waits for nothing: with a lone job in that of the job, otherwise
after the commit in one of its own, and never in a user's. Up to `RATE` a second each is sent at once, so that a trickle
of jobs is as prompt as a single one; above that rate several go out as one. Whoever waits has a place at the ear of the
process. Without an ear (a pooler in between, a server that is away) workers find their jobs by asking, as they always
do now and then.
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
from stoker.engines.postgres.wakeup.listener import CHANNEL, EVERYTHING, Ear, Hearer, join, leave
from stoker.engines.shared.ends import OVER, Ends, Interest, Word, topics_of
from stoker.engines.shared.waiters import Hub
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
"""Seconds the first waiter waits for the ear to be there."""

LAST_WAIT = 1.0
"""Seconds a closing engine waits for what it still has to say, and for the end of the ear if it was the last."""

_NOTIFY = sql("notify")


class Flow:
    """How many wake-ups there were lately: a bucket that leaks at `RATE`. What comes while it is full is merged.

    Merged wake-ups count as well, so the merging lasts for as long as the rate is exceeded, and little longer.
    """

    def __init__(self) -> None:
        self._level = 0.0
        self._at = 0.0

    def add(self, now: float) -> bool:
        """Count one more; answers whether it may be sent at once."""
        level = max(0.0, self._level - (now - self._at) * RATE)
        self._level, self._at = min(level + 1.0, 2.0 * BURST), now
        return level < BURST

    def full(self, now: float) -> bool:
        """Would one more be merged?"""
        return self._level - (now - self._at) * RATE >= BURST


class Ears:
    """One engine's waiters, its place at the ear and its voice, from one opening of the engine to its end.

    Nothing is begun before somebody waits or has something to say.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._hub = Hub()
        self._name = os.urandom(6).hex()
        self._place: tuple[Ear, Hearer] | None = None
        self._unsaid: set[str] = set()
        self._speaker: asyncio.Task[None] | None = None
        self._flow = Flow()
        self._turn = 0
        self._closing = asyncio.Event()
        self.ends = Ends(partial(find.ended, store), self._attend, self._say, Interest())

    # --- waiting ------------------------------------------------------------------------------------------------

    async def wait(self, topics: Sequence[str], timeout: float) -> frozenset[str]:
        """Sleep until a topic is woken, or time runs out."""
        self._store.inside()
        await self._listening(topics)
        if self._closing.is_set():
            return frozenset()
        return await self._hub.wait(topics, timeout)

    async def _attend(self) -> None:
        await self._listening((OVER,))

    # --- speaking -----------------------------------------------------------------------------------------------

    def first_word(self, topics: set[str]) -> str | None:
        """A message for a caller that can send it with its own statement, and then calls `told`. None: it is merged."""
        return self._message(topics) if self._flow.add(time.monotonic()) else None

    def told(self, topics: set[str], *, said: bool | None = None) -> None:
        """Wake waiters here at once, and those elsewhere: at once or merged with others.

        `said`: whether `first_word` gave a message for them, which was sent; None when it was not asked.
        """
        for topic in topics:
            self._hub.wake(topic)
        if said:
            return
        if said is None:
            self._flow.add(time.monotonic())
        self._unsaid |= topics
        self._send()

    def _say(self, word: Word, jobs: Collection[JobId]) -> None:
        """Tell others who waits for which job, or that it is over."""
        self._flow.add(time.monotonic())
        self._unsaid |= topics_of(word, jobs)
        self._send()

    def _send(self) -> None:
        if self._speaker is None or self._speaker.done():
            self._speaker = asyncio.get_running_loop().create_task(self._speak(), name="stoker-notify")

    async def _speak(self) -> None:
        """Send what is unsaid, until there is no more; after a pause that grows while there is too much to send."""
        while self._unsaid:
            if self._flow.full(time.monotonic()):
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._closing.wait(), PAUSES[min(self._turn, len(PAUSES) - 1)])
                self._turn += 1
            else:
                self._turn = 0
            topics, self._unsaid = self._unsaid, set()
            # A hint that cannot be sent is not worth an error: whoever waits asks by itself before long.
            with suppress(EngineError):
                await self._store.once("notify", _NOTIFY, (CHANNEL, self._message(topics)))

    def _message(self, topics: set[str]) -> str:
        head = f"{self._store.options.schema} {self._name} "
        said = " ".join(sorted(topics))
        return head + (said if len(head) + len(said) <= LARGEST else EVERYTHING)

    # --- listening ----------------------------------------------------------------------------------------------

    async def _listening(self, topics: Sequence[str]) -> None:
        """See that there is an ear. The first who waits waits for it, so that nothing said afterwards is missed."""
        if self._place is None:
            hearer = Hearer(self._store.options.schema, self._name, self._heard)
            self._place = join(self._store.options, hearer), hearer
        _, hearer = self._place
        hearer.queues = hearer.queues or any(topic != CONTROL for topic in topics)
        if not hearer.settled.is_set():
            with suppress(TimeoutError):
                async with asyncio.timeout(FIRST_LISTEN):
                    await hearer.settled.wait()

    def _heard(self, topics: frozenset[str]) -> None:
        topics = self.ends.hear(topics)
        if EVERYTHING in topics:
            self.ends.look_again()
        for topic in (*self._hub.waited_for(), CONTROL) if EVERYTHING in topics else topics:
            self._hub.wake(topic)

    async def close(self) -> None:
        """Send everybody home, say what is unsaid, and hear no more."""
        self._closing.set()
        self.ends.close()
        self._hub.dismiss()
        place, speaker = self._place, self._speaker
        if place is not None:
            leave(*place)
        if speaker is not None:
            await asyncio.wait((speaker,), timeout=LAST_WAIT)
            speaker.cancel()
            await asyncio.gather(speaker, return_exceptions=True)
        if place is not None:
            with suppress(TimeoutError):
                async with asyncio.timeout(LAST_WAIT):
                    await place[1].released.wait()
