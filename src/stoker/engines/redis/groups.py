"""Groups: one hash each, in the shard of their members, counted by the scripts that change these.

A script that ends the last member closes the group in the same step, so whatever comes later counts nothing. The
callbacks are stored by the client right after it, by compare-and-set on the mark `p`: once, also when the client dies
in between and a sweep does it. On a cluster the members of a group go to one queue, which the home shard remembers.
"""

from __future__ import annotations

import logging
from binascii import a2b_base64
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec

from stoker.engines.call_times import timed
from stoker.engines.redis.cluster.fan_out import spread
from stoker.engines.redis.control import pairs, scored
from stoker.engines.redis.keys import CLOSED_GROUPS, DAMAGE, GROUPS, OPEN_GROUPS, Shard
from stoker.engines.redis.scripts import script
from stoker.engines.shared import one_by_one
from stoker.engines.shared.facets import Facet
from stoker.engines.shared.unit_of_work import Wanted
from stoker.model.errors import CorruptRecord, EngineRefused, GroupClosed, NotFound, StokerError
from stoker.model.groups import (
    ABANDONED_AFTER,
    Closing,
    Group,
    Swept,
    closing_signals,
    is_held,
    kept_until,
    let_go,
    pack_callbacks,
    unpack_callbacks,
    unpack_members,
)
from stoker.model.ids import JobId, text
from stoker.model.job import Draft, Stored, links
from stoker.model.query import LAST_ID, LATEST, Place
from stoker.model.time import MINUTE, Instant

if TYPE_CHECKING:
    from stoker.engines.redis.store import Store
    from stoker.engines.redis.unit_of_work import Unit

log = logging.getLogger("stoker.engines.redis")

LOOKED_AT_ONCE = 250
"""Members whose expiry one script looks up; while it runs, the server does nothing else."""

_KEPT = script("kept")
_WOKEN = script("woken")

FIELDS = (b"s", b"f", b"at", b"touched", b"closed", b"expires", b"q", b"n", b"t", b"d", b"x", b"c")
"""What a list shows of a group: all but the ids of its members."""

GROUPED = "grouped"
"""Only on a cluster, in the home shard: group → queue of its members."""


class Groups(Facet["Store"]):
    """Groups of one store."""

    @timed(write=False, name="get_groups")
    async def get(self, ids: Sequence[JobId]) -> list[Group | None]:
        store = self._store
        store.connection.inside()
        return [await _sound(store, await where(store, group), group, members=True) for group in ids]

    @timed(write=False, name="find_groups")
    async def find(self, *, closed: bool, behind: Place | None = None, limit: int = 100) -> list[Group]:
        store, start = self._store, behind or (LATEST, LAST_ID)
        store.connection.inside()
        shards = [store.home, *(await store.shards() if store.connection.cluster else ())]
        found = await spread(shards, lambda shard: _page(store, shard, start, limit, closed=closed))
        ordered = sorted(
            (one for some in found for one in some), key=lambda one: (one.created_at, one.id), reverse=True
        )
        return ordered[:limit]

    @timed(write=True)
    async def seal(self, group: JobId, *, abandoned: bool = False) -> bool:
        self._store.connection.inside()
        return await _seal(self._store, group, abandoned=abandoned)

    def watch_closings(self, emit: Callable[[Closing], None]) -> None:
        self._store.emit_closing = emit

    @timed(write=True, name="sweep_groups")
    async def sweep(self, limit: int = 1_000) -> Swept:
        store = self._store
        store.connection.inside()
        abandoned = closed = removed = 0
        for shard in [store.home, *(await store.shards() if store.connection.cluster else ())]:
            now, keys = await _due(store, shard, limit)
            for key in keys:
                try:
                    # Another client may have stored the callbacks since: the group is then due after its retention.
                    state, pending, expires = await store.connection.call("HMGET", key, "s", "p", "expires")
                    if pending is not None:
                        closed += await close_one(store, shard, key)
                    elif state is None:
                        removed += await _remove(store, shard, key)
                    elif expires is not None and int(expires) < now:
                        removed += await _expire(store, shard, key, expires, now)
                    elif expires is None:
                        abandoned += await _seal(store, _id_of(key), abandoned=True)
                except (CorruptRecord, ValueError) as error:
                    await _set_aside(store, shard, key, error)
        return Swept(abandoned=abandoned, closed=closed, removed=removed)


# --- reading ----------------------------------------------------------------------------------------------------


