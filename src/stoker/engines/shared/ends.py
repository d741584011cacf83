"""Waiting for the end of jobs: callers of `result()` are woken, and all of an engine share one look at the store.

A waiter names its job to every engine on the store that listens, and again every few seconds (`Interest`). An engine
that ends such a job notifies the waiters; ending any other job costs a look into an empty dictionary. Both messages are
hints: a waiter also looks by itself, soon at first and then seldom, so that a lost one costs time and nothing else.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from contextlib import suppress
from typing import Literal

from stoker.model.ids import JobId
from stoker.model.job import FINISHED, Settlement, Verdict
from stoker.model.query import Cancel, Change, Delete, Selection, Tally

FIRST_PAUSE, LAST_PAUSE = 0.005, 0.5
"""Seconds between two looks at a job; each pause is twice the one before."""

SAY_EVERY = 5.0
"""Seconds after which a waiter says again what it waits for: workers come and go."""

HEARD_FOR = 12.0
"""Seconds for which an engine remembers that somebody waits."""

MOST_SAID = 100
"""Jobs that are named without anybody having asked for them: an operator's change of a few, not of a whole queue."""

Word = Literal["@want:", "@over:"]
"""What the names of topics begin with, where wake-ups are texts."""

WANT: Word = "@want:"
OVER: Word = "@over:"
Look = Callable[[Sequence[JobId]], Awaitable[Collection[JobId]]]
Say = Callable[[Word, Collection[JobId]], None]

_ENDED = (Verdict.APPLIED, Verdict.REPEATED)


class Interest:
    """The jobs others wait for, each for a while. May be shared by the engines of a process."""

    __slots__ = ("_lock", "_until")

    def __init__(self) -> None:
        self._until: dict[JobId, float] = {}
        self._lock = threading.Lock()

    def __bool__(self) -> bool:
        return bool(self._until)

    def note(self, jobs: Iterable[JobId]) -> None:
        """Somebody waits for these."""
        now = time.monotonic()
        with self._lock:
            for job in [job for job, until in self._until.items() if until < now]:
                del self._until[job]
            self._until.update(dict.fromkeys(jobs, now + HEARD_FOR))

    def claim(self, jobs: Iterable[JobId]) -> list[JobId]:
        """Those of the jobs that somebody waits for; they are forgotten, because their waiters will be told."""
        with self._lock:
            return [job for job in jobs if self._until.pop(job, None) is not None]


class Ends:
    """One engine's waiters for ends of jobs. Lives on the engine's loop.

    `look` names those of some jobs that have ended or are gone. `listen` sees to it that the engine is told what others
    say. `say` tells them, without waiting.
    """

    def __init__(self, look: Look, listen: Callable[[], Awaitable[None]], say: Say, interest: Interest) -> None:
        self._look = look
        self._listen = listen
        self._say = say
        self._interest = interest
        self._waiters: dict[JobId, set[asyncio.Future[bool]]] = {}
        self._next: dict[JobId, tuple[float, float]] = {}
        self._said: dict[JobId, float] = {}
        self._came = asyncio.Event()
        self._looker: asyncio.Task[None] | None = None

    # --- waiting ------------------------------------------------------------------------------------------------

    async def wait(self, job: JobId, timeout: float) -> bool:
        """Sleep until a job has ended, at most so many seconds. Answers whether it has, as far as known."""
        future: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._waiters.setdefault(job, set()).add(future)
        self._next[job] = (0.0, FIRST_PAUSE)
        self._came.set()
        if self._looker is None or self._looker.done():
            self._looker = asyncio.get_running_loop().create_task(self._run(), name="stoker-ends")
        try:
            async with asyncio.timeout(max(timeout, 0)):
                return await future
        except TimeoutError:
            return False
        finally:
            waiters = self._waiters.get(job)
            if waiters is not None:
                waiters.discard(future)
                if not waiters:
                    self._forget(job)

    def _forget(self, job: JobId) -> set[asyncio.Future[bool]]:
        self._next.pop(job, None)
        self._said.pop(job, None)
        return self._waiters.pop(job, set())

    async def _run(self) -> None:
        """Look at what is waited for, until nothing is."""
        try:
            await self._listen()
            while self._waiters:
                self._came.clear()
                await self._turn(time.monotonic())
                if self._next:
                    pause = min(at for at, _ in self._next.values()) - time.monotonic()
                    with suppress(TimeoutError):
                        async with asyncio.timeout(max(pause, 0)):
                            await self._came.wait()
        except Exception as error:  # noqa: BLE001 - carried to everybody who waits
            for job in list(self._waiters):
                for future in self._forget(job):
                    if not future.done():
                        future.set_exception(error)

    async def _turn(self, now: float) -> None:
        jobs = [job for job, (at, _) in self._next.items() if at <= now]
        if not jobs:
            return
        self.over(await self._look(jobs))
        unsaid = [job for job in jobs if job in self._next and self._said.get(job, -SAY_EVERY) + SAY_EVERY <= now]
        if unsaid:
            self._said.update(dict.fromkeys(unsaid, now))
            self._say(WANT, unsaid)
        for job in jobs:
            if job in self._next:
                pause = self._next[job][1]
                self._next[job] = (now + pause, min(pause * 2, LAST_PAUSE))

    # --- hearing and saying -------------------------------------------------------------------------------------

    def over(self, jobs: Iterable[JobId]) -> None:
        """These have ended: whoever waits here goes on."""
        for job in jobs:
            for future in self._forget(job):
                if not future.done():
                    future.set_result(True)

    def look_again(self) -> None:
        """Something may have been missed."""
        self._next.update((job, (0.0, pause)) for job, (_, pause) in self._next.items())
        self._came.set()

    def settled(self, settlements: Sequence[Settlement], verdicts: Sequence[Verdict]) -> None:
        """Settlements were written: tell whoever waits for one of the jobs."""
        if not self._waiters and not self._interest:
            return
        pairs = zip(settlements, verdicts, strict=True)
        jobs = [one.id for one, verdict in pairs if verdict in _ENDED and one.status in FINISHED]
        self.over(jobs)
        if wanted := self._interest.claim(jobs):
            self._say(OVER, wanted)

    def altered(self, selection: Selection, change: Change, tally: Tally) -> None:
        """An operator changed jobs, in a process that may never have heard who waits."""
        jobs = selection.ids
        if tally.changed and jobs and len(jobs) <= MOST_SAID and isinstance(change, Cancel | Delete):
            self.over(jobs)
            self._say(OVER, jobs)

    def hear(self, topics: frozenset[str]) -> frozenset[str]:
        """Take in what is about ends; the other topics come back."""
        rest: set[str] = set()
        for topic in topics:
            job = topic[len(WANT) :]
            if topic.startswith(WANT):
                self._interest.note((JobId(bytes.fromhex(job)),))
            elif topic.startswith(OVER):
                self.over((JobId(bytes.fromhex(job)),))
            else:
                rest.add(topic)
        return frozenset(rest)

    def close(self) -> None:
        """Send everybody home."""
        for job in list(self._waiters):
            for future in self._forget(job):
                if not future.done():
                    future.set_result(False)
        self._came.set()
        if self._looker is not None:
            self._looker.cancel()


def topics_of(word: Word, jobs: Iterable[JobId]) -> set[str]:
    """What is said of some jobs, where wake-ups are texts."""
    return {word + job.hex() for job in jobs}
