"""The unit of work of one transaction: its instant, its counts, and the jobs it locks, changes and writes.

`load`, `load_drafts` and `write` are Postgres' part of the shared unit of work. Jobs are locked first, wherever they
are, then read in a statement of its own: what was read cannot change before the commit. The difference is written by
one statement, or a few where a table is changed twice (`Difference`). Counts are appended with it, one row for each
queue and kind. Nothing here outlives the transaction, so a rollback leaves nothing to repair.

Locks are taken in one order: the row of `ready`, `done` or `lease` that a job is in, then keys.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from stoker.engines.postgres import columns, step_rows, subqueues
from stoker.engines.postgres.columns import CODES, DONE, PENDING, RUNNING, Stored
from stoker.engines.postgres.statements import changed_table, sql
from stoker.engines.shared.one_by_one import wanted_by_drafts
from stoker.engines.shared.unit_of_work import Wanted, Written
from stoker.engines.sql.exchanges import Exchange, Row, Together
from stoker.engines.sql.one_by_one import SqlUnit
from stoker.engines.sql.packing import legible, pack_queue, read_options, read_queue
from stoker.model.archive import Archived
from stoker.model.control import Queue
from stoker.model.errors import EngineBusy
from stoker.model.groups import Group, pack_callbacks
from stoker.model.ids import JobId
from stoker.model.job import ACTIVE, LONGEST_HISTORY, Draft, Status
from stoker.model.record import WAITING, Record, Total
from stoker.model.subqueues import AT_ONCE, freed, line_of, renumbers
from stoker.model.time import Instant
from stoker.model.unique import Kept, Meeting, Unique, meet

ENQUEUED, COMPLETED, RETRIES, FAILED, CANCELS = range(8, 13)
"""Totals since the store was created, counted beside the statuses."""

NUMBERS = 13
TOTALS: dict[Total, int] = {
    "enqueued": ENQUEUED,
    "completed": COMPLETED,
    "retried": RETRIES,
    "failed": FAILED,
    "canceled": CANCELS,
}

MOST_ROUNDS = 100
"""A job that changes its place this often while it is looked for is reported as busy."""

CHANGES_HOLDER = frozenset({Meeting.SUPERSEDE, Meeting.REPLACE})

_DELTA = sql("delta")
_QUEUES, _QUEUE_LOCK, _QUEUE_WRITE = sql("queues_named"), sql("queue_lock"), sql("queue_write")
_KNOWN = sql("known")
_LOCK_READY, _LOCK_DONE, _LOCK_LEASES = sql("lock_ready"), sql("lock_done"), sql("lock_leases")
_LOAD = sql("load")
_TAKE_KEYS, _HOLDERS, _PASS_KEYS = sql("take_keys"), sql("holders"), sql("pass_keys")
_RELEASE_KEYS, _RELEASE_ALL_KEYS = sql("release_keys"), sql("release_all_keys")
_KEEP_KEYS, _LAPSE_KEYS = sql("keep_keys"), sql("lapse_keys")
_CREATE, _REWRITE, _BRING = sql("create"), sql("rewrite_job"), sql("bring")
_READY_DROP, _DONE_DROP = sql("ready_drop"), sql("done_drop")
_LEASE_CLOSE, _LEASE_DROP, _LEASE_ASK = sql("lease_close"), sql("lease_drop"), sql("lease_ask")
_PUT_READY, _PUT_DONE, _PUT_PAST = sql("put_ready"), sql("put_done"), sql("put_past")
_MOVE_READY = sql("move_ready")
_PUT_FAILURE, _TRIM, _TROUBLE = sql("put_failure"), sql("trim"), sql("trouble")
_SWAP_FAILURE = sql("swap_failure")
_ERASE = sql("erase_job"), sql("erase_past"), sql("erase_failure"), sql("erase_step")
_COPY_STEPS, _READY_COPIED = sql("copy_steps"), sql("ready_copied")
_REMOVE_EVENTS = sql("remove_events")
_PLACELESS = sql("placeless")
_GROUP_SHARE, _KNOWN_OPTIONS = sql("group_share"), sql("known_options")
_GROUP_OWN, _GROUP_PLACE = sql("group_own"), sql("group_place")
_GROUP_MAKE, _GROUP_JOIN, _GROUP_CHANGE = sql("group_make"), sql("group_join"), sql("group_change")


class Place(NamedTuple):
    """Where a running job is: its lease, its bit in it, and how many bits there are."""

    lease: int
    bit: int
    size: int


class Hold(NamedTuple):
    """Who holds a key; `firm`: also while that job waits for a retry."""

    job: JobId
    firm: bool


class Difference:
    """Statements that change rows, in order, sent as few as possible.

    Parts of one statement see the same snapshot, and in no known order: so none changes a table that another one
    changes, and a second change of a table begins the next statement.
    """

    def __init__(self) -> None:
        self._statements: list[list[tuple[str, Row]]] = [[]]
        self._tables: set[str] = set()

    def add(self, *parts: tuple[str, Row]) -> None:
        """Add a change of one table; several parts of it change different rows."""
        table = changed_table(parts[0][0])
        if table in self._tables:
            self._statements.append([])
            self._tables.clear()
        self._tables.add(table)
        self._statements[-1].extend(parts)

    def send(self) -> Exchange[None]:
        for parts in self._statements:
            if parts:
                yield Together(tuple(parts))


class Unit(SqlUnit):
    """One transaction."""

    def __init__(self, now: Instant) -> None:
        super().__init__(now)
        self._deltas: dict[tuple[str, str], list[int]] = {}
        self._stored: dict[JobId, Stored] = {}
        self._places: dict[JobId, Place] = {}
        self._taken: dict[str, Hold] = {}
        self.signaled: set[JobId] | None = None
        """Those of the signaled jobs that have not ended, where the transaction began by locking them."""
        self.touched_groups: set[JobId] = set()
        """Groups that may be complete after the commit."""

    # --- counts -------------------------------------------------------------------------------------------------

    def count(self, queue: str, kind: str, what: int, n: int = 1) -> None:
        """Count a status or a total up or down."""
        numbers = self._deltas.get((queue, kind))
        if numbers is None:
            numbers = self._deltas[queue, kind] = [0] * NUMBERS
        numbers[what] += n

    def end(self) -> Exchange[None]:
        """Append what was counted since the last write."""
        counted = Difference()
        self._add_deltas(counted)
        yield from counted.send()

    def _add_deltas(self, difference: Difference) -> None:
        rows = [(*key, *numbers) for key, numbers in self._deltas.items() if any(numbers)]
        self._deltas.clear()
        if rows:
            names, kinds, *numbers = transposed(rows)
            difference.add((_DELTA, (names, kinds, *([n or None for n in column] for column in numbers))))

    # --- queues -------------------------------------------------------------------------------------------------

    def load_queues(self, names: Iterable[str]) -> Exchange[None]:
        """Read queues by name, as stored or with defaults."""
        missing = sorted(self.missing(Wanted(queues=frozenset(names))).queues)
        if missing:
            found = {queue.name: queue for queue in map(read_queue, (yield _QUEUES, (missing,)))}
            for name in missing:
                self.add_queue(found.get(name, Queue(name=name)))

    def lock_queue(self, name: str) -> Exchange[None]:
        """Lock a queue's row and read it again; it is inserted if it is not there yet."""
        [row] = yield _QUEUE_LOCK, pack_queue(Queue(name=name))
        self.add_queue(read_queue(row))

    def write_queue(self, queue: Queue) -> Exchange[None]:
        """Store a queue's settings and cool-down."""
        yield _QUEUE_WRITE, pack_queue(queue)

    # --- loading ------------------------------------------------------------------------------------------------

    def load(self, wanted: Wanted) -> Exchange[None]:
        """Lock and read jobs; where they may be revived, also their payloads and the holders of their keys."""
        wanted = self.missing(wanted)
        if wanted.signals:
            yield from self._load_signaled(wanted)
            wanted = self.missing(wanted)
        places = yield from _lock(wanted.ids)
        yield from self.load_places(places, payloads=wanted.revives)
        for job in wanted.ids - places.keys():
            self.add_record(job, None)
        if wanted.revives:
            yield from self._load_revived(places)
        yield from self.load_queues(wanted.queues)
        if wanted.steps:
            yield from step_rows.load(self, self.missing(Wanted(steps=wanted.steps, revives=wanted.revives)))

    def _load_signaled(self, wanted: Wanted) -> Exchange[None]:
        """Lock the jobs that are signaled, and read those that wait, with their rows; others are only looked at.

        A signal changes nothing about a job that runs, so it locks no lease, and about one that has ended nothing.
        """
        ids = {job for job, _ in wanted.signals}
        active = self.signaled if self.signaled is not None else (yield from step_rows.lock(ids))
        waiting = [job for (job,) in (yield _LOCK_READY, (sorted(active),))] if active else []
        yield from self.load_places(dict.fromkeys(waiting))
        ended = sorted(ids - active)
        known = {job for job, *_ in (yield _KNOWN, (ended,))} if ended else set()
        for job in ids.difference(waiting):
            if job in active:
                self.add_record(job, _bystander(job, RUNNING))
            else:
                self.add_record(job, _bystander(job, DONE) if job in known else None)
        yield from step_rows.load(self, wanted)

    def load_places(self, places: Mapping[JobId, Place | None], *, payloads: bool = False) -> Exchange[None]:
        """Read jobs that are locked; without a place one that does not run. One that is not found is None."""
        if not places:
            return
        leases = [None if place is None else place.lease for place in places.values()]
        bits = [None if place is None else place.bit for place in places.values()]
        for job in places:
            self.add_record(job, None)
        for row in (yield _LOAD, (list(places), leases, bits, payloads)):
            stored = columns.read(row)
            self._stored[stored.record.id] = stored
            self.add_record(stored.record.id, stored.record)
        self._places.update((job, place) for job, place in places.items() if place is not None)
        yield from self.load_queues({self._stored[job].record.queue for job in places if job in self._stored})

    def stored(self, job: JobId) -> Stored:
        """Return a loaded job with its columns."""
        return self._stored[job]

    def load_drafts(self, drafts: Sequence[Draft], group: Group | None = None, *, joins: bool = True) -> Exchange[None]:
        """Find out which drafts are stored already, and take the keys of the others or lock who holds them.

        Groups that drafts join are kept from closing; without `joins` they are not read.
        """
        if joins and group is not None and group.placed:
            yield from self._own_group(group)
        if joins:
            yield from self._load_groups(wanted_by_drafts(drafts, group).groups)
            yield from self._load_members([draft.job_id for draft in drafts if draft.options.group is not None])
        new = sorted(self.missing(Wanted(frozenset(draft.job_id for draft in drafts))).ids)
        rows: list[Row] = (yield _KNOWN, (new,)) if new else []
        known = {job: msgspec.structs.replace(_bystander(job), kind=kind, queue=queue) for job, kind, queue in rows}
        for job in new:
            self.add_record(job, known.get(job))
        contest: dict[str, list[tuple[JobId, Unique]]] = {}
        for draft in drafts:
            if draft.unique is not None and self.get(draft.job_id) is None:
                contest.setdefault(draft.unique.slot(draft.kind), []).append((draft.job_id, draft.unique))
        yield from self._load_keys(contest)

    def load_archived(self, jobs: Sequence[Archived]) -> Exchange[None]:
        """Find out which jobs of another store are stored already, and take the keys that the others hold or keep."""
        new = sorted({one.record.id for one in jobs})
        known = {job for job, *_ in (yield _KNOWN, (new,))}
        for job in new:
            self.add_record(job, _bystander(job) if job in known else None)
        contest: dict[str, list[tuple[JobId, Unique]]] = {}
        for one in jobs:
            record = one.record
            if (
                record.unique is None
                or record.slot is None
                or record.id in known
                or (record.held_slot is None and record.kept is None)
            ):
                continue
            contest.setdefault(record.slot, []).append((record.id, Unique("-", hold=record.unique.hold)))
        yield from self._load_keys(contest)

    def _own_group(self, group: Group) -> Exchange[None]:
        """Lock a group in which its maker places drafts, and make it if it is new: of two calls one comes first."""
        callbacks = pack_callbacks(group).decode()
        yield _GROUP_MAKE, (group.id, self.now, 0, group.sealed, group.abandoned, None, callbacks, [])
        yield _GROUP_OWN, (group.id,)

    def _load_groups(self, ids: Iterable[JobId]) -> Exchange[None]:
        missing = sorted(self.missing(Wanted(groups=frozenset(ids))).groups)
        if not missing:
            return
        rows = yield _GROUP_SHARE, (missing,)
        found = {
            id_: Group(id=id_, sealed=sealed, abandoned=abandoned, closed_at=closed, placed=placed)
            for id_, sealed, abandoned, closed, placed in rows
        }
        for id_ in missing:
            self.add_group(id_, found.get(id_))

    def _load_members(self, ids: Iterable[JobId]) -> Exchange[None]:
        """Read of which groups stored jobs are members that are to join one."""
        missing = sorted(self.missing(Wanted(frozenset(ids))).ids)
        for job, options in (yield _KNOWN_OPTIONS, (missing,)) if missing else ():
            self.add_record(job, msgspec.structs.replace(_bystander(job), options=read_options(options)))

    def _load_revived(self, jobs: Iterable[JobId]) -> Exchange[None]:
        contest: dict[str, list[tuple[JobId, Unique]]] = {}
        records = [self._stored[job].record for job in jobs]
        for record in records:
            if record.held_slot is not None:
                self.add_holder(record.held_slot, record.id)
        for record in records:
            if record.unique is not None and record.status not in ACTIVE:
                contest.setdefault(record.unique.slot(record.kind), []).append((record.id, record.unique))
        yield from self._load_keys(contest)

    def _load_keys(self, contest: Mapping[str, list[tuple[JobId, Unique]]]) -> Exchange[None]:
        """Take free keys for the first job that wants each, and load the holders of the others.

        A key can change hands between two statements: a key whose holder is not found is asked for again. Only a
        holder that is going to be changed is locked, so that no transaction holds up a job it merely names.
        """
        left = {slot: contest[slot] for slot in self.missing(Wanted(slots=frozenset(contest))).slots}
        while left:
            yield from self._take_keys(left)
            if not left:
                return
            waiting: dict[JobId, str] = {}
            lapsed: list[str] = []
            for slot, job, firm, status, until in (yield _HOLDERS, (list(left),)):
                if until is not None:
                    if until <= self.now:
                        lapsed.append(slot)
                        continue
                    self.add_holder(slot, Kept(job, until))
                    del left[slot]
                    continue
                bystander = _bystander(job, status, firm=firm)
                if job not in self._stored:
                    if any(meet(bystander.holder, unique.mode) in CHANGES_HOLDER for _, unique in left[slot]):
                        waiting[job] = slot
                        continue
                    self._add_bystander(bystander)
                self.add_holder(slot, job)
                del left[slot]
            if lapsed:
                yield _LAPSE_KEYS, (lapsed, self.now)
            if waiting:
                locked = [job for (job,) in (yield _LOCK_READY, (sorted(waiting),))]
                yield from self.load_places(dict.fromkeys(locked))
                for job in locked:
                    self.add_holder(waiting[job], job)
                    del left[waiting[job]]

    def _add_bystander(self, record: Record) -> None:
        """Add the holder of a key; a draft may have named the job by its id before, with the group it is in."""
        known = None if self.missing(Wanted(frozenset({record.id}))).ids else self.get(record.id)
        self.add_record(record.id, record if known is None else msgspec.structs.replace(record, options=known.options))

    def delete(self, record: Record) -> None:
        """Remove a job at an operator's request; its key is released only if the job has it."""
        kept = record.kept
        if record.slot is not None and kept is not None and kept.until > self.now:
            self._holders_before.setdefault(record.slot, kept)
            self._holders.setdefault(record.slot, kept)
        super().delete(record)

    def _take_keys(self, left: dict[str, list[tuple[JobId, Unique]]]) -> Exchange[None]:
        """Take the free ones of the keys; they leave `left`."""
        wanted = {slot: Hold(contenders[0][0], _firm(contenders[0][1])) for slot, contenders in left.items()}
        jobs, firms = [hold.job for hold in wanted.values()], [hold.firm for hold in wanted.values()]
        for (slot,) in (yield _TAKE_KEYS, (list(wanted), jobs, firms)):
            self._taken[slot] = wanted[slot]
            self.add_holder(slot, None)
            del left[slot]

    def undo(self) -> Exchange[None]:
        """Release the keys that loading took, and forget everything that was loaded."""
        if self._taken:
            yield _RELEASE_KEYS, (list(self._taken), [hold.job for hold in self._taken.values()])
        self._forget()

    def _forget(self) -> None:
        self._stored.clear()
        self._places.clear()
        self._taken.clear()
        self.clear()

    # --- writing ------------------------------------------------------------------------------------------------

    def write(self) -> Exchange[bool]:
        """Write what `one_by_one` decided, and forget what was loaded."""
        changes = list(self.written())
        new = [after for before, after in changes if before is None and after is not None]
        created, brought = (
            [one for one in new if one.is_fresh(self.now)],
            [one for one in new if not one.is_fresh(self.now)],
        )
        if created and not (yield from self._create(created)):
            return False
        if brought and not (yield from self._bring(brought)):
            return False
        changed = [(before, after) for before, after in changes if before is not None]
        yield from self.load_queues({after.queue for _, after in changed if after is not None})
        difference = Difference()
        self._leave(difference, changed)
        blank = [(self.stored(one.id).record, one) for one in brought]
        self._enter(difference, [*((before, after) for before, after in changed if after is not None), *blank])
        self._remove(difference, [before for before, after in changed if after is None])
        self._write_keys(difference, changes)
        self._write_counts(difference, created, changed)
        for one in brought:
            self.count(one.queue, one.kind, CODES[one.status])
        for queue in self.changed_queues.values():
            difference.add((_QUEUE_WRITE, pack_queue(queue)))
        if self.copied_steps:
            copies = list(self.copied_steps)
            jobs, afters = zip(*self.copied_steps.values(), strict=True)
            difference.add((_COPY_STEPS, (list(jobs), copies, list(afters))))
            difference.add((_READY_COPIED, (copies,)))
        if self.begun_anew:
            difference.add((_ERASE[-1], (sorted(self.begun_anew),)))
        if self.changed_steps:
            difference.add(step_rows.put(self.changed_steps))
        yield from self._make_groups()
        for id_, placed in self.placed.items():
            difference.add((_GROUP_PLACE, (id_, placed)))
        self._change_groups(difference)
        self._write_log(difference, changes)
        yield from difference.send()
        self._forget()
        return True

    def _write_log(self, difference: Difference, changes: list[Written]) -> None:
        """Note what became of subqueues; new jobs noted it as they were stored."""
        log: list[subqueues.Entry] = []
        for before, after in changes:
            if before is None and after is not None and after.status in WAITING and not after.is_fresh(self.now):
                when, options = max(after.scheduled_at, self.now), columns.packed_options(after.options)
                if (joined := self._line(after)) is not None:
                    log.append(subqueues.Entry(after.queue, joined, 0, when, options, anew=True))
            if before is None:
                continue
            if (slot := freed(before, after)) is not None:
                log.append(subqueues.Entry(*slot, freed=1))
                self.woken.add(slot[0])
            line = self.stored(before.id).values["line"] if before.status in WAITING else None
            if line is not None and "/" in line:
                queue, _, name = line.partition("/")
                log.append(subqueues.Entry(queue, name, look=AT_ONCE))
            if after is not None and after.status in WAITING and (joined := self._line(after)) is not None:
                when, anew = max(after.scheduled_at, self.now), renumbers(before, after)
                options = columns.packed_options(after.options)
                log.append(subqueues.Entry(after.queue, joined, 0, when, options, anew))
        if log:
            difference.add(subqueues.appended(log))

    def _line(self, record: Record) -> str | None:
        """Return the subqueue that a waiting job stands in."""
        return line_of(record, fair=self.queue(record.queue).fair)

    def _make_groups(self) -> Exchange[None]:
        """Insert new groups with their first members."""
        changes = self.group_changes
        self.touched_groups.update(id_ for id_, change in changes.items() if change.waiting <= 0)
        for group in self.changed_groups.values():
            first = group.counted(changes[group.id], self.now)
            flags = (first.sealed, first.abandoned, first.queue, pack_callbacks(first).decode())
            if (yield _GROUP_MAKE, (first.id, self.now, first.total, *flags, list(first.members))):
                del changes[group.id]

    def _change_groups(self, difference: Difference) -> None:
        """Append what became of the members of other groups."""
        ends: list[Row] = []
        for id_, change in self.group_changes.items():
            numbers = (change.total, change.done, change.dead, change.canceled)
            if change.members:
                difference.add((_GROUP_JOIN, (id_, self.now, *numbers, change.queue, change.members)))
            elif any(numbers):
                ends.append((id_, *numbers))
        if ends:
            ids, *columns_ = transposed(ends)
            difference.add((_GROUP_CHANGE, (ids, self.now, *columns_)))

    def _create(self, records: list[Record]) -> Exchange[bool]:
        """Store new jobs; False, with nothing stored, if another transaction has just stored one of the ids."""
        stored = {job for (job,) in (yield _CREATE, (self.now, *columns.record_columns(records)))}
        if len(stored) == len(records):
            return True
        ids = list(stored)
        yield Together(((_READY_DROP, (ids,)), *erasure(ids)))
        for record in records:
            if record.id in stored:
                self.count(record.queue, record.kind, PENDING, -1)
                self.count(record.queue, record.kind, ENQUEUED, -1)
        yield from self.undo()
        return False

    def _bring(self, records: list[Record]) -> Exchange[bool]:
        """Store the bodies of jobs of another store; `_enter` writes the rest. False, with nothing stored: as above."""
        rows = transposed([columns.brought_row(record) for record in records])
        stored = {job for (job,) in (yield _BRING, tuple(rows))}
        if len(stored) < len(records):
            yield Together(tuple(erasure(list(stored))))
            yield from self.undo()
            return False
        for record in records:
            self._stored[record.id] = columns.blank(record)
        yield from self.load_queues({record.queue for record in records})
        return True

    def _leave(self, difference: Difference, changed: list[tuple[Record, Record | None]]) -> None:
        """Delete rows of `ready` and `done`, and clear bits in leases."""
        ready: list[JobId] = []
        done: list[JobId] = []
        closed: list[Place] = []
        asked: list[Place] = []
        for before, after in changed:
            if before.status in WAITING:
                if not self._goes_on_waiting(before.id, after):
                    ready.append(before.id)
            elif before.status is not Status.RUNNING:
                done.append(before.id)
            elif after is None or after.status is not Status.RUNNING:
                closed.append(self._places[before.id])
            elif after.cancel_requested and not before.cancel_requested:
                asked.append(self._places[before.id])
        if ready:
            difference.add((_READY_DROP, (ready,)))
        if done:
            difference.add((_DONE_DROP, (done,)))
        if closed:
            bits = masks(closed)
            difference.add((_LEASE_CLOSE, bits), (_LEASE_DROP, bits))
        if asked:
            difference.add((_LEASE_ASK, masks(asked)))

    def _goes_on_waiting(self, job: JobId, after: Record | None) -> bool:
        """Return whether a job has a row of `ready` and keeps one, which is changed where it is."""
        return after is not None and after.status in WAITING and self.stored(job).values["line"] is not None

    def _enter(self, difference: Difference, changed: list[tuple[Record, Record]]) -> None:
        """Write what a changed job is now."""
        bodies: list[Row] = []
        pasts: list[Row] = []
        ready: list[Row] = []
        moved: list[Row] = []
        done: list[Row] = []
        failures: list[Row] = []
        swaps: list[Row] = []
        long: list[JobId] = []
        for before, after in changed:
            stored = self.stored(after.id)
            body_due = stored.values["body_due"]
            if columns.changes_body(before, after):
                bodies.append(columns.body_row(after, stored))
                body_due = after.scheduled_at
            past = stored.has_past or columns.needs_past(after, body_due=body_due)
            if past:
                pasts.append(columns.past_row(after, stored))
            if after.status in WAITING:
                rows = moved if self._goes_on_waiting(after.id, after) else ready
                rows.append(columns.ready_row(after, self._line(after), past=past))
            elif after.status is not Status.RUNNING:
                done.append(columns.done_row(after))
            if after.id in self.resealed:
                swaps += ((after.id, legible(text), legible(new)) for text, new in self.resealed[after.id].items())
            elif not before.created_at:  # it comes from another store
                failures += [(after.id, *columns.error_row(one)) for one in after.errors]
            elif len(after.history) > len(before.history):
                failure = after.history[-1]
                failures.append((after.id, failure.at, failure.attempt, failure.origin, legible(failure.error)))
                if failure.attempt > LONGEST_HISTORY:
                    long.append(after.id)
            elif after.last_error is not None and after.last_error != before.last_error:
                failures.append((after.id, self.now, None, 0, legible(after.last_error)))
        for statement, rows in (
            (_REWRITE, bodies),
            (_PUT_PAST, pasts),
            (_MOVE_READY, moved),
            (_PUT_READY, ready),
            (_PUT_DONE, done),
            (_PUT_FAILURE, failures),
            (_SWAP_FAILURE, swaps),
        ):
            if rows:
                difference.add((statement, tuple(transposed(rows))))
        if long:
            difference.add((_TRIM, (long, LONGEST_HISTORY)))

    def _remove(self, difference: Difference, records: list[Record]) -> None:
        if records:
            for part in erasure([record.id for record in records]):
                difference.add(part)
        if self.deleted:
            difference.add((_REMOVE_EVENTS, (sorted(self.deleted), self.now)))

    def _write_keys(self, difference: Difference, changes: list[Written]) -> None:
        """Release keys, and pass others to the jobs that hold them now."""
        released = {slot: hold.job for slot, hold in self._taken.items() if self.holder(slot) is None}
        kept: dict[str, Kept] = {}
        for slot, before, after in self.key_changes():
            if isinstance(after, Kept):
                kept[slot] = after
            elif before is not None and after is None:
                released[slot] = before.job if isinstance(before, Kept) else before
        released = {slot: job for slot, job in released.items() if slot not in kept}
        passed: dict[str, Hold] = {}
        for before_, after_ in changes:
            grip = _grip(after_)
            if grip is not None and grip != _grip(before_) and self._taken.get(grip[0]) != grip[1]:
                passed[grip[0]] = grip[1]
        if kept:
            jobs, ends = [one.job for one in kept.values()], [one.until for one in kept.values()]
            difference.add((_KEEP_KEYS, (list(kept), jobs, ends)))
        if released:
            difference.add((_RELEASE_KEYS, (list(released), list(released.values()))))
        if passed:
            jobs, firms = [hold.job for hold in passed.values()], [hold.firm for hold in passed.values()]
            difference.add((_PASS_KEYS, (list(passed), jobs, firms)))
        unreadable = [
            before.id
            for before, after in changes
            if before is not None
            and self.stored(before.id).key_is_unreadable
            and (after is None or after.status not in ACTIVE)
        ]
        if unreadable:
            difference.add((_RELEASE_ALL_KEYS, (unreadable,)))

    def _write_counts(
        self, difference: Difference, created: list[Record], changed: list[tuple[Record, Record | None]]
    ) -> None:
        """Count changed jobs, and write the last errors of kinds.

        New jobs were counted as they were stored: under their last queue and kind, if a draft of the same call replaced
        them.
        """
        for before, after in changed:
            if before.counted:
                self.count(before.queue, before.kind, CODES[before.status], -1)
            if after is not None:
                self.count(after.queue, after.kind, CODES[after.status])
        for record in created:
            self.count(record.queue, record.kind, ENQUEUED, -1)
        for (queue, kind, total), n in self.totals.items():
            self.count(queue, kind, TOTALS[total], n)
        if self.last_errors:
            errors = [None if error is None else legible(error) for error in self.last_errors.values()]
            difference.add((_TROUBLE, (list(self.last_errors), errors)))
        self._add_deltas(difference)


