"""What the servers guarantee, by their own settings, and which servers Stoker refuses.

On a cluster the engine asks every master, and the weakest counts. The engine refuses a server that may evict keys: a
queue is a handful of keys, and the server would drop one of them whole. Keys of Stoker have no expiry, so the
`volatile-*` policies cannot touch them.
"""

from __future__ import annotations

from collections.abc import Sequence

from stoker.engines.base import Description
from stoker.engines.redis.server_info import ServerInfo
from stoker.model.errors import EngineError, EngineReadOnly, EngineRefused

OLDEST = (6, 2)

# --- what is refused --------------------------------------------------------------------------------------------


def objection(nodes: list[ServerInfo]) -> EngineError | None:
    """Why Stoker may not use these servers."""
    for node in nodes:
        if node.info.get("role") == "slave":
            return EngineReadOnly(
                f"the Redis at {node.name} is a replica of "
                f"{node.info.get('master_host', '?')}:{node.info.get('master_port', '?')} and refuses writes. "
                "Nothing was opened. Give the URL of the primary."
            )
        if _numbers(node.version) < OLDEST:
            return EngineRefused(
                f"{node.product} {node.version} at {node.name} is older than {'.'.join(map(str, OLDEST))}, which "
                "Stoker needs. Nothing was opened. Upgrade the server."
            )
    evicting = eviction(nodes)
    return None if evicting is None else EngineRefused(f"{evicting} Nothing was opened. {REMEDY}")


REMEDY = (
    "Run CONFIG SET maxmemory-policy noeviction and write it into redis.conf, or give Stoker a Redis of its own: "
    "a cache and a queue want opposite things of a full memory."
)


def eviction(nodes: list[ServerInfo]) -> str | None:
    """Why jobs may vanish, where a server may evict keys; None where none may."""
    for node in nodes:
        if node.policy.startswith("allkeys-"):
            limit = node.number("maxmemory")
            when = f"as soon as {limit} bytes are used" if limit else "as soon as maxmemory is set"
            return (
                f"{node.product} at {node.name} has maxmemory-policy {node.policy}: it would drop queued jobs "
                f"silently, {when}."
            )
    return None


def _numbers(version: str) -> tuple[int, ...]:
    parts = [int(part) for part in version.split(".") if part.isdecimal()]
    # A version that cannot be read is no reason for a refusal.
    return tuple(parts) or OLDEST


# --- what is promised -------------------------------------------------------------------------------------------

_LEVELS = {
    "always": "an acknowledged write survives the death of the server process and a power loss",
    "everysec": (
        "an acknowledged write survives the death of the server process, but for what arrived during a sync that was "
        "still under way (two seconds at most); a power loss may cost the last second or two"
    ),
    "no": (
        "an acknowledged write survives the death of the server process; a power loss may cost all that the system "
        "had not written yet, often half a minute"
    ),
    "unknown": (
        "an acknowledged write survives the death of the server process; what a power loss costs is not known, "
        "because the server does not report its appendfsync"
    ),
}
_WEAKEST = ("unknown", "no", "everysec", "always")


def durability(nodes: list[ServerInfo]) -> tuple[bool, str]:
    """Whether an acknowledged write survives a restart of every server, and in words what really holds."""
    bare = [node.name for node in nodes if not node.aof]
    if bare:
        saved = any(node.config.get("save") for node in nodes)
        rest = "all that came after the last snapshot" if saved else "everything"
        where = "" if len(nodes) == 1 else f" at {', '.join(bare)}"
        return False, f"not durable: the append-only file is off{where} (appendonly no); a restart loses {rest}"
    level = min((node.fsync for node in nodes), key=lambda found: _WEAKEST.index(found) if found in _WEAKEST else 0)
    words = f"{_LEVELS.get(level, _LEVELS['unknown'])} (appendonly yes, appendfsync {level})"
    if any(node.number("connected_slaves") for node in nodes):
        words += (
            "; replication is asynchronous, so the promotion of a replica may lose acknowledged writes that had not "
            "reached it"
        )
    return True, words


def warnings(nodes: list[ServerInfo]) -> list[str]:
    """What administrators should know about these servers."""
    found = []
    durable, words = durability(nodes)
    if not durable:
        found.append(
            f"Redis keeps jobs in memory only: {words}. Run CONFIG SET appendonly yes, and put it into redis.conf"
        )
    if (evicting := eviction(nodes)) is not None:
        found.append(f"{evicting} Inserts are refused until that is changed. {REMEDY}")
    for node in nodes:
        found += [f"{node.product} at {node.name}: {what}" for what in _troubles(node)]
    return found


def _troubles(node: ServerInfo) -> list[str]:
    troubles = {
        f"maxmemory-policy is {node.policy}; keys of Stoker have no expiry and stay, noeviction is clearer": (
            node.policy.startswith("volatile-")
        ),
        "appendfsync is no: a power loss may cost half a minute of jobs": node.aof and node.fsync == "no",
        "no-appendfsync-on-rewrite is yes: while the log is rewritten, nothing is synced": (
            node.aof and node.config.get("no-appendfsync-on-rewrite") == "yes"
        ),
        "the last write to the append-only file failed; writes are refused until the disk has room": (
            node.info.get("aof_last_write_status", "ok") != "ok"
        ),
        "the last rewrite of the append-only file failed; it grows until one succeeds": (
            node.info.get("aof_last_bgrewrite_status", "ok") != "ok"
        ),
        f"the cluster is in state {node.info.get('cluster_state')}: some queues cannot be served": (
            node.info.get("cluster_state", "ok") != "ok"
        ),
    }
    return [text for text, holds in troubles.items() if holds]


def version(nodes: list[ServerInfo]) -> str:
    """The versions of the servers."""
    return ", ".join(sorted({node.version for node in nodes}))


def described(engine: str, nodes: list[ServerInfo], corrupt: int, losses: Sequence[str] = ()) -> Description:
    """The description of an open engine."""
    durable, words = durability(nodes)
    found = [*losses, *warnings(nodes)]
    if corrupt:
        found.append(
            f"{corrupt} records could not be read and were set aside; they are among the dead jobs, with the raw text "
            "as their payload. Look at them, then discard or delete them"
        )
    return Description(
        engine=engine,
        version=version(nodes),
        durable=durable,
        durability=words,
        facts={
            "server": ", ".join(sorted({node.product for node in nodes})),
            "mode": nodes[0].info.get("redis_mode") or nodes[0].info.get("server_mode", "unknown"),
            "masters": str(len(nodes)),
            "replicas": str(sum(node.number("connected_slaves") for node in nodes)),
            "role": _all(nodes, "role", "unknown"),
            "appendonly": ", ".join(sorted({"yes" if node.aof else "no" for node in nodes})),
            "appendfsync": ", ".join(sorted({node.fsync for node in nodes})),
            "maxmemory": ", ".join(sorted({str(node.number("maxmemory")) for node in nodes})),
            "maxmemory-policy": ", ".join(sorted({node.policy for node in nodes})),
            "min-replicas-to-write": ", ".join(
                sorted({node.config.get("min-replicas-to-write", "unknown") for node in nodes})
            ),
            "cluster_state": _all(nodes, "cluster_state", "no cluster"),
            "corrupt_records": str(corrupt),
        },
        size=sum(node.number("used_memory") for node in nodes),
        log_size=sum(node.number("aof_current_size") for node in nodes) if durable else None,
        warnings=tuple(found),
    )


def _all(nodes: list[ServerInfo], name: str, otherwise: str) -> str:
    return ", ".join(sorted({node.info.get(name, otherwise) for node in nodes}))
