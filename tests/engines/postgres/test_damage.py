"""Rows that are lost or cannot be read: they stop nothing else, are logged or named, and can be removed."""

from __future__ import annotations

import os
import time
from collections.abc import AsyncIterator
from typing import Any

import psycopg
import pytest

from stoker.engines.base import CORRUPT
from stoker.engines.postgres import PostgresEngine
from stoker.model.control import Tuning
from stoker.model.groups import into_group, new_group
from stoker.model.ids import JobId, Mint, text
from stoker.model.job import Demand, Draft, Options, Status, Verdict
from stoker.model.lifecycle import conclude
from stoker.model.limit import Slot
from stoker.model.outcome import Done, Rejected
from stoker.model.query import Change, Clone, Delete, Discard, Query, Requeue, Retention, Selection
from stoker.model.throttle import Rate

pytestmark = pytest.mark.engine("postgres")

mint = Mint(lambda: time.time_ns() // 1000, os.urandom)
DEMAND = Demand("w", (("default", 100), ("other", 100)))


class Bench:
    """An engine, and a way to damage what it stored."""

    def __init__(self, engine: PostgresEngine, url: str, schema: str) -> None:
        self.engine = engine
        self._url = url
        self._schema = schema

    def spoil(self, statement: str, *values: Any) -> None:
        with psycopg.connect(self._url, autocommit=True) as connection:
            changed = connection.execute(statement.replace("stoker.", f"{self._schema}."), values).rowcount
        assert changed == 1

    async def add(self, n: int = 3, **options: Any) -> list[JobId]:
        drafts = [Draft(mint(), "send", **options) for _ in range(n)]
        return [receipt.id for receipt in await self.engine.jobs.insert(drafts)]

    async def counts(self) -> dict[Status, int]:
        return {status: n for status, n in (await self.engine.operator.census()).by_status().items() if n}

    async def damaged(self) -> tuple[str, ...]:
        return (await self.engine.diagnose()).damaged


@pytest.fixture
async def bench(postgres_url: str, postgres_schema: str) -> AsyncIterator[Bench]:
    engine = PostgresEngine(postgres_url, schema=postgres_schema)
    await engine.open()
    await engine.jobs.renew("w", [], first=True)
    yield Bench(engine, postgres_url, postgres_schema)
    await engine.close()


@pytest.mark.spec("FAULT-44")
@pytest.mark.parametrize("change", [Delete(), Discard()], ids=["delete", "discard"])
async def test_a_job_without_its_place_is_shown_named_and_removed(bench: Bench, change: Change) -> None:
    first, bad, last = await bench.add()
    bench.spoil("DELETE FROM stoker.ready WHERE id = %s", text(bad))
    shown = {job.id: job for job in (await bench.engine.operator.find(Query())).jobs}
    assert shown.keys() == {first, bad, last}
    assert [CORRUPT in shown[job].metadata for job in (first, bad, last)] == [False, True, False]
    assert (shown[bad].status, shown[bad].kind) == (Status.DEAD, "send")
    assert await bench.engine.operator.get([bad]) == [shown[bad]]
    [named] = await bench.damaged()
    assert text(bad) in named
    tally = await bench.engine.operator.alter(Selection((first, bad)), Requeue())
    assert tally.refused == {Status.PENDING: 1, Status.DEAD: 1}
    assert (await bench.engine.operator.alter(Selection((bad,)), change)).changed == 1
    assert await bench.damaged() == ()
    assert [claim.id for claim in await bench.engine.jobs.claim(DEMAND)] == [first, last]


@pytest.mark.spec("FAULT-45")
@pytest.mark.parametrize("limited", [False, True], ids=["plain", "limited"])
async def test_a_waiting_job_without_a_body_counts_no_longer(
    bench: Bench, caplog: pytest.LogCaptureFixture, limited: bool
) -> None:
    jobs = await bench.add(3, options=Options(limit=Slot("api", "a", 5) if limited else None))
    bench.spoil("DELETE FROM stoker.job WHERE id = %s", text(jobs[0]))
    assert len(await bench.damaged()) == 1
    claims = [claim for _ in range(4) for claim in await bench.engine.jobs.claim(Demand("w", (("default", 1),)))]
    assert {claim.id for claim in claims} == set(jobs[1:])
    await bench.engine.jobs.settle([conclude(claim, Done()) for claim in claims])
    await bench.engine.operator.expire(Retention())
    assert await bench.counts() == {Status.DONE: 2}
    assert len([one for one in caplog.records if "lost rows" in one.getMessage()]) == 1
    await bench.engine.operator.expire(Retention())
    assert await bench.counts() == {Status.DONE: 2}
    assert await bench.damaged() == ()


@pytest.mark.spec("FAULT-45")
async def test_a_running_job_without_a_body_does_not_stay_running(bench: Bench) -> None:
    jobs = await bench.add(3)
    claims = await bench.engine.jobs.claim(DEMAND)
    bench.spoil("DELETE FROM stoker.job WHERE id = %s", text(jobs[1]))
    await bench.engine.jobs.settle([conclude(claim, Done()) for claim in claims if claim.id != jobs[1]])
    await bench.engine.operator.expire(Retention())
    assert await bench.counts() == {Status.DONE: 2}
    await bench.add(1)
    [claim] = await bench.engine.jobs.claim(DEMAND)
    await bench.engine.operator.expire(Retention())
    assert await bench.counts() == {Status.DONE: 2, Status.RUNNING: 1}
    await bench.engine.jobs.settle([conclude(claim, Done())])


@pytest.mark.spec("FAULT-47")
async def test_a_group_that_cannot_be_read_stops_no_other(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    groups = [mint(), mint()]
    callbacks = [Draft(mint(), "then", queue="other") for _ in groups]
    for group, callback in zip(groups, callbacks, strict=True):
        members = [Draft(mint(), "send") for _ in range(2)]
        await bench.engine.jobs.insert(into_group(group, members), group=new_group(group, then=callback, sealed=True))
    bench.spoil("UPDATE stoker.job_group SET callbacks = '{' WHERE id = %s", text(groups[0]))
    claims = await bench.engine.jobs.claim(DEMAND)
    settled = await bench.engine.jobs.settle([conclude(claim, Done()) for claim in claims])
    assert settled.verdicts == [Verdict.APPLIED] * 4
    await bench.engine.groups.sweep()
    assert [claim.id for claim in await bench.engine.jobs.claim(DEMAND)] == [callbacks[1].job_id]
    assert len([one for one in caplog.records if text(groups[0]) in one.getMessage()]) == 1
    assert all(group is not None and group.closed_at is not None for group in await bench.engine.groups.get(groups))
    [named] = await bench.damaged()
    assert text(groups[0]) in named


@pytest.mark.spec("FAULT-48")
async def test_settings_that_cannot_be_read_count_as_not_declared(bench: Bench) -> None:
    await bench.engine.control.tune("default", Tuning(workers=3), declared=True)
    await bench.engine.control.tune("llm", Rate(5), declared=True)
    bench.spoil("UPDATE stoker.queue SET declared = '{' WHERE name = %s", "default")
    spoiled = "UPDATE stoker.budget SET budget = jsonb_set(budget::jsonb, '{2}', '1')::text WHERE name = %s"
    bench.spoil(spoiled, "llm")
    [queue] = await bench.engine.control.queues()
    [budget] = await bench.engine.control.budgets()
    assert (queue.workers, queue.declared, budget.declared) == (3, None, None)
    damaged = await bench.damaged()
    assert len(damaged) == 2
    assert ("default" in damaged[0], "llm" in damaged[1]) == (True, True)
    await bench.engine.control.tune("default", Tuning(workers=4), declared=True)
    await bench.engine.control.tune("llm", Rate(6), declared=True)
    assert await bench.damaged() == ()


@pytest.mark.spec("FAULT-56")
@pytest.mark.parametrize(
    "column",
    ["options = '{{'", """options = '{"timeout":-5}'""", "ukey = 'k', utraits = 99"],
    ids=["cut", "value", "key"],
)
async def test_a_dead_job_that_cannot_be_read_is_neither_copied_nor_put_back(bench: Bench, column: str) -> None:
    [bad] = await bench.add(1)
    await bench.engine.jobs.settle([conclude(claim, Rejected("no")) for claim in await bench.engine.jobs.claim(DEMAND)])
    bench.spoil(f"UPDATE stoker.job SET {column} WHERE id = %s", text(bad))
    copy = mint()
    for change in (Clone((copy,)), Requeue()):
        tally = await bench.engine.operator.alter(Selection((bad,)), change)
        assert (tally.changed, tally.refused, tally.created) == (0, {Status.DEAD: 1}, ())
    assert await bench.engine.operator.get([copy]) == [None]
    assert (await bench.engine.operator.alter(Selection((bad,)), Discard())).changed == 1
    assert (await bench.engine.operator.alter(Selection((bad,)), Delete())).changed == 1
    assert await bench.counts() == {}
