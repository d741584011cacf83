"""Rows of steps as units of work read them, in one call for many jobs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from stoker.engines.redis.control import JUDGED_BY, judged_queue
from stoker.engines.redis.keys import ASKING, STEP_NAMES, STEPS
from stoker.engines.redis.record_format import eight, read_step
from stoker.engines.redis.scripts import script
from stoker.engines.shared import steps as shared
from stoker.engines.shared.unit_of_work import Wanted
from stoker.model.control import Queue
from stoker.model.emitted import SLOTS
from stoker.model.ids import JobId
from stoker.model.steps import Step, asks
from stoker.model.time import Instant

if TYPE_CHECKING:
    from stoker.engines.redis.keys import Shard
    from stoker.engines.redis.store import Store

READ_AT_ONCE = 500
"""Rows that one command reads; while it runs, the server does nothing else."""

COMPLETE = b"complete"
"""In the set of rows that ask: those that an older version has stored were entered."""

_READ, _EMITTED = script("read_steps"), script("emitted")
_SIGNALED, _OF_JOBS = script("signaled"), script("steps_of")


def weight(steps: Iterable[Step]) -> int:
    """How many bytes these are, about."""
    return sum(len(step.value or b"") for step in steps)


class Found(NamedTuple):
    """Rows as they are stored, by job and name: whole ones, and those without their values that signals look at.

    `queues` are those of the jobs that are signaled.
    """

    now: Instant
    rows: dict[tuple[JobId, str], bytes]
    signaled: dict[tuple[JobId, str], bytes]
    queues: tuple[Queue, ...] = ()


NOTHING = Found(0, {}, {})


async def read(store: Store, shard: Shard, wanted: Wanted) -> Found:
    """Read what is wanted of a shard, and the store's time."""
    now, rows = await named(store, shard, wanted.steps) if wanted.steps else (0, {})
    signaled: dict[tuple[JobId, str], bytes] = {}
    queues: tuple[Queue, ...] = ()
    if wanted.signals:
        asked = sorted(wanted.signals)
        pairs = [part for job, name in asked for part in (job, name)]
        instant, found, fields = await store.run(_SIGNALED, shard, (len(JUDGED_BY), *JUDGED_BY, *pairs))
        now = now or store.seen(instant)
        queues = tuple(judged_queue(store, name.decode(), values) for name, values in fields)
        for (job, _), flat in zip(asked, found, strict=True):
            for name, row in zip(flat[::2], flat[1::2], strict=True):
                signaled[job, name.decode()] = row
    return Found(now, rows, signaled, queues)


async def of_jobs(store: Store, shard: Shard, ids: Iterable[JobId], *, pages: bool = True) -> list[tuple[bytes, bytes]]:
    """All rows of those of the jobs that are in a shard: id16 · name of each, and the row. `pages`: with these."""
    first = b"" if pages else b'\0"'  # names of pages begin with '!', before those of all steps
    names, stored = await store.run(_OF_JOBS, shard, (first, READ_AT_ONCE, *ids))
    for start in range(READ_AT_ONCE, len(names), READ_AT_ONCE):
        stored += await store.connection.call("HMGET", shard.key(STEPS), *names[start : start + READ_AT_ONCE])
    return [(name, row) for name, row in zip(names, stored, strict=True) if row is not None]


def brought(flat: Sequence[bytes]) -> tuple[Step, ...] | None:
    """Read the rows that a claim brings."""
    return shared.brought(lambda one: read_step(one[0].decode(), one[1]), zip(flat[::2], flat[1::2], strict=True))


async def asking(store: Store, shard: Shard, before: JobId | None, limit: int) -> list[JobId]:
    """The jobs of a shard that have a row which may wait for a signal, the largest id first."""
    key, found = shard.key(ASKING), list[JobId]()
    if await store.connection.call("ZSCORE", key, COMPLETE) is None:
        await _complete(store, shard)
    end = b"+" if before is None else b"(" + before
    while len(found) < limit:
        names = await store.connection.call("ZREVRANGEBYLEX", key, end, b"-", "LIMIT", 0, READ_AT_ONCE)
        found += [*dict.fromkeys(name[:16] for name in names if name != COMPLETE)]
        if len(names) < READ_AT_ONCE:
            break
        end = b"(" + names[-1][:16]
    return found[:limit]


async def _complete(store: Store, shard: Shard) -> None:
    """Enter the rows that a version without this set has stored. One that is answered meanwhile does no harm there."""
    key, start = shard.key(ASKING), b"-"
    while True:
        members = await store.connection.call(
            "ZRANGEBYLEX", shard.key(STEP_NAMES), start, b"+", "LIMIT", 0, READ_AT_ONCE
        )
        names = [one[:16] + one[17:] for one in members if one[16:17] == b"\1"]
        rows = await store.connection.call("HMGET", shard.key(STEPS), *names) if names else []
        found = [
            name for name, row in zip(names, rows, strict=True) if row and asks(read_step(name[16:].decode(), row))
        ]
        done = [] if len(members) == READ_AT_ONCE else [COMPLETE]
        if found or done:
            await store.connection.call("ZADD", key, *(part for name in (*found, *done) for part in (0, name)))
        if done:
            return
        start = b"(" + members[-1]


async def pages_of(store: Store, shard: Shard, job: JobId, after: int) -> list[Step]:
    """The pages of a job in a shard whose last number is larger."""
    _, found = await store.run(_EMITTED, shard, [eight(after), *(job + name.encode() for name in SLOTS)])
    return [read_step(name, row) for name, row in zip(SLOTS, found, strict=True) if row]


async def named(
    store: Store, shard: Shard, wanted: Iterable[tuple[JobId, str]]
) -> tuple[Instant, dict[tuple[JobId, str], bytes]]:
    """Those of the rows that are stored, and the store's time."""
    asked = sorted(wanted)
    instant, found = await store.run(_READ, shard, [job + name.encode() for job, name in asked])
    rows = {place: row for place, row in zip(asked, found, strict=True) if row is not None}
    return store.seen(instant), rows
