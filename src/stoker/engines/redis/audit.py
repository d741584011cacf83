"""The audit log: a sorted set per shard, scored by the store's time, written with the change that an entry tells of."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from stoker.engines.call_times import timed
from stoker.engines.redis.cluster.fan_out import spread
from stoker.engines.shared.facets import Facet
from stoker.engines.shared.unit_of_work import Wanted
from stoker.model.audit import AuditEntry, AuditQuery, By, Deed, latest, pack, unpack
from stoker.model.query import LATEST
from stoker.model.time import Instant

if TYPE_CHECKING:
    from stoker.engines.redis.keys import Shard
    from stoker.engines.redis.store import Store
    from stoker.engines.redis.unit_of_work import Unit

SERIAL = 8
"""Random bytes that keep equal entries apart."""


class Audit(Facet["Store"]):
    """The audit log of all shards."""

    @timed(write=False, name="read_audit")
    async def read(self, query: AuditQuery) -> list[AuditEntry]:
        store = self._store
        until = LATEST if query.until is None else query.until

        async def entries(shard: Shard) -> list[bytes]:
            found: list[bytes] = await store.connection.call(
                "ZREVRANGEBYSCORE", shard.key("audit"), f"({until}", query.since
            )
            return found

        answers = await spread(await _shards(store), entries)
        return latest([unpack(entry[SERIAL:]) for found in answers for entry in found], query)

    @timed(write=True, name="write_audit")
    async def write(self, by: By, deed: Deed) -> AuditEntry:
        async def enter(unit: Unit) -> AuditEntry:
            await unit.load(Wanted())  # the store's clock
            write(unit, by, deed)
            return AuditEntry(unit.now, by, deed)

        return await self._store.work(self._store.home, enter)


def write(unit: Unit, by: By | None, deed: Deed | None) -> None:
    """Add an entry to a unit; nothing for a change by code, or where nothing was done."""
    if by is not None and deed is not None:
        entry = AuditEntry(unit.now, by, deed)
        unit.entries.append(entry)
        unit.write("ZADD", unit.shard.key("audit"), unit.now, packed(entry))


def packed(entry: AuditEntry) -> bytes:
    """An entry as a member of the set."""
    return os.urandom(SERIAL) + pack(entry)


async def expire(store: Store, before: Instant) -> int:
    """Remove older entries; returns how many."""
    removed = await spread(
        await _shards(store),
        lambda shard: store.connection.call("ZREMRANGEBYSCORE", shard.key("audit"), "-inf", f"({before}"),
    )
    return sum(int(n) for n in removed)


async def _shards(store: Store) -> list[Shard]:
    return list(dict.fromkeys([store.home, *await store.shards()]))
