"""Limits for operators: rate budgets with what is left of them, and how to tune and drain them."""

from __future__ import annotations

from datetime import timedelta

import msgspec

from stoker.admin.asking import Asking
from stoker.admin.audit import audited
from stoker.model.control import Budget
from stoker.model.errors import InvalidInput, NotFound
from stoker.model.job import check_name
from stoker.model.throttle import Rate, level, until_token
from stoker.model.time import Instant


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


class LimitsAdmin:
    """Questions about budgets, and changes to them."""

    def __init__(self, asking: Asking) -> None:
        self._asking = asking

    async def list(self) -> list[BudgetView]:
        """Every budget, by name."""
        engine = await self._asking.engine()
        now = await engine.now()
        return [_view(one, now) for one in await engine.budgets()]

    async def get(self, name: str) -> BudgetView:
        """One budget. Raises `NotFound`."""
        found = next((one for one in await self.list() if one.name == name), None)
        if found is None:
            raise NotFound(f"budget {name!r} is not in the store")
        return found

    async def tune(self, name: str, rate: Rate) -> None:
        """Set a budget's rate; tokens at hand are kept as far as they fit. A new budget is full."""
        check_name("budget", name)
        if not isinstance(rate, Rate):
            raise InvalidInput("rate", rate, "must be a Rate, such as Rate(100, per=60)")
        engine = await self._asking.engine()
        await engine.tune(name, rate, by=self._asking.signed())

    async def drain(self, name: str) -> None:
        """Empty a budget, because the real limiter refused. Raises `NotFound`."""
        if not await self._asking.app.budget(name).drain():
            raise NotFound(f"budget {name!r} is not in the store")
        await audited(self._asking, "limits.drain", f"budget {name}")


def _view(one: Budget, now: Instant) -> BudgetView:
    return BudgetView(
        name=one.name,
        rate=one.bucket.rate,
        tokens=level(one.bucket, now),
        capacity=one.bucket.rate.capacity,
        next_token=timedelta(microseconds=until_token(one.bucket, now)),
        declared=one.declared,
    )
