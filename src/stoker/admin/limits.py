"""Limits for operators: rate budgets with what is left of them, and what runs under each limit key."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta

import msgspec

from stoker.admin.audit import audited
from stoker.admin.context import CREATE, UNCHANGED, Noun
from stoker.model.control import Tuning
from stoker.model.errors import InvalidInput, NotFound, shown
from stoker.model.ids import text
from stoker.model.job import check_name
from stoker.model.limit import check_limit_name
from stoker.model.names import hint
from stoker.model.subqueues import SubqueueView
from stoker.model.throttle import Bucket, Rate, level, until_token
from stoker.model.time import EPOCH, Instant

PAGE, MOST_PAGES = 1_000, 10
"""Keys that are read at once, and how often, to find those at their limit."""


class BudgetView(msgspec.Struct, frozen=True, kw_only=True):
    """A budget at one instant: its rate, the tokens at hand, and how long until the next whole one.

    `declared` is the rate that an app's code declares; it differs where people changed it.
    """

    name: str
    rate: Rate
    tokens: float
    capacity: float
    next_token: timedelta
    declared: Rate | None = None


class KeyView(msgspec.Struct, frozen=True, kw_only=True):
    """What runs and waits under one key of a limit, or for one tenant of a fair queue (`limit` is None).

    `most` is how many may run at once, None: any number; `pinned`: an operator set it. `due` is when the first job that
    waits is due, None: none waits. `holders` are up to ten of the jobs that take the places.
    """

    queue: str
    limit: str | None
    key: str | None
    running: int
    most: int | None
    pinned: bool
    due: datetime | None
    holders: tuple[str, ...]
    name: str


class LimitsAdmin(Noun):
    """Questions about budgets and limits by key, and changes to them."""

    async def list(self) -> list[BudgetView]:
        """Every budget, by name."""
        engine = await self._context.engine()
        now = await engine.now()
        return [budget_view(one.name, one.bucket, now, one.declared) for one in await engine.control.budgets()]

    async def get(self, name: str) -> BudgetView:
        """One budget. Raises `NotFound`."""
        budgets = {one.name: one for one in await self.list()}
        if name not in budgets:
            raise _no_budget(name, budgets)
        return budgets[name]

    async def keys(self, queue: str, *, after: str | None = None, limit: int = 100) -> Sequence[KeyView]:
        """What runs and waits under each limit key and tenant of a queue, by name, behind the name `after`."""
        engine = await self._context.engine()
        return [key_view(one) for one in await engine.control.subqueues(queue, after=after, limit=limit)]

    async def at_limit(self, queue: str | None = None, *, limit: int = 100) -> Sequence[KeyView]:
        """Keys of which as many jobs run as may while others wait, by queue and name; of one queue or of all.

        At most `limit` of them; it looks at up to 10,000 keys of each queue.
        """
        engine = await self._context.engine()
        names = [one.name for one in await engine.control.queues()] if queue is None else [queue]
        found: list[KeyView] = []
        for name in names:
            after: str | None = None
            for _ in range(MOST_PAGES):
                views = await engine.control.subqueues(name, after=after, limit=PAGE)
                found += [key_view(one) for one in views if one.full and one.due is not None]
                if len(views) < PAGE or len(found) >= limit:
                    break
                after = views[-1].name
            if len(found) >= limit:
                break
        return found[: max(limit, 0)]

    async def set(self, queue: str, name: str, n: int, *, create: bool = False) -> None:
        """Let so many jobs of each key of a limit run at once, whatever jobs bring, until it is cleared.

        A queue or a limit that is not known is refused, unless `create` sets it up ahead of its first job.
        """
        if not create:
            await self._check_known(queue, name, CREATE)
        engine = await self._context.engine()
        await engine.control.tune(queue, Tuning(limits=((name, n),)), by=self._context.signed())

    async def clear(self, queue: str, name: str) -> None:
        """Give a limit back to the number that its jobs bring. Raises `NotFound` for one that is not known."""
        await self._check_known(queue, name, UNCHANGED)
        engine = await self._context.engine()
        await engine.control.tune(queue, Tuning(limits=((name, None),)), by=self._context.signed())

    async def _check_known(self, queue: str, name: str, more: str) -> None:
        """Refuse a limit that neither jobs and schedules nor settings of the queue nor tasks of the app name."""
        await self._context.known_queue(queue, more=more)
        check_limit_name(name)
        engine = await self._context.engine()
        tasks = self._context.app.tasks
        drafts = [one.template for one in await engine.schedules.read()]
        settings = [one.limits for one in await engine.control.queues() if one.name == queue]
        known = {
            *(task.options.limit.name or kind for kind, task in tasks.items() if task.options.limit),
            *(draft.options.limit.name for draft in drafts if draft.options.limit is not None),
            *(limit for limits in settings for limit, _ in limits),
        }
        subqueues = engine.control.subqueues
        keys = [*await subqueues(queue, names=[name]), *await subqueues(queue, after=f"{name}/", limit=1)]
        if name not in known | {one.limit for one in keys}:
            known.update(one.limit for one in await subqueues(queue, limit=PAGE) if one.limit is not None)
            raise NotFound(
                f"limit {name!r} of queue {queue!r} is not known: no job, setting, schedule or task of the app names "
                f"it. {hint(name, known)}{more}"
            )

    async def tune(self, name: str, rate: Rate, *, create: bool = False) -> None:
        """Set a budget's rate; tokens at hand are kept as far as they fit.

        A budget that is neither stored nor declared by the app is refused, unless `create` makes it, full.
        """
        check_name("budget", name)
        if not isinstance(rate, Rate):
            raise InvalidInput("rate", rate, "must be a Rate, such as Rate(100, per=60)")
        engine = await self._context.engine()
        if not create:
            known = {*(one.name for one in await engine.control.budgets()), *self._context.app.declarations.budgets}
            if name not in known:
                raise _no_budget(name, known, CREATE)
        await engine.control.tune(name, rate, by=self._context.signed())

    async def drain(self, name: str) -> None:
        """Empty a budget, because the real limiter refused. Raises `NotFound`."""
        if not await self._context.app.budget(name).drain():
            raise _no_budget(name, {one.name for one in await (await self._context.engine()).control.budgets()})
        await audited(self._context, "limits.drain", f"budget {name}")


def _no_budget(name: str, known: Iterable[str], more: str = "") -> NotFound:
    return NotFound(f"budget {shown(name)} is not in the store. {hint(name, known)}{more}")


def key_view(one: SubqueueView) -> KeyView:
    """A key as people read it."""
    return KeyView(
        queue=one.queue,
        limit=one.limit,
        key=one.key,
        running=one.running,
        most=one.most,
        pinned=one.pinned,
        due=None if one.due is None else EPOCH + timedelta(microseconds=one.due),
        holders=tuple(map(text, one.holders)),
        name=one.name,
    )


def budget_view(name: str, bucket: Bucket, now: Instant, declared: Rate | None = None) -> BudgetView:
    """A bucket as people read it: that of a budget, or of a queue."""
    return BudgetView(
        name=name,
        rate=bucket.rate,
        tokens=level(bucket, now),
        capacity=bucket.rate.capacity,
        next_token=timedelta(microseconds=until_token(bucket, now)),
        declared=declared,
    )
