"""The Postgres engine: every method of the contract, each passed to its module.

Inserts, settlements and operators' changes return when they are as durable as the server's configuration promises.
Claims, renewals and other calls that are soon repeated do not wait for the fsync.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from functools import partial
from typing import ClassVar, Literal, Self, TypeVar

import msgspec

from stoker.engines.base import LEASE, Clock, Description, Feature, Transaction, needs_transaction
from stoker.engines.call_times import CallTimes, timed
from stoker.engines.postgres import (
    alter,
    audit,
    census,
    claim,
    control,
    describe,
    diagnose,
    documents,
    expire,
    find,
    groups,
    insert,
    leases,
    notes,
    outbox,
    schedules,
    schema,
    settle,
    steering,
    user_transaction,
)
from stoker.engines.postgres import events as event_log
from stoker.engines.postgres import letters as letter_box
from stoker.engines.postgres.census_bounds import CensusBounds
from stoker.engines.postgres.connection import Pooler
from stoker.engines.postgres.sequencer import Sequencer
from stoker.engines.postgres.store import Options, Store
from stoker.engines.postgres.unit_of_work import Unit
from stoker.engines.postgres.url import public_url, read_url
from stoker.engines.shared.documents import Documents, Signed
from stoker.engines.shared.facets import OneObject
from stoker.engines.shared.schedules import fire
from stoker.engines.sql.exchanges import Exchange, Row, just
from stoker.model.ahead import Ahead
from stoker.model.audit import AuditEntry, AuditQuery, By, Deed, of_letters, of_steer
from stoker.model.control import Budget, Presence, Queue, Tuning
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
from stoker.model.query import Census, Change, Expired, Page, Query, Retention, Selection, Tally, bounded
from stoker.model.schedule import Edit, Fired, Schedule, Tick
from stoker.model.subqueues import SubqueueView
from stoker.model.throttle import Grant, Rate
from stoker.model.time import Instant, Span

T = TypeVar("T")


class PostgresEngine(Documents, OneObject):
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
        self.history = options.history
        self.call_times = CallTimes()
        self._store = Store(options)
        self._claimer = claim.Claimer(self._store)
        self._store.looks.inserted = self._claimer.inserted
        self._batchers = insert.InsertBatchers(self._store)
        self._ticks = schedules.batcher(self._store)
        self._sequencer = Sequencer(self._store)
        self._census_bounds = CensusBounds()

    # --- life ---------------------------------------------------------------------------------------------------

    @property
    def where(self) -> str:
        return public_url(self._options)

    @property
    def version(self) -> str:
        return self._store.version

    async def open(self) -> None:
        await self._store.open()

    async def close(self) -> None:
        await self._batchers.close()
        await self._ticks.close()
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
        return user_transaction.own(self._store, self._claimer.forget)

    async def migrate(self, *, plan_only: bool = False) -> list[str]:
        return await schema.connected(self._options, schema.plan if plan_only else schema.migrate)

    async def migration_script(self) -> str:
        return await schema.connected(self._options, schema.script)

    async def describe(self) -> Description:
        return await describe.describe(self._store)

    async def diagnose(self) -> Facts:
        return await diagnose.diagnose(self._store)

    async def now(self) -> Instant:
        return await self._store.stroll(just)

    # --- the doors ----------------------------------------------------------------------------------------------

    @timed(write=True)
    async def insert(
        self, drafts: Sequence[Draft], *, tx: Transaction | None = None, group: Group | None = None
    ) -> list[Receipt]:
        if tx is not None:
            return await user_transaction.insert(self._store, self._claimer, tx, drafts, group)
        if insert.are_grouped(drafts, group):
            receipts = await insert.carefully(self._store, drafts, group)
        else:
            receipts = await self._batchers.put(drafts)
        self._claimer.inserted(drafts)
        return receipts

    @timed(write=True)
    async def claim(self, demand: Demand) -> list[Claim]:
        return await self._claimer.claim(demand)

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
            verdicts = await user_transaction.settle(self._store, self._claimer, tx, settlements)
            return Settled(verdicts, [] if demand is None else await self._claimer.claim(demand))
        return await settle.exchange(self._store, self._claimer, settlements, demand)

    @timed(write=True)
    async def renew(
        self, worker: str, held: Sequence[tuple[JobId, int]], *, lease: Span = LEASE, first: bool = False
    ) -> Renewal:
        check_lease(lease)
        return await leases.renew(self._store, worker, held, lease, first=first)

    @timed(write=True)
    async def note(self, notes_: Sequence[Note], *, tx: Transaction | None = None) -> list[Verdict]:
        if tx is not None:
            return await self._join(tx, lambda _: notes.exchange(notes_))
        return await notes.note(self._store, notes_)

    @timed(write=True)
    async def reap(self, by: str, limit: int, *, dead: Sequence[str] = ()) -> list[Claim]:
        return await leases.reap(self._store, by, limit, dead)

    @timed(write=False)
    async def ahead(self, queues: Sequence[str]) -> Ahead:
        return await find.ahead(self._store, queues)

    async def wait(self, topics: Sequence[str], timeout: float) -> frozenset[str]:
        return await self._store.notifier.wait(topics, timeout)

    async def ended(self, job: JobId, timeout: float) -> bool:
        self._store.inside()
        return await self._store.notifier.ends.wait(job, timeout)

    async def wake(self, topics: Sequence[str]) -> None:
        self._store.inside()
        self._store.notify(set(topics))

    # --- people -------------------------------------------------------------------------------------------------

    @timed(write=False)
    async def get(self, ids: Sequence[JobId]) -> list[Job | None]:
        return await find.get(self._store, ids)

    @timed(write=False)
    async def find(self, query: Query) -> Page:
        return await find.find(self._store, query)

    @timed(write=False)
    async def census(self) -> Census:
        return await census.census(self._store, self._census_bounds)

    @timed(write=True)
    async def alter(self, selection: Selection, change: Change, *, by: By | None = None) -> Tally:
        try:
            tally = await alter.alter(self._store, selection, change, by)
        finally:
            # Also when only the answer to its commit was lost.
            self._claimer.forget()
        self._store.notifier.ends.altered(selection, change, tally)
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
        self._store.looks.emit_closing = emit

    @timed(write=True)
    async def sweep_groups(self, limit: int = 1_000) -> Swept:
        return await groups.sweep(self._store, limit)

    # --- settings -----------------------------------------------------------------------------------------------

    @timed(write=False)
    async def queues(self) -> list[Queue]:
        return await control.queues(self._store)

    @timed(write=True)
    async def tune(self, name: str, tuning: Tuning | Rate, *, declared: bool = False, by: By | None = None) -> bool:
        return await control.tune(self._store, name, tuning, declared=declared, by=by)

    @timed(write=False)
    async def subqueues(
        self, queue: str, *, after: str | None = None, limit: int = 100, names: Sequence[str] | None = None
    ) -> list[SubqueueView]:
        return await control.subqueues_of(self._store, queue, after, limit, names)

    @timed(write=False)
    async def budgets(self) -> list[Budget]:
        return await control.budgets(self._store)

    @timed(write=True)
    async def spend(self, name: str, n: int = 1) -> Grant:
        return await control.spend(self._store, name, n)

    @timed(write=True)
    async def drain(self, name: str) -> bool:
        return await control.drain(self._store, name)

    @timed(write=True)
    async def lock(self, name: str, owner: str, lease: Span) -> bool:
        return await control.lock(self._store, name, owner, lease)

    @timed(write=True)
    async def unlock(self, name: str, owner: str) -> bool:
        return await control.unlock(self._store, name, owner)

    @timed(write=True)
    async def beat(self, presence: Presence) -> None:
        await control.beat(self._store, presence)

    @timed(write=False)
    async def workers(self) -> list[Presence]:
        return await control.workers(self._store)

    # --- schedules ----------------------------------------------------------------------------------------------

    @timed(write=False)
    async def read_schedules(self) -> list[Schedule]:
        return await schedules.schedules(self._store)

    @timed(write=True)
    async def put(self, given: Schedule | Edit, *, keep_edited: bool = False, by: By | None = None) -> Schedule | None:
        return await schedules.put(self._store, given, keep_edited=keep_edited, by=by)

    @timed(write=True)
    async def drop(self, name: str, *, by: By | None = None) -> bool:
        return await schedules.drop(self._store, name, by)

    @timed(write=True)
    async def fire(self, tick: Tick, drafts: Sequence[Draft] = ()) -> Fired:
        fired = await fire(self._ticks.fire, tick, drafts)
        self._claimer.inserted(drafts)
        return fired

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
        return await event_log.points(self._store, since, until, metrics, queues, width)

    def timings(self) -> Timings:
        return self.call_times.drain()

    # --- audit --------------------------------------------------------------------------------------------------

    @timed(write=False)
    async def read_audit(self, query: AuditQuery) -> list[AuditEntry]:
        return await self._store.read(lambda _: audit.read(query))

    @timed(write=True)
    async def write_audit(self, by: By, deed: Deed) -> AuditEntry:
        return await self._store.write(lambda unit: audit.entered(unit, by, deed), lane="desk")

    # --- documents ----------------------------------------------------------------------------------------------

    @timed(write=False)
    async def _documents(self, sort: str) -> list[bytes]:
        return await documents.documents(self._store, sort)

    @timed(write=True)
    async def _swap(self, sort: str, name: str, before: bytes | None, after: bytes, signed: Signed | None) -> bool:
        return await documents.swap(self._store, sort, name, before, after, signed)

    # --- streams ------------------------------------------------------------------------------------------------

    @timed(write=True)
    async def register(
        self, stream: Stream, consumers: Sequence[Consumer] = (), *, tx: Transaction | None = None
    ) -> None:
        if tx is not None:
            return await self._join(tx, lambda _: outbox.make(stream, consumers))
        return await self._store.write(lambda _: outbox.make(stream, consumers), lane="stream")

    @timed(write=True)
    async def append(self, stream: Stream, entries: Sequence[Entry], *, tx: Transaction | None = None) -> None:
        check_entries(stream, entries)
        if tx is not None:
            return await self._join(tx, lambda unit: outbox.append(unit, stream, entries))
        return await self._store.write(lambda unit: outbox.append(unit, stream, entries))

    @timed(write=True)
    async def lease(self, wish: Wish) -> Lease | Rest:
        complete, rows = await self._sequencer.look(wish)
        while True:
            found = await self._store.each("stream", partial(outbox.lease, self._store.now(), wish, rows))
            if complete or isinstance(found, Lease):
                return found
            # What is committed may not have its number yet.
            complete, rows = await self._sequencer.look(wish, patient=True)

    @timed(write=True)
    async def advance(self, advance: Advance, *, tx: Transaction | None = None, wish: Wish | None = None) -> Advanced:
        check_wish(advance, wish, joined=tx is not None)
        clock = self._store.now()
        if tx is not None:
            return await self._join(tx, lambda _: outbox.advance(clock, advance, lax=False))
        rows: list[Row] = []
        if wish is not None:
            if self._sequencer.recent(wish.stream):
                lease = await self._store.each("stream", partial(outbox.go_on, clock, advance, wish))
                if lease is not None:
                    return Advanced(applied=True, lease=lease)
            _, rows = await self._sequencer.look(wish, advance)
        if outbox.has_letters(advance):
            return await self._store.write(lambda _: outbox.advance(clock, advance, wish), lane="stream", lax=True)
        return await self._store.each("stream", lambda: outbox.advance(clock, advance, wish, rows))

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
            lane="stream",
        )

    @timed(write=True)
    async def vacuum(self, stream: str, limit: int) -> Vacuumed:
        return await self._store.write(lambda unit: steering.vacuum(unit, stream, limit), lane="stream", lax=True)

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
            lambda unit: audit.audited(unit, letter_box.change(unit, chosen, action), by, tell), lane="stream"
        )

    @timed(write=True)
    async def receive(self, source: str, ids: Sequence[str], *, keep: Span, tx: Transaction | None) -> list[bool]:
        needs_transaction("receive", tx)
        check_received(source, ids)
        return await self._join(tx, lambda unit: outbox.receive(unit, source, ids, keep))

    @timed(write=True)
    async def hold(self, claim: Claim, *, tx: Transaction) -> Claim | None:
        needs_transaction("hold", tx)
        return await user_transaction.hold(self._store, self._claimer, tx, claim)

    @timed(write=True)
    async def settle_last(self, settlement: Settlement, *, tx: Transaction) -> bool:
        needs_transaction("settle_last", tx)
        check_settlements([settlement])
        return await user_transaction.settle_last(self._store, self._claimer, tx, settlement)

    def tell_settled(self, settlements: Sequence[Settlement]) -> None:
        self._store.inside()
        self._store.notifier.ends.settled(settlements, [Verdict.APPLIED] * len(settlements))

    async def _join(self, tx: Transaction, make: Callable[[Unit], Exchange[T]]) -> T:
        return await user_transaction.join(self._store, self._claimer, tx, make)
