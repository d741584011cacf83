"""The unit of work of one transaction: its instant, row numbers, queues, counts and changed jobs.

`load` and `write` are SQLite's part of the shared unit of work: jobs are read by id, changed by `one_by_one`, and the
difference is written row by row. Counts are written once at the end of the transaction, one change per counter. Nothing
here outlives the transaction, so a rollback leaves nothing to repair.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import msgspec

from stoker.engines.base import CONTROL, PLACELESS
from stoker.engines.shared.unit_of_work import Wanted
from stoker.engines.sql.exchanges import Exchange, Many, Row
from stoker.engines.sql.one_by_one import SqlUnit
from stoker.engines.sql.packing import pack_queue, read_queue
from stoker.engines.sqlite import columns, groups, step_rows, subqueues
from stoker.engines.sqlite.columns import CODES, Stored
from stoker.engines.sqlite.statements import sql
from stoker.model.control import Queue
from stoker.model.event_blocks import NEVER
from stoker.model.ids import JobId
from stoker.model.job import LONGEST_HISTORY, Status
from stoker.model.next_due import wakes
from stoker.model.record import WAITING, Record, Total
from stoker.model.subqueues import freed, line_of, renumbers
from stoker.model.throttle import take
from stoker.model.time import MILLISECOND, MINUTE, SECOND, Instant, Span
from stoker.model.unique import Holder, Kept

ENQUEUED, COMPLETED, RETRIES, FAILED, CANCELS = range(8, 13)
"""Totals since the store was created, in the same table as the counts of statuses."""

TOTALS: dict[Total, int] = {
    "enqueued": ENQUEUED,
    "completed": COMPLETED,
    "retried": RETRIES,
    "failed": FAILED,
    "canceled": CANCELS,
}
FURTHEST_AHEAD: Span = MINUTE
BLOCK = 10_000
"""Row numbers taken from the store at once."""

KNOWN_FOR: Span = 5 * SECOND
"""How long an engine that inserts may not know that a queue has become fair, or is so no more."""

MARK_EVERY: Span = 100 * MILLISECOND
"""The store's clock is written at most this often: a machine's clock set back repeats at most this much time."""

_HIGH = sql("now")
_MARK = sql("clock_mark")
_NUMBERS = sql("numbers")
_QUEUE = sql("queue")
_QUEUE_BY_QID = sql("queue_by_qid")
_QUEUE_WRITE = sql("queue_write")
_QUEUE_TOKENS = sql("queue_tokens")
_WORKER = sql("worker")
_COUNT = sql("count")
_RUNNING = sql("get_running")
_HOLDER = sql("key_holder")
_READY_DROP = sql("ready_drop")
_RUNNING_DROP = sql("running_drop")
_RUNNING_CANCEL = sql("running_cancel")
_DONE_DROP = sql("done_drop")
_BODY_LINE = sql("body_line")
_ERROR_PUT = sql("error_put")
_ERROR_SWAP = sql("error_swap")
_ERROR_TRIM = sql("error_trim")
_TROUBLE = sql("trouble")
_TROUBLE_OVER = sql("trouble_over")
_HOLD = sql("key_hold")
_RELEASE = sql("key_release")
_KEEP, _GIVE_UP = sql("key_keep"), sql("key_give_up")
_RELEASE_ALL = sql("key_release_all")
_ERASE = (sql("delete_body"), sql("delete_past"), sql("delete_errors"))
_REMOVE_EVENTS = sql("remove_events")


class Mismatch(Exception):
    """A batch found an unusual job after its first write.

    Roll back and go one by one.
    """


class IdBlock:
    """Row numbers reserved for the next transactions, and the numbers of known queues.

    With it most inserts read neither from the store. Row numbers are reserved in blocks; a rollback also undoes the
    reservation, so the block is forgotten. The number of a queue never changes; it is kept when the queue was read, not
    when it was inserted, because an insert can be rolled back.
    """

    __slots__ = ("_end", "_next", "places")

    def __init__(self) -> None:
        self._next = self._end = 0
        self.places: dict[str, QueuePlace] = {}

    def take(self, n: int) -> int | None:
        """Return the first of `n` numbers; None if there are not so many."""
        first = self._next
        if first + n > self._end:
            return None
        self._next += n
        return first

    def refill(self, first: int, end: int) -> None:
        self._next, self._end = first, end

    def forget(self) -> None:
        self._next = self._end = 0


class QueuePlace(NamedTuple):
    """The number of a queue, and whether it was fair when it was read."""

    qid: int
    fair: bool
    seen: Instant


class QueueRow(NamedTuple):
    """A queue and the number its jobs are stored under.

    `found`: it existed before this transaction. `divided`: it had subqueues when it was read.
    """

    qid: int
    queue: Queue
    found: bool = True
    divided: bool = False


class Unit(SqlUnit):
    """One transaction.

    `swift`: it can be rolled back and run again, so batches may assume the usual case and raise `Mismatch` otherwise. A
    user's transaction cannot be run again.
    """

    def __init__(self, now: Instant, *, swift: bool = False, ids: IdBlock | None = None) -> None:
        super().__init__(now)
        self.swift = swift
        self._ids = ids
        self.high: Instant = 0
        self.dropped: Span = 0
        self.divided: set[int] = set()
        """Queues that got their first subqueue in this transaction."""
        self._stored: dict[JobId, Stored] = {}
        self._deltas: dict[tuple[int, str, int], int] = {}
        self._names: dict[str, QueueRow] = {}
        self._qids: dict[int, QueueRow] = {}
        self._wids: dict[str, int | None] = {}

    # --- beginning and end --------------------------------------------------------------------------------------

    def begin(self, clock: str = _HIGH) -> Exchange[None]:
        """Set the store's now.

        Never before an earlier one, unless that one was more than a minute ahead.
        """
        [(self.high,)] = yield clock, ()
        ahead = self.high - self.now
        if ahead > FURTHEST_AHEAD:
            self.dropped = ahead
            yield _MARK, (self.now,)
            self.high = self.now
        elif ahead > 0:
            self.now = self.high

    def end(self) -> Exchange[None]:
        """Write the counts and the store's clock."""
        rows: list[Row] = [(*key, n) for key, n in self._deltas.items() if n]
        if rows:
            yield Many(_COUNT, rows)
        if self.now > self.high + MARK_EVERY:
            yield _MARK, (self.now,)

    def numbers(self, n: int) -> Exchange[int]:
        """Return the first of `n` row numbers that were never used."""
        if self._ids is not None and (first := self._ids.take(n)) is not None:
            return first
        taken = n if self._ids is None else n + BLOCK
        [(last,)] = yield _NUMBERS, (taken,)
        first = int(last) - taken + 1
        if self._ids is not None:
            self._ids.refill(first + n, first + taken)
        return first

    # --- counting and waking ------------------------------------------------------------------------------------

    def count(self, qid: int, kind: str, what: int, n: int = 1) -> None:
        key = (qid, kind, what)
        self._deltas[key] = self._deltas.get(key, 0) + n

    def moved(self, qid: int, kind: str, before: int, after: int, n: int = 1) -> None:
        """Count jobs that went from one status to another."""
        self.count(qid, kind, before, -n)
        self.count(qid, kind, after, n)

    def due(self, queue: str, at: Instant) -> None:
        """Wake a waiter after the commit if a job that is due `at` can be claimed now or soon."""
        if wakes(at, self.now):
            self.woken.add(queue)

    def control(self) -> None:
        """Wake workers after the commit: a running job is to be canceled."""
        self.woken.add(CONTROL)

    # --- looking up ---------------------------------------------------------------------------------------------

    def find_queue(self, name: str) -> Exchange[QueueRow | None]:
        """Return the stored queue; None if it was never used."""
        queue_row = self._names.get(name)
        if queue_row is None:
            rows = yield _QUEUE, (name,)
            queue_row = self._remember(rows[0]) if rows else None
        return queue_row

    def queue_of(self, qid: int) -> Exchange[QueueRow]:
        """Return the queue a job is stored under."""
        queue_row = self._qids.get(qid)
        if queue_row is None:
            [row] = yield _QUEUE_BY_QID, (qid,)
            queue_row = self._remember(row)
        return queue_row

    def use_queue(self, name: str) -> Exchange[QueueRow]:
        """Return the queue, inserted with defaults if need be."""
        queue_row = self._names.get(name) or (yield from self.find_queue(name))
        return queue_row if queue_row is not None else (yield from self.write_queue(Queue(name=name)))

    def qid(self, name: str) -> Exchange[int]:
        """Return the number of a queue, inserted if need be; cheaper than its settings."""
        return (yield from self.place(name)).qid

    def place(self, name: str) -> Exchange[QueuePlace]:
        """Return the number of a queue, inserted if need be, and whether it is fair, as of the last few seconds."""
        place = None if self._ids is None else self._ids.places.get(name)
        if place is not None and 0 <= self.now - place.seen <= KNOWN_FOR:
            return place
        found = yield from self.find_queue(name)
        if found is None:
            return QueuePlace((yield from self.write_queue(Queue(name=name))).qid, False, self.now)
        place = QueuePlace(found.qid, found.queue.fair, self.now)
        if self._ids is not None and found.found:
            self._ids.places[name] = place
        return place

    def write_queue(self, queue: Queue) -> Exchange[QueueRow]:
        """Store a queue's settings and cool-down."""
        [(qid,)] = yield _QUEUE_WRITE, pack_queue(queue)
        known = self._qids.get(qid)
        if self._ids is not None:
            self._ids.places.pop(queue.name, None)
        return self._keep(QueueRow(qid, queue, found=False, divided=known is not None and known.divided))

    def take_tokens(self, queue_row: QueueRow, n: int) -> Exchange[None]:
        """Take the tokens of so many started jobs from a queue that has a rate."""
        if queue_row.queue.bucket is not None and n:
            bucket = take(queue_row.queue.bucket, n, self.now)
            yield _QUEUE_TOKENS, (queue_row.qid, bucket.tokens, bucket.refilled_at)
            self._keep(queue_row._replace(queue=msgspec.structs.replace(queue_row.queue, bucket=bucket)))

    def _remember(self, row: Row) -> QueueRow:
        return self._keep(QueueRow(row[0], read_queue(row[1:-1]), divided=bool(row[-1])))

    def _keep(self, queue_row: QueueRow) -> QueueRow:
        self._names[queue_row.queue.name] = self._qids[queue_row.qid] = queue_row
        return queue_row

    def wid(self, worker: str) -> Exchange[int | None]:
        """Return the number a worker's claims are stored under.

        None if it never had a lease.
        """
        if worker not in self._wids:
            rows = yield _WORKER, (worker,)
            self._wids[worker] = rows[0][0] if rows else None
        return self._wids[worker]

    # --- jobs ---------------------------------------------------------------------------------------------------

    def load(self, wanted: Wanted) -> Exchange[None]:
        """Read the wanted jobs, holders of keys and queues that are not loaded yet."""
        wanted = self.missing(wanted)
        slots = set(wanted.slots)
        for job in sorted(wanted.ids):
            yield from self._load_job(job)
            record = self.get(job)
            if record is not None and record.slot is not None and (wanted.revives or record.kept is not None):
                slots.add(record.slot)
        for slot in sorted(self.missing(Wanted(slots=frozenset(slots))).slots):
            rows: list[Row] = yield _HOLDER, (slot,)
            holder, job, until = rows[0] if rows else (None, None, None)
            self.add_holder(slot, holder if until is None else Kept(job, until))
            if holder is not None and until is None:
                yield from self._load_job(holder)
        for name in sorted(wanted.queues):
            queue_row = yield from self.find_queue(name)
            self.add_queue(Queue(name=name) if queue_row is None else queue_row.queue)
        for group in sorted(wanted.groups):
            self.add_group(group, (yield from groups.find(group)))
        if wanted.steps or wanted.signals:
            yield from step_rows.load(self, wanted)

    def _load_job(self, job: JobId) -> Exchange[None]:
        if not self.missing(Wanted(frozenset({job}))).ids:
            return
        stored = yield from find(job, self.queue_name)
        self.add_record(job, None if stored is None else stored.record)
        if stored is not None:
            self._stored[job] = stored
            self.add_queue((yield from self.queue_of(stored.values["qid"])).queue)

    def queue_name(self, qid: int) -> Exchange[str]:
        """Return the name of the queue a job is stored under."""
        return (yield from self.queue_of(qid)).queue.name

    def stored(self, job: JobId) -> Stored:
        """Return a loaded job."""
        return self._stored[job]

    def write(self) -> Exchange[bool]:
        """Write what `one_by_one` decided, and drop what was loaded. One transaction at a time writes to a file."""
        seqs: dict[JobId, int] = {}
        for before, after in self.written():
            if after is None:
                assert before is not None
                yield from self._remove(before)
            elif before is None:
                seqs[after.id] = yield from self._create(after)
            else:
                seqs[after.id] = self.stored(after.id).seq
                yield from self._change(before, after)
        yield from self._write_keys(seqs)
        yield from self._write_counts()
        for queue in self.changed_queues.values():
            yield from self.write_queue(queue)
        for copy, (job, last) in self.copied_steps.items():
            yield from step_rows.copy(self.stored(job).seq, seqs[copy], last)
        for job in self.begun_anew:
            yield from step_rows.delete(self.stored(job).seq)
        for job, rows in self.changed_steps.items():
            yield from step_rows.write(seqs[job] if job in seqs else self.stored(job).seq, rows.values())
        made, placed, changes = list(self.changed_groups.values()), self.placed, self.group_changes
        self._stored.clear()
        self.clear()
        if changes:
            yield from groups.write(self, made, placed, changes)
        return True

    def _create(self, record: Record) -> Exchange[int]:
        seq = yield from self.numbers(1)
        queue = yield from self.use_queue(record.queue)
        waits = record.status in WAITING
        line = (yield from self._join(queue, record, anew=True)) if waits else None
        yield columns.INSERT_BODY, columns.body_row(record, seq, queue.qid, line, None)
        past = columns.needs_past(record, body_due=record.scheduled_at)
        if past:
            yield columns.PUT_PAST, (seq, *columns.past_row(record, None))
        if waits:
            yield columns.PUT_READY, columns.ready_row(record, seq, line or queue.qid, past=past)
        else:
            yield columns.PUT_DONE, columns.done_row(record, seq, queue.qid)
        for one in record.errors:
            yield _ERROR_PUT, (seq, one.at, one.attempt or None, one.origin, one.error)
        return seq

    def _join(self, queue: QueueRow, record: Record, *, anew: bool) -> Exchange[int | None]:
        """Return the line of a subqueue that a waiting job joins; None: it waits in the main line."""
        name = line_of(record, fair=queue.queue.fair)
        if name is None:
            return None
        when = record.scheduled_at
        return (yield from subqueues.join(self, queue, name, record.options.limit, when, anew=anew))

    def _free(self, before: Record, after: Record | None) -> Exchange[None]:
        """Give back the slot that a job held and holds no more."""
        if (slot := freed(before, after)) is not None:
            yield from subqueues.free(self, self.stored(before.id).values["qid"], slot[1])

    def _remove(self, record: Record) -> Exchange[None]:
        yield from self._leave(record)
        yield from self._free(record, None)
        seq = self.stored(record.id).seq
        for statement in _ERASE:
            yield statement, (seq,)
        yield from step_rows.delete(seq)
        if record.id in self.forgotten:
            yield _REMOVE_EVENTS, (record.id, self.now if record.id in self.deleted else NEVER)

    def _change(self, before: Record, after: Record) -> Exchange[None]:
        stored = self.stored(after.id)
        seq, qid = stored.seq, stored.values["qid"]
        if after.queue != before.queue:
            qid = (yield from self.use_queue(after.queue)).qid
        moves = not before.status is after.status is Status.RUNNING
        if moves:
            yield from self._leave(before)
            yield from self._free(before, after)
        line: int | None = stored.values["line"]
        if after.status in WAITING:
            queue = yield from self.use_queue(after.queue)
            line = yield from self._join(queue, after, anew=renumbers(before, after))
        body_due = before.scheduled_at
        if columns.changes_body(before, after):
            body_due = after.scheduled_at
            yield columns.REWRITE_BODY, columns.body_row(after, seq, qid, line, stored)
        elif line != stored.values["line"]:
            yield _BODY_LINE, (seq, line)
        past = stored.has_past or columns.needs_past(after, body_due=body_due)
        if past:
            yield columns.PUT_PAST, (seq, *columns.past_row(after, stored))
        if after.status in WAITING:
            yield columns.PUT_READY, columns.ready_row(after, seq, line or qid, past=past)
        elif moves:
            yield columns.PUT_DONE, columns.done_row(after, seq, qid)
        elif after.cancel_requested and not before.cancel_requested:
            yield _RUNNING_CANCEL, (stored.wid, seq, after.cancel_requested_at)
        yield from self._write_error(before, after, seq)

    def _write_error(self, before: Record, after: Record, seq: int) -> Exchange[None]:
        """Write a new last error.

        That of a run is an entry of the history too, and the oldest entry is deleted.
        """
        if after.id in self.resealed:
            for text, sealed in self.resealed[after.id].items():
                yield _ERROR_SWAP, (seq, text, sealed)
        elif len(after.history) > len(before.history):
            failure = after.history[-1]
            yield _ERROR_PUT, (seq, failure.at, failure.attempt, failure.origin, failure.error)
            yield _ERROR_TRIM, (seq, LONGEST_HISTORY)
        elif after.last_error is not None and after.last_error != before.last_error:
            yield _ERROR_PUT, (seq, self.now, None, 0, after.last_error)

    def _leave(self, record: Record) -> Exchange[None]:
        """Delete a job's row of `ready`, `running` or `done`."""
        stored = self.stored(record.id)
        if record.status in WAITING:
            line = stored.values["line"]
            yield _READY_DROP, (line or stored.values["qid"], record.priority, record.scheduled_at, record.id)
            if line is not None:
                yield from subqueues.leave(self, line)
        elif record.status is Status.RUNNING:
            yield _RUNNING_DROP, (stored.wid, stored.seq)
        else:
            yield _DONE_DROP, (record.id,)

    def _write_keys(self, seqs: dict[JobId, int]) -> Exchange[None]:
        for slot, before, after in self.key_changes():
            if isinstance(before, Kept):
                if after is None:
                    yield _GIVE_UP, (slot, before.job)
            elif isinstance(after, Kept):
                seq = seqs[after.job] if after.job in seqs else self.stored(after.job).seq
                if before is None:  # the success comes from another store
                    yield _HOLD, (slot, seq, 0)
                yield _KEEP, (slot, seq, *after)
            elif before is not None and after is None:
                yield _RELEASE, (slot, self.stored(before).seq)
        for before_, after_ in self.written():
            if after_ is not None and after_.held_slot is not None and _grip(before_) != _grip(after_):
                yield _HOLD, (after_.held_slot, seqs[after_.id], int(after_.holder is Holder.WEAK))
            if (
                before_ is not None
                and self._key_is_unreadable(before_)
                and (after_ is None or after_.held_slot is None)
            ):
                # The key cannot be read, so every key that the job holds is released.
                yield _RELEASE_ALL, (self.stored(before_.id).seq,)

    def _key_is_unreadable(self, record: Record) -> bool:
        return record.unique is None and self.stored(record.id).values["ukey"] is not None

    def _write_counts(self) -> Exchange[None]:
        for (queue, kind, status), n in self.counts().items():
            self.count((yield from self.use_queue(queue)).qid, kind, CODES[status], n)
        for (queue, kind, total), n in self.totals.items():
            self.count((yield from self.use_queue(queue)).qid, kind, TOTALS[total], n)
        for kind, error in self.last_errors.items():
            if error is None:
                yield _TROUBLE_OVER, (kind,)
            else:
                yield _TROUBLE, (kind, error)


def _grip(record: Record | None) -> tuple[str | None, bool]:
    """Return the key a job holds, and whether weakly."""
    if record is None or record.held_slot is None:
        return None, False
    return record.held_slot, record.holder is Holder.WEAK


def find(job: JobId, queue_name: Callable[[int], Exchange[str]]) -> Exchange[Stored | None]:
    """Read a stored job, whichever tables it is in."""
    # Outside a transaction a job may move to another table between two statements: read again.
    found: Stored | None = None
    for _ in range(3):
        rows: list[Row] = yield columns.SELECT, (job,)
        if not rows:
            return None
        queue = yield from queue_name(rows[0][columns.VIEW.index("qid")])
        held: list[Row] = []
        if rows[0][columns.VIEW.index("status")] is None:
            held = yield _RUNNING, (rows[0][0],)
        found = columns.read(rows[0], held[0] if held else None, queue)
        if found.record.unreadable != PLACELESS:
            break
    return found
