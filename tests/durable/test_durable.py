"""Steps, sleeps, waits and calls through a worker, on a virtual clock."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Awaitable
from contextlib import closing
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest

from stoker import Status, Stoker, current
from stoker.errors import JobFailed, StepFailed
from stoker.model.retry import Fixed
from stoker.model.time import SECOND, Seconds, moment
from stoker.testing.clock import VirtualClock
from tests.harness.apps import becomes, drain, make_engine, working

HOUR = 3_600


class Approval(msgspec.Struct):
    yes: bool
    note: str = ""


@pytest.mark.spec("DURABLE-02", "DURABLE-03")
async def test_a_stored_step_is_not_run_again(timed_jobs: Stoker, clock: VirtualClock) -> None:
    jobs, ran = timed_jobs, list[str]()

    def note(what: str) -> str:
        ran.append(what)
        return what.upper()

    @jobs.task
    async def flow() -> list[str]:
        run = current()
        first = await run.step("a", note, "a")
        await run.sleep(HOUR)
        second = await run.step("b", note, "b")
        return [first, second]

    job = await flow.enqueue()
    await drain(jobs)
    assert ran == ["a"]
    record = await job.refresh()
    assert record.status is Status.PENDING
    assert record.attempts == 0
    clock.advance(HOUR / 2)
    await drain(jobs)
    assert ran == ["a"]
    clock.advance(HOUR)
    await drain(jobs)
    assert ran == ["a", "b"]
    assert await job.result() == ["A", "B"]
    assert {one.name: one.state for one in await job.steps()} == {"a": "done", "sleep": "done", "b": "done"}


@pytest.mark.spec("DURABLE-03")
async def test_a_sleep_until_a_moment_ends_at_that_moment(timed_jobs: Stoker, clock: VirtualClock) -> None:
    """Not later by the time that the claim and the suspension take; also when a signal woke the job before."""
    jobs, when = timed_jobs, moment(clock.now() + HOUR * SECOND)

    @jobs.task
    async def flow() -> None:
        await asyncio.gather(current().sleep_until(when), current().wait("go"))

    job = await flow.enqueue()
    await drain(jobs)
    assert (await job.refresh()).scheduled_at == when
    assert await job.signal("go")
    await drain(jobs)
    assert (await job.refresh()).scheduled_at == when
    clock.advance(HOUR)
    await drain(jobs)
    assert (await job.refresh()).status is Status.DONE


@pytest.mark.spec("DURABLE-04")
@pytest.mark.parametrize("early", [True, False])
async def test_a_signal_is_the_value_of_a_wait(timed_jobs: Stoker, early: bool) -> None:
    jobs = timed_jobs

    @jobs.task
    async def flow() -> str:
        answer = await current().wait("approval", Approval, ask="May it go on?")
        return answer.note

    job = await flow.enqueue()
    if early:
        assert await job.signal("approval", Approval(yes=True, note="fine"))
        await drain(jobs)
    else:
        await drain(jobs)
        [row] = await job.steps()
        assert (row.name, row.state, row.ask) == ("approval", "waiting", "May it go on?")
        assert await job.signal("approval", Approval(yes=True, note="fine"))
        assert not await job.signal("approval", Approval(yes=False))
        await drain(jobs)
    assert await job.result() == "fine"


@pytest.mark.spec("DURABLE-05")
async def test_a_wait_may_time_out(timed_jobs: Stoker, clock: VirtualClock) -> None:
    jobs = timed_jobs

    @jobs.task
    async def flow() -> str:
        try:
            await current().wait("approval", timeout=HOUR)
        except TimeoutError:
            return "late"
        return "in time"

    job = await flow.enqueue()
    await drain(jobs)
    clock.advance(HOUR + 1)
    await drain(jobs)
    assert await job.result() == "late"


@pytest.mark.spec("DURABLE-06")
async def test_called_jobs_run_side_by_side_and_wake_their_caller_once(timed_jobs: Stoker) -> None:
    jobs, runs = timed_jobs, 0

    @jobs.task
    async def double(n: int) -> int:
        return 2 * n

    @jobs.task
    async def flow() -> list[int]:
        nonlocal runs
        runs += 1
        run = current()
        return list(await asyncio.gather(*(run.call(double.draft(n)) for n in range(5))))

    job = await flow.enqueue()
    await drain(jobs)
    assert await job.result() == [0, 2, 4, 6, 8]
    assert runs == 2
    assert {one.state for one in await job.steps()} == {"done"}


@pytest.mark.spec("DURABLE-06")
async def test_the_end_of_a_called_job_is_stored_before_what_builds_on_it(timed_jobs: Stoker) -> None:
    """A small one goes with the next step, a large one at once: both are there when the step's function has run."""
    jobs, seen = timed_jobs, list[dict[str, str]]()

    @jobs.task
    async def text(size: int) -> str:
        return "x" * size

    async def read() -> None:
        seen.append({one.name: one.state for one in await jobs.handle(current().id).steps()})

    @jobs.task
    async def flow() -> None:
        run = current()
        await run.call(text.draft(10))
        await run.step("after-small", read)
        await run.step("later", read)
        await run.call(text.draft(10_000))
        await run.step("after-large", read)

    job = await flow.enqueue()
    await drain(jobs)
    assert (await job.refresh()).status is Status.DONE
    small, later, large = seen
    assert small["call:text"] == "called"
    assert later["call:text"] == "done"
    assert large["call:text#2"] == "done"


