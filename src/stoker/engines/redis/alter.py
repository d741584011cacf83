"""Operators' changes of selected jobs, shard by shard, each job by itself.

On one Redis a call is atomic with all that belongs to it. On a cluster it is atomic per queue; a move between queues is
a further step, which the next move or `expire` finishes if this one could not, and so is the removal of a deleted job's
events, which are otherwise removed when they are old.
"""

from __future__ import annotations

from collections.abc import Sequence

from stoker.engines.call_times import timed
from stoker.engines.redis import audit
from stoker.engines.redis import events as event_log
from stoker.engines.redis.cluster import move
from stoker.engines.redis.cluster.fan_out import spread
from stoker.engines.redis.corrupt import remove_corrupt
from stoker.engines.redis.insert import by_shard, keep_keys_together
from stoker.engines.redis.keys import Shard
from stoker.engines.redis.store import Store
from stoker.engines.redis.unit_of_work import Unit
from stoker.engines.shared import one_by_one
from stoker.engines.shared.facets import Facet
from stoker.model.actions import allows
from stoker.model.archive import Archived, Put
from stoker.model.audit import By, of_alter
from stoker.model.groups import Standing, moved
from stoker.model.ids import JobId
from stoker.model.job import ACTIVE, Status
from stoker.model.query import (
    Cancel,
    Change,
    Clone,
    Delete,
    Discard,
    Move,
    Requeue,
    Reseal,
    Restore,
    RunNow,
    Selection,
    Tally,
    as_seen,
)
from stoker.model.record import Record


class Alterer(Facet[Store]):
    """Applies changes to selected jobs."""

    @timed(write=True)
    async def alter(self, selection: Selection, change: Change, *, by: By | None = None) -> Tally:
        store = self._store
        one_by_one.check(selection, change)
        store.connection.inside()
        if not selection.ids:
            return Tally()
        if isinstance(change, Move):
            await store.introduce([change.queue])
        alterations: list[one_by_one.Alteration] = []
        for shard, positions in (await _where(store, selection.ids)).items():

            async def act(unit: Unit, positions: Sequence[int] = positions) -> one_by_one.Alteration:
                alteration = await _alter(store, unit, selection, change, positions)
                part = Selection(tuple(selection.ids[position] for position in positions))
                audit.write(unit, by, of_alter(part, change, one_by_one.tally(selection, [alteration])))
                return alteration

            alterations.append(await store.work(shard, act, make=_Moving))
            if isinstance(change, Move):
                await move.deliver(store, shard)
        done = one_by_one.tally(selection, alterations)
        if isinstance(change, Delete) and store.connection.cluster and done.changed_ids:
            await event_log.cross_out(store, list(done.changed_ids), deleted=True)
        store.notifier.ends.altered(selection, change, done)
        return done

    @timed(write=True)
    async def put(self, jobs: Sequence[Archived]) -> list[Put]:
        store = self._store
        store.connection.inside()
        records = [one.record for one in jobs]
        await keep_keys_together(store, [record for record in records if record.held_slot is not None])
        found: dict[int, Put] = {}
        for shard, places in by_shard(store, records).items():
            part = [jobs[place] for place in places]
            await store.introduce({one.record.queue for one in part})

            async def act(unit: Unit, part: Sequence[Archived] = part) -> list[Put]:
                await unit.load(one_by_one.wanted_by_archived(part))
                return one_by_one.put(unit, part)

            found.update(zip(places, await store.work(shard, act), strict=True))
        return [found[place] for place in range(len(jobs))]


class _Moving(Unit):
    """A unit that can send a job to another shard."""

    def move(self, record: Record, queue: str) -> bool:
        """Within the shard as ever; a job with a key or a group cannot leave it, because both are there only."""
        if self._store.shard(queue) is self.shard:
            return super().move(record, queue)
        if record.unique is not None or record.options.group is not None:
            return False
        move.send(self, record, queue)
        return True


async def _alter(
    store: Store, unit: Unit, selection: Selection, change: Change, positions: Sequence[int]
) -> one_by_one.Alteration:
    """One try at the jobs of one shard."""
    ids = [selection.ids[position] for position in positions]
    part = one_by_one.wanted_by_change(Selection(tuple(ids)), change)
    await unit.load(part)
    await _load_more(store, unit, change, ids)
    alteration = one_by_one.Alteration(unit, selection, change)
    for position in positions:
        record = unit.get(selection.ids[position])
        broken = record is not None and unit.rows[record.id].broken and as_seen(record, selection, position, change)
        if record is not None and broken and isinstance(change, Delete | Discard) and allows(change, record.status):
            status = await remove_corrupt(store, unit, unit.rows[record.id])
            if status in ACTIVE and record.options.group is not None:
                unit.count_group(record.options.group, moved(Standing.WAITING, Standing.CANCELED))
            unit.forget(record)
            alteration.removed(position)
        else:
            alteration.run([position])
    if unit.shard is store.home:
        for job in sorted(unit.deleted):
            event_log.erase(store, unit, job)
    return alteration


async def _load_more(store: Store, unit: Unit, change: Change, ids: Sequence[JobId]) -> None:
    """Read what some changes need beside the records."""
    if isinstance(change, Reseal):
        await unit.load_details(ids)
    elif isinstance(change, Requeue | Restore | Clone) or (isinstance(change, RunNow) and change.first):
        await unit.load_notes(ids)
    elif isinstance(change, Cancel | Delete):
        records = [unit.get(job) for job in ids]
        await unit.load_notes([record.id for record in records if record and record.status is Status.RUNNING])
    elif isinstance(change, Move) and store.shard(change.queue) is not unit.shard:
        _, rows = await store.read(unit.shard, list(unit.rows), details=True)
        for row in rows:
            if row is not None:
                known = unit.rows[row.record.id]
                known.notes = row.notes
                known.change(history=row.record.history)


async def _where(store: Store, ids: Sequence[JobId]) -> dict[Shard, list[int]]:
    """Which of the selected jobs are in which shard, by their positions in the selection."""
    shards = await store.shards()
    if len(shards) == 1:
        return {shards[0]: list(range(len(ids)))}
    found: dict[Shard, list[int]] = {}
    answers = await spread(shards, lambda shard: store.read(shard, ids))
    for shard, (_, rows) in zip(shards, answers, strict=True):
        positions = [position for position, row in enumerate(rows) if row is not None]
        if positions:
            found[shard] = positions
    return found
