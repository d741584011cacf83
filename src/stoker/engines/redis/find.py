"""Finds jobs: pages, ended jobs, and when the next job is due.

A page is a walk along ids, over all shards at once. Which walk is chosen by what the query narrows: keys, groups and
the statuses that most jobs are not in have an index in id order; running jobs are few; waiting jobs are sorted when
there are few of them. Everything else walks all jobs. What the walk does not narrow, `query.matches` tests record by
record.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Awaitable, Callable, Generator, Iterable, Sequence
from typing import Any, TypeAlias

from stoker.engines.base import Transaction
from stoker.engines.call_times import timed
from stoker.engines.redis import groups
from stoker.engines.redis.census import counts_of, held_keys, names
from stoker.engines.redis.cluster.fan_out import spread
from stoker.engines.redis.control import bucket_of, pairs, pause_of, scored
from stoker.engines.redis.keys import RETRYING, WAIT, Shard
from stoker.engines.redis.record_format import (
    CHARS,
    check_parts,
    eight,
    end_of,
    ids_in_subqueue_entry,
    ids_of,
    is_entry,
    read_label,
)
from stoker.engines.redis.scripts import script
from stoker.engines.redis.store import Store, refuse, stored_of
from stoker.engines.redis.stored_job import StoredJob, as_job, as_record
from stoker.engines.shared.facets import Facet
from stoker.engines.shared.merged_lists import MergedLists
from stoker.model.ids import JobId
from stoker.model.job import ACTIVE, LISTED, Job, Status, group_text
from stoker.model.next_due import Gate, NextDue, next_due_of, together
from stoker.model.query import LATEST, LONGEST_WALK, Page, Place, Query, cursor_at, matches, place_of
from stoker.model.record import WAITING
from stoker.model.time import MINUTE, Instant

CHUNK = 500
MOST_ENTRIES = 5_000
"""Entries of one due time that are read together."""
FAR = b"\xff" * 17
"""Behind every id."""
CLOCKS_APART = MINUTE
"""The servers of a cluster may stamp ends that are ahead of the home shard's clock by less than this."""
TENANT = 2
"""The flag of a body with a tenant."""

_ACTIVE = script("active", with_subqueues=True)
_AHEAD = {with_subqueues: script("ahead", with_subqueues=with_subqueues) for with_subqueues in (False, True)}

Entry: TypeAlias = tuple[JobId, bytes]
"""A job on a walk, with its body where the walk brings it."""

Source: TypeAlias = Callable[[JobId | None, int], Awaitable[list[Entry]]]
"""The next jobs strictly behind one in the order asked (None: from the beginning), at most so many."""


class Finder(Facet[Store]):
    """Reads jobs by id, by queries, and by when they are due."""

    @timed(write=False)
    async def ahead(self, queues: Sequence[str]) -> NextDue:
        store, names = self._store, list(dict.fromkeys(queues))
        parts = [(store.shard(name), [name]) for name in names] if store.connection.cluster else [(store.home, names)]
        return together(await spread([part for part in parts if part[1]], lambda part: _ahead(store, *part)))

    @timed(write=False)
    async def get(self, ids: Sequence[JobId]) -> list[Job | None]:
        store = self._store
        store.connection.inside()
        found: dict[JobId, StoredJob] = {}
        shards = await store.shards() if ids else []
        for _, rows in await asyncio.gather(*(store.read(shard, ids, details=True) for shard in shards)):
            found.update((row.record.id, row) for row in rows if row is not None)
        return [as_job(found[job]) if job in found else None for job in ids]

    @timed(write=False)
    async def find(self, query: Query, *, tx: Transaction | None = None) -> Page:
        refuse(tx)
        store = self._store
        now = await store.now() if query.due is not None or query.order == "finished" else 0
        if query.timed:
            return await _by_time(store, query, now)
        shards = [
            one for one in await store.shards() if not query.queues or one.queue is None or one.queue in query.queues
        ]
        sources = await _of_group(store, query)
        if sources is None:
            walks = await spread(shards, lambda shard: _sources(store, shard, query))
            sources = [(shard, source) for shard, found in zip(shards, walks, strict=True) for source in found]
        found: list[Job] = []
        scanned, size, cursor, ended = 0, min(query.limit + 1, CHUNK), query.cursor, False
        # Along the lists of statuses that few jobs are in, every job matches, and is read whole at once.
        sure = query.wanted <= LISTED and query == Query(
            statuses=query.statuses, order=query.order, limit=query.limit, cursor=query.cursor
        )
        while not ended:
            chunk = await _next(sources, cursor, size, query.order)
            looks = await _look_along(store, chunk, query, sure=sure)
            matching: list[tuple[JobId, Shard]] = []
            for job, shard, body in chunk:
                if scanned == LONGEST_WALK or len(found) + len(matching) == query.limit:
                    known = looks if sure else None
                    return Page(found + await _whole(store, matching, query, now, known), cursor, scanned)
                cursor = job
                found_job = looks.get(job)
                if found_job is None and not body:
                    continue
                scanned += 1
                if found_job is not None and _matches(found_job, query, now):
                    matching.append((job, shard))
            found += await _whole(store, matching, query, now, looks if sure else None)
            ended = len(chunk) < size
            size = min(size * 4, CHUNK)
        return Page(found, None, scanned)


