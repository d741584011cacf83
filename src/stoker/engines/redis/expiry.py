"""Letting go of what is kept no longer.

Whatever stands in the set of finished jobs is finished, with its expiry as the score, so a script can remove jobs
without asking anybody. It takes few at a time: while a script runs, the server does nothing else.
"""

from __future__ import annotations

from stoker.engines.redis import timeline, transit
from stoker.engines.redis.control import scored
from stoker.engines.redis.keys import Shard
from stoker.engines.redis.scripts import script
from stoker.engines.redis.store import Store
from stoker.model.ids import JobId
from stoker.model.query import Expired, Retention

AT_ONCE = 250
SWEPT_AT_ONCE = 5_000

_EXPIRE = script("expire")
_SWEEP = script("sweep")


async def expire(store: Store, retention: Retention) -> Expired:
    """Remove what is out of date; finished jobs beyond a count go by their expiry."""
    store.connection.inside()
    left = max(retention.limit, 0)
    jobs = events = 0
    shards = await store.shards()
    for shard in shards:
        await transit.deliver(store, shard)
        gone, crossed = await _outdated(store, shard, left - jobs)
        jobs, events = jobs + gone, events + crossed
    if retention.finished is not None and jobs < left:
        gone, crossed = await _surplus(store, shards, max(retention.finished, 0), left - jobs)
        jobs, events = jobs + gone, events + crossed
    swept = await _sweep(store, retention)
    return Expired(jobs=jobs, events=events + swept[0], points=swept[1], presences=swept[2], locks=swept[3])


async def _outdated(store: Store, shard: Shard, limit: int) -> tuple[int, int]:
    """Remove jobs past their expiry; answers how many, and how many events went with them."""
    jobs = events = 0
    while jobs < limit:
        wanted = min(AT_ONCE, limit - jobs)
        gone, crossed = await _remove(store, shard, wanted, [])
        jobs, events = jobs + len(gone), events + crossed
        if len(gone) < wanted:
            break
    return jobs, events


async def _remove(store: Store, shard: Shard, limit: int, ids: list[JobId]) -> tuple[list[JobId], int]:
    more = [shard.key(name) for name in timeline.KEYS]
    gone, events = await store.run(_EXPIRE, shard, [limit, *ids], more=more)
    if gone and shard is not store.home:
        events += await timeline.cross_out(store, gone)
    return gone, events


async def _surplus(store: Store, shards: list[Shard], kept: int, limit: int) -> tuple[int, int]:
    """Remove the jobs nearest to their expiry, beyond the number that is kept."""
    sizes = [await store.connection.call("ZCARD", shard.key("ends")) for shard in shards]
    surplus = min(sum(sizes) - kept, limit)
    if surplus <= 0:
        return 0, 0
    nearest: list[tuple[float, JobId, int]] = []
    for place, shard in enumerate(shards):
        flat = await store.connection.call("ZRANGE", shard.key("ends"), 0, surplus - 1, "WITHSCORES")
        nearest += [(score, job, place) for job, score in scored(flat)]
    nearest = sorted(nearest)[:surplus]
    jobs = events = 0
    for place, shard in enumerate(shards):
        ids = [job for _, job, where in nearest if where == place]
        for start in range(0, len(ids), AT_ONCE):
            gone, crossed = await _remove(store, shard, AT_ONCE, ids[start : start + AT_ONCE])
            jobs, events = jobs + len(gone), events + crossed
    return jobs, events


async def _sweep(store: Store, retention: Retention) -> list[int]:
    """Remove old events and points, silent presences and lapsed locks."""
    total = [0, 0, 0, 0]
    kept = (max(retention.events, 0), max(retention.points, 0), max(retention.presences, 0))
    while True:
        swept = await store.run(_SWEEP, store.home, [*kept, SWEPT_AT_ONCE], more=timeline.keys(store))
        total = [one + more for one, more in zip(total, swept, strict=True)]
        if max(swept[0], swept[1]) < SWEPT_AT_ONCE:
            return total
