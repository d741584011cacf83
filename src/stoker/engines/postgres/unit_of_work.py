"""A unit of work: what one transaction of several statements knows while it is being made.

It carries the transaction's one instant, what it counted and whom it will wake. Counts are appended once at the end, a
row for each queue and kind. Nothing here outlives the transaction, so a rollback leaves nothing to repair.
"""

from __future__ import annotations

from stoker.engines.base import CONTROL
from stoker.engines.postgres.columns import CANCELED, DEAD, DONE, RETRYING
from stoker.engines.postgres.statements import sql
from stoker.engines.sql.settings import pack_queue, read_queue
from stoker.engines.sql.steps import Steps
from stoker.model.ahead import wakes
from stoker.model.control import Queue
from stoker.model.time import Instant

ENQUEUED, COMPLETED, RETRIES, FAILED, CANCELS = range(8, 13)
"""Totals since the store was made, counted beside the statuses."""

NUMBERS = 13
TOTALS = {DONE: COMPLETED, DEAD: FAILED, RETRYING: RETRIES, CANCELED: CANCELS}

_DELTA = sql("delta")
_QUEUES = sql("queues_named")
_QUEUE_WRITE = sql("queue_write")


class Unit:
    """One transaction in the making."""

    __slots__ = ("_deltas", "_queues", "now", "woken")

    def __init__(self, now: Instant) -> None:
        self.now = now
        self.woken: set[str] = set()
        self._deltas: dict[tuple[str, str], list[int]] = {}
        self._queues: dict[str, Queue] = {}

    # --- counting and waking ------------------------------------------------------------------------------------

    def count(self, queue: str, kind: str, what: int, n: int = 1) -> None:
        """Count a status or a total up or down."""
        numbers = self._deltas.get((queue, kind))
        if numbers is None:
            numbers = self._deltas[queue, kind] = [0] * NUMBERS
        numbers[what] += n

    def moved(self, queue: str, kind: str, before: int, after: int, n: int = 1) -> None:
        """Jobs went from one status to another."""
        self.count(queue, kind, before, -n)
        self.count(queue, kind, after, n)

    def due(self, queue: str, at: Instant) -> None:
        """A job can be taken from `at` on; one that can be taken now or soon wakes a waiter after the commit."""
        if wakes(at, self.now):
            self.woken.add(queue)

    def control(self) -> None:
        """Somebody's running job was asked to stop."""
        self.woken.add(CONTROL)

    def end(self) -> Steps[None]:
        """Append what was counted."""
        rows = [(*key, *numbers) for key, numbers in self._deltas.items() if any(numbers)]
        self._deltas.clear()
        if rows:
            columns = [list(column) for column in zip(*rows, strict=True)]
            yield _DELTA, (*columns[:2], *([n or None for n in column] for column in columns[2:]))

    # --- queues -------------------------------------------------------------------------------------------------

    def queues(self, names: set[str]) -> Steps[dict[str, Queue]]:
        """Queues by name, as stored or with defaults."""
        if missing := sorted(names - self._queues.keys()):
            for row in (yield _QUEUES, (missing,)):
                self._queues[row[0]] = read_queue(row)
            for name in missing:
                self._queues.setdefault(name, Queue(name=name))
        return {name: self._queues[name] for name in names}

    def write_queue(self, queue: Queue) -> Steps[None]:
        """Store a queue's settings and cool-down."""
        yield _QUEUE_WRITE, pack_queue(queue)
        self._queues[queue.name] = queue
