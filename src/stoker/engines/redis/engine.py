"""The Redis engine: every method of the contract, one line each.

An acknowledged write survives as far as the server's settings promise; `describe` reads and reports them. The engine
refuses a server that may evict keys.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from typing import Any, ClassVar, Self, cast

import msgspec

from stoker.engines.base import LEASE, Clock, Description, Feature, Transaction
from stoker.engines.call_times import CallTimes, timed
from stoker.engines.redis import (
    alter,
    audit,
    diagnose,
    documents,
    expire,
    find,
    groups,
    insert,
    leases,
    schedules,
    settle,
    subqueues,
)
from stoker.engines.redis import claim as claiming
from stoker.engines.redis import events as event_log
from stoker.engines.redis.census import census
from stoker.engines.redis.connection import LARGEST_CALL, public_url, read_url
from stoker.engines.redis.control import Control
from stoker.engines.redis.describe import described
from stoker.engines.redis.lost_writes import WriteCounter
from stoker.engines.redis.notes import note
from stoker.engines.redis.scripts import KEEP_DONE
from stoker.engines.redis.server_checks import ServerChecks
from stoker.engines.redis.store import Options, Store
from stoker.engines.shared.documents import Documents, Signed
from stoker.engines.shared.facets import OneObject
from stoker.engines.shared.schedules import fire
from stoker.model.ahead import Ahead
from stoker.model.audit import AuditEntry, AuditQuery, By, Deed
from stoker.model.control import Budget, Presence, Queue, Tuning
from stoker.model.errors import EngineRefused, InvalidName, InvalidOption
from stoker.model.events import Event, EventCount, Latency, Point, Timings, Window
from stoker.model.groups import Closing, Group, Swept
from stoker.model.health.facts import Facts
from stoker.model.ids import JobId
from stoker.model.job import (
    Claim,
    Demand,
    Draft,
    Job,
    Note,
    Receipt,
    Renewal,
    Settled,
    Settlement,
    Verdict,
    check_lease,
    check_name,
)
from stoker.model.query import Census, Change, Expired, Page, Query, Retention, Selection, Tally, bounded, history_of
from stoker.model.schedule import Edit, Fired, Schedule, Tick
from stoker.model.subqueues import SubqueueView
from stoker.model.throttle import Grant, Rate
from stoker.model.time import Instant, Span

DEFAULTS: dict[str, Any] = {"prefix": "stoker", "timeout": 5.0, "patience": 2.0, "history": None}
"""Options that neither a keyword nor the URL gives."""


class RedisEngine(Documents, OneObject):
    """Jobs in a Redis server or cluster, for any number of processes anywhere.

    `prefix` keeps several apps on one server apart. `timeout` is how many seconds a call may take, `patience` how long
    calls that may safely be repeated are tried again before they raise `EngineUnavailable`.
    """

    name: ClassVar[str] = "redis"
    outbox: ClassVar[None] = None  # type: ignore[assignment]
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
        self.call_times = CallTimes()
        self.history = history_of(given["history"] if history is None else history)
        self._build(Options(address, prefix, clock, timeout, patience))

    def _build(self, options: Options) -> None:
        self._options = options
        self._store = Store(options)
        self._ends = self._store.hub.wait_for_ends(partial(find.ended, self._store))
        self._batcher = insert.batcher(self._store)
        self._ticks = schedules.Ticks(self._store)
        self._control = Control(self._store)
        self._write_counter = WriteCounter(self._store)
        self._server_checks = ServerChecks(self._store.connection, self._write_counter)

    # --- life ---------------------------------------------------------------------------------------------------

    @property
    def where(self) -> str:
        address = self._options.address
        return f"{public_url(address)}?prefix={self._options.prefix}"

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
        await self._batcher.close()
        await self._ticks.close()
        await self._server_checks.stop()
        await self._store.close()

    def for_loop(self, *, read_limit: float | None = None) -> Self:
        """Redis does not stop a script; scripts that read are short, and a limited caller waits no longer."""
        twin = object.__new__(type(self))
        twin.call_times, twin.history = CallTimes(), self.history
        options = self._options
        if read_limit is not None:
            times = min(options.timeout, read_limit), min(options.patience, read_limit)
            options = msgspec.structs.replace(options, timeout=times[0], patience=times[1])
        twin._build(options)
        return twin

    def transaction(self) -> AbstractAsyncContextManager[Transaction]:
        return self._transaction()

    @asynccontextmanager
    async def _transaction(self) -> AsyncIterator[Transaction]:
        _refuse(self)
        yield None

    async def migrate(self, *, plan_only: bool = False) -> list[str]:  # noqa: ARG002 - there is no schema to change
        return []

    async def migration_script(self) -> None:
        return None

    async def describe(self) -> Description:
        nodes, unread = await self._server_checks.look(), await find.unread(self._store)
        return described(self.name, nodes, unread, self._write_counter.losses)

    async def diagnose(self) -> Facts:
        nodes, unread = await self._server_checks.look(), await find.unread(self._store)
        return await diagnose.diagnose(self._store, nodes, self._write_counter.losses, unread)

    async def now(self) -> Instant:
        return await self._store.now()

    # --- jobs ----------------------------------------------------------------------------------------------

    @timed(write=True)
    async def insert(
        self, drafts: Sequence[Draft], *, tx: Transaction | None = None, group: Group | None = None
    ) -> list[Receipt]:
        _refuse(tx)
        self._server_checks.insist()
        return await insert.batched(self._store, self._batcher, drafts, group)

    @timed(write=True)
    async def claim(self, demand: Demand) -> list[Claim]:
        return await claiming.claim(self._store, demand)

    @timed(write=True)
    async def settle(
        self,
        settlements: Sequence[Settlement],
        *,
        tx: Transaction | None = None,
        demand: Demand | None = None,
    ) -> Settled:
        _refuse(tx)
        settled = await settle.settle(self._store, settlements, demand)
        self._ends.settled(settlements, settled.verdicts)
        return settled

    @timed(write=True)
    async def renew(
        self, worker: str, held: Sequence[tuple[JobId, int]], *, lease: Span = LEASE, first: bool = False
    ) -> Renewal:
        check_lease(lease)
        return await leases.renew(self._store, worker, held, lease, first=first)

    @timed(write=True)
    async def note(self, notes: Sequence[Note], *, tx: Transaction | None = None) -> list[Verdict]:
        _refuse(tx)
        return await note(self._store, notes)

    @timed(write=True)
    async def reap(self, by: str, limit: int, *, dead: Sequence[str] = ()) -> list[Claim]:
        return await leases.reap(self._store, by, limit, dead)

    @timed(write=False)
    async def ahead(self, queues: Sequence[str]) -> Ahead:
        return await find.ahead(self._store, queues)

    async def wait(self, topics: Sequence[str], timeout: float) -> frozenset[str]:
        return await self._store.hub.wait(topics, timeout)

    async def ended(self, job: JobId, timeout: float) -> bool:
        self._store.connection.inside()
        return await self._ends.wait(job, timeout)

    async def wake(self, topics: Sequence[str]) -> None:
        await self._store.wake(topics)

    # --- operators -------------------------------------------------------------------------------------------------

    @timed(write=False)
    async def get(self, ids: Sequence[JobId]) -> list[Job | None]:
        return await self._store.get(ids)

    @timed(write=False)
    async def find(self, query: Query) -> Page:
        return await find.find(self._store, query)

    @timed(write=False)
    async def census(self) -> Census:
        return await census(self._store)

    @timed(write=True)
    async def alter(self, selection: Selection, change: Change, *, by: By | None = None) -> Tally:
        tally = await alter.alter(self._store, selection, change, by)
        self._ends.altered(selection, change, tally)
        return tally

    @timed(write=True)
    async def expire(self, retention: Retention) -> Expired:
        return await expire.expire(self._store, bounded(retention, self.history))

    # --- groups -------------------------------------------------------------------------------------------------

    @timed(write=False)
    async def get_groups(self, ids: Sequence[JobId]) -> list[Group | None]:
        return await groups.groups(self._store, ids)

    @timed(write=True)
    async def seal(self, group: JobId, *, abandoned: bool = False) -> bool:
        return await groups.seal(self._store, group, abandoned=abandoned)

    def watch_closings(self, emit: Callable[[Closing], None]) -> None:
        self._store.emit_closing = emit

    @timed(write=True)
    async def sweep_groups(self, limit: int = 1_000) -> Swept:
        return await groups.sweep(self._store, limit)

    # --- control ------------------------------------------------------------------------------------------------

    @timed(write=False)
    async def queues(self) -> list[Queue]:
        return await self._control.queues()

    @timed(write=True)
    async def tune(self, name: str, tuning: Tuning | Rate, *, declared: bool = False, by: By | None = None) -> bool:
        return await self._control.tune(name, tuning, declared=declared, by=by)

    @timed(write=False)
    async def subqueues(
        self, queue: str, *, after: str | None = None, limit: int = 100, names: Sequence[str] | None = None
    ) -> list[SubqueueView]:
        return await subqueues.subqueues(self._store, queue, after, limit, names)

    @timed(write=False)
    async def budgets(self) -> list[Budget]:
        return await self._control.budgets()

    @timed(write=True)
    async def spend(self, name: str, n: int = 1) -> Grant:
        return await self._control.spend(name, n)

    @timed(write=True)
    async def drain(self, name: str) -> bool:
        return await self._control.drain(name)

    @timed(write=True)
    async def lock(self, name: str, owner: str, lease: Span) -> bool:
        return await self._control.lock(name, owner, lease)

    @timed(write=True)
    async def unlock(self, name: str, owner: str) -> bool:
        return await self._control.unlock(name, owner)

    @timed(write=True)
    async def beat(self, presence: Presence) -> None:
        await self._control.beat(presence)

    @timed(write=False)
    async def workers(self) -> list[Presence]:
        return await self._control.workers()

    # --- schedules ----------------------------------------------------------------------------------------------

    @timed(write=False)
    async def read_schedules(self) -> list[Schedule]:
        return await schedules.schedules(self._store)

    @timed(write=True)
    async def put(self, given: Schedule | Edit, *, keep_edited: bool = False, by: By | None = None) -> Schedule | None:
        self._server_checks.insist()
        return await schedules.put(self._store, given, keep_edited=keep_edited, by=by)

    @timed(write=True)
    async def drop(self, name: str, *, by: By | None = None) -> bool:
        return await schedules.drop(self._store, name, by)

    @timed(write=True)
    async def fire(self, tick: Tick, drafts: Sequence[Draft] = ()) -> Fired:
        self._server_checks.insist()
        return await fire(self._ticks.fire, tick, drafts)

    # --- the timeline -------------------------------------------------------------------------------------------

    @timed(write=True)
    async def record(
        self, events: Sequence[Event], points: Sequence[Point] = (), *, now: Instant, chunk: bytes | None = None
    ) -> int:
        return await event_log.record(self._store, events, points, now, chunk)

    @timed(write=False)
    async def events(self, window: Window) -> list[Event]:
        return await event_log.events(self._store, window)

    @timed(write=False)
    async def event_counts(self, since: Instant, until: Instant) -> list[EventCount]:
        return await event_log.counts(self._store, since, until)

    @timed(write=False)
    async def late_minutes(self, since: Instant) -> list[Instant]:
        return await event_log.late_minutes(self._store, since)

    @timed(write=False)
    async def latencies(self, window: Window) -> list[Latency]:
        return await event_log.latencies(self._store, window)

    @timed(write=False)
    async def points(
        self,
        since: Instant,
        until: Instant,
        metrics: Sequence[str],
        queues: frozenset[str] = frozenset(),
        *,
        width: Span | None = None,
    ) -> list[Point]:
        if width is None:
            return await event_log.points(self._store, since, until, metrics, queues)
        return await event_log.merged_points(self._store, since, until, metrics, queues, width)

    def timings(self) -> Timings:
        return self.call_times.drain()

    # --- audit --------------------------------------------------------------------------------------------------

    @timed(write=False)
    async def read_audit(self, query: AuditQuery) -> list[AuditEntry]:
        return await audit.read(self._store, query)

    @timed(write=True)
    async def write_audit(self, by: By, deed: Deed) -> AuditEntry:
        return await audit.entered(self._store, by, deed)

    # --- documents ----------------------------------------------------------------------------------------------

    @timed(write=False)
    async def _documents(self, sort: str) -> list[bytes]:
        return await documents.documents(self._store, sort)

    @timed(write=True)
    async def _swap(self, sort: str, name: str, before: bytes | None, after: bytes, signed: Signed | None) -> bool:
        return await documents.swap(self._store, sort, name, before, after, signed)


class RedisClusterEngine(RedisEngine):
    """Jobs in a Redis Cluster: each queue lives in one slot, different queues on different servers.

    `features` leaves out what one slot cannot hold: a call over several queues is atomic queue by queue, and
    a unique key is unique inside its queue, so a global one, or a keyed kind in two queues, is refused.
    """

    name: ClassVar[str] = "redis+cluster"
    features: ClassVar[frozenset[Feature]] = RedisEngine.features - {Feature.ACROSS_QUEUES, Feature.KEYS_ACROSS_QUEUES}


def _refuse(tx: object) -> None:
    """Redis has no transactions that hold anything back, so it takes part in none."""
    if tx is not None:
        raise EngineRefused(
            f"Redis takes no tx= (it was given {_type_name(tx)}): a job there cannot wait for a database to commit. "
            f"Nothing was stored. Enqueue after the commit, or keep the jobs in that database."
        )


def _type_name(tx: object) -> str:
    kind = type(tx)
    return f"{kind.__module__}.{kind.__qualname__}"


def _seconds(name: str, given: str | float) -> float:
    try:
        found = float(given)
    except ValueError:
        found = -1.0
    if not 0 < found < float("inf"):
        raise InvalidOption(f"the URL query option {name}", given, "must be a number of seconds")
    return found
