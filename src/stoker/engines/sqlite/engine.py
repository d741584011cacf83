"""The SQLite engine's face: every method of the contract, each handed to the module that knows how.

Writes go to the coalescer and come back when their transaction is on disk as far as promised. Reads are short and run
on a connection of their own on the loop, each in one snapshot; only the walk of a page is cut into slices.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from pathlib import Path
from typing import Any, ClassVar, Literal, ParamSpec, Self, TypeVar

from stoker.engines.base import CONTROL, LEASE, Clock, Description, Gives, Transaction
from stoker.engines.sqlite import control, insert, joining, lease, opening, questions, records, settle, timeline
from stoker.engines.sqlite.actions import Action, expire
from stoker.engines.sqlite.connection import Connection, Journal
from stoker.engines.sqlite.describe import described
from stoker.engines.sqlite.opening import Inside
from stoker.engines.sqlite.steps import Steps
from stoker.engines.sqlite.unit import Unit
from stoker.engines.sqlite.wake import EVERYTHING
from stoker.model.control import Budget, Presence, Queue, Rate, Tuning
from stoker.model.errors import EngineBusy, EngineClosed, EngineRefused, InvalidOption
from stoker.model.events import Event, Point, Timings, Window
from stoker.model.ids import JobId
from stoker.model.job import Claim, Demand, Draft, Job, Note, Receipt, Renewal, Settled, Settlement, Verdict
from stoker.model.query import Census, Change, Expired, Page, Query, Retention, Selection, Tally
from stoker.model.throttle import Grant
from stoker.model.time import SECOND, Instant, Span

log = logging.getLogger("stoker.engines.sqlite")

T = TypeVar("T")
P = ParamSpec("P")

SLICE = 64
"""Statements of a long walk between two turns of the loop."""

PATIENCE = 5.0


def timed(*, write: bool) -> Callable[[Callable[P, Coroutine[Any, Any, T]]], Callable[P, Coroutine[Any, Any, T]]]:
    """Sample how long a call took, also when it raises."""

    def around(method: Callable[P, Coroutine[Any, Any, T]]) -> Callable[P, Coroutine[Any, Any, T]]:
        @functools.wraps(method)
        async def sampled(*args: P.args, **kwargs: P.kwargs) -> T:
            began = time.perf_counter_ns()
            try:
                return await method(*args, **kwargs)
            finally:
                args[0]._samples.add((time.perf_counter_ns() - began) // 1000, write=write)  # type: ignore[attr-defined]  # noqa: SLF001

        return sampled

    return around


class SqliteEngine:
    """Jobs in one SQLite file, for any number of processes on one host.

    `durability="process"` gives up the last commits at a power loss, not at a crash. `journal="delete"` avoids SQLite's
    write-ahead log. `busy_timeout` is how many seconds a write waits for others before it raises `EngineBusy`.
    """

    name: ClassVar[str] = "sqlite"
    gives: ClassVar[frozenset[Gives]] = frozenset(Gives)

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        clock: Clock | None = None,
        durability: Literal["power", "process"] = "power",
        journal: Journal = "wal",
        busy_timeout: float = PATIENCE,
    ) -> None:
        if durability not in ("power", "process"):
            raise InvalidOption("durability", durability, "must be power or process")
        if journal not in ("wal", "delete"):
            raise InvalidOption("journal", journal, "must be wal or delete")
        self.path = str(Path(path).absolute())
        self._clock: Clock = clock or _system_clock
        self._given_clock = clock
        self._durability: Literal["power", "process"] = durability
        self._journal: Journal = journal
        self._patience = busy_timeout
        self._inside: Inside | None = None
        self._samples = timeline.Samples()

    # --- life ---------------------------------------------------------------------------------------------------

    async def open(self) -> None:
        if self._inside is not None and self._inside.pid == os.getpid():
            return
        self._inside = await opening.opened(
            self.path,
            clock=self._clock,
            journal=self._journal,
            fsync=self._durability == "power",
            patience=self._patience,
            told=self._told,
        )
        for warning in self._inside.warnings:
            log.warning(warning)

    async def close(self) -> None:
        inside, self._inside = self._inside, None
        if inside is not None and inside.pid == os.getpid():
            await inside.close()

    def twin(self) -> Self:
        return type(self)(
            self.path,
            clock=self._given_clock,
            durability=self._durability,
            journal=self._journal,
            busy_timeout=self._patience,
        )

    def transaction(self) -> AbstractAsyncContextManager[Transaction]:
        return self._transaction()

    @asynccontextmanager
    async def _transaction(self) -> AsyncIterator[joining.Own]:
        self._opened()
        own = joining.Own(self, await asyncio.to_thread(Connection, self.path, journal=self._journal))
        try:
            await own.begin(self._patience)
            yield own
        except BaseException:
            await own.end(commit=False)
            raise
        await own.end(commit=True)
        self._told(own.woken, 0)

    async def migrate(self, *, plan_only: bool = False) -> list[str]:
        return await asyncio.to_thread(self._migrate, plan_only)

    def _migrate(self, plan_only: bool) -> list[str]:
        from stoker.engines.sqlite import checks
        from stoker.engines.sqlite.gate import Gate

        if plan_only and checks.identity(self.path) is None:
            return [statement for migration in opening.MIGRATIONS for statement in migration.statements]
        checks.inspect_path(self.path)
        connection, gate = Connection(self.path, journal=self._journal), Gate(f"{self.path}.gate")
        try:
            if plan_only:
                return [line for migration in opening.planned(connection) for line in migration.statements]
            return opening.upgrade(connection, gate, self._patience)
        finally:
            connection.close()
            gate.close()

    async def describe(self) -> Description:
        inside = self._opened()
        return described(inside, self.path, self._durability, await self._ask(_pragmas, strict=True))

    async def now(self) -> Instant:
        return await self._read(_just)

    # --- the doors ----------------------------------------------------------------------------------------------

    @timed(write=True)
    async def insert(self, drafts: Sequence[Draft], *, tx: Transaction | None = None) -> list[Receipt]:
        if tx is not None:
            undo = joining.may_refuse(drafts)
            return await self._join(tx, lambda unit: insert.insert(unit, drafts), undo=undo)
        if not drafts:
            self._opened()
            return []
        return await self._opened().coalescer.ask(strict=True, drafts=drafts)  # type: ignore[no-any-return]

    @timed(write=True)
    async def claim(self, demand: Demand) -> list[Claim]:
        return await self._opened().coalescer.ask(strict=False, demand=demand)  # type: ignore[no-any-return]

    @timed(write=True)
    async def settle(
        self,
        settlements: Sequence[Settlement],
        *,
        tx: Transaction | None = None,
        demand: Demand | None = None,
    ) -> Settled:
        settle.check(settlements)
        if tx is not None:
            verdicts = await self._join(tx, lambda unit: settle.settle(unit, settlements))
            return Settled(verdicts, await self.claim(demand) if demand is not None else [])
        strict = bool(settlements)
        return await self._opened().coalescer.ask(strict=strict, settlements=settlements, demand=demand)  # type: ignore[no-any-return]

    @timed(write=True)
    async def renew(
        self, worker: str, held: Sequence[tuple[JobId, int]], *, lease: Span = LEASE, first: bool = False
    ) -> Renewal:
        life = self._opened().life
        if first:
            # Somebody else may show it already: a twin of this engine in another thread.
            with suppress(EngineRefused):
                life.hold(worker)
        renewal = await self._ask(lambda unit: _renew(unit, worker, held, lease, first))
        if lease <= 0 or not renewal.known:
            life.drop(worker)
        return renewal

    @timed(write=True)
    async def note(self, notes: Sequence[Note]) -> list[Verdict]:
        return await self._ask(lambda unit: settle.note(unit, notes))

    @timed(write=True)
    async def reap(self, by: str, limit: int, *, dead: Sequence[str] = ()) -> list[Claim]:
        inside = self._opened()
        living = await self._read(lambda _: lease.workers())
        gone = [*dead, *inside.life.dead([worker for worker in living if worker != by])]
        return await self._ask(lambda unit: lease.reap(unit, by, limit, gone))

    async def wait(self, topics: Sequence[str], timeout: float) -> frozenset[str]:
        inside = self._opened()
        self._listen(inside)
        if inside.stirred:
            inside.stirred = False
            if found := await self._read(lambda now: questions.due([t for t in topics if t != CONTROL], now)):
                return frozenset(found)
        return await inside.hub.wait(topics, timeout)

    async def wake(self, topics: Sequence[str]) -> None:
        self._opened()
        self._told(set(topics), 0)

    # --- people -------------------------------------------------------------------------------------------------

    @timed(write=False)
    async def get(self, ids: Sequence[JobId]) -> list[Job | None]:
        return await self._read(lambda _: records.jobs(list(ids)))

    @timed(write=False)
    async def find(self, query: Query) -> Page:
        return await self._stroll(lambda now: questions.find(query, now))

    @timed(write=False)
    async def census(self) -> Census:
        return await self._read(questions.census)

    @timed(write=True)
    async def alter(self, selection: Selection, change: Change) -> Tally:
        return await self._ask(lambda unit: Action(unit, selection, change).run(), strict=True)

    @timed(write=True)
    async def expire(self, retention: Retention) -> Expired:
        return await self._ask(lambda unit: expire(unit, retention))

    # --- settings -----------------------------------------------------------------------------------------------

    @timed(write=False)
    async def queues(self) -> list[Queue]:
        return await self._read(lambda _: control.queues())

    @timed(write=True)
    async def tune(self, name: str, tuning: Tuning | Rate, *, if_absent: bool = False) -> bool:
        return await self._ask(lambda unit: control.tune(unit, name, tuning, if_absent=if_absent), strict=True)

    @timed(write=False)
    async def budgets(self) -> list[Budget]:
        return await self._read(lambda _: control.budgets())

    @timed(write=True)
    async def spend(self, name: str, n: int = 1) -> Grant:
        return await self._ask(lambda unit: control.take_tokens(unit, name, n))

    @timed(write=True)
    async def drain(self, name: str) -> bool:
        return await self._ask(lambda unit: control.drain(unit, name))

    @timed(write=True)
    async def lock(self, name: str, owner: str, lease: Span) -> bool:
        return await self._ask(lambda unit: control.lock(unit, name, owner, lease))

    @timed(write=True)
    async def unlock(self, name: str, owner: str) -> bool:
        return await self._ask(lambda _: control.unlock(name, owner))

    @timed(write=True)
    async def beat(self, presence: Presence) -> None:
        await self._ask(lambda unit: control.beat(unit, presence))

    @timed(write=False)
    async def workers(self) -> list[Presence]:
        return await self._read(lambda _: control.presences())

    # --- the timeline -------------------------------------------------------------------------------------------

    @timed(write=True)
    async def record(self, events: Sequence[Event], points: Sequence[Point] = (), *, now: Instant) -> int:
        return await self._ask(lambda unit: timeline.record(unit, events, points, now))

    @timed(write=False)
    async def events(self, window: Window) -> list[Event]:
        return await self._read(lambda _: timeline.events(window))

    @timed(write=False)
    async def points(
        self, since: Instant, until: Instant, metrics: Sequence[str], queue: str | None = None
    ) -> list[Point]:
        return await self._read(lambda _: timeline.points(since, until, metrics, queue))

    def timings(self) -> Timings:
        return self._samples.drain()

    # --- inside -------------------------------------------------------------------------------------------------

    def _opened(self) -> Inside:
        inside = self._inside
        if inside is None:
            raise EngineClosed(f"the engine on {self.path} is not open. Await open() first")
        if inside.pid != os.getpid():
            raise EngineClosed(
                f"the engine on {self.path} was opened in process {inside.pid} and this is process {os.getpid()}: a "
                "connection does not survive a fork. Open a twin() here"
            )
        return inside

    def _ask(self, make: Callable[[Unit], Steps[T]], *, strict: bool = False) -> Awaitable[T]:
        return self._opened().coalescer.ask(strict=strict, make=make)

    async def _join(self, tx: Transaction, make: Callable[[Unit], Steps[T]], *, undo: bool = False) -> T:
        """Run a door in somebody else's transaction."""
        unit = Unit(self._clock())
        door = joining.undoing(make(unit)) if undo else make(unit)
        if not isinstance(tx, joining.Own):
            return await joining.on_theirs(self.path, tx, unit, door)
        if tx.owner is not self:
            raise EngineRefused("this transaction belongs to another engine; use the one it was made by")
        return tx.run(unit, door)

    async def _read(self, make: Callable[[Instant], Steps[T]]) -> T:
        """Ask in one snapshot. A rollback journal may shut readers out for a moment."""
        deadline = time.monotonic() + self._patience
        while True:
            reader = self._opened().reader
            try:
                return reader.glance(lambda: joining.at_now(self._clock(), make))
            except EngineBusy:
                if time.monotonic() >= deadline:
                    raise
            await asyncio.sleep(0.001)

    async def _stroll(self, make: Callable[[Instant], Steps[T]]) -> T:
        """Ask slice by slice: others come in between, so no snapshot is held."""
        steps = joining.at_now(self._clock(), make)
        done, answer = False, None
        while not done:
            done, answer = self._opened().reader.slice(steps, answer, SLICE)
            if not done:
                await asyncio.sleep(0)
        return answer  # type: ignore[return-value]

    def _told(self, topics: set[str], dropped: Span) -> None:
        """After a commit: wake who has something to do, here and elsewhere."""
        inside = self._inside
        if dropped:
            log.warning(
                "the clock of %s was %.0f s ahead of this machine's and was set back to it", self.path, dropped / SECOND
            )
        if inside is None:
            return
        for topic in topics:
            inside.hub.wake(topic)
        inside.bell.ring(topics)

    def _listen(self, inside: Inside) -> None:
        if inside.listening:
            return
        inside.listening = True
        inside.bell.listen(self._heard)
        inside.bell.watch(
            self.path,
            self._stirred,
            lambda: None if inside.coalescer.busy else inside.connection.data_version(),
        )

    def _heard(self, topics: frozenset[str]) -> None:
        if (inside := self._inside) is None:
            return
        if EVERYTHING in topics:
            topics = topics.union(inside.hub.waited_for(), {CONTROL}) - {EVERYTHING}
            inside.stirred = True
        for topic in topics:
            inside.hub.wake(topic)

    def _stirred(self) -> None:
        """Somebody committed without ringing: look whether it concerns anybody."""
        if (inside := self._inside) is None:
            return
        waited_for = list(inside.hub.waited_for())
        inside.stirred = True
        if waited_for:
            with suppress(EngineBusy):
                found = inside.reader.glance(
                    lambda: joining.at_now(self._clock(), lambda now: questions.due(waited_for, now))
                )
                inside.stirred = False
                for topic in found:
                    inside.hub.wake(topic)


def _renew(unit: Unit, worker: str, held: Sequence[tuple[JobId, int]], span: Span, first: bool) -> Steps[Renewal]:
    return lease.renew(unit, worker, held, span, first=first)


def _just(value: T) -> Steps[T]:
    yield from ()
    return value


def _pragmas(_: Unit) -> Steps[dict[str, str]]:
    found = {}
    for name in ("journal_mode", "synchronous", "wal_autocheckpoint", "page_size", "page_count", "secure_delete"):
        found[name] = str((yield f"PRAGMA {name}", ())[0][0])
    return found


def _system_clock() -> Instant:
    return time.time_ns() // 1000
