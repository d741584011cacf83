"""Real processes for tests: started with a script, controlled by lines and signals."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

T = TypeVar("T")


class Child:
    """A Python process that runs a script; the script prints a line at each point the test waits for."""

    def __init__(self, script: str, *args: object) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", script, *map(str, args)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def line(self) -> str:
        """Return the next line it prints; an empty text when it has ended."""
        assert self.process.stdout
        return self.process.stdout.readline().strip()

    def say(self, line: str) -> None:
        assert self.process.stdin
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()

    def kill(self, number: signal.Signals = signal.SIGKILL) -> None:
        os.kill(self.process.pid, number)

    def end(self) -> None:
        self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe:
                pipe.close()


@contextmanager
def child(script: str, *args: object) -> Iterator[Child]:
    started = Child(script, *args)
    try:
        yield started
    finally:
        started.end()


def eventually(question: Callable[[], T], within: float = 60.0) -> T:
    """Call until the result is true, and return it; only a failing test reaches the time limit."""
    deadline = time.monotonic() + within
    while not (result := question()):
        assert time.monotonic() < deadline, f"did not come true within {within} s"
        time.sleep(0.0005)
    return result
