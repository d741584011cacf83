"""The unit of work on Redis: records are read, changed by `one_by_one`, and committed by compare-and-set.

For everything that is not hot: keyed inserts, follow-ups, operators' changes. The script that writes checks first what
was read. Either nothing changed meanwhile and it writes all, or it writes nothing and the engine repeats the unit. A
unit belongs to one shard: all keys of one call are on one server.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from stoker.engines.base import CONTROL
from stoker.engines.redis import groups, record_format, step_rows
from stoker.engines.redis.cluster.fan_out import spread
from stoker.engines.redis.control import read_queues
from stoker.engines.redis.keys import GROUPS, KEPT, RETRYING, STEPS, SUBQUEUE_KEYS, SUSPENDED, WAIT, WAKE, Keys, Shard
from stoker.engines.redis.record_format import CHARS, PARTS
from stoker.engines.redis.stored_job import NO_NOTES, StoredJob, as_record, notes_of, write_notes
from stoker.engines.redis.subqueues import slot_text
from stoker.engines.shared.unit_of_work import Hold, UnitOfWork, Wanted
from stoker.model.groups import Group, pack_members
from stoker.model.ids import JobId
from stoker.model.job import LISTED, LONGEST_HISTORY, Status
from stoker.model.record import WAITING, Record
from stoker.model.subqueues import freed, line_of, renumbers
from stoker.model.time import Instant
from stoker.model.unique import Kept

if TYPE_CHECKING:
    from stoker.engines.redis.store import Store

_ON_SUBQUEUES = frozenset({"JOIN", "QUIT", "FREE"})
"""Commands on the subqueues of a queue, which is their first argument."""

BODY = ("kind", "queue", "payload", "budget", *(part.field for part in PARTS))
"""The fields that only the body holds; priority and due time are in the state as well."""


class Unit(UnitOfWork):
    """Reads, checks and writes of one shard. `now` is the store's clock at the first read."""

    def __init__(self, store: Store, shard: Shard) -> None:
        super().__init__(0)
        self._store = store
        self.shard = shard
        self.rows: dict[JobId, StoredJob] = {}
        """The loaded jobs as stored."""
        self.completed: list[groups.Completed] = []
        """The groups that the commit has closed and that have callbacks, as the script names them."""
        self._stored_groups: dict[JobId, Group | None] = {}
        self.uses_subqueues = False
        """Whether what was encoded last touches subqueues."""
        self._noted: set[JobId] = set()
        self._stored_steps: dict[tuple[JobId, str], bytes] = {}
        """Rows as they were read, some without their values."""
        self._expected: set[JobId] = set()
        self._left_rows: set[JobId] = set()
        self._checks: list[tuple[str, str, Any, Any]] = []
        self._writes: list[tuple[str, str, tuple[Any, ...]]] = []

    # --- loading ------------------------------------------------------------------------------------------------

    async def load(self, wanted: Wanted) -> None:
        """Read what is not read yet, with the holders of keys and the settings of queues, in few round trips."""
        if wanted.signals:  # the commit checks the rows and the jobs, so either may be read first
            await asyncio.gather(self._load_jobs(wanted.ids), self._load_steps(wanted))
        await self._load_jobs(wanted.ids)
        slots = set(wanted.slots)
        records = [record for job in wanted.ids if (record := self.get(job)) is not None and record.slot is not None]
        slots |= {record.slot for record in records if record.slot and (wanted.revives or record.kept is not None)}
        await self._load_holders(slots)
        await self._load_queues({*wanted.queues, *(row.record.queue for row in self.rows.values())})
        if new := sorted(self.missing(Wanted(groups=wanted.groups)).groups):
            found = await spread(new, lambda group: groups.find(self._store, self.shard, group))
            for group, stored in zip(new, found, strict=True):
                self._stored_groups[group] = stored
                self.add_group(group, stored)
        await self._load_steps(wanted)

    async def _load_jobs(self, ids: Iterable[JobId]) -> None:
        missing = sorted(self.missing(Wanted(frozenset(ids))).ids)
        if not missing and self.now:
            return
        now, found = await self._store.read(self.shard, missing)
        self.now = self.now or now
        for job, row in zip(missing, found, strict=True):
            self.add_record(job, None if row is None else as_record(row))
            if row is not None:
                self.rows[job] = row

    async def _load_holders(self, slots: Iterable[str]) -> None:
        missing = sorted(self.missing(Wanted(slots=frozenset(slots))).slots)
        if not missing:
            return
        stored = await self._store.connection.call("HMGET", self.shard.key("keys"), *missing)
        found = [record_format.read_hold(one) for one in stored]
        await self._load_jobs(holder for holder in found if isinstance(holder, bytes))
        for slot, holder in zip(missing, found, strict=True):
            self.add_holder(slot, holder)

    async def _load_queues(self, names: Iterable[str]) -> None:
        missing = sorted(self.missing(Wanted(queues=frozenset(names))).queues)
        if missing:
            for queue in (await read_queues(self._store, self.shard, missing)).values():
                self.add_queue(queue)

    async def _load_steps(self, wanted: Wanted) -> None:
        missing = self.missing(Wanted(steps=wanted.steps, signals=wanted.signals))
        if missing.steps or missing.signals:
            self.add_rows(missing, await step_rows.read(self._store, self.shard, missing))

    def add_rows(self, wanted: Wanted, found: step_rows.Found) -> None:
        """Rows that were read for this unit, maybe together with those of other units."""
        self.now = self.now or found.now
        for queue in found.queues:
            if queue.name not in self._queues:
                self.add_queue(queue)
        rows = found.signaled | {place: found.rows[place] for place in wanted.steps if place in found.rows}
        self._stored_steps |= rows
        self.add_steps(wanted, ((job, record_format.read_step(name, row)) for (job, name), row in rows.items()))

    async def load_notes(self, ids: Sequence[JobId]) -> None:
        """Read what runs noted on loaded jobs: progress, metadata, log lines, and when they were asked to stop."""
        wanted = [job for job in dict.fromkeys(ids) if job in self.rows and job not in self._noted]
        if not wanted:
            return
        found = await self._store.connection.call("HMGET", self.shard.key("notes"), *wanted)
        for job, notes in zip(wanted, found, strict=True):
            self.rows[job].notes = notes
            self._noted.add(job)
            self.add_record(job, as_record(self.rows[job]))

    async def load_details(self, ids: Sequence[JobId]) -> None:
        """Read results, histories and notes of loaded jobs."""
        _, rows = await self._store.read(self.shard, [job for job in ids if job in self.rows], details=True)
        for row in rows:
            if row is not None:
                known = self.rows[row.record.id]
                known.notes = row.notes
                known.change(history=row.record.history, result=row.record.result)
                self._noted.add(row.record.id)
                self.add_record(row.record.id, as_record(known))

    def release(self, slot: str, job: JobId) -> None:
        """Treat a loaded key as free that its job releases in the same step."""
        if self._holders.get(slot) == job:
            self._holders[slot] = None

    def lapse(self, slot: str, now: Instant) -> bool:
        """Release a loaded key whose time is over; its entry among the kept ones goes in any case."""
        self.write("ZREM", self.shard.key(KEPT), slot)
        held = self._holders[slot]
        if not isinstance(held, Kept) or held.until > now:
            return False
        self._holders[slot] = None
        return True

    def forget(self, record: Record) -> None:
        """Delete a record that cannot be read; the caller takes it out of sets and counters."""
        self._forget(record)
        self._records[record.id] = None
        self.deleted.add(record.id)

    # --- other checks and writes --------------------------------------------------------------------------------

    def write(self, command: str, key: str, *args: Any) -> None:
        """Any command on any key of the shard, after the checks."""
        self._writes.append((command, key, args))

    def expect_hash(self, key: str, field: Any, raw: bytes | None) -> None:
        """Commit only if the field of a hash is still this."""
        self._checks.append(("-", key, field, b"") if raw is None else ("=", key, field, raw))

    def expect_job(self, job: JobId) -> None:
        """Commit only if a loaded job is still as it was read, although the unit may not change it."""
        self._expected.add(job)

    def expect_absent(self, job: JobId) -> None:
        """Commit only if no job of the shard has this id."""
        self._checks.append(("m", self.shard.key("jobs"), job, b""))

    def drop_steps(self, job: JobId) -> None:
        """Remove the rows of a job."""
        self.write("DROP_STEPS", self.shard.key(STEPS), job)

    def leave_steps(self, job: JobId) -> None:
        """Keep the rows of a job that the unit removes: it goes on in another shard."""
        self._left_rows.add(job)

    def expect_step(self, job: JobId, name: str) -> None:
        """Commit only if a loaded row is still as it was read."""
        self._checks.append(self._step_unchanged(job, name))

    def _step_unchanged(self, job: JobId, name: str) -> tuple[str, str, Any, Any]:
        stored = self._stored_steps.get((job, name))
        kind = "-" if stored is None else "=" if (job, name) in self._asked_steps else "^"
        return (kind, self.shard.key(STEPS), job + name.encode(), stored or b"")

    def expect_group(self, group: JobId) -> None:
        """Commit only if a group is sealed or not, missing or not, as it was read, and still open."""
        key, before = self.shard.group(group), self._stored_groups[group]
        self.expect_hash(key, "s", None if before is None else groups.state_of(before))
        self.expect_hash(key, "closed", None)

    # --- committing ---------------------------------------------------------------------------------------------

    @property
    def idle(self) -> bool:
        """Is there nothing to write?"""
        changed = self._writes or self.group_changes or self.changed_steps
        return not changed and next(self.written(), None) is None

    def encoded(self, keys: Keys) -> list[Any]:
        """The checks and writes as `lua/_commit.lua` reads them."""
        extra_checks, extra_writes = self._checks, self._writes
        self._checks, self._writes = list(extra_checks), []
        self._collect()
        self._collect_steps()
        self._writes += extra_writes
        self._collect_keys()
        self._collect_groups()
        self._collect_counts()
        checks, writes = self._checks, self._writes
        self._checks, self._writes = extra_checks, extra_writes
        args: list[Any] = [len(checks)]
        for kind, key, field, value in checks:
            number = keys.number(key) if kind != "l" else keys.subqueues(self.shard, value)
            if kind == "l":
                value = keys.number(self.shard.of_queue(WAIT, value))
            args += (kind, number, field, value)
        args.append(len(writes))
        for command, key, given in writes:
            number = keys.subqueues(self.shard, given[0]) if command in _ON_SUBQUEUES else keys.number(key)
            if command == "GROUP":
                given = (keys.number(self.shard.key(GROUPS)), *given)
            elif command == "QUIT":
                given = (given[0], keys.number(self.shard.of_queue(WAIT, given[0])), *given[1:])
            args += (command, number, len(given), *given)
        self.uses_subqueues = any(command in _ON_SUBQUEUES for command, _, _ in writes)
        return args

    def _collect(self) -> None:
        """The writes of all changed jobs; those that remove entries come first."""
        changes = list(self.written())
        for job in self._expected.difference(before.id for before, _ in changes if before is not None):
            if (record := self._before[job]) is not None:
                self._check(record)
        for before, after in changes:
            if before is not None:
                self._check(before)
                self._take_out(before, has_state=self.rows[before.id].raw is not None)
                self._free(before, after)
        for before, after in changes:
            if after is None:
                assert before is not None
                self._forget(before)
            else:
                self._put(before, after)

    def _collect_steps(self) -> None:
        """The rows of jobs, whose own writes come before."""
        key = self.shard.key(STEPS)
        for job in self.begun_anew:
            self.drop_steps(job)
        for copy, (job, after) in self.copied_steps.items():
            self.write("COPY_STEPS", key, job, copy, after or "")
        for job in self.changed_steps:
            for check, row in self.written_rows(job):
                self._checks.append(check)
                self.write(_put(check[0]), key, check[2], row)

    def written_rows(self, job: JobId) -> Iterator[tuple[tuple[str, str, Any, Any], bytes]]:
        """The rows of a job that the unit writes, each with the check of what was read; the check names the field."""
        for name, row in self.changed_steps.get(job, {}).items():
            yield self._step_unchanged(job, name), record_format.step(row)

    def new_rows(self, job: JobId) -> list[bytes] | None:
        """The field and the row of each row that the unit adds to a job. None: it changes a stored one."""
        found: list[bytes] = []
        for name, row in self.changed_steps.get(job, {}).items():
            if (job, name) in self._stored_steps:
                return None
            found += (job + name.encode(), record_format.step(row))
        return found

    def adopt_rows(self, other: Unit, job: JobId) -> None:
        """Write the rows of a job that another unit would write."""
        for check, row in other.written_rows(job):
            self._checks.append(check)
            self.write(_put(check[0]), check[1], check[2], row)

    def _check(self, record: Record) -> None:
        key, row = self.shard.key, self.rows[record.id]
        if row.raw is not None:
            self._checks.append(("=", key("state"), record.id, row.raw))
        else:
            entry = record_format.waiting_entry(record, has_state=False)
            self._checks.append(("-", key("state"), record.id, b""))
            if (subqueue := self._subqueue(record)) is None:
                self._checks.append(("w", self.shard.of_queue(WAIT, record.queue), entry, b""))
            else:
                place = f"{record.queue}/{subqueue}\0".encode() + entry
                self._checks.append(("l", self.shard.of_queue(SUBQUEUE_KEYS[0], record.queue), place, record.queue))

    def _put(self, before: Record | None, after: Record) -> None:
        key, job = self.shard.key, after.id
        rewritten = before is not None and any(getattr(before, name) != getattr(after, name) for name in BODY)
        if before is None:
            self._checks.append(("m", key("jobs"), job, b""))
        if rewritten:
            self.write("ZREMRANGEBYLEX", key("jobs"), b"[" + job, b"(" + job + b"\1")
        if before is None or rewritten:
            self.write("ZADD", key("jobs"), 0, record_format.body(after))
            self.write("HSETNX", key("queues"), f"{after.queue}/used", "1")
        if before is None and after.unique is not None:
            self.write("ZADD", key("named"), 0, after.unique.key.encode() + b"\0" + job)
        row = self.rows.get(job)
        has_state = before is not None or row is not None or after.status is not Status.PENDING or after.token > 0
        self._put_in(after, has_state=has_state, anew=renumbers(before, after))
        if has_state:
            errors, version = (len(after.history), 0) if row is None else (row.errors, row.version)
            self.write("HSET", key("state"), job, record_format.state(after, errors=errors, version=version + 1))
        if after.last_error is not None and (before is None or after.last_error != before.last_error):
            self.write("HSET", key("last"), job, after.last_error)
        if before is not None and job in self.resealed:
            self._put_resealed(before, after)
        if before is None:
            self._bring(after)
        self._put_notes(before, after)

    def _put_resealed(self, before: Record, after: Record) -> None:
        """Write the result and the ring of errors of a job whose values are in another form."""
        key, job, count = self.shard.key, after.id, self.rows[after.id].errors
        if after.result is not None and after.result != before.result:
            self.write("HSET", key("results"), job, after.result)
        for number, failure in enumerate(after.history, max(count - LONGEST_HISTORY, 0)):
            place = job + bytes((number % LONGEST_HISTORY,))
            self.write("HSET", key("errors"), place, record_format.failure(failure))

    def _bring(self, record: Record) -> None:
        """Write what only a job of another store has when it is stored first."""
        key, job, notes = self.shard.key, record.id, notes_of(record)
        if self.rows.get(job) is not None:  # it comes from another shard, which has sent all this
            return
        for place, failure in enumerate(record.history):
            self.write("HSET", key("errors"), job + bytes((place,)), record_format.failure(failure))
        if record.result is not None:
            self.write("HSET", key("results"), job, record.result)
        if notes != NO_NOTES:
            self.write("HSET", key("notes"), job, write_notes(notes))

    def _put_notes(self, before: Record | None, after: Record) -> None:
        if before is None or after.id not in self._noted:
            return
        notes = notes_of(after)
        if notes != notes_of(before):
            self._checks.append(_unchanged(self.shard.key("notes"), after.id, self.rows[after.id].notes))
            self.write("HSET", self.shard.key("notes"), after.id, write_notes(notes))

    def _forget(self, record: Record) -> None:
        """Delete a record and all that belongs to it, but its events."""
        job, key = record.id, self.shard.key
        self.write("ZREMRANGEBYLEX", key("jobs"), b"[" + job, b"(" + job + b"\1")
        for name in ("state", "last", "notes", "results", "corrupt"):
            self.write("HDEL", key(name), job)
        if errors := self.rows[job].errors:
            ring = (job + bytes((place,)) for place in range(min(errors, LONGEST_HISTORY)))
            self.write("HDEL", key("errors"), *ring)
        if record.unique is not None:
            self.write("ZREM", key("named"), record.unique.key.encode() + b"\0" + job)
        if job not in self._left_rows:
            self.drop_steps(job)

    def _subqueue(self, record: Record) -> str | None:
        """The subqueue that a stored waiting job stands in, if it does not stand in the waiting set; None: it must.

        A job without a limit may stand in either: its queue may have become fair, or not fair, since.
        """
        return line_of(record, fair=record.queue in self._store.with_subqueues)

    def _put_in(self, record: Record, *, has_state: bool, anew: bool) -> None:
        """Add a record's entries by its status."""
        if record.status in WAITING:
            entry = record_format.waiting_entry(record, has_state=has_state)
            settings = self._queues.get(record.queue)
            subqueue = line_of(record, fair=settings is not None and settings.fair)
            if subqueue is None:
                self.write("ZADD", self.shard.of_queue(WAIT, record.queue), 0, entry)
            else:
                slot = "" if record.options.limit is None else slot_text(record.options.limit)
                self._on_subqueue("JOIN", record.queue, subqueue, slot, "1" if anew else "", entry)
            if record.suspended:
                self.write("ZADD", self.shard.of_queue(SUSPENDED, record.queue), record.scheduled_at, record.id)
        self._place(record, add=True)

    def _take_out(self, record: Record, *, has_state: bool) -> None:
        """Remove a record's entries by its status."""
        if record.status in WAITING:
            self.leave(record.queue, self._subqueue(record), record_format.waiting_entry(record, has_state=has_state))
            if record.suspended:
                self.write("ZREM", self.shard.of_queue(SUSPENDED, record.queue), record.id)
        self._place(record, add=False)

    def restore(self, record: Record) -> None:
        """Give a job that stands in no list its entry again, if it is still as it was read."""
        row, key = self.rows[record.id], self.shard.key("state")
        self.expect_hash(key, record.id, row.raw)
        if row.raw is not None:
            # The unit has to write something that the check guards.
            self.write("HSET", key, record.id, row.raw)
        self._put_in(record, has_state=row.raw is not None, anew=False)
        self.woken.add(record.queue)

    def leave(self, queue: str, subqueue: str | None, entry: bytes) -> None:
        """Take a waiting entry out of a subqueue, or of the waiting set."""
        if subqueue is None:
            self.write("LEAVE", self.shard.of_queue(WAIT, queue), entry)
        else:
            self._on_subqueue("QUIT", queue, subqueue, entry)

    def free(self, queue: str, subqueue: str, job: JobId) -> None:
        """Give the slot of a job back; another one may wait for it."""
        self._on_subqueue("FREE", queue, subqueue, job)
        self.woken.add(queue)

    def _free(self, before: Record, after: Record | None) -> None:
        """Give the slot of a job back, if it held one and does no more."""
        place = freed(before, after)
        if place is not None:
            self.free(*place, before.id)

    def _on_subqueue(self, command: str, queue: str, *args: Any) -> None:
        self.write(command, self.shard.of_queue(SUBQUEUE_KEYS[0], queue), queue, *args)

    def _place(self, record: Record, *, add: bool) -> None:
        """Add a record's entries beside those of a waiting set, or remove them."""
        shard, job, status = self.shard, record.id, record.status
        if status in WAITING:
            if status is Status.RETRYING:
                self._member(add, shard.of_queue(RETRYING, record.queue), record.scheduled_at, job)
        elif status is Status.RUNNING:
            token = record_format.eight(record.token)
            self.write("HOLD" if add else "LET_GO", shard.held(record.worker or ""), token, job)
        else:
            self.write("ZADD" if add else "UNEND", shard.key("ends"), record.expires_at or 0, job)
            if add:
                self.write("SADD", shard.key("keeps"), (record.expires_at or 0) - (record.finished_at or 0))
        if status in LISTED:
            self._member(add, shard.key("unsuccessful"), 0, CHARS[status] + job)

    def _member(self, add: bool, key: str, score: int, member: bytes) -> None:
        self.write(*(("ZADD", key, score, member) if add else ("ZREM", key, member)))

    def _collect_keys(self) -> None:
        key = self.shard.key("keys")
        for slot, before, after in self.key_changes():
            self._checks.append(_unchanged(key, slot, _stored_hold(before)))
            self.write(*(("HDEL", key, slot) if after is None else ("HSET", key, slot, _stored_hold(after))))
            if isinstance(after, Kept):
                self.write("ZADD", self.shard.key(KEPT), after.until, slot)

    def _collect_groups(self) -> None:
        for group in self.changed_groups.values():
            self.expect_group(group.id)
            for command in groups.writes(self.shard, self._stored_groups[group.id], group):
                self.write(*command)
        for id_, placed in self.placed.items():
            before = self._stored_groups[id_]
            assert before is not None, "only a stored group goes on"
            self.expect_hash(self.shard.group(id_), "n", str(before.placed).encode() if before.placed else None)
            self.write("HSET", self.shard.group(id_), "n", placed)
        for id_, change in self.group_changes.items():
            numbers = (change.total, change.done, change.dead, change.canceled)
            members = pack_members(change.members)
            self.write("GROUP", self.shard.group(id_), *numbers, members, change.queue or "")

    def _collect_counts(self) -> None:
        key = self.shard.key
        for (queue, kind, status), n in self.counts().items():
            self.write("HINCRBY", key("counts"), f"{queue}/{kind}/{CHARS[status].decode()}", n)
        for (queue, kind, total), n in self.totals.items():
            self.write("HINCRBY", key("totals"), f"{kind}/{total}", n)
            if total == "enqueued":  # used, although a later draft of the same call may have moved its job elsewhere
                self.write("HSETNX", key("queues"), f"{queue}/used", "1")
        for kind, error in self.last_errors.items():
            field = f"{kind}/error"
            self.write(*(("HDEL", key("totals"), field) if error is None else ("HSET", key("totals"), field, error)))
        if not self._store.connection.cluster:
            for queue in sorted(self.woken - {CONTROL}):
                self.write("WAKE", self.shard.of_queue(WAKE, queue))


def _stored_hold(hold: Hold | None) -> bytes | None:
    return record_format.kept_key(hold) if isinstance(hold, Kept) else hold


def _unchanged(key: str, field: Any, raw: bytes | None) -> tuple[str, str, Any, Any]:
    return ("-", key, field, b"") if raw is None else ("=", key, field, raw)


def _put(check: str) -> str:
    """The command that stores a row whose check is of this kind."""
    return "NEW_STEP" if check == "-" else "STEP"
