"""The folder beside the database: what is in it, who uses it, and who removes it.

`jobs.db-stoker/` holds everything Stoker needs beside SQLite's own files: the two files of the write lock, the signs of
life in `live/` and the listeners' sockets in `wake/`. Every open engine holds a shared lock on the file `users` in it;
the kernel drops the lock with the process. An engine that closes, or a process that exits, and finds itself the only
user removes the folder. What a killed process left behind goes when the next user closes.

Rule: only the exclusive lock on `users` allows removing, and a user that got its lock on a file which is no longer at
its path starts again. So nothing is removed under a user. The sign of a dead worker that still has a lease in the store
stays, and the folder with it: it lets the next worker take over its jobs at once.
"""

from __future__ import annotations

import atexit
import errno
import fcntl
import os
import stat
import time
from collections.abc import Callable, Collection
from contextlib import suppress
from pathlib import Path

from stoker.model.errors import EngineBusy, EngineReadOnly, EngineRefused, EngineUnavailable

END = "-stoker"
USERS, WRITE_LOCK, LIVE, WAKE = "users", "write.lock", "live", "wake"
ALIVE = ".alive"
"""How the name of a sign of life ends."""

OPEN = os.O_CLOEXEC | os.O_NOFOLLOW
TRY_AGAIN = 0.001


class Beside:
    """One engine's use of the folder beside its database."""

    def __init__(self, database: str) -> None:
        self.path = Path(f"{database}{END}")
        self.write_lock = self.path / WRITE_LOCK
        self.live = self.path / LIVE
        self.wake = self.path / WAKE
        self._fd: int | None = None

    def open(self, patience: float) -> None:
        """Make the folder if need be and use it. Raises `EngineBusy` when another process is removing it for long."""
        deadline = time.monotonic() + patience
        while self._fd is None:
            try:
                own_folder(self.path)
                self._fd = locked_file(self.path / USERS, fcntl.LOCK_SH)
            except FileNotFoundError as error:  # removed by the last user in this moment
                if not self.path.parent.is_dir():
                    raise explained(error, f"the folder {self.path}") from error
            except OSError as error:
                raise explained(error, f"the folder {self.path}") from error
            if self._fd is None:
                if time.monotonic() > deadline:
                    raise EngineBusy(f"another process has been removing {self.path} for more than {patience:g} s")
                time.sleep(TRY_AGAIN)
        IN_USE.add(self)

    def close(self, signs: Collection[str] | None = None) -> None:
        """Stop using the folder, and remove it when no other engine uses it. Closing twice is harmless.

        Of the signs of dead workers only those named in `signs` stay; without `signs` all of them.
        """
        fd, self._fd = self._fd, None
        IN_USE.discard(self)
        if fd is None:
            return
        with suppress(OSError):  # whatever cannot be removed now is left to the next user
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if same(fd, self.path / USERS):
                    self._remove(signs)
            finally:
                os.close(fd)

    def _remove(self, signs: Collection[str] | None) -> None:
        emptied(self.live, keep=lambda name: name.endswith(ALIVE) and (signs is None or name in signs))
        emptied(self.wake)
        for file in (self.write_lock, Path(f"{self.write_lock}-turn")):
            file.unlink(missing_ok=True)
        if not self.live.exists():
            # The lock file last: whoever opens it from here on finds that it has gone, and makes a new folder.
            (self.path / USERS).unlink(missing_ok=True)
            self.path.rmdir()

    def forked(self) -> None:
        """In a child: close the file, and leave the lock, which is the parent's, alone."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None
        IN_USE.discard(self)


def locked_file(path: Path, how: int) -> int | None:
    """Open and lock a file, made if need be; None when it cannot be locked now or is no longer the one at its path."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT | OPEN, 0o600)
    try:
        fcntl.flock(fd, how | fcntl.LOCK_NB)
        if same(fd, path):
            return fd
    except BlockingIOError:
        pass
    except BaseException:
        os.close(fd)
        raise
    os.close(fd)
    return None


def same(fd: int, path: Path) -> bool:
    """Is the open file the one at the path?"""
    try:
        return os.path.samestat(os.fstat(fd), path.lstat())
    except FileNotFoundError:
        return False


def emptied(folder: Path, keep: Callable[[str], bool] = lambda _: False) -> None:
    """Remove a folder and the files in it, unless some of them are to be kept."""
    with suppress(FileNotFoundError):
        names = os.listdir(folder)  # noqa: PTH208 - names are all that is needed
        for name in names:
            if not keep(name):
                (folder / name).unlink(missing_ok=True)
        if not any(map(keep, names)):
            folder.rmdir()


def own_folder(directory: Path) -> None:
    """Make a folder that only this user can write to, or make sure that it is one."""
    with suppress(FileExistsError):
        directory.mkdir(mode=0o700)
    found = directory.lstat()
    if stat.S_ISLNK(found.st_mode):
        raise EngineRefused(f"{directory} is a symbolic link; remove it, Stoker makes its own folder there")
    if not stat.S_ISDIR(found.st_mode) or found.st_mode & stat.S_IWOTH or found.st_uid not in {0, os.getuid()}:
        raise EngineRefused(f"{directory} is not a folder that only this user can write to; remove it or its rights")


def inner_folder(directory: Path) -> None:
    """Make a folder inside the one beside the database; also that one, if it was deleted by hand."""
    try:
        own_folder(directory)
    except FileNotFoundError:
        own_folder(directory.parent)
        own_folder(directory)


def explained(error: OSError, what: str) -> Exception:
    """The error of something beside the database in Stoker's words."""
    match error.errno:
        case errno.ELOOP:
            return EngineRefused(f"{what} is a symbolic link; remove it, Stoker makes its own")
        case errno.EACCES | errno.EPERM | errno.EROFS:
            return EngineReadOnly(f"{what} cannot be opened for writing: {error.strerror}")
        case _:
            return EngineUnavailable(f"{what} cannot be used: {error.strerror}")


IN_USE: set[Beside] = set()
"""Strong references: an engine that was dropped without being closed uses its folder until the process exits."""


def _in_child() -> None:
    for one in list(IN_USE):
        one.forked()


def _at_exit() -> None:
    """A program that never closes its engines leaves no folder behind either."""
    for one in list(IN_USE):
        one.close()


os.register_at_fork(after_in_child=_in_child)
atexit.register(_at_exit)
