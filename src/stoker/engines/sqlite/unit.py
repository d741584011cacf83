"""A unit of work: what one transaction knows while it is being made.

It carries the transaction's one instant, the queues and workers it looked up, what it counted and whom it will wake.
Counts are written once at the end, one change per touched row, however many jobs a batch holds. Nothing here outlives
the transaction, so a rollback leaves nothing to repair.
"""

from __future__ import annotations

from typing import NamedTuple

from stoker.engines.base import CONTROL
from stoker.engines.sql.steps import Many, Row, Steps
from stoker.engines.sqlite.texts import sql
from stoker.model.ahead import wakes
from stoker.model.control import Queue
from stoker.model.job import Status
from stoker.model.retry import Curve
from stoker.model.throttle import OPEN, Cooldown
from stoker.model.time import MILLISECOND, MINUTE, Instant, Span

CODES: dict[Status, int] = {status: code for code, status in enumerate(Status)}
STATUSES: tuple[Status, ...] = tuple(Status)
PENDING, RUNNING, RETRYING, DONE, DEAD, CANCELED, DISCARDED, RETRIED = range(8)
ENQUEUED, COMPLETED, RETRIES, FAILED, CANCELS = range(8, 13)
"""Totals since the store was made, counted beside the statuses."""

FURTHEST_AHEAD: Span = MINUTE
BLOCK = 10_000
"""Row numbers taken from the store at once."""

MARK_EVERY: Span = 100 * MILLISECOND
"""The clock's mark is written at most this often: a clock set back shows at most this much time again."""

_HIGH = sql("now")
_MARK = sql("clock_mark")
_NUMBERS = sql("numbers")
_QUEUE = sql("queue")
_QUEUE_BY_QID = sql("queue_by_qid")
_QUEUE_WRITE = sql("queue_write")
_WORKER = sql("worker")
_COUNT = sql("count")


class Mismatch(Exception):
    """A batch met something unusual after it had begun to write: roll back and go one by one."""


class Known:
    """What a writer knows from one transaction to the next, so that most inserts need not ask.

    Row numbers are taken from the store in blocks; a block belongs to the transaction that took it until that commits,
    and a rollback takes it back. The numbers of queues never change; one is remembered when it was found, not when it
    was made, because what was made can be undone.
    """

    __slots__ = ("_end", "_next", "qids")

    def __init__(self) -> None:
        self._next = self._end = 0
        self.qids: dict[str, int] = {}

    def take(self, n: int) -> int | None:
        """The first of `n`; None when there are not so many."""
        first = self._next
        if first + n > self._end:
            return None
        self._next += n
        return first

    def refill(self, first: int, end: int) -> None:
        self._next, self._end = first, end

    def forget(self) -> None:
        self._next = self._end = 0


class Shelf(NamedTuple):
    """A queue and the number its jobs are stored under.

    `tuned`: somebody chose its settings. `found`: it was there before this transaction.
    """

    qid: int
    queue: Queue
    tuned: bool
    found: bool = True


