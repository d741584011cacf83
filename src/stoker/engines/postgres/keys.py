"""Unique keys in the store: who holds one, and making room for a newcomer as `unique.meet` says.

Whoever asks here works in a loop: a key can change hands between two statements, and an answer that touched fewer rows
than asked means that somebody was faster; then the holders are asked for again.
"""

from __future__ import annotations

from collections.abc import Sequence

from stoker.engines.postgres.columns import PENDING
from stoker.engines.postgres.statements import sql
from stoker.engines.postgres.unit_of_work import Unit
from stoker.engines.sql.steps import Steps
from stoker.model.ids import JobId
from stoker.model.lifecycle import KEEP_DEAD
from stoker.model.unique import SUPERSEDED, Holder, Unique

_HOLDERS = sql("holders")
_TAKE = sql("take_keys")
_SUPERSEDE = sql("supersede")
_LET_GO = sql("let_go")


def firm(unique: Unique) -> bool:
    """Does the key stay held while its job waits for a retry?"""
    return unique.hold == "retrying"


def holders(slots: Sequence[str]) -> Steps[dict[str, tuple[JobId, Holder]]]:
    """Who holds these keys, and how firmly. A key nobody holds is not in the answer."""
    rows = yield _HOLDERS, (list(slots),)
    return {slot: (job, _grip(status, is_firm=is_firm)) for slot, job, is_firm, status in rows}


def _grip(status: int | None, *, is_firm: bool) -> Holder:
    if status is None:
        return Holder.RUNNING
    if status == PENDING:
        return Holder.PENDING
    return Holder.STRONG if is_firm else Holder.WEAK


def take(wanted: Sequence[tuple[str, JobId, bool]]) -> Steps[set[str]]:
    """Take free keys (slot, job, firm); answers those that were free."""
    slots, jobs, firms = zip(*wanted, strict=True)
    return {slot for (slot,) in (yield _TAKE, (list(slots), list(jobs), list(firms)))}


def supersede(unit: Unit, wanted: Sequence[tuple[JobId, str, JobId, bool]]) -> Steps[set[str]]:
    """End weak holders and pass their keys on (old job, slot, new job, firm); answers the keys that changed hands."""
    olds, slots, news, firms = zip(*wanted, strict=True)
    values = (unit.now, list(olds), list(slots), list(news), list(firms), SUPERSEDED, KEEP_DEAD)
    return {slot for (slot,) in (yield _SUPERSEDE, values)}


def let_go(held: Sequence[tuple[str, JobId]]) -> Steps[None]:
    """Free keys, each only if that job holds it."""
    if held:
        slots, jobs = zip(*held, strict=True)
        yield _LET_GO, (list(slots), list(jobs))
