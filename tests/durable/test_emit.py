"""Values that stream out of runs: `emit`, `progress` with text, and those who watch."""

from __future__ import annotations

import asyncio
import importlib
import threading
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

import msgspec
import pytest

from stoker import (
    Chunk,
    Fixed,
    InvalidInput,
    JobHandle,
    NotFound,
    Status,
    Stoker,
    StokerError,
    Worker,
    current,
)
from stoker.admin import Admin
from stoker.engines.base import Feature
from stoker.model.emitted import entries_of
from stoker.model.errors import EngineUnavailable
from stoker.model.job import Note
from stoker.model.steps import Save
from stoker.testing import TestKit
from stoker.testing.clock import VirtualClock
from stoker.watching import Changed, Emitted, Logged, Missed, News, Progressed
from tests.durable import flows
from tests.durable.test_processes import url as url  # noqa: PLC0414 - a fixture
from tests.harness.apps import PATIENCE, drain
from tests.harness.calls import replace

IN_MEMORY = pytest.mark.parametrize("new_engine", ["memory"], indirect=True)
UNKNOWN = "01900000-0000-7000-8000-000000000000"


async def watched(job: JobHandle[Any], after: int | str | None = None) -> list[News]:
    """Everything until the end."""
    async with asyncio.timeout(PATIENCE):
        return [event async for event in job.watch(after)]


def values(events: list[News]) -> list[tuple[int, int, Any]]:
    return [(one.n, one.attempt, one.value) for one in events if isinstance(one, Emitted)]


async def following(job: JobHandle[Any]) -> AsyncGenerator[News, None]:
    async with asyncio.timeout(PATIENCE):
        async for event in job.watch():
            yield event


@pytest.mark.spec("WATCH-01")
async def test_a_watcher_gets_what_a_run_tells_while_it_runs(jobs: Stoker) -> None:
    """Values, progress with text and data, log lines, the status, and the end; from a coroutine and from threads."""
    go = asyncio.Event()

    @jobs.task
    async def talk() -> str:
        run = current()
        run.emit({"token": "one"})
        await go.wait()
        run.progress(0.5, "half", {"pages": 3})
        run.log("a line")

        def aside() -> None:
            run.emit("from a thread")

        await asyncio.to_thread(aside)
        return "done"

    async with Worker(jobs, poll=0.02):
        job = await talk.enqueue()
        seen: list[News] = []
        async for event in following(job):
            seen.append(event)
            if isinstance(event, Emitted):
                go.set()  # only a value that arrives while the run goes on lets it end
    assert values(seen) == [(1, 1, {"token": "one"}), (3, 1, "from a thread")]
    [told] = [one for one in seen if isinstance(one, Progressed)]
    assert (told.fraction, told.text, told.data, told.attempt) == (0.5, "half", {"pages": 3}, 1)
    assert [one.lines for one in seen if isinstance(one, Logged)] == [("a line",)]
    assert isinstance(last := seen[-1], Changed)
    assert (last.status, last.ended, last.attempt) == (Status.DONE, True, 1)
    statuses = [one.status for one in seen if isinstance(one, Changed)]
    assert Status.RUNNING in statuses
    assert await job.result() == "done"
    assert (await job.refresh()).progress == 0.5


@IN_MEMORY
@pytest.mark.spec("WATCH-16")
async def test_progress_never_falls_back_to_what_the_record_still_has(jobs: Stoker) -> None:
    """The record follows about a second later; a fraction without a text is told, before and after the others."""
    told: asyncio.Queue[Progressed | Emitted] = asyncio.Queue()

    @jobs.task
    async def climb() -> None:
        run = current()
        run.progress(0.1)
        assert isinstance(await told.get(), Progressed)
        for fraction in (0.2, 0.4, 0.6):
            run.progress(fraction, f"at {fraction}")
            assert isinstance(await told.get(), Progressed)
            run.emit("the watcher looks again")
            assert isinstance(await told.get(), Emitted)
        while (await jobs.handle(run.id).refresh()).progress != 0.6:
            await asyncio.sleep(0.01)
        run.progress(0.8)

    async with Worker(jobs, poll=0.02):
        seen = []
        async for event in following(await climb.enqueue()):
            seen.append(event)
            if isinstance(event, Progressed | Emitted):
                told.put_nowait(event)
    assert [(one.fraction, one.text) for one in seen if isinstance(one, Progressed)] == [
        (0.1, None), (0.2, "at 0.2"), (0.4, "at 0.4"), (0.6, "at 0.6"), (0.8, None)
    ]  # fmt: skip
    assert isinstance(seen[-1], Changed) and seen[-1].status is Status.DONE


