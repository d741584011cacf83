"""Handlers in processes of their own: isolation="process"."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from stoker import PREVIOUS, RESULTS, chain
from stoker.app import Stoker
from stoker.app_path import NotImportable
from stoker.executors import Executors, processes
from stoker.handle import JobHandle
from stoker.model.errors import JobCanceled, JobFailed, ResultUnavailable
from stoker.model.job import FINISHED, Status
from stoker.model.query import Query
from stoker.views import Job
from stoker.worker import Worker, maintenance
from tests.harness.apps import PATIENCE, until, working
from tests.worker.apps import risky
from tests.worker.shell import alive

pytestmark = pytest.mark.asyncio(loop_scope="module")
HOST = os.getpid()


@pytest_asyncio.fixture(scope="module", loop_scope="module", autouse=True)
async def worker(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Worker]:
    os.environ["RISKY_MARK"] = str(tmp_path_factory.mktemp("risky") / "mark")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(maintenance, "TEND_EVERY", 0.05)  # what a handler says is on the record sooner
        async with risky.jobs, Worker(risky.jobs, {"default": 4}, poll=0.02) as worker:
            yield worker


@pytest.fixture(autouse=True)
def no_mark() -> None:
    Path(os.environ["RISKY_MARK"]).unlink(missing_ok=True)


async def ended(handle: JobHandle[Any], limit: float = 30.0) -> Job:
    async with asyncio.timeout(limit):
        while (job := await handle.refresh()).status not in FINISHED:
            await asyncio.sleep(0.005)
    return job


async def running(handle: JobHandle[Any], limit: float = 10.0) -> Job:
    async with asyncio.timeout(limit):
        while not (job := await handle.refresh()).log:
            await asyncio.sleep(0.005)
    return job


@pytest.mark.spec("PROCESS-01")
async def test_handlers_run_elsewhere_and_children_are_used_again() -> None:
    pids = [await (await risky.whoami.enqueue()).result(PATIENCE) for _ in range(4)]
    assert HOST not in pids
    assert len(set(pids)) <= 2, "the first job may have come before the one that was started ahead"
    assert await (await risky.ordinary.enqueue()).result(PATIENCE) == HOST


@pytest.mark.spec("PROCESS-02")
async def test_arguments_and_results_keep_their_types() -> None:
    assert await (await risky.mirror.enqueue(risky.Point(1, 2))).result(PATIENCE) == risky.Point(2, 1)
    assert await (await risky.mirror.enqueue(risky.Point(1, 2), twice=True)).result(PATIENCE) == risky.Point(1, 2)


@pytest.mark.spec("PASS-01", "PASS-08")
async def test_results_are_passed_on_from_process_to_process() -> None:
    last, then = risky.mirror.draft(PREVIOUS), risky.width.draft(RESULTS)
    first = chain(risky.mirror.draft(risky.Point(1, 2)), last)
    group = await risky.jobs.group([first, risky.mirror.draft(risky.Point(5, 3))], then=then)
    assert await group.results(PATIENCE) == [risky.Point(2, 1), risky.Point(1, 2), risky.Point(3, 5)]
    assert await risky.jobs.handle(last.id).result(PATIENCE) == risky.Point(1, 2)
    assert await risky.jobs.handle(then.id).result(PATIENCE) == 3


@pytest.mark.spec("PROCESS-03")
async def test_current_works_in_the_child_whatever_it_prints(caplog: pytest.LogCaptureFixture) -> None:
    handle = await risky.chatty.enqueue()
    seen = await handle.result(PATIENCE)
    job = await handle.refresh()
    assert seen["attempt"] == 1
    assert seen["token"] == job.token
    assert seen["pool"] == seen["pid"] != HOST, "the lifespan is open in the child itself"
    assert job.metadata == {"exec_seen": "yes"}
    assert "from inside" in caplog.text
    async with asyncio.timeout(PATIENCE):
        while job.log != ("first line", "second line"):
            await asyncio.sleep(0.01)
            job = await handle.refresh()
    assert job.progress == 0.25


@pytest.mark.spec("PROCESS-03")
async def test_follow_ups_of_a_child_are_stored_with_its_success() -> None:
    engine = await risky.jobs.engine()
    mirrored = Query(kinds=frozenset({"mirror"}), statuses=frozenset({Status.DONE}), limit=100)
    before = len((await engine.operator.find(mirrored)).jobs)
    await (await risky.chatty.enqueue()).result(PATIENCE)
    async with asyncio.timeout(PATIENCE):
        while len((await engine.operator.find(mirrored)).jobs) == before:
            await asyncio.sleep(0.01)


async def test_the_tenant_scope_is_entered_in_the_child() -> None:
    assert await (await risky.tenant_seen.using(tenant="acme").enqueue()).result(PATIENCE) == ["acme", "acme"]


@pytest.mark.spec("PROCESS-04")
async def test_the_death_of_the_child_is_a_crash_end() -> None:
    told = {
        await risky.segfault.enqueue(): "killed by SIGSEGV (11)",
        await risky.abort.enqueue(): "killed by SIGABRT (6)",
        await risky.leave.enqueue(3): "exit code 3",
        await risky.leave.enqueue(0): "exit code 0",
    }
    for handle, how in told.items():
        job = await ended(handle)
        assert job.status is Status.DEAD
        assert (job.attempts, job.crashes) == (2, 2)
        assert how in (job.last_error or "")


@pytest.mark.spec("PROCESS-05")
async def test_a_memory_hog_meets_its_limit_and_the_others_live() -> None:
    async with Worker(risky.jobs, {"hogs": 2}, child_memory=400):
        hog = await risky.hog.enqueue()
        other = await risky.mirror.using(queue="hogs").enqueue(risky.Point(1, 2))
        job = await ended(hog)
        assert await other.result(PATIENCE) == risky.Point(2, 1)
    assert (job.status, job.crashes) == (Status.DEAD, 3)
    assert "out of memory: the limit is 400 MiB" in (job.last_error or "")


@pytest.mark.spec("PROCESS-06")
async def test_the_timeout_kills_hard_with_everything_the_handler_started(tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    stubborn, blocking = await risky.stubborn.enqueue(str(pids)), await risky.blocking.enqueue()
    for handle in (stubborn, blocking):
        job = await ended(handle)
        assert (job.status, job.crashes) == (Status.DEAD, 0)
        assert "timeout" in (job.last_error or "")
    started = [int(pid) for pid in pids.read_text().split()]
    async with asyncio.timeout(PATIENCE):
        while any(map(alive, started)):
            await asyncio.sleep(0.01)


@pytest.mark.spec("WORKER-33")
async def test_the_policy_is_asked_about_a_timeout_in_a_process_too() -> None:
    job = await ended(await risky.slow.enqueue())
    assert (job.status, job.attempts) == (Status.DEAD, 1)
    assert job.last_error == "timeout: ran longer than 0.3 s"


@pytest.mark.spec("PROCESS-07")
async def test_errors_come_back_as_text() -> None:
    job = await ended(await risky.unprintable.enqueue())
    assert job.status is Status.DEAD
    assert "Unprintable: (its message cannot be read: str() raised RuntimeError)" in (job.last_error or "")
    assert "risky.py" in (job.last_error or "")


@pytest.mark.spec("PROCESS-08", "HANDLE-07")
async def test_a_result_without_a_form_leaves_the_job_done_and_flagged() -> None:
    handle = await risky.unencodable.enqueue()
    job = await ended(handle)
    assert (job.status, job.result) == (Status.DONE, None)
    with pytest.raises(ResultUnavailable, match="object"):
        await handle.result(0)


@pytest.mark.spec("PROCESS-09")
async def test_the_retry_policy_is_asked_where_the_exception_lives() -> None:
    given_up, retried = await risky.not_worth_it.enqueue(), await risky.worth_it.enqueue()
    job = await ended(given_up)
    assert (job.status, job.attempts) == (Status.DEAD, 1)
    assert "ValueError: give up at once" in (job.last_error or "")
    job = await ended(retried)
    assert (job.status, job.attempts) == (Status.DEAD, 2)
    assert "KeyError" in (job.last_error or "")


@pytest.mark.spec("PROCESS-09")
@pytest.mark.parametrize(
    "which, status, attempts",
    [
        ("snooze", Status.DONE, 1),
        ("throttle", Status.DONE, 1),
        ("retry", Status.DONE, 2),
        ("reject", Status.DEAD, 1),
    ],
)
async def test_signals_travel(which: str, status: Status, attempts: int) -> None:
    job = await ended(await risky.exits.enqueue(which))
    assert (job.status, job.attempts) == (status, attempts)
    assert job.last_error == {"reject": "never"}.get(which)
    assert [failure.error for failure in job.history] == {"retry": ["not yet"], "reject": ["never"]}.get(which, [])


@pytest.mark.spec("PROCESS-10")
@pytest.mark.parametrize("task", [risky.leave_politely, risky.leave_through_a_task])
async def test_system_exit_is_a_panic(task: Any) -> None:
    job = await ended(await task.enqueue())
    assert (job.status, job.attempts, job.crashes) == (Status.DEAD, 1, 0)
    assert (job.last_error or "").startswith("panic: SystemExit")


@pytest.mark.spec("PROCESS-11")
@pytest.mark.parametrize("task", [risky.wait_for_cancel, risky.watch_token])
async def test_a_cancel_reaches_the_child(task: Any) -> None:
    handle = await task.enqueue()
    await running(handle)
    assert await handle.cancel()
    job = await ended(handle)
    assert job.status is Status.CANCELED


@pytest.mark.spec("PROCESS-11")
async def test_after_a_canceled_job_its_child_runs_others_that_nothing_stops() -> None:
    canceled = await risky.watch_token.enqueue()
    child = int((await running(canceled)).log[0])
    assert await canceled.cancel()
    assert (await ended(canceled)).status is Status.CANCELED
    seen: dict[int, bool] = {}
    while child not in seen:  # the pool hands out the child that came back last
        seen.update([await (await risky.told_to_stop.enqueue()).result(PATIENCE)])
        assert len(seen) < 5, "the child of the canceled job is not used again"
    assert not any(seen.values())


@pytest.mark.spec("PROCESS-11")
async def test_a_child_that_ignores_a_cancel_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "STOP_GRACE", 0.1)
    handle = await risky.deaf.enqueue()
    child = int((await running(handle)).log[0])
    assert await handle.cancel(reason="nobody listens")
    with pytest.raises(JobCanceled, match="was canceled: nobody listens"):
        await handle.result(PATIENCE)
    async with asyncio.timeout(PATIENCE):
        while alive(child):
            await asyncio.sleep(0.01)
    assert (await handle.refresh()).crashes == 0, "it did not die by itself"


@pytest.mark.spec("PROCESS-12")
async def test_a_child_that_wandered_off_is_not_used_again() -> None:
    wanderer = await (await risky.wander.enqueue()).result(PATIENCE)
    seen = {await (await risky.whoami.enqueue()).result(PATIENCE) for _ in range(4)}
    assert wanderer not in seen


async def test_a_child_that_was_killed_while_idle_is_replaced_unnoticed() -> None:
    idle = await (await risky.whoami.enqueue()).result(PATIENCE)
    os.kill(idle, signal.SIGKILL)
    async with asyncio.timeout(PATIENCE):
        while alive(idle):
            await asyncio.sleep(0.01)
    handle = await risky.whoami.enqueue()
    assert await handle.result(PATIENCE) != idle
    assert (await handle.refresh()).crashes == 0


async def test_a_child_that_dies_before_it_begins_costs_its_job_nothing(worker: Worker) -> None:
    idle = await (await risky.whoami.enqueue()).result(PATIENCE)
    os.kill(idle, signal.SIGSTOP)  # it is given the job and does not begin
    handle = await risky.whoami.enqueue()
    children = worker.executors.processes._alive
    await until(lambda: any(child.process.pid == idle and child.job is not None for child in children))
    os.kill(idle, signal.SIGKILL)
    assert await handle.result(PATIENCE) != idle
    job = await handle.refresh()
    assert (job.attempts, job.crashes) == (1, 0)


async def test_log_records_keep_their_level(caplog: pytest.LogCaptureFixture) -> None:
    await (await risky.talk.enqueue(logging.ERROR)).result(PATIENCE)
    assert ("risky", logging.ERROR, "a line \x1b[31mof log") in caplog.record_tuples


@pytest.mark.spec("PROCESS-13")
async def test_what_cannot_be_imported_is_refused_by_name() -> None:
    app = Stoker("memory://")

    @app.task(isolation="process")
    def nested() -> None: ...

    @app.task
    def main() -> None: ...

    main.fn.__module__ = "__main__"
    executors = Executors()
    with pytest.raises(NotImportable, match=r"nested.*no module holds.*top of a module"):
        executors.check([nested])
    assert executors.isolated_call_of(nested) is None
    assert executors.isolated_call_of(main) is None
    assert executors.isolated_call_of(risky.ordinary) is not None
    async with app:
        with pytest.raises(NotImportable, match="no module holds"):
            await Worker(app).start()


@pytest.mark.spec("PROCESS-13")
async def test_a_job_that_asks_for_a_process_it_cannot_have_says_why() -> None:
    app = Stoker("memory://")

    @app.task
    def nested() -> None: ...

    async with app, Worker(app):
        with pytest.raises(JobFailed, match="no module holds"):
            await (await nested.using(attempts=1, isolation="process").enqueue()).result(PATIENCE)


@pytest.mark.spec("CONTEXT-10")
async def test_a_handler_in_a_process_is_told_that_the_worker_stops(tmp_path: Path) -> None:
    """It saves and snoozes within the grace; the next run reads what this one noted."""
    started = tmp_path / "started"
    handle = await risky.saves.enqueue(str(started))
    async with working(risky.jobs, {"stops": 1}) as worker:
        await until(started.exists)
        await worker.stop(PATIENCE)
    record = await handle.refresh()
    assert (record.status, record.attempts, record.metadata) == (Status.PENDING, 0, {"exec_page": "7"})
    async with working(risky.jobs, {"stops": 1}):
        assert await handle.result(PATIENCE) == "7"


@pytest.mark.spec("HOOK-09")
async def test_plain_middleware_runs_in_the_process_and_thread_of_the_handler() -> None:
    handle = await risky.surrounded.enqueue()
    where = await handle.result(PATIENCE)
    assert (await handle.refresh()).metadata == {"exec_middleware": where}
    assert where.split()[0] != str(HOST)
