"""One engine's open file: open and close, write through the queue, read, wait and wake.

Every method of `engine` uses it. Reads are short and run on the loop, on a connection of their own, each in one
snapshot. Only a page of `find` is read in slices, with the loop's other work in between, so that it holds up neither
the loop nor the reset of the log.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Awaitable, Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar

import msgspec

from stoker.engines.base import CONTROL, Clock, Transaction
from stoker.engines.call_times import CallTimes
from stoker.engines.notices import keep_for_workers, warn_once
from stoker.engines.shared.job_end_waiters import Interest, JobEndWaiters, Message, topics_of
from stoker.engines.shared.waiters import TopicWaiters
from stoker.engines.sql.exchanges import Exchange
from stoker.engines.sqlite import claim, file_checks, find, groups, leases, outbox, schema, user_transaction
from stoker.engines.sqlite.connection import VERSION_INFO, Connection, Journal
from stoker.engines.sqlite.liveness import LivenessFiles, liveness_file
from stoker.engines.sqlite.side_folder import SideFolder
from stoker.engines.sqlite.statements import sql
from stoker.engines.sqlite.unit_of_work import FURTHEST_AHEAD, Unit
from stoker.engines.sqlite.wakeup import EVERYTHING, WakeSocket
from stoker.engines.sqlite.write_lock import WriteLock
from stoker.engines.sqlite.write_queue import WriteQueue
from stoker.engines.sqlite.write_transaction import TransactionRunner
from stoker.model.errors import EngineBusy, EngineClosed, EngineError, EngineRefused, EngineSlow
from stoker.model.groups import Closing, ignore
from stoker.model.ids import JobId
from stoker.model.next_due import SOON
from stoker.model.outbox.stream import TOPIC
from stoker.model.time import MINUTE, SECOND, Instant, Span

log = logging.getLogger("stoker.engines.sqlite")

T = TypeVar("T")

_NOW = sql("now")

KEPT = 2
"""Idle connections of own transactions; with one writer, more are seldom in use."""

SLICE = 0.004
"""Seconds of a long read between two iterations of the loop."""


class Options(msgspec.Struct, frozen=True):
    """The options of an engine. `patience`: seconds to wait for other writers; `read_limit`: most for one read."""

    clock: Clock | None
    durability: Literal["power", "process"]
    journal: Journal
    patience: float
    read_limit: float | None = None


MOST_JOINED = 1_000
"""Closings in users' transactions that are remembered; the events of more are missing."""