async def read(store: Store, key: str, *, members: bool = True) -> Group | None:
    """A group by its key; None where it is not stored. Raises `CorruptRecord` for one that cannot be read."""
    if members:
        stored = dict(pairs(await store.connection.call("HGETALL", key)))
    else:
        values = await store.connection.call("HMGET", key, *FIELDS)
        stored = {name: value for name, value in zip(FIELDS, values, strict=True) if value is not None}
    if b"s" not in stored:
        return None
    expires = stored.get(b"expires")
    try:
        return msgspec.structs.replace(
            _light(_id_of(key), stored[b"s"], stored.get(b"closed"), stored.get(b"n")),
            total=int(stored[b"t"]),
            done=int(stored[b"d"]),
            dead=int(stored[b"x"]),
            canceled=int(stored[b"c"]),
            members=unpack_members(stored.get(b"m", b"")),
            queue=stored[b"q"].decode() if b"q" in stored else None,
            created_at=int(stored[b"at"]),
            touched_at=int(stored[b"touched"] if b"touched" in stored else stored[b"at"]),
            expires_at=None if expires is None else int(expires),
            **_callbacks(stored[b"f"]),
        )
    except (KeyError, ValueError, msgspec.MsgspecError) as error:
        raise CorruptRecord(f"its hash is damaged ({error})") from error


async def _page(store: Store, shard: Shard, behind: Place, limit: int, *, closed: bool) -> list[Group]:
    """The groups of a shard behind a place, the latest first, without their members."""
    key = shard.key(CLOSED_GROUPS if closed else OPEN_GROUPS)
    found: list[Group] = []
    start = 0
    while len(found) < limit:
        flat = await store.connection.call(
            "ZREVRANGEBYSCORE", key, behind[0], "-inf", "WITHSCORES", "LIMIT", start, limit
        )
        places = [(int(score), group) for group, score in scored(flat)]
        wanted = [group for at, group in places if (at, group) < behind]
        groups = await spread(wanted, lambda group: _sound(store, shard, group, members=False))
        found += [one for one in groups if one is not None and (one.closed_at is not None) is closed]
        start += limit
        if len(places) < limit:
            break
    return found[:limit]


async def _sound(store: Store, shard: Shard, group: JobId, *, members: bool) -> Group | None:
    """A group by its id; None where it is not stored, or cannot be read and is set aside."""
    try:
        return await read(store, shard.group(group), members=members)
    except CorruptRecord as error:
        await _set_aside(store, shard, shard.group(group), error)
        return None


async def find(store: Store, shard: Shard, group: JobId) -> Group | None:
    """Whether a group is sealed and whether it is closed, without the rest; None also where it cannot be read."""
    try:
        state, closed, placed = await store.connection.call("HMGET", shard.group(group), "s", "closed", "n")
        return None if state is None else _light(group, state, closed, placed)
    except (CorruptRecord, ValueError) as error:
        await _set_aside(store, shard, shard.group(group), error)
        return None


async def _set_aside(store: Store, shard: Shard, key: str, error: Exception) -> None:
    """Leave a group alone that cannot be read, and log it once (`_groups.lua`)."""
    id_ = key.rpartition(":")[2]
    why = f"group {id_} cannot be read: {error}. It is set aside: its members run, and its callbacks do not"
    new, _ = await store.connection.pipeline(
        [("HSETNX", shard.key(DAMAGE), f"group:{id_}", why), ("ZREM", shard.key(GROUPS), key)]
    )
    if new:
        log.warning("%s", why)


def _light(group: JobId, state: bytes, closed: bytes | None, placed: bytes | None) -> Group:
    at = None if closed is None else int(closed)
    return Group(id=group, sealed=state != b"u", abandoned=state == b"a", closed_at=at, placed=int(placed or 0))


def _id_of(key: str) -> JobId:
    return a2b_base64(key.rpartition(":")[2])


# --- making and sealing -----------------------------------------------------------------------------------------


def state_of(group: Group) -> bytes:
    """How a group stands, as it is stored."""
    return b"a" if group.abandoned else b"s" if group.sealed else b"u"


def writes(shard: Shard, before: Group | None, after: Group) -> Iterable[tuple[Any, ...]]:
    """The commands that store a group that is new, or that was sealed."""
    key, agenda = shard.group(after.id), shard.key(GROUPS)
    if before is not None:
        return (("HSET", key, "s", state_of(after)), ("ZREM", agenda, key))
    numbers: tuple[str | int, ...] = ("t", 0, "d", 0, "x", 0, "c", 0)
    if after.placed:
        numbers += ("n", after.placed)
    made = ("HSET", key, "s", state_of(after), "f", pack_callbacks(after), "at", after.created_at, *numbers)
    listed = ("ZADD", shard.key(OPEN_GROUPS), after.created_at, after.id)
    return (made, listed) if after.sealed else (made, listed, ("ZADD", agenda, after.created_at + ABANDONED_AFTER, key))


async def _seal(store: Store, group: JobId, *, abandoned: bool) -> bool:
    """Seal a group, and close it if its members are finished."""

    async def change(unit: Unit) -> bool:
        await unit.load(Wanted(groups=frozenset({group})))
        found = unit.group(group)
        if found is None or found.sealed:
            return False
        unit.put_group(found.seal(abandoned=abandoned))
        return True

    return await store.work(await where(store, group), change)


