"""Bulk actions: a bounded walk over the jobs of a filter, page by page, each page one atomic step.

Nothing is locked between pages. A walk has one moment, its bound: that of its preview, else of its start. Jobs that
were created or ended after it are never touched, so that a page which is repeated after a death finds its jobs changed
and leaves them. A job whose status changed since its page was read is left alone too, and running jobs are never
deleted.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from datetime import datetime
from typing import NamedTuple

import msgspec

from stoker.admin import documents
from stoker.admin.context import OperatorContext
from stoker.admin.search import noted
from stoker.engines.base import Engine
from stoker.engines.sealed.engine import check_search as check_sealed_search
from stoker.model import ids
from stoker.model.access import check_masked_search, check_search, check_search_to_change
from stoker.model.actions import Given, Making, action_of, allows
from stoker.model.filter import Filter, InvalidFilter
from stoker.model.job import Status
from stoker.model.names import Names, in_use
from stoker.model.operations import bound_of
from stoker.model.query import (
    LONGEST_WALK,
    Cancel,
    Change,
    Clone,
    Fork,
    Former,
    Query,
    Selection,
    Tally,
    as_of,
    matched_at,
    read_cursor,
    write_cursor,
)
from stoker.model.same_error import is_fingerprint
from stoker.model.time import Instant, instant

PAGE = 500
"""How many jobs of a filter one step of an action looks at."""

MOST_FORMER = 10_000
"""Undo information is kept for at most this many jobs."""


@dataclass
class Bulk:
    """What an action did, summed up over its pages. `stopped`: it was ended before the last page.

    `former` says what the first 10,000 changed jobs were before, so that `restore` can undo a cancel or a discard.
    """

    changed: int = 0
    cancel_requested: int = 0
    missing: int = 0
    blocked: int = 0
    refused: Counter[Status] = field(default_factory=Counter)
    created: list[str] = field(default_factory=list)
    former: list[Former] = field(default_factory=list)
    stopped: bool = False

    def add(self, tally: Tally) -> None:
        """Count one more step."""
        self.changed += tally.changed
        self.cancel_requested += tally.cancel_requested
        self.missing += tally.missing
        self.blocked += tally.blocked
        self.refused.update(tally.refused)
        self.created += [ids.text(job) for job in tally.created]
        self.former += tally.former[: MOST_FORMER - len(self.former)]

    def __bool__(self) -> bool:
        """Did it do anything?"""
        return self.changed + self.cancel_requested > 0

    @property
    def seen(self) -> int:
        """How many jobs the action looked at."""
        return self.changed + self.cancel_requested + self.missing + self.blocked + self.refused.total()


async def check_queue_to_move_to(context: OperatorContext, given: Given) -> None:
    """Refuse to move jobs into a queue that is not known, which no worker serves. Raises `NotFound`."""
    if (queue := given.get("queue")) is not None and not given.get("create"):
        await context.known_queue(str(queue))


class Question(NamedTuple):
    """What a filter asks the engine; None: its names match nothing, so no job is meant.

    `hint` is what to say about names that are not known, empty where all are.
    """

    query: Query | None
    hint: str = ""


async def question_of(
    context: OperatorContext, filter_: Filter, limit: int, cursor: str | None = None, now: Instant | None = None
) -> Question:
    """The question that a filter asks to read: its times count from `now`, and an unknown name matches no job.

    The store is asked only for what the filter needs: a census for its names, the rest of what names them only where
    no job does, the clock for its times. A name that is left out and not known is refused.
    """
    check_search(context.searches_as, filter_)
    check_masked_search(context.searches_as, filter_, context.redact)
    await noted(context, filter_)
    engine = await context.engine()
    census = await engine.operator.census() if filter_.has_names else None
    names = Names() if census is None else in_use(census)
    if census is not None and not filter_.is_known(names):
        names = await context.names(census)
    after = None if cursor is None else read_cursor(cursor)
    sample = None
    if filter_.same_error is not None and not is_fingerprint(filter_.same_error):
        [sample] = await engine.operator.get([ids.parse(filter_.same_error)])
    at = now if census is None or now is not None else census.at
    if at is None and filter_.has_times:
        at = await engine.now()
    query = filter_.query(at or 0, names, limit=limit, cursor=after, sample=sample)
    if query is not None and (query.has_texts or query.meta is not None) and await documents.seals(engine):
        check_sealed_search(query)  # also where this app has no key, and the engine finds nothing
    return Question(query, " ".join(filter_.unknown(names)))


async def query_to_change(
    context: OperatorContext, filter_: Filter, limit: int, now: Instant | None = None
) -> Query | None:
    """The question that a filter asks before a change: a name that is not known is refused.

    So are texts, below the role admin.
    """
    check_search_to_change(context.searches_as, filter_)
    query, hint = await question_of(context, filter_, limit, None, now)
    if hint:
        raise InvalidFilter("filter", str(filter_), hint.removesuffix("."))
    return query


async def bound_at(engine: Engine, counted_at: datetime | None) -> Instant:
    """The one moment of a preview or an action."""
    return bound_of(None if counted_at is None else instant(counted_at, "counted_at"), await engine.now())


class Walk:
    """One action over one filter. `cursor` is the place from which it goes on; None at its beginning and its end."""

    def __init__(
        self, context: OperatorContext, filter_: Filter, change: Making, bound: Instant, cursor: str | None
    ) -> None:
        self._context = context
        self._filter = filter_
        self._change = change
        self._bound = bound
        self._query: Query | None = None
        self._unbounded: Query | None = None
        self._asked = False
        self.cursor = cursor
        self.ended = False
        self.bulk = Bulk()

    async def step(self) -> Tally:
        """Find one page, and change it."""
        engine = await self._context.engine()
        if not self._asked:
            self._query, self._asked = await self._question(), True
        if self._query is None:
            self.cursor, self.ended = None, True
            return Tally()
        after = None if self.cursor is None else read_cursor(self.cursor)
        page = await engine.operator.find(msgspec.structs.replace(self._query, cursor=after))
        spares = action_of(self._change(0)).spares
        there = [job for job in page.jobs if matched_at(job, self._query, self._bound)]
        chosen = [job for job in there if job.status not in spares]
        tally = Tally(refused=Counter(job.status for job in there if job.status in spares))
        if chosen:
            jobs, statuses = tuple(job.id for job in chosen), tuple(job.status for job in chosen)
            selection = Selection(jobs, statuses, self._bound)
            done = await alter(self._context, selection, self._change(len(chosen)))
            tally = msgspec.structs.replace(done, refused=Counter(done.refused) + Counter(tally.refused))
        self.bulk.add(tally)
        self.cursor = None if page.cursor is None else write_cursor(page.cursor)
        self.ended = page.cursor is None
        return tally

    async def later(self) -> int | None:
        """How many jobs it would change that came after its moment; None where there are too many to look at."""
        if self._unbounded is None:
            return 0
        engine, query, change = await self._context.engine(), self._unbounded, self._change(0)
        found = scanned = 0
        while scanned < LONGEST_WALK:
            page = await engine.operator.find(query)
            mine = [job for job in page.jobs if allows(change, job.status)]
            found += sum(not matched_at(job, query, self._bound) for job in mine)
            scanned += page.scanned
            if page.cursor is None:
                return found
            query = msgspec.structs.replace(query, cursor=page.cursor)
        return None

    async def _question(self) -> Query | None:
        """What to look for: asked once, because the names of a filter may have no jobs left in the end."""
        self._unbounded, _ = await question_of(self._context, self._filter, PAGE, None, self._bound)
        return None if self._unbounded is None else as_of(self._unbounded, self._bound)


async def alter(context: OperatorContext, selection: Selection, change: Change) -> Tally:
    """Change jobs in one step; the timeline and listeners are told with the true former status."""
    if isinstance(change, Clone | Fork):
        await context.check_key("copy jobs")
    engine = await context.engine()
    by = context.signed(change.given if isinstance(change, Cancel) else None)
    tally = await engine.operator.alter(selection, change, by=by)
    await context.app.emit_altered(change, tally)
    return tally
