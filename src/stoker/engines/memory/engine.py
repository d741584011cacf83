"""The memory engine: its facets, composed of the classes that do the work, and its lifetime."""

from __future__ import annotations

import itertools
import platform
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import ClassVar, Self

from stoker.engines import base
from stoker.engines.base import Clock, Description, Feature
from stoker.engines.memory.access import Access
from stoker.engines.memory.alter import Alterer
from stoker.engines.memory.audit import Audit
from stoker.engines.memory.control import Control
from stoker.engines.memory.documents import Documents
from stoker.engines.memory.events import Timeline
from stoker.engines.memory.find import Finder
from stoker.engines.memory.groups import Groups
from stoker.engines.memory.insert import Inserter, WhenFull
from stoker.engines.memory.kept import KeptValues
from stoker.engines.memory.leases import Leases
from stoker.engines.memory.outbox import Outbox
from stoker.engines.memory.schedules import Schedules
from stoker.engines.memory.settle import Settler
from stoker.engines.memory.steps import Steps
from stoker.engines.memory.store import Store
from stoker.engines.memory.transaction import Adopt, MemoryTransaction
from stoker.model.errors import InvalidOption
from stoker.model.health.facts import MOST_COUNTED, Counted, Facts
from stoker.model.job import FINISHED
from stoker.model.query import history_of
from stoker.model.time import Instant, Span
from stoker.model.unique import Kept

HISTORY = 1_000
DURABILITY = "not durable: jobs, timers and history live in this process and are lost when it exits"
WARNING = (
    "memory:// is not durable: every waiting job, retry timer and result is lost when this process exits. "
    "Use sqlite:///jobs.db, Postgres or Redis for work that must survive."
)


class Jobs:
    """Jobs and leases."""

    def __init__(self, access: Access, when_full: WhenFull, finder: Finder) -> None:
        leases, settler = Leases(access), Settler(access)
        self.insert = Inserter(access, when_full).insert
        self.claim = leases.claim
        self.settle = settler.settle
        self.renew = leases.renew
        self.note = settler.note
        self.reap = leases.reap
        self.ahead = finder.ahead
        self.wait = access.wait
        self.ended, self.news = access.ended, access.news
        self.wake = access.wake


class Operator:
    """What operators read and change of jobs."""

    def __init__(self, access: Access, finder: Finder) -> None:
        alterer = Alterer(access)
        self.get = finder.get
        self.find = finder.find
        self.census = finder.census
        self.alter = alterer.alter
        self.put = alterer.put
        self.expire = alterer.expire
        kept = KeptValues(access)
        self.kept, self.count_kept, self.swap_kept = kept.kept, kept.count_kept, kept.swap_kept


class MemoryEngine:
    """Jobs in this process. At most `capacity` active ones, and the last `history` finished ones."""

    name: ClassVar[str] = "memory"
    features: ClassVar[frozenset[Feature]] = frozenset(
        {
            Feature.OWN_TRANSACTION,
            Feature.REPEATED,
            Feature.ACROSS_QUEUES,
            Feature.KEYS_ACROSS_QUEUES,
            Feature.BESIDE_TRANSACTIONS,
            Feature.CLOSES_AT_ONCE,
            Feature.OUTBOX,
        }
    )
    parallel_calls: ClassVar[int] = 1
    most_bytes: ClassVar[int | None] = None

    def __init__(
        self,
        clock: Clock | None = None,
        capacity: int | None = None,
        when_full: WhenFull = "raise",
        history: int = HISTORY,
    ) -> None:
        if capacity is not None and capacity < 1:
            raise InvalidOption("capacity", capacity, "must be at least 1, or None for no limit")
        if when_full not in ("raise", "wait"):
            raise InvalidOption("when_full", when_full, "must be one of raise, wait")
        self._furnish(Store(clock, capacity, history_of(history)), when_full)

    def _furnish(self, store: Store, when_full: WhenFull) -> None:
        self._store = store
        self._when_full = when_full
        self._access = access = Access(store)
        self.call_times = access.call_times
        self.clock = store.given_clock
        finder = Finder(access)
        self.jobs: base.Jobs = Jobs(access, when_full, finder)
        self.operator: base.Operator = Operator(access, finder)
        self.groups = Groups(access)
        self.steps = Steps(access)
        self.control = Control(access)
        self.schedules = Schedules(access)
        self.timeline = Timeline(access)
        self.documents = Documents(access)
        self.audit = Audit(access)
        self.outbox = Outbox(access)

    @property
    def keep_done(self) -> Span:
        """How long done jobs are kept by default; settable, so that tests can compare it with another engine."""
        return self._store.keep_done

    @keep_done.setter
    def keep_done(self, span: Span) -> None:
        self._store.keep_done = span

    @property
    def history(self) -> int | None:
        """Most finished jobs that are kept; here with every write, not only after cleaning."""
        return self._store.history

    @history.setter
    def history(self, most: int | None) -> None:
        self._store.history = most

    @property
    def where(self) -> str:
        return "in this process"

    @property
    def version(self) -> str:
        return f"Python {platform.python_version()}"

    async def open(self) -> None:
        self._access.open()

    async def close(self) -> None:
        self._access.close()

    def for_loop(self, *, read_limit: float | None = None) -> Self:  # noqa: ARG002 - every call is short
        other = object.__new__(type(self))
        other._furnish(self._store, self._when_full)
        return other

    def transaction(self) -> AbstractAsyncContextManager[MemoryTransaction]:
        return self._transaction()

    @asynccontextmanager
    async def _transaction(self) -> AsyncIterator[MemoryTransaction]:
        tx = self.begin()
        try:
            yield tx
        except BaseException:
            tx.forget()
            raise
        self.commit(tx)

    def begin(self) -> MemoryTransaction:
        """A transaction that its caller ends, with `commit` or by forgetting it."""
        self._access.check()
        return MemoryTransaction(self._store)

    def commit(self, tx: MemoryTransaction) -> None:
        """Write what was done in a transaction."""
        with self._access.write as store:
            tx.perform(store.now())

    def adopt(self, adopt: Adopt) -> None:
        """Take other handles as `tx=` than the store's own, in all engines on it."""
        self._store.adopt = adopt

    async def migrate(self, *, plan_only: bool = False, stopped: bool = False) -> list[str]:  # noqa: ARG002 - there is no schema
        return []

    async def migration_script(self) -> None:
        return None

    async def diagnose(self) -> Facts:
        with self._access.read as store:
            done = sum(record.status in FINISHED for record in store.jobs.values())
            finished = Counted("all queues", "finished", len(store.finished), done)
            keys = itertools.islice(store.holders.values(), MOST_COUNTED)
            held = (job for job in keys if not isinstance(job, Kept))
            idle = sum(job not in store.jobs or store.jobs[job].status in FINISHED for job in held)
        return Facts(idle_keys=idle, counters=(finished,))

    async def describe(self) -> Description:
        with self._access.read as store:
            capacity = "unlimited" if store.capacity is None else f"{store.capacity}, then {self._when_full}"
            facts = {
                "capacity": capacity,
                "active": str(store.active),
                "finished": f"{len(store.finished)} of at most {store.history}",
                "engines": str(len(store.waiters)),
                "clock marks dropped": str(store.clock.dropped),
            }
        return Description(
            engine=self.name,
            version=self.version,
            durable=False,
            durability=DURABILITY,
            facts=facts,
            warnings=(WARNING,),
        )

    async def now(self) -> Instant:
        with self._access.read as store:
            return store.now()
