"""Steps on SQLite: how few statements they take, and what a plain job pays for them: nothing."""

from __future__ import annotations

from collections.abc import AsyncIterator, Generator
from pathlib import Path
from typing import Any

import pytest

from stoker.engines.sqlite import SqliteEngine
from stoker.engines.sqlite.connection import Connection
from stoker.model.ids import Mint
from stoker.model.job import Claim, Demand, Draft, Verdict
from stoker.model.lifecycle import conclude
from stoker.model.outcome import Done, Suspended
from stoker.model.steps import Save, Signal, Signaled, Step, StepState
from stoker.testing.clock import VirtualClock

pytestmark = pytest.mark.engine("sqlite")

clock = VirtualClock(1_800_000_000_000_000)
mint = Mint(clock, lambda n: bytes(n))


@pytest.fixture
async def engine(tmp_path: Path) -> AsyncIterator[SqliteEngine]:
    engine = SqliteEngine(tmp_path / "jobs.db", clock=clock)
    await engine.open()
    await engine.jobs.renew("w", [], first=True)
    yield engine
    await engine.close()


async def claims(engine: SqliteEngine, n: int) -> list[Claim]:
    await engine.jobs.insert([Draft(mint(), "work") for _ in range(n)])
    return await engine.jobs.claim(Demand("w", (("default", n),)))


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Record the statements of the engine's exchanges."""
    texts: list[str] = []
    play = Connection.run_exchange

    def noted(exchange: Generator[Any, Any, Any]) -> Generator[Any, Any, Any]:
        rows: Any = None
        while True:
            try:
                asked = exchange.send(rows)
            except StopIteration as end:
                return end.value
            texts.append(asked[0])
            rows = yield asked

    monkeypatch.setattr(Connection, "run_exchange", lambda self, exchange: play(self, noted(exchange)))
    return texts


@pytest.mark.spec("STEP-40")
async def test_a_plain_job_never_touches_steps(engine: SqliteEngine, sent: list[str]) -> None:
    batch = await claims(engine, 10)
    settled = await engine.jobs.settle([conclude(claim, Done(b"1")) for claim in batch])
    assert settled.verdicts == [Verdict.APPLIED] * 10
    assert sent
    assert not [text for text in sent if "stoker_steps" in text]


@pytest.mark.spec("STEP-41")
async def test_steps_of_many_jobs_are_one_statement(engine: SqliteEngine, sent: list[str]) -> None:
    batch = await claims(engine, 100)
    sent.clear()
    saves = [Save(one.id, one.worker, one.token, (Step("a"), Step("b")), ref=one.ref) for one in batch]
    assert await engine.steps.save(saves) == [Verdict.APPLIED] * 100
    assert len([text for text in sent if "stoker_steps" in text]) == 1
    assert len(sent) <= 4, sent


@pytest.mark.spec("STEP-41")
async def test_what_is_open_is_found_by_its_index(engine: SqliteEngine, sent: list[str]) -> None:
    """However many rows a job has, a signal reads those that are open and those of its name."""
    [claim] = await claims(engine, 1)
    await engine.jobs.settle([conclude(claim, Suspended((Step("go", StepState.WAITING),)))])
    sent.clear()
    assert await engine.steps.signal([Signal(claim.id, "go")]) == [Signaled.TAKEN]
    [reads] = [text for text in sent if "UNION" in text]
    plan = await engine._store.read(lambda _: explained(reads))
    assert all("SEARCH" in line for line in plan if "stoker_steps" in line), plan
    assert any("stoker_steps_open" in line for line in plan), plan


def explained(statement: str) -> Generator[Any, Any, list[str]]:
    rows = yield f"EXPLAIN QUERY PLAN {statement}", (1, "go", "go#", "go$")
    return [row[3] for row in rows]
