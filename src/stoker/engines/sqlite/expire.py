"""Retention: delete expired jobs, events, points, presences and locks."""

from __future__ import annotations

from collections.abc import Sequence

from stoker.engines.shared.unit_of_work import Wanted
from stoker.engines.sql.steps import Steps
from stoker.engines.sqlite.statements import sql
from stoker.engines.sqlite.unit_of_work import Unit
from stoker.model.events import REMEMBERED
from stoker.model.ids import JobId
from stoker.model.query import Expired, Retention

_EXPIRED = sql("expire_jobs")
_SURPLUS = sql("expire_surplus")
_FINISHED = sql("expire_finished")
_TOMBSTONES = sql("expire_workers")
_REMEMBERED = sql("expire_remembered")
_OLD = tuple(sql(f"expire_{what}") for what in ("events", "points", "presences", "locks"))

OLD_NAMES = 1_000
"""Names of reaped workers that are remembered, at most: those of the last ones."""


def expire(unit: Unit, retention: Retention) -> Steps[Expired]:
    """Delete what has expired; of finished jobs beyond a count those nearest to their expiry go first.

    Names of workers that were reaped long ago are deleted as well: a worker that comes back under such a name is
    unknown, as if it were remembered as reaped.
    """
    now, limit = unit.now, max(retention.limit, 0)
    old = yield _EXPIRED, (now, limit)
    events = yield from _remove(unit, [job for job, _ in old])
    jobs = len(old)
    if retention.finished is not None and jobs < limit:
        [(kept,)] = yield _FINISHED, ()
        surplus = kept - jobs - max(retention.finished, 0)
        if surplus > 0:
            more = yield _SURPLUS, (min(surplus, limit - jobs),)
            events += yield from _remove(unit, [job for job, _ in more])
            jobs += len(more)
    befores = (now - retention.events, now - retention.points, now - retention.presences, now)
    yield _TOMBSTONES, (OLD_NAMES,)
    yield _REMEMBERED, (now - REMEMBERED,)
    gone = []
    for statement, before in zip(_OLD, befores, strict=True):
        gone.append(len((yield statement, (before,))))
    return Expired(jobs=jobs, events=events + gone[0], points=gone[1], presences=gone[2], locks=gone[3])


def _remove(unit: Unit, ids: Sequence[JobId]) -> Steps[int]:
    """Delete jobs with their events; returns how many events those were."""
    before = unit.events_removed
    yield from unit.load(Wanted(frozenset(ids)))
    for job in ids:
        record = unit.get(job)
        assert record is not None
        unit.remove(record, events=True)
    yield from unit.write()
    return unit.events_removed - before
