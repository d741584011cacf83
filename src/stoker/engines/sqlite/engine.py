"""The SQLite engine: every method of the contract, passed on to its module.

A write returns when its transaction is as durable as promised: inserts, settlements and operators' changes survive a
power loss unless `durability="process"`; claims, renewals and everything that is soon repeated survive the death of the
process.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import ClassVar, Literal, Self, TypeVar

import msgspec

from stoker.engines.base import LEASE, Clock, Description, Feature, Transaction, needs_transaction
from stoker.engines.call_times import CallTimes, timed
from stoker.engines.shared.careful import check
from stoker.engines.shared.documents import Documents, Signed
from stoker.engines.shared.facets import OneObject
from stoker.engines.shared.schedules import fire
from stoker.engines.shared.sweeps import in_steps
from stoker.engines.sql import careful
from stoker.engines.sql.exchanges import Exchange
from stoker.engines.sqlite import (
    audit,
    census,
    claim,
    control,
    damage,
    diagnose,
    documents,
    find,
    groups,
    leases,
    outbox,
    schedules,
    schema,
    settle,
    steering,
    user_transaction,
)
from stoker.engines.sqlite import events as event_log
from stoker.engines.sqlite import letters as letter_box
from stoker.engines.sqlite.connection import VERSION, Connection, Journal
from stoker.engines.sqlite.describe import described, pragmas, warn_of_log
from stoker.engines.sqlite.expire import expire
from stoker.engines.sqlite.insert import insert
from stoker.engines.sqlite.store import Options, Store
from stoker.model.ahead import Ahead
from stoker.model.audit import AuditEntry, AuditQuery, By, Deed, of_alter, of_letters, of_steer
from stoker.model.control import Budget, Presence, Queue, Tuning
from stoker.model.errors import InvalidOption
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
)
from stoker.model.lifecycle import KEEP_DONE, check_settlements
from stoker.model.outbox.cursor import Consumer, Lease, Rest, Wish
from stoker.model.outbox.delivery import Advance, Advanced, check_wish
from stoker.model.outbox.letters import Count, LetterAction, LetterFilter, Letters
from stoker.model.outbox.steering import Steering, StreamState
from stoker.model.outbox.stream import Entry, Stream, Vacuumed, check_entries, check_received
from stoker.model.query import (
    Census,
    Change,
    Expired,
    Page,
    Query,
    Retention,
    Selection,
    Sweep,
    Tally,
    bounded,
    history_of,
)
from stoker.model.schedule import Edit, Fired, Schedule, Tick
from stoker.model.subqueues import SubqueueView
from stoker.model.throttle import Grant, Rate
from stoker.model.time import Instant, Span

T = TypeVar("T")

PATIENCE = 5.0
DAY = 86_400
"""Seconds, the longest `busy_timeout`."""
LONGEST_NAME = 255 - len("-journal")
LONGEST_PATH = 4_000
"""Bytes that every file system takes, with the names of the files that SQLite makes beside a database."""


def _too_long(path: str) -> bool:
    sizes = [len(name.encode(errors="surrogatepass")) + 1 for name in path.split("/")]
    return max(sizes) - 1 > LONGEST_NAME or sum(sizes) > LONGEST_PATH


class SqliteEngine(Documents, OneObject):
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
        self.call_times = CallTimes()
        self.history = history_of(history)
        self._options = Options(clock, durability, journal, busy_timeout)
        self._store = Store(self.path, self._options)
        self._starving = False

    # --- open and close -----------------------------------------------------------------------------------------

    @property
    def where(self) -> str:
        return self.path

    @property
    def version(self) -> str:
        return VERSION

    async def open(self) -> None:
        await self._store.open()

    async def close(self) -> None:
        await self._store.close()

    def for_loop(self, *, read_limit: float | None = None) -> Self:
        twin = type(self)(self.path, history=self.history)
        options = self._options
        if read_limit is not None:
            options = msgspec.structs.replace(options, read_limit=read_limit)
        twin._options = options  # noqa: SLF001 - it is one of us
        twin._store = Store(self.path, options)  # noqa: SLF001
        return twin

    def transaction(self) -> AbstractAsyncContextManager[Transaction]:
        return self._transaction()

    @asynccontextmanager
    async def _transaction(self) -> AsyncIterator[user_transaction.Own]:
        resources = self._store.resources()
        if resources.transactions:
            connection = resources.transactions.pop()
        else:
            connection = await asyncio.to_thread(Connection, self.path, journal=self._options.journal)
        own = user_transaction.Own(self._store, connection)
        try:
            await own.start(self._options.patience)
            yield own
        except BaseException:
            self._store.keep(await own.end(keep=False), resources)
            raise
        self._store.keep(await own.end(keep=True), resources)
        self._store.notify(own.woken)
        for closing in own.closings:
            self._store.emit_closing(closing)

    async def migrate(self, *, plan_only: bool = False) -> list[str]:
        migrate = schema.plan if plan_only else schema.migrate
        return await asyncio.to_thread(migrate, self.path, self._options.journal, self._options.patience)

    async def migration_script(self) -> str:
        return await asyncio.to_thread(schema.script, self.path, self._options.journal, self._options.patience)

    async def describe(self) -> Description:
        resources = self._store.resources()
        found = await self._store.write(lambda _: pragmas(), strict=True)
        return described(resources, self.path, self._options, found)

    async def diagnose(self) -> Facts:
        settings = await self._store.write(lambda _: pragmas(), strict=True)
        found = await self._store.read(lambda _: diagnose.counts())
        return diagnose.facts(self.path, self._options.durability, settings, found)

    async def now(self) -> Instant:
        return await self._store.read(_just)

    # --- jobs ---------------------------------------------------------------------------------------------------

    @timed(write=True)
    async def insert(
        self, drafts: Sequence[Draft], *, tx: Transaction | None = None, group: Group | None = None
    ) -> list[Receipt]:
        if tx is not None:
            undo = user_transaction.may_raise(drafts)
            return await self._store.join(tx, lambda unit: insert(unit, drafts, group), undo=undo)
        strict = bool(drafts) or group is not None
        return await self._store.request(strict=strict, drafts=drafts, group=group)  # type: ignore[no-any-return]

    @timed(write=True)
    async def claim(self, demand: Demand) -> list[Claim]:
        if self._starving:
            # An idle worker claims again and again: a read first keeps its claims out of the write-ahead log.
            names = [queue for queue, _ in demand.queues]
            if not await self._store.read(lambda now: claim.due_queues(names, now)):
                return []
        claims: list[Claim] = await self._store.request(demand=demand)
        self._starving = not claims
        return claims

    @timed(write=True)
    async def settle(
        self,
        settlements: Sequence[Settlement],
        *,
        tx: Transaction | None = None,
        demand: Demand | None = None,
    ) -> Settled:
        check_settlements(settlements)
        if tx is not None:
            verdicts = await self._store.join(tx, lambda unit: settle.settle(unit, settlements))
            return Settled(verdicts, [] if demand is None else await self.claim(demand))
        strict = bool(settlements)
        settled: Settled = await self._store.request(strict=strict, settlements=settlements, demand=demand)
        self._store.ends.settled(settlements, settled.verdicts)
        return settled

    @timed(write=True)
    async def renew(
        self, worker: str, held: Sequence[tuple[JobId, int]], *, lease: Span = LEASE, first: bool = False
    ) -> Renewal:
        check_lease(lease)
        renew = leases.renew
        renewal = await self._store.write(lambda unit: renew(unit, worker, held, lease, first=first), bare=not first)
        self._store.resources().liveness.show(worker, alive=renewal.known and lease > 0)
        return renewal

    @timed(write=True)
    async def note(self, notes: Sequence[Note], *, tx: Transaction | None = None) -> list[Verdict]:
        if tx is not None:
            return await self._store.join(tx, lambda unit: careful.note(unit, notes))
        return await self._store.write(lambda unit: careful.note(unit, notes))

    @timed(write=True)
    async def reap(self, by: str, limit: int, *, dead: Sequence[str] = ()) -> list[Claim]:
        liveness = self._store.resources().liveness
        living, lapsed = await self._store.read(leases.workers)
        gone = [*dead, *liveness.dead(worker for worker in living if worker != by)]
        if not gone and not lapsed.difference((by,)):
            return []
        claims, retired = await self._store.write(lambda unit: leases.reap(unit, by, limit, gone))
        for worker in retired:
            liveness.forget(worker)
        return claims

    @timed(write=False)
    async def ahead(self, queues: Sequence[str]) -> Ahead:
        return await self._store.read(lambda now: claim.ahead(queues, now))

    async def wait(self, topics: Sequence[str], timeout: float) -> frozenset[str]:
        woken = await self._store.wait(topics, timeout)
        self._starving = self._starving and not woken
        return woken

    async def ended(self, job: JobId, timeout: float) -> bool:
        self._store.resources()
        return await self._store.ends.wait(job, timeout)

    async def wake(self, topics: Sequence[str]) -> None:
        self._store.resources()
        self._store.notify(set(topics))

    # --- operators ----------------------------------------------------------------------------------------------

    @timed(write=False)
    async def get(self, ids: Sequence[JobId]) -> list[Job | None]:
        return await self._store.read(lambda _: find.get(ids))

    @timed(write=False)
    async def find(self, query: Query) -> Page:
        return await self._store.read_in_slices(lambda now: find.find(query, now))

    @timed(write=False)
    async def census(self) -> Census:
        return await self._store.read(census.census)

    @timed(write=True)
    async def alter(self, selection: Selection, change: Change, *, by: By | None = None) -> Tally:
        check(selection, change)
        tell = partial(of_alter, selection, change)
        tally = await self._store.write(
            lambda unit: audit.audited(unit, careful.alter(unit, selection, change), by, tell), strict=True
        )
        self._store.ends.altered(selection, change, tally)
        return tally

    @timed(write=True)
    async def expire(self, retention: Retention) -> Expired:
        warn_of_log(self.path)
        kept = bounded(retention, self.history)
        return await in_steps(kept, lambda sweep: self._expire(sweep, kept))

    async def _expire(self, sweep: Sweep, kept: Retention) -> Expired:
        # Numbers are counted without the write lock first: they are nearly always right.
        if sweep is Sweep.LIMITS and not await self._store.read(damage.to_repair):
            return Expired()
        return await self._store.write(lambda unit: expire(unit, sweep, kept))

    # --- groups -------------------------------------------------------------------------------------------------

    @timed(write=False)
    async def get_groups(self, ids: Sequence[JobId]) -> list[Group | None]:
        return await self._store.read(lambda _: groups.groups(ids))

    @timed(write=True)
    async def seal(self, group: JobId, *, abandoned: bool = False) -> bool:
        return await self._store.write(lambda unit: groups.seal(unit, group, abandoned=abandoned), strict=True)

    def watch_closings(self, emit: Callable[[Closing], None]) -> None:
        self._store.emit_closing = emit

    @timed(write=True)
    async def sweep_groups(self, limit: int = 1_000) -> Swept:
        await self._store.emit_joined()
        if not await self._store.read(groups.to_sweep):
            return Swept()
        return await self._store.write(lambda unit: groups.sweep(unit, limit), strict=True)

    # --- settings -----------------------------------------------------------------------------------------------

    @timed(write=False)
    async def queues(self) -> list[Queue]:
        return await self._store.read(lambda _: control.queues())

    @timed(write=True)
    async def tune(self, name: str, tuning: Tuning | Rate, *, declared: bool = False, by: By | None = None) -> bool:
        return await self._store.write(
            lambda unit: control.tune(unit, name, tuning, declared=declared, by=by), strict=True
        )

    @timed(write=False)
    async def subqueues(
        self, queue: str, *, after: str | None = None, limit: int = 100, names: Sequence[str] | None = None
    ) -> list[SubqueueView]:
        return await self._store.read(lambda now: control.subqueues_of(now, queue, after, limit, names))

    @timed(write=False)
    async def budgets(self) -> list[Budget]:
        return await self._store.read(lambda _: control.budgets())

    @timed(write=True)
    async def spend(self, name: str, n: int = 1) -> Grant:
        return await self._store.write(lambda unit: control.take_tokens(unit, name, n))

    @timed(write=True)
    async def drain(self, name: str) -> bool:
        return await self._store.write(lambda unit: control.drain(unit, name))

    @timed(write=True)
    async def lock(self, name: str, owner: str, lease: Span) -> bool:
        return await self._store.write(lambda unit: control.lock(unit, name, owner, lease))

    @timed(write=True)
    async def unlock(self, name: str, owner: str) -> bool:
        return await self._store.write(lambda _: control.unlock(name, owner))

    @timed(write=True)
    async def beat(self, presence: Presence) -> None:
        await self._store.write(lambda unit: control.beat(unit, presence))

    @timed(write=False)
    async def workers(self) -> list[Presence]:
        return await self._store.read(lambda _: control.presences())

    # --- schedules ----------------------------------------------------------------------------------------------

    @timed(write=False)
    async def read_schedules(self) -> list[Schedule]:
        return await self._store.read(lambda _: schedules.schedules())

    @timed(write=True)
    async def put(self, given: Schedule | Edit, *, keep_edited: bool = False, by: By | None = None) -> Schedule | None:
        return await self._store.write(
            lambda unit: schedules.put(unit, given, keep_edited=keep_edited, by=by), strict=True
        )

    @timed(write=True)
    async def drop(self, name: str, *, by: By | None = None) -> bool:
        return await self._store.write(lambda unit: schedules.drop(unit, name, by), strict=True)

    @timed(write=True)
    async def fire(self, tick: Tick, drafts: Sequence[Draft] = ()) -> Fired:
        return await fire(self._fire, tick, drafts)

    async def _fire(self, tick: Tick, drafts: Sequence[Draft]) -> Fired:
        return await self._store.write(lambda unit: schedules.fire(unit, tick, drafts), strict=True)

    # --- events and points --------------------------------------------------------------------------------------

    @timed(write=True)
    async def record(
        self, events: Sequence[Event], points: Sequence[Point] = (), *, now: Instant, chunk: bytes | None = None
    ) -> int:
        return await self._store.write(lambda unit: event_log.record(unit, events, points, now, chunk))

    @timed(write=False)
    async def events(self, window: Window) -> list[Event]:
        return await self._store.read(lambda _: event_log.LOG.events(window))

    @timed(write=False)
    async def event_counts(self, since: Instant, until: Instant) -> list[EventCount]:
        return await self._store.read(lambda _: event_log.LOG.counts(since, until))

    @timed(write=False)
    async def late_minutes(self, since: Instant) -> list[Instant]:
        return await self._store.read(lambda _: event_log.LOG.late_minutes(since))

    @timed(write=False)
    async def latencies(self, window: Window) -> list[Latency]:
        return await self._store.read(lambda _: event_log.LOG.latencies(window))

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
        return await self._store.read(lambda _: event_log.points(since, until, metrics, queues, width))

    def timings(self) -> Timings:
        return self.call_times.drain()

    # --- audit --------------------------------------------------------------------------------------------------

    @timed(write=False)
    async def read_audit(self, query: AuditQuery) -> list[AuditEntry]:
        return await self._store.read(lambda _: audit.read(query))

    @timed(write=True)
    async def write_audit(self, by: By, deed: Deed) -> AuditEntry:
        return await self._store.write(lambda unit: audit.entered(unit, by, deed), strict=True)

    # --- documents ----------------------------------------------------------------------------------------------

    @timed(write=False)
    async def _documents(self, sort: str) -> list[bytes]:
        return await self._store.read(lambda _: documents.documents(sort))

    @timed(write=True)
    async def _swap(self, sort: str, name: str, before: bytes | None, after: bytes, signed: Signed | None) -> bool:
        return await self._store.write(
            lambda unit: documents.swap(unit, sort, name, before, after, signed), strict=True
        )

    # --- streams ------------------------------------------------------------------------------------------------

    @timed(write=True)
    async def register(
        self, stream: Stream, consumers: Sequence[Consumer] = (), *, tx: Transaction | None = None
    ) -> None:
        if tx is not None:
            return await self._store.join(tx, lambda _: outbox.make(stream, consumers))
        return await self._store.write(lambda _: outbox.make(stream, consumers), strict=True)

    @timed(write=True)
    async def append(self, stream: Stream, entries: Sequence[Entry], *, tx: Transaction | None = None) -> None:
        check_entries(stream, entries)
        if tx is not None:
            return await self._store.join(tx, lambda unit: outbox.append(unit, stream, entries))
        return await self._store.write(lambda unit: outbox.append(unit, stream, entries), strict=True)

    @timed(write=True)
    async def lease(self, wish: Wish) -> Lease | Rest:
        # An idle consumer asks again and again: a read first keeps it out of the write-ahead log.
        found = await self._store.read(lambda now: outbox.look(wish, now))
        if isinstance(found, Rest):
            return found
        return await self._store.write(lambda unit: outbox.lease(unit, wish))

    @timed(write=True)
    async def advance(self, advance: Advance, *, tx: Transaction | None = None, wish: Wish | None = None) -> Advanced:
        check_wish(advance, wish, joined=tx is not None)
        if tx is not None:
            return await self._store.join(tx, lambda unit: outbox.advance(unit, advance))
        return await self._store.write(lambda unit: outbox.advance(unit, advance, wish))

    @timed(write=False)
    async def streams(self, names: Sequence[str] = ()) -> list[StreamState]:
        return await self._store.read(lambda _: steering.streams(names))

    @timed(write=True)
    async def steer(self, stream: str, consumer: str, change: Steering, *, by: By | None = None) -> bool:
        return await self._store.write(
            lambda unit: audit.audited(
                unit,
                steering.steer(unit, stream, consumer, change),
                by,
                lambda done: of_steer(stream, consumer, change, done=done),
            ),
            strict=True,
        )

    @timed(write=True)
    async def vacuum(self, stream: str, limit: int) -> Vacuumed:
        limit = min(limit, steering.LARGEST_SWEEP)
        if not await self._store.read(lambda now: steering.sweepable(stream, limit, now)):
            return Vacuumed()
        return await self._store.write(lambda unit: steering.vacuum(unit, stream, limit))

    @timed(write=True)
    async def letters(
        self, chosen: LetterFilter, action: LetterAction | None = None, *, by: By | None = None
    ) -> Letters:
        if action is None:
            return await self._store.read(lambda _: letter_box.page(chosen))
        if isinstance(action, Count):
            return await self._store.read(lambda _: letter_box.count(chosen))
        tell = partial(of_letters, chosen, action)
        return await self._store.write(
            lambda unit: audit.audited(unit, letter_box.change(unit, chosen, action), by, tell), strict=True
        )

    @timed(write=True)
    async def receive(self, source: str, ids: Sequence[str], *, keep: Span, tx: Transaction | None) -> list[bool]:
        needs_transaction("receive", tx)
        check_received(source, ids)
        return await self._store.join(tx, lambda unit: outbox.receive(unit, source, ids, keep))

    @timed(write=True)
    async def hold(self, claim: Claim, *, tx: Transaction) -> Claim | None:
        needs_transaction("hold", tx)
        return await self._store.join(tx, lambda unit: outbox.hold(unit, claim))

    async def settle_last(self, settlement: Settlement, *, tx: Transaction) -> bool:
        needs_transaction("settle_last", tx)
        return (await self.settle([settlement], tx=tx)).verdicts == [Verdict.APPLIED]

    def tell_settled(self, settlements: Sequence[Settlement]) -> None:
        self._store.resources()
        self._store.ends.settled(settlements, [Verdict.APPLIED] * len(settlements))


def _just(value: T) -> Exchange[T]:
    yield from ()
    return value