# --- closing ----------------------------------------------------------------------------------------------------


Completed: TypeAlias = tuple[bytes, bytes, bytes, bytes, bytes, bytes]
"""A group that a script has closed, as `_groups.lua` names it."""


async def close(store: Store, shard: Shard, closed: Sequence[Completed]) -> None:
    """Tell the callers of groups that a script has closed, and store their callbacks.

    All callbacks are stored in one step, unless they need the model's rules.
    """
    from stoker.engines.redis.insert import insert_callbacks

    found = {one[0].decode(): _closed(*one) for one in closed}
    await _wake_callers(store, found.values())
    told = [key for key, group in found.items() if group.wakes is not None and not group.callbacks]
    if told:
        noted = await store.run(_WOKEN, shard, (), more=[shard.key(GROUPS), *told])
        for key, new in zip(told, noted, strict=True):
            if not new:
                del found[key]
    calling = {key: group for key, group in found.items() if group.callbacks}
    drafts = one_by_one.callbacks_of(calling.values())
    plain = all(draft.unique is None and store.shard(draft.queue) is shard for draft in drafts)
    if calling and (not plain or not await insert_callbacks(store, shard, drafts, list(calling))):
        for key in calling:
            await close_one(store, shard, key)
            del found[key]
    for group in found.values():
        store.emit_closing(Closing(group, group.callbacks))


async def _wake_callers(store: Store, closed: Iterable[Group]) -> None:
    """Answer the waits of jobs that called the members. A second answer finds the first and changes nothing."""
    from stoker.engines.redis.steps import signal

    if signals := closing_signals(closed):
        await signal(store, signals)


async def close_one(store: Store, shard: Shard, key: str) -> bool:
    """Store the callbacks of a closed group by the rules, unless that is done, and emit the closing."""
    from stoker.engines.redis.cluster.followups import allowed, store_elsewhere

    group = await read(store, key)
    if group is None or await store.connection.call("HGET", key, "p") is None:
        return False
    await _wake_callers(store, [group])
    callbacks = await allowed(store, group.callbacks, group.id)
    elsewhere = await store_elsewhere(store, shard, callbacks)
    stored: list[Draft] = []
    here = [draft for draft in callbacks if store.shard(draft.queue) is shard]

    async def change(unit: Unit) -> bool:
        if await store.connection.call("HGET", key, "p") is None:
            return False
        await unit.load(one_by_one.wanted_by_drafts(here))
        unit.expect_hash(key, "p", b"1")
        unit.write("HDEL", key, "p")
        unit.write("ZADD", shard.key(GROUPS), group.expires_at, key)
        stored[:] = [draft for draft in here if one_by_one.insert_followup(unit, draft).stored is Stored.INSERTED]
        return True

    if not await store.work(shard, change, repeat=True):
        return False
    store.emit_closing(Closing(group, tuple(draft for draft in callbacks if draft in stored or draft in elsewhere)))
    return True


def _closed(key: bytes, callbacks: bytes, done: bytes, at: bytes, queue: bytes, now: bytes) -> Group:
    """Return a group that a script has closed, without its numbers."""
    return Group(
        id=_id_of(key.decode()),
        sealed=True,
        abandoned=not done,
        queue=queue.decode() or None,
        created_at=int(at),
        closed_at=int(now),
        **_callbacks(callbacks),
    )


def _callbacks(stored: bytes) -> dict[str, Any]:
    return msgspec.structs.asdict(unpack_callbacks(stored))


async def _due(store: Store, shard: Shard, limit: int) -> tuple[Instant, list[str]]:
    """The time, and the keys of groups that a sweep has to look at now; mostly found empty by one command."""
    agenda, soon = shard.key(GROUPS), store.local_now() + MINUTE
    if not await store.connection.call("ZRANGEBYSCORE", agenda, "-inf", soon, "LIMIT", 0, 1):
        return soon, []
    now = await store.now()
    found = await store.connection.call("ZRANGEBYSCORE", agenda, "-inf", f"({now}", "LIMIT", 0, limit)
    return now, [key.decode() for key in found]


async def _expire(store: Store, shard: Shard, key: str, expires: bytes, now: Instant) -> int:
    """Remove a group, or put that off if one of its jobs is kept; one that cannot be read keeps no job in mind."""
    try:
        group = await read(store, key)
    except CorruptRecord:
        group = None
    callbacks = [] if group is None else [draft.job_id for draft in group.callbacks]
    if group is not None and group.calls_back and None not in await _expiries(store, callbacks):
        await _let_go(store, shard, group)
    jobs = callbacks if group is None else [*group.members, *callbacks]
    until = kept_until(await _expiries(store, jobs), now)
    if until is None:
        return await _remove(store, shard, key)

    async def put_off(unit: Unit) -> None:
        if await store.connection.call("HGET", key, "expires") == expires:
            unit.expect_hash(key, "expires", expires)
            unit.write("HSET", key, "expires", until)
            unit.write("ZADD", shard.key(GROUPS), until, key)

    await store.work(shard, put_off, repeat=True)
    return 0


