"""The write lock: one writer at a time, in the order of arrival, across threads and processes.

The engine acquires it before every `BEGIN IMMEDIATE` of its own and releases it after the commit, or before it sleeps
on a busy database. SQLite's own lock keeps writers apart; this one keeps their order, because SQLite's waiters sleep
and poll. A user's transaction (`tx=`) never takes it.

Rule: a waiter goes before a writer that comes back. A single flock does not keep this rule: the process that releases
it can lock it again before the waiter it woke has run (six tight loops: one got 3 % of another's share and waited a
second). So there are two lock files. Every writer locks the turn, then the write lock, then unlocks the turn: the next
waiter holds the turn, and a writer that comes back queues behind it. The kernel drops both when a process dies.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import queue
import threading
import time
import weakref
from pathlib import Path

from stoker.engines.sqlite.side_folder import END, OPEN, engine_error, own_folder
from stoker.model.errors import EngineClosed

NOW = fcntl.LOCK_EX | fcntl.LOCK_NB
WAIT = fcntl.LOCK_EX
LINGER = 1.0  # seconds a helper thread stays for the next waiter: starting a thread costs more than most waits


class LockFile:
    """One open lock file, never shared between two `WriteLock`s.

    A flock belongs to the open file, so threads exclude each other too.
    """

    __slots__ = ("fd", "identity", "path")

    def __init__(self, path: str) -> None:
        self.path = path
        try:
            self.fd = self._open()
        except OSError as error:
            raise engine_error(error, f"the lock file {path}") from error
        found = os.fstat(self.fd)
        self.identity = (found.st_dev, found.st_ino)

    def _open(self) -> int:
        flags = os.O_RDWR | os.O_CREAT | OPEN
        try:
            return os.open(self.path, flags, 0o600)
        except FileNotFoundError:
            folder = Path(self.path).parent
            if not folder.name.endswith(END):
                raise
            own_folder(folder)  # a user deleted it
            return os.open(self.path, flags, 0o600)

    def lock(self, how: int) -> bool:
        try:
            fcntl.flock(self.fd, how)
        except BlockingIOError:
            return False
        return True

    def unlock(self) -> None:
        fcntl.flock(self.fd, fcntl.LOCK_UN)

    def moved(self) -> bool:
        """Return whether the path has another file, or none, by now.

        Then this lock excludes no other process.
        """
        try:
            found = os.lstat(self.path)
        except FileNotFoundError:
            return True
        return (found.st_dev, found.st_ino) != self.identity


class Waiter:
    """One `acquire` with a timeout, for which a helper thread waits.

    `adrift`: the caller's timeout has passed, while the helper still waits.
    """

    def __init__(self) -> None:
        self.reached = threading.Lock()  # released when the lock is acquired: the cheapest signal between two threads
        self.reached.acquire()
        self.adrift = False
        self.error: BaseException | None = None


class WriteLock:
    """A fair lock on a side file, one per connection; any thread may release it."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = os.fspath(path)
        self._files: tuple[LockFile, LockFile] | None = None
        self._taken = threading.Lock()
        self._guard = threading.Lock()
        self._adrift: Waiter | None = None
        self._waiters: queue.SimpleQueue[Waiter | None] = queue.SimpleQueue()
        self._helped = False
        self._waiting = False
        self._closed = False
        LOCKS.add(self)

    def try_acquire(self) -> bool:
        """Acquire the lock if it is free and has no waiter.

        Never blocks: two flocks, one stat, a few microseconds.
        """
        self._check()
        if not self._taken.acquire(blocking=False):
            return False
        if not (acquired := self._attempt(NOW)):
            self._taken.release()
        return acquired

    def acquire(self, timeout: float | None = None) -> bool:
        """Wait for the lock, first come first served; False when `timeout` seconds have passed.

        Without a timeout the kernel does the waiting. flock has no timeout, so with one a helper thread blocks in
        flock and this thread waits for the helper: no polling, no signals. A caller that timed out and calls again
        gets the place of its first call; if it does not call again, the helper acquires the lock and releases it.
        """
        self._check()
        deadline = None if timeout is None else time.monotonic() + timeout
        with self._guard:
            waiter, self._adrift = self._adrift, None
            if waiter:
                waiter.adrift = False
        if waiter is None:
            if not self._taken.acquire(timeout=-1 if timeout is None else max(0.0, timeout)):
                return False
            if deadline is None:
                return self._attempt(WAIT)
            if self._attempt(NOW):
                return True
            waiter = Waiter()
            with self._guard:
                self._waiters.put(waiter)
                start, self._helped = not self._helped, True
            if start:
                threading.Thread(target=self._help, name="stoker-write-lock", daemon=True).start()
        return self._outcome_of(waiter, deadline)

    def release(self) -> None:
        """Release the lock for the next waiter."""
        if self._files and self._taken.locked():
            self._files[1].unlock()
        self._taken.release()

    def close(self) -> None:
        """Close the files, which releases the lock if it is held. Closing twice is harmless."""
        with self._guard:
            self._closed = True
            self._waiters.put(None)
            # A thread blocked in flock would wake up with a descriptor that is another file by then: it closes itself.
            if not self._waiting:
                self._shut()

    def _check(self) -> None:
        if self._closed:
            raise EngineClosed(f"the write lock {self.path} is closed")

    def _attempt(self, how: int) -> bool:
        with self._guard:
            self._waiting = True
        try:
            return self._lock_both(how)
        except BaseException as error:
            self._shut()
            self._taken.release()
            if isinstance(error, OSError):
                raise engine_error(error, f"the lock file {self.path}") from error
            raise
        finally:
            with self._guard:
                self._waiting = False

    def _lock_both(self, how: int) -> bool:
        """Lock the turn, then the write lock, then check that both files are still the ones at their paths."""
        while not self._closed:
            if self._files is None:
                self._files = LockFile(f"{self.path}-turn"), LockFile(self.path)
            turn, write_lock = self._files
            if not turn.lock(how):
                return False
            try:
                if not write_lock.lock(how):
                    return False
            finally:
                turn.unlock()
            if not self._closed and not write_lock.moved() and (how == NOW or not turn.moved()):
                return True
            self._shut()
        self._check()
        return False

    def _help(self) -> None:
        while True:
            try:
                waiter = self._waiters.get(timeout=LINGER)
            except queue.Empty:
                waiter = None
            if waiter:
                self._wait_for(waiter)
                continue
            with self._guard:
                if self._waiters.empty():
                    self._helped = False
                    return

    def _wait_for(self, waiter: Waiter) -> None:
        try:
            self._attempt(WAIT)
        except BaseException as error:  # noqa: BLE001 - carried to the caller, whose thread is another
            waiter.error = error
        with self._guard:
            if not waiter.adrift:
                waiter.reached.release()
                return
            self._adrift = None
        if waiter.error is None:
            self.release()

    def _outcome_of(self, waiter: Waiter, deadline: float | None) -> bool:
        patience = -1 if deadline is None else max(0.0, deadline - time.monotonic())
        if not waiter.reached.acquire(timeout=patience):
            with self._guard:
                if not waiter.reached.acquire(blocking=False):
                    waiter.adrift, self._adrift = True, waiter
                    return False
        if waiter.error is not None:
            raise waiter.error
        return True

    def _shut(self) -> None:
        files, self._files = self._files, None
        for file in files or ():
            with contextlib.suppress(OSError):
                os.close(file.fd)

    def _forked(self) -> None:
        # The child shares the open files and so the parent's locks: closing keeps those, unlocking would drop them.
        self._shut()
        self._taken, self._guard = threading.Lock(), threading.Lock()
        self._adrift, self._waiting, self._helped = None, False, False
        self._waiters = queue.SimpleQueue()


LOCKS: weakref.WeakSet[WriteLock] = weakref.WeakSet()


def _in_child() -> None:
    for write_lock in list(LOCKS):
        write_lock._forked()  # noqa: SLF001 - same module


os.register_at_fork(after_in_child=_in_child)
