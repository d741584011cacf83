"""Operations: bulk actions as records in the store, which any process shows, stops and resumes.

The process that starts one walks over its jobs and writes the record after each page. A stop reaches it within one
page, from whichever process it comes. One whose process died is shown as interrupted; `resume` goes on from where it
came to.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any, TypeAlias, Unpack

import msgspec
from msgspec.structs import replace

from stoker.admin import documents
from stoker.admin.bulk import Walk, bound_at, check_queue_to_move_to, query_to_change
from stoker.admin.context import Noun, OperatorContext
from stoker.admin.letter_walk import LETTER_ACTIONS, LetterWalk, OnLetters, as_text, chosen
from stoker.admin.preview import MOST, walked
from stoker.admin.reseal import ResealWalk, sealed_engine, total_of
from stoker.engines.base import outbox_of
from stoker.model import ids
from stoker.model.access import check_search_to_change
from stoker.model.actions import Given, on_many
from stoker.model.errors import InvalidInput, NotFound, StokerError, WrongState, shown
from stoker.model.filter import Filter
from stoker.model.humanize import count
from stoker.model.job import Status
from stoker.model.operations import RESEAL, Operation, bound_of
from stoker.model.query import Tally, as_of
from stoker.model.time import Instant, instant, moment
from stoker.outbox.letters import LetterTerms

logger = logging.getLogger("stoker.admin")


class OperationView(msgspec.Struct, frozen=True, kw_only=True):
    """An operation: what it does to which jobs, who started it, and how far it came.

    `state` is running, stopping, stopped, done, failed or interrupted (its process fell silent). `counted_at` is its
    one moment: what was created or ended after it is left, and `later` says at its end how many; None: not known.
    `total` were counted at that moment, of which it has `seen` so many; `fates` says what became of them. `rate` is
    how many it comes past in a second, and `lasts` how long it still takes; each is None where it is not known.
    """

    id: str
    who: str
    action: str
    filter: str
    given: dict[str, str | int | float | bool | None]
    state: str
    counted_at: datetime
    started_at: datetime
    seen_at: datetime
    changed: int
    cancel_requested: int
    missing: int
    blocked: int
    refused: dict[Status, int]
    later: int | None
    error: str | None
    total: int | None = None
    seen: int = 0
    rate: float | None = None
    lasts: timedelta | None = None
    fates: dict[str, int] = {}

    @property
    def ended(self) -> bool:
        """Is nothing more to come?"""
        return self.state not in {"running", "stopping"}

    @property
    def share(self) -> float | None:
        """How much of it is done, from 0 to 1; None where the total is not known."""
        if self.state == "done":
            return 1.0
        return None if not self.total else min(self.seen / self.total, 1.0)

    @property
    def noun(self) -> str:
        """What it acts on: job or letter, or any record."""
        return "letter" if self.action in LETTER_ACTIONS else "record" if self.action == RESEAL else "job"


Progress: TypeAlias = Callable[[OperationView], None]


class OperationsAdmin(Noun):
    """Bulk actions that outlast the call that starts them."""

    def __init__(self, context: OperatorContext) -> None:
        super().__init__(context)
        self._walking: dict[str, asyncio.Task[OperationView]] = {}

    async def start(
        self,
        action: str,
        filter_: Filter | str,
        given: Given | None = None,
        *,
        counted_at: datetime | None = None,
        total: int | None = None,
    ) -> OperationView:
        """Store an operation and begin to walk, in this process; returns at once.

        `action` is a name of `model.actions.MANY`, `given` what it needs (`{"queue": "bulk"}`). `counted_at` is the
        moment of the preview that was shown, now without one: jobs that were created or ended after it are not touched.
        `total` is how many that preview counted; without one they are counted now, if there are not too many.
        """
        filter_ = Filter.parse(filter_) if isinstance(filter_, str) else filter_
        if filter_.id is not None:
            raise InvalidInput("filter", str(filter_), "names one job; change it without an operation")
        found, given = on_many(action), given or {}
        found.making(given, self._context.app.mint)
        found.check_many(given)
        await check_queue_to_move_to(self._context, given)
        engine = await self._context.engine()
        bound = await bound_at(engine, counted_at)
        query = await query_to_change(self._context, filter_, 1, bound)
        if total is None:
            jobs, whole = ([], True) if query is None else await walked(engine, as_of(query, bound), MOST)
            total = len(jobs) if whole else None
        return await self._store(action, str(filter_), given, counted_at, total)

    async def start_on_letters(
        self,
        action: OnLetters,
        *,
        stream: str | None = None,
        counted_at: datetime | None = None,
        total: int | None = None,
        **terms: Unpack[LetterTerms],
    ) -> OperationView:
        """Store an operation on letters and begin to walk, in this process; returns at once.

        Without a filter all letters of the store are meant. Those that fail after `counted_at`, the moment of the
        preview that was shown (now without one), are not touched.
        """
        if (name := f"{action}-letters") not in LETTER_ACTIONS:
            raise InvalidInput("action", action, "must be replay, resolve or discard")
        fields: dict[str, Any] = {"stream": stream, **terms}
        given = {field: value for field, value in fields.items() if value is not None}
        chosen(given)
        outbox_of(await self._context.engine())
        return await self._store(name, as_text(given), given, counted_at, total)

    async def start_reseal(self) -> OperationView:
        """Store an operation that seals all that is kept with the current key, and begin to walk; returns at once.

        An app without a `Seal` is refused.
        """
        engine = await sealed_engine(self._context)
        return await self._store(RESEAL, "", {}, None, await total_of(engine))

    async def _store(
        self, action: str, filter_: str, given: Given, counted_at: datetime | None, total: int | None
    ) -> OperationView:
        engine = await self._context.engine()
        now = await engine.now()
        stored = await documents.put_operation(
            engine,
            Operation(
                id=ids.text(self._context.app.mint()),
                who=self._context.by or "",
                action=action,
                filter=filter_,
                change=dict(given),
                bound=bound_of(None if counted_at is None else instant(counted_at, "counted_at"), now),
                started=now,
                total=total,
            ),
            by=self._context.signed(reason if isinstance(reason := given.get("reason"), str) else None),
        )
        assert stored is not None, "its id is new"
        return self._begin(stored, None)

    async def finish(self, operation: str, progress: Progress | None = None) -> OperationView:
        """Wait for an operation that this process walks; `progress` is called now and then, and at its end."""
        task = self._walking.get(operation)
        if task is None:
            return await self.get(operation)
        while True:
            done, _ = await asyncio.wait([task], timeout=0.2)
            if done:
                ended = task.result()
                if progress is not None:
                    progress(ended)
                return ended
            if progress is not None:
                progress(await self.get(operation))

    async def get(self, operation: str) -> OperationView:
        """One operation as it is stored now. Raises `NotFound`."""
        engine = await self._context.engine()
        return view(await self._stored(operation), await engine.now())

    async def stop(self, operation: str) -> OperationView:
        """Ask an operation to stop; its process does so within one page. One that has ended stays as it is."""
        engine, by = await self._context.engine(), self._context.signed()
        while True:
            found = await self._stored(operation)
            if found.ended or found.state == "stopping":
                return view(found, await engine.now())
            # An interrupted one has no process left to stop it.
            state = "stopped" if found.interrupted(await engine.now()) else "stopping"
            if (
                stored := await documents.put_operation(engine, replace(found, state=state), before=found, by=by)
            ) is not None:
                return view(stored, stored.seen)

    async def resume(self, operation: str) -> OperationView:
        """Go on with an operation that was stopped, failed or interrupted, from where it came to, in this process.

        Raises `WrongState` for one that is done or still runs.
        """
        engine, by = await self._context.engine(), self._context.signed()
        while True:
            found = await self._stored(operation)
            if found.action not in LETTER_ACTIONS:
                check_search_to_change(self._context.searches_as, Filter.parse(found.filter))
            now = await engine.now()
            if found.state == "done" or not (found.ended or found.interrupted(now)):
                raise WrongState(f"operation {operation}", view(found, now).state, "resume")
            again = replace(found, state="running", error=None, begun=now, before=found.looked_at)
            if (stored := await documents.put_operation(engine, again, before=found, by=by)) is not None:
                return self._begin(stored, found.cursor)

    async def list(self) -> list[OperationView]:
        """Every operation that is kept, the one that was started last first."""
        engine = await self._context.engine()
        now = await engine.now()
        return [view(one, now) for one in await documents.operations(engine)]

    async def close(self) -> None:
        """Stop the operations of this process after their present page and wait for them; others can resume them."""
        for operation in list(self._walking):
            await self.stop(operation)
        await asyncio.gather(*self._walking.values(), return_exceptions=True)

    # --- walking ------------------------------------------------------------------------------------------------

    def _begin(self, stored: Operation, cursor: str | None) -> OperationView:
        task = asyncio.create_task(self._walk(stored, cursor), name=f"stoker-operation-{stored.id}")
        self._walking[stored.id] = task
        task.add_done_callback(lambda _: self._walking.pop(stored.id, None))
        return view(stored, stored.seen)

    async def _walk(self, stored: Operation, cursor: str | None) -> OperationView:
        engine = await self._context.engine()
        try:
            walk = self._walk_of(stored, cursor)
            while not stored.ended:
                tally = await walk.step()
                stored = await self._written(stored, walk, tally)
        except StokerError as error:
            text = "operation %s (%s %s) failed after %s: %s. `stoker operations resume %s` goes on."
            done = count(stored.changed, "change")
            logger.warning(text, stored.id, stored.action, stored.filter, done, error, stored.id)
            ended = await documents.put_operation(
                engine, replace(stored, state="failed", error=f"{type(error).__name__}: {error}"), before=stored
            )
            stored = ended or await self._stored(stored.id)
        return view(stored, stored.seen)

    def _walk_of(self, stored: Operation, cursor: str | None) -> Walk | LetterWalk | ResealWalk:
        if stored.action == RESEAL:
            return ResealWalk(self._context, cursor, stored.blocked)
        if stored.action in LETTER_ACTIONS:
            return LetterWalk(self._context, stored.action, stored.change, stored.bound, cursor)
        change = on_many(stored.action).making(stored.change, self._context.app.mint)
        return Walk(self._context, Filter.parse(stored.filter), change, stored.bound, cursor)

    async def _written(self, before: Operation, walk: Walk | LetterWalk | ResealWalk, tally: Tally) -> Operation:
        """Save progress after a page; stop if requested."""
        engine = await self._context.engine()
        later = await _later(walk) if walk.ended else None
        while True:
            refused = dict(before.refused)
            for status, n in tally.refused.items():
                refused[status] = refused.get(status, 0) + n
            state = "done" if walk.ended else "stopped" if before.state == "stopping" else "running"
            after = replace(
                before,
                cursor=walk.cursor,
                changed=before.changed + tally.changed,
                cancel_requested=before.cancel_requested + tally.cancel_requested,
                missing=before.missing + tally.missing,
                blocked=before.blocked + tally.blocked,
                refused=refused,
                later=later,
                state=state,
            )
            if (stored := await documents.put_operation(engine, after, before=before)) is not None:
                return stored
            before = await self._stored(before.id)

    async def _stored(self, operation: str) -> Operation:
        engine = await self._context.engine()
        found = next((one for one in await documents.operations(engine) if one.id == operation), None)
        if found is None:
            raise NotFound(f"operation {shown(operation)} is not in the store")
        return found


async def _later(walk: Walk | LetterWalk | ResealWalk) -> int | None:
    """What came after the moment of a walk that is done; its work must not count as failed if that is not known."""
    try:
        return await walk.later() if isinstance(walk, Walk) else None
    except StokerError as error:
        logger.info("what came after the preview of an operation could not be counted: %s", error)
        return None


def view(one: Operation, now: Instant) -> OperationView:
    """An operation as people read it."""
    return OperationView(
        id=one.id,
        who=one.who,
        action=one.action,
        filter=one.shown_filter,
        given=one.change,
        state=one.shown_state(now),
        counted_at=moment(one.bound),
        started_at=moment(one.started),
        seen_at=moment(one.seen),
        changed=one.changed,
        cancel_requested=one.cancel_requested,
        missing=one.missing,
        blocked=one.blocked,
        refused=one.refused,
        later=one.later,
        error=one.error,
        total=one.total,
        seen=one.looked_at,
        rate=one.rate,
        lasts=None if one.lasts is None else timedelta(microseconds=one.lasts),
        fates=one.fates,
    )
