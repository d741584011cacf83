"""Budgets, which are read, tuned and drained, and the keys that are at their limit."""

from __future__ import annotations

from typing import Annotated, TypeAlias

from msgspec import Meta, Struct

from stoker.admin.limits import BudgetView, KeyView
from stoker.model.throttle import HIGHEST_RATE, Rate
from stoker.web.api import types as t
from stoker.web.api.endpoint import Noun, place
from stoker.web.pages.shared import hint_of, needs_everything
from stoker.web.request import RequestContext

api = Noun("limits")

KeyText: TypeAlias = Annotated[str, Meta(min_length=1, max_length=512)]


class Budgets(Struct, kw_only=True):
    """Every measure of every budget, by name; or those of the keys of one budget, the emptiest first."""

    budgets: list[BudgetView]


class MeasureQuery(t.Strict):
    """Which measure of a budget that has several."""

    measure: t.Name | None = None


class BucketsQuery(t.Strict):
    """Of one key, else of those that have taken tokens."""

    key: KeyText | None = None
    limit: t.Limit = 100


class BudgetBody(t.RateBody):
    """So many tokens per so many seconds, of one measure. `create` makes a budget that is not there."""

    n: Annotated[float, Meta(ge=1, le=HIGHEST_RATE)]
    measure: t.Name | None = None
    create: bool = False


class DrainBody(t.Strict):
    """Of one key, where each key has tokens of its own."""

    key: KeyText | None = None


class AtLimitQuery(t.Strict):
    """Of one queue, else of all."""

    queue: t.Name | None = None
    limit: t.Limit = 100


class AtLimit(Struct, kw_only=True):
    """Keys by queue and name, with the jobs that hold their places. `hint` is about a queue that is not known."""

    keys: list[KeyView]
    hint: str = ""


@api.get("/limits")
async def listed(visit: RequestContext) -> Budgets:
    """List budgets."""
    return Budgets(budgets=await visit.admin.limits.list())


@api.get("/limits/{name}")
async def read(visit: RequestContext, given: MeasureQuery) -> BudgetView:
    """Read a budget, or one of its measures."""
    return await visit.admin.limits.get(place(visit, "name"), given.measure)


@api.get("/limits/{name}/keys")
async def keys(visit: RequestContext, given: BucketsQuery) -> Budgets:
    """List the keys of a budget, the emptiest first."""
    needs_everything(visit)  # keys name tenants of every queue
    found = await visit.admin.limits.buckets(place(visit, "name"), key=given.key, limit=given.limit)
    return Budgets(budgets=list(found))


@api.put("/limits/{name}")
async def tune(visit: RequestContext, given: BudgetBody) -> BudgetView:
    """Set the rate of a budget; a new one is full."""
    needs_everything(visit)
    name = place(visit, "name")
    rate = Rate(given.n, per=given.per)
    await visit.admin.limits.tune(name, rate, measure=given.measure, create=given.create)
    return await visit.admin.limits.get(name, given.measure)


@api.post("/limits/{name}/drain")
async def drain(visit: RequestContext, given: DrainBody) -> t.Done:
    """Empty a budget, or one key of it."""
    needs_everything(visit)
    await visit.admin.limits.drain(place(visit, "name"), given.key)
    return t.Done()


@api.get("/at-limit")
async def at_limit(visit: RequestContext, given: AtLimitQuery) -> AtLimit:
    """List keys whose places are all taken while jobs wait."""
    keys = list(await visit.admin.limits.at_limit(given.queue, limit=given.limit))
    return AtLimit(keys=keys, hint="" if keys else await hint_of(visit, given.queue))
