"""Suspensions, signals and the ends of called jobs that meet at the same jobs: nobody is left behind.

Three engines on one store, as three processes would have them, in one loop and with random pauses: what comes first
differs from round to round. `CAUGHT` are designs that look right and lose jobs; the race must notice them.
"""

from __future__ import annotations

import asyncio
import random
import secrets
from collections import Counter
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from stoker.engines.base import Engine
from stoker.engines.postgres import step_rows
from stoker.engines.redis import settle, steps
from stoker.engines.redis.unit_of_work import Unit
from stoker.engines.shared import one_by_one
from stoker.engines.shared.unit_of_work import Wanted
from stoker.engines.sql.exchanges import just
from stoker.engines.url import engine_from_url
from stoker.model.groups import into_group
from stoker.model.job import Claim, Demand, Draft, Settlement, Verdict
from stoker.model.lifecycle import conclude
from stoker.model.outcome import Done, Suspended
from stoker.model.steps import Save, Signal, Signaled, Step, StepState, Wakes, group_wait
from stoker.model.time import HOUR
from stoker.registry import mint

pytestmark = pytest.mark.timeout(1_200)

BATCH = 20
LONGEST_PAUSE = 0.004
"""Seconds before a caller begins: about as long as a call takes."""

ENGINES = ("sqlite", "postgres", "redis", "redis-cluster")
Mutation: TypeAlias = Callable[[pytest.MonkeyPatch], None]
GO, SIDE = Step("go", StepState.WAITING), Step("side", StepState.WAITING)


@pytest.fixture(params=[pytest.param(name, marks=pytest.mark.engine(name)) for name in ENGINES])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'jobs.db'}"
    if request.param.startswith("redis"):
        name = request.param.replace("-", "_")
        return f"{request.getfixturevalue(f'{name}_url')}?prefix={request.getfixturevalue(f'{name}_prefix')}"
    base = request.getfixturevalue("postgres_url")
    return f"{base}{'&' if '?' in base else '?'}schema={request.getfixturevalue('postgres_schema')}"


@pytest.fixture
async def engines(url: str) -> AsyncIterator[list[Engine]]:
    found = [engine_from_url(url) for _ in range(3)]
    for engine in found:
        await engine.open()
    await found[0].jobs.renew("w", [], lease=HOUR, first=True)
    yield found
    for engine in found:
        await engine.close()


