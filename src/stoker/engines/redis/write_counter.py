"""Noticing that the store went back in time: a lagging replica was promoted, a log lost its end, a backup was restored.

No server says so by itself. So every insert, settlement and action is counted in the store, for each engine in each
shard, by the script that writes it. No count is ever told twice; if one is, acknowledged writes are gone, and people
hear of it. An engine with a clock of its own (in tests) does not count: its store's days pass too quickly for the
sweeping of counts that nobody raises any more.
"""

from __future__ import annotations

import os
import time

from stoker.engines.redis.cluster.fan_out import spread
from stoker.engines.redis.scripts import script
from stoker.engines.redis.store import Store
from stoker.model.time import rfc3339

REFRESHED = 3_600.0
"""Seconds after which an engine in use says anew that it is alive; its counts are swept a day after the last time."""

FORGOTTEN = 12 * 3_600.0
REMEMBERED = 1_000
"""So many of the last counts are known one by one: answers overtake one another, but not by that much."""

MOST_LOSSES = 10

_KEEP_COUNT = script("keep_count")


class Count:
    """What one shard told this engine so far."""

    __slots__ = ("_recent", "at", "highest")

    def __init__(self) -> None:
        self.highest, self.at = 0, 0.0
        self._recent: set[int] = set()

    def went_back(self, told: int) -> bool:
        """Take a count down; is it one that was told before?"""
        again = told in self._recent or told <= self.highest - REMEMBERED
        if again:
            self._recent.clear()
            self.highest = told
        self._recent.add(told)
        self.highest = max(self.highest, told)
        if len(self._recent) > 2 * REMEMBERED:
            self._recent = {one for one in self._recent if one > self.highest - REMEMBERED}
        return again


class WriteCounter:
    """The counts of one engine, by shard."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._engine = os.urandom(8).hex()
        self._counts: dict[str, Count] = {}
        self._refreshed: dict[str, float] = {}
        self._untold: list[str] = []
        self.losses: list[str] = []
        if store.options.clock is None:
            store.counted_as = f"@{self._engine}"
            store.connection.on_count = self.heard

    def heard(self, tag: str, count: int) -> None:
        """Compare a count with those before."""
        counter = self._counts.get(tag)
        if counter is None:
            counter = self._counts[tag] = Count()
        at, counter.at = counter.at, time.time()
        # An engine that rested for long may have been taken for dead, and its counts swept.
        if not counter.went_back(count) or counter.at - at > FORGOTTEN:
            return
        told = (
            f"the store went back to before {rfc3339(int(at * 1_000_000))}: a lagging replica was promoted, a log lost "
            "its end or a backup was restored. Jobs acknowledged since may be lost and ended ones may run again; "
            "claims from before are void. Compare with what your own records say was enqueued"
        )
        self._untold.append(told)
        self.losses = [*self.losses, told][-MOST_LOSSES:]

    async def leave(self) -> list[str]:
        """Keep the counts from being swept; answers what to tell people since the last time."""
        due = [tag for tag in self._counts if time.monotonic() - self._refreshed.get(tag, -REFRESHED) >= REFRESHED]
        if due:
            await spread(due, self._refresh)
        told, self._untold = self._untold, []
        return told

    async def remove(self) -> None:
        """Leave nothing behind."""
        for tag in self._counts:
            commands = [("HDEL", f"{tag}:{name}", self._engine) for name in ("writes", "writers")]
            await self._store.connection.pipeline(commands)

    async def _refresh(self, tag: str) -> None:
        shard = next(one for one in self._store.familiar() if one.tag == tag)
        await self._store.run(_KEEP_COUNT, shard, [self._engine], more=[shard.key("writers")])
        self._refreshed[tag] = time.monotonic()
