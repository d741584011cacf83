"""Connections to SQLite: set up, run exchanges on them, fsync their log, and translate every driver error once.

A connection is in autocommit mode and never waits: a busy database raises `EngineBusy`, and the caller decides whether
and where to wait. Two threads may use it one after the other, never at once. A write transaction always starts with
`BEGIN IMMEDIATE`, so it can neither deadlock nor fail half-way on a lock.
"""

from __future__ import annotations

import math
import os
import sqlite3
import sys
import time
import warnings
from contextlib import closing
from typing import Any, Literal, TypeAlias, TypeVar

from stoker.engines.sql.exchanges import Exchange, Many, Row, Statement
from stoker.engines.sqlite.fork_gate import gate
from stoker.model.errors import (
    CorruptRecord,
    EngineBusy,
    EngineClosed,
    EngineError,
    EngineFull,
    EngineReadOnly,
    EngineRefused,
    EngineSlow,
    EngineUnavailable,
    SchemaMismatch,
)

T = TypeVar("T")
Journal: TypeAlias = Literal["wal", "delete"]

VERSION = sqlite3.sqlite_version
VERSION_INFO = sqlite3.sqlite_version_info
NORMAL, FULL, EXTRA = 1, 2, 3
LEVELS = {0: "off", NORMAL: "normal", FULL: "full", EXTRA: "extra"}

CACHED_STATEMENTS = 256
"""More than the engine has: a statement that drops out of the cache is prepared again."""

WAL_PAGES = 1000
WAL_KEPT = 64 << 20
PATIENCE = 5.0
"""Seconds to wait for a process that creates, recovers or converts the file."""

STEPS_BETWEEN_LOOKS = 10_000
"""Steps of SQLite's machine, about a tenth of a millisecond, after which a limited read looks at the clock."""

DriverError = sqlite3.Error

if (3, 12) <= sys.version_info < (3, 12, 4):
    # These versions take `?1` for a named parameter and warn of every value. Python 3.12.4 took the warning back.
    warnings.filterwarnings("ignore", r"Binding \d+ \('\?\d+'\) is a named parameter", DeprecationWarning)

_sync = getattr(os, "fdatasync", os.fsync)  # what SQLite itself calls for its log, where the system has it


