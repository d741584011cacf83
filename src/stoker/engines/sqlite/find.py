"""Read jobs: `find` a page, or `get` jobs by id.

A page is a walk along ids. The query decides which: a key, a group, the lists of unsuccessful jobs and retrying jobs
have an index; finished jobs are stored in id order; active jobs are sorted if there are few. Every other query walks
all jobs.
A sieve beside the walk passes over jobs that cannot match, by columns of their bodies, so that a walk over many reads
few records whole. What is left is read in portions, and `query.matches` tests it record by record.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import TypeAlias

from stoker.engines.base import Transaction
from stoker.engines.call_times import timed
from stoker.engines.shared.merged_lists import MergedLists
from stoker.engines.sql.exchanges import Exchange, Row
from stoker.engines.sqlite.census import census
from stoker.engines.sqlite.columns import (
    CODES,
    PENDING,
    RETRYING,
    RUNNING,
    SELECT_MANY,
    VIEW,
    Stored,
    as_job,
    read,
    walk,
)
from stoker.engines.sqlite.expire import keeps
from stoker.engines.sqlite.facet import Facet
from stoker.engines.sqlite.statements import sql
from stoker.engines.sqlite.unit_of_work import find as find_job
from stoker.model.ids import JobId
from stoker.model.job import ACTIVE, FINISHED, LISTED, Failure, Job, Status, group_text
from stoker.model.query import LONGEST_WALK, Census, Page, Query, cursor_at, matches, place_of
from stoker.model.time import Instant

CHUNK = 200
PORTION = 50
"""Records that are read with one statement: the loop runs other work in between."""
FIRST, LAST = b"", b"\xff" * 17
"""Before and after every id."""

_NAMES = sql("queue_names")
GROUP = (
    "CASE WHEN json_valid(CAST({body}.options AS TEXT)) THEN json_extract(CAST({body}.options AS TEXT), '$.group') END"
)
"""The group of a row of `stoker_body`, as options hold it: the expression of an index."""

WALKS = {
    f"{name}_{order}": walk(table, where, order)
    for name, table, where in (
        ("all", "body", ""),
        ("key", "body", "ukey = ?3 AND"),
        ("group", "body", f"{GROUP.format(body='x')} = ?3 AND"),
        ("done", "done", ""),
        ("listed", "done", "qid = ?3 AND status = ?4 AND status > 3 AND"),
        ("unsuccessful", "done", "status = ?3 AND status > 3 AND"),
        ("retrying", "ready", "status = 2 AND"),
    )
    for order in ("newest", "oldest")
}
_WAITING = sql("find_waiting")
_LINES = sql("find_lines")
_RUNNING = sql("find_running")
_ACTIVE_COUNTS = sql("find_counts")
_ENDED = sql("ended")
_PRIORITY = sql("claim_priority")
LOWEST = -(1 << 30)
"""Below every priority."""
_ERRORS = sql("errors")
_HELD = sql("get_running_many")
_ID, _QID, _STATUS = (VIEW.index(name) for name in ("id", "qid", "status"))

Chunk: TypeAlias = Callable[[JobId, int], Exchange[list[tuple[JobId, bool]]]]
"""Returns the next ids after one, at most so many, and whether each may match."""


class Finder(Facet):
    """Reads jobs and counts them."""

    @timed(write=False)
    async def get(self, ids: Sequence[JobId]) -> list[Job | None]:
        return await self._store.read(lambda _: get(ids))

    @timed(write=False)
    async def find(self, query: Query, *, tx: Transaction | None = None) -> Page:
        if tx is not None:
            return await self._store.look(tx, lambda now: find(query, now))
        return await self._store.read_in_slices(lambda now: find(query, now))

    @timed(write=False)
    async def census(self) -> Census:
        return await self._store.read(census)


def find(query: Query, now: Instant) -> Exchange[Page]:
    """Return one page.

    It ends when it is full, when the walk gets too long, or with the last record.
    """
    names: dict[int, str] = dict((yield _NAMES, ()))
    if query.timed:
        return (yield from _by_time(query, names, now))
    next_ids = yield from _choose(query, names)
    found: list[Stored] = []
    scanned, n = 0, min(query.limit + 1, CHUNK)
    cursor = query.cursor if query.cursor is not None else (LAST if query.order == "newest" else FIRST)
    while True:
        chunk = yield from next_ids(cursor, n)
        records = yield from _records([job for job, may_match in chunk if may_match], names)
        for job, may_match in chunk:
            if scanned == LONGEST_WALK or len(found) == query.limit:
                return Page((yield from _shown(found)), cursor, scanned)
            cursor = job
            stored = records.get(job)
            if stored is None and may_match:
                continue
            scanned += 1
            # A record has every field that `matches` looks at.
            if stored is not None and matches(stored.record, query, now):
                found.append(stored)
        if len(chunk) < n:
            return Page((yield from _shown(found)), None, scanned)
        n = min(4 * n, CHUNK)


def _choose(query: Query, names: dict[int, str]) -> Exchange[Chunk]:
    wanted = query.wanted
    qids = [qid for qid, name in names.items() if not query.queues or name in query.queues]
    if query.key is not None:
        return _straight(query, qids, "key", query.key)
    if query.group is not None:
        return _straight(query, qids, "group", group_text(query.group))
    if wanted == {Status.RETRYING}:
        return _straight(query, qids, "retrying")
    if wanted <= LISTED:
        return _merged(query, qids)
    if wanted <= FINISHED:
        return _straight(query, qids, "done")
    if wanted <= ACTIVE and (yield from _few(wanted, qids)):
        return (yield from _sorted(query.order, wanted, qids))
    return _straight(query, qids, "all")


# --- the sieve ------------------------------------------------------------------------------------------------------


def sieve(query: Query, qids: Sequence[int], given: int) -> tuple[str, list[object]]:
    """Return a condition on a row `x` that holds for every job of the query, and its values, behind `given` others.

    It is a part of `query.matches`: whatever SQL cannot say exactly passes. A text is compared here without case if it
    is ASCII and the payload as well; every other payload passes.
    """
    values: list[object] = []

    def mark(value: object) -> str:
        values.append(value)
        return f"?{given + len(values)}"

    parts = []
    if query.queues:
        parts.append(f"b.qid IN ({', '.join(map(str, qids))})")
    if query.kinds:
        parts.append(f"b.kind IN ({', '.join(map(mark, sorted(query.kinds)))})")
    if query.tenant is not None:
        parts.append(f"b.tenant = {mark(query.tenant)}")
    if query.group is not None:
        parts.append(f"{GROUP.format(body='b')} = {mark(group_text(query.group))}")
    if query.meta_json is not None:
        parts.append(_in_metadata(mark(query.meta_json)))
    if query.since is not None:
        parts.append(f"b.created >= {mark(query.since)}")
    if query.until is not None:
        parts.append(f"b.created < {mark(query.until)}")
    if query.payload is not None and query.payload.isascii():
        parts.append(_in_payload(mark(query.payload)))
    if query.error is not None or query.same_error is not None:
        parts.append(HAS_ERROR)
    if query.text is not None and query.text.isascii():
        parts.append(f"({_in_payload(mark(query.text))} OR {HAS_ERROR})")
    if not parts:
        return "1", values
    return f"EXISTS (SELECT 1 FROM stoker_body AS b WHERE b.seq = x.seq AND {' AND '.join(parts)})", values


HAS_ERROR = "EXISTS (SELECT 1 FROM stoker_errors AS e WHERE e.seq = b.seq)"


def _in_payload(text: str) -> str:
    payload = "CAST(b.payload AS TEXT)"
    return f"(instr(lower({payload}), lower({text})) OR {payload} GLOB '*[^' || char(1) || '-~]*')"


def _in_metadata(entry: str) -> str:
    noted = f"SELECT 1 FROM stoker_past AS p WHERE p.seq = b.seq AND instr(CAST(p.metadata AS TEXT), {entry})"
    return f"(instr(CAST(b.options AS TEXT), {entry}) OR EXISTS ({noted}))"


# --- the order of a time --------------------------------------------------------------------------------------------

BY_TIME = {
    "kept": """
