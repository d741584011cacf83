"""Groups as an app's user sees them: make one, add jobs, watch it, wait for it, cancel it.

`await jobs.group([...])` stores a group whole. `async with jobs.group() as group:` takes jobs as they come and seals
the group when the block ends; a block that raises abandons it.
"""

from __future__ import annotations

import asyncio
import time
import warnings
from collections.abc import Generator, Iterable, Iterator
from itertools import chain, islice
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from stoker import views
from stoker.block import joined
from stoker.codec.error_text import text_of
from stoker.engines.base import Transaction
from stoker.engines.shared.job_end_waiters import FIRST_PAUSE, LAST_PAUSE
from stoker.model import ids
from stoker.model.errors import GroupFailed, InvalidInput, NotFound, StokerError
from stoker.model.groups import Group, into_group
from stoker.model.ids import JobId
from stoker.model.job import ACTIVE, FINISHED, LARGEST_BATCH, Draft, Job, Status, portions
from stoker.model.query import LONGEST_REASON, Cancel, Query, Selection
from stoker.model.time import Seconds, span
from stoker.sync import in_sync
from stoker.views import Progress, Receipt

if TYPE_CHECKING:
    from stoker.app import Stoker

MOST_AWAITED = 50
"""Up to so many members that have not ended a waiter is woken by their ends; while they are more it looks again."""

LONGEST_LOOK = 5.0
"""Seconds after which a waiter looks at the group again: members may join it."""


class GroupHandle:
    """One group, by id; the numbers are in the store. `new`: the group as a block stores it with its first members."""

    __slots__ = ("_app", "_id", "_new")

    def __init__(self, app: Stoker, group: JobId, new: Group | None = None) -> None:
        self._app = app
        self._id = group
        self._new = new

    @property
    def id(self) -> str:
        """The group's id as text."""
        return ids.text(self._id)

    def __repr__(self) -> str:
        return f"<GroupHandle {self.id}>"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, GroupHandle) and self._id == other._id

    def __hash__(self) -> int:
        return hash(self._id)

    async def add(self, *drafts: Draft | Iterable[Draft]) -> list[Receipt]:
        """Store more members; receipts in their order. Up to 1,000 are one atomic step.

        Raises `GroupClosed` when all members are finished and the group was sealed, and `NotFound` when it is not in
        this store; then nothing of that step is stored.
        """
        engine = await self._app.engine()
        waiting = _drafts(drafts)
        receipts: list[Receipt] = []
        while members := into_group(self._id, islice(waiting, LARGEST_BATCH)):
            for portion in portions(members, engine.most_bytes):
                stored = await self._app.insert_drafts(members[portion.start : portion.stop], None, self._new)
                receipts += views.receipts(stored)
        return receipts

    async def progress(self) -> Progress:
        """How many members there are, and what became of them."""
        return views.progress(await self._find())

    async def wait(self, timeout: Seconds | None = None) -> Progress:
        """Wait until the group is closed, and return its numbers.

        Raises `GroupFailed` unless every member is done, `NotFound` when the group is not, or no longer, kept, and
        `TimeoutError` when it is still open; its jobs go on.
        """
        until = None if timeout is None else time.monotonic() + span(timeout, "timeout") / 1e6
        pause = FIRST_PAUSE
        while (group := await self._find()).closed_at is None:
            left = LONGEST_LOOK if until is None else until - time.monotonic()
            if left <= 0:
                raise TimeoutError(f"group {self.id} is not closed in time ({_counts(group)}); its jobs go on")
            if await self._ends(group, min(left, LONGEST_LOOK)):
                pause = FIRST_PAUSE  # the last members have ended: it is closed now, or in a moment
                continue
            await asyncio.sleep(min(pause, left))
            pause = min(pause * 2, LAST_PAUSE)
        if not group.succeeded:
            raise await self._failure(group)
        return views.progress(group)

    async def cancel(self, *, reason: str = "canceled with its group") -> int:
        """Cancel the members that wait and ask those that run to stop; returns how many that were.

        Up to 1,000 are one atomic step.
        """
        await self._find()
        engine = await self._app.engine()
        change = Cancel(text_of(reason, LONGEST_REASON))
        query = Query(group=self._id, statuses=ACTIVE, limit=LARGEST_BATCH)
        canceled = 0
        while True:
            page = await engine.operator.find(query)
            tally = await engine.operator.alter(Selection(tuple(job.id for job in page.jobs)), change)
            await self._app.emit_altered(change, tally)
            canceled += tally.changed + tally.cancel_requested
            if page.cursor is None:
                return canceled
            query = replace(query, cursor=page.cursor)

    # --- without a loop -----------------------------------------------------------------------------------------

    add_sync = in_sync(add)
    progress_sync = in_sync(progress)
    wait_sync = in_sync(wait)
    cancel_sync = in_sync(cancel)

    # --- the store ----------------------------------------------------------------------------------------------

    async def _find(self) -> Group:
        engine = await self._app.engine()
        [group] = await engine.groups.get([self._id])
        group = group or self._new
        if group is None:
            raise NotFound.group(self._id)
        return group

    async def _ends(self, group: Group, timeout: float) -> bool:
        """Sleep until the last members have ended; returns at once, with False, while they are many or not known."""
        if not group.sealed or not 0 < group.waiting <= MOST_AWAITED or not group.members:
            return False
        active = [job.id for job in await self._members(group) if job.status not in FINISHED]
        if not active:
            return False
        engine = await self._app.engine()
        return any(await asyncio.gather(*(engine.jobs.ended(job, timeout) for job in active)))

    async def _members(self, group: Group) -> list[Job]:
        """The records of its members, as far as they are kept; a job that a newer draft took away is none."""
        engine = await self._app.engine()
        found = await engine.operator.get(group.members)
        return [job for job in found if job is not None and job.options.group == self._id]

    async def _failure(self, group: Group) -> GroupFailed:
        members = sorted(await self._members(group), key=lambda job: job.finished_at or 0)
        dead = [job for job in members if job.status in (Status.DEAD, Status.DISCARDED)]
        first = next(iter(dead or [job for job in members if job.status is Status.CANCELED]), None)
        if first is None:
            return GroupFailed(self.id, _counts(group))
        return GroupFailed(self.id, _counts(group), ids.text(first.id), first.kind, first.last_error)


