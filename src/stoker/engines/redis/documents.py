"""Small documents of operators, a hash per sort in the home shard: read all, change one by compare-and-set."""

from __future__ import annotations

from typing import Any

from stoker.engines.call_times import timed
from stoker.engines.redis import audit
from stoker.engines.redis.control import pairs
from stoker.engines.redis.scripts import script
from stoker.engines.redis.store import Store
from stoker.engines.shared import documents as shared
from stoker.engines.shared.audit_lines import tell
from stoker.engines.shared.documents import OPERATIONS, Signed, old_operations
from stoker.engines.shared.facets import Facet
from stoker.model.audit import AuditEntry
from stoker.model.time import Instant

_SWAP = script("swap")


class Documents(Facet[Store], shared.Documents):
    """Tokens, sessions and operations."""

    async def now(self) -> Instant:
        return await self._store.now()

    @timed(write=False)
    async def _documents(self, sort: str) -> list[bytes]:
        return await documents(self._store, sort)

    @timed(write=True)
    async def _swap(self, sort: str, name: str, before: bytes | None, after: bytes, signed: Signed | None) -> bool:
        return await swap(self._store, sort, name, before, after, signed)


async def documents(store: Store, sort: str) -> list[bytes]:
    """All documents of a sort."""
    return [value for _, value in pairs(await store.connection.call("HGETALL", store.home.key(sort)))]


async def swap(store: Store, sort: str, name: str, before: bytes | None, after: bytes, signed: Signed | None) -> bool:
    """Write a document if the stored one is still `before`, or was written by this call whose reply was lost.

    The audit entry is written by the same script.
    """
    more = [store.home.key("audit"), store.home.key(sort)]
    given: list[Any] = [name, before or b"", after]
    entries: list[AuditEntry] = []
    if signed is not None:
        now = await store.now()
        entries.append(AuditEntry(now, *signed))
        given += [now, audit.packed(entries[0])]
    _, swapped, found = await store.run(_SWAP, store.home, given, more=more)
    written = bool(swapped) or bytes(found) == after
    if written:
        tell(entries)
    return written


async def expire_operations(store: Store, before: Instant) -> int:
    """Remove operations that no call has written since an instant; returns how many."""
    removed = 0
    for name, found in old_operations(await documents(store, OPERATIONS), before):
        removed += await swap(store, OPERATIONS, name, found, b"", None)
    return removed
