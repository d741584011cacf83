"""Large batches: they go in parts, have the time they need, and a lost answer is not taken for a store that is away."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from stoker import Stoker
from stoker.engines.redis import RedisEngine, connection
from stoker.engines.redis.connection import LARGEST_CALL, SLOWEST
from stoker.model.errors import EngineUnavailable
from stoker.model.job import LARGEST_PAYLOAD, Demand, Draft, Stored, Verdict
from stoker.model.lifecycle import conclude
from stoker.model.outcome import Done
from stoker.registry import mint
from tests.harness.proxy import Proxy

pytestmark = pytest.mark.engine("redis")

LARGE = b'"' + b"x" * (LARGEST_PAYLOAD - 2) + b'"'
OVERHEAD = 64 << 10


def drafts(n: int, payload: bytes = LARGE) -> list[Draft]:
    return [Draft(mint(), "work", payload) for _ in range(n)]


@pytest.fixture(params=["redis_url", "redis_cluster_url"], ids=["redis", "cluster"])
def server(request: pytest.FixtureRequest) -> str:
    """The URL of a single Redis, and of a cluster."""
    return str(request.getfixturevalue(request.param))


def sizes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How much each call sends from now on."""
    found: list[int] = []
    packed = connection._packed

    def weighed(commands: Any) -> bytes:
        data = packed(commands)
        found.append(len(data))
        return data

    monkeypatch.setattr(connection, "_packed", weighed)
    return found


@pytest.mark.spec("LARGE-01")
async def test_a_large_batch_goes_in_parts(redis_url: str, redis_prefix: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Drafts, enqueues that happen to come together, and results: no call carries more than eight megabytes."""
    found = sizes(monkeypatch)
    app = Stoker(redis_url, prefix=redis_prefix, timeline=False)
    async with app:
        receipts = await app.enqueue_many(drafts(20))
        assert {receipt.stored for receipt in receipts} == {Stored.INSERTED}
        engine = await app.engine()
        together = await asyncio.gather(*(engine.jobs.insert([draft]) for draft in drafts(20)))
        assert {receipt.stored for [receipt] in together} == {Stored.INSERTED}
        assert LARGEST_CALL // 2 < max(found) <= LARGEST_CALL + OVERHEAD
        await engine.jobs.renew("w", [], first=True)
        claims = await engine.jobs.claim(Demand("w", (("default", 40),)))
        assert len(claims) == 40
        found.clear()
        settled = await engine.jobs.settle([conclude(claim, Done(LARGE)) for claim in claims])
        assert settled.verdicts == [Verdict.APPLIED] * 40
        assert sum(found) > 40 * len(LARGE)
        assert max(found) <= LARGEST_CALL + OVERHEAD


@pytest.mark.spec("LARGE-02")
async def test_the_time_limit_grows_with_what_is_sent(
    server: str, redis_prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits: list[float] = []
    timeout = asyncio.timeout

    def noted(seconds: float | None) -> asyncio.Timeout:
        limits.append(seconds or 0.0)
        return timeout(seconds)

    engine = RedisEngine(server, prefix=redis_prefix, timeout=7)
    await engine.open()
    try:
        await engine.jobs.insert(drafts(1, b"{}"))
        monkeypatch.setattr(asyncio, "timeout", noted)
        await engine.jobs.insert(drafts(1, b"{}"))
        assert 7 < max(limits) < 7.1
        limits.clear()
        await engine.jobs.insert(drafts(4))
        assert 7 + 4 * len(LARGE) / SLOWEST < max(limits) < 7.1 + 4 * len(LARGE) / SLOWEST
    finally:
        await engine.close()


@pytest.mark.spec("LARGE-02")
async def test_what_arrives_of_a_long_answer_moves_the_time_limit_on(
    server: str, redis_prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    moved: list[float] = []
    reschedule = asyncio.Timeout.reschedule

    def noted(self: asyncio.Timeout, when: float | None) -> None:
        if self.when() is not None and when is not None:
            moved.append(when - (self.when() or 0.0))
        reschedule(self, when)

    engine = RedisEngine(server, prefix=redis_prefix)
    await engine.open()
    try:
        await engine.jobs.insert(drafts(4))
        await engine.jobs.renew("w", [], first=True)
        monkeypatch.setattr(asyncio.Timeout, "reschedule", noted)
        assert len(await engine.jobs.claim(Demand("w", (("default", 4),)))) == 4
        assert sum(moved) == pytest.approx(4 * len(LARGE) / SLOWEST, rel=0.05), "a second for each megabyte"
        assert min(moved) >= 0
    finally:
        await engine.close()


@pytest.mark.spec("LARGE-03")
async def test_an_insert_whose_answer_is_lost_is_looked_for(redis_url: str, redis_prefix: str) -> None:
    """The store has everything and says so on another connection: the caller gets its receipts, not an error."""
    with Proxy(redis_url) as proxy:
        engine = RedisEngine(proxy.url, prefix=redis_prefix, timeout=2, patience=0.1)
        await engine.open()
        try:
            await engine.jobs.insert(drafts(1, b"{}"))
            batch = drafts(5, b'{"n":1}')
            loss = proxy.lose_reply(batch[0].job_id, then="silence")
            receipts = await engine.jobs.insert(batch)
            assert loss.happened == 1
            assert [receipt.id for receipt in receipts] == [draft.job_id for draft in batch]
            assert {receipt.stored for receipt in receipts} == {Stored.INSERTED}
        finally:
            await engine.close()


@pytest.mark.spec("LARGE-03")
async def test_a_server_that_is_too_slow_is_not_called_unreachable(redis_url: str, redis_prefix: str) -> None:
    with Proxy(redis_url) as proxy:
        engine = RedisEngine(proxy.url, prefix=redis_prefix, timeout=1, patience=0.1)
        await engine.open()
        try:
            await engine.jobs.insert(drafts(1, b"{}"))
            proxy.blackhole()
            with pytest.raises(EngineUnavailable, match="did not answer within the time limit"):
                await engine.jobs.insert(drafts(1, b"{}"))
            proxy.refuse()
            with pytest.raises(EngineUnavailable, match="cannot be reached"):
                await engine.jobs.insert(drafts(1, b"{}"))
        finally:
            await engine.close()
