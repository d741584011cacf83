"""Wake-ups between processes: a socket for Stoker's commits, a file watch for all others.

`WakeSocket`: the engine sends a datagram after each commit that made a job due, and listens while a caller waits. Every
listening engine has a Unix datagram socket in the side folder; the folder is the list of listeners. A wake-up takes
less than a millisecond, and an idle engine uses no CPU.

`FileWatch` detects commits of connections that send no datagram: a user's own transaction, another program, a shell.
On Linux inotify reports writes to the database's files; elsewhere, or when the kernel has no watch left, the probe is
called every 50 ms. A write is not yet a commit: SQLite writes the log, syncs it, and only then makes the commit
visible, without touching a file again. So a write starts a series of checks: one a moment later, then ever fewer for a
quarter of a second after the last write. A check calls back when the probe's value has changed.

Rule: a wake-up may come too often, never too seldom. A topic that may have been lost becomes `EVERYTHING`.
"""

from __future__ import annotations

import asyncio
import ctypes
import hashlib
import itertools
import os
import secrets
import socket
import struct
import sys
import threading
import time
import weakref
from collections.abc import Callable, Collection
from contextlib import suppress
from pathlib import Path

from stoker.engines.base import CONTROL
from stoker.engines.sqlite.side_folder import inner_folder, own_folder
from stoker.model.errors import EngineRefused

EVERYTHING = "*"
"""The topic for all topics: sent when there are too many, or when a datagram may have been lost."""

ALL, CONTROL_ONLY = "-", "."
"""The separator of process id and number in a socket's name: which topics its listener wants."""

OPEN_FILES = Path("/proc/self/fd")
LARGEST = 4096
LONGEST_PATH = 103  # bytes of a socket's address that every system accepts; Linux alone accepts 107
NEARLY_FULL = 8  # datagrams at once after which the socket may have been full; Linux queues at least 10 by default
FRESH = 50_000_000  # ns: a folder that changed this shortly before it was read may have changed again within one mtime

POLL = 0.05
FIRST_DELAY = 0.004
"""Seconds from a write to the first check, during which inotify is not read.

Usually the committer also sends a datagram, and a check at once would compete with its fsync and with the woken
worker's claim. It also bounds the work that a busy database causes in the loop.
"""
LINGER = 0.25
LONGEST_PAUSE = 0.25
"""Seconds between two checks, at most."""

IN_MODIFY, IN_MOVED_TO, IN_CREATE, IN_DELETE, IN_Q_OVERFLOW = 0x2, 0x80, 0x100, 0x200, 0x4000
HEAD = struct.Struct("iIII")