@IN_MEMORY
@pytest.mark.spec("WATCH-16")
async def test_a_watcher_that_comes_back_is_not_told_an_older_fraction(jobs: Stoker) -> None:
    told, back = asyncio.Event(), asyncio.Event()

    @jobs.task
    async def climb() -> None:
        run = current()
        run.progress(0.1)
        while (await jobs.handle(run.id).refresh()).progress != 0.1:
            await asyncio.sleep(0.01)
        run.progress(0.6, "most")
        run.emit("a value behind it")
        await told.wait()
        run.emit("the watcher is back")
        await back.wait()
        run.progress(0.8)

    async with Worker(jobs, poll=0.02):
        job = await climb.enqueue()
        async for event in following(job):
            if isinstance(event, Emitted):
                break
        assert isinstance(event, Emitted)
        told.set()
        seen = []
        async with asyncio.timeout(PATIENCE):
            async for news in job.watch(event.cursor):
                seen.append(news)
                if isinstance(news, Emitted):
                    back.set()
    assert [one.fraction for one in seen if isinstance(one, Progressed)] in ([0.8], [0.6, 0.8])


@IN_MEMORY
@pytest.mark.spec("WATCH-18")
async def test_the_record_is_never_ahead_of_what_was_emitted(jobs: Stoker) -> None:
    """Else a watcher would be told the record's fraction, and then the older ones that come behind it."""
    noted: list[float] = []
    early: list[float] = []

    def around(name: str, note: Any) -> Any:
        async def after_a_look(notes: list[Note], **more: Any) -> Any:
            for one in notes:
                rows = await engine.steps.emitted(one.id)
                told = [msgspec.json.decode(entry.body)[0] for entry in entries_of(rows, 0)]
                assert one.progress is not None
                (noted if one.progress in told else early).append(one.progress)
            return await note(notes, **more)

        return after_a_look

    @jobs.task
    async def climb() -> None:
        for n in range(1, 101):
            current().progress(n / 100, f"at {n}")
            while n % 50 == 0 and n / 100 not in (noted + early):
                await asyncio.sleep(0)
        current().progress(1, "done")

    engine = await jobs.engine()
    replace(engine, ["note"], around)
    async with Worker(jobs, poll=0.02) as worker:
        job = await climb.enqueue()
        while not (await job.refresh()).finished_at:
            await worker.progress.write()
            await asyncio.sleep(0)
    assert early == []
    assert noted[-1] == 1


@pytest.mark.spec("WATCH-02")
async def test_a_watcher_that_comes_back_misses_nothing(timed_jobs: Stoker) -> None:
    """By the cursor of any event, or by the number of a value, everything behind it comes, once; log lines too."""

    @timed_jobs.task
    async def talk() -> None:
        for n in range(100):
            current().emit(n)
        current().log("one", "two")

    job = await talk.enqueue()
    await drain(timed_jobs)
    seen = await watched(job)
    assert [value for _, _, value in values(seen)] == list(range(100))
    for place, event in enumerate(seen):
        rest = seen[place + 1 :]
        assert await watched(job, event.cursor) == rest, event
    assert values(await watched(job, 42)) == values(seen)[42:]
    assert await asyncio.to_thread(lambda: list(timed_jobs.handle(job.id).watch_sync("99"))) == seen[99:]
    with pytest.raises(InvalidInput, match=r"must be a number that job .* has told; without it, all comes; got 101"):
        await watched(job, 101)


@pytest.mark.spec("WATCH-02")
async def test_a_watcher_that_comes_back_while_the_run_goes_on_misses_nothing(jobs: Stoker) -> None:
    """Its connection is lost after every few events, while the run writes its pages again and again."""
    seen, lost = list[News](), 0

    @jobs.task
    async def talk() -> None:
        for n in range(1, 301):
            current().emit(n)
            if n % 10 == 0:
                current().log(f"line {n}")
                while len(values(seen)) < n - 30:  # never far ahead of its reader
                    await asyncio.sleep(0)

    async with Worker(jobs), asyncio.timeout(PATIENCE):
        job = await talk.enqueue()
        while not (seen and isinstance(last := seen[-1], Changed) and last.ended):
            async with aclosing(job.watch(seen[-1].cursor if seen else None)) as events:
                for _ in range(1 + lost % 7):
                    if (event := await anext(events, None)) is not None:
                        seen.append(event)
            lost += 1
    assert [value for _, _, value in values(seen)] == list(range(1, 301))
    assert not [one for one in seen if isinstance(one, Missed)]
    lines = [line for one in seen if isinstance(one, Logged) for line in one.lines]
    assert lines == [f"line {n}" for n in range(10, 301, 10)]
    assert lost > 30