@pytest.mark.spec("DURABLE-06")
async def test_the_failure_of_a_called_job_is_raised(timed_jobs: Stoker) -> None:
    jobs = timed_jobs

    @jobs.task(attempts=1)
    async def breaks() -> None:
        raise ValueError("no")

    @jobs.task
    async def flow() -> str:
        try:
            await current().call(breaks.draft())
        except JobFailed as failed:
            return failed.kind
        return ""

    job = await flow.enqueue()
    await drain(jobs)
    assert (await job.result()).endswith("breaks")


@pytest.mark.spec("DURABLE-08")
async def test_a_failure_that_is_caught_is_the_same_in_every_later_run(timed_jobs: Stoker, clock: VirtualClock) -> None:
    jobs, tries = timed_jobs, 0

    def charge() -> None:
        nonlocal tries
        tries += 1
        raise ValueError("declined")

    @jobs.task
    async def flow() -> str:
        run = current()
        try:
            await run.step("charge", charge)
        except StepFailed as failed:
            await run.sleep(HOUR)
            return failed.kind
        return "charged"

    job = await flow.enqueue()
    await drain(jobs)
    clock.advance(HOUR)
    await drain(jobs)
    assert await job.result() == "ValueError"
    assert tries == 1


@pytest.mark.spec("DURABLE-08")
async def test_a_failure_that_is_let_out_is_tried_again(timed_jobs: Stoker, clock: VirtualClock) -> None:
    jobs, tries = timed_jobs, 0

    def charge() -> str:
        nonlocal tries
        tries += 1
        if tries < 3:
            raise ValueError("declined")
        return "charged"

    @jobs.task(attempts=5, backoff=Fixed(60))
    async def flow() -> str:
        return await current().step("charge", charge)

    job = await flow.enqueue()
    for _ in range(3):
        await drain(jobs)
        clock.advance(61)
    assert await job.result() == "charged"


@pytest.mark.spec("DURABLE-09")
@pytest.mark.parametrize("plain", [False, True])
async def test_a_step_has_tries_of_its_own(timed_jobs: Stoker, clock: VirtualClock, plain: bool) -> None:
    jobs, tries = timed_jobs, 0

    def charge() -> str:
        nonlocal tries
        tries += 1
        if tries < 3:
            raise ValueError("declined")
        return "charged"

    async def flow() -> str:
        return await current().step("charge", charge, attempts=3, backoff=Fixed(60))

    def plain_flow() -> str:
        return current().step_sync("charge", charge, attempts=3, backoff=Fixed(60))

    job = await jobs.task(plain_flow if plain else flow, attempts=1).enqueue()
    await drain(jobs)
    assert tries == 1
    [row] = await job.steps()
    assert (row.state, row.attempt) == ("waiting", 1)
    clock.advance(60)
    await drain(jobs)
    clock.advance(60)
    await drain(jobs)
    assert await job.result() == "charged"


