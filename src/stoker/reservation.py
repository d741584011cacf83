"""A block that takes tokens of a budget before the work and corrects the number after it."""

from __future__ import annotations

import logging
from types import TracebackType
from typing import TYPE_CHECKING, Self

from msgspec.structs import replace

from stoker.model.budgets import Spend, address, asked_of
from stoker.model.errors import AWAY, InvalidInput, StokerError, sentence
from stoker.model.outcome import Held, OutOfTokens
from stoker.model.throttle import HIGHEST_RATE
from stoker.model.time import SECOND

if TYPE_CHECKING:
    from stoker.app import Stoker
    from stoker.controls import BudgetHandle

logger = logging.getLogger("stoker.budget")


async def take(budget: BudgetHandle, spend: Spend) -> None:
    """Take tokens, or end the run: the job asks again later. What can never be granted is refused."""
    grant, refused = await budget.request(spend)
    if refused is None:
        return
    if refused.mistaken:
        n = spend.asked.get(grant.measure, next(iter(spend.asked.values())))
        raise InvalidInput(f"spend({budget.name!r}, {grant.measure or 'n'})", n, refused.why)
    where, n = address(budget.name, grant.measure, spend.key), spend.asked.get(grant.measure, 1)
    raise OutOfTokens(grant.wait / SECOND, Held(where, n, refused.why if refused.lasting else None))


class Reservation:
    """Tokens that a block has taken ahead, by an estimate.

    At the end of the block, also when it raises, the budget gets back what `used` says was too much, and gives what was
    too little, below zero if need be. Without a call of `used` the estimate stays spent.
    """

    __slots__ = ("_app", "_budget", "_spend", "_taken", "_used")

    def __init__(self, app: Stoker, budget: str, spend: Spend) -> None:
        self._app, self._spend = app, spend
        self._budget = app.budget(budget)
        self._used: dict[str, int] = {}
        self._taken = False

    def __repr__(self) -> str:
        return f"<Reservation {self._budget.name}>"

    def used(self, n: int | None = None, **measures: int) -> None:
        """Say how many tokens were used in all. Measures that are not named keep their estimate; the last call counts.

        It changes nothing in the store; the end of the block does.
        """
        for measure, actual in asked_of(n, measures).items():
            if measure not in self._spend.asked:
                reserved = ", ".join(name or "a number" for name in self._spend.asked)
                raise InvalidInput(f"used({measure or 'n'})", actual, f"was not reserved; this block took {reserved}")
            if isinstance(actual, bool) or not isinstance(actual, int | float) or not 0 <= actual <= HIGHEST_RATE:
                why = f"must be a number, at least 0 and at most {HIGHEST_RATE:,}"
                raise InvalidInput(f"used({measure or 'n'})", actual, why)
            self._used[measure] = actual

    async def __aenter__(self) -> Self:
        if self._taken:
            raise StokerError(f"{self!r} has taken its tokens already; call reserve for each block")
        await take(self._budget, self._spend)
        self._taken = True
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        more = {name: n - self._spend.asked[name] for name, n in self._used.items() if n != self._spend.asked[name]}
        if not more:
            return
        try:
            engine = await self._app.engine()
            await engine.control.spend(self._budget.name, replace(self._spend, asked=more, corrects=True))
        except AWAY as away:
            logger.warning(
                "budget %s was not corrected to what a run has used, because the store did not answer: %s The estimate "
                "stays spent, and the run goes on.",
                self._budget.name,
                sentence(away),
            )

    def __enter__(self) -> Self:
        return self._app.run(self.__aenter__(), instead=f"`async with reserve({self._budget.name!r})`")

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._app.run(self.__aexit__(kind, error, trace), instead=f"`async with reserve({self._budget.name!r})`")
