"""Jobs by id and by query, one page at a time, and when the next job is due.

A page walks along ids in one snapshot. The query decides which walk: a unique key, the lists of unsuccessful jobs,
finished jobs, jobs waiting for a retry and active jobs each have an index in id order; any other query walks all jobs.
`query.matches` tests every record for the conditions that the walk does not cover.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from stoker.engines.postgres.columns import CODES, FOUND, STATUSES, shown
from stoker.engines.postgres.statements import sql
from stoker.engines.sql.packing import read_unique
from stoker.engines.sql.settings import read_bucket
from stoker.engines.sql.steps import Row, Steps
from stoker.model.ahead import SOON, Ahead, Gate, look_ahead
from stoker.model.control import Pause
from stoker.model.errors import CorruptRecord
from stoker.model.ids import JobId
from stoker.model.job import ACTIVE, FINISHED, Job, Status
from stoker.model.query import LONGEST_WALK, Page, Query, matches
from stoker.model.time import Instant
from stoker.model.unique import Unique

if TYPE_CHECKING:
    from stoker.engines.postgres.store import Store

LARGEST_CHUNK = 2_000
FEW = 10
"""Records that are read by id on a connection whose plans are made once: planning takes longer than so few rows."""
FIRST, LAST = bytes(16), b"\xff" * 16
"""Before and behind every id."""

_GET = sql("get")
_AHEAD = sql("ahead")
_ENDED = sql("ended")
_QUEUES = sql("queues")


async def get(store: Store, ids: Sequence[JobId]) -> list[Job | None]:
    """Return whole records, in the order asked."""
    return await store.each("desk" if len(ids) > FEW else "claim", lambda: _jobs(ids))


async def find(store: Store, query: Query) -> Page:
    """Return one page in id order."""
    return await store.read(lambda now: page(query, now))


async def ahead(store: Store, queues: Sequence[str]) -> Ahead:
    """Return how long a worker of these queues may sleep."""
    rows = await store.once("desk", _AHEAD, (list(queues), store.now(), SOON))
    gates = [
        Gate(name, Pause(end) if paused else None, until, due, read_bucket(*bucket))
        for _, name, paused, end, until, due, *bucket in rows
    ]
    return look_ahead(gates, rows[0][0] if rows else 0)


async def ended(store: Store, jobs: Sequence[JobId]) -> list[JobId]:
    """Those of the jobs that have ended or are gone."""
    return [row[0] for row in await store.once("claim", _ENDED, (list(jobs),))]


# --- pages ------------------------------------------------------------------------------------------------------


class Look(NamedTuple):
    """As much of a job as `matches` asks about; payload and error are there when the query looks into them."""

    id: JobId
    status: Status
    queue: str
    kind: str
    tenant: str | None
    unique: Unique | None
    created_at: Instant
    scheduled_at: Instant
    payload: bytes
    last_error: str | None


def page(query: Query, now: Instant) -> Steps[Page]:
    """One page; it ends when it is full, when the walk grew too long, or with the last record."""
    statement, values = yield from _walk(query)
    cursor = query.cursor if query.cursor is not None else (LAST if query.order == "newest" else FIRST)
    found: list[JobId] = []
    scanned, chunk = 0, min(query.limit + 1, LARGEST_CHUNK)
    end = False
    while not end:
        rows: list[Row] = yield statement, (cursor, chunk, query.text is not None, *values)
        end = len(rows) < chunk
        for row in rows:
            if scanned == LONGEST_WALK or len(found) == query.limit:
                return Page((yield from _shown(found)), cursor, scanned)
            scanned += 1
            look = _look(row)
            cursor = look.id
            # A look has every field that `matches` asks about, and most records do not match.
            if matches(look, query, now):  # type: ignore[arg-type]
                found.append(cursor)
        chunk = min(4 * chunk, LARGEST_CHUNK)
    return Page((yield from _shown(found)), None, scanned)


def _walk(query: Query) -> Steps[tuple[str, Row]]:
    """Return the statement whose order the page follows, and its values beyond cursor, length and depth."""
    wanted = frozenset({Status.PENDING}) if query.due is not None else query.statuses
    walk: str
    values: Row = ()
    if query.key is not None:
        walk, values = "key", (query.key,)
    elif wanted and wanted <= FINISHED - {Status.DONE}:
        queues = sorted(query.queues) or [row[0] for row in (yield _QUEUES, ())]
        walk, values = "listed", (queues, sorted(CODES[status] for status in wanted))
    elif wanted and wanted <= FINISHED:
        walk = "done"
    elif wanted == {Status.RETRYING}:
        walk = "retrying"
    elif wanted and wanted <= ACTIVE:
        walk, values = "active", (wanted != {Status.RUNNING}, Status.RUNNING in wanted)
    else:
        walk = "all"
    return sql(f"find_{walk}_{query.order}"), values


def _look(row: Row) -> Look:
    values = dict(zip(FOUND, row, strict=True))
    try:
        unique = read_unique(values["ukey"], values["utraits"])
    except CorruptRecord:
        unique = None
    return Look(
        id=values["id"],
        status=STATUSES[values["status"]],
        queue=values["queue"],
        kind=values["kind"],
        tenant=values["tenant"],
        unique=unique,
        created_at=values["created"],
        scheduled_at=values["due"],
        payload=(values["payload"] or "").encode(),
        last_error=values["last_error"],
    )


def _shown(ids: list[JobId]) -> Steps[list[Job]]:
    return [job for job in (yield from _jobs(ids)) if job is not None]


def _jobs(ids: Sequence[JobId]) -> Steps[list[Job | None]]:
    """Return whole records, in the order asked; inside one snapshot none is missed while it changes its place."""
    rows: list[Row] = (yield _GET, (list(ids),)) if ids else []
    found = {job.id: job for job in map(shown, rows)}
    return [found.get(job) for job in ids]
