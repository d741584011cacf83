"""The child's end of `spawn`: dies with its parent, hears lines from a thread, says lines from any."""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator

PR_SET_PDEATHSIG = 1


class Parent:
    """The connection to whoever started this process."""

    def __init__(self, death: signal.Signals) -> None:
        descriptor, self.pid = int(sys.argv[3]), int(sys.argv[4])
        sys.argv[1:] = []
        _die_with_parent(self.pid, death)
        self._socket = socket.socket(fileno=descriptor)
        self._lines = self._socket.makefile("rb")
        self._lock = threading.Lock()

    def say(self, line: bytes) -> None:
        """One message; may be called from any thread. A parent that is gone is noticed by the listener."""
        try:
            with self._lock:
                self._socket.sendall(line + b"\n")
        except OSError:
            return

    def hear(self) -> bytes:
        """The next message; empty when the parent is gone."""
        try:
            return self._lines.readline()
        except OSError:
            return b""

    def listen(self, hear: Callable[[bytes], object], gone: Callable[[], object]) -> None:
        """From now on a thread passes messages to `hear`, and calls `gone` when the parent is no more."""

        def serve() -> None:
            for line in self._rest():
                hear(line)
            gone()

        threading.Thread(target=serve, name="stoker-parent", daemon=True).start()

    @staticmethod
    def outlive() -> None:
        """No signal any more when the parent dies, only the end of the socket.

        Linux sends it once for every thread of a dying parent, and a second TERM would mean to hurry.
        """
        _death_signal(0)

    def _rest(self) -> Iterator[bytes]:
        while line := self.hear():
            yield line


def _die_with_parent(parent: int, death: signal.Signals) -> None:
    """Linux sends a signal when the parent dies; elsewhere the end of the socket has to do."""
    _death_signal(death)
    if os.getppid() != parent:  # it died before we asked
        os._exit(0)


def _death_signal(number: int) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, int(number), 0, 0, 0)
