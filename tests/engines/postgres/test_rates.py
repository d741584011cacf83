"""Claims from queues with a rate: what they cost, and what is left when they fail halfway."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator, Sequence
from typing import Any

import psycopg
import pytest

from stoker.engines.postgres import PostgresEngine, claim
from stoker.engines.postgres.connection import Connection
from stoker.engines.sql.exchanges import Row
from stoker.model.control import Tuning
from stoker.model.errors import EngineUnavailable
from stoker.model.ids import Mint
from stoker.model.job import Claim, Demand, Draft, Status
from stoker.model.query import Query, RunNow, Selection
from stoker.model.throttle import Rate

pytestmark = pytest.mark.engine("postgres")
mint = Mint(lambda: time.time_ns() // 1000, os.urandom)
SLOW = Rate(1, per=3600, burst=5)


@pytest.fixture
async def engine(postgres_url: str, postgres_schema: str) -> AsyncIterator[PostgresEngine]:
    engine = PostgresEngine(postgres_url, schema=postgres_schema)
    await engine.open()
    await engine.jobs.renew("w1", [], first=True)
    await engine.jobs.insert([Draft(mint(), "work", queue=queue) for queue in ("plain", "rated") for _ in range(20)])
    yield engine
    await engine.close()


@pytest.fixture
def sent(engine: PostgresEngine, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The statements that the engine sends, by name."""
    names = {text: name for name, text in engine._store.texts.items()}
    found: list[str] = []
    run, command = Connection.run, Connection.command

    async def counted(self: Connection, text: str, values: Sequence[Any], patience: float) -> list[Row]:
        found.append(names.get(text, "several in one"))
        return await run(self, text, values, patience)

    async def told(self: Connection, text: str, patience: float) -> None:
        found.append(text.split(maxsplit=1)[0])
        await command(self, text, patience)

    monkeypatch.setattr(Connection, "run", counted)
    monkeypatch.setattr(Connection, "command", told)
    return found


async def take(engine: PostgresEngine, *queues: str, n: int = 3) -> list[Claim]:
    return await engine.jobs.claim(Demand("w1", tuple((queue, n) for queue in queues)))


async def tokens(engine: PostgresEngine) -> float:
    [bucket] = [queue.bucket for queue in await engine.control.queues() if queue.name == "rated"]
    assert bucket is not None
    return bucket.tokens


@pytest.mark.spec("RATE-13")
async def test_a_claim_from_plain_queues_is_one_statement(engine: PostgresEngine, sent: list[str]) -> None:
    """Also while another queue has a rate; learning of a rate costs one statement more, once."""
    await engine.control.tune("rated", Tuning(rate=SLOW))
    sent.clear()
    assert len(await take(engine, "plain")) == 3
    assert sent == ["claim"]
    sent.clear()
    rated = ["BEGIN", "queue_claim", "claim_rated", "queue_tokens", "COMMIT"]
    assert len(await take(engine, "rated")) == 3
    assert sent == ["claim", *rated]
    sent.clear()
    assert len(await take(engine, "rated")) == 2
    assert sent == rated
    sent.clear()
    assert await take(engine, "rated") == []
    assert sent == ["BEGIN", "queue_claim", "COMMIT"]
    page = await engine.operator.find(Query(queues=frozenset({"rated"}), statuses=frozenset({Status.PENDING}), limit=1))
    await engine.operator.alter(Selection(ids=(page.jobs[0].id,)), RunNow(first=True))
    sent.clear()
    assert [one.id for one in await take(engine, "rated")] == [page.jobs[0].id]
    assert [name for name in sent if name != "notify"] == rated, "but for the wake-up of the change, sent beside it"


@pytest.mark.spec("RATE-14")
@pytest.mark.parametrize("fails", ["queue_tokens", "COMMIT"])
async def test_a_claim_that_fails_spends_nothing_and_hides_no_job(
    engine: PostgresEngine, sent: list[str], monkeypatch: pytest.MonkeyPatch, fails: str
) -> None:
    """The rollback puts the jobs back, and the cursor that had moved behind them begins anew."""
    await engine.control.tune("rated", Tuning(rate=SLOW))
    assert len(await take(engine, "rated", n=1)) == 1
    run, command = Connection.run, Connection.command
    text = engine._store.texts.get(fails, fails)

    async def broken_run(self: Connection, given: str, values: Sequence[Any], patience: float) -> list[Row]:
        if given == text:
            raise EngineUnavailable("the connection died")
        return await run(self, given, values, patience)

    async def broken_command(self: Connection, given: str, patience: float) -> None:
        if given == text:
            await self.rollback()
            raise EngineUnavailable("the connection died")
        await command(self, given, patience)

    with monkeypatch.context() as patch:
        patch.setattr(Connection, "run", broken_run)
        patch.setattr(Connection, "command", broken_command)
        with pytest.raises(EngineUnavailable):
            await take(engine, "rated")
    assert await tokens(engine) == pytest.approx(4, abs=0.1)
    assert len(await take(engine, "rated", n=9)) == 4
    census = await engine.operator.census()
    assert {count.n for count in census.counts if count.queue == "rated"} == {5, 15}


@pytest.mark.spec("RATE-14")
async def test_an_open_transaction_on_the_queues_row_delays_no_other_queue(
    engine: PostgresEngine, postgres_url: str, postgres_schema: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A claim of that queue gives up soon and empty-handed; nothing is spent, and afterwards it goes on."""
    monkeypatch.setattr(claim, "LOCK_WAIT", 3.0)  # longer than the claim beside it takes on a busy machine
    await engine.control.tune("rated", Tuning(rate=SLOW))
    await take(engine, "rated", n=1)
    with psycopg.connect(postgres_url) as user:
        user.execute(f"SELECT 1 FROM {postgres_schema}.queue WHERE name = 'rated' FOR UPDATE".encode())
        waiting = asyncio.create_task(take(engine, "rated"))
        await asyncio.sleep(0.02)
        assert len(await take(engine, "plain")) == 3
        assert not waiting.done()
        assert await waiting == []
    assert len(await take(engine, "rated")) == 3


@pytest.mark.spec("RATE-03")
async def test_a_claim_beside_one_that_has_not_written_its_tokens_yet_starts_nothing(
    engine: PostgresEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The jobs that the first one took are gone from the queue, their tokens are not: the second waits for the row."""
    monkeypatch.setattr(claim, "LOCK_WAIT", 3.0)  # longer than the claim beside it takes on a busy machine
    await engine.control.tune("rated", Tuning(rate=SLOW))
    await take(engine, "rated", n=1)
    twin = engine.for_loop()
    await twin.open()
    reached, go_on = asyncio.Event(), asyncio.Event()
    run, text = Connection.run, engine._store.texts["queue_tokens"]

    async def held(self: Connection, given: str, values: Sequence[Any], patience: float) -> list[Row]:
        if given == text:
            reached.set()
            await go_on.wait()
        return await run(self, given, values, patience)

    monkeypatch.setattr(Connection, "run", held)
    first = asyncio.create_task(take(engine, "rated", n=3))
    await reached.wait()
    assert await take(twin, "rated", n=9) == []
    go_on.set()
    assert len(await first) == 3
    assert len(await take(twin, "rated", n=9)) == 1
    assert await take(engine, "rated", n=9) == []
    await twin.close()
