"""The side folder: Stoker's own files beside the database.

`jobs.db-stoker/` holds everything Stoker needs beside SQLite's own files: the two files of the write lock, the liveness
files in `live/` and the listeners' sockets in `wake/`. Every open engine holds a shared lock on the file `users` in it;
the kernel drops the lock with the process. An engine that closes, or a process that exits, and finds itself the only
user removes the folder. What a killed process left behind goes when the next user closes.

Rule: only the exclusive lock on `users` allows removing, and a user that got its lock on a file which is no longer at
its path starts again. So no file is removed while an engine uses it. The liveness file of a dead worker that still has
a lease in the store stays, and the folder with it: it lets the next worker take over its jobs at once.
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
"""How the name of a liveness file ends."""

OPEN = os.O_CLOEXEC | os.O_NOFOLLOW
TRY_AGAIN = 0.001


class SideFolder:
    """One engine's use of the side folder."""

    def __init__(self, database: str) -> None:
        self.path = Path(f"{database}{END}")
        self.write_lock = self.path / WRITE_LOCK
        self.live = self.path / LIVE
        self.wake = self.path / WAKE
        self._fd: int | None = None

    def open(self, patience: float) -> None:
        """Make the folder if need be and use it.

        `EngineBusy` if another process takes too long to remove it.
        """
        deadline = time.monotonic() + patience
        while self._fd is None:
            try:
                own_folder(self.path)
                self._fd = open_locked(self.path / USERS, fcntl.LOCK_SH)
            except FileNotFoundError as error:  # the last user has just removed it
                if not self.path.parent.is_dir():
                    raise engine_error(error, f"the folder {self.path}") from error
            except OSError as error:
                raise engine_error(error, f"the folder {self.path}") from error
            if self._fd is None:
                if time.monotonic() > deadline:
                    raise EngineBusy(f"another process has been removing {self.path} for more than {patience:g} s")
                time.sleep(TRY_AGAIN)
        IN_USE.add(self)

    def close(self, kept: Collection[str] | None = None) -> None:
        """Stop using the folder, and remove it when no other engine uses it. Closing twice is harmless.

        Of the liveness files of dead workers only those named in `kept` stay; without `kept` all of them.
        """
        fd, self._fd = self._fd, None
        IN_USE.discard(self)
        if fd is None:
            return
        with suppress(OSError):  # the next user removes what cannot be removed now
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if is_at(fd, self.path / USERS):
                    self._remove(kept)
            finally:
                os.close(fd)

    def _remove(self, kept: Collection[str] | None) -> None:
        remove_folder(self.live, keep=lambda name: name.endswith(ALIVE) and (kept is None or name in kept))
        remove_folder(self.wake)
        for file in (self.write_lock, Path(f"{self.write_lock}-turn")):
            file.unlink(missing_ok=True)
        if not self.live.exists():
            # The lock file last: an engine that opens the folder from here on finds it gone and makes a new one.
            (self.path / USERS).unlink(missing_ok=True)
            self.path.rmdir()

    def forked(self) -> None:
        """In a child: close the file, and leave the lock, which is the parent's, alone."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None
        IN_USE.discard(self)


def open_locked(path: Path, how: int) -> int | None:
    """Open and lock a file, made if need be.

    None when it is locked or no longer at its path.
    """
    fd = os.open(path, os.O_RDWR | os.O_CREAT | OPEN, 0o600)
    try:
        fcntl.flock(fd, how | fcntl.LOCK_NB)
        if is_at(fd, path):
            return fd
    except BlockingIOError:
        pass
    except BaseException:
        os.close(fd)
        raise
    os.close(fd)
    return None


def is_at(fd: int, path: Path) -> bool:
    """Return whether the open file is the one at the path."""
    try:
        return os.path.samestat(os.fstat(fd), path.lstat())
    except FileNotFoundError:
        return False


def remove_folder(folder: Path, keep: Callable[[str], bool] = lambda _: False) -> None:
    """Remove the files of a folder except those to keep, and the folder if it is empty then."""
    with suppress(FileNotFoundError):
        names = os.listdir(folder)  # noqa: PTH208 - names are all that is needed
        for name in names:
            if not keep(name):
                (folder / name).unlink(missing_ok=True)
        if not any(map(keep, names)):
            folder.rmdir()


def own_folder(directory: Path) -> None:
    """Make a folder that only this user can write to.

    Refuse an existing one that others can write to.
    """
    with suppress(FileExistsError):
        directory.mkdir(mode=0o700)
    found = directory.lstat()
    if stat.S_ISLNK(found.st_mode):
        raise EngineRefused(f"{directory} is a symbolic link; remove it, Stoker makes its own folder there")
    if not stat.S_ISDIR(found.st_mode) or found.st_mode & stat.S_IWOTH or found.st_uid not in {0, os.getuid()}:
        raise EngineRefused(f"{directory} is not a folder that only this user can write to; remove it or its rights")


def inner_folder(directory: Path) -> None:
    """Make a folder inside the side folder, and that one too if a user deleted it."""
    try:
        own_folder(directory)
    except FileNotFoundError:
        own_folder(directory.parent)
        own_folder(directory)


def engine_error(error: OSError, what: str) -> Exception:
    """Translate an error of a file in the side folder."""
    match error.errno:
        case errno.ELOOP:
            return EngineRefused(f"{what} is a symbolic link; remove it, Stoker makes its own")
        case errno.EACCES | errno.EPERM | errno.EROFS:
            return EngineReadOnly(f"{what} cannot be opened for writing: {error.strerror}")
        case _:
            return EngineUnavailable(f"{what} cannot be used: {error.strerror}")


IN_USE: set[SideFolder] = set()
"""Strong references: an engine that is garbage collected without `close` uses its folder until the process exits."""


def _in_child() -> None:
    for folder in list(IN_USE):
        folder.forked()


def _at_exit() -> None:
    """Close the folders of engines that the program never closed."""
    for folder in list(IN_USE):
        folder.close()


os.register_at_fork(after_in_child=_in_child)
atexit.register(_at_exit)
