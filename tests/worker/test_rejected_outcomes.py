"""A store that answers, but refuses what one job has to say."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import pytest

from stoker.app import Stoker
from stoker.context import current
from stoker.engines.base import Engine
from stoker.model import ids
from stoker.model.errors import EngineError, EngineUnavailable
from stoker.model.ids import JobId
from stoker.model.job import Note, Settlement, Status
from stoker.worker import resender, store_loop
from tests.harness.apps import PATIENCE, becomes, drain, until, working
from tests.harness.calls import replace


class Picky:
    """Refuses settlements and notes of some jobs; `plain` ones too, or only those with a result."""

    def __init__(self, engine: Engine) -> None:
        self.refused: set[JobId] = set()
        self.plain = False
        self.errors: list[Exception] = [EngineError("this cannot be stored.")]
        self.calls = 0
        replace(engine, ["settle"], lambda _, settle: self._settle(settle))
        replace(engine, ["note"], lambda _, note: self._note(note))

    def _settle(self, settle: Any) -> Any:
        async def picky(settlements: Sequence[Settlement], **more: Any) -> Any:
            self.calls += 1
            for one in settlements:
                if one.id in self.refused and (self.plain or one.result is not None):
                    raise self.errors.pop(0) if len(self.errors) > 1 else self.errors[0]
            return await settle(settlements, **more)

        return picky

    def _note(self, note: Any) -> Any:
        async def picky(notes: Sequence[Note]) -> Any:
            if any(one.id in self.refused for one in notes):
                raise self.errors.pop(0) if len(self.errors) > 1 else self.errors[0]
            return await note(notes)

        return picky


@pytest.fixture
def picky(jobs: Stoker, engine: Engine, monkeypatch: pytest.MonkeyPatch) -> Picky:
    monkeypatch.setattr(store_loop, "LONGEST_PAUSE", 0.05)
    return Picky(engine)


@pytest.mark.spec("WORKER-28")
@pytest.mark.parametrize("error", [EngineError("this cannot be stored."), OverflowError("int too large")])
async def test_a_refused_outcome_ends_its_job_and_no_other(
    jobs: Stoker, picky: Picky, error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    @jobs.task
    async def work(n: int) -> int:
        return n

    picky.errors = [error]
    handles = [await work.enqueue(n) for n in range(20)]
    picky.refused = {ids.parse(handles[7].id)}
    await drain(jobs)
    record = await handles[7].refresh()
    assert record.status is Status.DEAD
    assert record.last_error == f"its outcome (done) could not be stored: {error}"
    [told] = [one.getMessage() for one in caplog.records if handles[7].id in one.getMessage()]
    assert "its outcome (done) could not be stored" in told
    others = [handle for handle in handles if handle is not handles[7]]
    assert [await handle.result(0) for handle in others] == [n for n in range(20) if n != 7]


@pytest.mark.spec("WORKER-28")
async def test_one_that_is_refused_in_any_form_is_set_aside_and_tried_again(
    jobs: Stoker, picky: Picky, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(resender, "AGAIN_EVERY", 0.0)

    @jobs.task
    async def work(n: int) -> int:
        return n

    bad = await work.enqueue(0)
    picky.refused, picky.plain = {ids.parse(bad.id)}, True
    async with working(jobs) as worker:
        await until(lambda: worker.outcomes.rejected)
        good = [await work.enqueue(n) for n in range(1, 9)]
        assert [await handle.result(PATIENCE) for handle in good] == list(range(1, 9))
        assert f"rejects every outcome of job {bad.id} (work): this cannot be stored." in caplog.text
        assert not worker.store_loop.away
        assert (await bad.refresh()).status is Status.RUNNING
        await worker.store_loop.resender.send_rejected()
        assert len(worker.outcomes.rejected) == 1
        picky.refused = set()
        await worker.store_loop.resender.send_rejected()
        assert worker.outcomes.rejected == []
        assert await bad.result(PATIENCE) == 0
        assert worker.claims.tokens == {}


@pytest.mark.spec("WORKER-28")
async def test_a_store_that_refuses_everything_is_away(
    jobs: Stoker, picky: Picky, caplog: pytest.LogCaptureFixture
) -> None:
    @jobs.task
    async def work(n: int) -> int:
        return n

    handles = [await work.enqueue(n) for n in range(30)]
    picky.refused, picky.plain = {ids.parse(handle.id) for handle in handles}, True
    async with working(jobs) as worker:
        await until(lambda: worker.store_loop.away)
        asked = picky.calls
        picky.refused = set()
        assert [await handle.result(PATIENCE) for handle in handles[3:]] == list(range(3, 30))
        assert asked < 60, "a store that refuses everything is not asked about each"
        assert re.search(r"the store does not answer: .*: this cannot be stored\.", caplog.text)


@pytest.mark.spec("WORKER-28")
async def test_a_store_that_goes_away_meanwhile_loses_nothing(jobs: Stoker, picky: Picky) -> None:
    @jobs.task
    async def work(n: int) -> int:
        return n

    handles = [await work.enqueue(n) for n in range(5)]
    picky.refused, picky.plain = {ids.parse(handles[0].id)}, True
    picky.errors.append(EngineUnavailable("gone for a moment."))
    async with working(jobs) as worker:
        await until(lambda: worker.store_loop.away)
        assert worker.outcomes.rejected == []
        picky.refused = set()
        assert [await handle.result(PATIENCE) for handle in handles] == list(range(5))


@pytest.mark.spec("WORKER-29")
async def test_notes_that_are_refused_keep_no_outcome(
    jobs: Stoker, picky: Picky, caplog: pytest.LogCaptureFixture
) -> None:
    @jobs.task
    async def work() -> None:
        current().progress(0.5)

    job = await work.enqueue()
    picky.refused = {ids.parse(job.id)}
    await drain(jobs)
    record = await becomes(job, Status.DONE)
    assert record.progress is None
    assert "progress, metadata and log lines of 1 job are refused" in caplog.text
