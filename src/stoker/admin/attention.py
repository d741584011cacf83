"""Reads what findings are made from, once, for every skin: overview, page of health, commands, metrics.

What is cheap is read always. What only trouble needs, such as what silent workers still hold, is read where the cheap
part shows that there may be trouble.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import msgspec

from stoker.admin.documents import acknowledgements, error_records
from stoker.app import Stoker
from stoker.app_path import named
from stoker.engines.base import Engine, Feature, outbox_of
from stoker.model.control import Presence, Queue, is_silent
from stoker.model.error_records import commonest, error_groups
from stoker.model.events import EventType
from stoker.model.findings import LEAST_DEATHS, Acknowledgement, Deaths, Delivery, Situation, findings, waiting_long
from stoker.model.job import Status
from stoker.model.names import listed
from stoker.model.operator_metrics import deliveries
from stoker.model.outbox.letters import Count, LetterFilter
from stoker.model.query import LARGEST_PAGE, Census, Query
from stoker.model.redact import Redaction
from stoker.model.schedule import Schedule
from stoker.model.stats import DAILY, OF_ALL, of_all, usual_wait
from stoker.model.time import DAY, HOUR, MINUTE, Instant, Span

MOST_COUNTED = 10_000
"""Jobs that died in the last hour are counted up to this number; beyond it findings say `more than`."""

ONE_BY_ONE = 200
"""The most of them that are read one by one; for more, the roll-up counts."""

LOOKED_AT = 20
"""The usual wait and the limits are read for at most this many late queues, the longest waits first."""


class Slowly(msgspec.Struct, frozen=True):
    """What findings take that changes slowly, and costs more calls than counts do."""

    schedules: Sequence[Schedule] = ()
    deliveries: Sequence[Delivery] = ()
    deaths: Deaths = Deaths(0)
    acknowledged: Sequence[Acknowledgement] = ()
    calls: int = 0


async def read_slowly(engine: Engine, census: Census, redact: Redaction) -> Slowly:
    """Read schedules, consumers with their letters, and who died: two calls, more where there is something to tell."""
    schedules = await engine.schedules.read()
    found, calls = await _deliveries(engine, census.at)
    deaths, more = await read_deaths(engine, census, redact)
    return Slowly(schedules, found, deaths, calls=1 + calls + more)


async def _deliveries(engine: Engine, now: Instant) -> tuple[list[Delivery], int]:
    if Feature.OUTBOX not in engine.features:
        return [], 0
    outbox = outbox_of(engine)
    found = deliveries(await outbox.streams(), now)
    if not found or not (await outbox.letters(LetterFilter(), Count())).n:
        return found, 1 + bool(found)
    counted = [
        msgspec.structs.replace(
            one, letters=(await outbox.letters(LetterFilter(stream=one.stream, consumer=one.consumer), Count())).n
        )
        for one in found
    ]
    return counted, 2 + len(found)


async def read_deaths(engine: Engine, census: Census, redact: Redaction) -> tuple[Deaths, int]:
    """Count the jobs that are dead and died in the last hour, with the commonest error; and how many calls it took.

    No call where nothing is dead. One that was requeued, discarded or deleted is not counted any more. Of more than
    `ONE_BY_ONE` the points and the records of errors tell, if the roll-up of workers has written them: to read
    thousands of jobs takes long.
    """
    if not (all_dead := census.by_status()[Status.DEAD]):
        return Deaths(0), 0
    now = census.at
    query = Query(statuses=frozenset({Status.DEAD}), finished_since=now - HOUR, order="finished", limit=ONE_BY_ONE)
    page = await engine.operator.find(query)
    dead, calls = page.jobs, 1
    if not dead:
        return Deaths(0), calls
    times, day, more = await _died(engine, now, many=len(dead) > LEAST_DEATHS)
    calls += more
    if page.cursor is not None:
        worst, same, known = commonest(await error_records(engine), now - HOUR)
        calls += 1
        if worst is not None and 2 * known >= times > len(dead):
            jobs = min(times, all_dead)
            line = next((one.error for one in error_groups(dead) if one.id == worst.id), worst.error)
            error, kind = redact.text(line), listed(worst.kinds)
            return Deaths(jobs, times, max(day, times), False, min(same, jobs), error, kind, about=True), calls
    while page.cursor is not None and len(dead) < MOST_COUNTED:
        query = msgspec.structs.replace(query, cursor=page.cursor, limit=LARGEST_PAGE)
        page = await engine.operator.find(query)
        dead, calls = [*dead, *page.jobs], calls + 1
    group = next(iter(error_groups(dead)), None)
    found = Deaths(len(dead), max(times, len(dead)), max(day, times), page.cursor is None)
    if group is not None:
        error = redact.text(group.error)
        found = msgspec.structs.replace(found, same=group.count, error=error, kind=listed(group.kinds))
    return found, calls


async def _died(engine: Engine, now: Instant, *, many: bool) -> tuple[int, int, int]:
    """How often jobs died in the last hour and, if many did, in the last day; and how many calls it took.

    Closed minutes are read from points. The last of them may not be counted yet, and the running one is not closed:
    these two are read from events.
    """
    recent = now // MINUTE * MINUTE - MINUTE
    failed = (of_all(EventType.FAILED),)
    since = recent - (DAY if many else HOUR) + MINUTE
    points = await engine.timeline.points(since, recent - 1, failed, OF_ALL)
    events = await engine.timeline.event_counts(recent, now + 1)
    lately = sum(one.n for one in events if one.type is EventType.FAILED)
    hour = sum(one.count for one in points if one.bucket >= recent - HOUR + MINUTE)
    return lately + hour, lately + sum(one.count for one in points), 2


class Closer(msgspec.Struct, frozen=True):
    """What a closer look at trouble told: fields of `Situation`, and how many calls it took."""

    held: dict[str, int] | None = None
    usual: dict[str, Span] = {}
    full: dict[str, str] = {}
    retries: dict[str, int] = {}
    calls: int = 0


async def look_closer(engine: Engine, given: Situation) -> Closer:
    """Read what silent workers still hold, which retries of queues without a worker are due, and what is usual for
    queues that wait long; no call without trouble.
    """
    held, calls = await _held(engine, [one for one in given.presences if is_silent(one, given.now) and one.running])
    retries: dict[str, int] = {}
    if unserved := given.unserved_retries:
        statuses, queues = frozenset({Status.RETRYING}), frozenset(unserved)
        page = await engine.operator.find(Query(statuses=statuses, queues=queues, order="due", limit=LARGEST_PAGE))
        retries = Counter(job.queue for job in page.jobs if job.scheduled_at <= given.now)
        calls += 1
    waiting = waiting_long(given)[:LOOKED_AT]
    usual: dict[str, Span] = {}
    full: dict[str, str] = {}
    if waiting:
        points = await engine.timeline.points(given.now - DAY, given.now, DAILY, frozenset(waiting))
        for name in waiting:
            usual[name] = usual_wait([one for one in points if one.queue == name])
            views = await engine.control.subqueues(name, limit=LARGEST_PAGE)
            oldest = given.census.oldest_ready.get(name, given.now)
            if limits := [one.limit for one in views if one.full and one.due is not None and one.due <= oldest]:
                full[name] = limits[0] or ""
        calls += 1 + len(waiting)
    return Closer(held, usual, full, retries, calls)


async def _held(engine: Engine, silent: Sequence[Presence]) -> tuple[dict[str, int] | None, int]:
    """How many running jobs belong to each of these workers; None where there is none of them."""
    if not silent:
        return None, 0
    held, calls = Counter[str](), 0
    query = Query(statuses=frozenset({Status.RUNNING}), order="oldest", limit=LARGEST_PAGE)
    while True:
        page = await engine.operator.find(query)
        calls += 1
        held.update(job.worker for job in page.jobs if job.worker is not None)
        if page.cursor is None or calls * LARGEST_PAGE >= MOST_COUNTED:
            return dict(held), calls
        query = msgspec.structs.replace(query, cursor=page.cursor)


def homes(app: Stoker, census: Census) -> dict[str, str]:
    """The own queue of each kind that waits, as far as the app knows it."""
    kinds = {one.kind for one in census.counts if one.status is Status.PENDING}
    found = {kind: app.queue_of(kind) for kind in kinds}
    return {kind: queue for kind, queue in found.items() if queue is not None}


async def situation(
    engine: Engine,
    app: Stoker,
    redact: Redaction,
    census: Census,
    queues: Sequence[Queue],
    presences: Sequence[Presence],
) -> Situation:
    """Everything that findings are made from, at the census' instant."""
    slowly = await read_slowly(engine, census, redact)
    given = Situation(
        census=census,
        queues=queues,
        presences=presences,
        deaths=slowly.deaths,
        schedules=slowly.schedules,
        deliveries=slowly.deliveries,
        homes=homes(app, census),
        app=named(app),
    )
    given = closer(given, await look_closer(engine, given))
    if all(one.tone == "plain" for one in findings(given)):
        return given  # there is nothing that a person could have acknowledged
    return msgspec.structs.replace(given, acknowledged=await acknowledgements(engine))


def closer(given: Situation, looked: Closer) -> Situation:
    """The situation with what a closer look told."""
    return msgspec.structs.replace(
        given, held=looked.held, usual=looked.usual, full=looked.full, retries=looked.retries
    )