@pytest.mark.parametrize("new_engine", ["memory"], indirect=True)
@pytest.mark.spec("DURABLE-09")
@pytest.mark.parametrize("plain", [False, True])
async def test_a_step_that_fails_soon_again_keeps_its_slot(timed_jobs: Stoker, plain: bool) -> None:
    runs, tries = 0, 0

    def charge() -> str:
        nonlocal tries
        tries += 1
        raise ValueError(f"declined {tries}")

    async def flow() -> str:
        nonlocal runs
        runs += 1
        return await current().step("charge", charge, key="k", attempts=3, backoff=Fixed(0.001))

    def plain_flow() -> str:
        nonlocal runs
        runs += 1
        return current().step_sync("charge", charge, key="k", attempts=3, backoff=Fixed(0.001))

    job = await timed_jobs.task(plain_flow if plain else flow, attempts=1).enqueue()
    await drain(timed_jobs)
    with pytest.raises(JobFailed, match="step charge:k failed: ValueError: declined 3"):
        await job.result()
    assert (runs, tries) == (1, 3)
    assert [(one.name, one.state) for one in await job.steps()] == [("charge:k", "failed")]


@pytest.mark.parametrize("new_engine", ["memory"], indirect=True)
@pytest.mark.spec("DURABLE-09")
@pytest.mark.parametrize("timeout", [0.01, timedelta(milliseconds=10)])
async def test_a_try_of_a_step_may_take_so_long(timed_jobs: Stoker, timeout: Seconds) -> None:
    @timed_jobs.task(attempts=1)
    async def flow() -> str:
        try:
            await current().step("hang", asyncio.Event().wait, timeout=timeout)
        except StepFailed as failed:
            return failed.kind
        return "ended"

    job = await flow.enqueue()
    await drain(timed_jobs)
    assert await job.result() == "TimeoutError"


@pytest.mark.spec("DURABLE-10")
async def test_a_plain_handler_suspends_too(timed_jobs: Stoker, clock: VirtualClock) -> None:
    jobs, ran = timed_jobs, list[int]()

    def note(n: int) -> int:
        ran.append(n)
        return n

    @jobs.task
    def double(n: int) -> int:
        return 2 * n

    @jobs.task
    def flow(n: int) -> dict[str, Any]:
        run = current()
        first = run.step_sync("a", note, n)
        run.sleep_sync(HOUR)
        answer = run.wait_sync("go", int)
        return {"first": first, "answer": answer, "called": run.call_sync(double.draft(n))}

    job = await flow.enqueue(4)
    await drain(jobs)
    clock.advance(HOUR)
    await drain(jobs)
    await job.signal("go", 5)
    await drain(jobs)
    assert await job.result() == {"first": 4, "answer": 5, "called": 8}
    assert ran == [4]


@pytest.mark.spec("DURABLE-11")
async def test_a_step_inside_a_step_is_refused(timed_jobs: Stoker) -> None:
    jobs = timed_jobs

    @jobs.task(attempts=1)
    async def flow() -> None:
        async def outer() -> None:
            await current().step("inner", int)

        await current().step("outer", outer)

    job = await flow.enqueue()
    await drain(jobs)
    with pytest.raises(JobFailed, match="stands inside step outer"):
        await job.result()


@pytest.mark.spec("DURABLE-01")
async def test_the_first_of_two_waits_lets_the_run_go_on(timed_jobs: Stoker) -> None:
    jobs = timed_jobs

    @jobs.task
    async def flow() -> str:
        run = current()
        waits = {asyncio.ensure_future(run.wait(name, str)) for name in ("left", "right")}
        done, others = await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        for one in others:
            one.cancel()
        return done.pop().result()

    job = await flow.enqueue()
    await drain(jobs)
    assert await job.signal("right", "r")
    await drain(jobs)
    assert await job.result() == "r"


