"""One change of selected jobs inside a unit of work: each is judged by the status it has there, and hinders no other.

The rules are the model's, so they are asked here and not in a script. The unit commits only if nothing it read has
changed, and is done again from the beginning otherwise.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

from stoker.engines.base import CONTROL
from stoker.engines.redis import timeline, transit
from stoker.engines.redis.records import Notes, Record, salvaged, write_notes
from stoker.engines.redis.scrap import scrap
from stoker.engines.redis.store import Store
from stoker.engines.redis.work import Work
from stoker.model.ahead import wakes
from stoker.model.ids import JobId
from stoker.model.job import Status, noted
from stoker.model.lifecycle import check_transition
from stoker.model.query import (
    Cancel,
    Change,
    Clone,
    Delete,
    Discard,
    Move,
    Prioritize,
    Requeue,
    RunNow,
    Selection,
    allows,
)
from stoker.model.time import Instant


class Action:
    """One try at the jobs of one shard, with its tally in the making."""

    def __init__(self, store: Store, unit: Work, selection: Selection, change: Change, places: Sequence[int]) -> None:
        self._store = store
        self._unit = unit
        self._selection = selection
        self._change = change
        self._places = places
        self._gone: list[JobId] = []
        self._trails: dict[JobId, list[bytes]] = {}
        self._notes: dict[JobId, bytes | None] = {}
        self.changed: list[int] = []
        self.created: dict[int, JobId] = {}
        self.refused: Counter[Status] = Counter()
        self.asked = self.blocked = 0

    async def run(self) -> None:
        """Judge and change every job of this shard, in the order of the selection."""
        unit, ids = self._unit, [self._selection.ids[place] for place in self._places]
        clones = [self._change.ids[place] for place in self._places] if isinstance(self._change, Clone) else []
        await unit.load([*ids, *clones])
        await self._prepare([record for record in map(unit.get, ids) if record is not None])
        for place, job in zip(self._places, ids, strict=True):
            record = unit.get(job)
            if record is None:
                continue
            if not self._may(record):
                self.refused[record.status] += 1
            elif record.broken:
                await scrap(self._store, unit, record)
                self._remove(record, place)
            else:
                await self._apply(record, place)

    async def _prepare(self, records: list[Record]) -> None:
        """Read in few round trips what the change will ask for."""
        unit, change, ids = self._unit, self._change, [record.id for record in records]
        await unit.load_queues({record.queue for record in records})
        if isinstance(change, Requeue | Clone):
            slots = [record.unique.slot(record.kind) for record in records if record.unique is not None]
            await unit.load_keys(slots)
            await unit.load_queues({holder.queue for holder in map(unit.holder, slots) if holder is not None})
        noted_on = [record.id for record in records if self._rewrites_notes(record)]
        if noted_on:
            found = await self._store.connection.call("HMGET", unit.shard.key("notes"), *noted_on)
            self._notes = dict(zip(noted_on, found, strict=True))
        if isinstance(change, Delete | Discard) and unit.shard is self._store.home:
            self._trails = await timeline.traces(self._store, ids)
        elif isinstance(change, Move) and self._store.shard(change.queue) is not unit.shard:
            _, rows = await self._store.read(unit.shard, ids, details=True)
            for record, row in zip(records, rows, strict=True):
                if row is not None:
                    record.history, record.notes = row.history, row.notes

    def _rewrites_notes(self, record: Record) -> bool:
        if isinstance(self._change, Requeue):
            return True
        asks = isinstance(self._change, Delete) or (isinstance(self._change, Cancel) and not self._change.force)
        return asks and record.status is Status.RUNNING

    async def follow_up(self) -> None:
        """What the shard's own commit could not reach, on a cluster."""
        if self._gone and self._unit.shard is not self._store.home:
            await timeline.cross_out(self._store, self._gone, deleted=True)
        if isinstance(self._change, Move):
            await transit.deliver(self._store, self._unit.shard)

    def _may(self, record: Record) -> bool:
        """What cannot be read can be looked at, discarded and deleted, and never run again."""
        sound = not (record.aside or record.broken) or isinstance(self._change, Delete | Discard)
        return sound and allows(self._change, record.status, self._selection)

    async def _apply(self, record: Record, place: int) -> None:
        match self._change:
            case Cancel():
                self._cancel(record, place, self._change)
            case Delete():
                self._delete(record, place)
            case Requeue():
                await self._requeue(record, place)
            case Clone(ids=ids):
                await self._clone(record, place, ids[place])
            case Discard():
                self._mark(record, place, Status.DISCARDED)
            case RunNow():
                self._rearrange(record, place, due=min(record.scheduled_at, self._unit.now))
            case Move(queue=queue):
                self._move(record, place, queue)
            case Prioritize(priority=priority):
                self._rearrange(record, place, priority=priority)

    def _cancel(self, record: Record, place: int, change: Cancel) -> None:
        if record.status is Status.RUNNING:
            if not change.force:
                self._ask(record, change.note())
                return
            self._unit.wake(CONTROL)
        check_transition(record.status, Status.CANCELED, record.id)
        self._unit.lift(record)
        self._unit.finish(record, Status.CANCELED, change.reason)
        self._unit.place(record)
        self._unit.total(record.kind, "canceled")
        self.changed.append(place)

    def _rewrite_notes(self, record: Record, change: Callable[[Notes], Notes]) -> None:
        """Change what stands beside the record; once, however often the job is named."""
        if record.id not in self._notes:
            return
        key, stored = self._unit.shard.key("notes"), self._notes.pop(record.id)
        before = salvaged(stored)
        after = change(before)
        if after != before:
            self._unit.expect_hash(key, record.id, stored)
            self._unit.write("HSET", key, record.id, write_notes(after))

    def _ask(self, record: Record, note: dict[str, str]) -> None:
        """Ask a running job to stop; the moment of the first request stays."""
        self._unit.lift(record)
        record.cancel_requested = True
        self._unit.place(record)
        # Behind the removal that `lift` is: a server without memory lets that through, and then what follows.
        now = self._unit.now
        self._rewrite_notes(
            record,
            lambda old: Notes(
                old.progress, noted(old.metadata, note), old.log, now if old.asked is None else old.asked
            ),
        )
        self._unit.wake(CONTROL)
        self.asked += 1

    def _delete(self, record: Record, place: int) -> None:
        if record.status is Status.RUNNING:
            self._ask(record, {})
            return
        self._unit.lift(record)
        self._remove(record, place)

    def _remove(self, record: Record, place: int) -> None:
        self._unit.forget(record)
        self._gone.append(record.id)
        if self._unit.shard is self._store.home:
            timeline.erase(self._store, self._unit, record.id, self._trails.get(record.id, ()))
        self.changed.append(place)

    async def _requeue(self, record: Record, place: int) -> None:
        check_transition(record.status, Status.PENDING, record.id)
        if not await self._unit.key_is_free(record):
            self.blocked += 1
            return
        self._unit.lift(record)
        record.status = Status.PENDING
        record.scheduled_at = self._unit.now
        record.base, record.crashes = record.attempts, 0
        record.started_at = record.finished_at = record.expires_at = None
        record.cancel_requested = False
        self._rewrite_notes(record, lambda old: Notes(None, old.metadata, old.log))
        self._unit.place(record)
        self._unit.wake(record.queue)
        self.changed.append(place)

    async def _clone(self, record: Record, place: int, clone: JobId) -> None:
        if self._unit.get(clone) is not None or not await self._unit.key_is_free(record):
            self.blocked += 1
            return
        record.successor = clone
        self._mark(record, place, Status.RETRIED)
        self._unit.create(copied(record, clone, self._unit.now))
        self.created[place] = clone

    def _mark(self, record: Record, place: int, status: Status) -> None:
        """Take a dead job off the dead list; it keeps the time of its end."""
        check_transition(record.status, status, record.id)
        self._unit.lift(record)
        record.status = status
        self._unit.place(record)
        self.changed.append(place)

    def _move(self, record: Record, place: int, queue: str) -> None:
        if self._store.shard(queue) is self._unit.shard:
            self._rearrange(record, place, queue=queue)
            return
        if record.unique is not None:
            # Its key holds in its own queue only, and nobody can hold two shards still to hand it over.
            self.blocked += 1
            return
        transit.send(self._unit, record, queue)
        self.changed.append(place)

    def _rearrange(
        self,
        record: Record,
        place: int,
        *,
        queue: str | None = None,
        priority: int | None = None,
        due: Instant | None = None,
    ) -> None:
        """Give a waiting job another place."""
        self._unit.lift(record)
        if queue is not None:
            record.queue = queue
            self._unit.rewrite(record)
        if priority is not None:
            record.priority = priority
        if due is not None:
            record.scheduled_at = due
        self._unit.place(record)
        if priority is None and wakes(record.scheduled_at, self._unit.now):
            self._unit.wake(record.queue)
        self.changed.append(place)


def copied(record: Record, job: JobId, now: Instant) -> Record:
    """A copy that has not run yet, due now."""
    return Record(
        job,
        record.kind,
        record.queue,
        record.payload,
        record.priority,
        record.budget,
        now,
        now,
        record.options,
        record.unique,
        record.tenant,
    )
