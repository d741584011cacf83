"""The bell: wakes waiters in other processes within a millisecond, and costs nothing while nothing happens.

The engine rings after each commit that made something due, and listens while somebody waits. Every listening process
has a Unix datagram socket in a folder beside the database; the folder is the list of listeners. Commits by
connections that do not ring (a user's own transaction) are noticed by `watch`.

Rule: a wake-up may come too often, never too seldom. A hint that may have been lost becomes "everything".
"""

from __future__ import annotations

import asyncio
import hashlib
import itertools
import os
import secrets
import socket
import tempfile
import threading
import time
import weakref
from collections.abc import Callable, Collection
from contextlib import suppress
from pathlib import Path

from stoker.engines.base import CONTROL
from stoker.engines.sqlite.beside import inner_folder, own_folder
from stoker.engines.sqlite.watch import Watch
from stoker.model.errors import EngineRefused

EVERYTHING = "*"
"""The topic that stands for all: more was said than fits, or something may have been missed."""

ALL, CONTROL_ONLY = "-", "."
"""What stands between process and number in a listener's name tells ringers what it wants to hear."""

OPEN_FILES = Path("/proc/self/fd")
LARGEST = 4096
LONGEST_PATH = 103  # what every system takes as a socket's address; Linux alone would take 107
CLUTTERED = 8  # datagrams at once that mean: the socket may have been full; Linux queues at least 10 by default
FRESH = 50_000_000  # ns: a folder that changed this shortly before it was read may have changed again unnoticed