@pytest.mark.spec("DURABLE-07")
async def test_a_called_job_runs_beside_a_step(jobs: Stoker) -> None:
    began = asyncio.Event()

    @jobs.task
    async def child() -> str:
        began.set()
        return "child"

    async def slow() -> str:
        await began.wait()  # only the called job lets it end
        return "step"

    @jobs.task
    async def flow() -> list[str]:
        run = current()
        return list(await asyncio.gather(run.call(child.draft()), run.step("slow", slow)))

    job = await flow.enqueue()
    await drain(jobs)
    assert await job.result() == ["child", "step"]


@pytest.mark.spec("DURABLE-16")
async def test_a_wait_with_a_limit_in_memory_keeps_its_slot(jobs: Stoker) -> None:
    @jobs.task
    async def flow() -> int:
        return await asyncio.wait_for(current().wait("go", int), 60)

    job = await flow.enqueue()
    async with working(jobs):
        await becomes(job, Status.RUNNING)
        assert await job.signal("go", 7)
        assert await job.result(60) == 7


@pytest.mark.spec("DURABLE-12")
@pytest.mark.parametrize("then", ["returns", "raises"])
async def test_what_a_handler_does_after_its_suspension_does_not_count(
    timed_jobs: Stoker, clock: VirtualClock, then: str
) -> None:
    jobs, runs = timed_jobs, 0

    @jobs.task(attempts=1)
    async def flow() -> str:
        nonlocal runs
        runs += 1
        try:
            await current().sleep(HOUR)
        except BaseException:
            if then == "raises":
                raise ValueError(then) from None
            return "early"
        return "slept"

    job = await flow.enqueue()
    await drain(jobs)
    assert (await job.refresh()).status is Status.PENDING
    clock.advance(HOUR)
    await drain(jobs)
    assert await job.result() == "slept"
    assert runs == 2


@pytest.mark.spec("DURABLE-15")
async def test_a_suspended_job_is_canceled_at_once(timed_jobs: Stoker) -> None:
    jobs = timed_jobs

    @jobs.task
    async def flow() -> None:
        await current().wait("never")

    job = await flow.enqueue()
    await drain(jobs)
    assert await job.cancel()
    assert (await job.refresh()).status is Status.CANCELED
    assert not await job.signal("never")


@pytest.mark.spec("DURABLE-02")
async def test_steps_side_by_side_are_found_by_key(timed_jobs: Stoker, clock: VirtualClock) -> None:
    jobs, ran = timed_jobs, list[int]()

    def square(n: int) -> int:
        ran.append(n)
        return n * n

    @jobs.task
    async def flow() -> list[int]:
        run = current()
        order = [3, 1, 2] if run.claim.fresh else [1, 2, 3]
        found = await asyncio.gather(*(run.step("square", square, n, key=str(n)) for n in order))
        await run.sleep(HOUR)
        return sorted(found)

    job = await flow.enqueue()
    await drain(jobs)
    clock.advance(HOUR)
    await drain(jobs)
    assert await job.result() == [1, 4, 9]
    assert sorted(ran) == [1, 2, 3]


@pytest.mark.spec("DURABLE-13")
async def test_a_value_is_decoded_on_the_first_run_too(timed_jobs: Stoker) -> None:
    jobs = timed_jobs

    def approve() -> Approval:
        return Approval(yes=True, note="x")

    @jobs.task
    async def flow() -> list[bool]:
        run = current()
        made = await run.step("approve", approve)
        plain: Any = await run.step("plain", lambda: (1, 2))
        return [isinstance(made, Approval), plain == [1, 2]]

    job = await flow.enqueue()
    await drain(jobs)
    assert await job.result() == [True, True]


class Approve:
    """Can be called, and neither hashed nor weakly referenced."""

    __slots__ = ("note",)
    __hash__ = None  # type: ignore[assignment]

    def __init__(self, note: str) -> None:
        self.note = note

    def __call__(self) -> Approval:
        return Approval(yes=True, note=self.note)

    def by(self, name: str, *, yes: bool) -> Approval:
        return Approval(yes=yes, note=self.note + name)

    def later(self) -> Awaitable[Approval]:
        return asyncio.sleep(0, self())


