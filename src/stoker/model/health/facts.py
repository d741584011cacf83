"""What an engine reads for a check-up. Every number is as the store reported it; None is what it did not report."""

from __future__ import annotations

import msgspec

MOST_NAMED = 20
"""Jobs that cannot be read and that a check-up names."""

MOST_COUNTED = 10_000
"""Jobs that are really counted per queue and status, to compare with the counter; and keys, per store."""


class Counted(msgspec.Struct, frozen=True):
    """A counter, and how many there really are; the latter stops behind `MOST_COUNTED`."""

    queue: str
    status: str
    counter: int
    found: int


class Pin(msgspec.Struct, frozen=True):
    """The holder of an old snapshot of Postgres: how many transactions it goes back, and for how many seconds."""

    what: str
    name: str
    detail: str
    behind: int
    seconds: float | None

    def text(self) -> str:
        """Who holds it, and for how long."""
        since = f"{self.behind:,} transactions" if self.seconds is None else f"{self.seconds:.0f} s"
        return f"{self.what} {self.name}{f' ({self.detail})' if self.detail else ''} for {since}"


class Slot(msgspec.Struct, frozen=True):
    """A replication slot, and how many bytes of the log it keeps."""

    name: str
    active: bool
    retained: int


class Table(msgspec.Struct, frozen=True):
    """A table of Stoker's: live and dead rows as the server estimates them, bytes, and whether it is vacuumed."""

    name: str
    live: int
    dead: int
    bytes: int
    autovacuum: bool
    threshold: int


class Sequence(msgspec.Struct, frozen=True):
    """A sequence of Stoker's: the last number it gave, and the largest that was found where its numbers are stored."""

    name: str
    last: int
    largest: int


class PostgresFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What Postgres says about itself."""

    version: int
    fsync: bool
    full_page_writes: bool
    synchronous_commit: str
    standby: bool
    sees_all_sessions: bool
    autovacuum: bool
    pooled: bool
    listens: bool
    connections: int
    most_connections: int
    pins: tuple[Pin, ...] = ()
    slots: tuple[Slot, ...] = ()
    tables: tuple[Table, ...] = ()
    sequences: tuple[Sequence, ...] = ()
    missing_indexes: tuple[str, ...] = ()
    invalid_indexes: tuple[str, ...] = ()


class SqliteFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What SQLite and the file system say. `affected`: it has the WAL-reset bug.

    `mode` are the rights of the file. `owner` names its owner where that is neither this user nor root.
    """

    version: str
    affected: bool
    journal: str
    synchronous: str
    asked: str
    bytes: int
    log_bytes: int
    free_bytes: int | None
    mode: int
    owner: str | None = None


class Replica(msgspec.Struct, frozen=True):
    """A replica as its primary sees it: bytes behind, seconds since its last message."""

    name: str
    state: str
    behind: int
    silent: int


class RedisNode(msgspec.Struct, frozen=True, kw_only=True):
    """One server that takes writes. The fields of a cluster are None where there is none."""

    name: str
    product: str
    version: str
    policy: str
    used: int
    limit: int
    aof: bool
    fsync: str
    aof_written: bool = True
    aof_rewritten: bool = True
    snapshot_saved: bool = True
    evicted: int = 0
    replicas: tuple[Replica, ...] = ()
    cluster_state: str | None = None
    slots_ok: int | None = None


class RedisFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What the servers say. `losses`: acknowledged writes that were found missing; `unread`: records set aside."""

    nodes: tuple[RedisNode, ...]
    losses: tuple[str, ...] = ()
    unread: int = 0


class Transport(msgspec.Struct, frozen=True, kw_only=True):
    """The way to a server: its host (a path or nothing: a local socket), and how what is sent is protected.

    `verified`: the server proved with a certificate that it is this host. `remedy` says how this store gets both.
    """

    host: str
    encrypted: bool
    verified: bool
    remedy: str


UNDECLARED = "what the app declared cannot be read; its next start writes it anew"
"""A clause of `Facts.damaged`, behind the name of a queue or budget."""


class Facts(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that an engine reads for a check-up.

    `idle_keys` are unique keys that no active job holds and no success keeps for a time, of the first `MOST_COUNTED`;
    None: the engine cannot tell.
    `damaged` names what is stored and cannot be read, each in one clause.
    """

    idle_keys: int | None = None
    counters: tuple[Counted, ...] = ()
    damaged: tuple[str, ...] = ()
    postgres: PostgresFacts | None = None
    sqlite: SqliteFacts | None = None
    redis: RedisFacts | None = None
    transport: Transport | None = None