@pytest.mark.spec("WATCH-03")
async def test_a_watcher_that_comes_too_late_is_told_how_much_is_gone(timed_jobs: Stoker) -> None:
    @timed_jobs.task
    async def talk() -> None:
        for n in range(1, 3_001):
            current().emit(n)

    job = await talk.enqueue()
    await drain(timed_jobs)
    missed, *rest = await watched(job)
    assert isinstance(missed, Missed)
    found = values(rest)
    assert found == [(n, 1, n) for n in range(missed.count + 1, 3_001)]
    assert len(found) >= 1_000
    again, *_ = await watched(job, 500)
    assert isinstance(again, Missed)
    assert again.count == missed.count - 500
    assert values(await watched(job, missed.cursor)) == found


@pytest.mark.spec("WATCH-04")
async def test_attempts_tell_the_reader_where_a_new_page_begins(timed_jobs: Stoker, clock: VirtualClock) -> None:
    """Numbers go on, and a step that is stored does not emit again."""

    @timed_jobs.task(backoff=Fixed(1), attempts=3)
    async def talk() -> None:
        run = current()
        run.emit(f"attempt {run.attempt}")
        await run.step("once", lambda: run.emit("in the step"))
        if run.attempt == 1:
            raise ValueError("no")
        await run.sleep(60)
        run.emit("after the sleep")

    job = await talk.enqueue()
    await drain(timed_jobs)
    clock.advance(2)
    await drain(timed_jobs)
    assert (await job.refresh()).status is Status.PENDING  # suspended
    clock.advance(61)
    await drain(timed_jobs)
    assert values(await watched(job)) == [
        (1, 1, "attempt 1"),
        (2, 1, "in the step"),
        (3, 2, "attempt 2"),
        (4, 2, "attempt 2"),
        (5, 2, "after the sleep"),
    ]


@pytest.mark.spec("WATCH-19")
async def test_what_a_lost_run_emits_reaches_no_watcher(jobs: Stoker) -> None:
    """Its thread goes on when its claim has been taken away; the next run's values follow those of before."""
    go, told = threading.Event(), threading.Event()

    @jobs.task
    def talk() -> None:
        run = current()
        run.emit(f"early {run.attempt}")
        if run.attempt == 1:
            go.wait(PATIENCE)
            for n in range(100):
                run.emit(f"late {n}")
            run.progress(0.9, "late")
            told.set()

    async with Worker(jobs), asyncio.timeout(PATIENCE):
        job = await talk.enqueue()
        async with aclosing(following(job)) as events:
            async for event in events:
                if isinstance(event, Emitted):
                    break
        admin = Admin(jobs)
        await admin.jobs.cancel(job.id, force=True)
        go.set()
        await asyncio.to_thread(told.wait, PATIENCE)
        await admin.jobs.requeue(job.id)
        await job.result()
    seen = await watched(job)
    assert values(seen) == [(1, 1, "early 1"), (2, 2, "early 2")]
    assert not [one for one in seen if isinstance(one, Progressed)]


@pytest.mark.spec("WATCH-05")
async def test_what_a_block_emits_exists_with_its_commit(timed_jobs: Stoker) -> None:
    """A block that is rolled back takes nothing of it with it: it was told, whatever became of the block."""
    if Feature.OWN_TRANSACTION not in (await timed_jobs.engine()).features:
        pytest.skip("no transactions")

    @timed_jobs.task
    async def talk(good: bool) -> None:
        run = current()
        run.emit("before")
        try:
            async with run.transaction():
                run.emit("inside")
                if not good:
                    raise ZeroDivisionError
        except ZeroDivisionError:
            run.emit("after")

    for good in (True, False):
        job = await talk.enqueue(good)
        await drain(timed_jobs)
        told = ["before", "inside", *([] if good else ["after"])]
        assert [value for _, _, value in values(await watched(job))] == told