class NewGroup:
    """What `jobs.group(...)` returns: a group that is stored by `await`, or for a block by `async with` or `with`."""

    __slots__ = ("_app", "_drafts", "_group", "_handle", "_tx", "_used")

    def __init__(self, app: Stoker, drafts: Iterable[Draft] | None, tx: Transaction | None, group: Group) -> None:
        self._used = False
        self._app = app
        self._drafts = drafts
        self._tx = tx
        self._group = group
        self._handle = GroupHandle(app, group.id, group)

    def _use(self) -> None:
        if self._used:
            raise StokerError("this group is stored already; call jobs.group(...) for each group")
        self._used = True

    def __del__(self) -> None:
        if not self._used:
            warnings.warn("a group was not stored: write `await jobs.group(...)`", RuntimeWarning, stacklevel=2)

    # --- whole --------------------------------------------------------------------------------------------------

    def __await__(self) -> Generator[Any, None, GroupHandle]:
        self._use()
        return self._store().__await__()

    async def _store(self) -> GroupHandle:
        if self._drafts is None:
            raise InvalidInput("group", None, "needs its drafts, or a block: async with jobs.group(...) as group")
        engine = await self._app.engine()
        members = into_group(self._group.id, _drafts((self._drafts,)))
        first, *rest = list(portions(members, engine.most_bytes)) or [range(0)]
        group = self._group if rest and not self._joins else self._group.seal(abandoned=False)
        await self._app.insert_drafts(members[: first.stop], self._tx, group)
        try:
            for portion in rest:
                await self._app.insert_drafts(members[portion.start : portion.stop], self._tx)
        except BaseException:
            await self._end(abandoned=True)
            raise
        if not group.sealed:
            await self._end(abandoned=False)
        return GroupHandle(self._app, group.id)

    @property
    def _joins(self) -> bool:
        """Is it stored in a transaction that the caller ends?"""
        return self._tx is not None or joined(self._app, None) is not None

    async def _end(self, *, abandoned: bool) -> None:
        """Seal the group; one that was stored with no member yet is stored now, to be closed at once."""
        engine = await self._app.engine()
        if not self._joins and not await engine.groups.seal(self._group.id, abandoned=abandoned):
            await self._app.insert_drafts([], None, self._group.seal(abandoned=abandoned))

    # --- a block ------------------------------------------------------------------------------------------------

    async def __aenter__(self) -> GroupHandle:
        self._use()
        if self._joins:
            raise InvalidInput("tx", self._tx, "cannot hold a block; write `await jobs.group([...], tx=tx)`")
        if self._drafts is not None:
            try:
                await self._handle.add(self._drafts)
            except BaseException:
                await self._end(abandoned=True)
                raise
        return self._handle

    async def __aexit__(self, error: type[BaseException] | None, *rest: object) -> None:
        await self._end(abandoned=error is not None)

    def __enter__(self) -> GroupHandle:
        return self._app.run(self.__aenter__(), instead="`async with jobs.group(...)`")

    def __exit__(self, error: type[BaseException] | None, *rest: object) -> None:
        self._app.run(self.__aexit__(error, *rest), instead="`async with jobs.group(...)`")


def _drafts(given: Iterable[Draft | Iterable[Draft]]) -> Iterator[Draft]:
    """Drafts one by one, however they were given."""
    return chain.from_iterable([one] if isinstance(one, Draft) else _iterated(one) for one in given)


def _iterated(drafts: Iterable[Draft]) -> Iterable[Draft]:
    if not isinstance(drafts, Iterable):
        raise InvalidInput("group", drafts, "must be made of drafts, such as task.draft(...)")
    return drafts


def _counts(group: Group) -> str:
    waiting = f", {group.waiting} not finished" if group.waiting else ""
    abandoned = ", abandoned before it was sealed" if group.abandoned else ""
    numbers = f"{group.done} done, {group.dead} dead, {group.canceled} canceled"
    return f"of {group.total} members {numbers}{waiting}{abandoned}"
