"""Groups: counted in the transaction that changes their members, and closed in the same one.

A group's numbers are one small row, changed once per transaction however many of its members the transaction ends. Its
callbacks and the ids of its members are in another table, read when it closes and when members join.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

import msgspec

from stoker.engines.call_times import timed
from stoker.engines.shared import one_by_one
from stoker.engines.shared.steps import wake_callers, wanted_by_signals
from stoker.engines.shared.unit_of_work import Wanted
from stoker.engines.sql import damage
from stoker.engines.sql.exchanges import Exchange, Row
from stoker.engines.sqlite.facet import Facet
from stoker.engines.sqlite.statements import sql
from stoker.model.errors import CorruptRecord
from stoker.model.groups import (
    ABANDONED_AFTER,
    Closing,
    Group,
    GroupChange,
    Swept,
    closing_signals,
    is_placed,
    kept_until,
    known_members,
    pack_callbacks,
    pack_members,
    unpack_members,
)
from stoker.model.ids import JobId
from stoker.model.job import Draft, group_text
from stoker.model.lifecycle import HELD, KEEP_DONE
from stoker.model.query import LAST_ID, LATEST, Place
from stoker.model.time import Instant

if TYPE_CHECKING:
    from stoker.engines.sqlite.unit_of_work import Unit

log = logging.getLogger("stoker.engines.sqlite")

MOST_LOOKED = 10_000
"""About so many members and callbacks does one sweep look for, for it holds the write lock; the next one goes on."""

_GROUP = sql("group")
_OPEN, _CLOSED = sql("groups_open"), sql("groups_closed")
_MAKE, _PLACE = sql("group_make"), sql("group_place")
_JOBS_MAKE = sql("group_jobs_make")
_JOBS = sql("group_jobs")
_MEMBERS = sql("group_members")
_COUNT = sql("group_count")
_SEAL = sql("group_seal")
_CLOSE = sql("group_close")
_UNSEALED = sql("groups_unsealed")
_EXPIRED = sql("groups_expired")
_KEPT = sql("group_kept")
_LET_GO = sql("group_let_go")
_ERASE = (sql("delete_group"), sql("delete_group_jobs"))
_QUEUE_NAME = sql("queue_by_qid")


class Groups(Facet):
    """Jobs that are counted together."""

    @timed(write=False, name="get_groups")
    async def get(self, ids: Sequence[JobId]) -> list[Group | None]:
        return await self._store.read(lambda _: groups(ids))

    @timed(write=False, name="find_groups")
    async def find(self, *, closed: bool, behind: Place | None = None, limit: int = 100) -> list[Group]:
        return await self._store.read(lambda _: page(closed, behind or (LATEST, LAST_ID), limit))

    @timed(write=True)
    async def seal(self, group: JobId, *, abandoned: bool = False) -> bool:
        return await self._store.write(lambda unit: seal(unit, group, abandoned=abandoned), strict=True)

    def watch_closings(self, emit: Callable[[Closing], None]) -> None:
        self._store.emit_closing = emit

    @timed(write=True, name="sweep_groups")
    async def sweep(self, limit: int = 1_000) -> Swept:
        await self._store.emit_joined()
        if not await self._store.read(to_sweep):
            return Swept()
        return await self._store.write(lambda unit: sweep(unit, limit), strict=True)


def groups(ids: Sequence[JobId], *, members: bool = True) -> Exchange[list[Group | None]]:
    """Read whole groups, in the order of their ids; without `members` all but these."""
    found: list[Group | None] = []
    for group in ids:
        stored = yield from find(group)
        if stored is not None:
            callbacks, joined = yield from _jobs(group)
            with suppress(CorruptRecord):
                stored = msgspec.structs.replace(stored, **damage.callbacks(callbacks))
            if members:
                stored = msgspec.structs.replace(stored, members=unpack_members(joined))
        found.append(stored)
    return found


def page(closed: bool, behind: Place, limit: int) -> Exchange[list[Group]]:
    """Read groups behind a place, the latest first, without their members."""
    rows: list[Row] = yield (_CLOSED if closed else _OPEN), (*behind, limit)
    found = yield from groups([group for (group,) in rows], members=False)
    return [group for group in found if group is not None]


def find(group: JobId) -> Exchange[Group | None]:
    """Read a group without its callbacks and members."""
    rows = yield _GROUP, (group,)
    return (yield from _read(rows[0])) if rows else None


def _read(row: Row) -> Exchange[Group]:
    id_, sealed, abandoned, total, done, dead, canceled, qid, created, touched, closed, expires, placed = row
    queue = None
    if qid is not None:
        [named] = yield _QUEUE_NAME, (qid,)
        queue = named[1]
    return Group(
        id=id_,
        sealed=bool(sealed),
        abandoned=bool(abandoned),
        total=total,
        done=done,
        dead=dead,
        canceled=canceled,
        queue=queue,
        placed=placed,
        created_at=created,
        touched_at=touched,
        closed_at=closed,
        expires_at=expires,
    )


def seal(unit: Unit, group: JobId, *, abandoned: bool) -> Exchange[bool]:
    """Seal a group, and close it if its members are finished."""
    if not (yield _SEAL, (group, abandoned)):
        return False
    unit.count_group(group, GroupChange())
    yield from unit.write()
    return True


def write(
    unit: Unit, made: Sequence[Group], placed: Mapping[JobId, int], changes: Mapping[JobId, GroupChange]
) -> Exchange[None]:
    """Insert new groups and count what became of members; what is complete closes and stores its callbacks."""
    for id_, n in placed.items():
        yield _PLACE, (id_, n)
    for group in made:
        yield _MAKE, (group.id, group.sealed, group.abandoned, group.created_at, group.placed)
        yield _JOBS_MAKE, (group.id, pack_callbacks(group), b"")
    closed: list[Group] = []
    for id_, change in changes.items():
        if (group_ := (yield from _count(unit, id_, change))) is not None:
            closed.append(group_)
    callbacks, signals = one_by_one.callbacks_of(closed), closing_signals(closed)
    if callbacks:
        yield from unit.load(one_by_one.wanted_by_drafts(callbacks))
    unit.closings += one_by_one.store_callbacks(unit, closed)
    if signals:
        yield from unit.load(wanted_by_signals(signals))
        wake_callers(unit, closed)
    if callbacks or signals:
        yield from unit.write()


def _count(unit: Unit, group: JobId, change: GroupChange) -> Exchange[Group | None]:
    """Count what became of a group's members; returns the group if that closes it."""
    qid = None if change.queue is None else (yield from unit.qid(change.queue))
    touched = unit.now if change.members else None
    rows = yield _COUNT, (group, change.total, change.done, change.dead, change.canceled, qid, touched)
    if not rows:
        return None
    counted = yield from _read(rows[0])
    if change.members:
        _, before = yield from _jobs(group)
        members = known_members(unpack_members(before), counted.total - change.total, change.members)
        yield _MEMBERS, (group, pack_members(members))
    if not counted.complete:
        return None
    callbacks, _ = yield from _jobs(group)
    try:
        counted = msgspec.structs.replace(counted, **damage.callbacks(callbacks))
    except CorruptRecord as error:
        log.warning("%s", damage.uncalled(group, error))
    queue = None if rows[0][7] is None else (yield from unit.queue_of(rows[0][7])).queue
    closed = counted.close(unit.now, queue, KEEP_DONE)
    yield _CLOSE, (group, closed.closed_at, closed.expires_at)
    return closed