class Bell:
    """One process's ear and voice. Belongs to one loop; `ring` may be called from any thread."""

    def __init__(self, directory: str | os.PathLike[str], loop: asyncio.AbstractEventLoop) -> None:
        self.directory = Path(directory).absolute()
        self._loop = loop
        self._folder: tuple[str, int] | None = None
        self._ear: socket.socket | None = None
        self._name = ""
        self._voice: socket.socket | None = None
        self._peers: tuple[int, int, tuple[str, ...]] = (-1, 0, ())
        self._ringing = threading.Lock()
        self._watch: Watch | None = None
        BELLS.add(self)

    def listen(self, callback: Callable[[frozenset[str]], None], *, control_only: bool = False) -> None:
        """Call back in the loop with the topics that others rang for; what this Bell rings it does not hear.

        `control_only` spares it rings that are only about queues.
        """
        if self._ear is not None:
            raise EngineRefused("this bell is listened to already")
        ear = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        try:
            ear.setblocking(False)
            ear.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 16 * LARGEST)
            name = f"{os.getpid()}{CONTROL_ONLY if control_only else ALL}{secrets.token_hex(4)}"
            try:
                ear.bind(self._address(name))
            except FileNotFoundError:  # the folder was removed since it was last used
                self._forget_folder()
                ear.bind(self._address(name))
            Path(self._address(name)).chmod(0o600)
        except BaseException:
            ear.close()
            raise
        self._ear, self._name = ear, name
        self._loop.add_reader(ear, self._hear, ear, callback)

    def hear_all(self) -> None:
        """From now on hear of queues as well."""
        if CONTROL_ONLY in self._name:
            name = self._name.replace(CONTROL_ONLY, ALL)
            Path(self._address(self._name)).rename(self._address(name))
            self._name = name

    def ring(self, topics: Collection[str]) -> None:
        """Wake whoever listens on this store in other processes and engines. Never blocks, never raises."""
        if not topics:
            return
        message = "\n".join(topics).encode(errors="replace")
        if len(message) > LARGEST:
            message = EVERYTHING.encode()
        control = CONTROL in topics or EVERYTHING in topics
        with self._ringing:
            try:
                for name in self._listeners():
                    if name != self._name and (control or CONTROL_ONLY not in name):
                        self._send(message, name)
            except (OSError, EngineRefused):
                # The folder was taken away or spoilt: the listeners are woken by `watch` and by their own next look.
                self._forget_folder()

    def watch(
        self,
        path: str | os.PathLike[str],
        callback: Callable[[], None],
        probe: Callable[[], object | None],
    ) -> None:
        """Call back in the loop when the database at `path` was committed to by a connection that did not ring.

        `probe` answers a value that changes with such a commit (`PRAGMA data_version`) or None for "ask again"; it
        must not wait. Without inotify it is asked every 50 ms, with it only after the files were written to.
        """
        if self._watch is not None:
            raise EngineRefused("this bell watches a file already")
        self._watch = Watch(Path(path), self._loop, callback, probe)

    def close(self) -> None:
        """Be silent and deaf, and take the name out of the folder. Closing twice is harmless."""
        if self._watch is not None:
            self._watch.close()
            self._watch = None
        if self._ear is not None:
            self._loop.remove_reader(self._ear)
            with suppress(OSError):
                Path(self._address(self._name)).unlink()
        if self._folder is not None and self._folder == stand_in(self.directory):
            with suppress(OSError):  # others listen there
                Path(self._folder[0]).rmdir()
        self._let_go()

    # --- inside -------------------------------------------------------------------------------------------------

    def _hear(self, ear: socket.socket, callback: Callable[[frozenset[str]], None]) -> None:
        heard: set[str] = set()
        for count in itertools.count(1):
            try:
                message = ear.recv(LARGEST)
            except OSError:
                break
            heard.update(message.decode(errors="replace").split("\n"))
            if count >= CLUTTERED:
                # Somebody's message may have found no room, and nobody remembers what it said.
                heard.add(EVERYTHING)
            if count >= 8 * CLUTTERED:
                break  # the loop has others to serve; it will come back at once
        if heard:
            callback(frozenset(heard))

    def _listeners(self) -> tuple[str, ...]:
        """Names in the folder, read again when it changed."""
        folder = self._address("")
        changed = os.stat(folder).st_mtime_ns  # noqa: PTH116 - on the way of every commit
        known, read_at, names = self._peers
        if changed != known or read_at - changed < FRESH:
            now = time.time_ns()
            names = tuple(os.listdir(folder))  # noqa: PTH208 - as above
            self._peers = (changed, now, names)
        return names

    def _send(self, message: bytes, name: str) -> None:
        voice = self._voice or self._new_voice()
        address = self._address(name)
        try:
            try:
                voice.sendto(message, address)
            except BlockingIOError:
                # Either this listener's buffer is full, and then a wake-up is pending, or our own is, by messages
                # to listeners that are frozen: a new socket has an empty one.
                self._new_voice().sendto(message, address)
        except ConnectionRefusedError:
            with suppress(OSError):
                Path(address).unlink()  # the name of a process that died
        except OSError:
            pass

    def _new_voice(self) -> socket.socket:
        voice = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        voice.setblocking(False)
        old, self._voice = self._voice, voice
        if old is not None:
            old.close()
        return voice

    def _address(self, name: str) -> str:
        """Where a name is bound, short enough for the kernel however long the folder's own path is."""
        if self._folder is None:
            self._folder = reachable(self.directory)
        return f"{self._folder[0]}/{name}"

    def _let_go(self) -> None:
        for open_socket in (self._ear, self._voice):
            if open_socket is not None:
                open_socket.close()
        self._ear = self._voice = None
        self._name = ""
        self._forget_folder()

    def _forget_folder(self) -> None:
        folder, self._folder, self._peers = self._folder, None, (-1, 0, ())
        if folder is not None and folder[1] >= 0:
            os.close(folder[1])

    def _forked(self) -> None:
        # Our name must go silent when this process dies, also if a child that is not a new program lives on.
        self._ringing = threading.Lock()
        self._let_go()
        if self._watch is not None:
            self._watch.forked()
            self._watch = None


def reachable(directory: Path) -> tuple[str, int]:
    """A short way to the folder, made if need be, and the open folder it leads through (-1 for none).

    A socket's address holds about a hundred bytes. For a longer path Linux offers the way through an open folder;
    elsewhere a folder among the temporary ones takes its place, named after the real one.
    """
    inner_folder(directory)
    room = LONGEST_PATH - len("/4194304-01234567")
    if len(os.fsencode(directory)) <= room:
        return str(directory), -1
    if OPEN_FILES.is_dir():
        fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW)
        return f"{OPEN_FILES}/{fd}", fd
    short, none = stand_in(directory)
    own_folder(Path(short))
    return short, none


def stand_in(directory: Path) -> tuple[str, int]:
    """The folder among the temporary ones that takes the place of one whose path is too long."""
    key = hashlib.sha256(os.fsencode(directory)).hexdigest()[:16]
    return str(Path(tempfile.gettempdir()) / f"stoker-{os.getuid()}-{key}"), -1


BELLS: weakref.WeakSet[Bell] = weakref.WeakSet()


def _in_child() -> None:
    for bell in list(BELLS):
        bell._forked()  # noqa: SLF001 - the module looks after its own


os.register_at_fork(after_in_child=_in_child)
