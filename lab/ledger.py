"""The ledger: what happened, written outside of the store by every process, one line at a time.

A line is one `write` to a file that is opened for appending, so lines are in the order in which they happened. It says
when, which process, and what. A process is its pid and the instant of its start, because pids come again.
"""

from __future__ import annotations

import functools
import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple


def identity(pid: int) -> str:
    """A name that no other process has had since the machine was started."""
    return f"{pid}.{Path(f'/proc/{pid}/stat').read_text().rpartition(')')[2].split()[19]}"


@functools.cache
def _me(pid: int) -> str:
    return identity(pid)


class Line(NamedTuple):
    """One entry: `at` in nanoseconds of the clock that all processes share and that never jumps."""

    at: int
    who: str
    what: str
    rest: list[Any]


class Ledger:
    def __init__(self, path: str | Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)

    def write(self, what: str, *rest: Any) -> None:
        """Append an entry."""
        line = json.dumps([time.monotonic_ns(), _me(os.getpid()), what, *rest], separators=(",", ":"))
        os.write(self._file, line.encode() + b"\n")


def lines_of(path: str | Path) -> Iterator[Line]:
    """All entries, in their order."""
    with Path(path).open(encoding="utf-8") as lines:
        for text in lines:
            at, who, what, *rest = json.loads(text)
            yield Line(at, who, what, rest)
