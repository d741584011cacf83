"""Progress, metadata and log lines of running handlers, fenced like settlements."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from stoker.engines.call_times import timed
from stoker.engines.postgres.claim import Ref
from stoker.engines.postgres.facet import Facet
from stoker.engines.postgres.lease_bits import found_refs
from stoker.engines.postgres.statements import sql
from stoker.engines.sql.exchanges import Exchange
from stoker.engines.sql.packing import encode, legible
from stoker.model.job import LONGEST_LOG, Note, Verdict, noted

if TYPE_CHECKING:
    from stoker.engines.base import Transaction
    from stoker.engines.postgres.store import Store
    from stoker.engines.postgres.user_transaction import Transactions

_NOTE = sql("note")


class NoteWriter(Facet):
    """What running handlers write on their jobs."""

    def __init__(self, store: Store, transactions: Transactions) -> None:
        super().__init__(store)
        self._transactions = transactions

    @timed(write=True)
    async def note(self, notes: Sequence[Note], *, tx: Transaction | None = None) -> list[Verdict]:
        if tx is not None:
            return await self._transactions.join(tx, lambda _: _noted(notes))
        self._store.inside()
        return await self._store.each("settle", lambda: _noted(notes)) if notes else []


def _noted(notes: Sequence[Note]) -> Exchange[list[Verdict]]:
    """Store notes; return verdicts in their order. What is not under its known lease any more is looked for."""
    verdicts = yield from _note(notes)
    moved = [
        place for place, verdict in enumerate(verdicts) if verdict is Verdict.LOST and notes[place].ref is not None
    ]
    if moved:
        again = yield from _note([msgspec.structs.replace(notes[place], ref=None) for place in moved])
        for place, verdict in zip(moved, again, strict=True):
            verdicts[place] = verdict
    return verdicts


def _note(notes: Sequence[Note]) -> Exchange[list[Verdict]]:
    refs: dict[int, Ref] = {
        place: one.ref for place, one in enumerate(notes) if type(one.ref) is Ref and one.ref.id == one.id
    }
    blind = [place for place in range(len(notes)) if place not in refs]
    if blind:
        found = yield from found_refs([(notes[place].worker, notes[place].token, notes[place].id) for place in blind])
        refs.update({blind[n]: ref for n, ref in found.items()})
    merged: dict[tuple[int, str, int, int], tuple[Ref, Note]] = {}
    for place, ref in sorted(refs.items()):
        one = notes[place]
        fence = (ref.lease.id, one.worker, one.token, ref.pos)
        before = merged.get(fence)
        merged[fence] = ref, one if before is None else _joined(before[1], one)
    if not merged:
        return [Verdict.LOST] * len(notes)
    rows = yield (
        _NOTE,
        (
            [lease for lease, _, _, _ in merged],
            [worker for _, worker, _, _ in merged],
            [token for _, _, token, _ in merged],
            [pos for _, _, _, pos in merged],
            [one.id for _, one in merged.values()],
            [one.progress for _, one in merged.values()],
            [encode(one.metadata).decode() if one.metadata else None for _, one in merged.values()],
            [
                encode([legible(line) for line in one.lines[-LONGEST_LOG:]]).decode() if one.lines else None
                for _, one in merged.values()
            ],
            LONGEST_LOG,
        ),
    )
    fences = list(merged)
    hit = {fences[number - 1] for (number,) in rows}
    return [
        Verdict.APPLIED
        if place in refs and (refs[place].lease.id, one.worker, one.token, refs[place].pos) in hit
        else Verdict.LOST
        for place, one in enumerate(notes)
    ]


def _joined(first: Note, second: Note) -> Note:
    """Merge two notes on one run."""
    progress = first.progress if second.progress is None else second.progress
    metadata = noted(first.metadata or {}, second.metadata) or None
    return Note(first.id, first.worker, first.token, progress, metadata, first.lines + second.lines, first.ref)