class WakeSocket:
    """Sends and receives wake-ups for one engine. Belongs to one loop.

    Any thread may call `notify`.
    """

    def __init__(self, directory: str | os.PathLike[str], loop: asyncio.AbstractEventLoop) -> None:
        self.directory = Path(directory).absolute()
        self._loop = loop
        self._folder: tuple[str, int] | None = None
        self._receiver: socket.socket | None = None
        self._name = ""
        self._sender: socket.socket | None = None
        self._peers: tuple[int, int, tuple[str, ...]] = (-1, 0, ())
        self._sending = threading.Lock()
        self._watch: FileWatch | None = None
        SOCKETS.add(self)

    def listen(self, callback: Callable[[frozenset[str]], None], *, control_only: bool = False) -> None:
        """Call back in the loop with the topics that other sockets notify of; its own are not received.

        `control_only`: senders skip this socket unless `CONTROL` is among the topics.
        """
        if self._receiver is not None:
            raise EngineRefused("this wake socket has a listener already")
        receiver = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        try:
            receiver.setblocking(False)
            receiver.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 16 * LARGEST)
            name = f"{os.getpid()}{CONTROL_ONLY if control_only else ALL}{secrets.token_hex(4)}"
            try:
                receiver.bind(self._address(name))
            except FileNotFoundError:  # another process removed the folder since it was last used
                self._forget_folder()
                receiver.bind(self._address(name))
            Path(self._address(name)).chmod(0o600)
        except BaseException:
            receiver.close()
            raise
        self._receiver, self._name = receiver, name
        self._loop.add_reader(receiver, self._receive, receiver, callback)

    def listen_to_all(self) -> None:
        """Receive notifications about queues as well from now on."""
        if CONTROL_ONLY in self._name:
            name = self._name.replace(CONTROL_ONLY, ALL)
            Path(self._address(self._name)).rename(self._address(name))
            self._name = name

    def notify(self, topics: Collection[str]) -> None:
        """Wake the listeners of this store in other processes and engines. Never blocks, never raises."""
        if not topics:
            return
        message = "\n".join(topics).encode(errors="replace")
        if len(message) > LARGEST:
            message = EVERYTHING.encode()
        control = CONTROL in topics or EVERYTHING in topics
        with self._sending:
            try:
                for name in self._listeners():
                    if name != self._name and (control or CONTROL_ONLY not in name):
                        self._send(message, name)
            except (OSError, EngineRefused):
                # The folder was removed or its rights changed: listeners find the jobs by their file watch and polls.
                self._forget_folder()

    def watch(
        self,
        path: str | os.PathLike[str],
        callback: Callable[[], None],
        probe: Callable[[], object | None],
    ) -> None:
        """Call back in the loop when a connection that sends no datagram commits to the database at `path`.

        `probe` returns a value that changes with such a commit (`PRAGMA data_version`), or None for "call again"; it
        must not block. Without inotify it is called every 50 ms, with it only after a write to the files.
        """
        if self._watch is not None:
            raise EngineRefused("this wake socket watches a file already")
        self._watch = FileWatch(Path(path), self._loop, callback, probe)

    def close(self) -> None:
        """Close the sockets and remove the name from the folder. Closing twice is harmless."""
        if self._watch is not None:
            self._watch.close()
            self._watch = None
        if self._receiver is not None:
            self._loop.remove_reader(self._receiver)
            with suppress(OSError):
                Path(self._address(self._name)).unlink()
        if self._folder is not None and self._folder == substitute(self.directory):
            with suppress(OSError):  # other listeners use it
                Path(self._folder[0]).rmdir()
        self._close_sockets()

    # --- inside -------------------------------------------------------------------------------------------------

    def _receive(self, receiver: socket.socket, callback: Callable[[frozenset[str]], None]) -> None:
        received: set[str] = set()
        for count in itertools.count(1):
            try:
                message = receiver.recv(LARGEST)
            except OSError:
                break
            received.update(message.decode(errors="replace").split("\n"))
            if count >= NEARLY_FULL:
                # A sender may have found the buffer full, and its topics are lost.
                received.add(EVERYTHING)
            if count >= 8 * NEARLY_FULL:
                break  # let the loop run its other callbacks; it calls this one again at once
        if received:
            callback(frozenset(received))

    def _listeners(self) -> tuple[str, ...]:
        """Return the names in the folder, read again when it changed."""
        folder = self._address("")
        changed = os.stat(folder).st_mtime_ns  # noqa: PTH116 - on the way of every commit
        known, read_at, names = self._peers
        if changed != known or read_at - changed < FRESH:
            now = time.time_ns()
            names = tuple(os.listdir(folder))  # noqa: PTH208 - as above
            self._peers = (changed, now, names)
        return names

    def _send(self, message: bytes, name: str) -> None:
        sender = self._sender or self._new_sender()
        address = self._address(name)
        try:
            try:
                sender.sendto(message, address)
            except BlockingIOError:
                # Either the listener's buffer is full, and then a wake-up is pending, or our own is full of messages
                # to frozen listeners: a new socket has an empty one.
                self._new_sender().sendto(message, address)
        except ConnectionRefusedError:
            with suppress(OSError):
                Path(address).unlink()  # the name of a process that died
        except OSError:
            pass

    def _new_sender(self) -> socket.socket:
        sender = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        sender.setblocking(False)
        old, self._sender = self._sender, sender
        if old is not None:
            old.close()
        return sender

    def _address(self, name: str) -> str:
        """Return a socket's address, short enough for the kernel however long the folder's own path is."""
        if self._folder is None:
            self._folder = reachable(self.directory)
        return f"{self._folder[0]}/{name}"

    def _close_sockets(self) -> None:
        for open_socket in (self._receiver, self._sender):
            if open_socket is not None:
                open_socket.close()
        self._receiver = self._sender = None
        self._name = ""
        self._forget_folder()

    def _forget_folder(self) -> None:
        folder, self._folder, self._peers = self._folder, None, (-1, 0, ())
        if folder is not None and folder[1] >= 0:
            os.close(folder[1])

    def _forked(self) -> None:
        # The socket must refuse datagrams when this process dies, also while a forked child lives on.
        self._sending = threading.Lock()
        self._close_sockets()
        if self._watch is not None:
            self._watch.forked()
            self._watch = None


def reachable(directory: Path) -> tuple[str, int]:
    """Return a short path to the folder and the open folder it leads through (-1 for none).

    A socket's address holds about a hundred bytes. For a longer path Linux offers the path of an open folder in
    `/proc`; elsewhere a folder in the temporary folder replaces it, named after a hash of the real one.
    """
    inner_folder(directory)
    room = LONGEST_PATH - len("/4194304-01234567")
    if len(os.fsencode(directory)) <= room:
        return str(directory), -1
    if OPEN_FILES.is_dir():
        fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW)
        return f"{OPEN_FILES}/{fd}", fd
    short, none = substitute(directory)
    own_folder(Path(short))
    return short, none


