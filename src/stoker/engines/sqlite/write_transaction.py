"""Run a group of requests as one transaction on the engine's writing connection.

The write lock is acquired before every write transaction and released right after it. A writer that finds the database
locked by a connection that does not use the write lock (a user's own transaction) releases it before it sleeps, so that
other writers can try for themselves.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from stoker.engines.sql.exchanges import Exchange
from stoker.engines.sqlite import claim, insert, settle
from stoker.engines.sqlite.connection import Connection
from stoker.engines.sqlite.fork_gate import gate
from stoker.engines.sqlite.unit_of_work import IdBlock, Mismatch, Unit
from stoker.engines.sqlite.write_lock import WriteLock
from stoker.model.audit import AuditEntry
from stoker.model.errors import EngineBusy, EngineError
from stoker.model.groups import Closing, Group
from stoker.model.job import Demand, Draft, Receipt, Settled, Settlement, Verdict
from stoker.model.time import Instant

SHORTEST_NAP, LONGEST_NAP = 0.001, 0.05


class Request:
    """One caller's part of a transaction.

    `strict`: acknowledged only when it is fsynced. `early`: workers may see it before that, as they see new jobs.
    `bare`: its only write is its first statement, so that it needs no transaction when it is alone.
    """

    __slots__ = ("bare", "demand", "drafts", "early", "future", "group", "make", "settlements", "strict", "weight")

    def __init__(
        self,
        future: asyncio.Future[Any],
        *,
        strict: bool,
        early: bool = False,
        bare: bool = False,
        make: Callable[[Unit], Exchange[Any]] | None = None,
        drafts: Sequence[Draft] | None = None,
        group: Group | None = None,
        settlements: Sequence[Settlement] | None = None,
        demand: Demand | None = None,
    ) -> None:
        self.future = future
        self.strict = strict
        self.early = early or drafts is not None
        self.bare = bare
        self.make = make
        self.drafts = drafts
        self.group = group
        self.settlements = settlements
        self.demand = demand
        self.weight = len(drafts or ()) + len(settlements or ())


class GroupResult:
    """The value or error of each request of a group, topics to wake, groups of jobs that closed, audit entries.

    `notified`: other processes were woken. `dropped`: how far the store's clock was set back.
    """

    __slots__ = ("closings", "dropped", "entries", "errors", "notified", "values", "woken")

    def __init__(self) -> None:
        self.values: dict[Request, Any] = {}
        self.errors: dict[Request, BaseException] = {}
        self.woken: set[str] = set()
        self.closings: list[Closing] = []
        self.entries: list[AuditEntry] = []
        self.notified = False
        self.dropped = 0

    def failed(self, group: Sequence[Request], error: BaseException) -> GroupResult:
        self.values.clear()
        self.woken.clear()
        self.closings.clear()
        self.entries.clear()
        self.errors.update(dict.fromkeys(group, error))
        return self

    def join(self, other: GroupResult) -> None:
        """Add the result of another group."""
        self.values.update(other.values)
        self.errors.update(other.errors)
        self.woken |= other.woken
        self.closings += other.closings
        self.entries += other.entries
        self.dropped = max(self.dropped, other.dropped)

    def take(self, unit: Unit, group: Sequence[Request], values: list[Any]) -> None:
        """Add the values of a transaction that is ready to commit."""
        self.values.update(zip(group, values, strict=True))
        self.woken |= unit.woken
        self.closings += unit.closings
        self.entries += unit.entries
        self.dropped = max(self.dropped, unit.dropped)


class TransactionRunner:
    """Runs groups on one writing connection. `clock` is read once per transaction.

    The loop calls `begin`, `work` and `commit` and never blocks; the writer thread calls `run`, which waits.
    """

    __slots__ = ("_clock", "_connection", "_ids", "_patience", "_write_lock")

    def __init__(
        self, connection: Connection, write_lock: WriteLock, clock: Callable[[], Instant], patience: float
    ) -> None:
        self._connection = connection
        self._write_lock = write_lock
        self._clock = clock
        self._patience = patience
        self._ids = IdBlock()

    # --- the parts, for the loop --------------------------------------------------------------------------------

    def begin(self, level: int) -> bool:
        """Acquire the write lock and begin a transaction; False when either is taken."""
        if not self._write_lock.try_acquire():
            return False
        try:
            self._connection.begin(level)
        except EngineBusy:
            self._write_lock.release()
            return False
        except BaseException:
            self._write_lock.release()
            raise
        return True

    def work(self, group: Sequence[Request], level: int) -> GroupResult:
        """Run the statements of a group in the begun transaction, and roll back if one raises."""
        result = GroupResult()
        try:
            unit = Unit(self._clock(), swift=True, ids=self._ids)
            try:
                values = self._connection.run_exchange(run_group(unit, group))
            except Mismatch:
                self._roll_back()
                self._connection.begin(level)
                unit = Unit(self._clock(), ids=self._ids)
                values = self._connection.run_exchange(run_group(unit, group))
        except BaseException:
            self.abandon()
            raise
        result.take(unit, group, values)
        return result

    def commit(self, group: Sequence[Request], result: GroupResult, *, checkpoint: bool = True) -> GroupResult:
        """Commit a group; if that fails, every request of it fails."""
        try:
            commit(self._connection, self._patience, checkpoint=checkpoint)
        except Exception as error:  # noqa: BLE001 - raised in the callers
            with suppress(EngineError):  # the callers get the first error
                self._roll_back()
            result.failed(group, error)
        finally:
            self._write_lock.release()
        return result

    def hand_over(self) -> None:
        """Note that another thread commits the open transaction."""
        self._connection.hand_over()

    def sync(self, result: GroupResult) -> GroupResult:
        """Fsync the log; if that fails, every strict request fails."""
        if waiting := [request for request in result.values if request.strict]:
            try:
                self._connection.wal.sync()
            except EngineError as error:
                for request in waiting:
                    result.errors[request] = error
                    del result.values[request]
        return result

    def abandon(self) -> None:
        """Roll back and release the write lock."""
        try:
            self._roll_back()
        finally:
            self._write_lock.release()

    def _roll_back(self) -> None:
        self._ids.forget()
        self._connection.rollback()

    def bare(self, request: Request, level: int) -> GroupResult | None:
        """Run one write without a transaction around it, which gives up the GIL as seldom as possible.

        None: another writer holds the write lock or the database.
        """
        if request.make is None or not self._write_lock.try_acquire():
            return None
        result = GroupResult()
        try:
            self._connection.prepare(level)
            unit = Unit(self._clock())
            result.take(unit, [request], [self._connection.run_exchange(request.make(unit))])
        except EngineBusy:
            return None
        finally:
            self._write_lock.release()
        return result

    # --- the whole, for the thread ------------------------------------------------------------------------------

    def run(self, group: Sequence[Request], level: int) -> GroupResult:
        """Wait for the database, run a group and commit.

        If it fails, run its requests one by one.
        """
        try:
            begin(self._connection, self._write_lock, level, self._patience)
            return self.commit(group, self.work(group, level))
        except Exception as error:  # noqa: BLE001 - raised in the callers
            if len(group) == 1 or isinstance(error, EngineBusy):
                return GroupResult().failed(group, error)
        return self.one_by_one(group, level)

    def one_by_one(self, group: Sequence[Request], level: int) -> GroupResult:
        """Run each request in a transaction of its own."""
        result = GroupResult()
        for request in group:
            result.join(self.run([request], level))
        return result


# --- the statements of a group ----------------------------------------------------------------------------------


def run_group(unit: Unit, group: Sequence[Request]) -> Exchange[list[Any]]:
    """Run inserts, then settlements, then claims and the rest; returns values in the group's order."""
    yield from unit.begin()
    results: dict[Request, Any] = {}
    yield from _inserts(unit, [request for request in group if request.drafts is not None], results)
    yield from _settles(unit, [request for request in group if request.settlements is not None], results)
    for request in group:
        if request.demand is not None:
            taken = yield from claim.claim(unit, request.demand)
            results[request] = Settled(results[request], taken) if request.settlements is not None else taken
        elif request.settlements is not None:
            results[request] = Settled(results[request], [])
        elif request.make is not None:
            results[request] = yield from request.make(unit)
    yield from unit.end()
    return [results[request] for request in group]


