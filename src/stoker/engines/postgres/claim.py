"""Claiming: due jobs become claims of a worker.

A claim's `ref` is a `Ref`: where its bit is, and what a settlement needs to know of the job, so that settling reads
nothing first. Claims of one lease share their `Lease`. `claim_cursor` decides which part of a queue is scanned.
CLAIMING.md draws both.
"""

from __future__ import annotations

import hashlib
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial
from itertools import count, takewhile
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import msgspec

from stoker.engines.call_times import timed
from stoker.engines.postgres import step_rows, subqueues
from stoker.engines.postgres.claim_cursor import FIRST_ONLY, ClaimCursor, Scan
from stoker.engines.postgres.columns import STATUSES, listed
from stoker.engines.postgres.connection import BEGIN
from stoker.engines.postgres.errors import Locked
from stoker.engines.postgres.facet import Facet
from stoker.engines.postgres.statements import sql
from stoker.engines.shared import one_by_one, subqueue_claim
from stoker.engines.shared.unit_of_work import Wanted
from stoker.engines.sql.exchanges import Exchange, Row
from stoker.engines.sql.packing import read_options, read_queue, read_unique
from stoker.model.control import Queue, Starts
from stoker.model.errors import CorruptRecord, EngineUnavailable
from stoker.model.ids import JobId
from stoker.model.job import PLAIN, Claim, Demand, Draft, Options, Settlement, Status
from stoker.model.query import Repair
from stoker.model.retry import OFF, Curve
from stoker.model.subqueues import MOST_LOOKS
from stoker.model.throttle import take
from stoker.model.time import Instant

if TYPE_CHECKING:
    from stoker.engines.postgres.connection import Connection
    from stoker.engines.postgres.store import Store
    from stoker.engines.postgres.unit_of_work import Unit

_CLAIM = sql("claim")
_CLAIM_RATED = sql("claim_rated")
_QUEUE_CLAIM = sql("queue_claim")
_QUEUE_TOKENS = sql("queue_tokens")
_QUEUE_HOLD = sql("queue_hold")
_NOW, _NEWS = sql("now"), sql("subqueue_news")
_TOKEN, _QUEUE, _ID = 1, 3, 5
"""Where in a row of a claim the token, the queue's name and the job's id are.

A queue with a rate or with subqueues answers without an id, one with subqueues with a token.
"""

LOCK_WAIT = 1.0
"""Seconds a claim waits for the row of a queue with a rate: other claims hold it for milliseconds."""

Run: TypeAlias = Callable[[Row, float], Awaitable[list[Row]]]
"""Runs the statement of a claim with these values, with some seconds extra."""

_decode_past = msgspec.json.Decoder(tuple[int, int, int, dict[str, str] | None]).decode


class _RateChanged(Exception):
    """A queue turned out to have a rate or subqueues, or none any more: nothing was taken, and `Claimer` knows it."""


class _Closed(Exception):
    """A divided queue gives nothing now: what was read of its log goes back."""


class Lease:
    """What the claims of one lease have in common."""

    __slots__ = ("claimed", "id", "queue", "size", "token", "worker")

    def __init__(self, id_: int, token: int, claimed: Instant, worker: str, queue: str, size: int) -> None:
        self.id = id_
        self.token = token
        self.claimed = claimed
        self.worker = worker
        self.queue = queue
        self.size = size


class Ref(NamedTuple):
    """Where a claim is stored, and the facts of the job its settlement needs. Constant while the job runs."""

    lease: Lease
    id: JobId
    pos: int
    kind: str
    attempt: int
    priority: int
    slot: str | None
    throttles: int = 0
    group: JobId | None = None
    subqueue: str | None = None
    """In which it holds a slot."""


FRESH = -1
"""In place of the status before: the job is pending, and no worker ever had it."""


class Broken(NamedTuple):
    """A claimed job whose record cannot be read, and why."""

    id: JobId
    token: int
    why: str