class Connection:
    """One connection of the engine. `file_checks.inspect_path` must have accepted the path before.

    With `limit` SQLite stops a read, or a slice of one, after so many seconds.
    """

    def __init__(
        self, path: str, *, journal: Journal = "wal", read_only: bool = False, limit: float | None = None
    ) -> None:
        self.path = path
        self.journal = ""
        self._level = -1
        self._pages = WAL_PAGES
        self._limit = limit
        self._stop_at = math.inf
        self._entered = False
        self._enter()
        try:
            self._open(journal, read_only=read_only)
        finally:
            self._leave()
        if limit is not None:
            self._raw.set_progress_handler(lambda: time.monotonic() > self._stop_at, STEPS_BETWEEN_LOOKS)

    def _open(self, journal: Journal, *, read_only: bool) -> None:
        try:
            self._raw = sqlite3.connect(
                self.path,
                timeout=0,
                isolation_level=None,
                check_same_thread=False,
                cached_statements=CACHED_STATEMENTS,
            )
        except sqlite3.Error as error:
            raise translated(error, self.path) from error
        self._identity = identity(self.path)
        self.wal = Wal(self.path)
        self._execute = self._raw.execute
        self._executemany = self._raw.executemany
        try:
            self._set_up(journal, read_only=read_only)
        except BaseException:
            self._raw.close()
            raise

    def _set_up(self, journal: Journal, *, read_only: bool) -> None:
        # Another process may be recovering or converting the file when the first statement runs.
        self.pragma("busy_timeout", round(PATIENCE * 1000))
        self.journal = self._journal(journal)
        self.pragma("wal_autocheckpoint", WAL_PAGES)
        self.pragma("journal_size_limit", WAL_KEPT)
        self.pragma("temp_store", "memory")
        self.pragma("secure_delete", "off")
        self.pragma("mmap_size", 0)
        if read_only:
            self.pragma("query_only", 1)
        self.pragma("busy_timeout", 0)

    def _journal(self, wanted: Journal) -> str:
        """Set the journal mode, with retries.

        SQLite does not wait for a process that sets it at the same moment.
        """
        deadline = time.monotonic() + PATIENCE
        while True:
            mode: str = self.pragma("journal_mode")
            if mode == wanted:
                return mode
            try:
                self.run(f"PRAGMA journal_mode = {wanted}")
            except EngineBusy:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.001)
            else:
                return str(self.pragma("journal_mode"))

    @property
    def raw(self) -> sqlite3.Connection:
        """The driver's connection, for statements of the user's own."""
        return self._raw

    def pragma(self, name: str, value: Any = None) -> Any:
        """Set a pragma, and return its value as read back."""
        if value is not None:
            self.run(f"PRAGMA {name} = {value}")
        rows = self.run(f"PRAGMA {name}")
        return rows[0][0] if rows else None

    # --- statements ---------------------------------------------------------------------------------------------

    def run(self, statement: str, values: Row = ()) -> list[Row]:
        """Run a statement and return all its rows.

        One that is half read would keep the log from being reset.
        """
        entered = self._enter()
        try:
            return self._execute(statement, values).fetchall()
        except sqlite3.Error as error:
            raise self._failure(error) from error
        finally:
            if entered:
                self._leave()

    def run_exchange(self, exchange: Exchange[T]) -> T:
        """Run an exchange to its end and return its result."""
        execute, executemany = self._execute, self._executemany
        rows: Any = None
        entered = self._enter()
        try:
            while True:
                asked: Statement = exchange.send(rows)
                if type(asked) is Many:
                    rows = executemany(asked.statement, asked.rows).rowcount
                else:
                    rows = execute(*asked).fetchall()
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]
        except sqlite3.Error as error:
            raise self._failure(error) from error
        finally:
            if entered:
                self._leave()

    def read(self, exchange: Exchange[T]) -> T:
        """Run a reading exchange in one snapshot."""
        self._start_clock()
        self._enter()
        try:
            self.run("BEGIN")
            return self.run_exchange(exchange)
        finally:
            self.rollback()

    def run_some(self, exchange: Exchange[T], rows: Any, seconds: float) -> tuple[bool, Any]:
        """Run a reading exchange for so long, at least one statement.

        Returns whether they ended, and their result or the rows to send next.
        """
        self._start_clock()
        until = time.monotonic() + seconds
        entered = self._enter()
        try:
            while True:
                asked = exchange.send(rows)
                rows = self._execute(*asked).fetchall()
                if time.monotonic() >= until:
                    return False, rows
        except StopIteration as end:
            return True, end.value
        except sqlite3.Error as error:
            raise self._failure(error) from error
        finally:
            if entered:
                self._leave()

    def _start_clock(self) -> None:
        if self._limit is not None:
            self._stop_at = time.monotonic() + self._limit

    # --- transactions -------------------------------------------------------------------------------------------

    def begin(self, level: int = FULL) -> None:
        """Begin a write transaction with this `PRAGMA synchronous`.

        `EngineBusy` at once if another one is open.
        """
        self._enter()
        try:
            self.prepare(level)
            self._execute("BEGIN IMMEDIATE")
        except BaseException as error:
            self._leave()
            if isinstance(error, sqlite3.Error):
                raise self._failure(error) from error
            raise

    def prepare(self, level: int) -> None:
        """Check that the files were not replaced, and set `PRAGMA synchronous` for the next write."""
        if identity(self.path) != self._identity:
            raise EngineUnavailable(
                f"the database {self.path} was deleted or replaced while it was open. Nothing was written. Put the "
                "file back, or close this engine and open it again on the new one"
            )
        if self.journal == "wal":
            self.wal.check()
            if self.wal.unsynced:
                self._restart_wal()
        if level == FULL and self.journal != "wal":
            # A rollback journal that reappears after a power loss undoes the commit: its removal must be fsynced too.
            level = EXTRA
        try:
            if level != self._level:
                self._execute(f"PRAGMA synchronous = {level}")
                self._level = level
        except sqlite3.Error as error:
            raise self._failure(error) from error

    def _restart_wal(self) -> None:
        """Copy the log into the database and start it anew.

        A second fsync would not write the pages that the kernel dropped after the first, and recovery ignores every
        frame behind such a gap.
        """
        [[busy, _, _]] = self.run("PRAGMA wal_checkpoint(RESTART)")
        if busy:
            raise EngineBusy(
                f"the disk failed to sync {self.wal.path}, which must be restarted and cannot be while it is read. "
                "The write did not happen and may be repeated"
            )
        self.wal.unsynced = False

    def commit(self, *, checkpoint: bool = True) -> None:
        """Commit. With `checkpoint` SQLite copies a log of `WAL_PAGES` into the database, and waits for the disk."""
        pages = WAL_PAGES if checkpoint else 0
        try:
            if pages != self._pages:
                self._execute(f"PRAGMA wal_autocheckpoint = {pages}").fetchall()
                self._pages = pages
            self._execute("COMMIT")
        except sqlite3.Error as error:
            raise self._failure(error) from error
        self._leave()

    def rollback(self) -> None:
        """Roll back. SQLite may have done so already, on a full disk for instance."""
        try:
            if self._raw.in_transaction:
                self._raw.rollback()
        except sqlite3.Error as error:
            raise self._failure(error) from error
        finally:
            self._leave()

    def hand_over(self) -> None:
        """Note that another thread ends the open transaction."""
        gate.hand_over(self)

    def _enter(self) -> bool:
        """Enter the fork gate; False inside a transaction, which has entered it."""
        if self._entered:
            return False
        gate.enter(self, self.path)
        self._entered = True
        return True

    def _leave(self) -> None:
        if self._entered:
            self._entered = False
            gate.leave(self)

    def _failure(self, error: sqlite3.Error) -> EngineError:
        if self.journal == "wal" and getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_IOERR_FSYNC:
            self.wal.unsynced = True
        failure = translated(error, self.path)
        return EngineBusy(f"{failure}{gate.note(self.path)}") if type(failure) is EngineBusy else failure

    def data_version(self) -> int:
        """Return a number that changes when another connection commits."""
        return int(self.run("PRAGMA data_version")[0][0])

    def close(self) -> None:
        self._enter()
        try:
            self._raw.close()
        finally:
            self._leave()
        self.wal.close()


