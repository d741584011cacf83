"""Moving jobs from place to place at people's request, many at a time.

Every move keeps four things together: the row that says where a job is, its counters, its grip on its unique key and
the wake-up of whoever may take it. Whoever moves a job has locked it first (`locked`); nothing else can touch it until
the transaction ends. The doors have statements of their own.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import msgspec

from stoker.engines.postgres import keys
from stoker.engines.postgres.columns import DONE, NEVER_SETTLED, PENDING, RUNNING, STATUSES
from stoker.engines.postgres.statements import sql
from stoker.engines.postgres.unit_of_work import TOTALS, Unit
from stoker.engines.sql.packing import read_unique
from stoker.engines.sql.steps import Row, Steps
from stoker.model.errors import CorruptRecord, EngineBusy
from stoker.model.ids import JobId
from stoker.model.lifecycle import expiry
from stoker.model.time import Instant
from stoker.model.unique import Unique

MOST_ROUNDS = 100
"""A job that is claimed and put back under our eyes this often is somebody else's for now."""

_READY, _LEASES, _DONE = sql("alter_ready"), sql("alter_leases"), sql("alter_done")
_READ, _KNOWN = sql("alter_read"), sql("known")
_ASK, _CLOSE, _DROP_LEASES = sql("lease_ask"), sql("lease_close"), sql("lease_drop")
_READY_DROP, _READY_PUT, _READY_PLACE = sql("ready_drop"), sql("ready_put"), sql("ready_place")
_DONE_DROP, _DONE_PUT, _DONE_MARK = sql("done_drop"), sql("done_put"), sql("done_mark")
_JOB_PLACE, _PAST_DUE, _PAST_ANEW, _PAST_NOTE = sql("job_place"), sql("past_due"), sql("past_anew"), sql("past_note")
_BLAME = sql("blame")
_LET_GO_OF_ALL = sql("let_go_of_all")
_ERASE_JOB, _ERASE_PAST, _ERASE_FAILURE = sql("erase_job"), sql("erase_past"), sql("erase_failure")
_ERASE_EVENT, _REMEMBER = sql("erase_event"), sql("remember_jobs")


class Record(msgspec.Struct):
    """As much of a job as a move needs; bodies stay where they are, they may be large."""

    id: JobId
    kind: str
    queue: str
    priority: int
    ukey: str | None
    utraits: int | None
    status: int
    token: int
    attempts: int
    due: Instant
    started: Instant | None
    cancel: bool
    settled: int
    successor: JobId | None = None

    @property
    def unique(self) -> Unique | None:
        """Its key, if it has one that can be read."""
        try:
            return read_unique(self.ukey, self.utraits)
        except CorruptRecord:
            return None

    @property
    def slot(self) -> str | None:
        """Where its key is held."""
        unique = self.unique
        return None if unique is None else unique.slot(self.kind)


class Place(NamedTuple):
    """Where a running job stands."""

    lease: int
    bit: int
    size: int


# --- looking ----------------------------------------------------------------------------------------------------


def locked(ids: Iterable[JobId]) -> Steps[tuple[dict[JobId, Record], dict[JobId, Place]]]:
    """Lock jobs wherever they stand, and read them.

    A job can be claimed or put back between two statements. Each round looks anew, and a job that was found is locked
    and stays where it is; the rounds end when every job that exists was found.
    """
    left = set(ids)
    found: list[JobId] = []
    places: dict[JobId, Place] = {}
    for _ in range(MOST_ROUNDS):
        for statement in (_READY, _DONE, _LEASES):
            if not left:
                break
            for job, *place in (yield statement, (sorted(left),)):
                found.append(job)
                left.discard(job)
                if place:
                    places[job] = Place(*place)
        if left:
            left = {job for (job,) in (yield _KNOWN, (sorted(left),))}
        if not left:
            leases = list({place.lease for place in places.values()})
            return {row[0]: Record(*row) for row in (yield _READ, (found, leases))}, places
    raise EngineBusy(f"{len(left)} of the jobs changed hands faster than they could be looked at. Try again")


# --- moving -----------------------------------------------------------------------------------------------------


def leave(gone: Sequence[Record], places: dict[JobId, Place]) -> Steps[None]:
    """Take jobs out of the places where they stand."""
    running = [record.id for record in gone if record.status == RUNNING]
    waiting = [record.id for record in gone if record.status < DONE and record.status != RUNNING]
    finished = [record.id for record in gone if record.status >= DONE]
    if waiting:
        yield _READY_DROP, (waiting,)
    if finished:
        yield _DONE_DROP, (finished,)
    if running:
        leases, masks = _masks([places[job] for job in running])
        yield _CLOSE, (leases, masks)
        yield _DROP_LEASES, (leases,)


