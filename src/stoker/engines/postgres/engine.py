"""The Postgres engine: its facets, composed of the classes that do the work, and its lifetime.

Inserts, settlements and operators' changes return when they are as durable as the server's configuration promises.
Claims, renewals and other calls that are soon repeated do not wait for the fsync.
"""

from __future__ import annotations

import functools
from contextlib import AbstractAsyncContextManager
from typing import ClassVar, Literal, Self

import msgspec

from stoker.engines import base
from stoker.engines.base import Clock, Description, Feature, Transaction
from stoker.engines.postgres import describe, diagnose, schema
from stoker.engines.postgres.alter import Alterer
from stoker.engines.postgres.audit import Audit
from stoker.engines.postgres.census import CensusReader
from stoker.engines.postgres.claim import Claimer
from stoker.engines.postgres.connection import Pooler
from stoker.engines.postgres.consumers import Consumers
from stoker.engines.postgres.control import Control
from stoker.engines.postgres.documents import Documents
from stoker.engines.postgres.events import Timeline
from stoker.engines.postgres.expire import Sweeper
from stoker.engines.postgres.find import Finder
from stoker.engines.postgres.groups import Groups
from stoker.engines.postgres.insert import Inserter
from stoker.engines.postgres.kept import KeptValues
from stoker.engines.postgres.leases import Leases
from stoker.engines.postgres.letters import LetterBox
from stoker.engines.postgres.notes import NoteWriter
from stoker.engines.postgres.outbox import Streams
from stoker.engines.postgres.schedules import Schedules
from stoker.engines.postgres.settle import Settler
from stoker.engines.postgres.steps import Steps
from stoker.engines.postgres.store import Options, Store
from stoker.engines.postgres.url import public_url, read_url
from stoker.engines.postgres.user_transaction import Transactions
from stoker.model.health.facts import Facts
from stoker.model.lifecycle import KEEP_DONE
from stoker.model.time import Instant, Span


class Jobs:
    """Jobs and leases."""

    def __init__(
        self,
        store: Store,
        inserter: Inserter,
        claimer: Claimer,
        settler: Settler,
        transactions: Transactions,
        finder: Finder,
    ) -> None:
        leases = Leases(store)
        self.insert = inserter.insert
        self.claim = claimer.claim
        self.settle = settler.settle
        self.renew = leases.renew
        self.note = NoteWriter(store, transactions).note
        self.reap = leases.reap
        self.ahead = finder.ahead
        self.wait = store.wait
        self.ended, self.news = store.ended, store.news
        self.wake = store.wake


class Operator:
    """What operators read and change of jobs."""

    def __init__(self, store: Store, claimer: Claimer, finder: Finder) -> None:
        self.get = finder.get
        self.find = finder.find
        self.census = CensusReader(store).census
        alterer = Alterer(store, claimer)
        self.alter = alterer.alter
        self.put = alterer.put
        self.expire = Sweeper(store).expire
        kept = KeptValues(store)
        self.kept, self.count_kept, self.swap_kept = kept.kept, kept.count_kept, kept.swap_kept


class Outbox:
    """Streams, inboxes and held claims."""

    def __init__(self, store: Store, settler: Settler, transactions: Transactions) -> None:
        streams, consumers = Streams(store, transactions), Consumers(store)
        self.register = streams.register
        self.append = streams.append
        self.lease = streams.lease
        self.advance = streams.advance
        self.streams = consumers.streams
        self.steer = consumers.steer
        self.vacuum = consumers.vacuum
        self.letters = LetterBox(store).letters
        self.receive = streams.receive
        self.hold = transactions.hold
        self.settle_last = transactions.settle_last
        self.notify_settled = settler.notify_settled


class PostgresEngine:
    """Jobs in one schema of a Postgres database.

    `migrate="auto"` upgrades an older schema at open; an absent one is made in any case. `pooler` says whether a
    pooler in transaction mode stands in between (found out by itself), `direct` is a URL past it, for wake-ups.
    `timeout` is how many seconds a statement may take before the server counts as away.
    """

    name: ClassVar[str] = "postgres"
    features: ClassVar[frozenset[Feature]] = frozenset(Feature) - {
        Feature.SIGN_OF_LIFE,
        Feature.CLOSES_AT_ONCE,
    }
    parallel_calls: ClassVar[int] = 2
    keep_done: Span = KEEP_DONE
    most_bytes: ClassVar[int | None] = None

    def __init__(
        self,
        url: str,
        *,
        clock: Clock | None = None,
        schema: str | None = None,
        migrate: Literal["auto", "manual"] | None = None,
        pooler: Pooler | None = None,
        direct: str | None = None,
        timeout: float | None = None,
        history: int | None = None,
    ) -> None:
        given = {"schema": schema, "migrate": migrate, "pooler": pooler, "direct": direct, "timeout": timeout}
        self._furnish(read_url(url, clock=clock, given={**given, "history": history}))

    def _furnish(self, options: Options) -> None:
        self._options = options
        self._store = store = Store(options)
        self.call_times = store.call_times
        self.clock = options.clock
        claimer = Claimer(store)
        store.group_closer.inserted = claimer.inserted
        self._transactions = transactions = Transactions(store, claimer)
        self._inserter = inserter = Inserter(store, claimer, transactions)
        settler, finder = Settler(store, claimer, transactions), Finder(store, transactions)
        self.jobs: base.Jobs = Jobs(store, inserter, claimer, settler, transactions, finder)
        self.operator: base.Operator = Operator(store, claimer, finder)
        self.groups = Groups(store)
        self.steps = Steps(store, claimer, transactions)
        self.control = Control(store)
        self.schedules = Schedules(store, claimer)
        self.timeline = Timeline(store)
        self.documents = Documents(store)
        self.audit = Audit(store)
        self.outbox: base.Outbox = Outbox(store, settler, transactions)

    @property
    def where(self) -> str:
        return public_url(self._options)

    @property
    def history(self) -> int | None:
        return self._store.history

    @history.setter
    def history(self, most: int | None) -> None:
        self._store.history = most

    @property
    def version(self) -> str:
        return self._store.version

    async def open(self) -> None:
        await self._store.open()

    async def close(self) -> None:
        await self._inserter.close()
        await self.schedules.close()
        await self._store.close()

    def for_loop(self, *, read_limit: float | None = None) -> Self:
        twin = type(self).__new__(type(self))
        options = self._options
        if read_limit is not None:
            options = msgspec.structs.replace(options, read_limit=read_limit)
        twin._furnish(options)  # noqa: SLF001 - it is one of us
        twin.history = self.history
        return twin

    def transaction(self) -> AbstractAsyncContextManager[Transaction]:
        return self._transactions.own()

    async def migrate(self, *, plan_only: bool = False, stopped: bool = False) -> list[str]:
        migrate = schema.plan if plan_only else functools.partial(schema.migrate, stopped=stopped)
        return await schema.connected(self._options, migrate)

    async def migration_script(self) -> str:
        return await schema.connected(self._options, schema.script)

    async def describe(self) -> Description:
        return await describe.describe(self._store)

    async def diagnose(self) -> Facts:
        return await diagnose.diagnose(self._store)

    async def now(self) -> Instant:
        return await self._store.server_time()
