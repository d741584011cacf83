"""Groups: what became of members is appended, and closing is a transaction of its own.

A settlement appends one row per group, so settlements of one group do not wait for each other. In it nothing can be
known about the group: two transactions that end the last two members do not see each other. So the engine looks after
the commit, at once after an operator's change and a seal, else merged over a few milliseconds: a group that seems
complete is locked, its rows are added up in a statement that begins when the lock is held, and if it is complete it
closes and stores its callbacks in that transaction. A sweep looks too, so that a process killed between commit and look
costs a second and never a callback; it also adds up old rows.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from operator import itemgetter
from typing import TYPE_CHECKING, Any

import msgspec

from stoker.engines.call_times import timed
from stoker.engines.postgres.errors import Locked
from stoker.engines.postgres.facet import Facet
from stoker.engines.postgres.statements import sql
from stoker.engines.shared.one_by_one import callbacks_of, store_callbacks
from stoker.engines.shared.steps import wake_callers, wanted_by_signals
from stoker.engines.sql import damage
from stoker.engines.sql.exchanges import Exchange, Row
from stoker.engines.sql.one_by_one import decided
from stoker.model.errors import CorruptRecord, EngineError
from stoker.model.groups import (
    ABANDONED_AFTER,
    MOST_KNOWN,
    Closing,
    Group,
    GroupChange,
    Swept,
    closing_signals,
    ignore,
    kept_until,
)
from stoker.model.humanize import count
from stoker.model.ids import JobId
from stoker.model.job import Draft, group_text
from stoker.model.lifecycle import HELD, KEEP_DONE
from stoker.model.query import LATEST, Place
from stoker.model.time import SECOND, Instant, Span

if TYPE_CHECKING:
    from stoker.engines.postgres.store import Store
    from stoker.engines.postgres.unit_of_work import Unit

log = logging.getLogger("stoker.engines.postgres")

MERGED = 0.02
"""Seconds after a commit for which its groups wait for those of other commits."""

FOLDED_AFTER: Span = SECOND
"""How old a change is before a sweep adds it to its group."""

LOCK_WAIT = 0.2
"""Seconds a closing waits for the key of a callback that another open transaction has taken."""

EXPIRED_AT_ONCE = 50
"""Groups past their retention whose jobs one transaction looks for: up to 1,000 members each."""

_GROUPS, _LOCK, _TAKE_CHANGES = sql("groups"), sql("group_lock"), sql("group_take_changes")
_WRITE, _KNOWN, _SEAL = sql("group_write"), sql("group_known"), sql("group_seal")
_COMPLETE, _TO_SWEEP = sql("groups_complete"), sql("groups_to_sweep")
_EXPIRED, _EXPIRE, _PUT_OFF = sql("groups_expired"), sql("groups_expire"), sql("groups_put_off")
_OPEN, _CLOSED = sql("groups_open"), sql("groups_closed")
_KEPT, _LET_GO, _DROP_CHANGES = sql("group_kept"), sql("group_let_go"), sql("group_changes_drop")

LAST = b"\xff" * 16
"""Not before any id."""

_WIDTH = 14
"""Columns of a group without its members; those and a change stand behind them."""
_CALLBACKS = 12


class Groups(Facet):
    """Jobs that are counted together."""

    @timed(write=False, name="get_groups")
    async def get(self, ids: Sequence[JobId]) -> list[Group | None]:
        found = _with_changes(await self._store.once("admin", _GROUPS, (list(ids),)) if ids else [])
        return [found.get(group) for group in ids]

    @timed(write=False, name="find_groups")
    async def find(self, *, closed: bool, behind: Place | None = None, limit: int = 100) -> list[Group]:
        at, last = behind or (LATEST, LAST)
        rows = await self._store.once("admin", _CLOSED if closed else _OPEN, (at, last, limit))
        return [msgspec.structs.replace(one, members=()) for one in _with_changes(rows).values()]

    @timed(write=True)
    async def seal(self, group: JobId, *, abandoned: bool = False) -> bool:
        if not await self._store.once("write", _SEAL, (group, abandoned)):
            return False
        self._store.group_closer.add((group,))
        await self._store.group_closer.run_now()
        return True

    def watch_closings(self, emit: Callable[[Closing], None]) -> None:
        self._store.group_closer.emit_closing = emit

    @timed(write=True, name="sweep_groups")
    async def sweep(self, limit: int = 1_000) -> Swept:
        store = self._store
        await store.group_closer.wait_idle()
        found: dict[str, set[JobId]] = {}
        for group, what in await store.once("admin", _TO_SWEEP, (store.now(), limit, FOLDED_AFTER, ABANDONED_AFTER)):
            found.setdefault(what, set()).add(group)
        swept = Swept()
        closed = await store.group_closer.close_complete(sorted(found.get("changed", ())))
        if old := sorted(found.get("old", set()) | found.get("unsealed", set())):
            swept = await store.group_closer.fold(old)
            await store.once("admin", _DROP_CHANGES, (old,))
        removed = 0
        expired = sorted(found.get("expired", ()))
        for start in range(0, len(expired), EXPIRED_AT_ONCE):
            part = partial(_expire, groups=expired[start : start + EXPIRED_AT_ONCE])
            removed += await store.write(part, lane="admin", lax=True)
        return Swept(abandoned=swept.abandoned, closed=swept.closed + closed, removed=removed)


def _with_changes(rows: Iterable[Row]) -> dict[JobId, Group]:
    """Groups by id, each with the changes that stand in a row of their own."""
    found: dict[JobId, Group] = {}
    for row in rows:
        known, total, done, dead, canceled, queue, members, at = row[_WIDTH:]
        group = found.get(row[0]) or msgspec.structs.replace(_read(row), members=tuple(known))
        if total is not None:
            group = group.counted(GroupChange(total, done, dead, canceled, members or [], queue), at)
        found[group.id] = group
    return found


def _read(row: Row) -> Group:
    """Make a group of its columns, without its members; callbacks that cannot be read count as none."""
    id_, created, touched, closed, expires, *more = row[:_WIDTH]
    total, done, dead, canceled, sealed, abandoned, queue, stored, placed = more
    callbacks: dict[str, Any] = {}
    with suppress(CorruptRecord):
        callbacks = damage.callbacks(stored)
    return Group(
        id=id_,
        created_at=created,
        touched_at=touched,
        closed_at=closed,
        expires_at=expires,
        total=total,
        done=done,
        dead=dead,
        canceled=canceled,
        sealed=sealed,
        abandoned=abandoned,
        queue=queue,
        placed=placed,
        **callbacks,
    )


# --- closing ----------------------------------------------------------------------------------------------------


class GroupCloser:
    """Closes complete groups soon after the commits of this engine that changed them. Lives on the engine's loop.

    `inserted` is called with the drafts that a closing stored, `emit_closing` with each group that closed.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._groups: set[JobId] = set()
        self._task: asyncio.Task[None] | None = None
        self.inserted: Callable[[Sequence[Draft]], None] = lambda _: None
        self.emit_closing: Callable[[Closing], None] = ignore

    def add(self, groups: Iterable[JobId]) -> None:
        """Close those of these that are complete, soon, together with those of other commits."""
        self._groups.update(groups)
        if self._groups and (self._task is None or self._task.done()):
            self._task = asyncio.get_running_loop().create_task(self._run(), name="stoker-groups")

    async def _run(self) -> None:
        while self._groups:
            await asyncio.sleep(MERGED)
            await self._close_added()

    async def run_now(self) -> None:
        """Do so for what was added, without waiting for other commits."""
        if self._groups:
            await self._close_added()

    async def _close_added(self) -> None:
        groups, self._groups = sorted(self._groups), set()
        try:
            await self.close_complete(groups)
        except EngineError as error:
            log.warning("the next sweep looks at %s instead: %s", count(len(groups), "group"), error)

    async def wait_idle(self) -> None:
        """Wait until everything that was added has been looked at."""
        if self._task is not None and not self._task.done():
            await asyncio.wait([self._task])

    async def close_complete(self, groups: Sequence[JobId]) -> int:
        """Close those of the groups that are complete; returns how many."""
        if not groups:
            return 0
        complete = [group for (group,) in await self._store.once("write", _COMPLETE, (list(groups),))]
        return (await self.fold(complete)).closed if complete else 0

    async def fold(self, groups: Sequence[JobId]) -> Swept:
        """Add up the changes of groups, abandon those that stayed unsealed and close those that are complete.

        A group whose callback waits for another transaction's key stays open until a later sweep.
        """
        try:
            swept, closings = await self._store.write(
                lambda unit: _fold(unit, groups), lane="keyed", lock_wait=LOCK_WAIT
            )
        except Locked:
            if len(groups) == 1:
                return Swept()
            parts = [await self.fold([group]) for group in groups]
            return Swept(abandoned=sum(one.abandoned for one in parts), closed=sum(one.closed for one in parts))
        self.inserted([draft for closing in closings for draft in closing.stored])
        for closing in closings:
            self.emit_closing(closing)
        return swept

    async def close(self) -> None:
        """Look once more, before the engine closes."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.wait([task])
        if self._groups:
            await self._close_added()


def _fold(unit: Unit, groups: Sequence[JobId]) -> Exchange[tuple[Swept, list[Closing]]]:
    """Do so; returns also the groups that closed."""
    rows: list[Row] = yield _LOCK, (sorted(groups),)
    locked = {row[0]: _read(row) for row in rows}
    counted = (yield from _counted(locked)) if locked else {}
    yield from unit.load_queues({group.queue for group, _ in counted.values() if group.queue is not None})
    closed: list[Group] = []
    abandoned = late = 0
    for id_, (group, latest) in counted.items():
        if not group.sealed and group.touched_at < unit.now - ABANDONED_AFTER:
            group = group.seal(abandoned=True)
            abandoned += 1
        if group.complete:
            # A member may have ended while this transaction waited for the lock.
            queue = None if group.queue is None else unit.queue(group.queue)
            group = group.close(max(unit.now, latest), queue, KEEP_DONE)
            closed.append(group)
            late += locked[id_].sealed
        if group != locked[id_]:
            yield _WRITE, _row(group)
    _warn(closed, {row[0]: row[_CALLBACKS] for row in rows})
    if signals := closing_signals(closed):
        yield from decided(unit, lambda: unit.load(wanted_by_signals(signals)), lambda: wake_callers(unit, closed))
    callbacks = callbacks_of(closed)
    if callbacks:
        closings = yield from decided(
            unit, lambda: unit.load_drafts(callbacks, joins=False), lambda: store_callbacks(unit, closed)
        )
    else:
        closings = [Closing(group) for group in closed]
    return Swept(abandoned=abandoned, closed=late), closings


def _warn(closed: Iterable[Group], callbacks: Mapping[JobId, str]) -> None:
    """Log which groups close without the callbacks that they were made with."""
    for group in closed:
        try:
            damage.callbacks(callbacks[group.id])
        except CorruptRecord as error:
            log.warning("%s", damage.uncalled(group.id, error))


def _counted(locked: dict[JobId, Group]) -> Exchange[dict[JobId, tuple[Group, Instant]]]:
    """Take the changes of locked groups; returns the groups after them, and when the last of these happened."""
    changes = {id_: GroupChange() for id_ in locked}
    touched = {id_: group.touched_at for id_, group in locked.items()}
    latest = dict(touched)
    rows: list[Row] = yield _TAKE_CHANGES, (list(locked),)
    for id_, _, total, done, dead, canceled, queue, members, at in sorted(rows, key=itemgetter(1)):
        changes[id_].add(GroupChange(total, done, dead, canceled, list(members or ()), queue))
        latest[id_] = max(latest[id_], at)
        if members:
            touched[id_] = max(touched[id_], at)
    for id_, change in changes.items():
        if change.members:
            yield _KNOWN, (id_, change.members, MOST_KNOWN)
    return {id_: (group.counted(changes[id_], touched[id_]), latest[id_]) for id_, group in locked.items()}


def _row(group: Group) -> Row:
    return (
        group.id, group.touched_at, group.closed_at, group.expires_at, group.total, group.done, group.dead,
        group.canceled, group.sealed, group.abandoned, group.queue,
    )  # fmt: skip


def _expire(unit: Unit, groups: Sequence[JobId]) -> Exchange[int]:
    """Remove groups past their retention, but put that off for those with a job that is kept; returns how many went."""
    rows: list[Row] = yield _EXPIRED, (list(groups), unit.now)
    found = [_read(row) for row in rows]
    callbacks = {group.id: {draft.job_id for draft in group.callbacks} for group in found}
    jobs = {row[0]: {*row[_WIDTH], *callbacks[row[0]]} for row in rows}
    if calling := [group for group in found if group.calls_back]:
        waiting = {
            job for job, expires in (yield _KEPT, (sorted(set().union(*callbacks.values())),)) if expires is None
        }
        for group in calling:
            if waiting.isdisjoint(callbacks[group.id]):
                yield _LET_GO, (group_text(group.id), group.kept, HELD)
    stored: list[Row] = yield _KEPT, (sorted(set().union(*jobs.values())),)
    expiries: dict[JobId, Instant | None] = dict(stored)
    until = {id_: kept_until((expiries[job] for job in of & expiries.keys()), unit.now) for id_, of in jobs.items()}
    put_off = {id_: at for id_, at in until.items() if at is not None}
    if put_off:
        yield _PUT_OFF, (list(put_off), list(put_off.values()))
    return len((yield _EXPIRE, ([id_ for id_ in until if id_ not in put_off],)))
