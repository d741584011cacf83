"""Values beside the jobs: the callbacks of groups and the last errors of kinds, by compare-and-set."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import msgspec

from stoker.engines.call_times import timed
from stoker.engines.redis import groups
from stoker.engines.redis.control import pairs
from stoker.engines.redis.keys import CLOSED_GROUPS, OPEN_GROUPS, Shard
from stoker.engines.redis.store import Store
from stoker.engines.redis.unit_of_work import Unit
from stoker.engines.shared.facets import Facet
from stoker.model.groups import pack_callbacks, unpack_callbacks
from stoker.model.ids import JobId
from stoker.model.kept import Kept, Part

_place = msgspec.json.Decoder(tuple[bool, int, str]).decode
_ERROR = "/error"
"""The end of a field of `totals` that is the last error of a kind."""


class KeptValues(Facet[Store]):
    """Groups and kinds; this engine has no streams."""

    @timed(write=False)
    async def kept(self, part: Part, after: str | None = None, limit: int = 100) -> list[Kept]:
        self._store.connection.inside()
        if part is Part.GROUPS:
            return await self._groups(after, limit)
        found = [one for _, one in await self._kinds()] if part is Part.KINDS else []
        return sorted(one for one in found if after is None or one.at > after)[:limit]

    @timed(write=False)
    async def count_kept(self, part: Part) -> int:
        store = self._store
        store.connection.inside()
        if part is Part.GROUPS:
            lists = [shard.key(name) for shard in await self._shards() for name in (OPEN_GROUPS, CLOSED_GROUPS)]
            return sum([await store.connection.call("ZCARD", key) for key in lists])
        return len(await self._kinds()) if part is Part.KINDS else 0

    @timed(write=True)
    async def swap_kept(self, part: Part, swaps: Sequence[tuple[Kept, Kept]]) -> int:
        store, swapped = self._store, 0
        store.connection.inside()
        for before, after in swaps:
            if part is Part.GROUPS:
                group = bytes.fromhex(_place(before.at)[2])
                shard = await groups.where(store, group)
                swapped += await store.work(shard, partial(_swap_group, store, group, before, after), repeat=True)
            else:
                homes = [shard for shard, one in await self._kinds() if one == before]
                for shard in homes:
                    swapped += await store.work(shard, partial(_swap_kind, before, after), repeat=True)
        return swapped

    async def _groups(self, after: str | None, limit: int) -> list[Kept]:
        """Open groups before closed ones, so that one which closes meanwhile is met; each in the order of lists."""
        closed, at, group = (False, 0, "") if after is None else _place(after)
        found: list[Kept] = []
        behind = (at, bytes.fromhex(group)) if group else None
        for ended in (False, True)[closed:]:
            facet, left = groups.Groups(self._store), limit - len(found)
            page = await facet.find(closed=ended, behind=behind, limit=left) if left else []
            for one in page:
                place = msgspec.json.encode((ended, one.created_at, one.id.hex())).decode()
                found.append(Kept(place, body=pack_callbacks(one)))
            behind = None
        return found

    async def _kinds(self) -> list[tuple[Shard, Kept]]:
        found: list[tuple[Shard, Kept]] = []
        for shard in await self._shards():
            fields = pairs(await self._store.connection.call("HGETALL", shard.key("totals")))
            for name, text in fields:
                if (field := name.decode()).endswith(_ERROR):
                    found.append((shard, Kept(field, field.removesuffix(_ERROR), error=text.decode(errors="replace"))))
        return found

    async def _shards(self) -> list[Shard]:
        store = self._store
        return [store.home, *(await store.shards() if store.connection.cluster else ())]


async def _swap_group(store: Store, group: JobId, before: Kept, after: Kept, unit: Unit) -> int:
    """Swap the callbacks of a group; a client that has read those of a closed one must have stored them before."""
    key = unit.shard.group(group)
    stored, pending = await store.connection.call("HMGET", key, "f", "p")
    if pending is not None:
        await groups.close_one(store, unit.shard, key)
    if stored is None or unpack_callbacks(stored) != unpack_callbacks(before.body or b""):
        return 0
    unit.expect_hash(key, "f", stored)
    unit.expect_hash(key, "p", None)
    unit.write("HSET", key, "f", after.body)
    return 1


async def _swap_kind(before: Kept, after: Kept, unit: Unit) -> int:
    key = unit.shard.key("totals")
    unit.expect_hash(key, before.at, (before.error or "").encode())
    unit.write("HSET", key, before.at, after.error)
    return 1