class Claimer(Facet):
    """The claims of one engine, with a cursor for each queue."""

    def __init__(self, store: Store) -> None:
        super().__init__(store)
        self._cursors: dict[str, ClaimCursor] = {}
        self._rated: set[str] = set()
        """Queues that had a rate when they were last claimed from."""
        self._divided: set[str] = set()
        """Queues that had subqueues then."""
        self._broken: list[Broken] = []
        """Jobs that were claimed and could not be read; they are to end."""
        self._alone_kinds: set[str] = set()
        """Kinds whose last job that ended here was held in a transaction: their claims get leases of their own."""

    def forget(self, queues: Iterable[str] | None = None) -> None:
        """Note that jobs of these queues (None: of any) may have been queued before the cursors."""
        for queue in self._cursors if queues is None else queues:
            if queue in self._cursors:
                self._cursors[queue].forget()

    def inserted(self, drafts: Iterable[Draft]) -> None:
        """Note inserted jobs: one due in the past, or of a new priority, is before the cursor."""
        if self._cursors:
            for draft in drafts:
                cursor = self._cursors.get(draft.queue)
                if cursor is not None:
                    cursor.put(draft.priority, draft.at)

    def late(self, queues: Iterable[str], since: Instant) -> None:
        """Note that jobs of these queues, stamped at this instant, were committed only now."""
        for queue in queues:
            if queue in self._cursors:
                self._cursors[queue].late(since)

    def held(self, kind: str) -> None:
        """Note that a job of this kind is settled in a transaction, so that the next ones share no lease."""
        self._alone_kinds.add(kind)

    def succeeded(self, settlements: Iterable[Settlement]) -> None:
        """Note jobs that no transaction has held: the next ones of their kinds may share leases again."""
        if self._alone_kinds:
            for settlement in settlements:
                if settlement.status is Status.DONE and type(settlement.ref) is Ref:
                    self._alone_kinds.discard(settlement.ref.kind)

    def settled(self, settlements: Iterable[Settlement]) -> None:
        """Note jobs that were queued again, and follow-ups."""
        if self._cursors:
            for settlement in settlements:
                ref = settlement.ref
                self.inserted(settlement.followups)
                if settlement.status is not Status.DONE and type(ref) is Ref:
                    cursor = self._cursors.get(ref.lease.queue)
                    if cursor is not None:
                        cursor.put(ref.priority, settlement.due)

    @timed(write=True)
    async def claim(self, demand: Demand) -> list[Claim]:
        return await self.take(demand)

    async def take(self, demand: Demand) -> list[Claim]:
        """Hand due jobs to a worker with a live lease. Settlements call it: their time is measured as a whole."""
        wanted, total = wants(demand)
        if total <= 0:
            self._store.inside()
            return []
        for queue in wanted:
            if queue not in self._cursors:
                self._cursors[queue] = ClaimCursor()
        try:
            return await self._in_order(demand.worker, wanted, total)
        finally:
            if self._broken:
                broken, self._broken = self._broken, []
                await self._store.write(lambda unit: set_aside(unit, broken, started=False))

    async def _in_order(self, worker: str, wanted: dict[str, int], total: int) -> list[Claim]:
        """Take from the queues in their order: from plain ones together, from each queue with a rate by itself."""
        found: list[Claim] = []
        waiting = list(wanted)
        while waiting and len(found) < total:
            left = total - len(found)
            try:
                if waiting[0] in self._divided:
                    taken = await self._take_divided(worker, waiting[0], min(wanted[waiting[0]], left))
                    done = 1
                elif waiting[0] in self._rated:
                    taken = await self._take_rated(worker, waiting[0], min(wanted[waiting[0]], left))
                    done = 1
                else:
                    plain = {queue: wanted[queue] for queue in takewhile(self._is_plain, waiting)}
                    taken = await self._take_from(self._alone, worker, plain, left)
                    done = len(plain)
            except _RateChanged:
                continue
            found += taken
            del waiting[:done]
        return found

    def _is_plain(self, queue: str) -> bool:
        return queue not in self._rated and queue not in self._divided

    async def _take_rated(self, worker: str, queue: str, n: int) -> list[Claim]:
        """Take from a queue with a rate, at most as many jobs as it has tokens.

        The queue's row is locked first and the tokens are written last, so concurrent claims take turns. The jobs are
        read by a statement that begins when the lock is held. A lock that an open transaction of a user holds is not
        waited for longer than `LOCK_WAIT`; nothing is taken then.
        """
        store, cursor = self._store, self._cursors[queue]
        tries = count()

        async def work(connection: Connection, unit: Unit, row: Row) -> list[Claim]:
            if next(tries):
                cursor.forget()  # it moved behind jobs that the rollback put back
            run = partial(connection.run, patience=store.options.patience)
            _, first_waits, *settings = row
            stored = Queue(name=queue) if settings[0] is None else read_queue(tuple(settings))
            if stored.bucket is None:
                self._rated.discard(queue)
                raise _RateChanged
            starts = stored.starts(n, unit.now)
            if starts.n <= 0 or (starts.first_only and not first_waits):
                return []

            async def claim(values: Row, extra: float) -> list[Row]:
                return await connection.run(store.texts[_CLAIM_RATED], values, store.options.patience + extra)

            wanted = {queue: starts.n}
            if starts.first_only:
                claims = await self._take(claim, worker, wanted, starts.n, {queue: FIRST_ONLY})
            else:
                claims = await self._take_from(claim, worker, wanted, starts.n)
            if claims:
                bucket = take(stored.bucket, len(claims), unit.now)
                await run(store.texts[_QUEUE_TOKENS], (queue, bucket.tokens, bucket.refilled_at))
            return claims

        try:
            return await store.transact(work, lane="claim", first=(_QUEUE_CLAIM, (queue, str(int(LOCK_WAIT * 1000)))))
        except Locked:
            return []
        except BaseException:
            cursor.forget()
            raise

    async def _take_divided(self, worker: str, queue: str, n: int) -> list[Claim]:
        """Take from a queue with subqueues, one claim at a time; one that waits for long takes nothing.

        Only claims take the lock. A queue with a rate is held like any other with a rate. A log of many rows, as
        after a large import, is applied in several transactions, and jobs are taken when it is applied.
        """
        store = self._store
        self._cursors[queue].forget()  # the main line is not claimed by it

        async def work(connection: Connection, unit: Unit, row: Row) -> list[Claim] | None:
            run = partial(connection.run, patience=store.options.patience)
            _, divided, lives, served, *settings, log, states = row
            if not divided:
                self._divided.discard(queue)
                raise _RateChanged
            stored = Queue(name=queue) if settings[0] is None else read_queue(tuple(settings))
            if stored.bucket is not None:
                rows = await run(store.texts[_QUEUE_HOLD], (queue,))
                stored = read_queue(rows[0]) if rows else Queue(name=queue)
            starts = stored.starts(n, unit.now) if lives else Starts(0)
            if starts.n <= 0:
                raise _Closed
            lines = subqueues.lines_of(stored, worker, unit.now, served, log, states)
            taken = await store.play(connection, _from_lines(lines, worker, starts, unit.now, stored))
            if taken is None:
                return None
            claims, broken = taken
            self._broken += broken
            if claims and stored.bucket is not None:
                bucket = take(stored.bucket, len(claims), unit.now)
                await run(store.texts[_QUEUE_TOKENS], (queue, bucket.tokens, bucket.refilled_at))
            return claims

        begin = locked(store, queue, lax=True)
        claims: list[Claim] | None = None
        try:
            while claims is None:
                news = (queue, worker, store.now(), subqueues.MOST_POST, MOST_LOOKS)
                claims = await store.transact(work, lane="claim", first=(_NEWS, news), begin=begin)
        except (Locked, _Closed):
            return []
        return claims

    async def _alone(self, values: Row, extra: float) -> list[Row]:
        return await self._store.once("claim", _CLAIM, values, extra=extra)

    async def _take_from(self, run: Run, worker: str, wanted: dict[str, int], total: int) -> list[Claim]:
        now = time.monotonic()
        scans = {queue: self._cursors[queue].scan(now) for queue in wanted}
        found = await self._take(run, worker, wanted, total, scans)
        if len(found) < total and (rest := self._rest(wanted, found, scans)):
            scans = {queue: self._cursors[queue].scan(now, whole=True) for queue in rest}
            found += await self._take(run, worker, rest, total - len(found), scans)
            order = {queue: place for place, queue in enumerate(wanted)}
            found.sort(key=lambda claim: (order[claim.queue], claim.priority, claim.scheduled_at, claim.id))
        return found

    def _rest(self, wanted: dict[str, int], found: list[Claim], scans: dict[str, Scan]) -> dict[str, int]:
        """Return what is still wanted of queues whose full scan is pending and cheap."""
        if all(scan.whole for scan in scans.values()):
            return {}
        counts = Counter(claim.queue for claim in found)
        return {
            queue: n - counts[queue]
            for queue, n in wanted.items()
            if counts[queue] < n and not scans[queue].whole and self._cursors[queue].slices is None
        }

    async def _take(
        self, run: Run, worker: str, wanted: dict[str, int], total: int, scans: dict[str, Scan]
    ) -> list[Claim]:
        began = time.monotonic()
        where = [[listed(range_[part] for range_ in scans[queue].ranges) for queue in wanted] for part in range(4)]
        values = (
            self._store.now(),
            worker,
            list(wanted),
            listed(wanted.values()),
            total,
            *where,
            list(self._alone_kinds),
        )
        extra = max(0.0 if self._cursors[queue].levels else 2 * self._cursors[queue].grace for queue in scans)
        try:
            rows = await run(values, extra)
        except EngineUnavailable:
            for queue, scan in scans.items():
                self._cursors[queue].failed(scan, time.monotonic() - began)
            raise
        if rows and rows[0][_ID] is None:
            self._divided.update(row[_QUEUE] for row in rows if row[_TOKEN])
            self._rated.update(row[_QUEUE] for row in rows if not row[_TOKEN])
            raise _RateChanged
        (found, broken), cost = handed_over(worker, rows), time.monotonic() - began
        self._broken += broken
        taken: dict[str, list[Claim]] = {queue: [] for queue in wanted}
        for claim in found:
            taken[claim.queue].append(claim)
        for queue, scan in scans.items():
            dry = len(taken[queue]) < wanted[queue] and len(found) < total
            self._cursors[queue].took(scan, taken[queue], began, cost, dry=dry)
        return found