async def _ahead(store: Store, shard: Shard, names: list[str]) -> NextDue:
    with_subqueues = not store.with_subqueues.isdisjoint(names)
    instant, rows = await store.run(_AHEAD[with_subqueues], shard, names, queues=names, with_subqueues=with_subqueues)
    unknown = [name for name, row in zip(names, rows, strict=True) if len(row) > 4]
    if unknown:
        store.with_subqueues.update(unknown)
        return await _ahead(store, shard, names)
    gates: list[Gate] = []
    for name, (paused, bucket, *times) in zip(names, rows, strict=True):
        until, due = (int(each) if each else None for each in times)
        gates.append(Gate(name, pause_of(paused), until, due, bucket_of(bucket)))
    return next_due_of(gates, store.seen(instant))


# --- the order of a time ------------------------------------------------------------------------------------------

Reading: TypeAlias = Generator[tuple[Any, ...], Any, list[Place]]
"""Yields a command, is sent its reply, and returns places."""

TimedSource: TypeAlias = Callable[[Place, int], Reading]
"""The next places strictly behind one, at most so many; fewer only at the end of the list."""


async def _by_time(store: Store, query: Query, now: Instant) -> Page:
    """One page in the order of a time: a walk along several lists at once."""
    shards = [one for one in await store.shards() if not query.queues or one.queue is None or one.queue in query.queues]
    lists = await spread(shards, lambda shard: _timed_sources(store, shard, query))
    sources = [(shard, source) for shard, found in zip(shards, lists, strict=True) for source in found]
    found: list[Job] = []
    scanned, size, place, latest = 0, min(query.limit + 1, CHUNK), query.start(now), query.order == "finished"
    if latest:  # whatever seems to end later is kept for another time than its list says
        place = min(place, (now + CLOCKS_APART, FAR))
    merged = MergedLists(len(sources), place, descending=latest)
    while True:
        while hungry := merged.hungry(size):
            answers = await _together(store, [sources[number][1](after, n) for number, after, n in hungry])
            for (number, *_), places in zip(hungry, answers, strict=True):
                shard = sources[number][0]
                merged.feed(number, [(here, shard) for here in places])
        chunk = merged.take(size)
        looks = await _look(store, [(here[1], shard) for here, shard in chunk], details=query.meta is not None)
        matching: list[tuple[JobId, Shard]] = []
        for here, shard in chunk:
            over = query.is_over(here[0], now)
            if over or scanned == LONGEST_WALK or len(found) + len(matching) == query.limit:
                found += await _whole(store, matching, query, now)
                return Page(found, None if over else cursor_at(*place), scanned)
            place = here
            scanned += 1
            look = looks.get(here[1])
            if look is None or place_of(look.record, query) != here:
                continue
            if _matches(look, query, now):
                matching.append((here[1], shard))
        found += await _whole(store, matching, query, now)
        if len(chunk) < size:
            return Page(found, None, scanned)
        size = min(size * 4, CHUNK)


