"""Leases of workers: renew them, and reap the claims of workers whose lease expired."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

from stoker.engines.base import CONTROL, LEASE, ORPHANED_AFTER
from stoker.engines.call_times import timed
from stoker.engines.sql.exchanges import Exchange, Row
from stoker.engines.sqlite.claim import living, set_aside, stored
from stoker.engines.sqlite.facet import Facet
from stoker.engines.sqlite.statements import sql
from stoker.engines.sqlite.unit_of_work import FURTHEST_AHEAD, Unit
from stoker.model.errors import CorruptRecord
from stoker.model.ids import JobId
from stoker.model.job import Claim, Renewal, check_lease
from stoker.model.time import Instant, Span

_RENEW = sql("renew")
_ENLIST = sql("worker_make")
_RETIRE = sql("worker_retire")
_HELD = sql("renew_held")
_LIVING = sql("workers_living")
_OLDEST = sql("reap_oldest")
_TAKE = sql("reap_take")
_FORGET = sql("reap_forget")
_UNLOCK = sql("reap_unlock")


class Leases(Facet):
    """The leases of workers."""

    @timed(write=True)
    async def renew(
        self, worker: str, held: Sequence[tuple[JobId, int]], *, lease: Span = LEASE, first: bool = False
    ) -> Renewal:
        check_lease(lease)
        renewal = await self._store.write(lambda unit: renew(unit, worker, held, lease, first=first), bare=not first)
        self._store.resources().liveness.show(worker, alive=renewal.known and lease > 0)
        return renewal

    @timed(write=True)
    async def reap(self, by: str, limit: int, *, dead: Sequence[str] = ()) -> list[Claim]:
        liveness = self._store.resources().liveness
        living, lapsed = await self._store.read(workers)
        gone = [*dead, *liveness.dead(worker for worker in living if worker != by)]
        if not gone and not lapsed.difference((by,)):
            return []
        claims, retired = await self._store.write(lambda unit: reap(unit, by, limit, gone))
        for worker in retired:
            liveness.forget(worker)
        return claims


def renew(unit: Unit, worker: str, held: Sequence[tuple[JobId, int]], lease: Span, *, first: bool) -> Exchange[Renewal]:
    """Extend a lease and compare the worker's claims with the stored ones."""
    # A lease expires strictly after its end; a released one (span 0) at once.
    span = lease if lease > 0 else -1
    rows = yield _RENEW, (worker, unit.now, span, FURTHEST_AHEAD)
    if not rows and first:
        rows = yield _ENLIST, (worker, unit.now, span)
    if not rows:
        return Renewal(known=False)
    wid, now, orders = rows[0]
    mine: dict[JobId, Row] = {row[0]: row for row in (yield _HELD, (wid,))}
    lost: list[tuple[JobId, int]] = []
    canceling: list[tuple[JobId, int]] = []
    for job, token in held:
        row = mine.get(job)
        if row is None or row[1] != token:
            lost.append((job, token))
            continue
        if row[2]:
            canceling.append((job, token))
        del mine[job]
    orphaned = []
    for job, _, _, claimed in mine.values():
        if now - claimed > ORPHANED_AFTER:
            # A job that cannot be read stays until it is reaped: a renewal is one write and no more.
            with suppress(CorruptRecord):
                claim = yield from stored(unit, job)
                orphaned.append(claim)
    return Renewal(True, lost, canceling, orphaned, orders)


def workers(now: Instant) -> Exchange[tuple[list[str], set[str]]]:
    """Return the workers that have a lease, and those whose lease has expired."""
    known = yield _LIVING, ()
    return [name for _, name, _ in known], {name for _, name, until in known if until < now}


def reap(unit: Unit, by: str, limit: int, dead: Sequence[str]) -> Exchange[tuple[list[Claim], list[str]]]:
    """Pass claims of expired and dead workers to a living one, oldest first.

    Returns the claims, and the workers that have no claim and no lease any more.
    """
    wid = yield from living(unit, by)
    if wid is None:
        return [], []
    known = {name: (owner, until) for owner, name, until in (yield _LIVING, ())}
    named = set(dead)
    silent = {name: owner for name, (owner, until) in known.items() if until < unit.now or name in named}
    silent.pop(by, None)
    owners = list(silent.values())
    found: list[Row] = []
    for owner in owners:
        found += yield _OLDEST, (owner,)
    found.sort(key=lambda row: (row[3], row[4]))
    claims = []
    for owner, seq, token, _, job in found[: max(limit, 0)]:
        yield _TAKE, (owner, seq, wid, max(unit.now, token + 1), unit.now)
        try:
            claim = yield from stored(unit, job)
            claims.append(claim)
        except CorruptRecord as broken:
            yield from set_aside(unit, job, str(broken))
    for name in {*silent, *named} - {by}:
        if (yield _UNLOCK, (name,)):
            unit.wake(CONTROL)
    retired: list[str] = []
    for owner in owners:
        retired += [name for (name,) in (yield _FORGET, (owner,))]
    for name in dict.fromkeys(dead):  # in the given order: the last ones are remembered longest
        if name not in known and name != by:
            yield _RETIRE, (name,)
    return claims, retired