async def recount(store: Store, limit: int) -> list[Repair]:
    """Count the slots of subqueues that have been full for long; repairs up to `limit` wrong numbers.

    Numbers are counted without the queue's lock first: they are nearly always right. A queue whose lock is not free
    within `LOCK_WAIT` is left for the next cleaning.
    """
    repairs: list[Repair] = []
    for queue in await store.read(_miscounted_queues):
        left = limit - len(repairs)

        async def work(
            connection: Connection, unit: Unit, _: Row, queue: str = queue, left: int = left
        ) -> list[Repair]:
            return await store.play(connection, subqueues.recount(unit, queue, left))

        with suppress(Locked):
            repairs += await store.transact(work, lane="admin", first=(_NOW, ()), begin=locked(store, queue))
    return repairs


def locked(store: Store, queue: str, *, lax: bool = False) -> str:
    """How a transaction begins that holds a divided queue: it waits at most `LOCK_WAIT` for others that do.

    Only claims and recounts take this lock. `lax`: its commit does not wait for the disk, as that of a plain claim.
    """
    number = int.from_bytes(hashlib.sha256(f"{store.options.schema}/{queue}".encode()).digest()[:8], signed=True)
    return (
        f"{BEGIN}; SET LOCAL lock_timeout = {int(LOCK_WAIT * 1000)};"
        f"{' SET LOCAL synchronous_commit = off;' if lax else ''} SELECT pg_advisory_xact_lock({number})"
    )


