"""A fresh interpreter at the end of a socket: how workers get child processes and supervisors get workers.

Never a fork: a forked child would inherit locks, sockets and the sign of life of its parent. What is said travels as
JSON lines over a socket of its own, so whatever the child prints cannot disturb it. The child leads a session, so its
whole family can be killed, and a terminal's Ctrl-C reaches only the parent.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import uuid
from collections.abc import Mapping
from pathlib import Path

LONGEST_LINE = 64 << 20
MARK = "STOKER_CHILD"
"""Environment variable by which descendants are found that left the child's session."""

_BOOT = (
    "import sys,json;sys.path[:]=json.loads(sys.argv[1]);import importlib;importlib.import_module(sys.argv[2]).main()"
)


class Offspring:
    """One child process. `exited` gives its return code as `subprocess` counts it: negative for a signal."""

    def __init__(self, process: subprocess.Popen[bytes], mark: str) -> None:
        self.pid = process.pid
        self.process = process
        self.killed = False
        self._mark = mark
        self._loop = asyncio.get_running_loop()
        self.exited: asyncio.Future[int] = self._loop.create_future()
        threading.Thread(target=self._await_death, name=f"stoker-wait-{self.pid}", daemon=True).start()

    @classmethod
    async def spawn(
        cls,
        module: str,
        *,
        environ: Mapping[str, str] | None = None,
        output: int | None = None,
    ) -> Offspring:
        """Start `module.main()` in a new interpreter. `output=subprocess.PIPE` catches what it prints.

        Must be called in a thread that lives as long as the child may: Linux ends a child with the thread that made it.
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
        """Say something; a child that is gone does not hear it."""
        if not self.writer.is_closing():
            self.writer.write(line + b"\n")

    async def receive(self) -> bytes | None:
        """The next line; None when the child is gone, or has closed its end, or talks nonsense."""
        try:
            line = await self.reader.readline()
        except (OSError, ValueError):
            return None
        return line if line.endswith(b"\n") else None

    def kill(self) -> None:
        """End the child and everything it started, now."""
        self.killed = True
        if not self.exited.done():
            _kill_group(self.pid)

    async def obituary(self) -> str:
        """How it died. A child that closed its socket but lives on is ended first."""
        await asyncio.wait({self.exited}, timeout=0.5)
        if not self.exited.done():
            self.kill()
            await asyncio.wait({self.exited}, timeout=5.0)
            return "it closed its connection and had to be killed"
        return cause_of_death(self.exited.result())

    async def bury(self, timeout: float = 0.0) -> None:
        """Wait for its end no longer than `timeout`, then make sure of it, and let go of the socket."""
        if not self.exited.done():
            await asyncio.wait({self.exited}, timeout=timeout)
        self.kill()
        self.writer.close()
        await asyncio.wait({self.exited}, timeout=5.0)

    def _await_death(self) -> None:
        if hasattr(os, "waitid"):
            os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT)
            # Still a zombie, so its number cannot belong to anybody else yet.
            _kill_group(self.pid)
        code = self.process.wait()
        if code or self.killed:
            _sweep(self._mark)
        try:
            self._loop.call_soon_threadsafe(self._died, code)
        except RuntimeError:  # the loop is closed, nobody waits any more
            return

    def _died(self, code: int) -> None:
        if not self.exited.done():
            self.exited.set_result(code)


def cause_of_death(code: int) -> str:
    """A return code in words."""
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


def _sweep(mark: str) -> None:
    """Kill what left the group: daemons that detached themselves still carry the mark in their environment."""
    needle = f"{MARK}={mark}".encode()
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if needle in (folder / "environ").read_bytes():
                os.kill(int(folder.name), signal.SIGKILL)
        except OSError:
            continue