class Unit:
    """One transaction in the making.

    `swift` says that it can be rolled back and run again: batches may then bet on the usual case and raise `Mismatch`
    when they lose. In somebody else's transaction there is no second try.
    """

    __slots__ = ("_deltas", "_known", "_names", "_qids", "_wids", "dropped", "high", "now", "swift", "woken")

    def __init__(self, now: Instant, *, swift: bool = False, known: Known | None = None) -> None:
        self.now = now
        self.swift = swift
        self._known = known
        self.high: Instant = 0
        self.dropped: Span = 0
        self.woken: set[str] = set()
        self._deltas: dict[tuple[int, str, int], int] = {}
        self._names: dict[str, Shelf] = {}
        self._qids: dict[int, Shelf] = {}
        self._wids: dict[str, int | None] = {}

    # --- beginning and end --------------------------------------------------------------------------------------

    def begin(self, clock: str = _HIGH) -> Steps[None]:
        """Never show an instant before one that was shown, unless that one was clearly wrong."""
        [(self.high,)] = yield clock, ()
        ahead = self.high - self.now
        if ahead > FURTHEST_AHEAD:
            self.dropped = ahead
            yield _MARK, (self.now,)
            self.high = self.now
        elif ahead > 0:
            self.now = self.high

    def end(self) -> Steps[None]:
        """Write what was counted, and how late it is."""
        rows: list[Row] = [(*key, n) for key, n in self._deltas.items() if n]
        if rows:
            yield Many(_COUNT, rows)
        if self.now > self.high + MARK_EVERY:
            yield _MARK, (self.now,)

    def numbers(self, n: int) -> Steps[int]:
        """The first of `n` row numbers that nobody had before."""
        if self._known is not None and (first := self._known.take(n)) is not None:
            return first
        taken = n if self._known is None else n + BLOCK
        [(last,)] = yield _NUMBERS, (taken,)
        first = int(last) - taken + 1
        if self._known is not None:
            self._known.refill(first + n, first + taken)
        return first

    # --- counting and waking ------------------------------------------------------------------------------------

    def count(self, qid: int, kind: str, what: int, n: int = 1) -> None:
        key = (qid, kind, what)
        self._deltas[key] = self._deltas.get(key, 0) + n

    def moved(self, qid: int, kind: str, before: int, after: int, n: int = 1) -> None:
        """Jobs went from one status to another."""
        self.count(qid, kind, before, -n)
        self.count(qid, kind, after, n)

    def due(self, queue: str, at: Instant) -> None:
        """A job can be taken from `at` on; one that can be taken now or soon wakes a waiter after the commit."""
        if wakes(at, self.now):
            self.woken.add(queue)

    def control(self) -> None:
        """Somebody's running job was asked to stop."""
        self.woken.add(CONTROL)

    # --- looking up ---------------------------------------------------------------------------------------------

    def queue(self, name: str) -> Steps[Shelf | None]:
        """The queue as stored; None when nobody ever used it."""
        shelf = self._names.get(name)
        if shelf is None:
            rows = yield _QUEUE, (name,)
            shelf = self._remember(rows[0]) if rows else None
        return shelf

    def queue_of(self, qid: int) -> Steps[Shelf]:
        """The queue a job is stored under."""
        shelf = self._qids.get(qid)
        if shelf is None:
            [row] = yield _QUEUE_BY_QID, (qid,)
            shelf = self._remember(row)
        return shelf

    def use_queue(self, name: str) -> Steps[Shelf]:
        """The queue, made with defaults if need be."""
        shelf = self._names.get(name) or (yield from self.queue(name))
        return shelf if shelf is not None else (yield from self.write_queue(Queue(name=name)))

    def qid(self, name: str) -> Steps[int]:
        """The number of a queue, made if need be; cheaper than its settings."""
        if self._known is not None and (qid := self._known.qids.get(name)) is not None:
            return qid
        found = yield from self.queue(name)
        if found is None:
            return (yield from self.write_queue(Queue(name=name))).qid
        if self._known is not None and found.found:
            self._known.qids[name] = found.qid
        return found.qid

    def write_queue(self, queue: Queue, *, tuned: bool = False) -> Steps[Shelf]:
        """Store a queue's settings and cool-down."""
        curve, cool = queue.curve, queue.cooldown
        settings = (queue.name, tuned, queue.paused, queue.workers, queue.keep_done, queue.keep_dead)
        [(qid,)] = yield _QUEUE_WRITE, (*settings, curve.on, curve.base, curve.max, cool.until, cool.count)
        shelf = self._names[queue.name] = self._qids[qid] = Shelf(qid, queue, tuned, found=False)
        return shelf

    def _remember(self, row: Row) -> Shelf:
        shelf = shelved(row)
        self._names[shelf.queue.name] = self._qids[shelf.qid] = shelf
        return shelf

    def wid(self, worker: str) -> Steps[int | None]:
        """The number a worker's claims are stored under; None for one that was never seen."""
        if worker not in self._wids:
            rows = yield _WORKER, (worker,)
            self._wids[worker] = rows[0][0] if rows else None
        return self._wids[worker]


def shelved(row: Row) -> Shelf:
    """A stored queue."""
    qid, name, tuned, paused, workers, keep_done, keep_dead, on, base, top, until, count = row
    return Shelf(
        qid,
        Queue(
            name=name,
            paused=bool(paused),
            workers=workers,
            keep_done=keep_done,
            keep_dead=keep_dead,
            curve=Curve(bool(on), base, top),
            cooldown=OPEN if until is None and not count else Cooldown(until, count),
        ),
        bool(tuned),
    )
