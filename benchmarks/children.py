"""Other processes that take part in a measurement: started fresh, told when to begin and end, asked for figures.

A child says `ready`, hears `go`, and answers one line of JSON when it is done or told to stop. It stops as well when
its input ends, so it does not outlive its parent; and it is ended when its time is up.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any, Self

ROOT = Path(__file__).resolve().parent.parent
LONGEST = 300.0


class Child:
    """One process in a role of `benchmarks.roles`."""

    def __init__(self, role: str, *, longest: float = LONGEST, **arguments: Any) -> None:
        self._role = role
        self._process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.roles", role, json.dumps(arguments)],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self._watchdog = threading.Timer(longest, self._process.kill)
        self._watchdog.daemon = True
        self._watchdog.start()
        self._started = False

    def __enter__(self) -> Self:
        self.ready()
        self.go()
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def ready(self) -> None:
        """Wait until it stands ready."""
        assert self._process.stdout is not None
        if self._process.stdout.readline() != "ready\n":
            raise self._broken()

    def go(self) -> None:
        """Let it begin."""
        self._say("go")

    def stop(self) -> dict[str, Any]:
        """Tell it to end, and have its figures."""
        self._say("stop")
        return self.figures()

    def figures(self) -> dict[str, Any]:
        """Wait for its end, and have its figures."""
        output, error = self._process.communicate()
        self._watchdog.cancel()
        try:
            answer: dict[str, Any] = json.loads(output.splitlines()[-1])
        except (IndexError, ValueError):
            raise self._broken(error) from None
        return answer

    def close(self) -> None:
        """Make sure that it is gone."""
        self._watchdog.cancel()
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout, self._process.stderr):
            if stream is not None and not stream.closed:
                stream.close()

    def _say(self, word: str) -> None:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(f"{word}\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise self._broken() from None

    def _broken(self, error: str | None = None) -> RuntimeError:
        if error is None:
            self._process.kill()
            error = self._process.stderr.read() if self._process.stderr is not None else ""
        return RuntimeError(f"the {self._role} process failed:\n{error[-2000:]}")