async def _together(store: Store, readings: Sequence[Reading]) -> list[list[Place]]:
    """Play several readings in step: their next commands go in one round trip."""
    found: list[list[Place]] = [[] for _ in readings]
    replies: dict[int, Any] = dict.fromkeys(range(len(readings)))
    while replies:
        commands: dict[int, tuple[Any, ...]] = {}
        for number, reply in replies.items():
            try:
                commands[number] = readings[number].send(reply)
            except StopIteration as end:
                found[number] = end.value
        answers = await store.connection.pipeline(list(commands.values())) if commands else []
        replies = dict(zip(commands, answers, strict=True))
    return found


async def _timed_sources(store: Store, shard: Shard, query: Query) -> list[TimedSource]:
    """The lists that together hold every job that the query may match."""
    wanted = query.wanted
    if query.order == "finished":
        few = await _few_unsuccessful(store, shard, wanted)
        if few is not None:
            return [_sorted_places(few)]
        return [_by_end(shard, int(keep)) for keep in await store.connection.call("SMEMBERS", shard.key("keeps"))]
    queues = [name for name in await names(store, shard) if not query.queues or name in query.queues]
    if wanted == {Status.RETRYING}:
        return [_by_score(shard.of_queue(RETRYING, queue)) for queue in queues]
    return [*await _lists_by_due(store, shard, queues), *await _subqueues_by_due(store, shard, queues)]


async def _lists_by_due(store: Store, shard: Shard, queues: Sequence[str]) -> list[TimedSource]:
    """A list for each queue and priority; the next priorities of all queues are asked for at once."""
    found: list[TimedSource] = []
    behind: dict[str, bytes | str] = {shard.of_queue(WAIT, queue): "-" for queue in queues}
    while behind:
        asked = [("ZRANGEBYLEX", key, after, "+", "LIMIT", 0, 1) for key, after in behind.items()]
        heads = zip(list(behind), await store.connection.pipeline(asked), strict=True)
        behind = {}
        for key, head in heads:
            if head and is_entry(head[0]):
                priority = head[0][:2]
                found.append(_by_due(key, priority))
                behind[key] = b"(" + priority + b"\xff" * 9
            elif head:
                behind[key] = b"(" + head[0]  # bytes that are no entry: a claim takes them out
    return found


async def _subqueues_by_due(store: Store, shard: Shard, queues: Sequence[str]) -> list[TimedSource]:
    """A list for each queue that has subqueues."""
    keys = [shard.of_queue("dues", queue) for queue in queues]
    sizes = await store.connection.pipeline([("ZCARD", key) for key in keys]) if keys else []
    return [_by_due_in_subqueues(key) for key, size in zip(keys, sizes, strict=True) if size]


async def _few_unsuccessful(store: Store, shard: Shard, wanted: frozenset[Status]) -> list[Place] | None:
    """When jobs of these statuses ended, latest first; None when they are many, or done ones are among them."""
    if Status.DONE in wanted:
        return None
    bounds = [(b"[" + CHARS[status], b"(" + CHARS[status] + FAR) for status in sorted(wanted)]
    key = shard.key("unsuccessful")
    sizes = await store.connection.pipeline([("ZLEXCOUNT", key, *bound) for bound in bounds])
    if sum(sizes) > LONGEST_WALK:
        return None
    entries = await store.connection.pipeline([("ZRANGEBYLEX", key, *bound) for bound in bounds])
    ids = [entry[1:] for some in entries for entry in some]
    states = await store.connection.call("HMGET", shard.key("state"), *ids) if ids else []
    return sorted(((end_of(state), job) for job, state in zip(ids, states, strict=True) if state), reverse=True)


def _sorted_places(places: list[Place]) -> TimedSource:
    """A list that is known already."""

    def source(after: Place, n: int) -> Reading:
        yield from ()
        return [place for place in places if place < after][:n]

    return source


def _by_end(shard: Shard, keep: int) -> TimedSource:
    """Jobs that are kept for so long, latest end first; among them may be others, which are left out when read."""
    key = shard.key("ends")

    def source(after: Place, n: int) -> Reading:
        found: list[Place] = []
        start = min(after[0] + keep, LATEST)
        bound = str(start)
        while len(found) < n:
            flat = yield "ZREVRANGEBYSCORE", key, bound, "-inf", "WITHSCORES", "LIMIT", 0, n
            entries = [(int(score) - keep, packed) for packed, score in scored(flat)]
            places = [(end, job) for end, packed in entries for job in ids_of(packed)]
            found += [place for place in places if place < after]
            if len(entries) < n:
                break
            # All entries of the last score belong together.
            bound = f"({entries[-1][0] + keep}"
            last = yield "ZRANGEBYSCORE", key, entries[-1][0] + keep, entries[-1][0] + keep
            found += [(entries[-1][0], job) for packed in last for job in ids_of(packed)]
        return sorted({place for place in found if place < after}, reverse=True)[:n]

    return source