class Store:
    """One file, used by one engine."""

    def __init__(self, path: str, options: Options) -> None:
        self.path = path
        self.options = options
        self.clock: Clock = options.clock or system_clock
        self.call_times = CallTimes()
        self.history: int | None = None
        self.ends = JobEndWaiters(self._ended, self._listen_to_all, self._notify_ends, Interest())
        self.emit_closing: Callable[[Closing], None] = ignore
        self._joined: dict[JobId, Closing] = {}
        """Closings in users' transactions on handles of their own: whether those commit is not known."""
        self._resources: OpenResources | None = None
        self._opening = asyncio.Lock()

    # --- open and close -----------------------------------------------------------------------------------------

    async def open(self) -> None:
        async with self._opening:
            if self._resources is not None and self._resources.pid == os.getpid():
                return
            self._resources = await open_resources(
                self.path,
                clock=self.clock,
                journal=self.options.journal,
                fsync=self.options.durability == "power",
                patience=self.options.patience,
                read_limit=self.options.read_limit,
                wake_here=self._wake_here,
                emit_closing=self._emit_closing,
            )
        for warning in self._resources.warnings:
            warn_once(log, self.path, warning)
        for note in self._resources.notes:
            keep_for_workers(log, self.path, note)

    async def close(self) -> None:
        resources, self._resources = self._resources, None
        self.ends.close()
        if resources is not None and resources.pid == os.getpid():
            await resources.close()

    def resources(self) -> OpenResources:
        """Return what is open; raises unless called on the engine's own loop and process."""
        resources = self._resources
        if resources is None:
            raise EngineClosed(f"the engine on {self.path} is not open. Await open() first")
        if resources.pid != os.getpid():
            raise EngineClosed(
                f"the engine on {self.path} was opened in process {resources.pid} and this is process {os.getpid()}: a "
                "connection does not survive a fork. Make another with for_loop()"
            )
        if asyncio.get_running_loop() is not resources.loop:
            raise EngineRefused(f"the engine on {self.path} belongs to another event loop. Use for_loop() to make one")
        return resources

    # --- writing ------------------------------------------------------------------------------------------------

    def request(self, *, strict: bool = False, **what: Any) -> Awaitable[Any]:
        """Run a request with the next group."""
        return self.resources().write_queue.add(strict=strict, **what)

    def write(
        self, make: Callable[[Unit], Exchange[T]], *, strict: bool = False, early: bool = False, bare: bool = False
    ) -> Awaitable[T]:
        """Run an exchange with the next group."""
        return self.resources().write_queue.add(strict=strict, early=early, make=make, bare=bare)

    def change(self, make: Callable[[Unit], Exchange[T]]) -> Awaitable[T]:
        """Run an operator's change with the next group; it is fsynced when the call returns."""
        return self.write(make, strict=True)

    def refresh(self, make: Callable[[Unit], Exchange[T]]) -> Awaitable[T]:
        """Run a write that is soon repeated with the next group; a power loss may take it back."""
        return self.write(make)

    def column(self, document: bytes) -> bytes:
        """Return JSON as a column takes it."""
        return document

    async def join(self, tx: Transaction, make: Callable[[Unit], Exchange[T]], *, undo: bool = False) -> T:
        """Run an exchange in a user's transaction.

        Needs neither a loop nor an open engine by itself.
        """
        unit = Unit(self.clock())
        exchange = user_transaction.with_savepoint(make(unit)) if undo else make(unit)
        if not isinstance(tx, user_transaction.Own):
            answer = await user_transaction.run_on_handle(self.path, tx, unit, exchange)
            for closing in unit.closings[: MOST_JOINED - len(self._joined)]:
                self._joined[closing.group.id] = closing
            return answer
        self._check_own(tx)
        return tx.run(unit, exchange)

    def _check_own(self, tx: user_transaction.Own) -> None:
        if tx.owner is not self:
            raise EngineRefused("tx= is a transaction of another engine. Use the engine it was made by")

    async def look(self, tx: Transaction, make: Callable[[Instant], Exchange[T]]) -> T:
        """Read what a user's transaction sees. Needs neither a loop nor an open engine by itself."""
        exchange = _at_now(self.clock(), make)
        if not isinstance(tx, user_transaction.Own):
            return await user_transaction.look_on_handle(self.path, tx, exchange)
        self._check_own(tx)
        return tx.look(exchange)

    async def emit_joined(self) -> None:
        """Emit the groups that users' transactions have closed, as far as these are committed."""
        waiting, now = self._joined, self.clock()
        for closing in await self.read(lambda _: groups.closed_by(waiting.values())) if waiting else ():
            del waiting[closing.group.id]
            self.emit_closing(closing)
        for group in [one.group.id for one in waiting.values() if (one.group.closed_at or 0) < now - MINUTE]:
            del waiting[group]

    def keep(self, connection: Connection | None, resources: OpenResources) -> None:
        """Keep the connection of a transaction for the next one, unless the engine was closed meanwhile."""
        if connection is None:
            return
        if self._resources is resources and len(resources.transactions) < KEPT:
            resources.transactions.append(connection)
        else:
            connection.close()

    # --- reading ------------------------------------------------------------------------------------------------

    async def read(self, make: Callable[[Instant], Exchange[T]]) -> T:
        """Read in one snapshot, with retries.

        A rollback journal locks readers out during a commit, a log never.
        """
        deadline = time.monotonic() + self.options.patience
        while True:
            try:
                return self._read_once(self.resources(), make)
            except EngineSlow:
                raise
            except EngineBusy:
                if time.monotonic() >= deadline:
                    raise
            await asyncio.sleep(0.001)

    def _read_once(self, resources: OpenResources, make: Callable[[Instant], Exchange[T]]) -> T:
        return resources.reader.read(_at_now(self.clock(), make))

    async def read_in_slices(self, make: Callable[[Instant], Exchange[T]]) -> T:
        """Read slice by slice.

        The loop runs other work in between, so no snapshot is held.
        """
        exchange = _at_now(self.clock(), make)
        done, result = self.resources().reader.run_some(exchange, None, SLICE)
        while not done:
            await asyncio.sleep(0)
            done, result = self.resources().reader.run_some(exchange, result, SLICE)
        return result  # type: ignore[no-any-return]

    # --- waiting and waking -------------------------------------------------------------------------------------

    async def wait(self, topics: Sequence[str], timeout: float) -> frozenset[str]:
        resources = self.resources()
        self._listen(resources, topics)
        if resources.unchecked:
            resources.unchecked = False
            if found := await self.read(lambda now: _with_work(topics, now)):
                return frozenset(found)
        return await resources.waiters.wait(topics, timeout)

    async def ended(self, job: JobId, timeout: float) -> bool:
        self.resources()
        return await self.ends.wait(job, timeout)

    async def news(self, job: JobId, seen: int, timeout: float) -> int:
        self.resources()
        return await self.ends.news(job, seen, timeout)

    async def wake(self, topics: Sequence[str]) -> None:
        self.resources()
        self.notify(set(topics))

    def notify(self, topics: set[str]) -> None:
        """Wake waiters of these topics in this engine and in all others."""
        if topics:
            self._wake_here(topics)
            self.resources().wake_socket.notify(topics)

    def _emit_closing(self, closing: Closing) -> None:
        self.emit_closing(closing)

    def _wake_here(self, topics: set[str], dropped: Span = 0) -> None:
        """Wake waiters of this engine after a commit; other engines were notified before."""
        if dropped:
            ahead = dropped / SECOND
            log.warning(
                "the store's clock of %s was %.0f s ahead of this machine's and follows it now", self.path, ahead
            )
        if (resources := self._resources) is not None:
            for topic in topics:
                resources.waiters.wake(topic)

    def _listen(self, resources: OpenResources, topics: Sequence[str]) -> None:
        """Listen from the first wait on: a process that only enqueues is never notified.

        A commit without a notification can only bring jobs and messages, so a waiter for `CONTROL` alone does not
        watch the file.
        """
        queues = any(topic != CONTROL for topic in topics)
        if not resources.listening:
            resources.listening = True
            resources.wake_socket.listen(self._notified, control_only=not queues)
        if not resources.watching and queues:
            resources.watching = True
            resources.wake_socket.listen_to_all()
            resources.wake_socket.watch(self.path, self._committed, resources.probe)

    def _notified(self, topics: frozenset[str]) -> None:
        """Another engine sent a notification."""
        if (resources := self._resources) is None:
            return
        topics = self.ends.receive(topics)
        if EVERYTHING in topics:
            self.ends.query_again()
            topics = topics.union(resources.waiters.waited_for(), {CONTROL}) - {EVERYTHING}
            resources.unchecked = True
        for topic in topics:
            resources.waiters.wake(topic)

    async def _ended(self, jobs: Sequence[JobId]) -> list[JobId]:
        return await self.read(lambda _: find.ended(jobs))

    async def _listen_to_all(self) -> None:
        """Listen to notifications of all topics, without watching the file."""
        resources = self.resources()
        if not resources.listening:
            resources.listening = True
            resources.wake_socket.listen(self._notified, control_only=False)
        resources.wake_socket.listen_to_all()

    def _notify_ends(self, message: Message, jobs: Collection[JobId]) -> None:
        self.resources().wake_socket.notify(topics_of(message, jobs))

    def _committed(self) -> None:
        """Another connection committed without a notification.

        Check what is due, now or at the next wait.
        """
        if (resources := self._resources) is None:
            return
        resources.unchecked = True
        waited_for = resources.waiters.waited_for()
        if waited_for:
            with suppress(EngineBusy):
                found = self._read_once(resources, lambda now: _with_work(waited_for, now))
                resources.unchecked = False
                for topic in found:
                    resources.waiters.wake(topic)


