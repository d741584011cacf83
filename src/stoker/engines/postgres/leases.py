"""Worker leases: renewing them, and passing on the claims of dead workers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from stoker.engines.base import CONTROL, LEASE, ORPHANED_AFTER
from stoker.engines.call_times import timed
from stoker.engines.postgres.claim import Broken, Lease, Ref, set_aside, subqueue_of
from stoker.engines.postgres.facet import Facet
from stoker.engines.postgres.statements import sql
from stoker.engines.postgres.unit_of_work import Place, Unit
from stoker.engines.sql.exchanges import Exchange, Row
from stoker.model.ids import JobId
from stoker.model.job import Claim, Renewal, Status, check_lease
from stoker.model.time import Instant, Span

_RENEW = sql("renew")
_ENLIST = sql("enlist")
_LIVING = sql("living")
_OWNERS = sql("owners")
_HOLD = sql("reap_hold")
_OLDEST = sql("reap_oldest")
_TAKE = sql("reap_take")
_RETIRE = sql("retire")
_UNLOCK = sql("reap_unlock")

SPARE = 64
"""Leases read beyond the limit: among claims of one instant the smallest ids are reaped first."""


class Leases(Facet):
    """The leases of workers, and what is stored under them."""

    @timed(write=True)
    async def renew(
        self, worker: str, held: Sequence[tuple[JobId, int]], *, lease: Span = LEASE, first: bool = False
    ) -> Renewal:
        check_lease(lease)
        store, broken = self._store, list[Broken]()
        renewal = await store.each("renew", lambda: _renew(store.now(), worker, held, lease, broken, first=first))
        if broken:
            await store.write(lambda unit: set_aside(unit, broken, started=True))
        return renewal

    @timed(write=True)
    async def reap(self, by: str, limit: int, *, dead: Sequence[str] = ()) -> list[Claim]:
        store = self._store
        store.inside()
        return await store.write(lambda unit: _reap(unit, store.now(), by, limit, dead), lax=True)


def _renew(
    now: Instant | None,
    worker: str,
    held: Sequence[tuple[JobId, int]],
    lease: Span,
    broken: list[Broken],
    *,
    first: bool,
) -> Exchange[Renewal]:
    # A lease lapses strictly after its end; one that the worker releases, at once.
    values = (now, worker, lease if lease > 0 else -1)
    rows: list[Row] = yield _RENEW, values
    if not rows and first:
        yield _ENLIST, values
        rows = yield _RENEW, values
    if not rows:
        return Renewal(known=False)
    mine: dict[tuple[JobId, int], tuple[Place, bool, Instant]] = {}
    orders: str | None = rows[0][-1]
    for at, number, token, claimed, open_, cancel, ids, _ in rows:
        now = at
        if number is not None:
            for pos, (job, bit) in enumerate(zip(ids, open_, strict=True)):
                if bit == "1":
                    canceled = cancel is not None and cancel[pos] == "1"
                    mine[job, token] = Place(number, pos, len(open_)), canceled, claimed
    lost: list[tuple[JobId, int]] = []
    canceling: list[tuple[JobId, int]] = []
    for pair in held:
        stored = mine.get(pair)
        if stored is None:
            lost.append(pair)
        elif stored[1]:
            canceling.append(pair)
    for pair in held:
        mine.pop(pair, None)
    assert now is not None
    astray = {job: place for (job, _), (place, _, claimed) in mine.items() if now - claimed > ORPHANED_AFTER}
    broken.clear()  # of a try before
    return Renewal(True, lost, canceling, (yield from contents(Unit(now), astray, broken)), orders)


def contents(unit: Unit, places: Mapping[JobId, Place], broken: list[Broken]) -> Exchange[list[Claim]]:
    """Return claims as they are stored, in the order asked; one that has ended meanwhile is left out.

    Those that cannot be read are added to `broken` instead.
    """
    yield from unit.load_places(places, payloads=True)
    leases: dict[int, Lease] = {}
    claims: list[Claim] = []
    for job, place in places.items():
        record = unit.get(job)
        if record is None or record.status is not Status.RUNNING:
            continue
        if (corrupt := unit.stored(job).corrupt) is not None:
            broken.append(Broken(job, record.token, corrupt))
            continue
        claim = record.as_claim(unit.queue(record.queue))
        lease = leases.get(place.lease)
        if lease is None:
            lease = Lease(place.lease, claim.token, claim.claimed_at, claim.worker, claim.queue, place.size)
            leases[place.lease] = lease
        ref = Ref(
            lease=lease,
            id=job,
            pos=place.bit,
            kind=claim.kind,
            attempt=claim.attempt,
            priority=claim.priority,
            slot=record.slot,
            throttles=claim.throttles,
            group=claim.options.group,
            subqueue=subqueue_of(claim.options),
        )
        claims.append(msgspec.structs.replace(claim, ref=ref))
    return claims


def _reap(unit: Unit, clock: Instant | None, by: str, limit: int, dead: Sequence[str]) -> Exchange[list[Claim]]:
    now = unit.now
    rows = yield _LIVING, (clock,)
    living: dict[str, Instant] = dict(map(tuple, rows))
    if living.get(by, -1) < now:
        return []
    named = set(dead) - {by}
    stored = {name for (name,) in (yield _OWNERS, ())}
    silent = {name for name, until in living.items() if name != by and (until < now or name in named)}
    gone = stored - living.keys()
    if not silent and not gone and not named - living.keys():
        return []
    held = {name for (name,) in (yield _HOLD, (sorted(silent), now - 1, sorted(named)))} if silent else set()
    claims = yield from _take_over(unit, by, limit, sorted((held | gone) & stored))
    if (yield _UNLOCK, (sorted(held | gone | named),)):
        unit.wake(CONTROL)
    if held or named - living.keys():
        yield _RETIRE, (now, sorted(held), sorted(named - living.keys()))
    return claims


def _take_over(unit: Unit, by: str, limit: int, owners: list[str]) -> Exchange[list[Claim]]:
    if not owners or limit <= 0:
        return []
    open_: dict[int, str] = {}
    found: list[tuple[Instant, JobId, int, int]] = []
    for lease, claimed, bits, ids in (yield _OLDEST, (owners, limit + SPARE)):
        open_[lease] = bits
        found += [
            (claimed, job, lease, pos) for pos, (job, bit) in enumerate(zip(ids, bits, strict=True)) if bit == "1"
        ]
    found.sort()
    masks: dict[int, bytearray] = {}
    for _, _, lease, pos in found[:limit]:
        masks.setdefault(lease, bytearray(b"0" * len(open_[lease])))[pos] = 49
    if not masks:
        return []
    taken = yield _TAKE, (unit.now, by, list(masks), [mask.decode() for mask in masks.values()])
    places = {
        job: Place(lease, pos, len(bits))
        for lease, bits, ids in taken
        for pos, (job, bit) in enumerate(zip(ids, bits, strict=True))
        if bit == "1"
    }
    broken: list[Broken] = []
    claims = yield from contents(unit, places, broken)
    if broken:
        yield from set_aside(unit, broken, started=True)
    claims.sort(key=lambda claim: (claim.former_at or 0, claim.id))
    return claims
