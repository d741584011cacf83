"""Worker leases: renewing them, and passing on the claims of dead workers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from stoker.engines.base import ORPHANED_AFTER
from stoker.engines.postgres.claim import Lease, Ref, past_of, settings_of
from stoker.engines.postgres.statements import sql
from stoker.engines.postgres.unit_of_work import Unit
from stoker.engines.sql.packing import read_options, read_unique
from stoker.engines.sql.steps import Row, Steps
from stoker.model.ids import JobId
from stoker.model.job import Claim, Renewal, Status
from stoker.model.time import Instant, Span

if TYPE_CHECKING:
    from stoker.engines.postgres.store import Store

_RENEW = sql("renew")
_ENLIST = sql("enlist")
_CONTENTS = sql("contents")
_LIVING = sql("living")
_OWNERS = sql("owners")
_HOLD = sql("reap_hold")
_OLDEST = sql("reap_oldest")
_TAKE = sql("reap_take")
_RETIRE = sql("retire")

SPARE = 64
"""Leases read beyond the limit: among claims of one instant the smallest ids are reaped first."""


async def renew(store: Store, worker: str, held: Sequence[tuple[JobId, int]], lease: Span, *, first: bool) -> Renewal:
    """Extend a lease and compare what the worker holds with what is stored under it."""
    return await store.each("renew", lambda: _renew(store.now(), worker, held, lease, first=first))


def _renew(
    now: Instant | None, worker: str, held: Sequence[tuple[JobId, int]], lease: Span, *, first: bool
) -> Steps[Renewal]:
    # A lease lapses strictly after its end; one that the worker releases, at once.
    values = (now, worker, lease if lease > 0 else -1)
    rows: list[Row] = yield _RENEW, values
    if not rows and first:
        yield _ENLIST, values
        rows = yield _RENEW, values
    if not rows:
        return Renewal(known=False)
    mine: dict[tuple[JobId, int], tuple[int, int, bool, Instant]] = {}
    for at, number, token, claimed, open_, cancel, ids in rows:
        now = at
        if number is not None:
            for pos, (job, bit) in enumerate(zip(ids, open_, strict=True)):
                if bit == "1":
                    mine[job, token] = number, pos, cancel is not None and cancel[pos] == "1", claimed
    lost: list[tuple[JobId, int]] = []
    canceling: list[tuple[JobId, int]] = []
    for pair in held:
        stored = mine.get(pair)
        if stored is None:
            lost.append(pair)
        elif stored[2]:
            canceling.append(pair)
    for pair in held:
        mine.pop(pair, None)
    assert now is not None
    astray = [(number, pos) for number, pos, _, claimed in mine.values() if now - claimed > ORPHANED_AFTER]
    return Renewal(True, lost, canceling, (yield from contents(astray)))


def contents(places: Sequence[tuple[int, int]]) -> Steps[list[Claim]]:
    """Claims as they are stored at (lease, position), in the order asked."""
    if not places:
        return []
    leases, positions = zip(*places, strict=True)
    rows = yield _CONTENTS, (list(leases), list(positions))
    known: dict[int, Lease] = {}
    return [_stored(row, known) for row in rows]


def _stored(row: Row, known: dict[int, Lease]) -> Claim:
    number, token, claimed, queue, id_, kind, payload, attempt, budget, created, due, priority = row[:12]
    options, key, traits, tenant, settings, past, error, pos, size, worker, former, former_at, cancel = row[12:]
    lease = known.get(number)
    if lease is None:
        lease = known[number] = Lease(number, token, claimed, worker, queue, size)
    unique = read_unique(key, traits)
    curve, cool = settings_of(settings)
    base, crashes, throttles, metadata = past_of(past)
    return Claim(
        id=id_,
        kind=kind,
        queue=queue,
        payload=payload.encode(),
        attempt=attempt,
        base=base,
        budget=budget,
        worker=worker,
        token=token,
        claimed_at=claimed,
        created_at=created,
        scheduled_at=due,
        priority=priority,
        options=read_options(options),
        unique=unique,
        tenant=tenant,
        crashes=crashes,
        throttles=throttles,
        last_error=error,
        cancel_requested=cancel,
        metadata=metadata,
        curve=curve,
        cool_count=cool,
        former=former,
        former_at=former_at,
        ref=Ref(
            lease=lease,
            id=id_,
            pos=pos,
            kind=kind,
            attempt=attempt,
            priority=priority,
            slot=None if unique is None else unique.slot(kind),
            throttles=throttles,
        ),
        before=Status.RUNNING,
    )


async def reap(store: Store, by: str, limit: int, dead: Sequence[str]) -> list[Claim]:
    """Pass claims of lapsed and dead workers to a living one, oldest first."""
    store.inside()
    return await store.write(lambda unit: _reap(unit, store.now(), by, limit, dead), lax=True)


def _reap(unit: Unit, clock: Instant | None, by: str, limit: int, dead: Sequence[str]) -> Steps[list[Claim]]:
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
    if held or named - living.keys():
        yield _RETIRE, (now, sorted(held), sorted(named - living.keys()))
    return claims


def _take_over(unit: Unit, by: str, limit: int, owners: list[str]) -> Steps[list[Claim]]:
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
    places = [(lease, pos) for lease, bits in taken for pos, bit in enumerate(bits) if bit == "1"]
    claims = yield from contents(places)
    claims.sort(key=lambda claim: (claim.former_at or 0, claim.id))
    return claims
