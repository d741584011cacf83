"""Counts the jobs of a store: `census`, from counters and waiting sets, without reading jobs."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from stoker.engines.call_times import timed
from stoker.engines.redis.cluster.fan_out import spread
from stoker.engines.redis.keys import Shard
from stoker.engines.redis.record_format import STATUSES
from stoker.engines.redis.scripts import script
from stoker.engines.shared.facets import Facet
from stoker.model.job import Status
from stoker.model.query import Census, Count, Totals
from stoker.model.time import Instant

if TYPE_CHECKING:
    from stoker.engines.redis.store import Store

_CENSUS = script("census", with_subqueues=True)
_ORDER = {status: place for place, status in enumerate(Status)}


class CensusReader(Facet["Store"]):
    """Counts jobs at one instant; on a cluster, shard by shard."""

    @timed(write=False)
    async def census(self) -> Census:
        store = self._store
        counts: list[Count] = []
        not_due: dict[str, int] = {}
        suspended: dict[str, int] = {}
        oldest: dict[str, Instant] = {}
        running: dict[str, Instant] = {}
        totals: dict[str, dict[str, Any]] = {}
        at = 0
        for answer in await spread(await store.shards(), lambda shard: _counted(store, shard)):
            instant, fields, sums, waiting, claims = answer
            at = max(at, store.seen(instant))
            counts += counts_of(_by(fields, 2))
            for queue, later, waits, due in _by(waiting, 4):
                if int(later) > 0:
                    not_due[queue.decode()] = int(later)
                if int(waits) > 0:
                    suspended[queue.decode()] = int(waits)
                if due:
                    oldest[queue.decode()] = int(due)
            for queue, claimed in _by(claims, 2):
                name = queue.decode()
                running[name] = min(running.get(name, int(claimed)), int(claimed))
            _add_totals(totals, sums)
        return Census(
            at=at or await store.now(),
            counts=tuple(sorted(counts, key=lambda one: (one.queue, one.kind, _ORDER[one.status]))),
            later=not_due,
            waiting=suspended,
            oldest_ready=oldest,
            oldest_running=running,
            totals={kind: Totals(**totals[kind]) for kind in sorted(totals)},
        )


async def _counted(store: Store, shard: Shard) -> list[Any]:
    """One shard's numbers; asked again when a queue or worker is new since the keys were listed."""
    queues = await names(store, shard)
    while True:
        answer = await store.run(
            _CENSUS, shard, queues, queues=queues, more=await held_keys(store, shard), with_subqueues=True
        )
        if isinstance(answer, list):
            return answer
        if answer:
            queues.append(answer.decode())


async def names(store: Store, shard: Shard) -> list[str]:
    """The queues of a shard."""
    fields = await store.connection.call("HKEYS", shard.key("queues"))
    return sorted({field.rpartition(b"/")[0].decode() for field in fields})


async def held_keys(store: Store, shard: Shard) -> list[str]:
    """The keys of all lease sets."""
    workers = await store.connection.call("ZRANGE", shard.key("workers"), 0, -1)
    return [shard.held(worker.decode()) for worker in workers]


def counts_of(fields: Iterable[tuple[bytes, Any]]) -> Iterable[Count]:
    """The counters that are not zero."""
    for field, n in fields:
        queue, kind, char = field.split(b"/")
        if int(n) > 0:
            yield Count(queue.decode(), kind.decode(), STATUSES[char], int(n))


def _add_totals(totals: dict[str, dict[str, Any]], fields: list[bytes]) -> None:
    for field, value in _by(fields, 2):
        kind, what = field.decode().split("/")
        sums = totals.setdefault(kind, {})
        if what == "error":
            sums["last_error"] = value.decode(errors="replace")
        else:
            sums[what] = sums.get(what, 0) + int(value)


def _by(flat: list[Any], n: int) -> Iterable[tuple[Any, ...]]:
    return zip(*(flat[place::n] for place in range(n)), strict=True)