def _by_score(key: str) -> TimedSource:
    """Retrying jobs of a queue, soonest first."""

    def source(after: Place, n: int) -> Reading:
        found: list[Place] = []
        start = 0
        while len(found) < n:
            flat = yield "ZRANGEBYSCORE", key, after[0], "+inf", "WITHSCORES", "LIMIT", start, n
            some = [(int(score), job) for job, score in scored(flat)]
            found += [place for place in some if place > after]
            start += n
            if len(some) < n:
                break
        return found[:n]

    return source


def _by_due(key: str, priority: bytes) -> TimedSource:
    """Waiting jobs of a queue and priority, soonest first.

    Entries of one time are in the order of their first ids, and one may hold ids behind those of the next entry: the
    first n places are known when the last entry that was read begins behind them.
    """

    def source(after: Place, n: int) -> Reading:
        found: list[Place] = []
        bound, size = b"[" + priority + eight(after[0]), n
        while True:
            entries = yield "ZRANGEBYLEX", key, bound, b"(" + priority + b"\xff" * 9, "LIMIT", 0, size
            for entry in entries:
                due = int.from_bytes(entry[2:10])
                found += [(due, job) for job in ids_of(entry[10:]) if (due, job) > after]
            found.sort()
            del found[n:]
            if len(entries) < size:
                return found
            first = int.from_bytes(entries[-1][2:10]), entries[-1][10:26]
            if len(found) == n and first >= found[-1]:
                return found
            bound, size = b"(" + entries[-1], min(2 * size, CHUNK)

    return source


def _by_due_in_subqueues(key: str) -> TimedSource:
    """Waiting jobs of a queue's subqueues, soonest first."""

    def source(after: Place, n: int) -> Reading:
        found: list[Place] = []
        bound = str(after[0])
        while len(found) < n:
            flat = yield "ZRANGEBYSCORE", key, bound, "+inf", "WITHSCORES", "LIMIT", 0, n
            some = scored(flat)
            full = len(some) == n
            if full:  # all jobs of the last time belong together
                last = int(some[-1][1])
                more = yield "ZRANGEBYSCORE", key, last, last, "LIMIT", 0, MOST_ENTRIES
                some = [*((member, due) for member, due in some if due < last), *((member, last) for member in more)]
                bound = f"({last}"
            places = ((int(due), job) for member, due in some for job in ids_in_subqueue_entry(member))
            found += sorted(place for place in places if place > after)
            if not full:
                break
        return found[:n]

    return source


# --- the order of ids ---------------------------------------------------------------------------------------------


async def _next(
    sources: list[tuple[Shard, Source]], cursor: JobId | None, size: int, order: str
) -> list[tuple[JobId, Shard, bytes]]:
    """The next jobs of all sources in one order, each once."""
    answers = await spread(sources, lambda source: source[1](cursor, size))
    found = {job: (shard, body) for (shard, _), some in zip(sources, answers, strict=True) for job, body in some}
    ordered = sorted(found.items(), key=lambda item: item[0], reverse=order == "newest")[:size]
    return [(job, shard, body) for job, (shard, body) in ordered]


async def _look_along(
    store: Store, chunk: list[tuple[JobId, Shard, bytes]], query: Query, *, sure: bool
) -> dict[JobId, StoredJob]:
    """The records of a chunk, by id; where the walk brought the bodies, those alone that may match.

    A record is then put together from what is stored beside the body. It may change meanwhile: matching ones are read
    again.
    """
    places: dict[Shard, list[Entry]] = {}
    narrows = query.queues or query.kinds or any(getattr(query, name) is not None for name in _IN_BODIES)
    for job, shard, body in chunk:
        if body and (not narrows or may_match(body, query)):
            places.setdefault(shard, []).append((job, body))
    details = sure or query.meta is not None
    found = await _look(store, [(job, shard) for job, shard, body in chunk if not body], details=details)
    for some in await spread(places.items(), lambda place: _beside(store, *place, query)):
        found |= some
    return found


