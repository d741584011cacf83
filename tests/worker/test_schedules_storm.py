"""However tickers are paused, doubled, killed and misled about the time: each occurrence has one job."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from stoker.app import Stoker
from stoker.engines.base import Engine
from stoker.engines.memory import MemoryEngine
from stoker.engines.postgres import PostgresEngine
from stoker.engines.redis import RedisClusterEngine, RedisEngine
from stoker.engines.sqlite import SqliteEngine
from stoker.model.schedule import Action, Misfire, Schedule
from stoker.model.time import DAY, MINUTE, SECOND, Instant, rfc3339
from stoker.testing.clock import VirtualClock
from stoker.worker.schedules import fire_due
from tests.faults.fork_server import ForkServer
from tests.model.test_cron_oracle import oracle, walls
from tests.worker import tickers
from tests.worker.tickers import Ticking, fired, planned

pytestmark = pytest.mark.timeout(3_600)

START: Instant = 1_792_800_000 * SECOND
"""In the week in which Paris (25 October 2026) and New York (1 November) set their clocks back."""

EXPRESSIONS = ("0 */3 * * *", "30 2 * * *", "15 1,2,3 * * *", "0 9 * * 1-5", "20 */6 * * *", "59 23 * * *")
ZONES = ("UTC", "Europe/Paris", "America/New_York", "Australia/Lord_Howe", "Asia/Kathmandu")
ENGINES = [
    *(pytest.param(name, marks=pytest.mark.engine(name)) for name in ("memory", "sqlite", "postgres", "redis")),
    pytest.param("redis-cluster", marks=[pytest.mark.engine("redis-cluster"), pytest.mark.variant]),
]


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock(START)


@pytest.fixture(params=ENGINES)
async def engine(request: pytest.FixtureRequest, tmp_path: Path, clock: VirtualClock) -> AsyncIterator[Engine]:
    def of(fixture: str) -> Any:
        return request.getfixturevalue(fixture)

    made: Engine
    match request.param:
        case "memory":
            made = MemoryEngine(clock, history=100_000)
        case "sqlite":
            made = SqliteEngine(tmp_path / "jobs.db", clock=clock, durability="process")
        case "postgres":
            made = PostgresEngine(of("postgres_url"), schema=of("postgres_schema"), clock=clock)
        case "redis":
            made = RedisEngine(of("redis_url"), prefix=of("redis_prefix"), clock=clock)
        case _:
            made = RedisClusterEngine(of("redis_cluster_url"), prefix=of("redis_cluster_prefix"), clock=clock)
    await made.open()
    yield made
    await made.close()


def expected(schedule: Schedule, start: Instant, end: Instant) -> list[str]:
    """What the oracle says that fires, behind `start` and up to `end`."""
    first, last = start // MINUTE + 1, end // MINUTE + 1
    shown = walls(schedule.tz, first - 2_880, last)
    found = oracle(schedule.expression, shown, first - 2_880)
    return [rfc3339(at) for at in found if start < at <= end]


def schedules(count: int) -> list[Schedule]:
    """Of all kinds: one in two fires every occurrence, the others one for all that were missed, or none too old."""
    policies: tuple[Misfire, ...] = ("all", "once", "all", "skip")
    found = [
        planned(
            f"s{n}",
            EXPRESSIONS[n % len(EXPRESSIONS)],
            tz=ZONES[n % len(ZONES)],
            misfire=policies[n % len(policies)],
            grace=30 * MINUTE,
        )
        for n in range(count)
    ]
    return [*found, planned("exclusive", "0 * * * *", overlap="skip")]


@pytest.mark.spec("SCHED-20")
async def test_a_week_of_trouble_fires_what_the_oracle_fires(
    engine: Engine, clock: VirtualClock, campaign: bool
) -> None:
    """Stale, early, doubled and killed ticks: every occurrence has one job, or is counted as missed; never both."""
    chance = random.Random(20)
    app = Stoker(engine)
    most = 200 if engine.name == "redis+cluster" else 1_000  # there each call asks three servers
    plans = {one.name: one for one in schedules(most if campaign else 8)}
    for one in plans.values():
        await engine.schedules.put(one)
    clock.set(START + 1)
    await fire_due(app, engine, await engine.schedules.read())
    ticking = Ticking(app, engine, clock, 10 if campaign else 3, chance)
    try:
        await ticking.for_a_week(90 if campaign else 240)
    finally:
        await ticking.close()
    jobs = await fired(engine)
    made_in_all = sum(map(len, jobs.values()))
    print(f"{len(plans)} schedules, {made_in_all} jobs, {ticking.kills} ticks killed, {ticking.pauses} held up")
    end = clock()
    for one in await engine.schedules.read():
        due, made = expected(one, START + 1, end), jobs.get(one.name, [])
        assert made == sorted(set(made)), f"{one.name} has a job twice"
        assert set(made) <= set(due), f"{one.name} fired what is no occurrence"
        assert len(made) + one.missed == len(due), f"{one.name}: {len(made)} jobs, {one.missed} missed of {len(due)}"
        if one.misfire == "all":
            assert made == due
        if one.overlap == "skip":
            assert (len(made), one.last_status) == (1, Action.SKIP)
    assert end == START + 1 + 7 * DAY
    assert min(ticking.kills, ticking.pauses) > 10
    await app.close()


@pytest.fixture(scope="module")
def fork_server() -> Iterator[ForkServer]:
    fork_server = ForkServer(
        "tests.worker.tickers", "stoker.engines.sqlite", "stoker.engines.postgres", "stoker.engines.redis"
    )
    yield fork_server
    fork_server.close()


@pytest.mark.spec("SCHED-20")
@pytest.mark.parametrize(
    "name", [pytest.param(one, marks=pytest.mark.engine(one)) for one in ("sqlite", "postgres", "redis")]
)
def test_tickers_that_are_killed_and_stopped_lose_and_double_nothing(
    name: str, fork_server: ForkServer, request: pytest.FixtureRequest, tmp_path: Path, campaign: bool
) -> None:
    """Real processes, kill -9 and SIGSTOP at any instant: every second has one job of each schedule."""
    if name == "sqlite":
        url = f"sqlite:///{tmp_path / 'jobs.db'}"
    elif name == "postgres":
        base, schema = request.getfixturevalue("postgres_url"), request.getfixturevalue("postgres_schema")
        url = f"{base}{'&' if '?' in base else '?'}schema={schema}"
    else:
        base, prefix = request.getfixturevalue("redis_url"), request.getfixturevalue("redis_prefix")
        url = f"{base}?prefix={prefix}"
    seconds = 60.0 if campaign else 3.0
    ended = fork_server.call(tickers.storm, within=seconds + 240, url=url, seconds=seconds, tickers=3, seed=9)
    found = ended.answer
    print(f"{found['kills']} kills, {sum(map(len, found['jobs'].values()))} jobs")
    assert found["kills"] > tickers.FEWEST
    for one in tickers.EVERY_SECOND:
        first, last = found["first"][one], found["last"][one]
        assert last - first >= (seconds - 1) * SECOND
        assert found["jobs"][one] == [rfc3339(at) for at in range(first, last + 1, SECOND)]