@pytest.mark.spec("DURABLE-13")
@pytest.mark.engine("memory")
@pytest.mark.parametrize(
    "fn, args",
    [
        (Approve("x"), ()),
        (partial(Approve("").by, "x", yes=True), ()),
        (partial(partial(Approve("").by, yes=True), "x"), ()),
        (Approval, (True, "x")),
        (partial(Approval, note="x"), (True,)),
        (Approve("x").later, ()),
    ],
    ids=["instance", "partial of a method", "partial of a partial", "class", "partial of a class", "awaitable"],
)
async def test_whatever_can_be_called_is_a_step(fn: Any, args: tuple[Any, ...]) -> None:
    """Its value has its type, whether it is a function or not."""
    async with Stoker("memory://") as jobs:

        @jobs.task(attempts=1)
        async def flow() -> tuple[bool, Any]:
            made = await current().step("approve", fn, *args)
            length = await current().step("length", "four".__len__)
            return made == Approval(yes=True, note="x"), length

        job = await flow.enqueue()
        await drain(jobs)
        assert await job.result() == (True, 4)


@pytest.mark.spec("DURABLE-14")
@pytest.mark.parametrize("plain", [True, False])
async def test_a_step_in_a_transaction_is_stored_with_its_writes(tmp_path: Path, plain: bool) -> None:
    jobs, tries = Stoker(f"sqlite:///{tmp_path}/jobs.db"), 0

    def failing() -> None:
        nonlocal tries
        tries += 1
        if tries == 1:
            raise ValueError("rolled back")

    async def charge(tx: Any, cents: int) -> int:
        await tx.execute("CREATE TABLE IF NOT EXISTS charges (cents INTEGER)")
        await tx.execute("INSERT INTO charges VALUES (?)", cents)
        failing()
        return cents

    def charge_plainly(tx: Any, cents: int) -> int:
        tx.execute("CREATE TABLE IF NOT EXISTS charges (cents INTEGER)")
        tx.execute("INSERT INTO charges VALUES (?)", cents)
        failing()
        return cents

    if plain:

        @jobs.task(attempts=3, backoff=Fixed(0.001))
        def flow() -> int:
            run = current()
            found = run.step_sync("charge", charge_plainly, 5, tx=True)
            run.wait_sync("go")
            return found

    else:

        @jobs.task(attempts=3, backoff=Fixed(0.001))
        async def flow() -> int:
            run = current()
            found: int = await run.step("charge", charge, 5, tx=True)
            await run.wait("go")
            return found

    async with jobs:
        job = await flow.enqueue()
        async with working(jobs):
            assert await job.signal("go")
            assert await job.result(60) == 5
    with closing(sqlite3.connect(tmp_path / "jobs.db")) as found:
        assert found.execute("SELECT cents FROM charges").fetchall() == [(5,)]
    assert tries == 2


@pytest.mark.spec("DURABLE-14")
async def test_what_a_run_has_not_stored_goes_with_its_transactions(tmp_path: Path, clock: VirtualClock) -> None:
    """A step in a transaction finds it stored; the block that settles the job stores it."""
    jobs = Stoker(make_engine("sqlite", tmp_path, clock))
    seen = list[dict[str, str]]()

    @jobs.task
    async def three() -> int:
        return 3

    async def read(tx: Any) -> None:
        [rows] = await (await jobs.engine()).steps.get([current().claim.id])
        seen.append({row.name: row.state.name for row in rows})

    @jobs.task
    async def flow() -> None:
        run = current()
        await run.call(three.draft())
        await run.step("read", read, tx=True)
        await run.sleep(HOUR)
        async with run.transaction():
            pass

    async with jobs:
        job = await flow.enqueue()
        await drain(jobs)
        clock.advance(HOUR)
        await drain(jobs)
        assert (await job.refresh()).status is Status.DONE
        assert {one.state for one in await job.steps()} == {"done"}
    assert seen[0]["call:three"] == "DONE"
