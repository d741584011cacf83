"""Inserts drafts as pending jobs.

One script call stores them all, keys included, as long as every key is free. When a key is held the script writes
nothing; then the model's rules decide in a unit of work. Inserts that happen at the same moment share a call.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from stoker.engines.base import Transaction
from stoker.engines.call_times import timed
from stoker.engines.redis import groups, record_format
from stoker.engines.redis.connection import LARGEST_CALL
from stoker.engines.redis.keys import FIXED, GROUPS, Shard, stride
from stoker.engines.redis.scripts import script
from stoker.engines.redis.server_checks import ServerChecks
from stoker.engines.redis.store import Store, refuse
from stoker.engines.redis.subqueues import slot_text
from stoker.engines.redis.unit_of_work import Unit
from stoker.engines.shared import one_by_one
from stoker.engines.shared.facets import Facet
from stoker.engines.shared.insert_batcher import InsertBatcher
from stoker.model.errors import EngineError, EngineRefused, EngineUnavailable
from stoker.model.groups import Group, pack_callbacks, pack_members
from stoker.model.ids import JobId
from stoker.model.job import LARGEST_BATCH, Draft, Receipt, Stored
from stoker.model.next_due import wakes
from stoker.model.record import Record, due_at
from stoker.model.subqueues import position
from stoker.model.time import Instant

_INSERT = {with_subqueues: script("insert", with_subqueues=with_subqueues) for with_subqueues in (False, True)}
_INSERTED, _EXISTING = Stored.INSERTED, Stored.EXISTING

FAIR = b"/"
"""What the script answers where a queue is fair and it was not called in the form that knows subqueues."""

PARALLEL = 4
"""Batches that may be under way at once."""

LIMITED_AT_ONCE = 200
"""How many jobs with limits of different calls one script stores: each may be the first of its key."""


class Inserter(Facet[Store]):
    """Stores drafts; a small call without keys and groups may share its script call with others."""

    def __init__(self, store: Store, server_checks: ServerChecks) -> None:
        super().__init__(store)
        self._server_checks = server_checks
        self._batcher = InsertBatcher(
            partial(insert, store),
            parallel=PARALLEL,
            most=LARGEST_BATCH,
            small=LARGEST_BATCH,
            most_bytes=LARGEST_CALL,
            weigh=_weight,
        )

    @timed(write=True)
    async def insert(
        self, drafts: Sequence[Draft], *, tx: Transaction | None = None, group: Group | None = None
    ) -> list[Receipt]:
        refuse(tx)
        self._server_checks.insist()
        self._store.connection.inside()
        plain = group is None and all(draft.unique is None and draft.options.group is None for draft in drafts)
        if plain and 0 < len(drafts) <= LARGEST_BATCH // 4:
            return await self._batcher.put(drafts)
        return await insert(self._store, drafts, group)

    async def close(self) -> None:
        """Store what is still waiting."""
        await self._batcher.close()


def _weight(draft: Draft) -> int:
    least = 0 if draft.options.limit is None else LARGEST_CALL // LIMITED_AT_ONCE
    return max(len(draft.payload), least)


async def insert(store: Store, drafts: Sequence[Draft], group: Group | None = None) -> list[Receipt]:
    """Store drafts, all or none of those that share a shard, and a new group; receipts in their order."""
    found: dict[int, Receipt] = {}
    await keep_keys_together(store, drafts)
    if group is not None or any(draft.options.group is not None for draft in drafts):
        await groups.keep_together(store, drafts, group)
    if group is not None and not drafts:
        await store.work(
            await groups.where(store, group.id), lambda unit: insert_one_by_one(unit, (), group), repeat=True
        )
    for shard, places in by_shard(store, drafts).items():
        part = [drafts[place] for place in places]
        new = None if group is None or all(one.options.group != group.id for one in part) else group
        found.update(zip(places, await _into(store, shard, part, new), strict=True))
    return [found[place] for place in range(len(drafts))]


def by_shard(store: Store, drafts: Sequence[Draft | Record]) -> dict[Shard, Sequence[int]]:
    """Which drafts, or records of another store, go where."""
    if not store.connection.cluster:
        return {store.home: range(len(drafts))} if drafts else {}
    found: dict[Shard, list[int]] = {}
    for place, draft in enumerate(drafts):
        found.setdefault(store.shard(draft.queue), []).append(place)
    return dict(found)


async def _into(store: Store, shard: Shard, drafts: Sequence[Draft], group: Group | None) -> list[Receipt]:
    await store.introduce({draft.queue for draft in drafts})
    firsts = {draft.job_id: place for place, draft in reversed(list(enumerate(drafts)))}
    slots = [draft.unique.slot(draft.kind) for draft in drafts if draft.unique is not None]
    if len(set(slots)) == len(slots) and (group is None or not group.placed):
        fresh = drafts if len(firsts) == len(drafts) else [drafts[place] for place in sorted(firsts.values())]
        try:
            now, letters = await _send(store, shard, fresh, group)
        except EngineUnavailable:
            if not await _arrived(store, shard, fresh):
                raise
            now, letters = await store.now(), b"i" * len(fresh)
        if letters != b"?":
            by_id = dict(zip((draft.job_id for draft in fresh), letters, strict=True))
            if store.connection.cluster:
                new = [draft for draft in fresh if by_id[draft.job_id] == ord("i")]
                await store.wake({draft.queue for draft in new if wakes(draft.at or now + draft.delay, now)})
            return [
                Receipt(
                    draft.job_id,
                    _INSERTED if by_id[draft.job_id] == ord("i") and firsts[draft.job_id] == place else _EXISTING,
                )
                for place, draft in enumerate(drafts)
            ]
    return await store.work(shard, lambda unit: insert_one_by_one(unit, drafts, group), repeat=True)


async def _send(store: Store, shard: Shard, drafts: Sequence[Draft], group: Group | None) -> tuple[Instant, bytes]:
    """One call of the script, in the form that knows subqueues where that is needed."""
    while True:
        with_subqueues = _has_subqueues(store, drafts)
        args, queues = arguments(drafts, with_subqueues=with_subqueues)
        keys = _add_joins(args, shard, _first_key(queues, with_subqueues=with_subqueues), drafts, group)
        instant, letters = await store.run(
            _INSERT[with_subqueues], shard, args, queues=queues, more=keys, with_subqueues=with_subqueues
        )
        if letters != FAIR:
            return store.seen(instant), letters
        store.with_subqueues.update(queues)


def _has_subqueues(store: Store, drafts: Sequence[Draft]) -> bool:
    return any(draft.options.limit is not None or draft.queue in store.with_subqueues for draft in drafts)


def _first_key(queues: Sequence[str], *, with_subqueues: bool) -> int:
    """The number of the first key behind those of the queues."""
    return len(FIXED) + stride(with_subqueues=with_subqueues) * len(queues) + 1


async def _arrived(store: Store, shard: Shard, drafts: Sequence[Draft]) -> bool:
    """Are they stored although the reply was lost? The script is atomic: the first and the last stand for all."""
    ends = [draft.job_id for draft in (drafts[0], drafts[-1])]
    counts = [("ZLEXCOUNT", shard.key("jobs"), b"[" + job, b"(" + job + b"\1") for job in ends]
    try:
        return all(await store.connection.pipeline(counts))
    except EngineError:
        return False


def arguments(drafts: Sequence[Draft], *, with_subqueues: bool) -> tuple[list[Any], list[str]]:
    """Drafts as the script reads them, and the queues in the order of their keys."""
    queues: dict[str, int] = {}
    ids = [draft.job_id for draft in drafts]
    args: list[Any] = [min(ids), max(ids), "1" if ids == sorted(ids) else ""]
    shared: tuple[Any, ...] = ()
    size = 0
    for draft in drafts:
        unique = draft.unique
        kind: tuple[Any, ...] = (draft.queue, draft.kind, draft.delay, draft.at, unique is None)
        if with_subqueues:
            kind += (draft.options.limit, draft.tenant)
        if kind != shared:
            shared = kind
            when = f"@{draft.at}" if draft.at is not None else f"+{draft.delay}" if draft.delay else ""
            number = queues.setdefault(draft.queue, len(queues) + 1)
            args += (number, draft.queue, draft.kind, when, "" if unique is None else "1", 0)
            size = len(args) - 1
            if with_subqueues:
                limit = draft.options.limit
                args += (position(limit, draft.tenant, fair=True), slot_text(limit))
        args[size] += 1
        args += (draft.job_id, record_format.tail(draft, draft.attempts))
        if unique is not None:
            args += (unique.slot(draft.kind), unique.key)
    return args, list(queues)


async def insert_callbacks(store: Store, shard: Shard, drafts: Sequence[Draft], groups_: Sequence[str]) -> bool:
    """Store the callbacks of closed groups in one call; False, with nothing stored, if one group has its already."""
    letters, instant = FAIR, b""
    while letters == FAIR:
        with_subqueues = _has_subqueues(store, drafts)
        args, queues = arguments(drafts, with_subqueues=with_subqueues)
        args[2] += f"#{len(args) + 2}"
        number = _first_key(queues, with_subqueues=with_subqueues)
        for place in range(1, len(groups_) + 1):
            args += (number + place, number)
        keys = [shard.key(GROUPS), *groups_]
        instant, letters = await store.run(
            _INSERT[with_subqueues], shard, args, queues=queues, more=keys, repeat=False, with_subqueues=with_subqueues
        )
        if letters == FAIR:
            store.with_subqueues.update(queues)
    now = store.seen(instant)
    if store.connection.cluster:
        await store.wake({draft.queue for draft in drafts if wakes(due_at(draft, now), now)})
    return bool(letters != b"?")


def _add_joins(args: list[Any], shard: Shard, number: int, drafts: Sequence[Draft], group: Group | None) -> list[str]:
    """Add which groups the drafts join, as the script reads them; returns their keys, whose first has this number."""
    joined: dict[JobId, list[Draft]] = {}
    for draft in drafts:
        if draft.options.group is not None:
            joined.setdefault(draft.options.group, []).append(draft)
    if not joined:
        return []
    args[2] += f"@{len(args) + 2}"
    for place, (id_, members) in enumerate(joined.items(), 1):
        new = group is not None and group.id == id_
        state, callbacks = (groups.state_of(group), pack_callbacks(group)) if group is not None and new else ("", "")
        ids = pack_members(member.job_id for member in members)
        args += (number + place, number, state, callbacks, ids, members[0].queue)
    return [shard.key(GROUPS), *(shard.group(id_) for id_ in joined)]


async def keep_keys_together(store: Store, drafts: Sequence[Draft | Record]) -> None:
    """On a cluster a key can only be unique inside its queue: refuse what would need more."""
    wanted: dict[str, str] = {}
    for draft in drafts:
        if draft.unique is None or not store.connection.cluster:
            continue
        if draft.unique.scope == "global":
            raise EngineRefused(
                f"unique key {draft.unique.key!r} asks for scope='global', which a Redis Cluster cannot give: its "
                f"queues are on different servers. Nothing was stored. Use the default scope, or another engine."
            )
        queue = wanted.setdefault(draft.kind, draft.queue)
        if queue == draft.queue:
            queue = await store.queue_of_kind(draft.kind, draft.queue)
        if queue != draft.queue:
            raise EngineRefused(
                f"jobs of kind {draft.kind!r} with a unique key go to queue {queue!r} on this Redis Cluster, and this "
                f"one to {draft.queue!r}: a key is unique only inside one queue there. Nothing was stored. Send them "
                f"to one queue, or use another engine."
            )


# --- with all circumstances -------------------------------------------------------------------------------------


async def insert_one_by_one(unit: Unit, drafts: Sequence[Draft], group: Group | None = None) -> list[Receipt]:
    """Drafts one after the other, by the rules."""
    wanted = one_by_one.wanted_by_drafts(drafts, group)
    await unit.load(wanted)
    receipts = one_by_one.insert(unit, drafts, group)
    for joined in wanted.groups:
        if joined in unit.group_changes:
            unit.expect_group(joined)
    return receipts
