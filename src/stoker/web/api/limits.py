"""Budgets, which are read, tuned and drained, and the keys that are at their limit."""

from __future__ import annotations

from msgspec import Struct

from stoker.admin.limits import BudgetView, KeyView
from stoker.model.throttle import Rate
from stoker.web.api import types as t
from stoker.web.api.endpoint import Noun, place
from stoker.web.pages.shared import hint_of, needs_everything
from stoker.web.request import RequestContext

api = Noun("limits")


class Budgets(Struct, kw_only=True):
    """Every budget, by name."""

    budgets: list[BudgetView]


class BudgetBody(t.RateBody):
    """So many tokens per so many seconds. `create` makes a budget that is not there."""

    create: bool = False


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
async def read(visit: RequestContext) -> BudgetView:
    """Read a budget."""
    return await visit.admin.limits.get(place(visit, "name"))


@api.put("/limits/{name}")
async def tune(visit: RequestContext, given: BudgetBody) -> BudgetView:
    """Set the rate of a budget; a new one is full."""
    needs_everything(visit)
    name = place(visit, "name")
    await visit.admin.limits.tune(name, Rate(given.n, per=given.per), create=given.create)
    return await visit.admin.limits.get(name)


@api.post("/limits/{name}/drain")
async def drain(visit: RequestContext, given: t.NoBody) -> t.Done:  # noqa: ARG001 - nothing is said in it
    """Empty a budget."""
    needs_everything(visit)
    await visit.admin.limits.drain(place(visit, "name"))
    return t.Done()


@api.get("/at-limit")
async def at_limit(visit: RequestContext, given: AtLimitQuery) -> AtLimit:
    """List keys whose places are all taken while jobs wait."""
    keys = list(await visit.admin.limits.at_limit(given.queue, limit=given.limit))
    return AtLimit(keys=keys, hint="" if keys else await hint_of(visit, given.queue))