class Race:
    """Rounds of a race; `woken` counts what became of them."""

    def __init__(self, engines: list[Engine], seed: int) -> None:
        self.first, *self.others = engines
        self.random = random.Random(seed)
        self.answers: Counter[str] = Counter()
        self.left_behind = 0

    async def pause(self, times: int = 1) -> None:
        await asyncio.sleep(self.random.random() * times * LONGEST_PAUSE)

    async def claim(self, queue: str = "default", n: int = 2 * BATCH) -> list[Claim]:
        return await self.first.jobs.claim(Demand("w", ((queue, n),)))

    async def settle(self, engine: Engine, settlements: list[Settlement]) -> None:
        """Settle, while the others are in the middle of their calls, and send again what a transaction held up."""
        await self.pause(3)
        while settlements:
            verdicts = (await engine.jobs.settle(settlements)).verdicts
            assert set(verdicts) <= {Verdict.APPLIED, Verdict.HELD}, verdicts
            settlements = [one for one, verdict in zip(settlements, verdicts, strict=True) if verdict is Verdict.HELD]

    async def signal(self, engine: Engine, claims: list[Claim], name: str) -> None:
        await self.pause()
        for claim in claims:
            self.answers.update(await engine.steps.signal([Signal(claim.id, name, b'"yes"')]))

    async def all_run(self, claims: list[Claim]) -> None:
        """Every job runs again, once, and ends."""
        again = await self.claim()
        assert len({one.id for one in again}) == len(again)
        self.left_behind += len(claims) - len(again)
        await self.first.jobs.settle([conclude(one, Done()) for one in again])

    async def signals(self, wakes: Wakes) -> None:
        """Suspensions of a batch against signals from two other engines, some of them twice."""
        await self.first.jobs.insert([Draft(mint(), "work") for _ in range(BATCH)])
        claims, half = await self.claim(), BATCH // 2
        waits = (GO, SIDE) if wakes is Wakes.ALL else (GO,)
        other, third = self.others
        callers = [self.signal(third, claims[: half // 2], "go"), self.signal(other, claims[:half], "go")]
        callers.append(self.signal(third, claims[half:], "go"))
        if wakes is Wakes.ALL:
            callers.append(self.signal(other, claims, "side"))
        await asyncio.gather(
            self.settle(self.first, [conclude(one, Suspended(waits, wakes=wakes)) for one in claims]), *callers
        )
        for row in await self.first.steps.get([one.id for one in claims]):
            assert {(one.name, one.state, one.value) for one in row} == {
                (one.name, StepState.DONE, b'"yes"') for one in waits
            }
        await self.all_run(claims)

    async def called(self) -> None:
        """Suspensions of callers against the ends of what they called, by two other engines, crosswise."""
        await self.first.jobs.insert([Draft(mint(), "work") for _ in range(BATCH)])
        claims = await self.claim()
        saves, suspensions = [], []
        for one in claims:
            group = mint()
            opened = Step(group_wait(group), StepState.WAITING)
            kids = tuple(into_group(group, [Draft(mint(), "kid", queue="kids") for _ in range(2)]))
            saves.append(Save(one.id, one.worker, one.token, (opened,), kids, (group,), one.ref))
            suspensions.append(conclude(one, Suspended((opened,))))
        assert set(await self.first.steps.save(saves)) == {Verdict.APPLIED}
        kids_ = {one.id: one for one in await self.claim("kids", 2 * BATCH)}
        ends = [[conclude(kids_[save.drafts[n].job_id], Done()) for save in saves] for n in range(2)]
        await asyncio.gather(
            self.settle(self.first, suspensions),
            *(self.settle(engine, part) for engine, part in zip(self.others, (ends[0], ends[1][::-1]), strict=True)),
        )
        for engine in (self.first, *self.others):
            await engine.groups.sweep()
        await self.all_run(claims)


@pytest.mark.spec("ANSWER-12")
async def test_every_job_that_is_answered_runs_again(engines: list[Engine], campaign: bool) -> None:
    seed = secrets.randbits(32)
    print(f"seed {seed}")
    race = Race(engines, seed)
    for _ in range(100 if campaign else 10):
        await race.signals(Wakes.ANY)
        await race.signals(Wakes.ALL)
        await race.called()
    print(race.answers)
    assert race.left_behind == 0
    assert race.answers[Signaled.TAKEN] > 0 < race.answers[Signaled.EARLY], "the callers did not meet"


def _blind(monkeypatch: pytest.MonkeyPatch) -> None:
    """A suspension that does not look for answers that came before it."""

    def suspended(unit: Any, settlement: Settlement) -> Settlement:
        for step in settlement.steps:
            if unit.step(settlement.id, step.name) is None:
                unit.put_step(settlement.id, Step(step.name, step.state, token=settlement.token, at=unit.now))
        return settlement

    monkeypatch.setattr(one_by_one, "suspend", suspended)
    monkeypatch.setattr(settle, "suspend", suspended)


def _unlocked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Suspensions and signals that do not lock the job they meet at."""
    monkeypatch.setattr(step_rows, "lock", lambda jobs, skip=False: just(set(jobs)))


def _unchecked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Signals that check the row they answer when they commit, and not the job they have read before it.

    Both reads are sent at once, so almost nothing comes between them; here something can.
    """
    load_steps = Unit._load_steps

    async def load_jobs_first(unit: Unit, wanted: Wanted) -> None:
        await unit._load_jobs(wanted.ids)
        await asyncio.sleep(LONGEST_PAUSE / 2)
        await load_steps(unit, wanted)

    monkeypatch.setattr(Unit, "_load_steps", load_jobs_first)
    monkeypatch.setattr(Unit, "expect_job", lambda unit, job: None)


def _alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Signals that do not check whether the other answers are still missing."""
    monkeypatch.setattr(steps, "_expect_open", lambda unit, job: None)


CAUGHT = [
    pytest.param(name, mutation, wakes, marks=pytest.mark.engine(name))
    for name, mutation, wakes in (
        ("sqlite", _blind, Wakes.ANY),
        ("postgres", _blind, Wakes.ANY),
        ("postgres", _unlocked, Wakes.ANY),
        ("redis", _blind, Wakes.ANY),
        ("redis", _unchecked, Wakes.ANY),
        ("redis", _alone, Wakes.ALL),
    )
]


@pytest.mark.spec("ANSWER-12")
@pytest.mark.parametrize(("url", "mutation", "wakes"), CAUGHT, indirect=["url"])
async def test_the_race_notices_designs_that_lose_jobs(
    engines: list[Engine], mutation: Mutation, wakes: Wakes, monkeypatch: pytest.MonkeyPatch
) -> None:
    mutation(monkeypatch)
    race = Race(engines, 7)
    with pytest.raises(AssertionError):
        for _ in range(60):
            await race.signals(wakes)
            assert race.left_behind == 0
