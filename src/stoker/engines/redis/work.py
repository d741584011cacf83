"""A unit of work: records are read, changed in Python by the model's rules, and committed by compare-and-set.

For everything that is not hot: keyed inserts, follow-ups, what people change. The shape is *lift, change, place*, as in
the memory engine: `lift` takes a record out of its place, out of the counters and off its key, `place` puts it back by
what it has become. What was read is checked in the same script call that writes, so either nothing changed meanwhile
and all is written, or nothing is and the whole unit is done again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from stoker.engines.base import CONTROL
from stoker.engines.redis import records, tunings
from stoker.engines.redis.keys import AGAIN, WAIT, WAKE, Keys, Shard
from stoker.engines.redis.records import CHARS, ODD, Record
from stoker.model.ahead import wakes
from stoker.model.control import Queue
from stoker.model.ids import JobId
from stoker.model.job import ACTIVE, LONGEST_HISTORY, Status
from stoker.model.lifecycle import expiry
from stoker.model.time import Instant, Span
from stoker.model.unique import SUPERSEDED, Meeting, meet

if TYPE_CHECKING:
    from stoker.engines.redis.store import Store

WAITING = frozenset({Status.PENDING, Status.RETRYING})


class Work:
    """Reads, checks and writes of one shard. `now` is the store's clock at the first read."""

    def __init__(self, store: Store, shard: Shard) -> None:
        self._store = store
        self.shard = shard
        self.now: Instant = 0
        self.controls: set[str] = set()
        self.woken: set[str] = set()
        self._records: dict[JobId, Record | None] = {}
        self._slots: dict[str, JobId | None] = {}
        self._found_slots: dict[str, JobId | None] = {}
        self._queues: dict[str, Queue] = {}
        self._places: dict[JobId, tuple[str, bytes]] = {}
        self._touched: dict[JobId, Record] = {}
        self._placed: set[JobId] = set()
        self._created: set[JobId] = set()
        self._forgotten: set[JobId] = set()
        self._rewritten: set[JobId] = set()
        self._counts: Counter[str] = Counter()
        self._totals: Counter[str] = Counter()
        self._checks: list[tuple[str, str, Any, Any]] = []
        self._writes: list[tuple[str, str, tuple[Any, ...]]] = []

    # --- reading ------------------------------------------------------------------------------------------------

    async def load(self, ids: Sequence[JobId]) -> None:
        """Read records that are not read yet."""
        wanted = [job for job in dict.fromkeys(ids) if job not in self._records]
        if not wanted and self.now:
            return
        now, found = await self._store.read(self.shard, wanted)
        self.now = self.now or now
        for job, record in zip(wanted, found, strict=True):
            self._records[job] = record
            if record is not None and record.raw is None:
                self._places[job] = (record.queue, records.place(record, stated=False))

    async def load_keys(self, slots: Iterable[str]) -> None:
        """Read who holds these keys, with their records."""
        wanted = [slot for slot in dict.fromkeys(slots) if slot not in self._found_slots]
        if not wanted:
            return
        found = await self._store.connection.call("HMGET", self.shard.key("keys"), *wanted)
        await self.load([holder for holder in found if holder is not None])
        for slot, holder in zip(wanted, found, strict=True):
            self._found_slots[slot] = self._slots[slot] = holder

    async def load_queues(self, names: Iterable[str]) -> None:
        """Read the settings of queues."""
        wanted = [name for name in dict.fromkeys(names) if name not in self._queues]
        if wanted:
            self._queues.update(await tunings.read(self._store, self.shard, wanted))

    def get(self, job: JobId) -> Record | None:
        """A record that was loaded, as changed so far."""
        return self._records[job]

    def holder(self, slot: str) -> Record | None:
        """Who has the key now; its slot was loaded."""
        holder = self._slots.get(slot)
        return None if holder is None else self._records[holder]

    def queue(self, name: str) -> Queue:
        """A queue's settings; they were loaded."""
        return self._queues[name]

    # --- lift, change, place ------------------------------------------------------------------------------------

    def lift(self, record: Record) -> None:
        """Take a record out of its place, to change it."""
        self._touched[record.id] = record
        self._move(record, add=False)
        if record.status in ACTIVE and record.unique is not None:
            slot = record.unique.slot(record.kind)
            if self._slots.get(slot, record.id) == record.id:
                self._slots[slot] = None

    def place(self, record: Record) -> None:
        """Put a record where its status belongs."""
        self._touched[record.id] = record
        self._placed.add(record.id)
        self._move(record, add=True)
        if record.status in ACTIVE and record.unique is not None:
            self._slots[record.unique.slot(record.kind)] = record.id

    def create(self, record: Record, *, new: bool = True) -> None:
        """Store a record and, if it is new, count it as enqueued. Its id was loaded and there was none."""
        self._records[record.id] = record
        self._created.add(record.id)
        if new:
            self.total(record.kind, "enqueued")
        self.write("HSETNX", self.shard.key("queues"), f"{record.queue}/used", "1")
        if record.unique is not None:
            self.write("ZADD", self.shard.key("named"), 0, record.unique.key.encode() + b"\0" + record.id)
        self.place(record)
        if wakes(record.scheduled_at, self.now):
            self.wake(record.queue)

    def rewrite(self, record: Record) -> None:
        """Say that what the body holds has changed."""
        self._rewritten.add(record.id)
        self.write("HSETNX", self.shard.key("queues"), f"{record.queue}/used", "1")

    def forget(self, record: Record) -> None:
        """Delete a lifted record and all that belongs to it, but its events."""
        job, key = record.id, self.shard.key
        self._forgotten.add(job)
        self._records[job] = None
        self.write("ZREMRANGEBYLEX", key("jobs"), b"[" + job, b"(" + job + b"\1")
        for name in ("state", "last", "notes", "results", "corrupt"):
            self.write("HDEL", key(name), job)
        if record.errors:
            ring = (job + bytes((place,)) for place in range(min(record.errors, LONGEST_HISTORY)))
            self.write("HDEL", key("errors"), *ring)
        if record.unique is not None:
            self.write("ZREM", key("named"), record.unique.key.encode() + b"\0" + job)

    def finish(self, record: Record, status: Status, error: str | None = None, keep: Span | None = None) -> None:
        """Change a lifted record into a finished one; its queue was loaded."""
        queue = self.queue(record.queue)
        record.status = status
        record.worker = record.former = record.former_at = None
        record.finished_at = self.now
        record.expires_at = expiry(status, self.now, keep, queue.keep_done, queue.keep_dead)
        if error is not None:
            self.blame(record, error)

    def blame(self, record: Record, error: str) -> None:
        """Write the last error."""
        record.last_error = error
        self.write("HSET", self.shard.key("last"), record.id, error)

    def supersede(self, holder: Record) -> None:
        """End a weak holder: a newer job takes its key. Its queue was loaded."""
        self.lift(holder)
        self.finish(holder, Status.DEAD, SUPERSEDED)
        self.place(holder)

    async def key_is_free(self, record: Record) -> bool:
        """May this record become active? A weak holder of its key is ended on the way."""
        if record.unique is None:
            return True
        slot = record.unique.slot(record.kind)
        await self.load_keys([slot])
        holder = self.holder(slot)
        if holder is record:
            return True
        meeting = meet(records.grip(holder), "existing")
        if holder is not None and meeting is Meeting.SUPERSEDE:
            await self.load_queues([holder.queue])
            self.supersede(holder)
        return meeting is not Meeting.EXISTING

    def release(self, slot: str, job: JobId) -> None:
        """Act as if a job had let go of its key: in the same step it will have."""
        if self._slots.get(slot) == job:
            self._slots[slot] = None

    def _move(self, record: Record, *, add: bool) -> None:
        shard, job, status = self.shard, record.id, record.status
        self._counts[f"{record.queue}/{record.kind}/{CHARS[status].decode()}"] += 1 if add else -1
        if status in WAITING:
            line = shard.of_queue(WAIT, record.queue)
            stated = record.raw is not None or (job in self._placed and self._has_state(record))
            place = records.place(record, stated=stated)
            self.write(*(("ZADD", line, 0, place) if add else ("LEAVE", line, place)))
            if status is Status.RETRYING:
                self._member(add, shard.of_queue(AGAIN, record.queue), record.scheduled_at, job)
        elif status is Status.RUNNING:
            token = records.eight(record.token)
            self.write("HOLD" if add else "LET_GO", shard.held(record.worker or ""), token, job)
        else:
            self.write("ZADD" if add else "UNEND", shard.key("ends"), record.expires_at or 0, job)
        if status in ODD:
            self._member(add, shard.key("odd"), 0, CHARS[status] + job)

    def _has_state(self, record: Record) -> bool:
        """Does a record that was placed have a state? Of a new one that waits the body says everything."""
        return record.id not in self._created or record.raw is not None or record.status is not Status.PENDING

    def _member(self, add: bool, key: str, score: int, member: bytes) -> None:
        self.write(*(("ZADD", key, score, member) if add else ("ZREM", key, member)))

    # --- other writes -------------------------------------------------------------------------------------------

    def write(self, command: str, key: str, *args: Any) -> None:
        """Any command on any key of the shard, after the checks."""
        self._writes.append((command, key, args))

    def expect_hash(self, key: str, field: Any, raw: bytes | None) -> None:
        """Commit only if the field of a hash is still this."""
        self._checks.append(("-", key, field, b"") if raw is None else ("=", key, field, raw))

    def total(self, kind: str, what: str) -> None:
        """Count what became of a kind's job."""
        self._totals[f"{kind}/{what}"] += 1

    def trouble(self, kind: str, error: str | None) -> None:
        """Write or clear a kind's last error."""
        if error is None:
            self.write("HDEL", self.shard.key("totals"), f"{kind}/error")
        else:
            self.write("HSET", self.shard.key("totals"), f"{kind}/error", error)

    def wake(self, topic: str) -> None:
        """Wake a waiter when, and only if, this is committed."""
        (self.controls if topic == CONTROL else self.woken).add(topic)

    # --- the end ------------------------------------------------------------------------------------------------

    @property
    def idle(self) -> bool:
        """Is there nothing to write?"""
        return not (self._writes or self._touched)

    def encoded(self, keys: Keys) -> list[Any]:
        """The checks and writes as `lua/_commit.lua` reads them."""
        checks, writes = self._all_checks(), self._all_writes()
        args: list[Any] = [len(checks)]
        for kind, key, field, value in checks:
            args += (kind, keys.number(key), field, value)
        args.append(len(writes))
        for command, key, given in writes:
            args += (command, keys.number(key), len(given), *given)
        return args

    def _all_checks(self) -> list[tuple[str, str, Any, Any]]:
        key = self.shard.key
        checks = list(self._checks)
        for job, record in self._touched.items():
            if job in self._created:
                checks.append(("m", key("jobs"), job, b""))
            elif record.raw is not None:
                checks.append(("=", key("state"), job, record.raw))
            else:
                queue, place = self._places[job]
                checks.append(("-", key("state"), job, b""))
                checks.append(("w", self.shard.of_queue(WAIT, queue), place, b""))
        for slot, holder in self._slots.items():
            if slot in self._found_slots and holder != self._found_slots[slot]:
                found = self._found_slots[slot]
                checks.append(("-", key("keys"), slot, b"") if found is None else ("=", key("keys"), slot, found))
        return checks

    def _all_writes(self) -> list[tuple[str, str, tuple[Any, ...]]]:
        key = self.shard.key
        writes = list(self._writes)
        for job, record in self._touched.items():
            if job in self._forgotten:
                continue
            if job in self._rewritten and job not in self._created:
                writes.append(("ZREMRANGEBYLEX", key("jobs"), (b"[" + job, b"(" + job + b"\1")))
            if job in self._created or job in self._rewritten:
                writes.append(("ZADD", key("jobs"), (0, records.body(record))))
            if self._has_state(record):
                record.version += 1
                writes.append(("HSET", key("state"), (job, records.state(record))))
        for slot, holder in self._slots.items():
            if holder != self._found_slots.get(slot):
                writes.append(
                    ("HDEL", key("keys"), (slot,)) if holder is None else ("HSET", key("keys"), (slot, holder))
                )
            elif slot not in self._found_slots:
                writes.append(("HDEL", key("keys"), (slot,)))
        writes += [("HINCRBY", key("counts"), (field, n)) for field, n in self._counts.items() if n]
        writes += [("HINCRBY", key("totals"), (field, n)) for field, n in self._totals.items() if n]
        if not self._store.connection.cluster:
            writes += [("WAKE", self.shard.of_queue(WAKE, queue), ()) for queue in sorted(self.woken)]
        return writes
