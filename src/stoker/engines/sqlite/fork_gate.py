"""The fork gate: a fork waits until no thread of this process holds a lock of SQLite.

SQLite keeps the locks of its process in a table of its own. A fork copies the table, but the locks stay with the
parent. A child that was forked while another thread of its parent read or wrote keeps those entries for ever: it can
never write to that file, because its SQLite takes itself for the writer.

Every connection of the engine enters the gate before its first statement and leaves it after the last one of its
transaction. The gate is one lock between threads: neither side waits longer than `LONGEST`, so that no fork hangs,
whatever the threads wait for.
"""

from __future__ import annotations

import os
import threading

LONGEST = 1.0
"""Seconds that a fork waits for open transactions, and a transaction for forks."""


class ForkGate:
    """The open transactions of this process, by connection; `inherited` are the files of those a fork has copied."""

    def __init__(self) -> None:
        # Reentrant: a signal handler that forks may interrupt its own thread in here.
        self._changed = threading.Condition(threading.RLock())
        self._open: dict[object, tuple[int | None, str]] = {}
        self._forks = 0
        self.inherited: frozenset[str] = frozenset()

    def enter(self, holder: object, path: str) -> None:
        """Add a transaction, after the forks that have begun.

        A thread with an open transaction does not wait: a fork may be waiting for that one.
        """
        thread = threading.get_ident()
        with self._changed:
            if self._forks and all(owner != thread for owner, _ in self._open.values()):
                self._changed.wait_for(lambda: not self._forks, LONGEST)
            self._open[holder] = thread, path

    def hand_over(self, holder: object) -> None:
        """Note that another thread ends this transaction, so that a fork in this one waits for it."""
        with self._changed:
            if holder in self._open:
                self._open[holder] = None, self._open[holder][1]

    def leave(self, holder: object) -> None:
        """Remove a transaction that is over. Leaving twice is harmless."""
        with self._changed:
            if self._open.pop(holder, None) and self._forks:
                self._changed.notify_all()

    def note(self, path: str) -> str:
        """Return what to add to an error about a locked file: why this process may never write to it."""
        if path not in self.inherited:
            return ""
        return (
            ". This process was forked while a thread of its parent used the file, so SQLite in this process waits for "
            "itself. Fork outside of transactions, or start a fresh interpreter"
        )

    def before_fork(self) -> None:
        """Wait until all transactions of other threads are over; one of this thread cannot end before the fork."""
        thread = threading.get_ident()
        with self._changed:
            self._forks += 1
            self._changed.wait_for(lambda: all(owner == thread for owner, _ in self._open.values()), LONGEST)

    def after_in_parent(self) -> None:
        with self._changed:
            self._forks -= 1
            self._changed.notify_all()

    def after_in_child(self) -> None:
        inherited = self.inherited.union(path for _, path in self._open.values())
        self.__init__()  # type: ignore[misc]
        self.inherited = inherited


gate = ForkGate()

os.register_at_fork(before=gate.before_fork, after_in_parent=gate.after_in_parent, after_in_child=gate.after_in_child)
