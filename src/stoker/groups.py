"""Groups as an app's user sees them: make one, add jobs, watch it, wait for it, cancel it.

`await jobs.group([...])` stores a group whole. `async with jobs.group() as group:` takes jobs as they come and seals
the group when the block ends; a block that raises abandons it.
"""

from __future__ import annotations

import asyncio
import warnings
from collections.abc import AsyncGenerator, Coroutine, Generator, Iterable, Iterator, Sequence
from itertools import chain, islice
from typing import TYPE_CHECKING, Any, Literal, Self, TypeAlias

from msgspec.structs import replace

from stoker import views
from stoker.codec.error_text import text_of
from stoker.codec.signature import display
from stoker.engines.base import Engine, Transaction
from stoker.engines.shared.job_end_waiters import FIRST_PAUSE, LAST_PAUSE
from stoker.engines.sql.user_handles.handles import drive
from stoker.handle import JobHandle
from stoker.joining import joined
from stoker.model import ids
from stoker.model.errors import GroupFailed, InvalidInput, NotFound, StokerError
from stoker.model.groups import Group, in_order, into_group
from stoker.model.humanize import count
from stoker.model.ids import JobId
from stoker.model.job import ACTIVE, FINISHED, LARGEST_BATCH, Draft, Job, MarkedDraft, Status, links, portions
from stoker.model.query import LARGEST_PAGE, LONGEST_REASON, Cancel, Query, Selection
from stoker.model.time import Seconds
from stoker.patience import Patience
from stoker.sync import in_sync
from stoker.views import Progress, Receipt

if TYPE_CHECKING:
    from stoker.app import Stoker

MOST_AWAITED = 50
"""Below this many unfinished members `wait()` is woken by their ends; above it polls."""

Callbacks: TypeAlias = Sequence[tuple[MarkedDraft, bool]]
"""Callbacks with `RESULTS`, and whether members may have failed when one is stored."""

_FAILED = frozenset({Status.DEAD, Status.DISCARDED, Status.CANCELED})

LONGEST_LOOK = 5.0
"""Seconds after which a waiter looks at the group again: members may join it."""


async def members_of(engine: Engine, group: Group) -> list[tuple[JobId, Job | None]]:
    """The members of a group in their order, each with its record, or None if it is no longer kept or a member."""
    if group.members or not group.total:
        members: Sequence[JobId] = group.members
        found = {job.id: job for job in await engine.operator.get(members) if job is not None}
    else:
        found = {job.id: job for job in await _walk(engine, group.id)}
        members = [*found]
    ordered = in_order(members, found)
    return [
        (member, job if (job := found.get(member)) and job.options.group == group.id else None) for member in ordered
    ]


async def _walk(engine: Engine, group: JobId) -> list[Job]:
    """The members of a large group, whose ids are not kept, in the order in which their drafts were made."""
    jobs: list[Job] = []
    query = Query(group=group, order="oldest", limit=LARGEST_PAGE)
    while True:
        page = await engine.operator.find(query)
        jobs += page.jobs
        if page.cursor is None:
            return jobs
        query = replace(query, cursor=page.cursor)


async def results_of(engine: Engine, group: Group) -> list[Job | None]:
    """The records of a closed group's members in their order; None for one that was deleted or canceled away.

    Raises `NotFound` if members that were done are no longer kept: their results are missing.
    """
    found = [job for _, job in await members_of(engine, group)]
    done = sum(job is not None and job.status is Status.DONE for job in found)
    if done < group.done:
        raise NotFound(
            f"group {ids.text(group.id)} has {count(group.done, 'done member')}, and the results of "
            f"{group.done - done} are no longer kept: deleted, or their retention (keep=) has passed"
        )
    return found


