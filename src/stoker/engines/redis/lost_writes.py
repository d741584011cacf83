"""Detects lost writes: a lagging replica was promoted, a log lost its end, a backup was restored.

No server reports that by itself. So each script that inserts, settles or alters increments a counter of its engine in
its shard and returns it. Redis never returns the same count twice; if it does, acknowledged writes were lost, and the
engine logs an error. An engine with an injected clock does not count: the days of its store pass too quickly, and
`expire` would remove the counters of engines in use.
"""

from __future__ import annotations

import os
import time

from stoker.engines.redis.cluster.fan_out import spread
from stoker.engines.redis.scripts import script
from stoker.engines.redis.store import Store
from stoker.model.time import rfc3339

REFRESHED = 3_600.0
"""Seconds between two signs of life of an engine; `expire` removes counters a day after the last one."""

FORGOTTEN = 12 * 3_600.0
REMEMBERED = 1_000
"""How many of the last counts are compared one by one: replies overtake one another, but not by that many."""

MOST_LOSSES = 10

_KEEP_COUNT = script("keep_count")


class Count:
    """The counts that one shard returned to this engine."""

    __slots__ = ("_recent", "at", "highest")

    def __init__(self) -> None:
        self.highest, self.at = 0, 0.0
        self._recent: set[int] = set()

    def went_back(self, count: int) -> bool:
        """Note a count; was it returned before?"""
        again = count in self._recent or count <= self.highest - REMEMBERED
        if again:
            self._recent.clear()
            self.highest = count
        self._recent.add(count)
        self.highest = max(self.highest, count)
        if len(self._recent) > 2 * REMEMBERED:
            self._recent = {one for one in self._recent if one > self.highest - REMEMBERED}
        return again


class WriteCounter:
    """The write counters of one engine, by shard."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._engine = os.urandom(8).hex()
        self._counts: dict[str, Count] = {}
        self._refreshed: dict[str, float] = {}
        self._unreported: list[str] = []
        self.losses: list[str] = []
        if store.options.clock is None:
            store.counted_as = f"@{self._engine}"
            store.connection.on_count = self.compare

    def compare(self, tag: str, count: int) -> None:
        """Compare a count with those before."""
        counter = self._counts.get(tag)
        if counter is None:
            counter = self._counts[tag] = Count()
        at, counter.at = counter.at, time.time()
        # The counters of an engine that was idle for long may have been removed.
        if not counter.went_back(count) or counter.at - at > FORGOTTEN:
            return
        loss = (
            f"the store went back to before {rfc3339(int(at * 1_000_000))}: a lagging replica was promoted, a log lost "
            "its end or a backup was restored. Jobs acknowledged since may be lost and ended ones may run again; "
            "claims from before are void. Compare with what your own records say was enqueued"
        )
        self._unreported.append(loss)
        self.losses = [*self.losses, loss][-MOST_LOSSES:]

    async def report(self) -> list[str]:
        """Show that this engine is alive; returns the losses found since the last report."""
        due = [tag for tag in self._counts if time.monotonic() - self._refreshed.get(tag, -REFRESHED) >= REFRESHED]
        if due:
            await spread(due, self._refresh)
        found, self._unreported = self._unreported, []
        return found

    async def remove(self) -> None:
        """Remove this engine's counters."""
        for tag in self._counts:
            commands = [("HDEL", f"{tag}:{name}", self._engine) for name in ("writes", "writers")]
            await self._store.connection.pipeline(commands)

    async def _refresh(self, tag: str) -> None:
        shard = next(one for one in self._store.familiar() if one.tag == tag)
        await self._store.run(_KEEP_COUNT, shard, [self._engine], more=[shard.key("writers")])
        self._refreshed[tag] = time.monotonic()
