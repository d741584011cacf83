"""Rules of durable jobs: what counts when code changes, what a failure is, and how the rest of Stoker applies."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any

import pytest

from stoker import (
    JobCanceled,
    JobFailed,
    NotFound,
    Reject,
    Retry,
    Snooze,
    Status,
    StepFailed,
    Stoker,
    Throttle,
    chain,
    current,
)
from stoker.admin import Admin
from stoker.context import Context
from stoker.durable.suspension import Suspend
from stoker.hooks import Next
from stoker.model import ids
from stoker.model.query import Delete, Selection
from stoker.model.retry import Fixed
from stoker.model.time import DAY
from stoker.testing.clock import VirtualClock
from stoker.worker import running
from tests.harness.apps import PATIENCE, becomes, drain, until, working

HOUR = 3_600
pytestmark = pytest.mark.parametrize("new_engine", ["memory"], indirect=True)


# --- when the code changes between two runs -------------------------------------------------------------------------


@pytest.mark.spec("DURABLE-25")
async def test_code_may_change_between_two_runs(timed_jobs: Stoker, clock: VirtualClock) -> None:
    """What is new runs, what is gone stays as a row, and what was stored counts wherever it is reached."""
    jobs, ran = timed_jobs, list[str]()

    def note(what: str) -> str:
        ran.append(what)
        return what

    async def before() -> list[str]:
        run = current()
        found = [await run.step("a", note, "a"), await run.step("b", note, "b"), await run.step("old", note, "old")]
        await run.sleep(HOUR)
        return found

    async def after() -> list[str]:
        run = current()
        b, a = await asyncio.gather(run.step("b", note, "other arguments"), run.step("a", note, "a"))
        found = [b, a, await run.step("new", note, "new"), await run.step("renamed", note, "renamed")]
        await run.sleep(HOUR)
        return found

    code = before

    @jobs.task
    async def flow() -> list[str]:
        return await code()

    job = await flow.enqueue()
    await drain(jobs)
    code = after
    ran.clear()
    clock.advance(HOUR)
    await drain(jobs)
    assert await job.result() == ["b", "a", "new", "renamed"]
    assert ran == ["new", "renamed"]
    assert {"a", "b", "old", "new", "renamed", "sleep"} == {step.name for step in await job.steps()}


@pytest.mark.spec("DURABLE-25")
async def test_a_stored_value_of_another_type_fails_by_the_name_of_its_step(
    timed_jobs: Stoker, clock: VirtualClock
) -> None:
    jobs = timed_jobs

    def text() -> str:
        return "seven"

    def number() -> int:
        return 7

    fn: Callable[[], Any] = text

    @jobs.task(attempts=1)
    async def flow() -> None:
        await current().step("count", fn)
        await current().sleep(HOUR)

    job = await flow.enqueue()
    await drain(jobs)
    fn = number
    clock.advance(HOUR)
    await drain(jobs)
    with pytest.raises(JobFailed, match=r"step count failed: .* does not fit int: .*give the step another name"):
        await job.result()


@pytest.mark.spec("DURABLE-25")
async def test_a_call_with_other_arguments_keeps_the_first_result(
    timed_jobs: Stoker, caplog: pytest.LogCaptureFixture
) -> None:
    """A warning names both jobs, once."""
    jobs = timed_jobs

    @jobs.task
    async def double(n: int) -> int:
        return 2 * n

    @jobs.task
    async def flow(changes: bool) -> int:
        run = current()
        found = await run.call(double.draft(5 if changes and not run.claim.fresh else 1))
        await run.wait("go")
        return found

    calm, changed = await flow.enqueue(changes=False), await flow.enqueue(changes=True)
    for _ in range(2):
        await drain(jobs)
        for job in (calm, changed):
            await job.signal("go")
    assert (await calm.result(), await changed.result()) == (2, 2)
    [warning] = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    called = ids.text(ids.derived(ids.parse(changed.id), "call:double"))
    assert f"job {changed.id} (flow) calls call:double with other arguments than job {called} has" in warning


@pytest.mark.spec("STEP-01")
async def test_uses_of_a_name_count_from_when_they_are_asked_for(timed_jobs: Stoker) -> None:
    """Not from when they are awaited."""

    @timed_jobs.task
    async def flow() -> list[str]:
        run = current()
        first, second = run.step("s", str, "first"), run.step("s", str, "second")
        later = await second
        return [await first, later]

    job = await flow.enqueue()
    await drain(timed_jobs)
    assert await job.result() == ["first", "second"]
    assert {step.name: step.value for step in await job.steps()} == {"s": "first", "s#2": "second"}


# --- failures -------------------------------------------------------------------------------------------------------


@pytest.mark.spec("DURABLE-26")
@pytest.mark.parametrize(
    ("leave", "status"),
    [
        (Snooze(HOUR), Status.PENDING),
        (Throttle(HOUR), Status.PENDING),
        (Retry("later", delay=HOUR), Status.RETRYING),
        (Reject("no"), Status.DEAD),
    ],
    ids=["snooze", "throttle", "retry", "reject"],
)
async def test_an_exit_inside_a_step_ends_the_run_as_anywhere(
    timed_jobs: Stoker, leave: Exception, status: Status
) -> None:
    """Nothing is stored: the next run begins the step anew."""

    def out() -> None:
        raise leave

    @timed_jobs.task(attempts=5)
    async def flow() -> None:
        await current().step("out", out, attempts=3)

    job = await flow.enqueue()
    await drain(timed_jobs)
    assert (await job.refresh()).status is status
    assert await job.steps() == []


@pytest.mark.spec("DURABLE-26")
@pytest.mark.parametrize("plain", [True, False])
async def test_a_policy_judges_what_the_step_raised(timed_jobs: Stoker, plain: bool) -> None:
    """Its `__cause__` on the run where it happened; error hooks are given it too."""
    jobs, causes = timed_jobs, list[BaseException | None]()

    def declined() -> None:
        raise ValueError("declined")

    async def asynchronous() -> None:
        try:
            await current().step("charge", declined)
        except StepFailed as failed:
            causes.append(failed.__cause__)
            raise

    def in_thread() -> None:
        try:
            current().step_sync("charge", declined)
        except StepFailed as failed:
            causes.append(failed.__cause__)
            raise

    flow: Any = jobs.task(name="flow", attempts=5, give_up_on=ValueError)(in_thread if plain else asynchronous)
    job = await flow.enqueue()
    await drain(jobs)
    assert (await job.refresh()).status is Status.DEAD
    assert [type(cause) for cause in causes] == [ValueError]


@pytest.mark.spec("DURABLE-09")
async def test_a_try_of_a_step_has_a_time_limit(timed_jobs: Stoker) -> None:
    @timed_jobs.task(attempts=1)
    async def flow() -> str:
        try:
            await current().step("endless", asyncio.Event().wait, attempts=2, backoff=Fixed(0), timeout=0.01)
        except StepFailed as failed:
            return failed.kind
        return "ended"

    job = await flow.enqueue()
    await drain(timed_jobs)
    assert await job.result() == "TimeoutError"
    [row] = await job.steps()
    assert (row.state, row.attempt) == ("failed", 2)


@pytest.mark.spec("DURABLE-05")
async def test_a_wait_that_timed_out_does_so_in_every_later_run(timed_jobs: Stoker, clock: VirtualClock) -> None:
    """A signal that comes later is refused."""
    jobs, late = timed_jobs, 0

    @jobs.task
    async def flow() -> None:
        nonlocal late
        try:
            await current().wait("approval", timeout=HOUR)
        except TimeoutError:
            late += 1
        await current().sleep(HOUR)

    job = await flow.enqueue()
    await drain(jobs)
    clock.advance(HOUR)
    await drain(jobs)
    assert not await job.signal("approval")
    clock.advance(HOUR)
    await drain(jobs)
    assert (await job.refresh()).status is Status.DONE
    assert late == 2


@pytest.mark.spec("DURABLE-06")
@pytest.mark.parametrize("how", ["canceled", "gone"])
async def test_a_called_job_that_left_no_result_is_raised_in_every_run(timed_jobs: Stoker, how: str) -> None:
    jobs, raised = timed_jobs, list[str]()

    @jobs.task
    async def child() -> None:
        await current().wait("never")

    @jobs.task
    async def flow() -> None:
        run = current()
        try:
            await run.call(child.draft())
        except (JobCanceled, NotFound) as error:
            raised.append(f"{type(error).__name__}: {error}")
        await run.wait("go")

    job = await flow.enqueue()
    await drain(jobs)
    [row] = [step for step in await job.steps() if step.state == "called"]
    assert row.job is not None
    assert await jobs.handle(row.job).cancel()
    if how == "gone":
        found = await (await jobs.engine()).operator.alter(Selection((ids.parse(row.job),)), Delete())
        assert found.changed == 1
    await drain(jobs)
    assert await job.signal("go")
    await drain(jobs)
    assert (await job.refresh()).status is Status.DONE
    assert raised == [raised[0]] * 2
    assert raised[0].startswith("JobCanceled" if how == "canceled" else "NotFound")
    assert row.job in raised[0]


# --- calls ----------------------------------------------------------------------------------------------------------


@pytest.mark.spec("DURABLE-06")
async def test_the_first_of_two_calls_lets_the_caller_run(timed_jobs: Stoker) -> None:
    jobs = timed_jobs

    @jobs.task(queue="quick")
    async def quick() -> str:
        return "quick"

    @jobs.task(queue="slow")
    async def slow() -> str:
        await current().wait("never", str)
        return "slow"

    @jobs.task
    async def flow() -> str:
        run = current()
        calls = {asyncio.ensure_future(run.call(draft)) for draft in (quick.draft(), slow.draft())}
        done, others = await asyncio.wait(calls, return_when=asyncio.FIRST_COMPLETED)
        for one in others:
            one.cancel()
        return done.pop().result()

    job = await flow.enqueue()
    await drain(jobs)
    assert await job.result() == "quick"


@pytest.mark.spec("DURABLE-06")
async def test_a_call_that_the_handler_gave_up_goes_on(jobs: Stoker) -> None:
    """The limit was the handler's own: the next use of that call's name finds the job."""
    began = asyncio.Event()

    @jobs.task
    async def child() -> str:
        began.set()
        return await current().wait("go", str)

    @jobs.task(attempts=2, backoff=Fixed(0))
    async def flow() -> str:
        run = current()
        if run.attempt > 1:
            return await run.call(child.draft())
        calling = asyncio.ensure_future(run.call(child.draft()))
        await asyncio.wait_for(began.wait(), PATIENCE)
        calling.cancel()
        raise ValueError("too slow")

    job = await flow.enqueue()
    async with working(jobs):
        async with asyncio.timeout(PATIENCE):
            while not (rows := [step for step in await job.steps() if step.state == "called"]):
                await asyncio.sleep(0.002)
        [called] = rows
        assert called.job is not None
        assert await jobs.handle(called.job).signal("go", "found")
        assert await job.result(PATIENCE) == "found"
    assert len((await Admin(jobs).jobs.find("kind:child")).jobs) == 1


@pytest.mark.spec("DURABLE-06")
async def test_a_called_job_is_kept_for_a_week_at_least(timed_jobs: Stoker) -> None:
    """Its caller may read its end much later."""
    jobs = timed_jobs

    @jobs.task(keep=60)
    async def child() -> None: ...

    @jobs.task
    async def flow() -> None:
        await current().call(child.draft())

    job = await flow.enqueue()
    await drain(jobs)
    [row] = await job.steps()
    assert row.job is None or row.state == "done"
    [record] = (await Admin(jobs).jobs.find("kind:child")).jobs
    [found] = await (await jobs.engine()).operator.get([ids.parse(record.id)])
    assert found is not None
    assert found.options.keep == 7 * DAY


# --- how the rest applies -------------------------------------------------------------------------------------------


@pytest.mark.spec("DURABLE-12")
@pytest.mark.parametrize("then", ["returned", "raised"])
@pytest.mark.parametrize("plain", [True, False])
async def test_a_handler_that_catches_its_suspension_is_told(
    timed_jobs: Stoker, plain: bool, then: str, caplog: pytest.LogCaptureFixture
) -> None:
    """One that lets it pass is not."""
    jobs = timed_jobs

    def caught() -> None:
        if then == "raised":
            raise ValueError(then) from None

    async def asynchronous(catches: bool) -> None:
        try:
            await current().wait("go")
        except asyncio.CancelledError:
            if not catches:
                raise
            caught()

    def in_thread(catches: bool) -> None:
        try:
            current().wait_sync("go")
        except Suspend:
            if not catches:
                raise
            caught()

    flow: Any = jobs.task(name="flow", attempts=1)(in_thread if plain else asynchronous)
    calm, loud = await flow.enqueue(catches=False), await flow.enqueue(catches=True)
    await drain(jobs)
    assert {(await job.refresh()).status for job in (calm, loud)} == {Status.PENDING}
    [record] = [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert f"job {loud.id} (flow) was suspended, and its handler went on: what it {then}" in record.getMessage()
    assert (record.exc_info is not None and record.exc_info[0] is ValueError) is (then == "raised")


@pytest.mark.spec("DURABLE-12")
async def test_a_handler_that_goes_on_after_its_suspension_is_abandoned(
    jobs: Stoker, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Its job waits all the same; a durable call that it makes then is refused."""
    monkeypatch.setattr(running, "AGAIN_AFTER", 0.001)
    refused, ended = list[str](), asyncio.Event()

    @jobs.task(attempts=1)
    async def flow(stays: bool) -> str:
        run = current()
        try:
            return await run.wait("go", str)
        except asyncio.CancelledError:
            try:
                await run.step("more", int)
            except asyncio.CancelledError as error:
                refused.append(str(error))
        while stays and not ended.is_set():
            try:
                await ended.wait()
            except asyncio.CancelledError:
                continue
        return "nothing"

    job = await flow.enqueue(stays=True)
    async with working(jobs):
        await until(lambda: "is abandoned" in caplog.text)
        await becomes(job, Status.PENDING)
        assert [step.name for step in await job.steps()] == ["go"]
        assert refused == ["the run is suspended"]
        assert await job.signal("go", "gone on")
        assert await job.result(PATIENCE) == "gone on"
        ended.set()


