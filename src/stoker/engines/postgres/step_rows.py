"""Rows of steps in a unit of work: read what an operation needs, and written with the jobs.

Who suspends a job, signals it or opens a wait locks the job's body first and the row of `ready` or `lease` that the job
is in afterwards. So whichever comes second sees what the first one wrote. Finished steps are saved without that lock,
and settlements of jobs without steps never take it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from msgspec import json

from stoker.engines.postgres.columns import payload_text
from stoker.engines.postgres.statements import sql
from stoker.engines.shared import steps as shared
from stoker.engines.shared.unit_of_work import Wanted
from stoker.engines.sql.exchanges import Exchange, Row
from stoker.model.groups import Group
from stoker.model.ids import JobId
from stoker.model.steps import Step, StepState, span_of

if TYPE_CHECKING:
    from stoker.engines.postgres.unit_of_work import Unit

_LOCK, _NAMED, _SIGNALED, _PUT = sql("lock_jobs"), sql("steps_named"), sql("steps_signaled"), sql("step_put")
_LOCK_FREE, _GROUPS, _LOCKED = sql("lock_free_jobs"), sql("groups_known"), sql("steps_named_locked")


def read(row: Row) -> tuple[JobId, Step]:
    """Make a step of its columns."""
    job, name, state, until, token, at, value = row
    return job, Step(name, StepState(state), None if value is None else value.encode(), until, token, at)


def brought(rows: str) -> tuple[Step, ...] | None:
    """Read the rows that a claim brings."""
    return shared.brought(lambda row: read((b"", *row))[1], json.decode(rows))


def lock(jobs: Iterable[JobId], *, skip: bool = False) -> Exchange[set[JobId]]:
    """Lock jobs that have not ended; returns these. `skip`: not those that another transaction has locked."""
    ids = sorted(set(jobs))
    return {job for (job,) in (yield (_LOCK_FREE if skip else _LOCK), (ids,))} if ids else set()


def load(unit: Unit, wanted: Wanted) -> Exchange[None]:
    """Read the wanted rows of locked jobs; with jobs that may be finished (`Reseal`) the rows are locked as well."""
    found: list[tuple[JobId, Step]] = []
    if wanted.steps:
        ids, names = zip(*sorted(wanted.steps), strict=True)
        named = _LOCKED if wanted.revives else _NAMED
        found += [read(row) for row in (yield named, (list(ids), list(names)))]
    if wanted.signals:
        ids, names = zip(*sorted(wanted.signals), strict=True)
        lows, highs = zip(*map(span_of, names), strict=True)
        found += [read(row) for row in (yield _SIGNALED, (list(ids), list(names), list(lows), list(highs)))]
    unit.add_steps(wanted, found)


def load_groups(unit: Unit, groups: Iterable[JobId]) -> Exchange[None]:
    """Find out which groups of called jobs are stored already: by the same call, sent before."""
    missing = sorted(unit.missing(Wanted(groups=frozenset(groups))).groups)
    if missing:
        known = {group for (group,) in (yield _GROUPS, (missing,))}
        for group in missing:
            unit.add_group(group, Group(id=group) if group in known else None)


def put(changed: Mapping[JobId, Mapping[str, Step]]) -> tuple[str, Row]:
    """Return the statement that stores rows."""
    rows = [(job, row) for job, named in changed.items() for row in named.values()]
    values = [None if row.value is None else payload_text(row.value) for _, row in rows]
    return _PUT, (
        [job for job, _ in rows],
        [row.token for _, row in rows],
        [row.at for _, row in rows],
        [row.until for _, row in rows],
        [int(row.state) for _, row in rows],
        [row.name for _, row in rows],
        values,
    )
