"""Renews the leases of workers, and reaps the claims of those that lapsed.

On a cluster the home shard decides which worker is known; every queue's shard has a copy of the lease, because a claim
reads one shard only. A renewal goes to all of them, and a worker reaped in one is unknown in all.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from typing import Any

from stoker.engines.base import LEASE, ORDERS, ORPHANED_AFTER
from stoker.engines.call_times import timed
from stoker.engines.redis import record_format
from stoker.engines.redis.claim import as_claim, enlist, set_aside, stored
from stoker.engines.redis.control import count_of, curve_of, unlock_all
from stoker.engines.redis.keys import Shard
from stoker.engines.redis.scripts import script
from stoker.engines.redis.server_info import read_info
from stoker.engines.redis.store import Store
from stoker.engines.shared.facets import Facet
from stoker.model.errors import CorruptRecord
from stoker.model.ids import JobId
from stoker.model.job import Claim, Renewal, check_lease
from stoker.model.time import LONGEST, SECOND, Span

_RENEW = script("renew")
_REAP = script("reap")
_LAPSED = script("lapsed")

Held = Sequence[tuple[JobId, int]]

RENEWED_AT_ONCE = 250
"""Claims that one script compares; while it runs, the server does nothing else."""

REAPED_AT_ONCE = 50
"""Claims that one script takes over."""

OWNERS_AT_ONCE = 100
"""Lapsed workers that one script reads. Those without a claim become unknown at once."""


class Leases(Facet[Store]):
    """The leases of workers."""

    @timed(write=True)
    async def renew(self, worker: str, held: Held, *, lease: Span = LEASE, first: bool = False) -> Renewal:
        check_lease(lease)
        store = self._store
        if not store.connection.cluster:
            return await _renew_in(store, store.home, worker, held, lease, first=first)
        at_home = await _renew_in(store, store.home, worker, (), lease, first=first)
        if not at_home.known:
            return at_home
        shards = await store.shards()
        found = await asyncio.gather(*(_renew_in(store, shard, worker, held, lease, first=True) for shard in shards))
        if not all(one.known for one in found):
            await _reap_in(store, store.home, "", 0, [worker])
            return Renewal(known=False)
        missing = [set(one.lost) for one in found]
        return Renewal(
            True,
            [pair for pair in held if all(pair in lost for lost in missing)],
            [pair for one in found for pair in one.canceling],
            [claim for one in found for claim in one.orphaned],
            at_home.orders,
        )

    @timed(write=True)
    async def reap(self, by: str, limit: int, *, dead: Sequence[str] = ()) -> list[Claim]:
        store = self._store
        if not store.connection.cluster:
            return await _reap_in(store, store.home, by, max(limit, 0), dead)
        claims: list[Claim] = []
        for shard in await store.shards():
            if await enlist(store, shard, by):
                claims += await _reap_in(store, shard, by, max(limit - len(claims), 0), dead)
        if len(claims) < limit:
            # No shard holds a claim of theirs: make them unknown at home.
            await _reap_in(store, store.home, by, 0, dead)
        return claims


async def _renew_in(store: Store, shard: Shard, worker: str, held: Held, lease: Span, *, first: bool) -> Renewal:
    """Extend a lease in one shard; what a worker holds is compared part by part, so that no script runs for long."""
    lost: list[int] = []
    canceling: list[int] = []
    orphaned: list[Claim] = []
    orders = b""
    for since, until, places in _parts(held):
        fences = [part for place in places for part in (held[place][0], record_format.fence(worker, held[place][1]))]
        args = (worker, lease, "1" if first else "", ORPHANED_AFTER, since, until, *fences)
        more = shard.held(worker), shard.leases, shard.key(ORDERS)
        instant, known, gone, asked, orphans, orders = await store.run(_RENEW, shard, args, more=more)
        store.seen(instant)
        if not known:
            return Renewal(known=False)
        lost += [places[place] for place in gone]
        canceling += [places[place] for place in asked]
        orphaned += await _claims(store, shard, orphans)
    return Renewal(
        True,
        [held[place] for place in sorted(lost)],
        [held[place] for place in sorted(canceling)],
        orphaned,
        bytes(orders) or None,
    )


def _parts(held: Held) -> Iterator[tuple[bytes, bytes, Sequence[int]]]:
    """What a worker holds, in parts: the first and the last token as bounds in byte order, and places in `held`.

    Claims of one token stay together, and the parts leave no token out: what the worker does not name is an orphan.
    """
    if len(held) <= RENEWED_AT_ONCE:
        yield b"-", b"+", range(len(held))
        return
    ordered = sorted(range(len(held)), key=lambda place: held[place][1])
    since, start = b"-", 0
    for at in range(1, len(ordered)):
        token = held[ordered[at]][1]
        if at - start >= RENEWED_AT_ONCE and token != held[ordered[at - 1]][1]:
            yield since, b"(" + record_format.eight(token), ordered[start:at]
            since, start = b"[" + record_format.eight(token), at
    yield since, b"+", ordered[start:]


async def _reap_in(store: Store, shard: Shard, by: str, limit: int, dead: Sequence[str]) -> list[Claim]:
    """Take over claims of one shard, some at a time; none is asked for when owners are only to become unknown."""
    claims: list[Claim] = []
    unlocked: set[str] = set()
    while True:
        wanted = min(limit - len(claims), REAPED_AT_ONCE)
        instant, names, leases = await store.run(_LAPSED, shard, (OWNERS_AT_ONCE,), more=(shard.leases,))
        store.seen(instant)
        up = await _up_for(store) if names else 0
        lapsed = [name.decode() for name, lease in zip(names, leases, strict=True) if int(lease or LEASE) < up]
        owners = [*dead, *lapsed]
        if not owners:
            return claims
        if shard == store.home and (fresh := {*owners} - unlocked - {by}):
            await unlock_all(store, fresh)
            unlocked |= fresh
        more = [*(shard.held(worker) for worker in (by, *owners)), shard.leases]
        instant, found = await store.run(_REAP, shard, (by, wanted, len(dead), *owners), more=more)
        store.seen(instant)
        claims += await _claims(store, shard, found)
        if len(found) < wanted or len(claims) >= limit:
            return claims


async def _up_for(store: Store) -> Span:
    """How long all servers have been up. A longer lease has not lapsed: its worker could not renew it."""
    if store.options.clock is not None:
        return LONGEST + 1
    replies = await store.connection.each_node("INFO", "server")
    return min(int(read_info(one).get("uptime_in_seconds", "0")) * SECOND for one in replies.values())


async def _claims(store: Store, shard: Shard, rows: list[Any]) -> list[Claim]:
    claims = []
    for row in rows:
        try:
            claims.append(as_claim(stored(row), curve_of(row[4]), count_of(row[5])))
        except CorruptRecord as error:
            await set_aside(store, shard, row[0][:16], str(error))
    return claims
