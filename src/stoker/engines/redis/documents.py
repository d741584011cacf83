"""Small documents of operators, a hash per sort in the home shard: read all, change one by compare-and-set."""

from __future__ import annotations

from stoker.engines.redis.control import pairs
from stoker.engines.redis.scripts import script
from stoker.engines.redis.store import Store

_SWAP = script("swap")


async def documents(store: Store, sort: str) -> list[bytes]:
    """All documents of a sort."""
    return [value for _, value in pairs(await store.connection.call("HGETALL", store.home.key(sort)))]


async def swap(store: Store, sort: str, name: str, before: bytes | None, after: bytes) -> bool:
    """Write a document if the stored one is still `before`, or was written by this call whose reply was lost."""
    more = [store.home.key(sort)]
    _, swapped, found = await store.run(_SWAP, store.home, [name, before or b"", after], more=more)
    return bool(swapped) or bytes(found) == after