def _inserts(unit: Unit, requests: list[Request], results: dict[Request, Any]) -> Exchange[None]:
    plain = [request for request in requests if request.group is None and _are_plain(request.drafts or ())]
    if len(plain) > 1:
        receipts: list[Receipt] = yield from insert.insert(
            unit, [draft for request in plain for draft in request.drafts or ()]
        )
        start = 0
        for request in plain:
            end = start + len(request.drafts or ())
            results[request] = receipts[start:end]
            start = end
    for request in requests:
        if request not in results:
            results[request] = yield from insert.insert(unit, request.drafts or (), request.group)


def _are_plain(drafts: Sequence[Draft]) -> bool:
    """Return whether no insert of these drafts can raise."""
    return all(draft.unique is None and draft.options.group is None for draft in drafts)


def _settles(unit: Unit, requests: list[Request], results: dict[Request, Any]) -> Exchange[None]:
    if len(requests) == 1:
        results[requests[0]] = yield from settle.settle(unit, requests[0].settlements or ())
    elif requests:
        verdicts: list[Verdict] = yield from settle.settle(
            unit, [settlement for request in requests for settlement in request.settlements or ()]
        )
        start = 0
        for request in requests:
            end = start + len(request.settlements or ())
            results[request] = verdicts[start:end]
            start = end


# --- begin and commit, with patience ----------------------------------------------------------------------------


def commit(connection: Connection, patience: float, *, checkpoint: bool = True) -> None:
    """Commit, with patience: a rollback journal waits for readers to finish; a log does not."""
    deadline = time.monotonic() + patience
    while True:
        try:
            connection.commit(checkpoint=checkpoint)
        except EngineBusy:
            if time.monotonic() >= deadline:
                raise
            time.sleep(SHORTEST_NAP)
        else:
            return


def begin(connection: Connection, write_lock: WriteLock, level: int, patience: float) -> None:
    """Acquire the write lock and begin a transaction, waiting up to `patience` seconds for other writers."""
    deadline = time.monotonic() + patience
    nap = SHORTEST_NAP
    while True:
        if not write_lock.acquire(max(0.0, deadline - time.monotonic())):
            raise EngineBusy(
                f"another process held the write lock {write_lock.path} for more than {patience:g} s. The write did "
                "not happen and may be repeated"
            )
        try:
            connection.begin(level)
        except EngineBusy as error:
            write_lock.release()
            if time.monotonic() >= deadline:
                if connection.wal.unsynced:
                    raise
                raise EngineBusy(
                    f"another connection held a write transaction on {connection.path} for more than {patience:g} s. "
                    f"The write did not happen and may be repeated{gate.note(connection.path)}"
                ) from error
        except BaseException:
            write_lock.release()
            raise
        else:
            return
        time.sleep(nap)
        nap = min(nap * 2, LONGEST_NAP)
