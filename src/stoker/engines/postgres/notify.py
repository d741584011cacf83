"""Waking workers across processes: what is said after a commit, and who waits for what others say.

A wake-up is a hint. It is sent in a transaction that waits for nothing: with a lone job in that of the job, otherwise
after the commit in one of its own, and never in a user's. Several within a moment go out as one. Whoever waits has a
place at the ear of the process. Without an ear (a pooler in between, a server that is away) workers find their jobs by
asking, as they always do now and then.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from stoker.engines.base import CONTROL
from stoker.engines.postgres.listening import CHANNEL, EVERYTHING, Ear, Hearer, join, leave
from stoker.engines.postgres.texts import sql
from stoker.engines.sql.waiting import Hub
from stoker.model.errors import EngineError

if TYPE_CHECKING:
    from stoker.engines.postgres.store import Store

LARGEST = 7_000
"""Bytes in a message; the server takes 8,000."""

PAUSES = (0.01, 0.02, 0.05)
"""Seconds between two messages of one process: the longer it has something to say, the less often it does."""

FIRST_LISTEN = 2.0
"""Seconds the first waiter waits for the ear to be there."""

LAST_WAIT = 1.0
"""Seconds a closing engine waits for what it still has to say, and for the end of the ear if it was the last."""

_NOTIFY = sql("notify")


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
        self._closing = asyncio.Event()

    # --- waiting ------------------------------------------------------------------------------------------------

    async def wait(self, topics: Sequence[str], timeout: float) -> frozenset[str]:
        """Sleep until a topic is woken, or time runs out."""
        self._store.inside()
        await self._listening(topics)
        if self._closing.is_set():
            return frozenset()
        return await self._hub.wait(topics, timeout)

    # --- speaking -----------------------------------------------------------------------------------------------

    def first_word(self, topics: set[str]) -> str | None:
        """A message for whoever can say it without another trip, and then calls `told`. None: it is not the first."""
        return self._message(topics) if self._silent else None

    def told(self, topics: set[str], *, said: bool = False) -> None:
        """Wake waiters here at once, and those elsewhere in a moment unless they are told already."""
        for topic in topics:
            self._hub.wake(topic)
        if not said:
            self._unsaid |= topics
        if self._silent:
            self._speaker = asyncio.get_running_loop().create_task(self._speak(said=said), name="stoker-notify")

    @property
    def _silent(self) -> bool:
        return self._speaker is None or self._speaker.done()

    async def _speak(self, *, said: bool) -> None:
        """Say what is unsaid; the first word at once (or it was said), the next after a pause that grows."""
        turn = 0
        while said or self._unsaid:
            if not said:
                topics, self._unsaid = self._unsaid, set()
                # A hint that cannot be sent is not worth a word: whoever waits asks by itself before long.
                with suppress(EngineError):
                    await self._store.once("notify", _NOTIFY, (CHANNEL, self._message(topics)))
            said = False
            with suppress(TimeoutError):
                await asyncio.wait_for(self._closing.wait(), PAUSES[min(turn, len(PAUSES) - 1)])
            turn += 1

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
        for topic in (*self._hub.waited_for(), CONTROL) if EVERYTHING in topics else topics:
            self._hub.wake(topic)

    async def close(self) -> None:
        """Send everybody home, say what is unsaid, and hear no more."""
        self._closing.set()
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
