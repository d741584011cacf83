"""Limits for operators: rate budgets with what is left of them, and what runs under each limit key."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta

import msgspec
from msgspec.structs import replace

from stoker.admin.audit import audited
from stoker.admin.context import CREATE, UNCHANGED, Noun
from stoker.model.budgets import (
    ONLY,
    Budget,
    KeyBuckets,
    Rates,
    at_hand,
    names_a_measure,
)
from stoker.model.control import Tuning
from stoker.model.errors import InvalidInput, NotFound, shown
from stoker.model.ids import text
from stoker.model.job import check_name
from stoker.model.limit import check_limit_name
from stoker.model.names import hint
from stoker.model.subqueues import SubqueueView
from stoker.model.throttle import Bucket, Rate, level, until_token
from stoker.model.time import EPOCH, Instant
from stoker.model.unique import check_text

PAGE, MOST_PAGES = 1_000, 10
"""Keys that are read at once, and how often, to find those at their limit."""


class BudgetView(msgspec.Struct, frozen=True, kw_only=True):
    """One measure of a budget at one instant: its rate, the tokens at hand, and how long until the next whole one.

    `declared` is the rate that an app's code declares; it differs where people changed it. `measure` is None where the
    budget has one without a name. `keyed`: each key has so many tokens of its own, and `key` is the one shown; without
    it the tokens are those of a key that has taken none.
    """

    name: str
    rate: Rate
    tokens: float
    capacity: float
    next_token: timedelta
    declared: Rate | None = None
    measure: str | None = None
    keyed: bool = False
    key: str | None = None


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
        """Every measure of every budget, by name."""
        engine = await self._context.engine()
        now = await engine.now()
        return [view for one in await engine.control.budgets() for view in budget_views(one, now)]

    async def get(self, name: str, measure: str | None = None) -> BudgetView:
        """One measure of a budget, which must be named where it has several. Raises `NotFound`."""
        budgets = await self.list()
        found = [one for one in budgets if one.name == name]
        if not found:
            raise _no_budget(name, {one.name for one in budgets})
        named = [one for one in found if measure is None or one.measure == measure]
        if len(named) != 1:
            raise InvalidInput("measure", measure, names_a_measure(name, {one.measure or ONLY: one for one in found}))
        return named[0]

    async def buckets(self, name: str, *, key: str | None = None, limit: int = 100) -> Sequence[BudgetView]:
        """The keys of a budget that have taken tokens, each with its measures, the emptiest first; or one key.

        A key that is not in the store has all its tokens. Raises `NotFound` for an unknown budget.
        """
        engine = await self._context.engine()
        now, budgets = await engine.now(), {one.name: one for one in await engine.control.budgets()}
        if name not in budgets:
            raise _no_budget(name, budgets)
        keys = None if key is None else [check_text("budget key", key)]
        found = await engine.control.buckets(name, limit=limit, keys=keys)
        if key is not None and not found and (fresh := at_hand(budgets[name], key, None, now)) is not None:
            found = [KeyBuckets(key, fresh)]
        return [view for one in found for view in budget_views(budgets[name], now, one)]

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

    async def tune(self, name: str, rate: Rate, *, measure: str | None = None, create: bool = False) -> None:
        """Set the rate of a budget, or of one of its measures; tokens at hand are kept as far as they fit.

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
        declared = self._context.app.declarations.budgets.get(name)
        rates = Rates({measure or ONLY: rate}, declared is not None and declared.keyed)
        await engine.control.tune(name, rates, by=self._context.signed())

    async def drain(self, name: str, key: str | None = None) -> None:
        """Empty a budget, or one key of it, because the real limiter refused. Raises `NotFound`."""
        key = None if key is None else check_text("budget key", key)
        if not await self._context.app.budget(name).drain(key=key):
            known = {one.name: one for one in await (await self._context.engine()).control.budgets()}
            if name not in known:
                raise _no_budget(name, known)
            why = "has buckets for each key; name the key" if known[name].keyed else "has no keys; leave the key out"
            raise InvalidInput("budget", name, why)
        await audited(self._context, "limits.drain", f"budget {name}" + ("" if key is None else f", key {key}"))


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


def budget_views(budget: Budget, now: Instant, of_key: KeyBuckets | None = None) -> Sequence[BudgetView]:
    """Each measure of a budget, or of one key of it, as people read it."""
    rates = {} if budget.declared is None else budget.declared.rates
    buckets = budget.buckets if of_key is None else of_key.buckets
    return [
        replace(
            rate_view(budget.name, bucket, now),
            declared=rates.get(measure),
            measure=measure or None,
            keyed=budget.keyed,
            key=None if of_key is None else of_key.key,
        )
        for measure, bucket in buckets.items()
    ]


def rate_view(name: str, bucket: Bucket, now: Instant) -> BudgetView:
    """A bucket as people read it: that of a budget, or of a queue."""
    return BudgetView(
        name=name,
        rate=bucket.rate,
        tokens=level(bucket, now),
        capacity=bucket.rate.capacity,
        next_token=timedelta(microseconds=until_token(bucket, now)),
    )
