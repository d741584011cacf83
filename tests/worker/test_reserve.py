"""Reservations: a spend before the work, and a correction after it; measures and keys in handlers."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from stoker import Rate, Snooze, Stoker, current
from stoker.admin import Admin
from stoker.model.budgets import Spend
from stoker.model.errors import EngineUnavailable, InvalidInput, StokerError
from stoker.model.job import Status
from stoker.reservation import Reservation
from stoker.testing.clock import VirtualClock
from tests.harness.apps import drain

REQUESTS, TOKENS = Rate(10, per=3600), Rate(60, per=60, burst=1000)


async def left(jobs: Stoker, key: str | None = None) -> dict[str | None, int]:
    limits = Admin(jobs).limits
    views = await limits.buckets("by", key=key) if key else [one for one in await limits.list() if one.name == "llm"]
    return {one.measure: int(one.tokens) for one in views}


@pytest.fixture
def metered(timed_jobs: Stoker) -> Stoker:
    timed_jobs.budget("llm", requests=REQUESTS, tokens=TOKENS)
    timed_jobs.budget("by", keyed=True, requests=REQUESTS, tokens=TOKENS)
    return timed_jobs


@pytest.mark.spec("BUDGET-24")
@pytest.mark.parametrize(
    ("actual", "raises", "after"),
    [
        (300, None, {"requests": 9, "tokens": 700}),
        (1500, None, {"requests": 9, "tokens": -500}),
        (None, None, {"requests": 9, "tokens": 600}),
        (0, ValueError("no"), {"requests": 9, "tokens": 1000}),
        (None, ValueError("no"), {"requests": 9, "tokens": 600}),
        (100, Snooze(60), {"requests": 9, "tokens": 900}),
    ],
    ids=["less", "more", "unsaid", "raised", "raised unsaid", "put off"],
)
@pytest.mark.parametrize("plain", [False, True], ids=["async", "sync"])
async def test_a_reservation_is_corrected_by_what_was_used(
    metered: Stoker, actual: int | None, raises: Exception | None, after: dict[str, int], plain: bool
) -> None:
    """However the block ends; what it did not say keeps its estimate."""

    def work(reserved: Reservation) -> None:
        if actual is not None:
            reserved.used(tokens=7)
            reserved.used(tokens=actual)
        if raises is not None:
            raise raises

    @metered.task(attempts=1)
    async def call() -> None:
        async with current().reserve("llm", requests=1, tokens=400) as reserved:
            work(reserved)

    @metered.task(attempts=1)
    def call_plain() -> None:
        with current().reserve("llm", requests=1, tokens=400) as reserved:
            work(reserved)

    await (call_plain if plain else call).enqueue()
    await drain(metered)
    assert await left(metered) == after


@pytest.mark.spec("BUDGET-24", "EXPLAIN-06")
async def test_a_refused_reservation_puts_the_job_off_and_is_explained(metered: Stoker, clock: VirtualClock) -> None:
    """The block does not begin; the job says which measure and key it waits for, and runs when there are enough."""
    began: list[int] = []

    @metered.task
    async def call(n: int) -> None:
        async with current().reserve("by", key="acme", requests=1, tokens=n) as reserved:
            began.append(n)
            reserved.used(tokens=n)

    await call.enqueue(1000)
    await drain(metered)
    job = await call.enqueue(12)
    await drain(metered)
    waiting = await job.refresh()
    assert (began, waiting.status, waiting.attempts) == ([1000], Status.PENDING, 0)
    assert waiting.metadata["stoker.held_by"] == "by/tokens/acme"
    why = await Admin(metered).jobs.explain(job.id)
    assert "it is held by budget 'by', measure tokens, key acme, which refused it 12 tokens" in why.detail
    assert "; the budget has as many in about 12.0 s, at " in why.detail
    with pytest.raises(TimeoutError, match="held by budget 'by', measure tokens, key acme"):
        await job.result(0)
    assert await left(metered, "acme") == {"requests": 9, "tokens": 0}
    assert await left(metered, "other") == {"requests": 10, "tokens": 1000}
    clock.advance(12)
    await drain(metered)
    assert began == [1000, 12]


@pytest.mark.spec("BUDGET-21", "BUDGET-11")
@pytest.mark.parametrize(
    ("asked", "says"),
    [
        ({"words": 1}, "'words' is no measure of budget 'llm', which has requests, tokens"),
        ({}, "a number without a name is no measure of budget 'llm'"),
        ({"n": 1, "tokens": 1}, "cannot go with tokens; name every measure"),
        ({"tokens": 0}, "spend(tokens): must be a number, at least 1"),
        ({"tokens": -1}, "spend(tokens): must be a number, at least 1"),
        ({"tokens": 1001}, "'llm', measure tokens is declared to hold at most 1,000 tokens, which is below the 1,001"),
        ({"tokens": 1, "key": "acme"}, "has no keys, and key='acme' was given: declare it with keyed=True"),
    ],
)
async def test_a_spend_that_cannot_be_granted_is_an_error(metered: Stoker, asked: dict[str, Any], says: str) -> None:
    """In a handler, with a sentence that says what is wrong; nothing is taken."""

    @metered.task(attempts=1)
    async def call() -> None:
        await current().spend("llm", **asked)

    @metered.task(attempts=1)
    async def reserve() -> None:
        async with current().reserve("llm", **asked):
            raise AssertionError

    made = [await call.enqueue(), await reserve.enqueue()]
    await drain(metered)
    for job in made:
        record = await job.refresh()
        assert record.status is Status.DEAD
        assert says in (record.last_error or "")
    assert await left(metered) == {"requests": 10, "tokens": 1000}


@pytest.mark.spec("BUDGET-21")
async def test_code_outside_handlers_spends_measures_and_keys(metered: Stoker) -> None:
    """A refusal is false, names the measure and says when there are enough; mistakes of the code raise."""
    await drain(metered)  # a worker stores the declarations
    assert await metered.spend("llm", requests=1, tokens=990)
    grant = await metered.spend("llm", requests=1, tokens=30)
    assert (bool(grant), grant.measure, grant.wait.total_seconds()) == (False, "tokens", 20)
    assert grant.reason == "budget 'llm', measure tokens has fewer than 30 tokens now; it has enough in about 20.0 s"
    with pytest.raises(InvalidInput, match="has buckets for each key: say whose tokens to take with key="):
        await metered.spend("by", requests=1)
    assert await metered.budget("by").spend(requests=1, key="acme")
    assert await metered.budget("by").drain(key="acme")
    assert await left(metered, "acme") == {"requests": 0, "tokens": 0}
    assert not await metered.budget("by").drain()
    others: list[dict[str, Any]] = [{"requests": Rate(1)}, {"rate": Rate(1)}]
    for wrong in (*others, {"requests": REQUESTS, "tokens": TOKENS, "keyed": True}):
        with pytest.raises(InvalidInput, match="budget 'llm' is declared with requests=10 per hour, tokens=60 per min"):
            metered.budget("llm", **wrong)
    with pytest.raises(InvalidInput, match="belongs to a declaration"):
        metered.budget("new", keyed=True)
    with pytest.raises(InvalidInput, match="must be a Rate"):
        await metered.budget("new").tune()
    other = Stoker(await metered.engine())
    assert "'words' is no measure of budget 'llm'" in ((await other.spend("llm", words=1)).reason or "")
    assert "has buckets for each key" in ((await other.spend("by", tokens=1)).reason or "")
    await other.budget("llm").tune(tokens=Rate(60, per=60, burst=20))
    above = await other.spend("llm", tokens=30)
    assert "was tuned to hold at most 20 tokens (its code declares 1,000)" in (above.reason or "")


@pytest.mark.spec("BUDGET-24")
async def test_what_a_reservation_is_told_is_checked(metered: Stoker) -> None:
    await drain(metered)
    reserved = Reservation(metered, "llm", Spend({"requests": 1, "tokens": 10}))
    async with reserved:
        for n in (-1, float("inf"), 10**15, True, "5", None):
            with pytest.raises(InvalidInput, match=r"used\(tokens\): must be a number, at least 0"):
                reserved.used(tokens=n)  # type: ignore[arg-type]
        with pytest.raises(InvalidInput, match=r"used\(words\): was not reserved"):
            reserved.used(words=1)
        with pytest.raises(InvalidInput, match="was not reserved; this block took requests, tokens"):
            reserved.used(5)
        with pytest.raises(StokerError, match="has taken its tokens already"):
            await reserved.__aenter__()
    assert await left(metered) == {"requests": 9, "tokens": 990}
    single = metered.budget("geo", Rate(10))
    await single.tune(Rate(10))
    async with Reservation(metered, "geo", Spend({"": 5})) as one:
        one.used(2)
    assert [int(view.tokens) for view in await Admin(metered).limits.list() if view.name == "geo"] == [8]


@pytest.mark.spec("BUDGET-24")
async def test_a_store_that_is_away_at_the_end_of_a_block_fails_no_run(
    metered: Stoker, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The estimate stays spent, which is logged."""
    await drain(metered)
    engine = await metered.engine()

    async def away(*_: object, **__: object) -> None:
        raise EngineUnavailable("the store is away")

    with caplog.at_level(logging.WARNING, "stoker.budget"):
        async with Reservation(metered, "llm", Spend({"tokens": 10})) as reserved:
            reserved.used(tokens=1)
            monkeypatch.setattr(engine.control, "spend", away)
    monkeypatch.undo()
    assert "budget llm was not corrected to what a run has used" in caplog.text
    assert await left(metered) == {"requests": 10, "tokens": 990}