def _at_now(clock: Instant, make: Callable[[Instant], Exchange[T]]) -> Exchange[T]:
    """Return a reading exchange made for the store's now, which may be ahead of this machine's clock."""
    [(high,)] = yield _NOW, ()
    return (yield from make(high if 0 < high - clock <= FURTHEST_AHEAD else clock))


def _with_work(topics: Sequence[str], now: Instant) -> Exchange[list[str]]:
    """Return those topics whose queue has a due job, or whose stream has something to deliver."""
    queues = [topic for topic in topics if topic != CONTROL and not topic.startswith(TOPIC)]
    streams = [topic.removeprefix(TOPIC) for topic in topics if topic.startswith(TOPIC)]
    found = yield from claim.due_queues(queues, now + SOON)
    return found + (yield from outbox.fresh(streams, now))


@dataclass
class OpenResources:
    """What an open engine holds and `close` releases. Belongs to one loop and one process.

    `unchecked`: another connection committed, and what is due was not read since; the next wait reads it first.
    """

    pid: int
    loop: asyncio.AbstractEventLoop
    connection: Connection
    reader: Connection
    side_folder: SideFolder
    write_lock: WriteLock
    liveness: LivenessFiles
    wake_socket: WakeSocket
    waiters: TopicWaiters
    write_queue: WriteQueue
    warnings: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    transactions: list[Connection] = field(default_factory=list)
    """Idle connections of the engine's own transactions, with their prepared statements."""
    watching: bool = False
    listening: bool = False
    unchecked: bool = False

    def probe(self) -> int | None:
        """Return a number that changes when another connection commits.

        None while the writer thread uses ours.
        """
        return None if self.write_queue.busy else self.connection.data_version()

    async def close(self) -> None:
        await self.write_queue.close()
        self.waiters.dismiss()
        self.wake_socket.close()
        self.liveness.close()
        kept = self._living_files()
        for connection in (*self.transactions, self.reader, self.connection):
            connection.close()
        self.write_lock.close()
        self.side_folder.close(kept)

    def _living_files(self) -> set[str] | None:
        """Return the liveness files of workers that still have a lease.

        None when the store cannot be read.
        """
        try:
            living, _ = self.reader.read(leases.workers(0))
        except EngineError:
            return None
        return {liveness_file(worker) for worker in living}