async def _let_go(store: Store, shard: Shard, group: Group) -> None:
    """Let done members go that the group held for its callbacks."""
    members: list[JobId] = await store.connection.call("ZRANGE", shard.members(group.id), 0, -1)
    for start in range(0, len(members), LOOKED_AT_ONCE):
        part = members[start : start + LOOKED_AT_ONCE]

        async def change(unit: Unit, part: list[JobId] = part) -> None:
            await unit.load(Wanted(frozenset(part)))
            for job in part:
                record = unit.get(job)
                if record is not None and is_held(record):
                    unit.put(let_go(record, group))

        await store.work(shard, change, repeat=True)


async def _expiries(store: Store, jobs: Sequence[JobId]) -> list[Instant | None]:
    """When those of the jobs expire that are stored, wherever they are; None for one that has not ended."""
    found: list[bytes] = []
    for shard in await store.shards() if jobs else ():
        for start in range(0, len(jobs), LOOKED_AT_ONCE):
            found += await store.run(_KEPT, shard, jobs[start : start + LOOKED_AT_ONCE])
    return [int(one) if one else None for one in found]


async def _remove(store: Store, shard: Shard, key: str) -> int:
    """Remove a group; on a cluster the note of its queue first, so that a later sweep finds what is left."""
    if store.connection.cluster:
        await store.connection.call("HDEL", store.home.key(GROUPED), _id_of(key))
    id_ = _id_of(key)
    lists = [("ZREM", shard.key(name), id_) for name in (OPEN_GROUPS, CLOSED_GROUPS)]
    [gone, *_] = await store.connection.pipeline(
        [("DEL", key), ("DEL", shard.members(id_)), ("ZREM", shard.key(GROUPS), key), *lists]
    )
    return int(gone)


# --- where ------------------------------------------------------------------------------------------------------


async def where(store: Store, group: JobId) -> Shard:
    """The shard of a group: that of its members; on a cluster home, for one without any."""
    if not store.connection.cluster:
        return store.home
    queue = await store.connection.call("HGET", store.home.key(GROUPED), group)
    return store.home if queue is None else store.shard(queue.decode())


async def keep_together(store: Store, drafts: Sequence[Draft], group: Group | None) -> None:
    """On a cluster the members of a group go to one queue: refuse what would need more."""
    if not store.connection.cluster:
        return
    wanted: dict[JobId, str] = {}
    for draft in drafts:
        for member in (draft, *links(draft.options)):
            joined = member.options.group
            if joined is not None and wanted.setdefault(joined, draft.queue) != member.queue:
                raise _refused(joined, wanted[joined], member.queue)
    for joined, queue in wanted.items():
        known = await _queue_of(store, joined, queue if group is not None and group.id == joined else None)
        if known is None:
            raise _without_queue(joined, await find(store, store.home, joined))
        if known != queue:
            raise _refused(joined, known, queue)


async def _queue_of(store: Store, group: JobId, queue: str | None) -> str | None:
    """The queue of a group's members; that of its first members if it is new."""
    key = store.home.key(GROUPED)
    if queue is not None:
        await store.connection.call("HSETNX", key, group, queue)
    found = await store.connection.call("HGET", key, group)
    return None if found is None else str(found.decode())


def _without_queue(id_: JobId, group: Group | None) -> StokerError:
    if group is None:
        return NotFound.group(id_)
    if group.closed_at is not None:
        return GroupClosed(id_)
    return EngineRefused(
        f"group {text(id_)} was stored without a member, and a Redis Cluster has no queue for it. Nothing was stored. "
        f"Store a group with its first members there."
    )


def _refused(group: JobId, known: str, queue: str) -> EngineRefused:
    return EngineRefused(
        f"the members of group {text(group)} go to queue {known!r} on this Redis Cluster, and one to {queue!r}: a "
        f"group counts them in the step that ends them, and queues are on different servers there. Nothing was "
        f"stored. Send them to one queue, or use another engine."
    )


async def make_known(store: Store, group: JobId, queue: str) -> None:
    """On a cluster: note the queue of a group that is to be stored, unless it has one."""
    await _queue_of(store, group, queue)


async def fits(store: Store, draft: Draft) -> bool:
    """Whether a follow-up can join its group: on a cluster only from the queue of the group."""
    if not store.connection.cluster or draft.options.group is None:
        return True
    return await _queue_of(store, draft.options.group, None) == draft.queue
