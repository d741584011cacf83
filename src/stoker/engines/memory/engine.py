"""The contract on a store in memory: each method is one call through `Access`."""

from __future__ import annotations

import asyncio
import itertools
import platform
from collections.abc import AsyncIterator, Callable, Collection, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from functools import partial
from typing import ClassVar, Literal, Self

import msgspec

from stoker.engines.base import LEASE, Clock, Description, Feature, Transaction, needs_transaction
from stoker.engines.call_times import CallTimes
from stoker.engines.memory import control, find, groups, leases, outbox, schedules, unit_of_work
from stoker.engines.memory.access import Access, Door, insert_when_room
from stoker.engines.memory.store import Store
from stoker.engines.memory.transaction import MemoryTransaction, own
from stoker.engines.memory.waiters import Hub, Waiter
from stoker.engines.shared.documents import Documents, Signed
from stoker.engines.shared.ends import WANT, Ends, Message
from stoker.engines.shared.facets import OneObject
from stoker.engines.shared.schedules import fire
from stoker.engines.shared.sweeps import in_steps
from stoker.model.ahead import Ahead
from stoker.model.audit import AuditEntry, AuditQuery, By, Deed, latest, of_alter, of_letters, of_setting, of_steer
from stoker.model.control import Budget, Presence, Queue, Tuning
from stoker.model.errors import EngineFull, InvalidInput, InvalidOption
from stoker.model.events import Event, EventCount, Latency, Point, Timings, Window
from stoker.model.groups import Closing, Group, Swept
from stoker.model.health.facts import MOST_COUNTED, Counted, Facts
from stoker.model.ids import JobId
from stoker.model.job import (
    FINISHED,
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
from stoker.model.outbox.cursor import Consumer, Lease, Rest, Wish
from stoker.model.outbox.delivery import Advance, Advanced, check_wish
from stoker.model.outbox.letters import LetterAction, LetterFilter, Letters
from stoker.model.outbox.steering import Steering, StreamState
from stoker.model.outbox.stream import Entry, Stream, Vacuumed
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
from stoker.model.stats import merge
from stoker.model.subqueues import SubqueueView
from stoker.model.throttle import Grant, Rate
from stoker.model.time import Instant, Span

WhenFull = Literal["raise", "wait"]

HISTORY = 1_000
DURABILITY = "not durable: jobs, timers and history live in this process and are lost when it exits"
WARNING = (
    "memory:// is not durable: every waiting job, retry timer and result is lost when this process exits. "
    "Use sqlite:///jobs.db, Postgres or Redis for work that must survive."
)


class MemoryEngine(Documents, OneObject):
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
        self._join(Store(clock, capacity, history_of(history)), when_full)

    def _join(self, store: Store, when_full: WhenFull) -> None:
        self._store = store
        self._when_full = when_full
        self._hub = Hub(store.lock)
        self._call_times = CallTimes()
        self._door = Door()
        self._read = Access(store, self._call_times, self._door, write=False)
        self._write = Access(store, self._call_times, self._door, write=True)
        self._waiting_for_room: set[Waiter] = set()
        self._ends = Ends(self._ended, self._listen_for_ends, self._notify_ends, store.interest)

    def _access(self, tx: Transaction | None) -> Access:
        """A call that is part of a transaction writes nothing before its end."""
        return self._write if tx is None else self._read

    # --- retention ----------------------------------------------------------------------------------------------

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

    # --- life ---------------------------------------------------------------------------------------------------

    @property
    def where(self) -> str:
        return "in this process"

    @property
    def version(self) -> str:
        return f"Python {platform.python_version()}"

    async def open(self) -> None:
        with self._store.lock:
            if not self._door.open:
                self._door.open = True
                self._store.hubs.append(self._hub)

    async def close(self) -> None:
        with self._store.lock:
            if self._door.open:
                self._door.open = False
                self._store.hubs.remove(self._hub)
                self._hub.dismiss()
                self._ends.close()
                self._store.attending.pop(self._ends, None)
                for waiter in self._waiting_for_room:
                    waiter.release()

    def for_loop(self, *, read_limit: float | None = None) -> Self:  # noqa: ARG002 - every call is short
        other = object.__new__(type(self))
        other._join(self._store, self._when_full)
        return other

    def transaction(self) -> AbstractAsyncContextManager[MemoryTransaction]:
        return self._transaction()

    @asynccontextmanager
    async def _transaction(self) -> AsyncIterator[MemoryTransaction]:
        with self._read as store:
            tx = MemoryTransaction(store)
        try:
            yield tx
        except BaseException:
            tx.forget()
            raise
        with self._write as store:
            tx.perform(store.now())

    async def migrate(self, *, plan_only: bool = False) -> list[str]:  # noqa: ARG002 - there is no schema
        return []

    async def migration_script(self) -> None:
        return None

    async def diagnose(self) -> Facts:
        with self._read as store:
            done = sum(record.status in FINISHED for record in store.jobs.values())
            finished = Counted("all queues", "finished", len(store.finished), done)
            keys = itertools.islice(store.holders.values(), MOST_COUNTED)
            idle = sum(job not in store.jobs or store.jobs[job].status in FINISHED for job in keys)
        return Facts(idle_keys=idle, counters=(finished,))

    async def describe(self) -> Description:
        with self._read as store:
            capacity = "unlimited" if store.capacity is None else f"{store.capacity}, then {self._when_full}"
            facts = {
                "capacity": capacity,
                "active": str(store.active),
                "finished": f"{len(store.finished)} of at most {store.history}",
                "engines": str(len(store.hubs)),
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
        with self._read as store:
            return store.now()

    # --- jobs and leases ----------------------------------------------------------------------------------------

    async def insert(
        self, drafts: Sequence[Draft], *, tx: Transaction | None = None, group: Group | None = None
    ) -> list[Receipt]:
        try:
            with self._access(tx) as store:
                if tx is not None:
                    return own(tx, store).insert(drafts, group, store.now())
                if not store.waiting_for_room:
                    return store.run(unit_of_work.insert, drafts, group)
        except EngineFull:
            if tx is not None or self._when_full == "raise":
                raise
        return await insert_when_room(self._write, self._waiting_for_room, drafts, group)

    async def claim(self, demand: Demand) -> list[Claim]:
        with self._write as store:
            return leases.claim(store, demand, store.now())

    async def settle(
        self,
        settlements: Sequence[Settlement],
        *,
        tx: Transaction | None = None,
        demand: Demand | None = None,
    ) -> Settled:
        with self._access(tx) as store:
            now = store.now()
            if tx is None:
                verdicts = store.run(unit_of_work.settle, settlements)
                settled = Settled(verdicts, leases.claim(store, demand, now) if demand is not None else [])
            elif demand is not None:
                raise InvalidInput("demand", demand, "cannot go with tx=: a claim must not depend on a later commit")
            else:
                return Settled(own(tx, store).settle(settlements, now), [])
        self._ends.settled(settlements, settled.verdicts)
        return settled

    async def renew(
        self,
        worker: str,
        held: Sequence[tuple[JobId, int]],
        *,
        lease: Span = LEASE,
        first: bool = False,
    ) -> Renewal:
        check_lease(lease)
        with self._write as store:
            return leases.renew(store, worker, held, lease, store.now(), first=first)

    async def note(self, notes: Sequence[Note], *, tx: Transaction | None = None) -> list[Verdict]:
        with self._access(tx) as store:
            if tx is not None:
                return own(tx, store).note(notes, store.now())
            return store.run(unit_of_work.note, notes)

    async def reap(self, by: str, limit: int, *, dead: Sequence[str] = ()) -> list[Claim]:
        with self._write as store:
            return leases.reap(store, by, limit, dead, store.now())

    async def ahead(self, queues: Sequence[str]) -> Ahead:
        with self._read as store:
            return find.ahead(store, queues, store.now())

    async def wait(self, topics: Sequence[str], timeout: float) -> frozenset[str]:
        self._door.check()
        return await self._hub.wait(topics, timeout)

    async def ended(self, job: JobId, timeout: float) -> bool:
        self._door.check()
        return await self._ends.wait(job, timeout)

    async def _ended(self, jobs: Sequence[JobId]) -> list[JobId]:
        with self._read as store:
            found = [(job, store.jobs.get(job)) for job in jobs]
            return [job for job, record in found if record is None or record.status in FINISHED]

    async def _listen_for_ends(self) -> None:
        with self._store.lock:
            self._store.attending[self._ends] = asyncio.get_running_loop()

    def _notify_ends(self, message: Message, jobs: Collection[JobId]) -> None:
        """The waiters of twins belong to other loops."""
        if message == WANT:
            self._store.interest.note(jobs)
            return
        with self._store.lock:
            others = [(ends, loop) for ends, loop in self._store.attending.items() if ends is not self._ends]
        for ends, loop in others:
            with suppress(RuntimeError):  # a loop that was closed without its engine
                loop.call_soon_threadsafe(ends.over, jobs)

    async def wake(self, topics: Sequence[str]) -> None:
        with self._write as store:
            for topic in topics:
                store.wake(topic)

    # --- operator -----------------------------------------------------------------------------------------------

    async def get(self, ids: Sequence[JobId]) -> list[Job | None]:
        with self._read as store:
            found = [store.jobs.get(job) for job in ids]
            return [None if record is None else record.as_job() for record in found]

    async def find(self, query: Query) -> Page:
        with self._read as store:
            return find.find(store, query, store.now())

    async def census(self) -> Census:
        with self._read as store:
            return find.census(store, store.now())

    async def alter(self, selection: Selection, change: Change, *, by: By | None = None) -> Tally:
        with self._write as store:
            tally = store.run(unit_of_work.alter, selection, change)
            store.enter(by, of_alter(selection, change, tally))
        self._ends.altered(selection, change, tally)
        return tally

    async def expire(self, retention: Retention) -> Expired:
        return await in_steps(retention, partial(self._expire, retention))

    async def _expire(self, retention: Retention, sweep: Sweep) -> Expired:
        with self._write as store:
            return unit_of_work.expire(store, sweep, bounded(retention, store.history), store.now())

    # --- groups -------------------------------------------------------------------------------------------------

    async def get_groups(self, ids: Sequence[JobId]) -> list[Group | None]:
        with self._read as store:
            return groups.groups(store, ids)

    async def seal(self, group: JobId, *, abandoned: bool = False) -> bool:
        with self._write as store:
            return store.run(groups.seal, group, abandoned=abandoned)

    def watch_closings(self, emit: Callable[[Closing], None]) -> None:
        self._write.emit = emit

    async def sweep_groups(self, limit: int = 1_000) -> Swept:
        with self._write as store:
            return store.run(groups.sweep, limit)

    # --- control ------------------------------------------------------------------------------------------------

    async def queues(self) -> list[Queue]:
        with self._read as store:
            return control.queues(store)

    async def tune(self, name: str, tuning: Tuning | Rate, *, declared: bool = False, by: By | None = None) -> bool:
        with self._write as store:
            if isinstance(tuning, Rate):
                budget = store.budgets.get(name)
                changed = control.tune_budget(store, name, tuning, store.now(), declared=declared)
                store.enter(by, of_setting("limits.tune", f"limit {name}", budget, store.budgets.get(name)))
                return changed
            queue = store.queue(name)
            changed = control.tune_queue(store, name, tuning, store.now(), declared=declared)
            store.enter(by, of_setting("queues.tune", f"queue {name}", queue, store.queue(name)))
            return changed

    async def subqueues(
        self, queue: str, *, after: str | None = None, limit: int = 100, names: Sequence[str] | None = None
    ) -> list[SubqueueView]:
        with self._read as store:
            return control.subqueues(store, queue, after, limit, names)

    async def budgets(self) -> list[Budget]:
        with self._read as store:
            return [budget for _, budget in sorted(store.budgets.items())]

    async def spend(self, name: str, n: int = 1) -> Grant:
        with self._write as store:
            return control.take_tokens(store, name, n, store.now())

    async def drain(self, name: str) -> bool:
        with self._write as store:
            return control.drain(store, name, store.now())

    async def lock(self, name: str, owner: str, lease: Span) -> bool:
        with self._write as store:
            return control.lock(store, name, owner, lease, store.now())

    async def unlock(self, name: str, owner: str) -> bool:
        with self._write as store:
            return control.unlock(store, name, owner)

    async def beat(self, presence: Presence) -> None:
        with self._write as store:
            store.presences[presence.worker] = msgspec.structs.replace(presence, seen_at=store.now())

    async def workers(self) -> list[Presence]:
        with self._read as store:
            return [presence for _, presence in sorted(store.presences.items())]

    # --- schedules ----------------------------------------------------------------------------------------------

    async def read_schedules(self) -> list[Schedule]:
        with self._read as store:
            return [schedule for _, schedule in sorted(store.schedules.items())]

    async def put(self, given: Schedule | Edit, *, keep_edited: bool = False, by: By | None = None) -> Schedule | None:
        with self._write as store:
            before = store.schedules.get(given.name)
            after = schedules.put(store, given, store.now(), keep_edited=keep_edited)
            store.enter(by, of_setting("schedules.put", f"schedule {given.name}", before, after))
            return after

    async def drop(self, name: str, *, by: By | None = None) -> bool:
        with self._write as store:
            before = store.schedules.pop(name, None)
            store.enter(by, of_setting("schedules.drop", f"schedule {name}", before, None))
            return before is not None

    async def fire(self, tick: Tick, drafts: Sequence[Draft] = ()) -> Fired:
        return await fire(self._fire, tick, drafts)

    async def _fire(self, tick: Tick, drafts: Sequence[Draft]) -> Fired:
        with self._write as store:
            return store.run(schedules.fire, tick, drafts)

    # --- timeline -----------------------------------------------------------------------------------------------

    async def record(
        self, events: Sequence[Event], points: Sequence[Point] = (), *, now: Instant, chunk: bytes | None = None
    ) -> int:
        with self._write as store:
            return store.event_log.write(events, points, store.now(), now, chunk)

    async def events(self, window: Window) -> list[Event]:
        with self._read as store:
            return store.event_log.read(window)

    async def event_counts(self, since: Instant, until: Instant) -> list[EventCount]:
        with self._read as store:
            return store.event_log.counts(since, until)

    async def late_minutes(self, since: Instant) -> list[Instant]:
        with self._read as store:
            return store.event_log.late_minutes(since)

    async def latencies(self, window: Window) -> list[Latency]:
        with self._read as store:
            return store.event_log.latencies(window)

    async def points(
        self,
        since: Instant,
        until: Instant,
        metrics: Sequence[str],
        queues: frozenset[str] = frozenset(),
        *,
        width: Span | None = None,
    ) -> list[Point]:
        with self._read as store:
            found = store.event_log.points(since, until, metrics, queues)
        return found if width is None else merge(found, since, width)

    def timings(self) -> Timings:
        return self._call_times.drain()

    # --- audit --------------------------------------------------------------------------------------------------

    async def read_audit(self, query: AuditQuery) -> list[AuditEntry]:
        with self._read as store:
            return latest(store.audit[::-1], query)

    async def write_audit(self, by: By, deed: Deed) -> AuditEntry:
        with self._write as store:
            store.enter(by, deed)
            return store.audit[-1]

    # --- documents ----------------------------------------------------------------------------------------------

    async def _documents(self, sort: str) -> list[bytes]:
        with self._read as store:
            return list(store.documents.get(sort, {}).values())

    async def _swap(self, sort: str, name: str, before: bytes | None, after: bytes, signed: Signed | None) -> bool:
        with self._write as store:
            found = store.documents.setdefault(sort, {})
            if found.get(name) != before:
                return False
            found[name] = after
            if not after:
                del found[name]
            if signed is not None:
                store.enter(*signed)
            return True

    # --- outbox -------------------------------------------------------------------------------------------------

    async def register(
        self, stream: Stream, consumers: Sequence[Consumer] = (), *, tx: Transaction | None = None
    ) -> None:
        with self._access(tx) as store:
            if tx is not None:
                return own(tx, store).register(stream, consumers, store.now())
            return outbox.run(store, outbox.register, stream, consumers)

    async def append(self, stream: Stream, entries: Sequence[Entry], *, tx: Transaction | None = None) -> None:
        with self._access(tx) as store:
            if tx is not None:
                return own(tx, store).append(stream, entries, store.now())
            return outbox.run(store, outbox.append, stream, entries)

    async def lease(self, wish: Wish) -> Lease | Rest:
        with self._write as store:
            return outbox.lease(store, wish, store.now())

    async def advance(self, advance: Advance, *, tx: Transaction | None = None, wish: Wish | None = None) -> Advanced:
        check_wish(advance, wish, joined=tx is not None)
        with self._access(tx) as store:
            if tx is not None:
                return Advanced(own(tx, store).advance(advance, store.now()))
            after = outbox.run(store, outbox.advance, advance)
            if after is None or wish is None:
                return Advanced(after is not None)
            return outbox.go_on(store, after, wish, store.now())

    async def streams(self, names: Sequence[str] = ()) -> list[StreamState]:
        with self._read as store:
            return outbox.streams(store.tables, names)

    async def steer(self, stream: str, consumer: str, change: Steering, *, by: By | None = None) -> bool:
        with self._write as store:
            steered = outbox.steer(store, stream, consumer, change)
            store.enter(by, of_steer(stream, consumer, change, done=steered))
            return steered

    async def vacuum(self, stream: str, limit: int) -> Vacuumed:
        with self._write as store:
            return outbox.vacuum(store.tables, stream, limit, store.now())

    async def letters(
        self, chosen: LetterFilter, action: LetterAction | None = None, *, by: By | None = None
    ) -> Letters:
        with self._write as store:
            found = outbox.letters(store, chosen, action, store.now())
            store.enter(by, of_letters(chosen, action, found))
            return found

    async def receive(self, source: str, ids: Sequence[str], *, keep: Span, tx: Transaction | None) -> list[bool]:
        needs_transaction("receive", tx)
        with self._read as store:
            return own(tx, store).receive(source, ids, keep, store.now())

    async def hold(self, claim: Claim, *, tx: Transaction) -> Claim | None:
        needs_transaction("hold", tx)
        with self._read as store:
            return own(tx, store).hold(claim, store.now())

    async def settle_last(self, settlement: Settlement, *, tx: Transaction) -> bool:
        needs_transaction("settle_last", tx)
        return (await self.settle([settlement], tx=tx)).verdicts == [Verdict.APPLIED]

    def tell_settled(self, settlements: Sequence[Settlement]) -> None:
        self._door.check()
        self._ends.settled(settlements, [Verdict.APPLIED] * len(settlements))
