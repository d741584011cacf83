"""How a call gets into the store: under its lock, timed, while the engine is open, and when there is room.

`with access as store:` is a whole store call. Nothing inside may await, so a call is atomic for every thread and loop.
What follows a write (pruning, admitting, waking) happens on the way out, before the lock is released.

Inserts that wait for room form one queue per store, over all its engines, first come, first served. Only the first in
the queue tries, so an insert of few jobs does not overtake one of many. A caller that leaves the queue, served or
canceled, lets the next one try.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from time import perf_counter_ns

from stoker.engines.call_times import CallTimes
from stoker.engines.memory import unit_of_work
from stoker.engines.memory.store import Store
from stoker.engines.memory.waiters import Waiter
from stoker.engines.shared.audit_lines import tell
from stoker.model.audit import AuditEntry
from stoker.model.errors import EngineClosed, EngineFull
from stoker.model.groups import Closing, Group, ignore
from stoker.model.job import Draft, Receipt


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
    """A store call that reads or writes. It belongs to one engine, so to one loop: its calls never overlap."""

    __slots__ = ("_active", "_call_times", "_door", "_since", "_store", "_write", "emit")

    def __init__(self, store: Store, call_times: CallTimes, door: Door, *, write: bool) -> None:
        self._store = store
        self._call_times = call_times
        self._door = door
        self._write = write
        self._since = 0
        self._active = 0
        self.emit: Callable[[Closing], None] = ignore
        """Called with each group that a call has closed."""

    def __enter__(self) -> Store:
        self._door.check()
        self._since = perf_counter_ns()
        self._store.lock.acquire()
        self._active = self._store.active
        return self._store

    def __exit__(self, *_: object) -> None:
        closings: list[Closing] = []
        entries: list[AuditEntry] = []
        try:
            if self._write:
                self._store.conclude(self._active)
                closings, self._store.closings = self._store.closings, []
                entries, self._store.entries = self._store.entries, []
        finally:
            self._store.lock.release()
            for closing in closings:
                self.emit(closing)
            tell(entries)
            self._call_times.add((perf_counter_ns() - self._since) // 1_000, "access", write=self._write)


async def insert_when_room(
    access: Access, waiting: set[Waiter], drafts: Sequence[Draft], group: Group | None
) -> list[Receipt]:
    """Insert when this caller is first in the queue and there is room; refuse at once what can never fit."""
    waiter = Waiter()
    with access as store:
        store.waiting_for_room.append(waiter)
    waiting.add(waiter)
    try:
        while True:
            with access:
                waiter.rearm()
                if store.waiting_for_room[0] is waiter:
                    try:
                        return store.run(unit_of_work.insert, drafts, group)
                    except EngineFull:
                        if store.capacity is None or len(drafts) > store.capacity:
                            raise
            await waiter.future
    finally:
        waiting.discard(waiter)
        with store.lock:
            if waiter in store.waiting_for_room:
                store.waiting_for_room.remove(waiter)
            store.admit()
