"""What the facts about Redis servers mean."""

from __future__ import annotations

from collections.abc import Iterator

from stoker.model.health.check import Check, note, ok, or_ok, warning, wrong
from stoker.model.health.facts import RedisFacts, RedisNode
from stoker.model.humanize import count, size

SLOTS = 16_384
SILENT_REPLICA = 30
"""Seconds without a word from a replica."""

BEHIND = 64 << 20
"""Bytes a replica may be behind."""

SAFE = {
    "Redis": ((6, 2, 20), (7, 2, 11), (7, 4, 6), (8, 0, 4), (8, 2, 2)),
    "Valkey": ((7, 2, 11), (8, 0, 6), (8, 1, 4)),
}
"""The first version of each line in which a script cannot break out of its sandbox (CVE-2025-49844)."""

FULL = "Run CONFIG SET maxmemory with more, or add memory"
EVICTION = "CONFIG SET maxmemory-policy noeviction, and write it into redis.conf"


def judge(facts: RedisFacts) -> Iterator[Check]:
    """Every check of a Redis store."""
    for node in facts.nodes:
        yield _version(node)
        yield _eviction(node)
        yield _memory(node)
        yield from or_ok(list(_persistence(node)), "persistence", _kept(node))
        yield from or_ok(list(_replicas(node)), "replicas", f"{count(len(node.replicas), 'replica')} of {node.name}")
        if node.cluster_state is not None:
            yield _cluster(node)
    yield from or_ok(
        [
            wrong("lost writes", loss, "What was acknowledged is gone.", "Look for a failover or a restart")
            for loss in facts.losses
        ],
        "lost writes",
        "none found",
    )
    yield _unread(facts.unread)


def _version(node: RedisNode) -> Check:
    read = f"{node.product} {node.version} at {node.name}"
    if not _is_safe(node):
        meaning = "A user who may run scripts can take over the server (CVE-2025-49844)."
        return note("version", read, meaning, "Upgrade the server, or keep strangers out of it")
    return ok("version", read)


def _is_safe(node: RedisNode) -> bool:
    """A version that cannot be read, and a product that is not known, are no reason for a complaint."""
    numbers = tuple(int(part) for part in node.version.split(".") if part.isdecimal())
    lines = SAFE.get(node.product)
    if not lines or not numbers or numbers >= lines[-1]:
        return True
    return any(numbers[:2] == line[:2] and numbers >= line for line in lines)


def _eviction(node: RedisNode) -> Check:
    read = f"maxmemory-policy is {node.policy} at {node.name}"
    if node.policy.startswith("allkeys-"):
        meaning = "A full memory drops whole queues silently. Inserts are refused until that is changed."
        return wrong("eviction policy", read, meaning, EVICTION)
    if node.policy.startswith("volatile-"):
        return note("eviction policy", read, "Keys of Stoker have no expiry and stay.", EVICTION)
    return ok("eviction policy", read)


def _memory(node: RedisNode) -> Check:
    if not node.limit:
        return ok("memory", f"{node.name} uses {size(node.used)}, without a limit")
    read = f"{node.name} uses {size(node.used)} of {size(node.limit)}"
    if node.used >= node.limit:
        return wrong("memory", read, "Inserts are refused; jobs that are stored go on.", FULL)
    if node.used * 10 > node.limit * 9:
        return warning("memory", read, "Inserts will be refused soon.", FULL)
    return ok("memory", read)


def _kept(node: RedisNode) -> str:
    return f"append-only file {'on' if node.aof else 'off'}, appendfsync {node.fsync} at {node.name}"


def _persistence(node: RedisNode) -> Iterator[Check]:
    read = _kept(node)
    if not node.aof:
        meaning = "A restart of the server loses jobs."
        yield warning("persistence", read, meaning, "CONFIG SET appendonly yes, and write it into redis.conf")
    if node.aof and node.fsync == "no":
        meaning = "A power loss may cost half a minute of jobs."
        yield warning("persistence", read, meaning, "CONFIG SET appendfsync everysec")
    if not node.aof_written:
        meaning = "The last write to the append-only file failed; writes are refused."
        yield wrong("persistence", read, meaning, "Free space on the server's disk")
    if not node.aof_rewritten:
        meaning = "The last rewrite of the append-only file failed; it grows until one succeeds."
        yield warning("persistence", read, meaning, "Free space on the server's disk, then BGREWRITEAOF")
    if not node.snapshot_saved:
        meaning = "The last snapshot failed; where stop-writes-on-bgsave-error is set, writes are refused."
        yield warning("persistence", read, meaning, "Free space and memory on the server, then BGSAVE")


def _replicas(node: RedisNode) -> Iterator[Check]:
    for one in node.replicas:
        if one.state != "online" or one.silent > SILENT_REPLICA or one.behind > BEHIND:
            read = f"replica {one.name} of {node.name} is {one.state}, {size(one.behind)} behind"
            meaning = "Its promotion would lose what has not reached it."
            yield warning("replicas", read, meaning, "Look at the replica's log and its network")


def _cluster(node: RedisNode) -> Check:
    read = f"cluster is {node.cluster_state} at {node.name}, {node.slots_ok} of {SLOTS} slots are served"
    if node.cluster_state != "ok" or node.slots_ok != SLOTS:
        meaning = "Queues whose slot is not served stand still."
        return wrong("cluster", read, meaning, "Run redis-cli --cluster check, then --cluster fix")
    return ok("cluster", read)


def _unread(unread: int) -> Check:
    read = f"{count(unread, 'record')} set aside"
    if unread:
        meaning = "They could not be read and are among the dead jobs, with the raw text as their payload."
        return warning("unreadable records", read, meaning, "Look at them (stoker jobs list is:dead), then delete them")
    return ok("unreadable records", read)