async def _beside(store: Store, shard: Shard, entries: list[Entry], query: Query) -> dict[JobId, StoredJob]:
    states = await store.connection.call("HMGET", shard.key("state"), *(job for job, _ in entries))
    # A job without a state never ran: it is pending, and has no error but that its body cannot be read. A state begins
    # with its status; one that cannot be read makes a dead job.
    fresh = Status.PENDING in query.wanted and query.error is None and query.same_error is None
    all_ = Status.DEAD in query.wanted
    wanted = {CHARS[status] for status in query.wanted}
    left = [
        (job, body, state)
        for (job, body), state in zip(entries, states, strict=True)
        if (fresh or _readable(body) is None if state is None else all_ or state[:1] in wanted)
    ]
    ids = [job for job, _, _ in left]
    if not ids:
        return {}
    wanted_parts = ("last", "corrupt", *(() if query.meta is None else ("notes",)))
    more = await store.connection.pipeline([("HMGET", shard.key(name), *ids) for name in wanted_parts])
    entry = None if query.meta_json is None else query.meta_json.encode()
    found: dict[JobId, StoredJob] = {}
    for (job, body, state), last, aside, *notes in zip(left, *more, strict=True):
        if entry is not None and entry not in body and entry not in (notes[0] or b""):
            continue
        found[job] = stored_of([body, state, last, aside])
        found[job].notes = notes[0] if notes else None
    return found


def _matches(job: StoredJob, query: Query, now: Instant) -> bool:
    """Is the job on the query's pages? Its record has every field that `matches` looks at but what runs noted."""
    return matches(job.record if query.meta is None else as_record(job), query, now)


_IN_BODIES = ("tenant", "group", "since", "until", "payload")
"""What a body alone can tell, beside queue and kind."""


def may_match(body: bytes, query: Query) -> bool:
    """Can the job of this body be on the query's pages? It says yes where the body alone cannot tell.

    A part of `query.matches`. A text is compared if it is ASCII and the payload as well.
    """
    label = _readable(body)
    if label is None:
        return True
    (kind, queue, _, flags), at = label
    created = int.from_bytes(body[16:24])
    return (
        (not query.queues or queue in query.queues)
        and (not query.kinds or kind in query.kinds)
        and (query.tenant is None or bool(flags & TENANT))
        and (query.group is None or group_text(query.group).encode() in body)
        and (query.since is None or created >= query.since)
        and (query.until is None or created < query.until)
        and (query.payload is None or _may_hold(body[at:], query.payload))
    )


def _readable(body: bytes) -> tuple[tuple[str, str, int, int], int] | None:
    """Kind, queue, budget and flags of a body, and where they end; None for a body that cannot be read."""
    try:
        found = read_label(body)
        if found[0][3]:
            check_parts(body, found[1], found[0][3])
    except (IndexError, UnicodeDecodeError, struct.error):
        return None
    return found


def _may_hold(payload: bytes, text: str) -> bool:
    return not (text.isascii() and payload.isascii()) or text.lower().encode() in payload.lower()


async def _look(store: Store, chunk: list[tuple[JobId, Shard]], *, details: bool = False) -> dict[JobId, StoredJob]:
    """The records of a chunk, by id."""
    places: dict[Shard, list[JobId]] = {}
    for job, shard in chunk:
        places.setdefault(shard, []).append(job)
    answers = await spread(places.items(), lambda place: store.read(*place, details=details))
    return {
        job: row
        for ids, (_, rows) in zip(places.values(), answers, strict=True)
        for job, row in zip(ids, rows, strict=True)
        if row is not None
    }


async def _whole(
    store: Store,
    matching: list[tuple[JobId, Shard]],
    query: Query,
    now: Instant,
    known: dict[JobId, StoredJob] | None = None,
) -> list[Job]:
    """The whole records, unless they changed out of the query since they were looked at; `known`: read whole before."""
    rows = known
    if rows is None:
        rows = await _look(store, matching, details=True) if matching else {}
    found = [rows[job] for job, _ in matching if job in rows]
    return [as_job(one) for one in found if _matches(one, query, now)]