class GroupHandle:
    """One group, by id; the numbers are in the store. `new`: the group as a block stores it with its first members.
    `tx=False`: its block stores members at once.

    A running job has it from `current().group`: a member cannot wait for its group, a callback reads what failed.
    """

    __slots__ = ("_app", "_callbacks", "_id", "_inside", "_new", "_tx")

    def __init__(
        self,
        app: Stoker,
        group: JobId,
        new: Group | None = None,
        callbacks: Callbacks = (),
        tx: Literal[False] | None = None,
    ) -> None:
        self._app = app
        self._id = group
        self._new = new
        self._tx = tx
        self._callbacks = callbacks
        self._inside: Literal["member", "callback"] | None = None

    def seen_by(self, job: Literal["member", "callback"]) -> Self:
        """The handle as a running job of the group has it."""
        self._inside = job
        return self

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
        return await self._add(self._new or await self._find(), drafts)

    def add_sync(self, *drafts: Draft | Iterable[Draft]) -> list[Receipt]:
        """`add` for code without a loop."""
        if joined(self._app, self._tx) is None:
            return self._app.run(self.add(*drafts), instead=f"`await add(...)` of {self!r}")
        return drive(self._add(self._new or self._app.run(self._find()), drafts))  # here, as the transaction is

    async def _add(self, group: Group, drafts: Iterable[Draft | Iterable[Draft]]) -> list[Receipt]:
        waiting = _drafts(drafts)
        receipts: list[Receipt] = []
        while members := self.taken_in(group, islice(waiting, LARGEST_BATCH)):
            for portion in portions(members, self._app.root().most_bytes):
                stored = await self._app.insert_drafts(members[portion.start : portion.stop], self._tx, self._new)
                receipts += views.receipts(stored)
        return receipts

    def taken_in(self, group: Group, drafts: Iterable[Draft]) -> list[Draft]:
        """Drafts as members; raises if a callback's `RESULTS` cannot take what they return."""
        members = into_group(self._id, drafts, awaited=group.calls_back)
        if self._callbacks:
            for kind in {one.kind for member in members for one in (member, *links(member.options))}:
                for callback, may_fail in self._callbacks:
                    callback.check(kind, may_fail=may_fail)
        return members

    async def progress(self) -> Progress:
        """How many members there are, and what became of them."""
        return views.progress(await self._find())

    async def wait(self, timeout: Seconds | None = None) -> Progress:
        """Wait until the group is closed, and return its numbers.

        Raises `GroupFailed` unless every member is done, `NotFound` when the group is not, or no longer, kept, and
        `TimeoutError` when it is still open; its jobs go on.
        """
        group = await self._closed(timeout)
        if not group.succeeded:
            raise await self._failure(group)
        return views.progress(group)

    async def results(self, timeout: Seconds | None = None) -> list[Any]:
        """Wait until the group is closed, and return what its members returned, in the order they were given.

        A job behind a member in a chain is a member too, and stands behind it. None for a member without a result.
        Raises like `wait()`, and `NotFound` if results are no longer kept. A callback, which has the handle from
        `current().group`, gets None for a member that failed instead of `GroupFailed`.
        """
        group = await self._closed(timeout)
        if not group.succeeded and self._inside is None:
            raise await self._failure(group)
        found = await results_of(await self._app.engine(), group)
        return [None if job is None else self._result(job) for job in found]

    async def failed(self) -> list[views.Job]:
        """The records of the members that are dead or canceled now, in the order of the members."""
        found = await members_of(await self._app.engine(), await self._find())
        return [views.job(job) for _, job in found if job is not None and job.status in _FAILED]

    async def as_completed(self, timeout: Seconds | None = None) -> AsyncGenerator[JobHandle[Any], None]:
        """The handles of the members as they end, until the group is closed: `async for handle in …`.

        Those that have ended already come first, in the order of their ends; `await handle.result()` does not wait.
        Raises `TimeoutError` when the group is not closed in time; its jobs go on.
        """
        self._check_waits()
        patience, pause, given = Patience(self._app, timeout, LONGEST_LOOK), FIRST_PAUSE, set[JobId]()
        while True:
            group = await self._find()
            found = await members_of(await self._app.engine(), group)
            ended = [(member, job) for member, job in found if job is None or job.status in FINISHED]
            for member, _ in sorted(ended, key=_when_ended):
                if member not in given:
                    given.add(member)
                    pause = FIRST_PAUSE
                    yield JobHandle(self._app, member)
            if group.closed_at is not None:
                return
            left = await self._left(group, patience)
            active = [member for member, job in found if job is not None and job.status not in FINISHED]
            if not 0 < len(active) <= MOST_AWAITED or not await self._first_end(active, min(left, LONGEST_LOOK)):
                await asyncio.sleep(min(pause, left))
                pause = min(pause * 2, LAST_PAUSE)

    def as_completed_sync(self, timeout: Seconds | None = None) -> Iterator[JobHandle[Any]]:
        """`as_completed` for code without a loop: `for handle in group.as_completed_sync():`."""
        handles = self.as_completed(timeout)
        try:
            while (handle := self._app.run(anext(handles, None), instead="`async for`")) is not None:
                yield handle
        finally:
            self._app.run(handles.aclose(), instead="`async for`")

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

    progress_sync = in_sync(progress)
    wait_sync = in_sync(wait)
    results_sync = in_sync(results)
    failed_sync = in_sync(failed)
    cancel_sync = in_sync(cancel)

    # --- the store ----------------------------------------------------------------------------------------------

    async def _find(self) -> Group:
        engine = await self._app.engine()
        [group] = await engine.groups.get([self._id])
        group = group or self._new
        if group is None:
            raise NotFound.group(self._id)
        return group

    async def _closed(self, timeout: Seconds | None) -> Group:
        """The group when it is closed."""
        self._check_waits()
        patience, pause = Patience(self._app, timeout, LONGEST_LOOK), FIRST_PAUSE
        while (group := await self._find()).closed_at is None:
            left = await self._left(group, patience)
            if await self._ends(group, min(left, LONGEST_LOOK)):
                pause = FIRST_PAUSE  # the last members have ended: it is closed now, or in a moment
                continue
            await asyncio.sleep(min(pause, left))
            pause = min(pause * 2, LAST_PAUSE)
        return group

    def _check_waits(self) -> None:
        if self._inside == "member":
            raise StokerError(
                f"group {self.id} cannot close before this job ends, for it is a member; it does not wait"
            )

    async def _left(self, group: Group, patience: Patience) -> float:
        """Seconds until the next look. Raises if there is no time left."""
        left = await patience.left()
        if left > 0:
            return left
        if hint := await patience.hint():
            raise TimeoutError(f"group {self.id} is not closed ({group.counts}): {hint}")
        raise TimeoutError(f"group {self.id} is not closed in time ({group.counts}); its jobs go on")

    def _result(self, job: Job) -> Any:
        signature = self._app.signature_of(job.kind)
        return display(job.result) if signature is None else signature.decode_result(job.result)

    async def _first_end(self, active: Sequence[JobId], timeout: float) -> bool:
        """Sleep until one of these jobs has ended; returns whether one has."""
        engine = await self._app.engine()
        waits = [asyncio.ensure_future(engine.jobs.ended(job, timeout)) for job in active]
        try:
            done, _ = await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()
            await asyncio.gather(*waits, return_exceptions=True)
        return any([await one for one in done])

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
            return GroupFailed(self.id, group.counts)
        return GroupFailed(self.id, group.counts, ids.text(first.id), first.kind, first.last_error)


