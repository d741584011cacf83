"""Bulk actions: a bounded walk over the jobs of a filter, page by page, each page one atomic step.

Nothing is locked between pages. Jobs that were enqueued after the walk began are never touched, a job whose status
changed since its page was read is left alone, and running jobs are never deleted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final, TypeAlias

import msgspec

from stoker.admin.asking import Asking
from stoker.engines.base import Engine
from stoker.model import ids
from stoker.model.errors import InvalidInput
from stoker.model.filter import Filter
from stoker.model.job import Status
from stoker.model.query import (
    Cancel,
    Change,
    Clone,
    Delete,
    Discard,
    Former,
    Move,
    Prioritize,
    Query,
    Requeue,
    RunNow,
    Selection,
    Tally,
    read_cursor,
    write_cursor,
)
from stoker.model.time import Instant

PAGE = 500
"""How many jobs of a filter one step of an action looks at."""

MOST_FORMER = 10_000
"""Of so many jobs an action remembers what they were before."""

Given: TypeAlias = Mapping[str, str | int | float | bool | None]


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

    @property
    def seen(self) -> int:
        """How many jobs the action looked at."""
        return self.changed + self.cancel_requested + self.missing + self.blocked + self.refused.total()


Making: TypeAlias = Callable[[int], Change]
"""Makes the change for a step over so many jobs."""


def making(asking: Asking, action: str, given: Given) -> Making:
    """The change that an action by name makes, with what it needs; an unknown name or need is refused."""
    needs = ACTIONS.get(action)
    if needs is None:
        raise InvalidInput("action", action, f"must be one of {', '.join(ACTIONS)}")
    if unknown := sorted(given.keys() - {*needs, *OPTIONAL.get(action, ())}):
        raise InvalidInput(action, unknown[0], f"takes only {', '.join(needs) or 'no options'}")
    if missing := [name for name in needs if given.get(name) is None]:
        raise InvalidInput(action, None, f"needs {missing[0]}")
    if action == "retry":
        mint = asking.app.mint
        return lambda n: Clone(tuple(mint() for _ in range(n)))
    change = _change(action, given)
    return lambda _: change


ACTIONS: Final[dict[str, tuple[str, ...]]] = {
    "requeue": (),
    "retry": (),
    "cancel": (),
    "discard": (),
    "delete": (),
    "run-now": (),
    "move": ("queue",),
    "prioritize": ("priority",),
}
"""Actions on jobs by name, and what each needs."""

OPTIONAL: Final = {"cancel": ("reason", "force")}


def _change(action: str, given: Given) -> Change:
    match action:
        case "requeue":
            return Requeue()
        case "cancel":
            reason, force = given.get("reason"), bool(given.get("force"))
            return Cancel(force=force) if reason is None else Cancel(str(reason), force)
        case "discard":
            return Discard()
        case "delete":
            return Delete()
        case "run-now":
            return RunNow()
        case "move":
            return Move(str(given["queue"]))
        case _:
            priority = given["priority"]
            if not isinstance(priority, int):
                raise InvalidInput("priority", priority, "must be a whole number")
            return Prioritize(priority)


async def query_of(
    engine: Engine, filter_: Filter, limit: int, cursor: str | None, now: Instant | None = None
) -> Query:
    """The question that a filter asks: its names are those that have jobs now, its times count from `now`.

    The store is asked only for what the filter needs: a census for its names, the clock for its times.
    """
    census = await engine.census() if filter_.has_names else None
    queues: list[str] = [] if census is None else sorted({count.queue for count in census.counts})
    kinds: list[str] = [] if census is None else census.kinds()
    after = None if cursor is None else read_cursor(cursor)
    sample = None
    if filter_.same_error is not None:
        [sample] = await engine.get([ids.parse(filter_.same_error)])
    at = now if census is None or now is not None else census.at
    if at is None and filter_.has_times:
        at = await engine.now()
    return filter_.query(at or 0, queues=queues, kinds=kinds, limit=limit, cursor=after, sample=sample)


class Walk:
    """One action over one filter. `cursor` is the place from which it goes on; None at its beginning and its end."""

    def __init__(self, asking: Asking, filter_: Filter, change: Making, bound: Instant, cursor: str | None) -> None:
        self._asking = asking
        self._filter = filter_
        self._change = change
        self._bound = bound
        self._query: Query | None = None
        self.cursor = cursor
        self.ended = False
        self.bulk = Bulk()

    async def step(self) -> Tally:
        """Find one page, and change it."""
        engine = await self._asking.engine()
        if self._query is None:
            self._query = await self._question(engine)
        after = None if self.cursor is None else read_cursor(self.cursor)
        page = await engine.find(msgspec.structs.replace(self._query, cursor=after))
        deletes = isinstance(self._change(0), Delete)
        chosen = [job for job in page.jobs if not deletes or job.status is not Status.RUNNING]
        tally = Tally()
        if chosen:
            selection = Selection(tuple(job.id for job in chosen), frozenset(job.status for job in chosen))
            tally = await alter(self._asking, selection, self._change(len(chosen)))
            self.bulk.add(tally)
        self.cursor = None if page.cursor is None else write_cursor(page.cursor)
        self.ended = page.cursor is None
        return tally

    async def _question(self, engine: Engine) -> Query:
        """What to look for: asked once, because the names of a filter may have no jobs left in the end."""
        query = await query_of(engine, self._filter, PAGE, None, self._bound)
        bound = self._bound + 1  # `until` is exclusive, and what was enqueued at this instant counts
        return msgspec.structs.replace(query, until=bound if query.until is None else min(query.until, bound))


async def alter(asking: Asking, selection: Selection, change: Change) -> Tally:
    """Change jobs in one step; the timeline and listeners are told with the true former status."""
    engine = await asking.engine()
    tally = await engine.alter(selection, change, by=asking.signed())
    await asking.app.emit_altered(change, tally)
    return tally