def substitute(directory: Path) -> tuple[str, int]:
    """Return the folder in the temporary folder that replaces one whose path is too long."""
    import tempfile  # with what it imports half a MiB, which few paths need

    key = hashlib.sha256(os.fsencode(directory)).hexdigest()[:16]
    return str(Path(tempfile.gettempdir()) / f"stoker-{os.getuid()}-{key}"), -1


# --- commits of connections that send no wake-up ----------------------------------------------------------------


class FileWatch:
    """Calls back in the loop when the probe's value has changed."""

    def __init__(
        self,
        path: Path,
        loop: asyncio.AbstractEventLoop,
        callback: Callable[[], None],
        probe: Callable[[], object | None],
    ) -> None:
        self._loop = loop
        self._callback = callback
        self._probe = probe
        self._seen = probe()
        self._timer: asyncio.TimerHandle | None = None
        self._delay: asyncio.TimerHandle | None = None
        self._pause = POLL
        self._until = 0.0
        self._kernel = Inotify.on(path.absolute())
        if self._kernel:
            loop.add_reader(self._kernel.fd, self._written)
        else:
            self._until = float("inf")
            self._timer = loop.call_later(POLL, self._check)

    def close(self) -> None:
        for timer in (self._timer, self._delay):
            if timer is not None:
                timer.cancel()
        if self._kernel:
            self._loop.remove_reader(self._kernel.fd)
        self.forked()

    def forked(self) -> None:
        """Close inotify only: the loop of a forked child is still the parent's."""
        if self._kernel:
            os.close(self._kernel.fd)
            self._kernel = None

    def _written(self) -> None:
        assert self._kernel
        self._loop.remove_reader(self._kernel.fd)
        self._delay = self._loop.call_later(FIRST_DELAY, self._check_soon)

    def _check_soon(self) -> None:
        if not self._kernel:
            return
        self._loop.add_reader(self._kernel.fd, self._written)
        if self._kernel.touched():
            self._pause = FIRST_DELAY
            self._until = self._loop.time() + LINGER
            if self._timer is not None:  # the next check of an earlier series
                self._timer.cancel()
            self._check()

    def _check(self) -> None:
        # The next check is scheduled first: a probe that fails once must not end the series.
        self._timer = None
        if self._loop.time() < self._until:
            self._timer = self._loop.call_later(self._pause, self._check)
            self._pause = min(LONGEST_PAUSE, self._pause * 8) if self._kernel else POLL
        found = self._probe()
        if found is not None and found != self._seen:
            self._seen = found
            self._callback()


class Inotify:
    """Reports writes to a database's files.

    The log comes and goes, so its folder is watched as well.
    """

    def __init__(self, path: Path, library: ctypes.CDLL) -> None:
        self._library = library
        self._files = (path, path.with_name(f"{path.name}-wal"))
        self._names = {os.fsencode(path.name) + end for end in (b"", b"-wal", b"-journal")}
        self.fd = library.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        if self.fd < 0:
            raise OSError(ctypes.get_errno(), "inotify_init1")
        self._folder = self._add(path.parent, IN_CREATE | IN_DELETE | IN_MOVED_TO)
        if self._folder < 0:
            os.close(self.fd)
            raise OSError(ctypes.get_errno(), "inotify_add_watch")
        self._add_files()

    @classmethod
    def on(cls, path: Path) -> Inotify | None:
        """Return a watch on the path.

        None where there is no inotify or no watch left.
        """
        if sys.platform != "linux":
            return None
        try:
            return cls(path, ctypes.CDLL(None, use_errno=True))
        except (OSError, AttributeError):
            return None

    def touched(self) -> bool:
        """Read the kernel's messages; return whether one is about our files."""
        try:
            data = os.read(self.fd, 65536)
        except BlockingIOError:
            return False
        ours = moved = False
        at = 0
        while at < len(data):
            watch, mask, _, length = HEAD.unpack_from(data, at)
            at += HEAD.size + length
            if mask & IN_Q_OVERFLOW or (watch == self._folder and data[at - length : at].rstrip(b"\0") in self._names):
                ours = moved = True
            elif watch != self._folder:
                ours = True
        if moved:
            self._add_files()
        return ours

    def _add_files(self) -> None:
        for file in self._files:
            self._add(file, IN_MODIFY)  # -1 for a file that does not exist yet: the folder's watch reports it

    def _add(self, path: Path, mask: int) -> int:
        return int(self._library.inotify_add_watch(self.fd, os.fsencode(path), mask))


SOCKETS: weakref.WeakSet[WakeSocket] = weakref.WeakSet()


def _in_child() -> None:
    for wake_socket in list(SOCKETS):
        wake_socket._forked()  # noqa: SLF001 - same module


os.register_at_fork(after_in_child=_in_child)