class NewGroup:
    """What `jobs.group(...)` returns: a group that is stored by `await`, or for a block by `async with` or `with`."""

    __slots__ = ("_again", "_app", "_drafts", "_group", "_handle", "_tx", "_used")

    def __init__(
        self,
        app: Stoker,
        drafts: Iterable[Draft] | None,
        tx: Transaction | None,
        group: Group,
        callbacks: Callbacks = (),
        *,
        again: bool = False,
    ) -> None:
        self._used = False
        self._again = again
        self._app = app
        self._drafts = drafts
        self._tx = tx
        self._group = group
        self._handle = GroupHandle(app, group.id, group, callbacks, False if tx is False else None)

    def _use(self) -> None:
        if self._used:
            raise StokerError("this group is stored already; call jobs.group(...) for each group")
        self._used = True

    def __del__(self) -> None:
        if not self._used:
            warnings.warn("a group was not stored: write `await jobs.group(...)`", RuntimeWarning, stacklevel=2)

    # --- whole --------------------------------------------------------------------------------------------------

    def __await__(self) -> Generator[Any, None, GroupHandle]:
        return self.store().__await__()

    def store(self) -> Coroutine[Any, Any, GroupHandle]:
        """Store it, once it is awaited."""
        self._use()
        return self._store()

    def store_here(self) -> GroupHandle:
        """Store it in the transaction that it joins, in this thread and without a loop."""
        return drive(self.store())

    async def _store(self) -> GroupHandle:
        if self._drafts is None:
            raise InvalidInput("group", None, "needs its drafts, or a block: async with jobs.group(...) as group")
        members = self._handle.taken_in(self._group, _drafts((self._drafts,)))
        if self._again:
            self._check_steps()
            return await self._go_on(await self._app.engine(), members)
        first, *rest = list(portions(members, self._app.root().most_bytes)) or [range(0)]
        group = self._group if rest and not self.joins else self._group.seal(abandoned=False)
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

    async def _go_on(self, engine: Engine, members: Sequence[Draft]) -> GroupHandle:
        """Store what no call with this id has stored before, in steps that each say how far they came.

        A call that is interrupted leaves the group open for the next one; after an hour it is abandoned.
        """
        [stored] = await engine.groups.get([self._group.id])
        placed = 0 if stored is None else self._placed(stored, len(members))
        try:
            for portion in portions(members[placed:], engine.most_bytes):
                start, stop = placed + portion.start, placed + portion.stop
                await self._app.insert_drafts(members[start:stop], self._tx, replace(self._group, placed=stop))
        except Exception as error:
            error.add_note(f"group {self._handle.id} is not complete: the same call with the same id goes on")
            raise
        if stored is None or not stored.sealed:
            await self._end(abandoned=False)
        return GroupHandle(self._app, self._group.id)

    def _check_steps(self) -> None:
        if self.joins:
            why = (
                "goes with a group that is stored in steps; in a transaction one commit stores all of it: leave it out"
            )
            raise InvalidInput("id", self._handle.id, why)

    def _placed(self, stored: Group, given: int) -> int:
        """How many drafts of a stored group were placed by calls before. Raises if this is not their call again."""
        if stored.abandoned:
            why = "is a group that was abandoned, because no call went on with it for an hour; use another id"
        elif stored.total and not stored.placed:
            why = "is a group that was made without an id; use another one"
        elif stored.placed > given or (stored.sealed and stored.placed < given):
            why = f"is a group of {count(stored.placed, 'draft')}, and {given} are given; give the same ones, in order"
        else:
            return stored.placed
        raise InvalidInput("id", self._handle.id, why)

    @property
    def joins(self) -> bool:
        """Is it stored in a transaction that the caller ends?"""
        return joined(self._app, self._tx) is not None

    async def _end(self, *, abandoned: bool) -> None:
        """Seal the group; one that was stored with no member yet is stored now, to be closed at once."""
        if self.joins:
            return
        if not await self._app.seal_group(self._group.id, abandoned=abandoned):
            await self._app.insert_drafts([], self._tx, self._group.seal(abandoned=abandoned))

    # --- a block ------------------------------------------------------------------------------------------------

    def _check_block(self) -> None:
        self._use()
        if self._again:
            raise InvalidInput("id", self._handle.id, "goes with drafts; write `await jobs.group([...], id=...)`")
        if self.joins:
            why = "cannot be filled by a block in a transaction; write `await jobs.group([...])`, or give tx=False"
            raise InvalidInput("group", self._handle.id, why)

    async def __aenter__(self) -> GroupHandle:
        self._check_block()
        return await self._begin()

    async def _begin(self) -> GroupHandle:
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
        self._check_block()
        return self._app.run(self._begin(), instead="`async with jobs.group(...)`")

    def __exit__(self, error: type[BaseException] | None, *rest: object) -> None:
        self._app.run(self.__aexit__(error, *rest), instead="`async with jobs.group(...)`")


def _drafts(given: Iterable[Draft | Iterable[Draft]]) -> Iterator[Draft]:
    """Drafts one by one, however they were given."""
    return chain.from_iterable([one] if isinstance(one, Draft) else _iterated(one) for one in given)


def _iterated(drafts: Iterable[Draft]) -> Iterable[Draft]:
    if not isinstance(drafts, Iterable):
        raise InvalidInput("group", drafts, "must be made of drafts, such as task.draft(...)")
    return drafts


def _when_ended(member: tuple[JobId, Job | None]) -> int:
    """Where a member is in the order of the ends; one whose record is gone ended long ago."""
    return (0 if member[1] is None else member[1].finished_at) or 0
