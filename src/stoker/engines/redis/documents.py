"""Small documents of operators, a hash per kind in the home shard: read all, change one by compare-and-set."""

from __future__ import annotations

from typing import Any

from stoker.engines.base import OPERATIONS
from stoker.engines.call_times import timed
from stoker.engines.redis import audit
from stoker.engines.redis.control import pairs
from stoker.engines.redis.scripts import script
from stoker.engines.redis.store import Store
from stoker.engines.shared.audit_lines import tell
from stoker.engines.shared.facets import Facet
from stoker.model.audit import AuditEntry, By, Deed
from stoker.model.operations import written_before
from stoker.model.time import Instant

_SWAP = script("swap")


class Documents(Facet[Store]):
    """Tokens, sessions, operations and errors."""

    @timed(write=False, name="read_documents")
    async def read(self, kind: str) -> list[bytes]:
        return await documents(self._store, kind)

    @timed(write=True, name="swap_document")
    async def swap(
        self, kind: str, name: str, before: bytes | None, after: bytes | None, *, by: tuple[By, Deed] | None = None
    ) -> bool:
        return await swap(self._store, kind, name, before, after, by)


async def documents(store: Store, kind: str) -> list[bytes]:
    """All documents of a kind."""
    return [value for _, value in pairs(await store.connection.call("HGETALL", store.home.key(kind)))]


async def swap(
    store: Store, kind: str, name: str, before: bytes | None, after: bytes | None, by: tuple[By, Deed] | None
) -> bool:
    """Write a document if the stored one is still `before`, or was written by this call whose reply was lost.

    The audit entry is written by the same script.
    """
    more = [store.home.key("audit"), store.home.key(kind)]
    wanted = after or b""
    given: list[Any] = [name, before or b"", wanted]
    entries: list[AuditEntry] = []
    if by is not None:
        now = await store.now()
        entries.append(AuditEntry(now, *by))
        given += [now, audit.packed(entries[0])]
    _, swapped, found = await store.run(_SWAP, store.home, given, more=more)
    written = bool(swapped) or bytes(found) == wanted
    if written:
        tell(entries)
    return written


async def expire_operations(store: Store, before: Instant) -> int:
    """Remove operations that no call has written since an instant; returns how many."""
    removed = 0
    for name, found in written_before(await documents(store, OPERATIONS), before):
        removed += await swap(store, OPERATIONS, name, found, None, None)
    return removed
