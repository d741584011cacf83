"""The sign of life: a worker's death is known at once on this host, without waiting for its lease.

Each worker holds a flock on a file of its own for as long as its process lives; the kernel drops it with the process.
The engine holds it from a worker's first renewal to its farewell, and the reaper asks `dead` before each reap.

Rule: only a file that is there and unlocked proves a death. No file proves nothing (another host, an older version, a
clean farewell), and a frozen process keeps its lock: for these the lease decides. A file appears under its worker's
name only when it is locked, so that no worker looks dead while it is being born. A dead worker whose guardian lives
(`control.guardian_of`) is the guardian's to bury: it knows how the process died, and names it.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import uuid
import weakref
from collections.abc import Iterable
from pathlib import Path

from stoker.engines.sqlite.beside import ALIVE, OPEN, inner_folder, same
from stoker.model.control import guardian_of
from stoker.model.errors import EngineRefused

PLAIN = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:-]{0,127}")
BORN = ".born-"


class SignOfLife:
    """The signs of one engine's workers, and a look at those of all others. Cheap: a file per worker."""

    def __init__(self, directory: str | os.PathLike[str]) -> None:
        self.directory = Path(directory)
        self._held: dict[str, int] = {}
        SIGNS.add(self)

    def hold(self, worker: str) -> None:
        """Show that this worker lives, until `drop`, `close` or the end of the process. Holding twice is harmless."""
        if worker in self._held:
            return
        self._prepare()
        path = self._path(worker)
        if locked(path):
            raise EngineRefused(f"worker {worker!r} is alive in another process; a worker's id is never used twice")
        while True:
            newborn = self.directory / f"{BORN}{uuid.uuid4().hex}"
            fd = os.open(newborn, os.O_RDWR | os.O_CREAT | os.O_EXCL | OPEN, 0o600)
            try:
                fcntl.flock(fd, fcntl.LOCK_EX)
                newborn.rename(path)
            except FileNotFoundError:  # swept as a leftover in the moment before it was locked
                os.close(fd)
                continue
            except BaseException:
                os.close(fd)
                newborn.unlink(missing_ok=True)
                raise
            self._held[worker] = fd
            return

    def drop(self, worker: str) -> None:
        """A clean farewell: the file goes first, so that nobody takes it for a death."""
        fd = self._held.pop(worker, None)
        if fd is None:
            return
        if same(fd, self._path(worker)):
            self._path(worker).unlink(missing_ok=True)
        os.close(fd)

    def dead(self, workers: Iterable[str]) -> list[str]:
        """Those whose process has certainly died on this host and whose guardian does not live, in the order asked."""
        return [worker for worker in workers if self._is_dead(worker) and not self._is_guarded(worker)]

    def _is_dead(self, worker: str) -> bool:
        return worker not in self._held and locked(self._path(worker)) is False

    def _is_guarded(self, worker: str) -> bool:
        guardian = guardian_of(worker)
        return guardian is not None and (guardian in self._held or locked(self._path(guardian)) is True)

    def forget(self, worker: str) -> None:
        """Remove the file of a dead worker once nothing is stored under it any more. A living one keeps its file."""
        if worker in self._held:
            return
        remove_unlocked(self._path(worker))

    def close(self) -> None:
        """Bid farewell for every worker held. Closing twice is harmless."""
        for worker in list(self._held):
            self.drop(worker)

    def _path(self, worker: str) -> Path:
        return self.directory / sign_name(worker)

    def _prepare(self) -> None:
        inner_folder(self.directory)
        for leftover in self.directory.glob(f"{BORN}*"):
            remove_unlocked(leftover)

    def _forked(self) -> None:
        # A child that is not a new program keeps the parent's open files: the parent would seem to live on in it.
        for fd in self._held.values():
            os.close(fd)
        self._held.clear()


def sign_name(worker: str) -> str:
    """The file name of a worker's sign, whatever characters the worker's own name has."""
    name = worker if PLAIN.fullmatch(worker) else "~" + hashlib.sha256(worker.encode()).hexdigest()
    return f"{name}{ALIVE}"


def locked(path: Path) -> bool | None:
    """Does a process hold the file? None when there is none or it cannot be asked."""
    try:
        fd = os.open(path, os.O_RDONLY | OPEN)
    except OSError:
        return None
    try:
        # A shared lock: several reapers may look at the same moment without taking one another for the owner.
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return None
    else:
        # Between opening and locking it may have said farewell: then the file is gone, or another one's by now.
        return False if same(fd, path) else None
    finally:
        os.close(fd)


def remove_unlocked(path: Path) -> None:
    """Remove a file that nobody holds; one that was replaced or locked meanwhile stays."""
    try:
        fd = os.open(path, os.O_RDONLY | OPEN)
    except OSError:
        return
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if same(fd, path):
            path.unlink(missing_ok=True)
    except OSError:
        return
    finally:
        os.close(fd)


SIGNS: weakref.WeakSet[SignOfLife] = weakref.WeakSet()


def _in_child() -> None:
    for sign in list(SIGNS):
        sign._forked()  # noqa: SLF001 - the module looks after its own


os.register_at_fork(after_in_child=_in_child)