SELECT finished, id, {sieve} FROM stoker_done AS x
WHERE status = 3 AND expires - finished = ?4 AND (finished, id) < (?1, ?2)
ORDER BY finished DESC, id DESC LIMIT ?3""",
    "ended": """
SELECT finished, id, {sieve} FROM stoker_done AS x
WHERE status = ?4 AND status > 3 AND (finished, id) < (?1, ?2)
ORDER BY finished DESC, id DESC LIMIT ?3""",
    "due": """
SELECT due, id, {sieve} FROM stoker_ready AS x
WHERE qid = ?4 AND priority = ?5 AND (due, id) > (?1, ?2)
ORDER BY due, id LIMIT ?3""",
    "retry": """
SELECT due, id, {sieve} FROM stoker_ready AS x
WHERE status = 2 AND (due, id) > (?1, ?2)
ORDER BY due, id LIMIT ?3""",
}
"""The next places behind one (?1, ?2), at most ?3, each along an index, and whether the job there may match."""

List: TypeAlias = tuple[str, tuple[int, ...]]
"""One of the statements above, with what it needs beside place and number."""


def _by_time(query: Query, names: dict[int, str], now: Instant) -> Exchange[Page]:
    """Return one page in the order of a time: a walk along several lists at once."""
    lists = yield from _lists(query, names)
    qids = [qid for qid, name in names.items() if name in query.queues]
    found: list[Stored] = []
    scanned, n, place, latest = 0, min(query.limit + 1, CHUNK), query.start(now), query.order == "finished"
    merged = MergedLists(len(lists), place, descending=latest)
    while True:
        while hungry := merged.hungry(n):
            for number, after, share in hungry:
                statement, values = lists[number]
                passes, more = sieve(query, qids, 3 + len(values))
                rows = yield BY_TIME[statement].format(sieve=passes), (*after, share, *values, *more)
                merged.feed(number, [((at, job), may_match) for at, job, may_match in rows])
        chunk = merged.take(n)
        records = yield from _records([job for (_, job), may_match in chunk if may_match], names)
        for (at, job), _ in chunk:
            if query.is_over(at, now):
                return Page((yield from _shown(found)), None, scanned)
            if scanned == LONGEST_WALK or len(found) == query.limit:
                return Page((yield from _shown(found)), cursor_at(*place), scanned)
            place = at, job
            scanned += 1
            stored = records.get(job)
            if stored is None or place_of(stored.record, query) != place:
                continue
            if matches(stored.record, query, now):
                found.append(stored)
        if len(chunk) < n:
            return Page((yield from _shown(found)), None, scanned)
        n = min(4 * n, CHUNK)


def _lists(query: Query, names: dict[int, str]) -> Exchange[list[List]]:
    """Return the lists that together hold every job that the query may match."""
    wanted = query.wanted
    if query.order == "finished":
        found: list[List] = [("ended", (CODES[status],)) for status in sorted(wanted - {Status.DONE})]
        if Status.DONE in wanted:
            found += [("kept", (keep,)) for keep in (yield from keeps())]
        return found
    if wanted == {Status.RETRYING}:
        return [("retry", ())]
    found = []
    for qid, name in names.items():
        if query.queues and name not in query.queues:
            continue
        lines: list[Row] = [(qid,), *(yield _LINES, (qid,))]
        for (line,) in lines:
            rows: list[Row] = yield _PRIORITY, (line, LOWEST)
            while rows:
                found.append(("due", (line, rows[0][0])))
                rows = yield _PRIORITY, (line, rows[0][0])
    return found


# --- the order of ids -----------------------------------------------------------------------------------------------


def _straight(query: Query, qids: list[int], walk: str, *values: object) -> Chunk:
    """Walk along one index."""
    passes, more = sieve(query, qids, 2 + len(values))
    statement = WALKS[f"{walk}_{query.order}"].format(sieve=passes)

    def chunk(after: JobId, n: int) -> Exchange[list[tuple[JobId, bool]]]:
        rows: list[tuple[JobId, bool]] = yield statement, (after, n, *values, *more)
        return rows

    return chunk


def _merged(query: Query, qids: list[int]) -> Chunk:
    """Walk along several lists at once, each in id order: those of the queues asked for, or one of all queues."""
    codes = [CODES[status] for status in sorted(query.wanted - {Status.RETRYING})]
    lists: list[List] = [("unsuccessful", (code,)) for code in codes]
    if query.queues:
        lists = [("listed", (qid, code)) for qid in qids for code in codes]
    if Status.RETRYING in query.wanted:
        lists.append(("retrying", ()))
    sieves = {n: sieve(query, qids, 2 + n) for n in {len(values) for _, values in lists}}
    start = query.cursor if query.cursor is not None else (LAST if query.order == "newest" else FIRST)
    merged = MergedLists(len(lists), start, descending=query.order == "newest")

    def chunk(_: JobId, n: int) -> Exchange[list[tuple[JobId, bool]]]:
        while hungry := merged.hungry(n):
            for number, after, share in hungry:
                walk, values = lists[number]
                passes, more = sieves[len(values)]
                statement = WALKS[f"{walk}_{query.order}"].format(sieve=passes)
                rows: list[tuple[JobId, bool]] = yield statement, (after, share, *values, *more)
                merged.feed(number, rows)
        return merged.take(n)

    return chunk


def _few(wanted: frozenset[Status], qids: list[int]) -> Exchange[bool]:
    """Return whether there are so few candidates that sorting them is less work than walking."""
    rows: list[Row] = yield _ACTIVE_COUNTS, ()
    looked_at = {PENDING, RETRYING} if wanted - {Status.RUNNING} else set()
    looked_at |= {RUNNING} if Status.RUNNING in wanted else set()
    return (
        int(sum(n for qid, what, n in rows if what in looked_at and (qid in qids or what == RUNNING))) <= LONGEST_WALK
    )


def _sorted(order: str, wanted: frozenset[Status], qids: list[int]) -> Exchange[Chunk]:
    ids: list[JobId] = []
    if wanted - {Status.RUNNING}:
        for qid in qids:
            ids += [row[0] for row in (yield _WAITING, (qid,))]
    if Status.RUNNING in wanted:
        ids += [row[0] for row in (yield _RUNNING, ())]
    ids.sort(reverse=order == "newest")

    def chunk(after: JobId, n: int) -> Exchange[list[tuple[JobId, bool]]]:
        yield from ()
        return [(job, True) for job in ids if (job < after if order == "newest" else job > after)][:n]

    return chunk


def get(ids: Sequence[JobId]) -> Exchange[list[Job | None]]:
    """Return whole records, in the order of the ids."""
    records = yield from _records(ids, {})
    shown = {job.id: job for job in (yield from _shown(list(records.values())))}
    return [shown.get(job) for job in ids]


def _records(ids: Sequence[JobId], names: dict[int, str]) -> Exchange[dict[JobId, Stored]]:
    """Read stored jobs by id, in portions; a job that is gone is left out."""

    def name(qid: int) -> Exchange[str]:
        if qid not in names:
            names.update((yield _NAMES, ()))
        return names.get(qid, "")

    found: dict[JobId, Stored] = {}
    for start in range(0, len(ids), PORTION):
        rows: list[Row] = yield SELECT_MANY, (b"".join(ids[start : start + PORTION]),)
        running = [row[0] for row in rows if row[_STATUS] is None]
        held: dict[int, Row] = {}
        if running:
            held = {seq: row for seq, *row in (yield _HELD, (json.dumps(running),))}
        for row in rows:
            if row[_STATUS] is not None or row[0] in held:
                found[row[_ID]] = read(row, held.get(row[0]), (yield from name(row[_QID])))
            elif (stored := (yield from find_job(row[_ID], name))) is not None:  # it changed its table meanwhile
                found[row[_ID]] = stored
    return found


def _shown(found: list[Stored]) -> Exchange[list[Job]]:
    """Return jobs with their history, for an operator."""
    failed = [one.seq for one in found if one.values["last_error"] is not None]
    history: dict[int, list[Failure]] = {}
    for seq, *row in (yield _ERRORS, (json.dumps(failed),)) if failed else ():
        history.setdefault(seq, []).append(Failure(*row))
    return [as_job(one, tuple(history.get(one.seq, ()))) for one in found]


def ended(jobs: Sequence[JobId]) -> Exchange[list[JobId]]:
    """Return those of the jobs that have ended or are gone."""
    over: dict[JobId, bool] = {}
    for job in jobs:
        over[job] = (yield _ENDED, (job,))[0][0]
    return [job for job in jobs if over[job]]