def ask(unit: Unit, asked: Sequence[Record], places: dict[JobId, Place], note: str | None) -> Steps[None]:
    """Ask running jobs to stop; the note joins their metadata."""
    if asked:
        yield _ASK, _masks([places[record.id] for record in asked])
        yield _PAST_NOTE, (sorted({record.id for record in asked}), note, unit.now)


def _masks(places: Iterable[Place]) -> tuple[list[int], list[str]]:
    """One bit string for each lease, with a bit for each place: an update takes one of several matches only."""
    bits: dict[int, list[str]] = {}
    for place in places:
        bits.setdefault(place.lease, ["0"] * place.size)[place.bit] = "1"
    return list(bits), ["".join(mask) for mask in bits.values()]


def finish(unit: Unit, ended: Sequence[Record], status: int, error: str) -> Steps[None]:
    """Put jobs that stand nowhere among the finished, with their last error."""
    if not ended:
        return
    queues = yield from unit.queues({record.queue for record in ended})
    rows: list[Row] = []
    for record in ended:
        queue = queues[record.queue]
        expires = expiry(STATUSES[status], unit.now, None, queue.keep_done, queue.keep_dead)
        settled = NEVER_SETTLED if record.status == RUNNING else record.settled
        rows.append(
            (record.id, expires, record.token, record.started, record.attempts, settled, record.cancel, record.queue)
        )
        unit.moved(record.queue, record.kind, record.status, status)
        unit.count(record.queue, record.kind, TOTALS[status])
    yield _DONE_PUT, (unit.now, status, *_columns(rows))
    yield _BLAME, ([record.id for record in ended], unit.now, error)
    yield from let_go(ended)


def line_up(unit: Unit, again: Sequence[Record]) -> Steps[None]:
    """Put jobs that stand nowhere into the line, due now, with a fresh budget."""
    if not again:
        return
    yield _PAST_ANEW, (unit.now, *_columns([(record.id, record.attempts) for record in again]))
    yield from _stand(unit, again, past=True)
    for record in again:
        unit.moved(record.queue, record.kind, record.status, PENDING)


def join(unit: Unit, fresh: Sequence[Record]) -> Steps[None]:
    """Put new jobs into the line, due now."""
    if fresh:
        yield from _stand(unit, fresh, past=False)
    for record in fresh:
        unit.count(record.queue, record.kind, PENDING)


def _stand(unit: Unit, waiting: Sequence[Record], *, past: bool) -> Steps[None]:
    rows = [
        (record.id, record.token, record.attempts, record.priority, record.settled, record.queue) for record in waiting
    ]
    yield _READY_PUT, (unit.now, past, *_columns(rows))
    for record in waiting:
        unit.due(record.queue, unit.now)


def place_anew(placed: Sequence[Record], *, on_time: bool) -> Steps[None]:
    """Give waiting jobs the place their records say; `on_time` when it is another due time."""
    if not placed:
        return
    columns = _columns([(record.id, record.queue, record.priority, record.due) for record in placed])
    yield _READY_PLACE, tuple(columns)
    yield _JOB_PLACE, (*columns[:3], columns[3] if on_time else [])
    if on_time:
        yield _PAST_DUE, (columns[0], columns[3])


def mark(unit: Unit, marked: Sequence[Record], status: int) -> Steps[None]:
    """Take dead jobs off the dead list; they keep the time of their end."""
    if marked:
        yield _DONE_MARK, (status, *_columns([(record.id, record.successor) for record in marked]))
    for record in marked:
        unit.moved(record.queue, record.kind, record.status, status)


def erase(unit: Unit, gone: Sequence[Record]) -> Steps[None]:
    """Remove all that is stored of jobs that stand nowhere."""
    for record in gone:
        unit.count(record.queue, record.kind, record.status, -1)
    yield from let_go(gone)
    if gone:
        yield _REMEMBER, (sorted({record.id for record in gone}), unit.now)
    yield from erase_bodies([record.id for record in gone])


def erase_bodies(ids: list[JobId]) -> Steps[int]:
    """Remove bodies with what belongs to them; answers how many events those were."""
    if not ids:
        return 0
    for statement in (_ERASE_JOB, _ERASE_PAST, _ERASE_FAILURE):
        yield statement, (ids,)
    return len((yield _ERASE_EVENT, (ids,)))


def let_go(ended: Sequence[Record]) -> Steps[None]:
    """Hold no key any more. Where one cannot be read, whatever the job holds is let go of."""
    held = [(record.slot, record.id) for record in ended if record.slot is not None]
    yield from keys.let_go(held)
    if unreadable := [record.id for record in ended if record.ukey is not None and record.slot is None]:
        yield _LET_GO_OF_ALL, (unreadable,)


def storable(said: str) -> str:
    """A person's words as Postgres can keep them: it has no NUL, and text is UTF-8."""
    return said.replace("\0", "\\x00").encode(errors="backslashreplace").decode()


def _columns(rows: Sequence[Row]) -> list[list[object]]:
    return [list(column) for column in zip(*rows, strict=True)]
