"""The audit log: an entry is written with the change it tells of."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from stoker.engines.postgres.statements import sql
from stoker.engines.postgres.unit_of_work import Unit
from stoker.engines.sql.steps import Row, Steps
from stoker.model.audit import AuditEntry, AuditQuery, By, Deed, pack, unpack
from stoker.model.query import LATEST

T = TypeVar("T")

CHUNK = 500

_PUT = sql("audit_put")
_READ = sql("audit")


def write(unit: Unit, by: By | None, deed: Deed | None) -> Steps[None]:
    """Write an entry; nothing for a change by code, or where nothing was done."""
    if by is not None and deed is not None:
        yield _PUT, (unit.now, pack(AuditEntry(unit.now, by, deed)).decode())


def entered(unit: Unit, by: By, deed: Deed) -> Steps[AuditEntry]:
    """Write an entry of its own and return it."""
    yield from write(unit, by, deed)
    return AuditEntry(unit.now, by, deed)


def audited(unit: Unit, steps: Steps[T], by: By | None, tell: Callable[[T], Deed | None]) -> Steps[T]:
    """Run steps and write what they did in the same transaction."""
    answer = yield from steps
    yield from write(unit, by, tell(answer))
    return answer


def read(query: AuditQuery) -> Steps[list[AuditEntry]]:
    """Return entries, latest first."""
    found: list[AuditEntry] = []
    start = 0
    while True:
        until = LATEST if query.until is None else query.until
        rows: list[Row] = yield _READ, (query.since, until, CHUNK, start)
        found += [entry for entry in (unpack(row[0].encode()) for row in rows) if query.matches(entry)]
        if len(rows) < CHUNK or len(found) >= query.limit:
            return found[: max(query.limit, 0)]
        start += CHUNK
