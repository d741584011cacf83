"""What a block costs on Postgres, in round trips to the server."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import psycopg
import pytest

from stoker.app import Stoker
from stoker.context import current, running
from stoker.engines.postgres.connection import Connection
from stoker.engines.postgres.user_transaction import Own
from stoker.model.job import Status
from stoker.worker import Worker

pytestmark = pytest.mark.engine("postgres")

JOBS = 200


def inside() -> bool:
    """Whether this is done for one job, in its handler."""
    return running.get(None) is not None


@pytest.mark.spec("BLOCK-21")
async def test_a_block_takes_five_round_trips(
    monkeypatch: pytest.MonkeyPatch, postgres_url: str, postgres_schema: str
) -> None:
    """Hold, begin, the statement of the user's, settle, commit; what is outside of handlers is for many jobs."""
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
        await jobs.enqueue_many([charge.draft(n) for n in range(JOBS)])
        worker = Worker(jobs, {"default": 10}, drain=True)
        await worker.start()
        monkeypatch.setattr(Connection, "run", counted_run)
        monkeypatch.setattr(Connection, "command", counted_command)
        monkeypatch.setattr(Own, "execute", counted_execute)
        await worker.join()
        monkeypatch.undo()
        await worker.stop()
    assert worker.counts[Status.DONE] == JOBS
    assert {name: n for name, n in trips.items() if n} == {"run": 2 * JOBS, "BEGIN": JOBS, "user": JOBS, "COMMIT": JOBS}
