"""The one way into the store: under its lock, timed, and only while the engine is open.

`with access as store:` is a whole store call. Nothing inside may await, so a call is atomic for every thread and loop.
What must follow a write (pruning, admitting, waking) happens on the way out, before the lock is given back.
"""

from __future__ import annotations

from time import perf_counter_ns

from stoker.engines.call_times import CallTimes
from stoker.engines.memory.store import Store
from stoker.model.errors import EngineClosed


class Door:
    """Whether the engine is open; shared by its accesses."""

    __slots__ = ("open",)

    def __init__(self) -> None:
        self.open = False

    def check(self) -> None:
        """Refuse a call to an engine that is not open."""
        if not self.open:
            raise EngineClosed(
                "this memory engine is not open. Nothing was done. Call open() first, and not after close()."
            )


class Access:
    """A store call that reads or writes. Belongs to one engine, hence to one loop: its calls never overlap."""

    __slots__ = ("_active", "_call_times", "_door", "_since", "_store", "_write")

    def __init__(self, store: Store, call_times: CallTimes, door: Door, *, write: bool) -> None:
        self._store = store
        self._call_times = call_times
        self._door = door
        self._write = write
        self._since = 0
        self._active = 0

    def __enter__(self) -> Store:
        self._door.check()
        self._since = perf_counter_ns()
        self._store.lock.acquire()
        self._active = self._store.active
        return self._store

    def __exit__(self, *_: object) -> None:
        try:
            if self._write:
                self._store.conclude(self._active)
        finally:
            self._store.lock.release()
            self._call_times.add((perf_counter_ns() - self._since) // 1_000, write=self._write)
