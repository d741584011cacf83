"""Unique keys in the store: who holds one, and making room for a newcomer as `unique.meet` says."""

from __future__ import annotations

from stoker.engines.sql.steps import Steps
from stoker.engines.sqlite import moves
from stoker.engines.sqlite.records import Record, by_seq
from stoker.engines.sqlite.texts import sql
from stoker.engines.sqlite.unit import DEAD, PENDING, RUNNING, Unit
from stoker.model.unique import SUPERSEDED, Holder, Meeting, Mode, Unique, meet

_HOLDER = sql("holder")


def approach(unit: Unit, unique: Unique, kind: str, mode: Mode) -> Steps[tuple[Meeting, Record | None]]:
    """Meet the holder of a key. A weak one is ended here, so that the key is free when this answers `SUPERSEDE`."""
    rows = yield _HOLDER, (unique.slot(kind),)
    record = (yield from by_seq(rows[0][0])) if rows else None
    meeting = meet(_grip(record, weak=bool(rows and rows[0][1])), mode)
    if meeting is Meeting.SUPERSEDE:
        assert record is not None
        yield from _supersede(unit, record)
    return meeting, record


def _grip(record: Record | None, *, weak: bool) -> Holder:
    if record is None:
        return Holder.NOBODY
    if weak:
        return Holder.WEAK
    return {PENDING: Holder.PENDING, RUNNING: Holder.RUNNING}.get(record.status, Holder.STRONG)


def _supersede(unit: Unit, record: Record) -> Steps[None]:
    yield from moves.leave(record)
    yield from moves.blame(unit, record, SUPERSEDED)
    yield from moves.finish(unit, record, DEAD)
