"""Claim due jobs, and find out which queues have due jobs.

A claim goes through a queue priority by priority and takes the first due jobs of each: four statements whatever their
number, and no row that is not due is read. A claim's `ref` holds what a plain settlement needs, so that a settlement of
a success reads nothing.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Sequence
from itertools import groupby
from operator import itemgetter
from typing import TYPE_CHECKING, Any

import msgspec

from stoker.engines.call_times import timed
from stoker.engines.shared import one_by_one, subqueue_claim
from stoker.engines.shared.unit_of_work import Wanted
from stoker.engines.sql.exchanges import Exchange, Row
from stoker.engines.sql.packing import read_bucket, read_metadata, read_options, read_unique
from stoker.engines.sqlite import step_rows, subqueues
from stoker.engines.sqlite.columns import PENDING, PICK, RETRYING, RUNNING, STATUSES, check_claimable
from stoker.engines.sqlite.facet import Facet
from stoker.engines.sqlite.statements import sql
from stoker.engines.sqlite.subqueues import BEFORE_ALL
from stoker.engines.sqlite.unit_of_work import QueueRow, Unit, find
from stoker.model.control import Pause, Starts
from stoker.model.errors import CorruptRecord
from stoker.model.ids import JobId, text
from stoker.model.job import FIRST, PLAIN, Claim, Demand, Options
from stoker.model.next_due import Gate, NextDue, next_due_of
from stoker.model.time import Instant

if TYPE_CHECKING:
    from stoker.engines.sqlite.store import Store

log = logging.getLogger("stoker.engines.sqlite")

_WORKER = sql("worker")
_LOST = sql("running_lost")
_PRIORITY = sql("claim_priority")
_TAKE = sql("claim_take")
_DROP = sql("claim_drop")
_PAST = sql("claim_past")
_STRONG = sql("key_hold_strong")
_NAMES = sql("queue_due_names")
_DUE = sql("queue_due")
_OPEN = sql("queue_open")
_FIRST_DUE = sql("queue_first_due")

NO_QUEUE = 0
"""The number of no line."""

_CLAIMABLE = (PENDING, RETRYING)
_NOTHING_MORE = (PLAIN, None, 0, 0, 0, None, None)


class Claimer(Facet):
    """Claims jobs for workers, and lets them wait for some."""

    def __init__(self, store: Store) -> None:
        super().__init__(store)
        self._starving = False

    @timed(write=True)
    async def claim(self, demand: Demand) -> list[Claim]:
        if self._starving:
            # An idle worker claims again and again: a read first keeps its claims out of the write-ahead log.
            names = [queue for queue, _ in demand.queues]
            if not await self._store.read(lambda now: due_queues(names, now)):
                return []
        claims: list[Claim] = await self._store.request(demand=demand)
        self._starving = not claims
        return claims

    async def wait(self, topics: Sequence[str], timeout: float) -> frozenset[str]:
        woken = await self._store.wait(topics, timeout)
        self._starving = self._starving and not woken
        return woken

    @timed(write=False)
    async def ahead(self, queues: Sequence[str]) -> NextDue:
        return await self._store.read(lambda now: ahead(queues, now))


def claim(unit: Unit, demand: Demand) -> Exchange[list[Claim]]:
    """Claim due jobs for a worker with a live lease."""
    wid = yield from living(unit, demand.worker)
    claims: list[Claim] = []
    if wid is None:
        return claims
    left = sum(n for _, n in demand.queues if n > 0) if demand.total is None else demand.total
    for name, wanted in demand.queues:
        n = min(wanted, left - len(claims))
        if n <= 0:
            continue
        queue_row = yield from unit.find_queue(name)
        starts = Starts(0) if queue_row is None else queue_row.queue.starts(n, unit.now)
        if queue_row is None or starts.n <= 0:
            continue
        if queue_row.divided or queue_row.qid in unit.divided:
            claims += yield from _from_lines(unit, queue_row, wid, demand.worker, starts)
        else:
            claims += yield from _from_queue(unit, queue_row, wid, demand.worker, starts)
    return claims


def living(unit: Unit, worker: str) -> Exchange[int | None]:
    """Return the number of a worker whose lease has not expired, or None."""
    rows = yield _WORKER, (worker,)
    if not rows or rows[0][1] is None or rows[0][1] < unit.now:
        return None
    return int(rows[0][0])


def _from_queue(unit: Unit, queue_row: QueueRow, wid: int, worker: str, starts: Starts) -> Exchange[list[Claim]]:
    claims: list[Claim] = []
    priority, qid, now, n = BEFORE_ALL, queue_row.qid, unit.now, starts.n
    while len(claims) < n:
        found = yield _PRIORITY, (qid, priority)
        if not found or (starts.first_only and found[0][0] > FIRST):
            break
        priority = found[0][0]
        picked = yield PICK, (qid, priority, now, n - len(claims))
        if not picked:
            continue
        last = picked[-1]
        yield _TAKE, (qid, priority, last[3], last[0], wid, now)
        yield _DROP, (qid, priority, last[3], last[0])
        taken = yield from _handed_over(unit, queue_row, worker, priority, picked)
        claims += taken
        if len(taken) < len(picked):
            priority -= 1  # behind what was set aside may be more
    yield from unit.take_tokens(queue_row, len(claims))
    return claims


def _from_lines(unit: Unit, queue_row: QueueRow, wid: int, worker: str, starts: Starts) -> Exchange[list[Claim]]:
    """Claim from the main line and the subqueues of a queue; a job that cannot be read gives its slot back at once."""
    lines = yield from subqueues.lines_of(queue_row.qid, wid, unit.now)
    yield from subqueue_claim.claim(lines, starts, unit.now, fair=queue_row.queue.fair)
    claims: list[Claim] = []
    for priority, rows in groupby(lines.taken, key=itemgetter(0)):
        claims += yield from _handed_over(unit, queue_row, worker, priority, [row for _, row in rows])
    yield from unit.take_tokens(queue_row, len(claims))
    return claims


def _handed_over(
    unit: Unit, queue_row: QueueRow, worker: str, priority: int, picked: list[Row]
) -> Exchange[list[Claim]]:
    """Make claims of the picked rows.

    A job that cannot be read ends as dead instead.
    """
    claims: list[Claim] = []
    counts: defaultdict[tuple[str, int], int] = defaultdict(int)
    qid, queue, now = queue_row.qid, queue_row.queue, unit.now
    name, curve, cool = queue.name, queue.curve, queue.cooldown.count
    for row in picked:
        (
            id_, attempt, token, due, seq, status, past, kind, payload, budget, created, options, key, _, tenant, fresh,
            suspended,
        ) = row  # fmt: skip
        if created is None:
            yield _LOST, (seq,)
            log.warning("job %s was dropped: its body is gone, the file lost rows", text(id_))
            continue
        sound = status in _CLAIMABLE and type(kind) is str and type(payload) is bytes
        if not sound:
            kind, status = kind or "", PENDING
        counts[kind, status] += 1
        ref: Any = (id_, seq, qid, kind, attempt, now, None, None)
        job_options, unique, base, crashes, throttles, metadata, error = _NOTHING_MORE
        if past or key is not None or options is not None or not sound:
            try:
                job_options, unique, base, crashes, throttles, metadata, error = yield from _more(row, sound=sound)
            except CorruptRecord as broken:
                yield from set_aside(unit, id_, str(broken), started=False)
                continue
            ref = seq if past or key is not None else (*ref[:6], job_options.group, _subqueue(job_options))
        # fmt: off
        claim_ = Claim(
            id_, kind, name, payload, attempt, base, budget, worker, token, now, created, due, priority,
            job_options, unique, tenant, crashes, throttles, error, False, metadata, curve, cool, None, None, ref,
            STATUSES[status], bool(fresh), (yield from step_rows.brought(seq)) if suspended else None,
        )
        # fmt: on
        claims.append(claim_)
    for (kind, status), n in counts.items():
        unit.moved(qid, kind, status, RUNNING, n)
    return claims


def _more(row: Row, *, sound: bool) -> Exchange[Row]:
    """Return the fields of a claim that only jobs with options, a key or a past have."""
    if not sound:
        raise CorruptRecord("its status, kind or payload is not one that Stoker writes")
    seq, status, past, kind, (options, key, traits, *_) = *row[4:8], row[11:]
    unique = read_unique(key, traits)
    base, crashes, throttles, metadata, error = 0, 0, 0, None, None
    if past:
        rows = yield _PAST, (seq,)
        if not rows:
            raise CorruptRecord("its row of stoker_past is missing")
        base, crashes, throttles, metadata, error = rows[0]
        metadata = read_metadata(metadata)
    if unique is not None and status == RETRYING:
        yield _STRONG, (unique.slot(kind), seq)
    return read_options(options), unique, base, crashes, throttles, metadata, error


def set_aside(unit: Unit, job: JobId, why: str, *, started: bool = True) -> Exchange[None]:
    """End a job whose record cannot be read.

    Operators can look at it, workers never claim it again.
    """
    yield from unit.load(Wanted(frozenset({job})))
    record = unit.get(job)
    assert record is not None
    one_by_one.set_aside(unit, record, why, started=started)
    yield from unit.write()


def stored(unit: Unit, job: JobId) -> Exchange[Claim]:
    """Return a stored claim, for a worker that does not hold it yet; raises `CorruptRecord`."""
    found = yield from find(job, unit.queue_name)
    assert found is not None
    check_claimable(found)
    record, seq, qid = found.record, found.seq, found.values["qid"]
    plain = not found.has_past and record.unique is None
    counted = (record.options.group, _subqueue(record.options))
    ref = (record.id, seq, qid, record.kind, record.attempts, record.started_at, *counted) if plain else seq
    claim_ = record.as_claim((yield from unit.queue_of(qid)).queue)
    return msgspec.structs.replace(claim_, ref=ref)


def _subqueue(options: Options) -> str | None:
    """Return the subqueue in which a job holds a slot."""
    return None if options.limit is None else options.limit.subqueue


# --- what is due ------------------------------------------------------------------------------------------------


def due_queues(names: list[str], now: Instant) -> Exchange[list[str]]:
    """Return those of the queues that have a due job."""
    known: dict[str, tuple[int, int]] = {name: (qid, aside) for qid, name, aside in (yield _NAMES, (now,))}
    found = []
    for name in names:
        (qid, aside), priority = known.get(name, (NO_QUEUE, 0)), BEFORE_ALL
        if aside:
            found.append(name)
            continue
        while rows := (yield _PRIORITY, (qid, priority)):
            priority = rows[0][0]
            if (yield _DUE, (qid, priority, now)):
                found.append(name)
                break
    return found


def ahead(names: Sequence[str], now: Instant) -> Exchange[NextDue]:
    """Return how long a worker of these queues may sleep."""
    gates: list[Gate] = []
    for name in names:
        rows = yield _OPEN, (name,)
        if not rows:
            gates.append(Gate(name))
            continue
        [(qid, paused, end, until, *bucket, ready, later)] = rows
        first, priority = min((at for at in (ready, later) if at is not None), default=None), BEFORE_ALL
        while found := (yield _PRIORITY, (qid, priority)):
            priority = found[0][0]
            due = (yield _FIRST_DUE, (qid, priority))[0][0]
            first = due if first is None else min(first, due)
        gates.append(Gate(name, Pause(end) if paused else None, until, first, read_bucket(*bucket)))
    return next_due_of(gates, now)
