"""Running a group as one transaction on the engine's writing connection, in whichever thread.

The write lock is acquired before every write transaction and released right after it. A writer that finds the database
locked by a connection that does not use the write lock (a user's own transaction) releases it before it sleeps, so that
other writers can try for themselves.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress

from stoker.engines.sqlite.connection import Connection
from stoker.engines.sqlite.group import Outcome, Request, together
from stoker.engines.sqlite.unit_of_work import Known, Mismatch, Unit
from stoker.engines.sqlite.write_lock import WriteLock
from stoker.model.errors import EngineBusy, EngineError
from stoker.model.time import Instant

SHORTEST_NAP, LONGEST_NAP = 0.001, 0.05


class Transactor:
    """One writing connection and its write lock. `clock` is read once per transaction."""

    __slots__ = ("_clock", "_connection", "_known", "_patience", "_write_lock")

    def __init__(
        self, connection: Connection, write_lock: WriteLock, clock: Callable[[], Instant], patience: float
    ) -> None:
        self._connection = connection
        self._write_lock = write_lock
        self._clock = clock
        self._patience = patience
        self._known = Known()

    # --- the parts, for the loop --------------------------------------------------------------------------------

    def begin(self, level: int) -> bool:
        """Get hold of the write lock and database without waiting."""
        return self._enter(self._connection.begin, level)

    def _enter(self, first: Callable[[int], None], level: int) -> bool:
        """Get hold of the write lock and do the first thing behind it; whoever cannot is outside again."""
        if not self._write_lock.try_acquire():
            return False
        try:
            first(level)
        except EngineBusy:
            self._write_lock.release()
            return False
        except BaseException:
            self._write_lock.release()
            raise
        return True

    def work(self, group: Sequence[Request], level: int) -> Outcome:
        """Run the statements of a group in the transaction that was begun. When it raises, everything is undone."""
        outcome = Outcome()
        try:
            unit = Unit(self._clock(), swift=True, known=self._known)
            try:
                answers = self._connection.play(together(unit, group))
            except Mismatch:
                self._roll_back()
                self._connection.begin(level)
                unit = Unit(self._clock(), known=self._known)
                answers = self._connection.play(together(unit, group))
        except BaseException:
            self.abandon()
            raise
        outcome.take(unit, group, answers)
        return outcome

    def commit(self, group: Sequence[Request], outcome: Outcome) -> Outcome:
        """Make a group's work last; when that fails nobody of it has anything."""
        try:
            commit(self._connection, self._patience)
        except Exception as error:  # noqa: BLE001 - carried to everybody who asked
            with suppress(EngineError):  # what went wrong first is what they must hear, and hear they must
                self._roll_back()
            outcome.failed(group, error)
        finally:
            self._write_lock.release()
        return outcome

    def sync(self, outcome: Outcome) -> Outcome:
        """Wait until the disk has what was committed; when it refuses, nobody is told that it is safe."""
        if waiting := [request for request in outcome.answers if request.strict]:
            try:
                self._connection.wal.sync()
            except EngineError as error:
                for request in waiting:
                    outcome.errors[request] = error
                    del outcome.answers[request]
        return outcome

    def abandon(self) -> None:
        """Undo what was begun and let the next one in."""
        try:
            self._roll_back()
        finally:
            self._write_lock.release()

    def _roll_back(self) -> None:
        self._known.forget()
        self._connection.rollback()

    def bare(self, request: Request, level: int) -> Outcome | None:
        """One write without a transaction around it, which gives the interpreter's lock away as seldom as can be.

        None: the database is somebody else's at this moment.
        """
        if request.make is None or not self._write_lock.try_acquire():
            return None
        outcome = Outcome()
        try:
            self._connection.prepare(level)
            unit = Unit(self._clock())
            outcome.take(unit, [request], [self._connection.play(request.make(unit))])
        except EngineBusy:
            return None
        finally:
            self._write_lock.release()
        return outcome

    # --- the whole, for the thread ------------------------------------------------------------------------------

    def whole(self, group: Sequence[Request], level: int) -> Outcome:
        """Wait, work, commit. One that fails does not take the others along."""
        try:
            begin(self._connection, self._write_lock, level, self._patience)
            return self.commit(group, self.work(group, level))
        except Exception as error:  # noqa: BLE001 - as above
            if len(group) == 1 or isinstance(error, EngineBusy):
                return Outcome().failed(group, error)
        return self.one_by_one(group, level)

    def one_by_one(self, group: Sequence[Request], level: int) -> Outcome:
        """Each request in a transaction of its own."""
        outcome = Outcome()
        for request in group:
            outcome.join(self.whole([request], level))
        return outcome


def commit(connection: Connection, patience: float) -> None:
    """Make a transaction last. A rollback journal needs the readers out for a moment; a log does not."""
    deadline = time.monotonic() + patience
    while True:
        try:
            connection.commit()
        except EngineBusy:
            if time.monotonic() >= deadline:
                raise
            time.sleep(SHORTEST_NAP)
        else:
            return


def begin(connection: Connection, write_lock: WriteLock, level: int, patience: float) -> None:
    """Get hold of the write lock and database, waiting for others as long as patience lasts."""
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
                    f"somebody held a write transaction on {connection.path} for more than {patience:g} s. The write "
                    "did not happen and may be repeated"
                ) from error
        except BaseException:
            write_lock.release()
            raise
        else:
            return
        time.sleep(nap)
        nap = min(nap * 2, LONGEST_NAP)
