"""Steps of jobs: saved under the claim's fence, read, and answered by signals.

Rows are in the shard of their job, so an answer and the job that it makes due are one step, also on a cluster. Finished
steps of many jobs are one script call. Everything else is a unit of work: its commit checks that the rows it changes,
and the job, are as they were read. So a suspension and a signal that meet at one job exclude each other. A lone signal
to a suspended job is one script.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from operator import attrgetter
from typing import Any, TypeVar

import msgspec

from stoker.engines.base import Transaction
from stoker.engines.call_times import timed
from stoker.engines.redis import audit, record_format
from stoker.engines.redis.cluster import followups, move
from stoker.engines.redis.cluster.fan_out import spread
from stoker.engines.redis.connection import LARGEST_CALL
from stoker.engines.redis.keys import Shard
from stoker.engines.redis.scripts import script
from stoker.engines.redis.settle import read_refs
from stoker.engines.redis.step_rows import asking, of_jobs, pages_of, weight
from stoker.engines.redis.store import Store, refuse
from stoker.engines.redis.unit_of_work import Unit
from stoker.engines.shared import one_by_one
from stoker.engines.shared.facets import Facet
from stoker.engines.shared.steps import is_plain, signal_one, wanted_by_signals
from stoker.model.audit import By, of_signal
from stoker.model.ids import JobId
from stoker.model.job import Verdict
from stoker.model.steps import ACCEPTED, Save, Signal, Signaled, Step, Wakes, is_open, misfit

T = TypeVar("T")

SAVED_AT_ONCE = 1_000
CHECKED_AT_ONCE = 50
SIGNALED_AT_ONCE = 200
"""Saves or signals that one script handles; while it runs, the server does nothing else."""

_SAVE, _ANSWER = script("save"), script("answer")
_VERDICTS = {ord("a"): Verdict.APPLIED, ord("l"): Verdict.LOST}
_in_order = attrgetter("at", "name")


class Steps(Facet[Store]):
    """What jobs have finished and what they wait for."""

    @timed(write=True, name="save_steps")
    async def save(self, saves: Sequence[Save], *, tx: Transaction | None = None) -> list[Verdict]:
        refuse(tx)
        self._store.connection.inside()
        verdicts = await _save(self._store, saves)
        self._store.notifier.ends.saved(saves, verdicts)
        return verdicts

    @timed(write=False, name="get_steps")
    async def get(self, ids: Sequence[JobId], *, pages: bool = False) -> list[list[Step]]:
        self._store.connection.inside()
        shards = await self._store.shards() if ids else []
        found: dict[JobId, dict[str, Step]] = {job: {} for job in ids}
        for rows in await spread(shards, lambda shard: _get(self._store, shard, list(found), pages=pages)):
            for job, row in rows:
                found[job][row.name] = row
        return [sorted(found[job].values(), key=_in_order) for job in ids]

    @timed(write=False)
    async def asking(self, *, before: JobId | None = None, limit: int = 100) -> list[JobId]:
        self._store.connection.inside()
        found = await spread(await self._store.shards(), lambda shard: asking(self._store, shard, before, limit))
        return sorted({job for jobs in found for job in jobs}, reverse=True)[:limit]

    @timed(write=False)
    async def emitted(self, job: JobId, after: int = 0) -> list[Step]:
        self._store.connection.inside()
        found = await spread(await self._store.shards(), lambda shard: pages_of(self._store, shard, job, after))
        return sorted((row for rows in found for row in rows), key=attrgetter("until"))

    @timed(write=True)
    async def signal(
        self, signals: Sequence[Signal], *, tx: Transaction | None = None, by: By | None = None
    ) -> list[Signaled]:
        refuse(tx)
        self._store.connection.inside()
        return await signal(self._store, signals, by)


# --- saving -----------------------------------------------------------------------------------------------------


async def _save(store: Store, saves: Sequence[Save]) -> list[Verdict]:
    """Store rows of running jobs; those of jobs whose saves are all plain as a batch."""
    verdicts = [Verdict.LOST] * len(saves)
    others = {one.id for one in saves if not is_plain(one)}
    for shard, queue, places in await _by_shard(store, saves):
        plain = [place for place in places if saves[place].id not in others]
        for part in _parts(plain, [weight(saves[place].steps) for place in plain], SAVED_AT_ONCE):
            for place, verdict in zip(part, await _together(store, shard, [saves[one] for one in part]), strict=True):
                verdicts[place] = verdict
        rest = [place for place in places if saves[place].id in others]
        for part in _parts(rest, [weight(saves[place].steps) for place in rest], CHECKED_AT_ONCE):
            found = await _one_by_one(store, shard, queue, [saves[one] for one in part])
            for place, verdict in zip(part, found, strict=True):
                verdicts[place] = verdict
    return verdicts


async def _by_shard(store: Store, saves: Sequence[Save]) -> list[tuple[Shard, str, list[int]]]:
    """Where the jobs of saves are, the queue there, and which saves these are; those of unknown jobs are nowhere."""
    if not store.connection.cluster:
        return [(store.home, "", list(range(len(saves))))]
    refs = [one.ref if type(one.ref) is tuple else None for one in saves]
    if None in refs:
        refs = list(await read_refs(store, saves))
    found: dict[str, list[int]] = {}
    for place, ref in enumerate(refs):
        if ref is not None:
            found.setdefault(ref[0], []).append(place)
    return [(store.shard(queue), queue, places) for queue, places in found.items()]


async def _together(store: Store, shard: Shard, saves: Sequence[Save]) -> list[Verdict]:
    """Store finished steps, each save under its own fence."""
    args: list[Any] = [len(saves)]
    fences: dict[tuple[str, int], bytes] = {}
    for one in saves:
        fence = fences.get((one.worker, one.token))
        if fence is None:
            fence = fences[one.worker, one.token] = record_format.fence(one.worker, one.token)
        args += (one.id, fence, len(one.steps))
    for one in saves:
        for step in one.steps:
            args += (one.id + step.name.encode(), record_format.step_end(step))
    instant, letters = await store.run(_SAVE, shard, args)
    store.seen(instant)
    return [_VERDICTS[letter] for letter in letters]


async def _one_by_one(store: Store, shard: Shard, queue: str, saves: Sequence[Save]) -> list[Verdict]:
    """Store saves by the rules, in one step."""
    if store.connection.cluster:
        saves = [await _elsewhere(store, shard, queue, one) if one.drafts or one.groups else one for one in saves]
    return await store.work(shard, partial(_save_in, saves), repeat=True)


async def _elsewhere(store: Store, shard: Shard, queue: str, save: Save) -> Save:
    """Store what a save calls in other shards, if it would apply now; return the rest of it."""
    [verdict] = await _save_in([save], Unit(store, shard))
    if verdict is not Verdict.APPLIED:
        return save
    await followups.call_elsewhere(store, shard, queue, save.id, save.groups, save.drafts)
    drafts = [draft for draft in save.drafts if store.shard(draft.queue) is shard]
    return msgspec.structs.replace(
        save,
        drafts=tuple(await followups.allowed(store, drafts, save.id)),
        groups=tuple(followups.groups_of(store, shard, queue, save.groups, save.drafts)),
    )


async def _save_in(saves: Sequence[Save], unit: Unit) -> list[Verdict]:
    groups = frozenset(group for one in saves for group in one.groups)
    await unit.load(one_by_one.wanted_by_saves(saves)._replace(groups=groups))
    verdicts = [one_by_one.save_one(unit, one) for one in saves]
    for one, verdict in zip(saves, verdicts, strict=True):
        if verdict is Verdict.APPLIED:
            unit.expect_job(one.id)
    return verdicts


# --- reading ----------------------------------------------------------------------------------------------------


async def _get(store: Store, shard: Shard, ids: Sequence[JobId], *, pages: bool) -> list[tuple[JobId, Step]]:
    """The rows of those of the jobs that are in a shard."""
    rows = await of_jobs(store, shard, ids, pages=pages)
    return [(name[:16], record_format.read_step(name[16:].decode(), row)) for name, row in rows]


# --- signals ----------------------------------------------------------------------------------------------------


async def signal(store: Store, signals: Sequence[Signal], by: By | None = None) -> list[Signaled]:
    """Answer waits; many of one shard in one step."""
    answers = [Signaled.MISSING] * len(signals)
    for shard, places in (await _where(store, [one.id for one in signals])).items():
        if len(signals) == 1 and by is None and await _answer_alone(store, shard, signals[0]):
            return [Signaled.TAKEN]
        for part in _parts(places, [len(signals[place].value) for place in places], SIGNALED_AT_ONCE):
            told = await store.work(shard, partial(_signal_in, [signals[place] for place in part], by))
            for place, answer in zip(part, told, strict=True):
                answers[place] = answer
    return answers


async def _answer_alone(store: Store, shard: Shard, signal: Signal) -> bool:
    """Answer a wait on which its job is suspended, as most signals do, in one call; in two if its value is judged."""
    seen, here = b"", "" if store.connection.cluster else "1"
    for _ in range(2):
        args = (signal.id, signal.name, signal.value, here, seen)
        instant, told, *queues = await store.run(_ANSWER, shard, args, repeat=False)
        store.seen(instant)
        if queues:
            if not here:
                await store.wake([queue.decode() for queue in queues])
            return True
        if told == 0 or misfit(record_format.read_step(signal.name, told), signal.value) is not None:
            return False
        seen = told
    return False


async def _signal_in(signals: Sequence[Signal], by: By | None, unit: Unit) -> list[Signaled]:
    await unit.load(wanted_by_signals(signals))
    answers = [signal_one(unit, one) for one in signals]
    for one, answer in zip(signals, answers, strict=True):
        if answer in ACCEPTED:
            unit.expect_job(one.id)
        audit.write(unit, by, of_signal(one, answer))
    for job in unit.changed_steps:
        _expect_open(unit, job)
    return answers


def _expect_open(unit: Unit, job: JobId) -> None:
    """Where a job goes on waiting for others of its answers, one of these must be missing still."""
    record = unit.get(job)
    if record is None or not record.suspended or record.settled is not Wakes.ALL:
        return
    for name, row in unit.steps(job).items():
        if is_open(row) and row.token == record.token:
            unit.expect_step(job, name)
            return


async def _where(store: Store, ids: Sequence[JobId]) -> dict[Shard, list[int]]:
    """Which of the jobs are in which shard, by their positions; a job on its way to another queue is delivered."""
    if not store.connection.cluster:
        return {store.home: list(range(len(ids)))} if ids else {}
    found = await _look(store, ids)
    missing = set(range(len(ids))).difference(*found.values())
    if missing:
        for shard in await store.shards():
            await move.deliver(store, shard)
        found = await _look(store, ids)
    return found


async def _look(store: Store, ids: Sequence[JobId]) -> dict[Shard, list[int]]:
    shards = await store.shards()
    answers = await spread(shards, lambda shard: store.read(shard, ids))
    places = {
        shard: [place for place, row in enumerate(rows) if row is not None]
        for shard, (_, rows) in zip(shards, answers, strict=True)
    }
    return {shard: found for shard, found in places.items() if found}


def _parts(places: Sequence[T], weights: Sequence[int], most: int) -> Iterator[list[T]]:
    """Parts of a batch that are not too large for one call."""
    part: list[T] = []
    size = 0
    for place, weight_ in zip(places, weights, strict=True):
        if part and (len(part) == most or size + weight_ > LARGEST_CALL):
            yield part
            part, size = [], 0
        part.append(place)
        size += weight_
    if part:
        yield part
