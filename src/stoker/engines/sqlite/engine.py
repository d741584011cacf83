"""The SQLite engine: its facets, composed of the classes of its modules, and its lifetime.

A write returns when its transaction is as durable as promised: inserts, settlements and operators' changes survive a
power loss unless `durability="process"`; claims, renewals and everything that is soon repeated survive the death of the
process.
"""

from __future__ import annotations

import asyncio
import functools
import os
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import ClassVar, Literal, Self

import msgspec

from stoker.engines import base
from stoker.engines.base import Clock, Description, Feature, Transaction
from stoker.engines.sql.exchanges import just
from stoker.engines.sqlite import diagnose, schema, user_transaction
from stoker.engines.sqlite.alter import Alterer
from stoker.engines.sqlite.audit import Audit
from stoker.engines.sqlite.claim import Claimer
from stoker.engines.sqlite.connection import VERSION, Connection, Journal
from stoker.engines.sqlite.consumers import Consumers
from stoker.engines.sqlite.control import Control
from stoker.engines.sqlite.describe import described, pragmas
from stoker.engines.sqlite.documents import Documents
from stoker.engines.sqlite.events import Timeline
from stoker.engines.sqlite.expire import Sweeper
from stoker.engines.sqlite.find import Finder
from stoker.engines.sqlite.groups import Groups
from stoker.engines.sqlite.insert import Inserter
from stoker.engines.sqlite.kept import KeptValues
from stoker.engines.sqlite.leases import Leases
from stoker.engines.sqlite.letters import LetterBox
from stoker.engines.sqlite.outbox import Streams
from stoker.engines.sqlite.schedules import Schedules
from stoker.engines.sqlite.settle import Settler
from stoker.engines.sqlite.steps import Steps
from stoker.engines.sqlite.store import Options, Store
from stoker.model.errors import InvalidOption
from stoker.model.health.facts import Facts
from stoker.model.lifecycle import KEEP_DONE
from stoker.model.query import history_of
from stoker.model.time import Instant, Span

PATIENCE = 5.0
DAY = 86_400
"""Seconds, the longest `busy_timeout`."""
LONGEST_NAME = 255 - len("-journal")
LONGEST_PATH = 4_000
"""Bytes that every file system takes, with the names of the files that SQLite makes beside a database."""


def _too_long(path: str) -> bool:
    sizes = [len(name.encode(errors="surrogatepass")) + 1 for name in path.split("/")]
    return max(sizes) - 1 > LONGEST_NAME or sum(sizes) > LONGEST_PATH


class Jobs:
    """Jobs and leases."""

    def __init__(self, store: Store, claimer: Claimer, settler: Settler) -> None:
        leases = Leases(store)
        self.insert = Inserter(store).insert
        self.claim, self.ahead, self.wait = claimer.claim, claimer.ahead, claimer.wait
        self.settle, self.note = settler.settle, settler.note
        self.renew, self.reap = leases.renew, leases.reap
        self.ended, self.news, self.wake = store.ended, store.news, store.wake


class Operator:
    """What operators read and change of jobs."""

    def __init__(self, store: Store) -> None:
        finder = Finder(store)
        self.get, self.find, self.census = finder.get, finder.find, finder.census
        alterer = Alterer(store)
        self.alter, self.put = alterer.alter, alterer.put
        self.expire = Sweeper(store).expire
        kept = KeptValues(store)
        self.kept, self.count_kept, self.swap_kept = kept.kept, kept.count_kept, kept.swap_kept


class Outbox:
    """Streams, inboxes and held claims."""

    def __init__(self, store: Store, settler: Settler) -> None:
        streams, consumers = Streams(store), Consumers(store)
        self.register, self.append = streams.register, streams.append
        self.lease, self.advance = streams.lease, streams.advance
        self.receive, self.hold = streams.receive, streams.hold
        self.streams, self.steer, self.vacuum = consumers.streams, consumers.steer, consumers.vacuum
        self.letters = LetterBox(store).letters
        self.settle_last, self.notify_settled = settler.settle_last, settler.notify_settled