def _miscounted_queues(now: Instant) -> Exchange[list[str]]:
    wrong: dict[str, object] = {}
    for queue in (yield from subqueues.full_queues(now)):
        wrong[queue] = yield from subqueues.miscounted(queue, now)
    return [queue for queue, found in wrong.items() if found]


def set_aside(unit: Unit, found: Sequence[Broken], *, started: bool) -> Exchange[None]:
    """End claims whose records cannot be read; operators can look at the jobs, workers never claim them again."""
    yield from unit.load(Wanted(frozenset(one.id for one in found)))
    for one in found:
        record = unit.get(one.id)
        if record is not None and record.status is Status.RUNNING and record.token == one.token:
            one_by_one.set_aside(unit, record, one.why, started=started)
    yield from unit.write()


def _from_lines(
    begun: Exchange[subqueues.QueueLines], worker: str, starts: Starts, now: Instant, queue: Queue
) -> Exchange[tuple[list[Claim], list[Broken]] | None]:
    """Claim from the main line and the subqueues of a queue, whose lock is held; None while its log is long."""
    lines = yield from begun
    if lines.behind:
        yield from lines.flush()
        return None
    yield from subqueue_claim.claim(lines, starts, now, fair=queue.fair)
    yield from lines.flush()
    claims, broken = handed_over(worker, lines.rows)
    found = {claim.id: claim for claim in claims}
    return [found[job] for job in lines.order if job in found], broken


