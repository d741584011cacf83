"""Waits for the end of jobs: wakes callers of `result()`, who share one query per engine.

An engine with waiters names their jobs to every engine on the store, and again every few seconds (`Interest`). An
engine that ends such a job notifies the waiters; ending any other job costs one look into an empty dictionary. Both
messages are hints: an engine with waiters also queries the store, soon at first and then seldom, so a lost one costs
only time.
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
"""Seconds between two queries for a job; each pause is twice the one before."""

ANNOUNCE_EVERY = 5.0
"""Seconds after which a waiting engine names its jobs again: workers come and go."""

WANTED_FOR = 12.0
"""Seconds for which an engine remembers that a job is waited for."""

MOST_UNASKED = 100
"""Jobs whose end is published though no engine asked: an operator's change of a few, not of a whole queue."""

Message = Literal["@want:", "@over:"]
"""How a topic begins where wake-ups are texts: a job is waited for, or a job has ended."""

WANT: Message = "@want:"
OVER: Message = "@over:"
QueryEnded = Callable[[Sequence[JobId]], Awaitable[Collection[JobId]]]
Publish = Callable[[Message, Collection[JobId]], None]

_ENDED = (Verdict.APPLIED, Verdict.REPEATED)


class Interest:
    """The jobs that other engines wait for, each for a while. The engines of a process may share it."""

    __slots__ = ("_lock", "_until")

    def __init__(self) -> None:
        self._until: dict[JobId, float] = {}
        self._lock = threading.Lock()

    def __bool__(self) -> bool:
        return bool(self._until)

    def note(self, jobs: Iterable[JobId]) -> None:
        """Remember that these jobs are waited for."""
        now = time.monotonic()
        with self._lock:
            for job in [job for job, until in self._until.items() if until < now]:
                del self._until[job]
            self._until.update(dict.fromkeys(jobs, now + WANTED_FOR))

    def claim(self, jobs: Iterable[JobId]) -> list[JobId]:
        """Those of the jobs that are waited for, and forget them: the caller notifies their waiters."""
        with self._lock:
            return [job for job in jobs if self._until.pop(job, None) is not None]


class JobEndWaiters:
    """One engine's waiters for ends of jobs. Lives on the engine's loop.

    `query` returns those of some jobs that have ended or are gone. `listen` makes the engine receive messages of other
    engines. `publish` sends one to them, without waiting.
    """

    def __init__(
        self, query: QueryEnded, listen: Callable[[], Awaitable[None]], publish: Publish, interest: Interest
    ) -> None:
        self._query = query
        self._listen = listen
        self._publish = publish
        self._interest = interest
        self._waiters: dict[JobId, set[asyncio.Future[bool]]] = {}
        self._next: dict[JobId, tuple[float, float]] = {}
        self._announced: dict[JobId, float] = {}
        self._came = asyncio.Event()
        self._querying: asyncio.Task[None] | None = None

    # --- waiting ------------------------------------------------------------------------------------------------

    async def wait(self, job: JobId, timeout: float) -> bool:
        """Sleep until a job has ended, at most so many seconds. Returns whether it has, as far as known."""
        future: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._waiters.setdefault(job, set()).add(future)
        self._next[job] = (0.0, FIRST_PAUSE)
        self._came.set()
        if self._querying is None or self._querying.done():
            self._querying = asyncio.get_running_loop().create_task(self._run(), name="stoker-ends")
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
        self._announced.pop(job, None)
        return self._waiters.pop(job, set())

    async def _run(self) -> None:
        """QueryEnded the store for the jobs waited for, until there is none."""
        try:
            await self._listen()
            while self._waiters:
                self._came.clear()
                await self._query_due(time.monotonic())
                if self._next:
                    pause = min(at for at, _ in self._next.values()) - time.monotonic()
                    with suppress(TimeoutError):
                        async with asyncio.timeout(max(pause, 0)):
                            await self._came.wait()
        except Exception as error:  # noqa: BLE001 - raised in every waiter
            for job in list(self._waiters):
                for future in self._forget(job):
                    if not future.done():
                        future.set_exception(error)

    async def _query_due(self, now: float) -> None:
        jobs = [job for job, (at, _) in self._next.items() if at <= now]
        if not jobs:
            return
        self.over(await self._query(jobs))
        unannounced = [
            job
            for job in jobs
            if job in self._next and self._announced.get(job, -ANNOUNCE_EVERY) + ANNOUNCE_EVERY <= now
        ]
        if unannounced:
            self._announced.update(dict.fromkeys(unannounced, now))
            self._publish(WANT, unannounced)
        for job in jobs:
            if job in self._next:
                pause = self._next[job][1]
                self._next[job] = (now + pause, min(pause * 2, LAST_PAUSE))

    # --- messages -----------------------------------------------------------------------------------------------

    def over(self, jobs: Iterable[JobId]) -> None:
        """Release the waiters of jobs that have ended."""
        for job in jobs:
            for future in self._forget(job):
                if not future.done():
                    future.set_result(True)

    def query_again(self) -> None:
        """QueryEnded all jobs soon: a message may have been lost."""
        self._next.update((job, (0.0, pause)) for job, (_, pause) in self._next.items())
        self._came.set()

    def settled(self, settlements: Sequence[Settlement], verdicts: Sequence[Verdict]) -> None:
        """Notify the waiters of jobs whose settlements were written."""
        if not self._waiters and not self._interest:
            return
        pairs = zip(settlements, verdicts, strict=True)
        jobs = [one.id for one, verdict in pairs if verdict in _ENDED and one.status in FINISHED]
        self.over(jobs)
        if wanted := self._interest.claim(jobs):
            self._publish(OVER, wanted)

    def altered(self, selection: Selection, change: Change, tally: Tally) -> None:
        """Notify the waiters of jobs that an operator changed, in a process that may not know them."""
        jobs = selection.ids
        if tally.changed and jobs and len(jobs) <= MOST_UNASKED and isinstance(change, Cancel | Delete):
            self.over(jobs)
            self._publish(OVER, jobs)

    def receive(self, topics: frozenset[str]) -> frozenset[str]:
        """Process messages about ends; returns the other topics."""
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
        """Release all waiters: the engine closes."""
        for job in list(self._waiters):
            for future in self._forget(job):
                if not future.done():
                    future.set_result(False)
        self._came.set()
        if self._querying is not None:
            self._querying.cancel()


def topics_of(message: Message, jobs: Iterable[JobId]) -> set[str]:
    """A message about some jobs, where wake-ups are texts."""
    return {message + job.hex() for job in jobs}
