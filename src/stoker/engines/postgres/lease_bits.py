"""Locating the lease bits of settlements and notes, and building masks of them. CLAIMING.md draws them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

from stoker.engines.postgres.claim import Lease, Ref
from stoker.engines.postgres.statements import sql
from stoker.engines.sql.exchanges import Exchange, Row
from stoker.engines.sql.packing import read_unique
from stoker.model.ids import JobId
from stoker.model.job import Settlement
from stoker.model.run_origins import number

_HELD = sql("held")


class Item(NamedTuple):
    """A settlement, its place in the call, and where its bit is."""

    place: int
    settlement: Settlement
    ref: Ref


class Fenced(Protocol):
    """What applies only under a claim: a settlement or a save."""

    @property
    def id(self) -> JobId: ...

    @property
    def worker(self) -> str: ...

    @property
    def token(self) -> int: ...

    @property
    def ref(self) -> Any: ...


def known_refs(fenced: Sequence[Fenced]) -> Exchange[dict[int, Ref]]:
    """Return the refs of claims that may still be stored, by place: known by themselves, or looked up."""
    refs = {place: one.ref for place, one in enumerate(fenced) if type(one.ref) is Ref and one.ref.id == one.id}
    blind = [place for place in range(len(fenced)) if place not in refs]
    return refs | (yield from looked_up(fenced, blind))


def looked_up(fenced: Sequence[Fenced], places: Sequence[int]) -> Exchange[dict[int, Ref]]:
    """Look up the refs of some claims, by place."""
    if not places:
        return {}
    found = yield from found_refs([(fenced[place].worker, fenced[place].token, fenced[place].id) for place in places])
    return {places[n]: ref for n, ref in found.items()}


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

    def origins(self) -> list[int]:
        return [number(worker) for _, worker, _ in self._known]

    def bits(self) -> list[str]:
        return [mask.decode() for mask in self._masks]
