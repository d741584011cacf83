"""Processes that are stopped with a signal and really stand still."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path


def freeze(*pids: int) -> None:
    """Stop processes, and wait until they are.

    A signal is pending until its process runs again. One that waited for a lock may get it in that moment: on a busy
    machine it would then be stopped with the lock in its hands, long after somebody looked whether the lock is free.
    """
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    while not all(_stands_still(pid) for pid in pids):
        time.sleep(0.001)


def _stands_still(pid: int) -> bool:
    """Is every thread stopped, or over?"""
    try:
        threads = [(task / "stat").read_text() for task in Path(f"/proc/{pid}/task").iterdir()]
    except FileNotFoundError:  # a thread, or the process, has ended meanwhile
        return not Path(f"/proc/{pid}").exists()
    return all(text.rpartition(")")[2].split()[0] in "TtZX" for text in threads)