def wants(demand: Demand) -> tuple[dict[str, int], int]:
    """Return how many jobs are wanted from each queue, and in all."""
    wanted: dict[str, int] = {}
    for queue, n in demand.queues:
        if n > 0:
            wanted[queue] = wanted.get(queue, 0) + n
    most = sum(wanted.values())
    return wanted, most if demand.total is None else min(most, demand.total)


def handed_over(worker: str, rows: list[Row]) -> tuple[list[Claim], list[Broken]]:
    """Build claims from the rows that were taken; those that cannot be read are the second part.

    Rows of a lease follow each other in the order of its bits; only the first of them carries what all have in common.
    """
    claims: list[Claim] = []
    broken: list[Broken] = []
    lease: Any = None
    pos, curve, cool = 0, OFF, 0
    token = claimed = 0
    queue = ""
    mixed = False
    for row in rows:
        (
            new, token_, claimed_, queue_, settings, id_, kind, payload, attempt, budget, created, due, priority,
            options, key, traits, tenant, past, error, before, rows_,
        ) = row  # fmt: skip
        if new is not None:
            if lease is not None:
                lease.size = pos
            mixed = mixed or queue == queue_
            token, claimed, queue, pos = token_, claimed_, queue_, 0
            lease = Lease(new, token, claimed, worker, queue, 0)
            curve, cool = settings_of(settings)
        pos += 1
        try:
            unique, slot, packed = None, None, PLAIN if options is None else read_options(options)
            if key is not None:
                unique = read_unique(key, traits)
                slot = None if unique is None else unique.slot(kind)
            base, crashes, throttles, metadata = (0, 0, 0, None) if past is None else past_of(past)
        except CorruptRecord as corrupt:
            broken.append(Broken(id_, token, str(corrupt)))
            continue
        # fmt: off
        claim_ = Claim(
            id_, kind, queue, payload.encode(), attempt, base, budget, worker, token, claimed, created, due, priority,
            packed, unique, tenant, crashes, throttles, error, False, metadata, curve, cool, None, None,
            Ref(lease, id_, pos - 1, kind, attempt, priority, slot, throttles, packed.group, subqueue_of(packed)),
            Status.PENDING if before == FRESH else STATUSES[before], before == FRESH,
            None if rows_ is None else step_rows.brought(rows_),
        )
        # fmt: on
        claims.append(claim_)
    if lease is not None:
        lease.size = pos
    if mixed:
        order = {queue: place for place, queue in enumerate(dict.fromkeys(claim.queue for claim in claims))}
        claims.sort(key=lambda claim: (order[claim.queue], claim.priority, claim.scheduled_at, claim.id))
    return claims, broken


def subqueue_of(options: Options) -> str | None:
    """Return the subqueue in which a running job holds a slot."""
    return None if options.limit is None else options.limit.subqueue


def settings_of(settings: list[int] | None) -> tuple[Curve, int]:
    """Return a queue's retry curve and throttle count; most queues have neither."""
    if settings is None:
        return OFF, 0
    on, base, top, count = settings
    return Curve(bool(on), base, top), count


def past_of(past: str | None) -> tuple[int, int, int, dict[str, str] | None]:
    """Return what earlier runs left: base, crashes, throttles, metadata."""
    if past is None:
        return 0, 0, 0, None
    try:
        return _decode_past(past)
    except (msgspec.MsgspecError, ValueError) as error:
        raise CorruptRecord(f"the data that earlier runs of a job left cannot be read: {error}") from error
