"""The Redis engine: what its facets are composed of, and its lifetime.

An acknowledged write survives as far as the server's settings promise; `describe` reads and reports them. The engine
refuses a server that may evict keys.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, ClassVar, Self, cast

import msgspec

from stoker.engines import base
from stoker.engines.base import Clock, Description, Feature, Transaction
from stoker.engines.redis.alter import Alterer
from stoker.engines.redis.audit import Audit
from stoker.engines.redis.census import CensusReader
from stoker.engines.redis.claim import Claimer
from stoker.engines.redis.connection import LARGEST_CALL, public_url, read_url
from stoker.engines.redis.control import Control
from stoker.engines.redis.describe import described
from stoker.engines.redis.diagnose import diagnose
from stoker.engines.redis.documents import Documents
from stoker.engines.redis.events import Timeline
from stoker.engines.redis.expire import Sweeper
from stoker.engines.redis.find import Finder, unread
from stoker.engines.redis.groups import Groups
from stoker.engines.redis.insert import Inserter
from stoker.engines.redis.kept import KeptValues
from stoker.engines.redis.leases import Leases
from stoker.engines.redis.lost_writes import WriteCounter
from stoker.engines.redis.notes import NoteWriter
from stoker.engines.redis.schedules import Schedules
from stoker.engines.redis.scripts import KEEP_DONE
from stoker.engines.redis.server_checks import ServerChecks
from stoker.engines.redis.settle import Settler
from stoker.engines.redis.steps import Steps
from stoker.engines.redis.store import Options, Store, refuse
from stoker.model.errors import InvalidName, InvalidOption
from stoker.model.health.facts import Facts
from stoker.model.job import check_name
from stoker.model.query import history_of
from stoker.model.time import Instant, Span

DEFAULTS: dict[str, Any] = {"prefix": "stoker", "timeout": 5.0, "patience": 2.0, "history": None}
"""Options that neither a keyword nor the URL gives."""


class Jobs:
    """Jobs and leases."""

    def __init__(self, store: Store, inserter: Inserter) -> None:
        leases = Leases(store)
        self.insert = inserter.insert
        self.claim = Claimer(store).claim
        self.settle = Settler(store).settle
        self.renew = leases.renew
        self.note = NoteWriter(store).note
        self.reap = leases.reap
        self.ahead = Finder(store).ahead
        self.wait = store.notifier.wait
        self.ended, self.news = store.notifier.ended, store.notifier.news
        self.wake = store.wake


class Operator:
    """What operators read and change of jobs."""

    def __init__(self, store: Store) -> None:
        finder = Finder(store)
        self.get = finder.get
        self.find = finder.find
        self.census = CensusReader(store).census
        alterer = Alterer(store)
        self.alter = alterer.alter
        self.put = alterer.put
        self.expire = Sweeper(store).expire
        kept = KeptValues(store)
        self.kept, self.count_kept, self.swap_kept = kept.kept, kept.count_kept, kept.swap_kept


class RedisEngine:
    """Jobs in a Redis server or cluster, for any number of processes anywhere.

    `prefix` keeps several apps on one server apart. `timeout` is how many seconds a call may take, `patience` how long
    calls that may safely be repeated are tried again before they raise `EngineUnavailable`.
    """

    name: ClassVar[str] = "redis"
    outbox: ClassVar[None] = None
    features: ClassVar[frozenset[Feature]] = frozenset(
        {
            Feature.DURABLE,
            Feature.SHARED,
            Feature.REPEATED,
            Feature.ACROSS_QUEUES,
            Feature.KEYS_ACROSS_QUEUES,
            Feature.BESIDE_TRANSACTIONS,
            Feature.SERVER,
            Feature.CLOSES_AT_ONCE,
        }
    )
    parallel_calls: ClassVar[int] = 3
    keep_done: Span = KEEP_DONE
    most_bytes: ClassVar[int | None] = LARGEST_CALL

    def __new__(
        cls,
        url: str,
        *,
        clock: Clock | None = None,  # noqa: ARG004 - the options are for __init__
        prefix: str | None = None,  # noqa: ARG004
        timeout: float | None = None,  # noqa: ARG004
        patience: float | None = None,  # noqa: ARG004
        history: int | None = None,  # noqa: ARG004
    ) -> Self:
        """An engine for a cluster where the URL says so."""
        cluster = cls is RedisEngine and url.lower().startswith("redis+cluster:")
        return cast("Self", object.__new__(RedisClusterEngine)) if cluster else object.__new__(cls)

    def __init__(
        self,
        url: str,
        *,
        clock: Clock | None = None,
        prefix: str | None = None,
        timeout: float | None = None,
        patience: float | None = None,
        history: int | None = None,
    ) -> None:
        address = read_url(url, tuple(DEFAULTS))
        if isinstance(self, RedisClusterEngine) and not address.cluster:
            raise InvalidOption("the Redis URL", "…", "must begin with redis+cluster:// for a cluster")
        given = {**DEFAULTS, **address.options}
        if prefix is None:
            prefix = given["prefix"]
        if timeout is None:
            timeout = _seconds("timeout", given["timeout"])
        if patience is None:
            patience = _seconds("patience", given["patience"])
        check_name("prefix", prefix)
        if ":" in prefix:
            raise InvalidName("prefix", prefix, "must not contain a colon: keys of one store would be those of another")
        most = history_of(given["history"] if history is None else history)
        self._build(Options(address, prefix, clock, timeout, patience), most)

    def _build(self, options: Options, history: int | None) -> None:
        self._options = options
        self._store = store = Store(options)
        store.history = history
        self.call_times = store.call_times
        self.clock = options.clock
        self._write_counter = WriteCounter(store)
        self._server_checks = ServerChecks(store.connection, self._write_counter)
        self._inserter = Inserter(store, self._server_checks)
        self.jobs: base.Jobs = Jobs(store, self._inserter)
        self.operator: base.Operator = Operator(store)
        self.groups = Groups(store)
        self.steps = Steps(store)
        self.control = Control(store)
        self.schedules = Schedules(store, self._server_checks)
        self.timeline = Timeline(store)
        self.documents = Documents(store)
        self.audit = Audit(store)

    @property
    def where(self) -> str:
        address = self._options.address
        return f"{public_url(address)}?prefix={self._options.prefix}"

    @property
    def history(self) -> int | None:
        return self._store.history

    @history.setter
    def history(self, most: int | None) -> None:
        self._store.history = most

    @property
    def version(self) -> str:
        return self._server_checks.version

    async def open(self) -> None:
        if self._store.connection.opened:
            return
        await self._store.open()
        try:
            await self._server_checks.admit()
        except BaseException:
            await self._store.close()
            raise
        self._server_checks.start()

    async def close(self) -> None:
        await self._inserter.close()
        await self.schedules.close()
        await self._server_checks.stop()
        await self._store.close()

    def for_loop(self, *, read_limit: float | None = None) -> Self:
        """Redis does not stop a script; scripts that read are short, and a limited caller waits no longer."""
        twin = object.__new__(type(self))
        options = self._options
        if read_limit is not None:
            times = min(options.timeout, read_limit), min(options.patience, read_limit)
            options = msgspec.structs.replace(options, timeout=times[0], patience=times[1])
        twin._build(options, self.history)
        return twin

    def transaction(self) -> AbstractAsyncContextManager[Transaction]:
        return self._transaction()

    @asynccontextmanager
    async def _transaction(self) -> AsyncIterator[Transaction]:
        refuse(self)
        yield None

    async def migrate(self, *, plan_only: bool = False, stopped: bool = False) -> list[str]:  # noqa: ARG002 - there is no schema to change
        return []

    async def migration_script(self) -> None:
        return None

    async def describe(self) -> Description:
        nodes = await self._server_checks.look()
        return described(self.name, nodes, await unread(self._store), self._write_counter.losses)

    async def diagnose(self) -> Facts:
        nodes = await self._server_checks.look()
        return await diagnose(self._store, nodes, self._write_counter.losses, await unread(self._store))

    async def now(self) -> Instant:
        return await self._store.now()


class RedisClusterEngine(RedisEngine):
    """Jobs in a Redis Cluster: each queue lives in one slot, different queues on different servers.

    `features` leaves out what one slot cannot hold: a call over several queues is atomic queue by queue, and
    a unique key is unique inside its queue, so a global one, or a keyed kind in two queues, is refused.
    """

    name: ClassVar[str] = "redis+cluster"
    features: ClassVar[frozenset[Feature]] = RedisEngine.features - {Feature.ACROSS_QUEUES, Feature.KEYS_ACROSS_QUEUES}


def _seconds(name: str, given: str | float) -> float:
    try:
        found = float(given)
    except ValueError:
        found = -1.0
    if not 0 < found < float("inf"):
        raise InvalidOption(f"the URL query option {name}", given, "must be a number of seconds")
    return found
