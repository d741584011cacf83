"""Locating the lease bits of settlements and notes, and building masks of them. CLAIMING.md draws them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from stoker.engines.postgres.claim import Lease, Ref
from stoker.engines.postgres.statements import sql
from stoker.engines.sql.exchanges import Exchange, Row
from stoker.engines.sql.packing import read_unique
from stoker.model.ids import JobId
from stoker.model.job import Settlement

_HELD = sql("held")


class Item(NamedTuple):
    """A settlement, its place in the call, and where its bit is."""

    place: int
    settlement: Settlement
    ref: Ref


def located(settlements: Sequence[tuple[int, Settlement]]) -> Exchange[list[Item]]:
    """Return the settlements, by place, whose claims may still be stored, each with its `Ref`."""
    items: list[Item] = []
    blind: list[tuple[int, Settlement]] = []
    for place, settlement in settlements:
        ref = settlement.ref
        if type(ref) is Ref and ref.id == settlement.id:
            items.append(Item(place, settlement, ref))
        else:
            blind.append((place, settlement))
    if blind:
        refs = yield from found_refs([(one.worker, one.token, one.id) for _, one in blind])
        items += [Item(place, one, refs[n]) for n, (place, one) in enumerate(blind) if n in refs]
    return items


def found_refs(wanted: list[tuple[str, int, JobId]]) -> Exchange[dict[int, Ref]]:
    """Look up refs of claims known by (worker, token, job); keyed by index in `wanted`."""
    refs: dict[int, Ref] = {}
    leases: dict[int, Lease] = {}
    columns = [list(column) for column in zip(*wanted, strict=True)]
    for row in (yield _HELD, tuple(columns)):
        ord_, number, token, claimed, worker, queue, size, pos, kind, attempt, priority, key, traits, throttles = row
        lease = leases.get(number)
        if lease is None:
            lease = leases[number] = Lease(number, token, claimed, worker, queue, size)
        unique = read_unique(key, traits)
        refs[ord_ - 1] = Ref(
            lease=lease,
            id=wanted[ord_ - 1][2],
            pos=pos,
            kind=kind,
            attempt=attempt,
            priority=priority,
            slot=None if unique is None else unique.slot(kind),
            throttles=throttles,
        )
    return refs


class BitMasks:
    """Bit masks of the positions that a call settles, one for each fence (lease, worker, token)."""

    def __init__(self, items: Sequence[Item]) -> None:
        self.numbers: list[int] = []
        """The number of its fence for each item."""
        self._known: dict[tuple[int, str, int], int] = {}
        self._masks: list[bytearray] = []
        known, masks, numbers = self._known, self._masks, self.numbers
        for _, settlement, ref in items:
            fence = (ref.lease.id, settlement.worker, settlement.token)
            number = known.get(fence)
            if number is None:
                number = known[fence] = len(known) + 1
                masks.append(bytearray(b"0" * ref.lease.size))
            masks[number - 1][ref.pos] = 49
            numbers.append(number)

    def fences(self) -> Row:
        leases, workers, tokens = zip(*self._known, strict=True)
        return list(leases), list(workers), list(tokens)

    def bits(self) -> list[str]:
        return [mask.decode() for mask in self._masks]
