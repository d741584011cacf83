"""Rows of steps in a unit of work: read what an operation needs, and written with the jobs."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from stoker.engines.shared import steps as shared
from stoker.engines.shared.unit_of_work import Wanted
from stoker.engines.sql.exchanges import Exchange, Row
from stoker.engines.sqlite.statements import sql
from stoker.model.ids import JobId
from stoker.model.steps import LARGEST_BROUGHT, MOST_BROUGHT, Step, StepState, span_of

if TYPE_CHECKING:
    from stoker.engines.sqlite.unit_of_work import Unit

_NAMED, _BROUGHT = sql("steps_named"), sql("steps_brought")
_SIGNALED = sql("steps_signaled")
_PUT = sql("step_put")
_COPY = sql("copy_steps")
_DELETE = sql("delete_steps")


def read(row: Row) -> Step:
    """Make a step of its columns."""
    name, state, until, token, at, value = row
    return Step(name, StepState(state), value, until, token, at)


def load(unit: Unit, wanted: Wanted) -> Exchange[None]:
    """Read the wanted rows of loaded jobs."""
    found: list[tuple[JobId, Step]] = []
    for job, name in sorted(wanted.steps):
        if unit.get(job) is not None:
            rows: list[Row] = yield _NAMED, (unit.stored(job).seq, name)
            found += [(job, read(row)) for row in rows]
    for job, name in sorted(wanted.signals):
        if unit.get(job) is not None:
            rows = yield _SIGNALED, (unit.stored(job).seq, name, *span_of(name))
            found += [(job, read(row)) for row in rows]
    unit.add_steps(wanted, found)


def brought(seq: int) -> Exchange[tuple[Step, ...] | None]:
    """Read the rows that a claim brings."""
    return shared.brought(read, (yield _BROUGHT, (seq, MOST_BROUGHT, LARGEST_BROUGHT)))


def write(seq: int, rows: Iterable[Step]) -> Exchange[None]:
    """Store rows of a job."""
    for row in rows:
        yield _PUT, (seq, row.name, int(row.state), row.until, row.token, row.at, row.value)


def copy(seq: int, to: int, after: str | None) -> Exchange[None]:
    """Store the rows of a job for a copy of it (`steps.kept_by_copy`)."""
    yield _COPY, (seq, to, after)


def delete(seq: int) -> Exchange[None]:
    """Delete the rows of a job."""
    yield _DELETE, (seq,)