@pytest.mark.spec("DURABLE-27")
async def test_middleware_passes_once_per_run(timed_jobs: Stoker, clock: VirtualClock) -> None:
    jobs, passed = timed_jobs, list[str]()

    async def around(call: Next[Context, Any], context: Context) -> Any:
        passed.append(context.kind)
        return await call(context)

    jobs.middleware.append(around)

    @jobs.task
    async def flow() -> None:
        await current().sleep(HOUR)
        await current().sleep(HOUR)

    await flow.enqueue()
    for _ in range(3):
        await drain(jobs)
        clock.advance(HOUR)
    assert passed == ["flow"] * 3


@pytest.mark.spec("DURABLE-27")
async def test_what_follows_a_job_waits_for_its_end(timed_jobs: Stoker) -> None:
    """A suspension is no success: neither the next link of a chain nor the callback of a group runs."""
    jobs, ran = timed_jobs, list[str]()

    @jobs.task
    async def flow() -> None:
        await current().wait("go")

    @jobs.task
    async def after(what: str) -> None:
        ran.append(what)

    first = flow.draft()
    await jobs.enqueue(chain(first, after.draft("chain")))
    member = flow.draft()
    await jobs.group([member], then=after.draft("group"))
    await drain(jobs)
    assert ran == []
    for draft in (first, member):
        assert await jobs.handle(draft.job_id).signal("go")
    await drain(jobs)
    assert sorted(ran) == ["chain", "group"]