@pytest.mark.spec("WATCH-06")
@pytest.mark.parametrize("kind", ["telling", "telling_plainly", "telling_in_a_block"])
async def test_a_process_of_its_own_emits(url: str, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if kind == "telling_in_a_block" and url.startswith("redis"):
        pytest.skip("no transactions")
    monkeypatch.setenv("FLOWS_URL", url)
    app = importlib.reload(flows)
    async with app.jobs, Worker(app.jobs, {"default": 2}, poll=0.02):
        job = await getattr(app, kind).enqueue(40)
        events = await watched(job)
        assert isinstance(end := events[-1], Changed)
        assert (end.status, end.error) == (Status.DONE, None)
    assert [value for _, _, value in values(events)] == list(range(40))


@IN_MEMORY
@pytest.mark.spec("WATCH-07")
async def test_an_emit_waits_for_no_store(jobs: Stoker, monkeypatch: pytest.MonkeyPatch) -> None:
    """While the store takes nothing, a handler goes on; what fits into the ring is stored when the store is back."""
    engine = await jobs.engine()
    away, refused, save = True, threading.Event(), engine.steps.save

    async def failing(saves: list[Save], **options: Any) -> Any:
        if away:
            refused.set()
            raise EngineUnavailable("the store is away")
        return await save(saves, **options)

    monkeypatch.setattr(engine.steps, "save", failing)
    go = asyncio.Event()

    @jobs.task
    async def talk() -> None:
        for n in range(2_000):
            current().emit(n)
        await go.wait()

    async with Worker(jobs, poll=0.02):
        job = await talk.enqueue()
        await asyncio.to_thread(refused.wait, PATIENCE)
        assert (await job.refresh()).status is Status.RUNNING
        away = False
        go.set()
        events = await watched(job)
    assert any(isinstance(event, Missed) for event in events)
    assert values(events)[-1] == (2_000, 1, 1_999)


@IN_MEMORY
@pytest.mark.spec("WATCH-08")
async def test_what_is_refused(timed_jobs: Stoker) -> None:
    found: list[str] = []

    @timed_jobs.task
    async def talk() -> None:
        run = current()
        for bad in (object(), "x" * 70_000, float("nan")):
            with pytest.raises(StokerError) as refused:
                run.emit(bad)
            found.append(str(refused.value))
        with pytest.raises(InvalidInput, match="must be between 0 and 1"):
            run.progress(2, "too much")

    @timed_jobs.task(chunk=Chunk(2))
    async def many(n: list[int]) -> None:
        with pytest.raises(StokerError, match=r"current\(\).emit is one job's"):
            current().emit(1)
        for item in current().items:
            item.emit(item.id)

    job, other = await talk.enqueue(), await many.enqueue(1)
    await drain(timed_jobs)
    await job.result()
    assert "emit of" in found[0]
    assert "65536" in found[1].replace(",", "").replace("_", "") or "64 KiB" in found[1]
    assert values(await watched(other)) == [(1, 1, other.id)]
    assert values(await watched(job)) == []
    with pytest.raises(StokerError, match="inside a handler"):
        current()
    with pytest.raises(NotFound):
        await watched(timed_jobs.handle(UNKNOWN))
    for bad in ("x", True, -1):
        with pytest.raises(InvalidInput, match="must be the number or the cursor of an event"):
            await watched(job, bad)


@IN_MEMORY
@pytest.mark.spec("WATCH-09")
async def test_a_plain_job_pays_nothing_for_it(timed_jobs: Stoker, monkeypatch: pytest.MonkeyPatch) -> None:
    """No row is read or written for a job that emits nothing, and no task waits for one."""
    engine = await timed_jobs.engine()

    async def refuse(*args: Any, **options: Any) -> Any:
        raise AssertionError("a plain job has no rows")

    for name in ("save", "get", "emitted"):
        monkeypatch.setattr(engine.steps, name, refuse)

    @timed_jobs.task
    async def plain() -> int:
        return len([task for task in asyncio.all_tasks() if task.get_name() == "stoker-emitted"])

    job = await plain.enqueue()
    await drain(timed_jobs)
    assert await job.result() == 0


kit_jobs = Stoker("sqlite:////nonexistent/never.db", backoff=Fixed(60))


@kit_jobs.task
async def told(n: int) -> None:
    for m in range(n):
        current().emit(m)


@pytest.mark.spec("WATCH-15")
async def test_a_kit_runs_jobs_that_emit() -> None:
    """In `run` nothing is kept; in `drain` a watcher finds it; a worker dies before and after a value."""
    async with TestKit(kit_jobs) as kit:
        await kit.run(told, 2)
        job = await told.enqueue(2)
        await kit.drain()
        assert values(await watched(job)) == [(1, 1, 0), (2, 1, 1)]
        points = [run.point async for run in kit.crash_everywhere(told, 1)]
    assert {"before a value was emitted", "after a value was emitted"} <= {str(point) for point in points}
