"""Jobs by id and by query, one page at a time, and when the next job is due.

A page walks along ids in one snapshot. The query decides which walk: a unique key, a group, the lists of unsuccessful
jobs, finished jobs, jobs waiting for a retry and active jobs each have an index in id order; any other query walks all
jobs.
A sieve in the statement holds back jobs that cannot match; `query.matches` tests the others.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from msgspec.structs import replace

from stoker.engines.base import Transaction
from stoker.engines.call_times import timed
from stoker.engines.postgres.columns import CODES, FOUND, STATUSES, shown
from stoker.engines.postgres.facet import Facet
from stoker.engines.postgres.statements import sql
from stoker.engines.sql.exchanges import Exchange, Row
from stoker.engines.sql.packing import SUSPENDED, read_bucket, read_unique
from stoker.model.control import Pause
from stoker.model.errors import CorruptRecord
from stoker.model.ids import JobId
from stoker.model.job import ACTIVE, FINISHED, LISTED, PLAIN, Job, Options, Status, group_text
from stoker.model.next_due import SOON, Gate, NextDue, next_due_of
from stoker.model.query import LARGEST_PAGE, LATEST, LONGEST_WALK, Page, Place, Query, cursor_at, matches
from stoker.model.time import SECOND, Instant, Span
from stoker.model.unique import Unique

if TYPE_CHECKING:
    from stoker.engines.postgres.store import Store
    from stoker.engines.postgres.user_transaction import Transactions

LARGEST_CHUNK = 2_000
FEW = 10
"""Records that are read by id on a connection whose plans are made once: planning takes longer than so few rows."""
FIRST, LAST = bytes(16), b"\xff" * 16
"""Before and behind every id."""

_GET = sql("get")
_AHEAD = sql("ahead")
_ENDED = sql("ended")
_QUEUES = sql("queues")
_LOOK = sql("look")
_BY_END = sql("find_by_end")
_BY_END_DONE = sql("find_by_end_done")
_BY_DUE = sql("find_by_due")
_BY_RETRY = sql("find_by_retry")

SHORTEST_WINDOW: Span = SECOND
WIDER = 2


class Finder(Facet):
    """Reads jobs."""

    def __init__(self, store: Store, transactions: Transactions) -> None:
        super().__init__(store)
        self._transactions = transactions

    @timed(write=False)
    async def get(self, ids: Sequence[JobId]) -> list[Job | None]:
        return await self._store.each("admin" if len(ids) > FEW else "claim", lambda: _jobs(ids))

    @timed(write=False)
    async def find(self, query: Query, *, tx: Transaction | None = None) -> Page:
        if tx is not None:
            return await self._transactions.look(tx, lambda now: page(query, now))
        return await self._store.read(lambda now: page(query, now))

    @timed(write=False)
    async def ahead(self, queues: Sequence[str]) -> NextDue:
        rows = await self._store.once("admin", _AHEAD, (list(queues), self._store.now(), SOON))
        gates = [
            Gate(name, Pause(end) if paused else None, until, due, read_bucket(*bucket))
            for _, name, paused, end, until, due, *bucket in rows
        ]
        return next_due_of(gates, rows[0][0] if rows else 0)


async def ended(store: Store, jobs: Sequence[JobId]) -> list[JobId]:
    """Those of the jobs that have ended or are gone."""
    return [row[0] for row in await store.once("claim", _ENDED, (list(jobs),))]


# --- pages ------------------------------------------------------------------------------------------------------


class Look(NamedTuple):
    """As much of a job as `matches` asks about; payload and error are there when the query looks into them.

    `options` hold the group and the metadata that the query asks for: the sieve held every other job back.
    """

    id: JobId
    status: Status
    queue: str
    kind: str
    tenant: str | None
    unique: Unique | None
    created_at: Instant
    scheduled_at: Instant
    finished_at: Instant | None
    attempts: int
    payload: bytes
    last_error: str | None
    suspended: bool
    options: Options
    metadata: dict[str, str] = {}  # noqa: RUF012 - a default that is never changed


def _depth(query: Query) -> tuple[bool, bool]:
    """Whether payloads and errors are read, and the attempts of running jobs."""
    return query.looks_inside, query.attempts_from is not None or query.attempts_to is not None


def sieve(query: Query) -> Row:
    """Return what of a query the server tests itself, before it reads the rest of a job: a part of `matches`."""

    def ascii_text(text: str | None) -> str | None:
        return None if text is None or not text.isascii() else text.lower()

    return (
        sorted(query.queues) or None,
        sorted(query.kinds) or None,
        query.tenant,
        None if query.group is None else group_text(query.group),
        0 if query.since is None else query.since,
        LATEST if query.until is None else query.until,
        ascii_text(query.payload),
        query.error is not None or query.same_error is not None,
        ascii_text(query.text),
        *((None, None) if query.meta is None else query.meta),
        query.meta_json,
    )


def page(query: Query, now: Instant) -> Exchange[Page]:
    """One page; it ends when it is full, when the walk grew too long, or with the last record."""
    if query.worker is not None:
        return (yield from _of_worker(query, query.worker, now))
    if query.timed:
        return (yield from _by_time(query, now))
    statement, values = yield from _walk(query)
    cursor = query.cursor if query.cursor is not None else (LAST if query.order == "newest" else FIRST)
    found: list[JobId] = []
    scanned, chunk = 0, min(query.limit + 1, LARGEST_CHUNK)
    end = False
    while not end:
        rows: list[Row] = yield statement, (cursor, chunk, *_depth(query), *values, *sieve(query))
        end = len(rows) < chunk
        for job, *row in rows:
            if scanned == LONGEST_WALK or len(found) == query.limit:
                return Page((yield from _shown(found)), cursor, scanned)
            scanned += 1
            cursor = job
            # A look has every field that `matches` asks about.
            if row[0] is not None and matches(_look(row, query), query, now):  # type: ignore[arg-type]
                found.append(cursor)
        chunk = min(4 * chunk, LARGEST_CHUNK)
    return Page((yield from _shown(found)), None, scanned)


def _of_worker(query: Query, worker: str, now: Instant) -> Exchange[Page]:
    """One page of what a worker runs. A lease tells whose a job is, so running jobs are read and then sifted."""
    found: list[Job] = []
    scanned, cursor = 0, query.cursor
    if Status.RUNNING not in query.wanted:
        return Page(found, None, scanned)
    running = replace(query, worker=None, statuses=frozenset({Status.RUNNING}), limit=LARGEST_PAGE)
    while True:
        one = yield from page(replace(running, cursor=cursor), now)
        scanned += one.scanned
        for job in one.jobs:
            if len(found) == query.limit:
                return Page(found, cursor, scanned)
            cursor = job.id
            if (job.worker or "").startswith(worker):
                found.append(job)
        if one.cursor is None or scanned >= LONGEST_WALK:
            return Page(found, one.cursor, scanned)
        cursor = one.cursor


def _walk(query: Query) -> Exchange[tuple[str, Row]]:
    """Return the statement whose order the page follows, and its values beyond cursor, length and depth."""
    wanted = query.wanted
    walk: str
    values: Row = ()
    if query.key is not None:
        walk, values = "key", (query.key,)
    elif query.group is not None:
        walk, values = "group", (group_text(query.group),)
    elif wanted == {Status.RETRYING}:
        walk = "retrying"
    elif wanted <= LISTED:
        queues = sorted(query.queues) or [row[0] for row in (yield _QUEUES, ())]
        ended = sorted(CODES[status] for status in wanted - {Status.RETRYING})
        walk, values = "listed", (queues, ended, Status.RETRYING in wanted)
    elif wanted <= FINISHED:
        walk = "done"
    elif wanted <= ACTIVE:
        walk, values = "active", (wanted != {Status.RUNNING}, Status.RUNNING in wanted)
    else:
        walk = "all"
    return sql(f"find_{walk}_{query.order}"), values


def _by_time(query: Query, now: Instant) -> Exchange[Page]:
    """One page in the order of a time."""
    names = sorted(query.queues) or [row[0] for row in (yield _QUEUES, ())]
    found: list[JobId] = []
    scanned, size = 0, min(query.limit + 1, LARGEST_CHUNK)
    place, window = query.start(now), SHORTEST_WINDOW
    while True:
        if query.order == "due":
            chunk = yield from _soonest(query, names, place, size)
        else:
            chunk, window = yield from _latest(query, place, size, window, now)
        looks = {}
        if chunk:
            times, ids = [at for at, _ in chunk], [job for _, job in chunk]
            rows: list[Row] = yield _LOOK, (ids, times, *_depth(query), *sieve(query))
            looks = {look.id: look for look in (_look(row, query) for row in rows)}
        for here in chunk:
            over = query.is_over(here[0], now)
            if over or scanned == LONGEST_WALK or len(found) == query.limit:
                return Page((yield from _shown(found)), None if over else cursor_at(*place), scanned)
            place = here
            scanned += 1
            look = looks.get(here[1])
            if look is not None and matches(look, query, now):  # type: ignore[arg-type]
                found.append(look.id)
        if len(chunk) < size:
            return Page((yield from _shown(found)), None, scanned)
        size = min(4 * size, LARGEST_CHUNK)


def _soonest(query: Query, names: list[str], place: Place, size: int) -> Exchange[list[Place]]:
    values = (*_value(place), size)
    if query.wanted == {Status.RETRYING}:
        return [(at, job) for at, job in (yield _BY_RETRY, values)]
    return [(at, job) for at, job in (yield _BY_DUE, (*values, names))]


def _latest(query: Query, place: Place, size: int, window: Span, now: Instant) -> Exchange[tuple[list[Place], Span]]:
    """The next ends, and how far back those of done jobs were looked for: no tree has them, so the window grows."""
    values = (*_value(place), size)
    odd = sorted(CODES[status] for status in query.wanted - {Status.DONE})
    found: list[Place] = [(at, job) for at, job in (yield _BY_END, (*values, odd))] if odd else []
    if Status.DONE in query.wanted:
        start, floor = min(place[0], now), query.finished_since or 0
        while True:
            low = max(start - window, floor)
            done = yield _BY_END_DONE, (*values, low)
            if len(done) >= size:
                # The next chunk is probably as dense as this one.
                window = max(start - done[-1][0], SHORTEST_WINDOW) * WIDER
                break
            if low <= floor:
                break
            window *= WIDER
        found += [(at, job) for at, job in done]
    return sorted(found, reverse=True)[:size], window


def _value(place: Place) -> tuple[Instant, JobId]:
    at, job = place
    return at, job.ljust(16, b"\0")[:16]


def _look(row: Sequence[Any], query: Query) -> Look:
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
        finished_at=values["finished"],
        attempts=values["attempts"],
        payload=(values["payload"] or "").encode(),
        last_error=values["last_error"],
        suspended=values["settled"] in SUSPENDED,
        options=PLAIN if query.group is None else Options(group=query.group),
        metadata={} if query.meta is None else dict([query.meta]),
    )


def _shown(ids: list[JobId]) -> Exchange[list[Job]]:
    return [job for job in (yield from _jobs(ids)) if job is not None]


def _jobs(ids: Sequence[JobId]) -> Exchange[list[Job | None]]:
    """Return whole records, in the order asked; inside one snapshot none is missed while it changes its place."""
    rows: list[Row] = (yield _GET, (list(ids),)) if ids else []
    found = {job.id: job for job in map(shown, rows)}
    return [found.get(job) for job in ids]
