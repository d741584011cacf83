"""The gate: one writer at a time, in the order of arrival, across threads and processes.

The engine enters before every `BEGIN IMMEDIATE` of its own and leaves after the commit, or before it sleeps on a busy
database. SQLite's own lock stays the safety behind it; the gate brings order, because SQLite's waiters sleep and guess.
A user's transaction (`tx=`) never comes here.

Rule: whoever waits goes before whoever comes back. A kernel flock alone does not keep it: the one who leaves can lock
again before the waiter it woke has run (six tight loops: one got 3 % of another's share and waited a second). So there
are two locks. Everybody takes the turn, then the gate, then gives the turn back: whoever waits for the gate holds the
turn, and whoever comes back queues behind it. The kernel drops both when a process dies.
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

from stoker.engines.sqlite.beside import END, OPEN, explained, own_folder
from stoker.model.errors import EngineClosed

NOW = fcntl.LOCK_EX | fcntl.LOCK_NB
WAIT = fcntl.LOCK_EX
LINGER = 1.0  # seconds a helper stays for the next one who needs it: starting a thread costs more than most waits


class Door:
    """One lock file, opened for one Gate alone: a flock belongs to the open file, so threads exclude each other too."""

    __slots__ = ("fd", "identity", "path")

    def __init__(self, path: str) -> None:
        self.path = path
        try:
            self.fd = self._open()
        except OSError as error:
            raise explained(error, f"the lock file {path}") from error
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
            own_folder(folder)  # it was deleted by hand
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
        """Is another file, or none, at the path by now? A lock on a file that is gone excludes nobody."""
        try:
            found = os.lstat(self.path)
        except FileNotFoundError:
            return True
        return (found.st_dev, found.st_ino) != self.identity


class Place:
    """A place in line held by a helper thread, for a caller that will not wait for ever."""

    def __init__(self) -> None:
        self.reached = threading.Lock()  # released when the place is reached: the cheapest bell between two threads
        self.reached.acquire()
        self.adrift = False
        self.error: BaseException | None = None


class Gate:
    """A fair lock on a side file. One Gate per connection; it may be entered in one thread and left in another."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = os.fspath(path)
        self._doors: tuple[Door, Door] | None = None
        self._taken = threading.Lock()
        self._guard = threading.Lock()
        self._adrift: Place | None = None
        self._places: queue.SimpleQueue[Place | None] = queue.SimpleQueue()
        self._helped = False
        self._in_line = False
        self._closed = False
        GATES.add(self)

    def try_enter(self) -> bool:
        """Enter if nobody is in and nobody waits. Never blocks: two locks, one stat, a few microseconds."""
        self._check()
        if not self._taken.acquire(blocking=False):
            return False
        if not (entered := self._attempt(NOW)):
            self._taken.release()
        return entered

    def enter(self, timeout: float | None = None) -> bool:
        """Wait in line; False when `timeout` seconds have passed.

        Without a timeout the kernel does the waiting. flock knows no timeout, so with one a helper thread stands in
        line and this thread waits for it: no polling, no signals, and no place lost. A caller that gave up and comes
        back finds its place kept; if nobody comes back, the helper passes through and leaves at once.
        """
        self._check()
        deadline = None if timeout is None else time.monotonic() + timeout
        with self._guard:
            place, self._adrift = self._adrift, None
            if place:
                place.adrift = False
        if place is None:
            if not self._taken.acquire(timeout=-1 if timeout is None else max(0.0, timeout)):
                return False
            if deadline is None:
                return self._attempt(WAIT)
            if self._attempt(NOW):
                return True
            place = Place()
            with self._guard:
                self._places.put(place)
                start, self._helped = not self._helped, True
            if start:
                threading.Thread(target=self._help, name="stoker-gate", daemon=True).start()
        return self._called(place, deadline)

    def leave(self) -> None:
        """Let the next one in."""
        if self._doors and self._taken.locked():
            self._doors[1].unlock()
        self._taken.release()

    def close(self) -> None:
        """Let go of the files, and of the gate if it is held. Closing twice is harmless."""
        with self._guard:
            self._closed = True
            self._places.put(None)
            # A thread asleep in flock would wake up to a number that means another file by then: it closes instead.
            if not self._in_line:
                self._shut()

    def _check(self) -> None:
        if self._closed:
            raise EngineClosed(f"the gate {self.path} is closed")

    def _attempt(self, how: int) -> bool:
        with self._guard:
            self._in_line = True
        try:
            return self._pass(how)
        except BaseException as error:
            self._shut()
            self._taken.release()
            if isinstance(error, OSError):
                raise explained(error, f"the lock file {self.path}") from error
            raise
        finally:
            with self._guard:
                self._in_line = False

    def _pass(self, how: int) -> bool:
        """Turn, then gate, then check that the files are still those that everybody else sees."""
        while not self._closed:
            if self._doors is None:
                self._doors = Door(f"{self.path}-turn"), Door(self.path)
            turn, gate = self._doors
            if not turn.lock(how):
                return False
            try:
                if not gate.lock(how):
                    return False
            finally:
                turn.unlock()
            if not self._closed and not gate.moved() and (how == NOW or not turn.moved()):
                return True
            self._shut()
        self._check()
        return False

    def _help(self) -> None:
        while True:
            try:
                place = self._places.get(timeout=LINGER)
            except queue.Empty:
                place = None
            if place:
                self._stand_in_line(place)
                continue
            with self._guard:
                if self._places.empty():
                    self._helped = False
                    return

    def _stand_in_line(self, place: Place) -> None:
        try:
            self._attempt(WAIT)
        except BaseException as error:  # noqa: BLE001 - carried to the caller, whose thread is another
            place.error = error
        with self._guard:
            if not place.adrift:
                place.reached.release()
                return
            self._adrift = None
        if place.error is None:
            self.leave()

    def _called(self, place: Place, deadline: float | None) -> bool:
        patience = -1 if deadline is None else max(0.0, deadline - time.monotonic())
        if not place.reached.acquire(timeout=patience):
            with self._guard:
                if not place.reached.acquire(blocking=False):
                    place.adrift, self._adrift = True, place
                    return False
        if place.error is not None:
            raise place.error
        return True

    def _shut(self) -> None:
        doors, self._doors = self._doors, None
        for door in doors or ():
            with contextlib.suppress(OSError):
                os.close(door.fd)

    def _forked(self) -> None:
        # The child shares the open files and with them the parent's locks: closing leaves those alone, unlocking not.
        self._shut()
        self._taken, self._guard = threading.Lock(), threading.Lock()
        self._adrift, self._in_line, self._helped = None, False, False
        self._places = queue.SimpleQueue()


GATES: weakref.WeakSet[Gate] = weakref.WeakSet()


def _in_child() -> None:
    for gate in list(GATES):
        gate._forked()  # noqa: SLF001 - the module looks after its own


os.register_at_fork(after_in_child=_in_child)