@pytest.mark.spec("DURABLE-27")
async def test_a_job_that_may_expire_does_not_while_it_sleeps(timed_jobs: Stoker, clock: VirtualClock) -> None:
    jobs = timed_jobs

    @jobs.task(expires=60)
    async def flow() -> str:
        await current().sleep(HOUR)
        return "slept"

    job = await flow.enqueue()
    await drain(jobs)
    clock.advance(HOUR)
    await drain(jobs)
    assert await job.result() == "slept"


@pytest.mark.spec("DURABLE-27")
async def test_a_sleep_is_skipped_by_a_signal_and_not_by_run_now(timed_jobs: Stoker) -> None:
    jobs = timed_jobs

    @jobs.task
    async def flow() -> str:
        await current().sleep(HOUR)
        return "slept"

    job = await flow.enqueue()
    await drain(jobs)
    due = (await job.refresh()).scheduled_at
    assert (await Admin(jobs).jobs.run_now(job.id)).changed == 1
    await drain(jobs)
    record = await job.refresh()
    assert (record.status, abs((record.scheduled_at - due).total_seconds()) < 60) == (Status.PENDING, True)
    assert await job.signal("sleep")
    await drain(jobs)
    assert await job.result() == "slept"


@pytest.mark.spec("DURABLE-27")
async def test_a_requeued_job_goes_on_behind_its_steps(timed_jobs: Stoker) -> None:
    jobs, ran, well = timed_jobs, list[str](), False

    @jobs.task(attempts=1)
    async def flow() -> str:
        await current().step("a", ran.append, "a")
        if not well:
            raise ValueError("not yet")
        return "done"

    job = await flow.enqueue()
    await drain(jobs)
    assert (await job.refresh()).status is Status.DEAD
    well = True
    assert (await Admin(jobs).jobs.requeue(job.id)).changed == 1
    await drain(jobs)
    assert await job.result() == "done"
    assert ran == ["a"]
