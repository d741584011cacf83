"""Child processes with a socket: a parent's end (`ChildProcess`) and a child's end (`Parent`).

Workers start processes for handlers this way, and supervisors start workers. Stoker never forks: a forked child would
inherit locks, sockets and the liveness file of its parent. Messages are JSON lines on a socket of their own, so the
child's output cannot disturb them. The child leads a session: the parent can kill everything the child started, and
Ctrl-C in a terminal reaches only the parent.
"""

from __future__ import annotations

import asyncio
import ctypes
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import uuid
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

PR_SET_PDEATHSIG = 1
LONGEST_LINE = 64 << 20
EXIT_WITHIN = 0.5
"""Seconds within which a child that closed its socket must exit."""

MARK = "STOKER_CHILD"
"""Environment variable that marks every descendant, also those that left the child's session."""

_BOOT = (
    "import sys,json;sys.path[:]=json.loads(sys.argv[1]);import importlib;importlib.import_module(sys.argv[2]).main()"
)


class ChildProcess:
    """The parent's end. `exited` gives the return code as `subprocess` does: negative for a signal."""

    def __init__(self, process: subprocess.Popen[bytes], mark: str) -> None:
        self.pid = process.pid
        self.process = process
        self.killed = False
        self._mark = mark
        self._loop = asyncio.get_running_loop()
        self.exited: asyncio.Future[int] = self._loop.create_future()
        threading.Thread(target=self._wait_for_exit, name=f"stoker-wait-{self.pid}", daemon=True).start()

    @classmethod
    async def spawn(
        cls,
        module: str,
        *,
        environ: Mapping[str, str] | None = None,
        output: int | None = None,
    ) -> ChildProcess:
        """Start `module.main()` in a new interpreter. `output=subprocess.PIPE` captures what it prints.

        Call it in a thread that lives as long as the child: Linux ends a child with the thread that started it.
        """
        ours, theirs = socket.socketpair()
        mark = uuid.uuid4().hex
        command = [sys.executable, "-u", "-c", _BOOT, json.dumps(sys.path), module]
        try:
            process = subprocess.Popen(  # noqa: ASYNC220, S603 - a program of ours; starting it takes a millisecond
                [*command, str(theirs.fileno()), str(os.getpid())],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT if output is not None else None,
                pass_fds=[theirs.fileno()],
                start_new_session=True,
                env={**os.environ, **(environ or {}), MARK: mark},
            )
        except BaseException:
            ours.close()
            raise
        finally:
            theirs.close()
        child = cls(process, mark)
        child.reader, child.writer = await asyncio.open_connection(sock=ours, limit=LONGEST_LINE)
        return child

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    def send(self, line: bytes) -> None:
        """Send one message; does nothing when the child is gone."""
        if not self.writer.is_closing():
            self.writer.write(line + b"\n")

    async def receive(self) -> bytes | None:
        """Return the next message; None when the child has exited, closed its end or sent an incomplete line."""
        try:
            line = await self.reader.readline()
        except (OSError, ValueError):
            return None
        return line if line.endswith(b"\n") else None

    def kill(self) -> None:
        """Kill the child and everything it started."""
        self.killed = True
        if not self.exited.done():
            _kill_group(self.pid)

    async def cause_of_exit(self) -> str:
        """Describe how it exited. Kills a child that closed its socket but still runs."""
        await asyncio.wait({self.exited}, timeout=EXIT_WITHIN)
        if not self.exited.done() and self._runs():
            self.kill()
            await asyncio.wait({self.exited}, timeout=5.0)
            return "it closed its connection and had to be killed"
        return exit_reason(await asyncio.shield(self.exited))

    def _runs(self) -> bool:
        """Ask the system: on a busy machine the thread that waits for the exit may be late."""
        if not hasattr(os, "waitid"):
            return True
        try:
            return os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT | os.WNOHANG) is None
        except ChildProcessError:  # that thread has taken the exit code
            return False

    async def end(self, timeout: float = 0.0) -> None:
        """Wait up to `timeout` for its exit, then kill it; close the socket."""
        if not self.exited.done():
            await asyncio.wait({self.exited}, timeout=timeout)
        self.kill()
        self.writer.close()
        await asyncio.wait({self.exited}, timeout=5.0)

    def _wait_for_exit(self) -> None:
        if hasattr(os, "waitid"):
            os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT)
            # It is a zombie still, so its pid cannot belong to another process yet.
            _kill_group(self.pid)
        code = self.process.wait()
        if code or self.killed:
            _kill_marked(self._mark)
        try:
            self._loop.call_soon_threadsafe(self._set_exited, code)
        except RuntimeError:  # the loop is closed; no caller waits
            return

    def _set_exited(self, code: int) -> None:
        if not self.exited.done():
            self.exited.set_result(code)


def exit_reason(code: int) -> str:
    """Describe a return code."""
    if code >= 0:
        return f"exit code {code}"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = "signal"
    return f"killed by {name} ({-code})"


def _kill_group(pid: int) -> None:
    try:
        os.killpg(pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        return


def _kill_marked(mark: str) -> None:
    """Kill descendants that left the group: daemons still carry the mark in their environment."""
    needle = f"{MARK}={mark}".encode()
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if needle in (folder / "environ").read_bytes():
                os.kill(int(folder.name), signal.SIGKILL)
        except OSError:
            continue


class Parent:
    """The child's end: ends with its parent, receives messages in a thread, sends from any thread."""

    def __init__(self, death: signal.Signals) -> None:
        descriptor, self.pid = int(sys.argv[3]), int(sys.argv[4])
        sys.argv[1:] = []
        _die_with_parent(self.pid, death)
        os.set_inheritable(descriptor, False)  # a program that a handler starts could send messages in its name
        self._socket = socket.socket(fileno=descriptor)
        self._lines = self._socket.makefile("rb")
        self._lock = threading.Lock()

    def send(self, line: bytes) -> None:
        """Send one message, from any thread. The receiving thread notices that a parent is gone."""
        try:
            with self._lock:
                self._socket.sendall(line + b"\n")
        except OSError:
            return

    def receive(self) -> bytes:
        """Return the next message; empty when the parent is gone."""
        try:
            return self._lines.readline()
        except OSError:
            return b""

    def listen(self, received: Callable[[bytes], object], gone: Callable[[], object]) -> None:
        """Start a thread that passes messages to `received`, and calls `gone` when the parent is gone."""

        def serve() -> None:
            for line in self._messages():
                received(line)
            gone()

        threading.Thread(target=serve, name="stoker-parent", daemon=True).start()

    @staticmethod
    def outlive() -> None:
        """Get no signal when the parent dies, only the end of the socket.

        Linux sends the signal once for every thread of a dying parent, and a second TERM would mean to hurry.
        """
        _death_signal(0)

    def _messages(self) -> Iterator[bytes]:
        while line := self.receive():
            yield line


def _die_with_parent(parent: int, death: signal.Signals) -> None:
    """Have Linux send a signal when the parent dies; elsewhere the end of the socket must do."""
    _death_signal(death)
    if os.getppid() != parent:  # the parent died before the call
        os._exit(0)


def _death_signal(number: int) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, int(number), 0, 0, 0)


def set_title(text: str) -> None:
    """Set what `ps` and `top` show of this process. Without `setproctitle` (the extra `titles`) nothing happens."""
    try:
        from setproctitle import setproctitle
    except ImportError:
        return
    setproctitle(f"stoker: {text}")
