"""What a process and its descendants have used, as Linux tells: CPU, memory, bytes written."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

PROC = Path("/proc")
TICKS = os.sysconf("SC_CLK_TCK")
_GONE = (FileNotFoundError, ProcessLookupError)


def tree(pid: int) -> list[int]:
    """A process and all its descendants."""
    children: dict[int, list[int]] = {}
    for folder in PROC.iterdir():
        if folder.name.isdigit():
            with suppress(*_GONE):
                children.setdefault(int(_stat(int(folder.name))[1]), []).append(int(folder.name))
    return list(_below(pid, children))


def _below(pid: int, children: dict[int, list[int]]) -> Iterator[int]:
    yield pid
    for child in children.get(pid, []):
        yield from _below(child, children)


def _stat(pid: int) -> list[str]:
    """The fields behind the command's name: state, parent, …"""
    return (PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()


def cpu(pid: int) -> float:
    """Seconds of CPU of a tree, with those of processes in it that have ended."""
    spent = 0
    for one in tree(pid):
        with suppress(*_GONE):
            spent += sum(map(int, _stat(one)[11:15]))
    return spent / TICKS


def memory(pid: int) -> float:
    """MiB of a tree; memory that processes share counts once (PSS)."""
    kilobytes = 0
    for one in tree(pid):
        with suppress(*_GONE):
            lines = (PROC / str(one) / "smaps_rollup").read_text().splitlines()
            kilobytes += sum(int(line.split()[1]) for line in lines if line.startswith("Pss:"))
    return kilobytes / 1024


def written(pid: int) -> int:
    """Bytes that the living processes of a tree passed to write calls."""
    found = 0
    for one in tree(pid):
        with suppress(*_GONE):
            lines = (PROC / str(one) / "io").read_text().splitlines()
            found += sum(int(line.split()[1]) for line in lines if line.startswith("wchar:"))
    return found


def kill(pid: int) -> None:
    """End a tree at once."""
    for one in tree(pid):
        with suppress(ProcessLookupError):
            os.kill(one, signal.SIGKILL)
