"""Notices commits of connections that do not ring: a user's own transaction, another program, a shell.

Used by `wake.Bell.watch` alone. On Linux the kernel tells (inotify) when the database's files are written to, so that
nothing runs while nothing happens; elsewhere, or when the kernel has no watch left, the probe is asked every 50 ms.

Rule: a write is not yet a commit. SQLite writes the log, waits for the disk, and only then makes the commit visible,
without touching a file again. So a write only starts a series of looks, a moment later and then ever more
seldom for a quarter of a second after the last write, and what counts is that the probe's answer changed.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import struct
import sys
from collections.abc import Callable
from pathlib import Path

PERIOD = 0.05
CALM = 0.004
"""Seconds between a write and the first look, for which the kernel is not listened to. Most commits ring: neither who
commits, and needs the machine to reach the disk, nor who heard of it and claims is to be held up by us; and a busy
database must not keep the loop busy.
"""
LINGER = 0.25
LAST_PAUSE = 0.25
"""Between looks, at most."""

IN_MODIFY, IN_MOVED_TO, IN_CREATE, IN_DELETE, IN_Q_OVERFLOW = 0x2, 0x80, 0x100, 0x200, 0x4000
HEAD = struct.Struct("iIII")


class Watch:
    """Calls back in the loop when the probe's answer has changed."""

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
        self._rest: asyncio.TimerHandle | None = None
        self._pause = PERIOD
        self._until = 0.0
        self._kernel = Inotify.on(path.absolute())
        if self._kernel:
            loop.add_reader(self._kernel.fd, self._stirred)
        else:
            self._until = float("inf")
            self._timer = loop.call_later(PERIOD, self._look)

    def close(self) -> None:
        for timer in (self._timer, self._rest):
            if timer is not None:
                timer.cancel()
        if self._kernel:
            self._loop.remove_reader(self._kernel.fd)
        self.forked()

    def forked(self) -> None:
        """Let go of the kernel's end only: the loop of a forked child is still the parent's."""
        if self._kernel:
            os.close(self._kernel.fd)
            self._kernel = None

    def _stirred(self) -> None:
        assert self._kernel
        self._loop.remove_reader(self._kernel.fd)
        self._rest = self._loop.call_later(CALM, self._look_closer)

    def _look_closer(self) -> None:
        if not self._kernel:
            return
        self._loop.add_reader(self._kernel.fd, self._stirred)
        if self._kernel.touched():
            self._pause = CALM
            self._until = self._loop.time() + LINGER
            if self._timer is not None:  # the next look of an earlier series
                self._timer.cancel()
            self._look()

    def _look(self) -> None:
        # The next look is arranged first: a probe that fails once must not be the last one.
        self._timer = None
        if self._loop.time() < self._until:
            self._timer = self._loop.call_later(self._pause, self._look)
            self._pause = min(LAST_PAUSE, self._pause * 8) if self._kernel else PERIOD
        found = self._probe()
        if found is not None and found != self._seen:
            self._seen = found
            self._callback()


class Inotify:
    """The kernel's word on a database's files. The log comes and goes, so its folder is watched for that as well."""

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
        """None where there is no inotify or no watch left."""
        if sys.platform != "linux":
            return None
        try:
            return cls(path, ctypes.CDLL(None, use_errno=True))
        except (OSError, AttributeError):
            return None

    def touched(self) -> bool:
        """Drain the kernel's messages: did one concern our files?"""
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
            self._add(file, IN_MODIFY)  # -1 for a file that is not there yet: the folder will tell

    def _add(self, path: Path, mask: int) -> int:
        return int(self._library.inotify_add_watch(self.fd, os.fsencode(path), mask))
