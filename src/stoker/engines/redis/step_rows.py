"""Rows of steps as units of work read them, in one call for many jobs."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple

from stoker.engines.redis.keys import STEP_NAMES, STEPS
from stoker.engines.redis.record_format import eight, read_step
from stoker.engines.redis.scripts import script
from stoker.engines.shared.unit_of_work import Wanted
from stoker.model.emitted import SLOTS
from stoker.model.ids import JobId
from stoker.model.steps import Step
from stoker.model.time import Instant

if TYPE_CHECKING:
    from stoker.engines.redis.keys import Shard
    from stoker.engines.redis.store import Store

READ_AT_ONCE = 500
"""Rows that one command reads; while it runs, the server does nothing else."""

_READ, _EMITTED = script("read_steps"), script("emitted")
_SIGNALED = script("signaled")


def weight(steps: Iterable[Step]) -> int:
    """How many bytes these are, about."""
    return sum(len(step.value or b"") for step in steps)


class Found(NamedTuple):
    """Rows as they are stored, by job and name: whole ones, and those without their values that signals look at."""

    now: Instant
    rows: dict[tuple[JobId, str], bytes]
    signaled: dict[tuple[JobId, str], bytes]


NOTHING = Found(0, {}, {})


async def read(store: Store, shard: Shard, wanted: Wanted) -> Found:
    """Read what is wanted of a shard, and the store's time."""
    now, rows = await named(store, shard, wanted.steps) if wanted.steps else (0, {})
    signaled: dict[tuple[JobId, str], bytes] = {}
    if wanted.signals:
        asked = sorted(wanted.signals)
        args = [part for job, name in asked for part in (job, name)]
        instant, found = await store.run(_SIGNALED, shard, args)
        now = now or store.seen(instant)
        for (job, _), flat in zip(asked, found, strict=True):
            for name, row in zip(flat[::2], flat[1::2], strict=True):
                signaled[job, name.decode()] = row
    return Found(now, rows, signaled)


async def of_jobs(store: Store, shard: Shard, ids: Iterable[JobId], *, pages: bool = True) -> list[tuple[bytes, bytes]]:
    """All rows of those of the jobs that are in a shard: id16 · name of each, and the row. `pages`: with these."""
    first = b"" if pages else b'\0"'  # names of pages begin with '!', before those of all steps
    ranges = [("ZRANGEBYLEX", shard.key(STEP_NAMES), b"[" + job + first, b"(" + job + b"\2") for job in ids]
    names = [one[:16] + one[17:] for found in await store.connection.pipeline(ranges) for one in found]
    rows: list[tuple[bytes, bytes]] = []
    for start in range(0, len(names), READ_AT_ONCE):
        part = names[start : start + READ_AT_ONCE]
        stored = await store.connection.call("HMGET", shard.key(STEPS), *part)
        rows += [(name, row) for name, row in zip(part, stored, strict=True) if row is not None]
    return rows


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
