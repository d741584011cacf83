"""What a block costs on Postgres, in round trips to the server."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from typing import Any

import asyncpg
import psycopg
import pytest

from stoker.app import Stoker
from stoker.context import current, running
from stoker.engines.postgres import PostgresEngine, user_transaction
from stoker.engines.postgres.connection import Connection
from stoker.engines.postgres.user_transaction import Own
from stoker.engines.sql.user_handles import handles
from stoker.model.control import Tuning
from stoker.model.errors import EngineError
from stoker.model.job import Claim, Demand, Draft, Status, Verdict
from stoker.model.lifecycle import conclude
from stoker.model.outcome import Done, Failed
from stoker.model.query import Cancel, Selection
from stoker.model.time import HOUR
from stoker.registry import mint
from stoker.task import Task
from stoker.worker import Worker

pytestmark = pytest.mark.engine("postgres")

JOBS = 200


WARMING = 20


async def drained(jobs: Stoker, task: Task[..., None], number: int) -> None:
    """Enqueue jobs and run them."""
    await jobs.enqueue_many([task.draft(n) for n in range(number)])
    worker = Worker(jobs, {"default": 10}, drain=True)
    await worker.start()
    await worker.join()
    await worker.stop()


def inside() -> bool:
    """Whether this is done for one job, in its handler."""
    return running.get(None) is not None


@pytest.mark.spec("BLOCK-21")
async def test_a_block_takes_three_round_trips(
    monkeypatch: pytest.MonkeyPatch, postgres_url: str, postgres_schema: str
) -> None:
    """Begin and fence, the user's statement, settlement and commit; what is outside of handlers is for many jobs.
    The worker settles nothing more.

    Jobs that are claimed before it is known that their kind opens blocks share a lease, and are held by a statement
    more; the last of a lease is then settled by one more.
    """
    trips = Counter[str]()
    run, command, execute = Connection.run, Connection.command, Own.execute

    async def counted_run(self: Connection, text: str, values: Sequence[Any], patience: float) -> Any:
        trips["run"] += inside()
        return await run(self, text, values, patience)

    async def counted_command(self: Connection, text: str, patience: float) -> None:
        trips[text.split(maxsplit=1)[0]] += inside()
        await command(self, text, patience)

    async def counted_execute(self: Own, statement: str, values: Sequence[Any]) -> Any:
        trips["user"] += inside()
        return await execute(self, statement, values)

    with psycopg.connect(postgres_url, autocommit=True) as connection:
        connection.execute(f'CREATE TABLE "{postgres_schema}".effects (n integer)'.encode())
    jobs = Stoker(f"{postgres_url}?schema={postgres_schema}", timeline=False)

    @jobs.task
    async def charge(n: int) -> None:
        async with current().transaction() as tx:
            await tx.execute(f'INSERT INTO "{postgres_schema}".effects VALUES ($1)', n)

    async with jobs:
        await drained(jobs, charge, WARMING)
        await jobs.enqueue_many([charge.draft(n) for n in range(JOBS)])
        worker = Worker(jobs, {"default": 10}, drain=True)
        await worker.start()
        settle = worker.engine.jobs.settle

        async def counted_settle(*arguments: Any, **options: Any) -> Any:
            trips["settle"] += 1
            return await settle(*arguments, **options)

        monkeypatch.setattr(Connection, "run", counted_run)
        monkeypatch.setattr(Connection, "command", counted_command)
        monkeypatch.setattr(Own, "execute", counted_execute)
        monkeypatch.setattr(worker.engine.jobs, "settle", counted_settle)
        await worker.join()
        monkeypatch.undo()
        await worker.stop()
    assert worker.counts[Status.DONE] == JOBS
    assert {name: n for name, n in trips.items() if n} == {"BEGIN": JOBS, "user": JOBS, "SELECT": JOBS}


@pytest.fixture
async def engine(postgres_url: str, postgres_schema: str) -> AsyncIterator[PostgresEngine]:
    made = PostgresEngine(postgres_url, schema=postgres_schema)
    await made.open()
    await made.jobs.renew("w1", [], first=True)
    yield made
    await made.close()


async def claimed(engine: PostgresEngine, *kinds: str) -> list[Claim]:
    await engine.jobs.insert([Draft(job_id=mint(), kind=kind) for kind in kinds])
    return await engine.jobs.claim(Demand("w1", (("default", len(kinds)),)))


def leases(claims: list[Claim]) -> list[int]:
    """How many jobs were claimed with the lease of each."""
    return [claim.ref.lease.size for claim in claims]


@pytest.mark.spec("BLOCK-23")
async def test_jobs_of_blocks_get_leases_of_their_own(engine: PostgresEngine) -> None:
    """Only those of kinds whose last success was that of a block; all are claimed in their order and can be ended."""
    claims = await claimed(engine, "charge", "charge", "mail", "mail")
    assert leases(claims) == [4] * 4
    async with engine.transaction() as tx:
        held = await engine.outbox.hold(claims[0], tx=tx)
        assert held is not None
        assert await engine.outbox.settle_last(conclude(held, Done()), tx=tx)
    await engine.jobs.settle([conclude(claim, Done()) for claim in claims[2:]])
    kinds = ["charge", "mail", "charge", "mail", "charge"]
    claims = await claimed(engine, *kinds)
    assert [claim.kind for claim in claims] == kinds
    assert leases(claims) == [1, 2, 1, 2, 1]
    assert len({claim.ref.lease.id for claim in claims}) == 4
    found = await engine.jobs.renew("w1", [(claim.id, claim.token) for claim in claims])
    assert (found.known, found.lost) == (True, [])
    verdicts = (await engine.jobs.settle([conclude(claim, Done()) for claim in claims])).verdicts
    assert verdicts == [Verdict.APPLIED] * 5
    assert leases(await claimed(engine, "charge", "charge")) == [2, 2]


@pytest.mark.spec("BLOCK-22")
async def test_texts_cross_as_they_are(postgres_url: str, postgres_schema: str) -> None:
    """The settlement that goes with the commit is a text without values, whatever the server makes of backslashes."""
    name = "w'1\\"
    for conforming in ("on", "off"):
        url = (
            f"{postgres_url}?options=-c%20standard_conforming_strings%3D{conforming}%20-c%20escape_string_warning%3Doff"
        )
        engine = PostgresEngine(url, schema=postgres_schema)
        await engine.open()
        await engine.jobs.renew(name, [], first=True)
        results = [b'"\'; COMMIT; --"', b'"\\\\\' \\n"', '"é\U0001f389 $1 %s"'.encode(), b"null"]
        for result in results:
            await engine.jobs.insert([Draft(job_id=mint(), kind="charge")])
            [claim] = await engine.jobs.claim(Demand(name, (("default", 1),)))
            async with engine.transaction() as tx:
                held = await engine.outbox.hold(claim, tx=tx)
                assert held is not None
                assert await tx.execute("SHOW standard_conforming_strings", ()) == [(conforming,)]
                assert await engine.outbox.settle_last(conclude(held, Done(result)), tx=tx)
            [job] = await engine.operator.get([claim.id])
            assert job is not None
            assert (job.status, job.result) == (Status.DONE, result)
        await engine.close()


@pytest.mark.spec("BLOCK-22")
async def test_both_ways_to_settle_write_the_same(engine: PostgresEngine, postgres_url: str) -> None:
    """`settle_claim`, which goes with the commit, and `settle_done`: every column but ids and instants."""
    schema = engine._options.schema
    await engine.control.tune("default", Tuning(keep_done=HOUR))
    written: list[Any] = []
    for last in (True, False):
        failed, *claims = await claimed(engine, "charge", "charge", "charge")
        await engine.jobs.settle([conclude(failed, Failed("no"))])
        async with engine.transaction() as tx:
            held = await engine.outbox.hold(claims[0], tx=tx)
        assert held is not None
        await engine.operator.alter(Selection(ids=(held.id,)), Cancel())
        settlement = conclude(held, Done(b"1"))
        async with engine.transaction() as tx:
            if last:
                assert await engine.outbox.settle_last(settlement, tx=tx)
            else:
                assert (await engine.jobs.settle([settlement], tx=tx)).verdicts == [Verdict.APPLIED]
        await engine.jobs.settle([conclude(claims[1], Done())])
        with psycopg.connect(postgres_url, autocommit=True) as connection:
            columns = "expires - finished, attempts, status, settled, cancel, queue, result, successor, started > 0"
            texts = (
                f"SELECT {columns}, token > 0 FROM {schema}.done WHERE id = '{held.id.hex()}'",
                f"SELECT kind, error IS NULL FROM {schema}.trouble ORDER BY n",
                f"SELECT count(*) FROM {schema}.lease",
            )
            written.append([connection.execute(text.encode()).fetchall() for text in texts])
            connection.execute(f"TRUNCATE {schema}.trouble".encode())
    assert written[0] == written[1]
    assert written[0][0] == [(HOUR, 1, 3, 3, True, "default", "1", None, True, True)]


@pytest.mark.spec("BLOCK-24")
async def test_a_settlement_that_the_server_refuses_is_no_doubt(postgres_url: str, postgres_schema: str) -> None:
    """The handler hides that a statement failed: the transaction cannot be committed, and another one can."""
    jobs = Stoker(f"{postgres_url}?schema={postgres_schema}", timeline=False)
    told: list[str] = []

    @jobs.task(attempts=1)
    async def charge() -> None:
        try:
            async with current().transaction() as tx:
                with suppress(asyncpg.PostgresError):
                    await tx.execute("SELECT 1 / 0")
        except EngineError as error:
            told.append(str(error))
        async with current().transaction() as tx:
            await tx.execute("SELECT 1")

    async with jobs:
        handle = await charge.enqueue()
        worker = Worker(jobs, {"default": 1}, drain=True)
        await worker.start()
        await worker.join()
        await worker.stop()
        record = await handle.refresh()
    assert (record.status, worker.counts[Status.DONE]) == (Status.DONE, 1)
    assert len(told) == 1
    assert "current transaction is aborted" in told[0]


@pytest.mark.spec("BLOCK-25")
async def test_connections_of_a_pool_are_asked_once_where_they_are(
    engine: PostgresEngine, postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pool lends its connection as a new object each time; a connection that it opened anew is asked again."""
    asked: list[Any] = []
    run = handles.run

    async def counted(handle: Any, statement: str, *values: Any) -> Any:
        asked.append(statement == engine._store.texts["whereabouts"])
        return await run(handle, statement, *values)

    monkeypatch.setattr(handles, "run", counted)
    monkeypatch.setattr(user_transaction, "TRUSTED", 3600.0)
    async with asyncpg.create_pool(postgres_url, min_size=1, max_size=1) as pool:
        for new in (False, False, True):
            if new:
                await pool.expire_connections()
            [claim] = await claimed(engine, "charge")
            async with pool.acquire() as handle, handle.transaction():
                held = await engine.outbox.hold(claim, tx=handle)
                assert held is not None
                assert await engine.outbox.settle_last(conclude(held, Done()), tx=handle)
            assert sum(asked) == 1 + new
    assert len(asked) > 3
