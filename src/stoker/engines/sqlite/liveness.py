"""Liveness files: detect a dead worker on this host at once, before its lease expires.

Each worker holds a flock on a file of its own for as long as its process lives; the kernel drops it with the process.
The engine holds it from a worker's first renewal until the worker releases its lease, and the reaper calls `dead`
before each reap.

Rule: only a file that exists and is unlocked proves a death. A missing file proves nothing (another host, an older
version, a released lease), and a frozen process keeps its lock: for these the lease decides. A file gets its worker's
name only after it is locked, so that a worker that starts never looks dead. A dead worker whose guardian lives
(`control.guardian_of`) is left to the guardian, which knows how the process died and names it.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import uuid
import weakref
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from stoker.engines.sqlite.side_folder import ALIVE, OPEN, inner_folder, is_at
from stoker.model.control import guardian_of
from stoker.model.errors import EngineRefused

PLAIN = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:-]{0,127}")
NEW = ".new-"


class LivenessFiles:
    """Holds the files of one engine's workers and checks those of all others."""

    def __init__(self, directory: str | os.PathLike[str]) -> None:
        self.directory = Path(directory)
        self._held: dict[str, int] = {}
        OPEN_LIVENESS.add(self)

    def hold(self, worker: str) -> None:
        """Lock this worker's file until `drop`, `close` or the end of the process. Holding twice is harmless."""
        if worker in self._held:
            return
        self._prepare()
        path = self._path(worker)
        if locked(path):
            raise EngineRefused(f"worker {worker!r} is alive in another process; a worker's id is never used twice")
        while True:
            unlocked = self.directory / f"{NEW}{uuid.uuid4().hex}"
            fd = os.open(unlocked, os.O_RDWR | os.O_CREAT | os.O_EXCL | OPEN, 0o600)
            try:
                fcntl.flock(fd, fcntl.LOCK_EX)
                unlocked.rename(path)
            except FileNotFoundError:  # another engine removed it as a leftover before it was locked
                os.close(fd)
                continue
            except BaseException:
                os.close(fd)
                unlocked.unlink(missing_ok=True)
                raise
            self._held[worker] = fd
            return

    def show(self, worker: str, *, alive: bool) -> None:
        """Hold or drop a worker's file. Without a file its lease decides, only later."""
        if not alive:
            self.drop(worker)
            return
        # Refused: another engine of this process holds it already.
        with suppress(EngineRefused, OSError):
            self.hold(worker)

    def drop(self, worker: str) -> None:
        """Remove the file, then unlock it, in this order.

        An unlocked file would prove a death.
        """
        fd = self._held.pop(worker, None)
        if fd is None:
            return
        if is_at(fd, self._path(worker)):
            self._path(worker).unlink(missing_ok=True)
        os.close(fd)

    def dead(self, workers: Iterable[str]) -> list[str]:
        """Return the workers whose process died on this host and whose guardian does not live, in the given order."""
        return [worker for worker in workers if self._is_dead(worker) and not self._is_guarded(worker)]

    def _is_dead(self, worker: str) -> bool:
        return worker not in self._held and locked(self._path(worker)) is False

    def _is_guarded(self, worker: str) -> bool:
        guardian = guardian_of(worker)
        return guardian is not None and (guardian in self._held or locked(self._path(guardian)) is True)

    def forget(self, worker: str) -> None:
        """Remove the file of a dead worker once it has no stored claim. A living worker keeps its file."""
        if worker in self._held:
            return
        remove_unlocked(self._path(worker))

    def close(self) -> None:
        """Drop every worker held. Closing twice is harmless."""
        for worker in list(self._held):
            self.drop(worker)

    def _path(self, worker: str) -> Path:
        return self.directory / liveness_file(worker)

    def _prepare(self) -> None:
        inner_folder(self.directory)
        for leftover in self.directory.glob(f"{NEW}*"):
            remove_unlocked(leftover)

    def _forked(self) -> None:
        # A forked child keeps the parent's open files, and with them its locks: a dead parent would look alive.
        for fd in self._held.values():
            os.close(fd)
        self._held.clear()


def liveness_file(worker: str) -> str:
    """Return the file name for a worker, whatever characters the worker's own name has."""
    name = worker if PLAIN.fullmatch(worker) else "~" + hashlib.sha256(worker.encode()).hexdigest()
    return f"{name}{ALIVE}"


def locked(path: Path) -> bool | None:
    """Return whether a process holds the file.

    None when it does not exist or cannot be checked.
    """
    try:
        fd = os.open(path, os.O_RDONLY | OPEN)
    except OSError:
        return None
    try:
        # A shared lock: several reapers may check at the same moment without taking one another for the owner.
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return None
    else:
        # The worker may have dropped the file between our open and our lock: then it is gone, or replaced.
        return False if is_at(fd, path) else None
    finally:
        os.close(fd)


def remove_unlocked(path: Path) -> None:
    """Remove a file that no process holds.

    A file that was replaced or locked meanwhile stays.
    """
    try:
        fd = os.open(path, os.O_RDONLY | OPEN)
    except OSError:
        return
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if is_at(fd, path):
            path.unlink(missing_ok=True)
    except OSError:
        return
    finally:
        os.close(fd)


OPEN_LIVENESS: weakref.WeakSet[LivenessFiles] = weakref.WeakSet()


def _in_child() -> None:
    for files in list(OPEN_LIVENESS):
        files._forked()  # noqa: SLF001 - same module


os.register_at_fork(after_in_child=_in_child)
