"""How an engine gets into the store: under its lock, measured, while the engine is open.

`with access.read as store:` is a whole store call. Nothing inside may await, so a call is atomic for every thread and
loop. What follows a write (pruning, admitting, waking) happens on the way out, before the lock is released.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from time import perf_counter_ns
from typing import TYPE_CHECKING, Concatenate, ParamSpec, TypeVar

from stoker.engines.base import Transaction
from stoker.engines.call_times import CallTimes
from stoker.engines.memory.streams import StreamUnit
from stoker.engines.memory.transaction import MemoryTransaction
from stoker.engines.memory.waiters import Waiter
from stoker.engines.shared.audit_lines import tell
from stoker.engines.shared.job_end_waiters import LOOK, WANT, JobEndWaiters, Message
from stoker.engines.shared.unit_of_work import UnitOfWork
from stoker.engines.shared.waiters import TopicWaiters
from stoker.model.audit import AuditEntry
from stoker.model.errors import EngineClosed
from stoker.model.groups import Closing, ignore
from stoker.model.ids import JobId
from stoker.model.job import FINISHED

if TYPE_CHECKING:
    from stoker.engines.memory.store import Store

P = ParamSpec("P")
Answer = TypeVar("Answer")


class Access:
    """What one engine has of its own: whether it is open, its calls and its waiters. It belongs to one loop."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.call_times = CallTimes()
        self.is_open = False
        self.read = Call(self, write=False)
        self.write = Call(self, write=True)
        self.ends = JobEndWaiters(self._ended, self._listen_for_ends, self._notify_ends, store.interest)
        self.waiting_for_room: set[Waiter] = set()
        self._waiters = TopicWaiters()

    def open(self) -> None:
        with self.store.lock:
            if not self.is_open:
                self.is_open = True
                self.store.waiters[self._waiters] = None

    def close(self) -> None:
        with self.store.lock:
            if self.is_open:
                self.is_open = False
                del self.store.waiters[self._waiters]
                self._waiters.dismiss()
                self.ends.close()
                self.store.attending.pop(self.ends, None)
                for waiter in self.waiting_for_room:
                    waiter.release()

    def check(self) -> None:
        """Refuse a call to an engine that is not open."""
        if not self.is_open:
            raise EngineClosed(
                "this memory engine is not open. Nothing was done. Call open() first, and not after close()."
            )

    def join(
        self,
        tx: Transaction,
        step: Callable[Concatenate[Store, StreamUnit, P], Answer],
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> Answer:
        """Run a step as part of a transaction, which writes nothing before its end."""
        joined = self._transaction(tx, writes=True)
        with self.read as store:
            joined.check(store)
            return joined.make(lambda store, unit: step(store, unit, *args, **kwargs), store.now())

    def look(self, tx: Transaction, read: Callable[[Store, StreamUnit], Answer]) -> Answer:
        """Read what a transaction sees."""
        seen = self._transaction(tx, writes=False)
        with self.read as store:
            seen.check(store)
            return seen.look(read, store.now())

    def _transaction(self, tx: Transaction, *, writes: bool) -> MemoryTransaction:
        """The transaction of a handle. Not under the lock: another one's library may call back."""
        return tx if isinstance(tx, MemoryTransaction) else self.store.adopt(tx, writes=writes)

    async def wait(self, topics: Sequence[str], timeout: float) -> frozenset[str]:
        self.check()
        with self.store.lock:
            self.store.waiters[self._waiters] = asyncio.get_running_loop()
        return await self._waiters.wait(topics, timeout)

    async def wake(self, topics: Sequence[str]) -> None:
        with self.write as store:
            for topic in topics:
                store.wake(topic)

    async def ended(self, job: JobId, timeout: float) -> bool:
        self.check()
        return await self.ends.wait(job, timeout)

    async def news(self, job: JobId, seen: int, timeout: float) -> int:
        self.check()
        return await self.ends.news(job, seen, timeout)

    async def _ended(self, jobs: Sequence[JobId]) -> list[JobId]:
        with self.read as store:
            found = [(job, store.jobs.get(job)) for job in jobs]
            return [job for job, record in found if record is None or record.status in FINISHED]

    async def _listen_for_ends(self) -> None:
        with self.store.lock:
            self.store.attending[self.ends] = asyncio.get_running_loop()

    def _notify_ends(self, message: Message, jobs: Collection[JobId]) -> None:
        """The waiters of twins belong to other loops."""
        if message in (WANT, LOOK):
            self.store.interest.note(jobs, message)
            return
        with self.store.lock:
            others = [(ends, loop) for ends, loop in self.store.attending.items() if ends is not self.ends]
        for ends, loop in others:
            with suppress(RuntimeError):  # a loop that was closed without its engine
                loop.call_soon_threadsafe(ends.take, message, jobs)


class Call:
    """A store call that reads or writes. The calls of one engine never overlap."""

    __slots__ = ("_access", "_active", "_since", "_write", "emit")

    def __init__(self, access: Access, *, write: bool) -> None:
        self._access = access
        self._write = write
        self._since = 0
        self._active = 0
        self.emit: Callable[[Closing], None] = ignore
        """Called with each group that a call has closed."""

    def __enter__(self) -> Store:
        self._access.check()
        store = self._access.store
        self._since = perf_counter_ns()
        store.lock.acquire()
        self._active = store.active
        return store

    def __exit__(self, *_: object) -> None:
        store = self._access.store
        closings: list[Closing] = []
        entries: list[AuditEntry] = []
        try:
            if self._write:
                store.conclude(self._active)
                closings, store.closings = store.closings, []
                entries, store.entries = store.entries, []
        finally:
            store.lock.release()
            for closing in closings:
                self.emit(closing)
            tell(entries)
            self._access.call_times.add((perf_counter_ns() - self._since) // 1_000, "access", write=self._write)


class Facet:
    """A facet of an engine, or a part of one: its methods are calls through `Access`, which measures them."""

    def __init__(self, access: Access) -> None:
        self._access = access
        self._read = access.read
        self._write = access.write

    def _run(
        self,
        tx: Transaction | None,
        step: Callable[Concatenate[Store, UnitOfWork, P], Answer],
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> Answer:
        """Run a step in a unit of work of its own, or as part of a transaction."""
        if tx is not None:
            return self._access.join(tx, step, *args, **kwargs)
        with self._write as store:
            return store.run(step, *args, **kwargs)
