"""A census under a held snapshot reads no more dead entries from call to call, and stays right."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from stoker.engines.postgres import PostgresEngine, census_bounds
from stoker.engines.postgres.census_bounds import FULL_EVERY, MOST_PRIORITIES, CensusBounds
from stoker.model.job import Claim, Demand, Draft
from stoker.model.lifecycle import conclude
from stoker.model.outcome import Done, HandedBack
from stoker.model.query import Census
from stoker.model.time import HOUR, SECOND
from stoker.testing.clock import VirtualClock
from tests.engines.postgres.sleepers import Make

pytestmark = pytest.mark.engine("postgres")

DEAD = 300
FEW = 20


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[tuple[bool, int]]:
    """Of each census: whether it read from the start, and how many dead entries."""
    seen: list[tuple[bool, int]] = []
    finish = CensusBounds.finish

    def noted(self: CensusBounds, look: Any, found: Any, **facts: Any) -> None:
        seen.append((look.full, facts["dead"]))
        finish(self, look, found, **facts)

    monkeypatch.setattr(CensusBounds, "finish", noted)
    monkeypatch.setattr(census_bounds, "MANY_DEAD", DEAD // 2)
    monkeypatch.setattr(census_bounds, "LEASE_SLACK", 0)
    return seen


@pytest.fixture
def held(postgres_url: str) -> Iterator[psycopg.Connection]:
    """A session that holds a snapshot from before the case, until it is rolled back."""
    with psycopg.connect(postgres_url) as connection:
        connection.execute("set transaction isolation level repeatable read")
        connection.execute("select pg_current_snapshot()")
        yield connection
        connection.rollback()


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock()


@pytest.fixture
async def engine(make: Make, clock: VirtualClock) -> PostgresEngine:
    engine = await make(clock=clock)
    await engine.renew("w", [], first=True, lease=HOUR)
    return engine


async def put(engine: PostgresEngine, n: int = 1, **options: Any) -> None:
    await engine.insert([Draft(uuid.uuid4().bytes, "work", **options) for _ in range(n)])


async def take(engine: PostgresEngine, n: int = 1, queue: str = "default") -> list[Claim]:
    claims = await engine.claim(Demand("w", ((queue, n),)))
    assert len(claims) == n
    return claims


async def run(engine: PostgresEngine, n: int) -> None:
    """Jobs from enqueue to done, ten by ten: they leave dead entries of jobs and of leases."""
    await put(engine, n)
    for _ in range(n // 10):
        await engine.settle([conclude(claim, Done()) for claim in await take(engine, 10)])


async def dear(engine: PostgresEngine, clock: VirtualClock) -> Census:
    """Censuses until the engine begins at its bounds, with one job that waits and one that runs."""
    await run(engine, DEAD)
    clock.advance(60)
    await put(engine, 2)
    await take(engine)
    await engine.census()
    return await engine.census()


@pytest.mark.spec("PGOP-19")
@pytest.mark.usefixtures("held")
async def test_a_census_does_not_read_dead_entries_again_and_again(
    engine: PostgresEngine, clock: VirtualClock, reads: list[tuple[bool, int]]
) -> None:
    first = await dear(engine, clock)
    assert [full for full, _ in reads] == [True, True]
    assert min(dead for _, dead in reads) >= DEAD
    for _ in range(3):
        assert await engine.census() == first
    assert [full for full, _ in reads[2:]] == [False] * 3
    assert max(dead for _, dead in reads[2:]) < FEW


@pytest.mark.spec("PGOP-19")
async def test_a_census_of_a_store_that_is_cleaned_up_reads_from_the_start(
    engine: PostgresEngine,
    held: psycopg.Connection,
    clock: VirtualClock,
    reads: list[tuple[bool, int]],
    postgres_url: str,
    postgres_schema: str,
) -> None:
    await dear(engine, clock)
    held.rollback()
    with psycopg.connect(postgres_url, autocommit=True) as cleaner:
        for table in ("ready", "lease"):
            cleaner.execute(f"vacuum {postgres_schema}.{table}".encode())
    clock.advance(FULL_EVERY / SECOND)
    for _ in range(3):
        await engine.census()
    assert [full for full, _ in reads[2:]] == [True] * 3
    assert max(dead for _, dead in reads[2:]) < FEW


@pytest.mark.spec("PGOP-19")
@pytest.mark.usefixtures("held", "reads")
async def test_counts_are_exact_and_only_the_oldest_job_lags(engine: PostgresEngine, clock: VirtualClock) -> None:
    """Jobs are put before the bounds: a handed back one, and one of a priority that had none."""
    await put(engine, priority=-5)
    old = clock()
    [early] = await take(engine)
    waiting = await dear(engine, clock)
    assert waiting.oldest_ready == {"default": clock()}
    assert waiting.oldest_running == {"default": old}
    await engine.settle([conclude(early, HandedBack())])
    await put(engine, 2, priority=7, delay=HOUR)
    await put(engine, priority=8)
    await put(engine, queue="other", priority=3)
    found = await engine.census()
    assert (found.ready("default"), found.ready("other"), found.scheduled) == (3, 1, {"default": 2})
    assert found.oldest_ready == {"default": clock(), "other": clock()}, "the one handed back lags"
    assert found.oldest_running == {"default": clock()}
    clock.advance(FULL_EVERY / SECOND)
    assert (await engine.census()).oldest_ready["default"] == old


@pytest.mark.spec("PGOP-19")
@pytest.mark.usefixtures("held")
async def test_bounds_follow_what_is_taken_and_what_becomes_due(
    engine: PostgresEngine, clock: VirtualClock, reads: list[tuple[bool, int]]
) -> None:
    await dear(engine, clock)
    await put(engine, delay=2 * SECOND)
    for _ in range(3):
        clock.advance(1)
        await engine.settle([conclude(claim, Done()) for claim in await take(engine)])
        await run(engine, 100)
        await put(engine)
        assert (await engine.census()).oldest_ready["default"] <= clock()
    for _ in range(2):
        assert (await engine.census()).oldest_ready["default"] > clock() - 3 * SECOND
    assert [full for full, _ in reads[2:]] == [False] * 5
    assert max(dead for _, dead in reads[2:]) < DEAD


def test_ranges_cover_every_priority_once() -> None:
    bounds = CensusBounds()
    look = bounds.begin(1_000 * SECOND)._replace(full=False)
    assert len(bounds.ranges(look, ["q"])) == 1
    bounds.finish(look, [("q", p, 0, None) for p in (-5, 3, 4, census_bounds.HIGHEST)], first_lease=None, dead=0)
    ranges = bounds.ranges(look, ["q"])
    assert [low for _, low, _, _ in ranges] == [census_bounds.LOWEST, *(high + 1 for _, _, high, _ in ranges[:-1])]
    assert ranges[-1][2] == census_bounds.HIGHEST
    earlier = look._replace(now=SECOND)
    assert {since for *_, since in bounds.ranges(earlier, ["q"])} == {SECOND}, "a clock that went back"
    many: list[census_bounds.Found] = [("q", p, 0, None) for p in range(MOST_PRIORITIES + 1)]
    bounds.finish(look, many, first_lease=None, dead=0)
    assert [since for *_, since in bounds.ranges(look, ["q"])] == [census_bounds.START]
    bounds.forget_others([])
    assert bounds.ranges(look, ["q"]) == [("q", census_bounds.LOWEST, census_bounds.HIGHEST, census_bounds.START)]