async def open_resources(
    path: str,
    *,
    clock: Callable[[], Instant],
    journal: Journal,
    fsync: bool,
    patience: float,
    read_limit: float | None,
    wake_here: Callable[[set[str], int], None],
    emit_closing: Callable[[Closing], None],
) -> OpenResources:
    """Check the file, make or upgrade the schema, connect."""
    loop = asyncio.get_running_loop()
    side_folder = SideFolder(path)
    wake_socket = WakeSocket(side_folder.wake, loop)
    file_checks.inspect_path(path)
    write_lock = WriteLock(side_folder.write_lock)
    connection, reader = await asyncio.to_thread(_connect, path, journal, side_folder, write_lock, patience, read_limit)
    known = file_checks.version_warning(VERSION_INFO) if connection.journal == "wal" else None
    other = f"the journal of {path} is {connection.journal} although {journal} was asked for"
    return OpenResources(
        pid=os.getpid(),
        loop=loop,
        connection=connection,
        reader=reader,
        side_folder=side_folder,
        write_lock=write_lock,
        liveness=LivenessFiles(side_folder.live),
        wake_socket=wake_socket,
        waiters=TopicWaiters(),
        write_queue=WriteQueue(
            TransactionRunner(connection, write_lock, clock, patience),
            fsync=fsync,
            log=connection.journal == "wal",
            notify=wake_socket.notify,
            wake_here=wake_here,
            emit_closing=emit_closing,
        ),
        warnings=() if connection.journal == journal else (other,),
        notes=() if known is None else (known,),
    )


def _connect(
    path: str,
    journal: Journal,
    side_folder: SideFolder,
    write_lock: WriteLock,
    patience: float,
    read_limit: float | None,
) -> tuple[Connection, Connection]:
    try:
        side_folder.open(patience)
        connection = schema.connect(path, journal, write_lock, patience)
        try:
            schema.upgrade(connection, write_lock, patience)
            return connection, Connection(path, journal=journal, read_only=True, limit=read_limit)
        except BaseException:
            connection.close()
            raise
    except BaseException:
        write_lock.close()
        side_folder.close()
        raise


def system_clock() -> Instant:
    """Return this machine's time."""
    return time.time_ns() // 1000
