"""Waits for the end of jobs and for news of them: wakes callers of `result()` and `watch()`.

Callers of `result()` share one query per engine; watchers read for themselves.

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
from typing import Final, Literal

from stoker.model.ids import JobId
from stoker.model.job import FINISHED, Settlement, Verdict
from stoker.model.query import Cancel, Change, Delete, Selection, Tally
from stoker.model.steps import Save

FIRST_PAUSE, LAST_PAUSE = 0.005, 0.5
"""Seconds between two queries for a job; each pause is twice the one before."""

ANNOUNCE_EVERY = 5.0
"""Seconds after which a waiting engine names its jobs again: workers come and go."""

WANTED_FOR = 12.0
"""Seconds for which an engine remembers that a job is waited for."""

MOST_UNASKED = 100
"""Jobs whose end is published though no engine asked: an operator's change of a few, not of a whole queue."""

Message = Literal["@want:", "@over:", "@look:", "@news:"]
"""How a topic begins where wake-ups are texts: a job is waited for, has ended, is watched, or has news."""

WANT: Message = "@want:"
OVER: Message = "@over:"
LOOK: Message = "@look:"
NEWS: Message = "@news:"
MESSAGES: Final = (WANT, OVER, LOOK, NEWS)
QueryEnded = Callable[[Sequence[JobId]], Awaitable[Collection[JobId]]]
Publish = Callable[[Message, Collection[JobId]], None]

_ENDED = (Verdict.APPLIED, Verdict.REPEATED)


class Interest:
    """The jobs that other engines wait for or watch, each for a while. The engines of a process may share it."""

    __slots__ = ("_lock", "_until", "_watched")

    def __init__(self) -> None:
        self._until: dict[JobId, float] = {}
        self._watched: dict[JobId, float] = {}
        self._lock = threading.Lock()

    def __bool__(self) -> bool:
        return bool(self._until or self._watched)

    def note(self, jobs: Iterable[JobId], message: Message = WANT) -> None:
        """Remember that these jobs are waited for, or watched."""
        now, known = time.monotonic(), self._until if message == WANT else self._watched
        with self._lock:
            for job in [job for job, until in known.items() if until < now]:
                del known[job]
            known.update(dict.fromkeys(jobs, now + WANTED_FOR))

    def watched(self, jobs: Iterable[JobId]) -> list[JobId]:
        """Those of the jobs that are watched, and go on to be."""
        now = time.monotonic()
        with self._lock:
            return [job for job in jobs if self._watched.get(job, 0) > now]

    def claim(self, jobs: Iterable[JobId]) -> list[JobId]:
        """Those of the jobs that are waited for, and forget them: the caller notifies their waiters."""
        with self._lock:
            return [job for job in jobs if self._until.pop(job, None) is not None]


class _Watched:
    """A job that callers of this engine watch: how much news there was, when it was looked for, and who waits."""

    __slots__ = ("announced", "count", "until", "waiters")

    def __init__(self) -> None:
        self.count = 1
        self.announced = -ANNOUNCE_EVERY
        self.until = 0.0
        self.waiters: set[asyncio.Future[None]] = set()


class JobEndWaiters:
    """One engine's waiters for ends and news of jobs. Lives on the engine's loop.

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
        self._watched: dict[JobId, _Watched] = {}
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

    async def news(self, job: JobId, seen: int, timeout: float) -> int:
        """Sleep until there is more news of a job than `seen`, at most so many seconds; returns how much there was."""
        now = time.monotonic()
        for other in [other for other, one in self._watched.items() if one.until < now and not one.waiters]:
            del self._watched[other]
        watched = self._watched.setdefault(job, _Watched())
        watched.until = now + timeout + WANTED_FOR
        if watched.announced + ANNOUNCE_EVERY <= now:
            watched.announced = now
            await self._listen()
            self._publish(LOOK, (job,))
        if watched.count == seen:
            future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            watched.waiters.add(future)
            try:
                await asyncio.wait((future,), timeout=timeout)
            finally:
                watched.waiters.discard(future)
        return watched.count

    def _forget(self, job: JobId) -> set[asyncio.Future[bool]]:
        self._next.pop(job, None)
        self._announced.pop(job, None)
        return self._waiters.pop(job, set())

    async def _run(self) -> None:
        """Query the store for the jobs waited for, until there is none."""
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

    def heard(self, jobs: Iterable[JobId]) -> None:
        """Release those who watch jobs of which there is news."""
        for job in jobs if self._watched else ():
            if (watched := self._watched.get(job)) is not None:
                watched.count += 1
                for future in watched.waiters:
                    if not future.done():
                        future.set_result(None)

    def _tell(self, jobs: Collection[JobId]) -> None:
        self.heard(jobs)
        if watched := self._interest.watched(jobs):
            self._publish(NEWS, watched)

    def saved(self, saves: Sequence[Save], verdicts: Sequence[Verdict]) -> None:
        """Notify those who watch jobs that stored rows."""
        if self._watched or self._interest:
            self._tell({one.id for one, verdict in zip(saves, verdicts, strict=True) if verdict is Verdict.APPLIED})

    def over(self, jobs: Iterable[JobId]) -> None:
        """Release the waiters of jobs that have ended."""
        for job in jobs:
            for future in self._forget(job):
                if not future.done():
                    future.set_result(True)

    def query_again(self) -> None:
        """Query all jobs again soon: a message may have been lost."""
        self.heard(list(self._watched))
        self._next.update((job, (0.0, pause)) for job, (_, pause) in self._next.items())
        self._came.set()

    def settled(self, settlements: Sequence[Settlement], verdicts: Sequence[Verdict]) -> None:
        """Notify the waiters of jobs whose settlements were written."""
        if not self._waiters and not self._interest and not self._watched:
            return
        applied = [one for one, verdict in zip(settlements, verdicts, strict=True) if verdict in _ENDED]
        self._tell([one.id for one in applied])
        jobs = [one.id for one in applied if one.status in FINISHED]
        self.over(jobs)
        if wanted := self._interest.claim(jobs):
            self._publish(OVER, wanted)

    def altered(self, selection: Selection, change: Change, tally: Tally) -> None:
        """Notify the waiters of jobs that an operator changed, in a process that may not know them."""
        jobs = selection.ids
        if tally.changed and jobs and len(jobs) <= MOST_UNASKED and isinstance(change, Cancel | Delete):
            self._tell(jobs)
            self.over(jobs)
            self._publish(OVER, jobs)

    def receive(self, topics: frozenset[str]) -> frozenset[str]:
        """Process messages about ends; returns the other topics."""
        rest: set[str] = set()
        for topic in topics:
            job = topic[len(WANT) :]
            message = next((one for one in MESSAGES if topic.startswith(one)), None)
            if message is None:
                rest.add(topic)
            else:
                self.take(message, (JobId(bytes.fromhex(job)),))
        return frozenset(rest)

    def take(self, message: Message, jobs: Collection[JobId]) -> None:
        """Process a message of another engine."""
        if message in (WANT, LOOK):
            self._interest.note(jobs, message)
        elif message == OVER:
            self.over(jobs)
        else:
            self.heard(jobs)

    def close(self) -> None:
        """Release all waiters: the engine closes."""
        self.heard(list(self._watched))
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