class SqliteEngine:
    """Jobs in one SQLite file, for any number of processes on one host.

    `durability="process"` gives up the last commits at a power loss, not at a crash. `journal="delete"` avoids SQLite's
    write-ahead log. `busy_timeout` is how many seconds a write waits for other writers before it raises `EngineBusy`.
    """

    name: ClassVar[str] = "sqlite"
    features: ClassVar[frozenset[Feature]] = frozenset(Feature) - {
        Feature.BESIDE_TRANSACTIONS,
        Feature.SERVER,
    }
    parallel_calls: ClassVar[int] = 1
    keep_done: Span = KEEP_DONE
    most_bytes: ClassVar[int | None] = None

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        clock: Clock | None = None,
        durability: Literal["power", "process"] = "power",
        journal: Journal = "wal",
        busy_timeout: float = PATIENCE,
        history: int | None = None,
    ) -> None:
        if durability not in ("power", "process"):
            raise InvalidOption("durability", durability, "must be power or process")
        if journal not in ("wal", "delete"):
            raise InvalidOption("journal", journal, "must be wal or delete")
        if isinstance(busy_timeout, bool) or not isinstance(busy_timeout, int | float) or not 0 <= busy_timeout <= DAY:
            raise InvalidOption("busy_timeout", busy_timeout, f"must be 0 to {DAY:,} seconds")
        self.path = str(Path(path).absolute())
        if any(character in self.path for character in "\0\r\n"):
            raise InvalidOption("path", self.path, "must not contain NUL or a line break")
        if _too_long(self.path):
            why = f"is too long for a file: {LONGEST_NAME} bytes for each name, {LONGEST_PATH:,} in all"
            raise InvalidOption("path", self.path, why)
        self._store = store = Store(self.path, Options(clock, durability, journal, busy_timeout))
        store.history = history_of(history)
        self.call_times = store.call_times
        self.clock = clock
        claimer = Claimer(store)
        settler = Settler(store, claimer.claim)
        self.jobs: base.Jobs = Jobs(store, claimer, settler)
        self.operator: base.Operator = Operator(store)
        self.groups: base.Groups = Groups(store)
        self.steps: base.Steps = Steps(store)
        self.control: base.Control = Control(store)
        self.schedules: base.Schedules = Schedules(store)
        self.timeline: base.Timeline = Timeline(store)
        self.documents: base.Documents = Documents(store)
        self.audit: base.Audit = Audit(store)
        self.outbox: base.Outbox = Outbox(store, settler)

    @property
    def where(self) -> str:
        return self.path

    @property
    def version(self) -> str:
        return VERSION

    @property
    def history(self) -> int | None:
        return self._store.history

    @history.setter
    def history(self, most: int | None) -> None:
        self._store.history = most

    async def open(self) -> None:
        await self._store.open()

    async def close(self) -> None:
        await self._store.close()

    def for_loop(self, *, read_limit: float | None = None) -> Self:
        options = self._store.options
        twin = type(self)(
            self.path,
            clock=options.clock,
            durability=options.durability,
            journal=options.journal,
            busy_timeout=options.patience,
            history=self.history,
        )
        if read_limit is None:
            read_limit = options.read_limit
        twin._store.options = msgspec.structs.replace(options, read_limit=read_limit)  # noqa: SLF001 - it is one of us
        return twin

    def transaction(self) -> AbstractAsyncContextManager[Transaction]:
        return self._transaction()

    @asynccontextmanager
    async def _transaction(self) -> AsyncIterator[user_transaction.Own]:
        resources = self._store.resources()
        if resources.transactions:
            connection = resources.transactions.pop()
        else:
            connection = await asyncio.to_thread(Connection, self.path, journal=self._store.options.journal)
        own = user_transaction.Own(self._store, connection)
        try:
            await own.start(self._store.options.patience)
            yield own
        except BaseException:
            self._store.keep(await own.end(keep=False), resources)
            raise
        self._store.keep(await own.end(keep=True), resources)
        self._store.notify(own.woken)
        for closing in own.closings:
            self._store.emit_closing(closing)

    async def migrate(self, *, plan_only: bool = False, stopped: bool = False) -> list[str]:
        migrate = schema.plan if plan_only else functools.partial(schema.migrate, stopped=stopped)
        return await asyncio.to_thread(migrate, self.path, self._store.options.journal, self._store.options.patience)

    async def migration_script(self) -> str:
        return await asyncio.to_thread(
            schema.script, self.path, self._store.options.journal, self._store.options.patience
        )

    async def describe(self) -> Description:
        resources = self._store.resources()
        found = await self._store.write(lambda _: pragmas(), strict=True)
        return described(resources, self.path, self._store.options, found)

    async def diagnose(self) -> Facts:
        settings = await self._store.write(lambda _: pragmas(), strict=True)
        found = await self._store.read(lambda _: diagnose.counts())
        return diagnose.facts(self.path, self._store.options.durability, settings, found)

    async def now(self) -> Instant:
        return await self._store.read(just)
