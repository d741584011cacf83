"""Budgets under several processes, and under processes that are killed: never more is spent than there is."""

from __future__ import annotations

import asyncio
import importlib
import sys
from pathlib import Path
from types import ModuleType

import pytest

from stoker import Rate, Worker
from stoker.admin import Admin
from stoker.engines.url import engine_from_url
from stoker.model.budgets import Rates, Spend
from stoker.model.errors import EngineUnavailable
from stoker.model.job import Status
from tests.faults import spenders
from tests.harness.apps import PATIENCE, becomes
from tests.harness.proxy import Proxy

ENGINES = ("sqlite", "postgres", "redis", "redis-cluster")
PROCESSES = 3


@pytest.fixture(params=[pytest.param(name, marks=pytest.mark.engine(name)) for name in ENGINES])
def url(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    of = request.getfixturevalue
    if request.param == "sqlite":
        url = f"sqlite:///{tmp_path / 'jobs.db'}"
    elif request.param == "postgres":
        base = of("postgres_url")
        url = f"{base}{'&' if '?' in base else '?'}schema={of('postgres_schema')}"
    else:
        name = request.param.replace("-", "_")
        url = f"{of(f'{name}_url')}?prefix={of(f'{name}_prefix')}"
    monkeypatch.setenv("SPENDERS_URL", url)
    return url


@pytest.mark.spec("BUDGET-22")
async def test_processes_never_overspend_a_measure(url: str) -> None:
    """Three processes spend as much as they get: one measure is used up, and the numbers of both add up."""
    app = importlib.reload(spenders)
    async with app.jobs:
        await app.jobs.declarations.store(await app.jobs.engine())
        pipe = asyncio.subprocess.PIPE
        children = [
            await asyncio.create_subprocess_exec(sys.executable, "-m", "tests.faults.spenders", stdin=pipe, stdout=pipe)
            for _ in range(PROCESSES)
        ]
        async with asyncio.timeout(PATIENCE):
            for child in children:
                assert child.stdout is not None
                assert await child.stdout.readline() == b"ready\n"
            told = await asyncio.gather(*(child.communicate(b"go\n") for child in children))
        taken = [sum(numbers) for numbers in zip(*(map(int, out.split()) for out, _ in told), strict=True)]
        for key, (requests, tokens) in ((None, taken[:2]), ("acme", taken[2:])):
            left = await levels(app, key)
            assert left == {"requests": spenders.REQUESTS - requests, "tokens": spenders.TOKENS - tokens}
            assert min(left.values()) == 0


@pytest.mark.spec("BUDGET-23")
@pytest.mark.parametrize("key", [None, "acme"], ids=["one", "key"])
async def test_a_killed_reservation_never_makes_a_budget_grow(url: str, key: str | None) -> None:
    """Its process dies by SIGKILL after it said how little it used: the estimate stays spent, and others go on."""
    app = importlib.reload(spenders)
    async with app.jobs, Worker(app.jobs, {"default": 1}, poll=0.02):
        job = await app.killed.enqueue(key)
        assert (await becomes(job, Status.DEAD)).last_error is not None
        assert await levels(app, key) == {"requests": spenders.REQUESTS - 1, "tokens": spenders.TOKENS - 400}
        fine = await app.counted.enqueue(key)
        await fine.result(PATIENCE)
        assert await levels(app, key) == {"requests": spenders.REQUESTS - 2, "tokens": spenders.TOKENS - 500}


async def levels(app: ModuleType, key: str | None) -> dict[str | None, int]:
    """What is left of each measure, in whole tokens."""
    limits = Admin(app.jobs).limits
    found = await limits.buckets("tenants", key=key) if key else [one for one in await limits.list() if not one.keyed]
    return {one.measure: int(one.tokens) for one in found}


@pytest.mark.spec("BUDGET-23")
@pytest.mark.parametrize(
    ("store", "order"),
    [
        pytest.param("redis", b'"tokens":[', marks=pytest.mark.engine("redis"), id="redis"),
        pytest.param("postgres", b"COMMIT", marks=pytest.mark.engine("postgres"), id="postgres"),
    ],
)
async def test_a_correction_whose_answer_was_lost_is_not_made_twice(
    store: str, order: bytes, request: pytest.FixtureRequest
) -> None:
    """It happened once, and the caller gets an error: tokens that are given back are not given back again."""
    of = request.getfixturevalue
    place = f"prefix={of('redis_prefix')}" if store == "redis" else f"schema={of('postgres_schema')}"
    with Proxy(of(f"{store}_url")) as proxy:
        engine = engine_from_url(f"{proxy.url}{'&' if '?' in proxy.url else '?'}{place}")
        await engine.open()
        try:
            await engine.control.tune("llm", Rates({"tokens": Rate(1, per=86_400, burst=1_000)}))
            assert (await engine.control.spend("llm", Spend({"tokens": 900}))).granted
            loss = proxy.lose_reply(order)
            with pytest.raises(EngineUnavailable):
                await engine.control.spend("llm", Spend({"tokens": -300}, corrects=True))
            assert loss.happened == 1
            [budget] = await engine.control.budgets()
            assert int(budget.buckets["tokens"].tokens) == 400
        finally:
            await engine.close()
