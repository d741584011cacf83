"""A group of requests that share a transaction, and what became of it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from stoker.engines.sql.steps import Steps
from stoker.engines.sqlite import claim, insert, settle
from stoker.engines.sqlite.unit_of_work import Unit
from stoker.model.job import Demand, Draft, Receipt, Settled, Settlement, Verdict


class Request:
    """Something to be done in a transaction.

    `strict`: acknowledged only when the disk has it. `bare`: its one write comes first and needs no transaction when it
    is alone.
    """

    __slots__ = ("bare", "demand", "drafts", "future", "make", "settlements", "strict", "weight")

    def __init__(
        self,
        future: asyncio.Future[Any],
        *,
        strict: bool,
        bare: bool = False,
        make: Callable[[Unit], Steps[Any]] | None = None,
        drafts: Sequence[Draft] | None = None,
        settlements: Sequence[Settlement] | None = None,
        demand: Demand | None = None,
    ) -> None:
        self.future = future
        self.strict = strict
        self.bare = bare
        self.make = make
        self.drafts = drafts
        self.settlements = settlements
        self.demand = demand
        self.weight = len(drafts or ()) + len(settlements or ())


def together(unit: Unit, group: Sequence[Request]) -> Steps[list[Any]]:
    """All requests of a group: inserts, then settlements, then claims and the rest. Answers in the group's order."""
    yield from unit.begin()
    answers: dict[Request, Any] = {}
    yield from _inserts(unit, [request for request in group if request.drafts is not None], answers)
    yield from _settles(unit, [request for request in group if request.settlements is not None], answers)
    for request in group:
        if request.demand is not None:
            taken = yield from claim.claim(unit, request.demand)
            answers[request] = Settled(answers[request], taken) if request.settlements is not None else taken
        elif request.settlements is not None:
            answers[request] = Settled(answers[request], [])
        elif request.make is not None:
            answers[request] = yield from request.make(unit)
    yield from unit.end()
    return [answers[request] for request in group]


def _inserts(unit: Unit, requests: list[Request], answers: dict[Request, Any]) -> Steps[None]:
    plain = [request for request in requests if all(draft.unique is None for draft in request.drafts or ())]
    if len(plain) > 1:
        receipts: list[Receipt] = yield from insert.insert(
            unit, [draft for request in plain for draft in request.drafts or ()]
        )
        start = 0
        for request in plain:
            end = start + len(request.drafts or ())
            answers[request] = receipts[start:end]
            start = end
    for request in requests:
        if request not in answers:
            answers[request] = yield from insert.insert(unit, request.drafts or ())


def _settles(unit: Unit, requests: list[Request], answers: dict[Request, Any]) -> Steps[None]:
    if len(requests) == 1:
        answers[requests[0]] = yield from settle.settle(unit, requests[0].settlements or ())
    elif requests:
        verdicts: list[Verdict] = yield from settle.settle(
            unit, [settlement for request in requests for settlement in request.settlements or ()]
        )
        start = 0
        for request in requests:
            end = start + len(request.settlements or ())
            answers[request] = verdicts[start:end]
            start = end


class Outcome:
    """What became of a group: an answer or an error for each request, and whom to wake."""

    __slots__ = ("answers", "dropped", "errors", "rung", "woken")

    def __init__(self) -> None:
        self.answers: dict[Request, Any] = {}
        self.errors: dict[Request, BaseException] = {}
        self.woken: set[str] = set()
        self.rung = False
        self.dropped = 0

    def failed(self, group: Sequence[Request], error: BaseException) -> Outcome:
        self.answers.clear()
        self.woken.clear()
        self.errors.update(dict.fromkeys(group, error))
        return self

    def join(self, other: Outcome) -> None:
        """Add what became of another group."""
        self.answers.update(other.answers)
        self.errors.update(other.errors)
        self.woken |= other.woken
        self.dropped = max(self.dropped, other.dropped)

    def take(self, unit: Unit, group: Sequence[Request], answers: list[Any]) -> None:
        self.answers.update(zip(group, answers, strict=True))
        self.woken |= unit.woken
        self.dropped = max(self.dropped, unit.dropped)