# --- locking ----------------------------------------------------------------------------------------------------


def _lock(ids: Iterable[JobId]) -> Exchange[dict[JobId, Place | None]]:
    """Lock jobs wherever they are; a running one is returned with its place.

    A job can be claimed or put back between two statements. Each round looks again for those not found yet; a job that
    was found is locked and stays. The rounds end when every stored job was found.
    """
    left = set(ids)
    found: dict[JobId, Place | None] = {}
    for _ in range(MOST_ROUNDS):
        for statement in (_LOCK_READY, _LOCK_DONE, _LOCK_LEASES):
            if not left:
                break
            for job, *place in (yield statement, (sorted(left),)):
                found[job] = Place(*place) if place else None
                left.discard(job)
        if left:
            left = {job for job, *_ in (yield _KNOWN, (sorted(left),))}
        if left:
            # One statement sees one snapshot: what is in no place there is in none, and stays so.
            placeless = [job for (job,) in (yield _PLACELESS, (sorted(left),))]
            found.update(dict.fromkeys(placeless))
            left.difference_update(placeless)
        if not left:
            return found
    raise EngineBusy(f"{len(left)} of the jobs changed hands faster than they could be looked at. Try again")


def _bystander(job: JobId, status: int | None = PENDING, *, firm: bool = False) -> Record:
    """A job that the transaction names and does not change: only what it is and how it holds its key count."""
    return Record(
        id=job,
        kind="",
        queue="",
        payload=b"",
        priority=0,
        budget=0,
        created_at=0,
        scheduled_at=0,
        unique=Unique("-", hold="retrying" if firm else "active"),
        status=Status.RUNNING if status is None else columns.STATUSES[status],
    )


def _firm(unique: Unique) -> bool:
    return unique.hold == "retrying"


def _grip(record: Record | None) -> tuple[str, Hold] | None:
    """Return the key a job holds, and how."""
    if record is None or record.unique is None or record.held_slot is None:
        return None
    return record.held_slot, Hold(record.id, _firm(record.unique))


# --- rows -------------------------------------------------------------------------------------------------------


def erasure(ids: list[JobId]) -> list[tuple[str, Row]]:
    """Return the statements that delete bodies with what earlier runs left."""
    return [(statement, (ids,)) for statement in _ERASE]


def transposed(rows: Sequence[Row]) -> list[list[Any]]:
    """Return rows as columns."""
    return [list(column) for column in zip(*rows, strict=True)]


def masks(places: Iterable[Place]) -> tuple[list[int], list[str]]:
    """Return one mask of bits for each lease: an update takes one of several matches only."""
    bits: dict[int, list[str]] = {}
    for place in places:
        bits.setdefault(place.lease, ["0"] * place.size)[place.bit] = "1"
    return list(bits), ["".join(mask) for mask in bits.values()]