class Wal:
    """The write-ahead log of one connection as a file: checks that it was not replaced, and fsyncs it.

    SQLite writes and reads it. Wake-ups are sent before the fsync and the caller is answered after it, so the engine
    syncs the file itself, on a descriptor of its own. Closing that drops no lock of SQLite: those are on other files.

    `unsynced`: an fsync failed. The kernel may have dropped the pages it could not write, so the log cannot be synced
    again and must be restarted.
    """

    __slots__ = ("_database", "_file", "_identity", "path", "unsynced")

    def __init__(self, database: str) -> None:
        self.path = f"{database}-wal"
        self.unsynced = False
        self._database = database
        self._file: int | None = None
        self._identity: tuple[int, int] | None = None

    def check(self) -> None:
        """Raise if the file was replaced.

        SQLite keeps it for as long as a connection is open.
        """
        found = identity(self.path)
        if self._identity is None:
            self._identity = found
        elif found != self._identity:
            raise EngineUnavailable(
                f"the log {self.path} was deleted or replaced while the database was open. Nothing was written. Put it "
                "back, or close every program that has the database open, without killing it, and open it again: "
                "what the log held is stored when the last one closes"
            )

    def sync(self) -> None:
        """Fsync the log, and with it every commit so far."""
        try:
            if self._file is None:
                self._file = os.open(self.path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
            _sync(self._file)
        except OSError as error:
            self.unsynced = True
            raise EngineUnavailable(
                f"the disk did not confirm what was just stored in {self._database}: {error.strerror}. It is stored "
                "and its jobs may run, but a power loss could undo it. Repeating the call with the same job ids is safe"
            ) from error

    def close(self) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None


def identity(path: str | os.PathLike[str]) -> tuple[int, int] | None:
    """Return device and inode of the file at the path, to compare later; None if there is none."""
    try:
        found = os.lstat(path)
    except FileNotFoundError:
        return None
    return found.st_dev, found.st_ino


_ERRORS: dict[int, tuple[type[EngineError], str]] = {
    sqlite3.SQLITE_BUSY: (EngineBusy, "is locked by another writer; the write did not happen and may be repeated"),
    sqlite3.SQLITE_LOCKED: (EngineBusy, "is locked by another writer; the write did not happen and may be repeated"),
    sqlite3.SQLITE_INTERRUPT: (EngineSlow, "was read for longer than one call may; the call was stopped"),
    sqlite3.SQLITE_FULL: (EngineFull, "has no room left: the disk is full; nothing was stored"),
    sqlite3.SQLITE_READONLY: (EngineReadOnly, "cannot be written to; nothing was stored"),
    sqlite3.SQLITE_IOERR: (EngineUnavailable, "cannot be read or written at this moment"),
    sqlite3.SQLITE_CANTOPEN: (EngineUnavailable, "cannot be opened"),
    sqlite3.SQLITE_NOMEM: (EngineUnavailable, "needs more memory than there is"),
    sqlite3.SQLITE_CORRUPT: (
        CorruptRecord,
        "is damaged, or its disk cannot be read; restore a backup, or try the sqlite3 shell's .recover",
    ),
    sqlite3.SQLITE_NOTADB: (CorruptRecord, "is not an SQLite database, or is damaged"),
    sqlite3.SQLITE_PERM: (EngineRefused, "may not be used by this user"),
    sqlite3.SQLITE_AUTH: (EngineRefused, "may not be used by this user"),
}


def translated(error: sqlite3.Error, path: str | os.PathLike[str]) -> EngineError:
    """Translate an error of the driver."""
    code = getattr(error, "sqlite_errorcode", None)
    if code is not None:
        kind, words = _ERRORS.get(code & 0xFF, (EngineError, "failed"))
        if str(error).startswith("no such table: stoker_"):
            return SchemaMismatch(f"the database {path} has no tables of Stoker's ({error}). Open it with Stoker once")
        if kind is CorruptRecord and _is_sound(str(path)):
            kind, words = EngineUnavailable, "could not be read for a moment, but is sound"
        return kind(f"the database {path} {words} ({error})")
    if isinstance(error, sqlite3.ProgrammingError) and "closed" in str(error):
        return EngineClosed(f"the database {path} is closed")
    return EngineError(f"the database {path} failed ({error})")


def _is_sound(path: str) -> bool:
    """Return whether a file that SQLite reports as damaged passes a quick check, tried several times.

    SQLite also reports damage when the disk fails to read. A file that is too large to be checked in time counts as
    damaged: a false warning is better than none.
    """
    now = time.monotonic()
    if now < _damaged_until.get(path, 0.0):
        return False
    for _ in range(LOOKS):
        try:
            with closing(sqlite3.connect(path, timeout=0, isolation_level=None)) as fresh:
                fresh.set_progress_handler(lambda: time.monotonic() > now + LONGEST_LOOK, 1_000)
                if fresh.execute("PRAGMA quick_check(1)").fetchall() == [("ok",)]:
                    return True
        except sqlite3.Error:
            continue
    _damaged_until[path] = time.monotonic() + LOOK_AGAIN
    return False


LOOKS, LONGEST_LOOK, LOOK_AGAIN = 10, 0.25, 60.0
"""Tries of the quick check, seconds for all of them, and seconds until the next round."""

_damaged_until: dict[str, float] = {}