def _jobs(group: JobId) -> Exchange[tuple[bytes | None, bytes]]:
    """Return the callbacks and the members of a group; without its row none."""
    rows: list[Row] = yield _JOBS, (group,)
    return (rows[0][0], rows[0][1]) if rows else (None, b"")


def admit(unit: Unit, drafts: Sequence[Draft], group: Group | None) -> Exchange[bool]:
    """Refuse drafts of groups that are closed or missing; a new group is inserted with the next write.

    False, with nothing to write: the drafts were placed before.
    """
    wanted = one_by_one.wanted_by_drafts(drafts, group)
    yield from unit.load(Wanted(groups=wanted.groups))
    if group is not None and is_placed(unit.group(group.id), group):
        return False
    one_by_one.admit(unit, drafts, group)
    return True


def closed_by(closings: Iterable[Closing]) -> Exchange[list[Closing]]:
    """Return those of the closings that were committed."""
    found: list[Closing] = []
    for closing in closings:
        stored = yield from find(closing.group.id)
        if stored is not None and stored.closed_at == closing.group.closed_at:
            found.append(closing)
    return found


# --- sweeping ---------------------------------------------------------------------------------------------------


def to_sweep(now: Instant) -> Exchange[bool]:
    """Return whether a sweep would find anything: a read, so that idle workers write nothing."""
    unsealed = yield _UNSEALED, (now - ABANDONED_AFTER, 1)
    return bool(unsealed or (yield _EXPIRED, (now, 1)))


def sweep(unit: Unit, limit: int) -> Exchange[Swept]:
    """Abandon groups that stayed unsealed, and delete those past their retention that no job of theirs keeps."""
    late = yield _UNSEALED, (unit.now - ABANDONED_AFTER, limit)
    for (group,) in late:
        yield from seal(unit, group, abandoned=True)
    removed = looked = 0
    for (group,) in (yield _EXPIRED, (unit.now, limit)):
        [found] = yield from groups((group,))
        assert found is not None
        callbacks = [draft.job_id for draft in found.callbacks]
        jobs = (*found.members, *callbacks)
        if found.calls_back:
            ended: list[Row] = yield _KEPT, (pack_members(callbacks),)
            if all(expires is not None for (expires,) in ended):
                yield _LET_GO, (group_text(group), found.kept, HELD)
        expiries: list[Row] = yield _KEPT, (pack_members(jobs),)
        until = kept_until((expires for (expires,) in expiries), unit.now)
        if until is None:
            for statement in _ERASE:
                yield statement, (group,)
            removed += 1
        else:
            yield _CLOSE, (group, found.closed_at, until)
        looked += len(jobs)
        if looked >= MOST_LOOKED:
            break
    return Swept(abandoned=len(late), removed=removed)
