"""Reads what a check-up of a Redis store judges (`model.health`). Nothing is decided here."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from stoker.engines.redis import damage
from stoker.engines.redis.cluster.fan_out import spread
from stoker.engines.redis.control import QUEUE_FIELDS, pairs, stored_queues, unreadable
from stoker.engines.redis.keys import Shard
from stoker.engines.redis.record_format import STATUSES, read_hold
from stoker.engines.redis.scripts import script
from stoker.engines.redis.server_info import ServerInfo
from stoker.engines.redis.store import Store
from stoker.engines.redis.stored_job import StoredJob
from stoker.engines.shared.budget_format import damaged_budgets
from stoker.model.health.facts import (
    MOST_COUNTED,
    MOST_NAMED,
    UNDECLARED,
    Counted,
    Facts,
    RedisFacts,
    RedisNode,
    Replica,
)
from stoker.model.ids import text
from stoker.model.job import ACTIVE

LOOKED_AT_ONCE = 500
"""Jobs that one script looks at; while it runs, the server does nothing else."""

_DIAGNOSE, _UNREADABLE = script("diagnose"), script("unreadable")
UNSET = {field: f"its {field} cannot be read; tune the queue, or start its app anew" for field in QUEUE_FIELDS}
UNSET["declared"] = UNDECLARED
_UNSUCCESSFUL = (b"a", b"x", b"c", b"i", b"t")


async def diagnose(store: Store, nodes: Sequence[ServerInfo], losses: Sequence[str], unread: int) -> Facts:
    """The facts about the servers, and about every shard."""
    shards = await store.shards()
    counters = [one for found in await spread(shards, lambda shard: _counted(store, shard)) for one in found]
    idle = sum(await spread(shards, lambda shard: _idle_keys(store, shard)))
    redis = RedisFacts(nodes=tuple(map(_node, nodes)), losses=tuple(losses), unread=unread)
    noted = await spread(shards, lambda shard: damage.notes(store, shard))
    damaged = [one[field].decode(errors="backslashreplace") for one in noted for field in sorted(one)]
    for name, fields in (await stored_queues(store)).items():
        damaged += [f"queue {name}: {UNSET[field]}" for field in sorted(unreadable(fields))]
    for found in await spread(shards, lambda shard: _unreadable(store, shard)):
        damaged += [f"job {text(row.record.id)} cannot be read: {row.corrupt}" for row in found]
    budgets = pairs(await store.connection.call("HGETALL", store.home.key("budgets")))
    damaged += damaged_budgets((name.decode(), value) for name, value in budgets)
    return Facts(
        idle_keys=idle,
        counters=tuple(counters),
        damaged=tuple(damaged),
        redis=redis,
        transport=store.connection.transport(),
    )


async def _unreadable(store: Store, shard: Shard) -> list[StoredJob]:
    """Of the first and the last jobs those whose body or state cannot be read, or that are nowhere; some of them."""
    found: dict[bytes, None] = {}
    size = int(await store.connection.call("ZCARD", shard.key("jobs")))
    for start in range(0, min(size, MOST_COUNTED), LOOKED_AT_ONCE):
        ranges = [(start, start + LOOKED_AT_ONCE - 1)]
        if size > MOST_COUNTED:
            ranges.append((-start - LOOKED_AT_ONCE, -start - 1))
        for one in ranges:
            found |= dict.fromkeys(await store.run(_UNREADABLE, shard, one))
    _, rows = await store.read(shard, list(found)[:MOST_NAMED])
    return [row for row in rows if row is not None and row.corrupt is not None]


async def _counted(store: Store, shard: Shard) -> list[Counted]:
    fields, bodies, listed = await store.run(_DIAGNOSE, shard, ())
    sums: Counter[bytes] = Counter()
    for field, n in zip(fields[::2], fields[1::2], strict=True):
        sums[field.rpartition(b"/")[2]] += int(n)
    place = shard.queue or "all queues"
    found = [
        Counted(place, STATUSES[char].value, sums[char], int(n)) for char, n in zip(_UNSUCCESSFUL, listed, strict=True)
    ]
    return [*found, Counted(place, "stored", sum(sums.values()), int(bodies))]


async def _idle_keys(store: Store, shard: Shard) -> int:
    """Of the first keys that are not kept for a time: how many a finished job holds. What looks so is read twice."""
    suspects, cursor = dict[bytes, bytes](), b"0"
    seen = 0
    while seen < MOST_COUNTED:
        cursor, flat = await store.connection.call("HSCAN", shard.key("keys"), cursor, "COUNT", 1_000)
        # The client of a cluster makes a dict of the reply itself.
        pairs = flat if isinstance(flat, dict) else dict(zip(flat[::2], flat[1::2], strict=True))
        seen += len(pairs)
        pairs = {slot: held for slot, held in pairs.items() if isinstance(read_hold(held), bytes)}
        suspects |= {slot: pairs[slot] for slot in await _finished(store, shard, pairs)}
        if int(cursor) == 0:
            break
    if not suspects:
        return 0
    again = await store.connection.call("HMGET", shard.key("keys"), *suspects)
    held = {slot: job for slot, job in zip(suspects, again, strict=True) if job == suspects[slot]}
    return len(await _finished(store, shard, held))


async def _finished(store: Store, shard: Shard, pairs: dict[bytes, bytes]) -> list[bytes]:
    if not pairs:
        return []
    states = await store.connection.call("HMGET", shard.key("state"), *pairs.values())
    return [
        slot
        for slot, state in zip(pairs, states, strict=True)
        if state is not None and STATUSES[bytes(state[:1])] not in ACTIVE
    ]


def _node(server: ServerInfo) -> RedisNode:
    info = server.info
    clustered = info.get("cluster_enabled") == "1"
    return RedisNode(
        name=server.name,
        product=server.product,
        version=server.version,
        policy=server.policy,
        used=server.number("used_memory"),
        limit=server.number("maxmemory"),
        aof=server.aof,
        fsync=server.fsync,
        aof_written=info.get("aof_last_write_status", "ok") == "ok",
        aof_rewritten=info.get("aof_last_bgrewrite_status", "ok") == "ok",
        snapshot_saved=info.get("rdb_last_bgsave_status", "ok") == "ok",
        evicted=server.number("evicted_keys"),
        replicas=tuple(_replicas(server)),
        cluster_state=info.get("cluster_state", "unknown") if clustered else None,
        slots_ok=server.number("cluster_slots_ok") if clustered else None,
    )


def _replicas(server: ServerInfo) -> Iterator[Replica]:
    """`slave0:ip=…,port=…,state=online,offset=…,lag=0`, as the primary reports each of them."""
    offset = server.number("master_repl_offset")
    for name, value in sorted(server.info.items()):
        if name.startswith("slave") and name[5:].isdecimal():
            parts = dict(part.split("=", 1) for part in value.split(",") if "=" in part)
            where = f"{parts.get('ip', '?')}:{parts.get('port', '?')}"
            behind = max(0, offset - int(parts.get("offset", "0")))
            yield Replica(where, parts.get("state", "unknown"), behind, int(parts.get("lag", "0")))