# --- walks ------------------------------------------------------------------------------------------------------


async def _of_group(store: Store, query: Query) -> list[tuple[Shard, Source]] | None:
    """The walk along the members of a group; None for other queries, and where the group is not stored any more."""
    if query.group is None or query.key is not None:
        return None
    shard = await groups.where(store, query.group)
    if not await store.connection.call("EXISTS", shard.group(query.group)):
        return None
    return [(shard, _indexed(store, shard.members(query.group), b"", query.order))]


async def _sources(store: Store, shard: Shard, query: Query) -> list[Source]:
    """The walks that together meet every job the query may match."""
    wanted = query.wanted
    if query.key is not None:
        return [_indexed(store, shard.key("named"), query.key.encode() + b"\0", query.order)]
    if Status.DONE not in wanted:
        narrow = await _narrow(store, shard, wanted, query)
        if narrow is not None:
            return narrow
    return [_indexed(store, shard.key("jobs"), b"", query.order, bodies=True)]


async def _narrow(store: Store, shard: Shard, wanted: frozenset[Status], query: Query) -> list[Source] | None:
    """Walks along nothing but jobs of these statuses; None when walking all jobs is less work."""
    active = wanted & ACTIVE
    if active == {Status.RETRYING}:
        active = frozenset()
    found = [
        _indexed(store, shard.key("unsuccessful"), CHARS[status], query.order)
        for status in sorted((wanted & LISTED) - active)
    ]
    if active:
        ids = await _active(store, shard, active, query)
        if ids is None:
            return None
        found.append(_listed(ids, query.order))
    return found


async def _active(store: Store, shard: Shard, active: frozenset[Status], query: Query) -> list[JobId] | None:
    """The jobs that wait or run, as far as they are asked for; None when there are very many."""
    queues: list[str] = []
    if active != {Status.RUNNING}:
        queues = [name for name in await names(store, shard) if not query.queues or name in query.queues]
        counts = counts_of(pairs(await store.connection.call("HGETALL", shard.key("counts"))))
        waiting = (one.n for one in counts if one.status in WAITING and one.queue in queues)
        if sum(waiting) > LONGEST_WALK:
            return None
    held = await held_keys(store, shard) if Status.RUNNING in active else []
    found: list[JobId] = await store.run(_ACTIVE, shard, [len(queues)], queues=queues, more=held, with_subqueues=True)
    return found


def _indexed(store: Store, key: str, prefix: bytes, order: str, *, bodies: bool = False) -> Source:
    """A walk along an index: entries of one prefix, in the order of the ids behind it; an entry may be a body."""
    end = len(prefix) + 16

    async def source(after: JobId | None, n: int) -> list[Entry]:
        if order == "newest":
            bound = b"(" + prefix + (FAR if after is None else after)
            found = await store.connection.call("ZREVRANGEBYLEX", key, bound, b"[" + prefix, "LIMIT", 0, n)
        else:
            # What follows the id in an entry begins with a zero byte, if anything does.
            bound = b"[" + prefix if after is None else b"[" + prefix + after + b"\1"
            found = await store.connection.call("ZRANGEBYLEX", key, bound, b"(" + prefix + FAR, "LIMIT", 0, n)
        return [(entry[len(prefix) : end], entry if bodies else b"") for entry in found]

    return source


def _listed(ids: Iterable[JobId], order: str) -> Source:
    """A walk along ids that are known already."""
    ordered = sorted(ids, reverse=order == "newest")

    async def source(after: JobId | None, n: int) -> list[Entry]:
        if after is None:
            return [(job, b"") for job in ordered[:n]]
        return [(job, b"") for job in ordered if (job < after if order == "newest" else job > after)][:n]

    return source


async def unread(store: Store) -> int:
    """How many jobs cannot be read, were set aside, and are still dead."""
    found = 0
    for shard in await store.shards():
        ids = await store.connection.call("HKEYS", shard.key("corrupt"))
        scores = [("ZSCORE", shard.key("unsuccessful"), CHARS[Status.DEAD] + job) for job in ids]
        found += sum(score is not None for score in await store.connection.pipeline(scores))
    return found
