"""Orders from afar: quiet, resume, stop, and where handlers stand."""

from __future__ import annotations

import asyncio
import logging
import signal
import threading
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import pytest

from stoker.admin import Admin, documents
from stoker.admin.workers import StackView, WorkerView
from stoker.app import Stoker
from stoker.context import current
from stoker.engines.base import CONTROL, ORDERS
from stoker.model.errors import NotFound, WrongState
from stoker.model.job import Status
from stoker.model.orders import KEPT, StackReport, Stand, Verb
from stoker.worker.orders import NO_ANSWER
from tests.harness.apps import PATIENCE, working
from tests.harness.apps import until as met
from tests.worker.shell import Deployment, until

T = TypeVar("T")


@pytest.mark.spec("ORDER-01", "ORDER-04")
async def test_a_quiet_worker_claims_nothing_until_it_is_resumed(jobs: Stoker) -> None:
    done: list[str] = []
    gate = asyncio.Event()

    @jobs.task
    async def hold() -> None:
        done.append("begun")
        await gate.wait()

    @jobs.task
    async def quick() -> None:
        done.append("quick")

    admin = Admin(jobs, by="ann")
    async with working(jobs) as worker:
        held = await hold.enqueue()
        await met(lambda: done == ["begun"])
        told = await admin.workers.order(worker.id[:8], "quiet", reason="a look")
        assert (told.worker, told.order, told.note) == (worker.id, "quiet", "")

        async def state() -> str:
            [one] = await admin.workers.list()
            return one.state

        while await state() != "quiet":
            await asyncio.sleep(0.01)
        waiting = await quick.enqueue()
        gate.set()
        await held.result(PATIENCE)
        assert worker.ready, "it lives, it only claims nothing"
        assert (await waiting.refresh()).status is Status.PENDING
        done.append("resume")
        await admin.workers.order(worker.id, "resume")
        await waiting.result(PATIENCE)
        assert done == ["begun", "resume", "quick"]
        assert await state() == "running"
    entries = await admin.audit.list(action="workers.")
    assert [(one.action, one.target, one.reason) for one in entries] == [
        ("workers.resume", f"worker {worker.id}", None),
        ("workers.quiet", f"worker {worker.id}", "a look"),
    ]
    with pytest.raises(WrongState, match="is stopped, which 'quiet' does not apply to"):
        await admin.workers.order(worker.id, "quiet")
    with pytest.raises(NotFound, match="is not in the store"):
        await admin.workers.order("nobody", "stop")


@pytest.mark.spec("ORDER-06")
async def test_an_order_is_obeyed_once_however_often_the_worker_renews(
    jobs: Stoker, caplog: pytest.LogCaptureFixture
) -> None:
    """Its process may resume a worker that was told to be quiet; the old order does not quiet it again."""
    caplog.set_level(logging.INFO)
    admin, engine = Admin(jobs, by="ann"), await jobs.engine()
    async with working(jobs) as worker:
        await admin.workers.order(worker.id, "quiet")
        await met(lambda: "quiet, as told from afar" in caplog.text)
        worker.resume()
        for _ in range(3):
            before = worker.lease_keeper.renewed_at
            await engine.jobs.wake([CONTROL])
            await met(lambda before=before: worker.lease_keeper.renewed_at > before)  # type: ignore[misc]
        await asyncio.sleep(0)  # what the last renewal but one has ordered was done before the last one
        assert caplog.text.count("quiet, as told from afar") == 1


@pytest.mark.spec("ORDER-02")
async def test_a_worker_that_is_told_to_stop_finishes_what_it_runs(jobs: Stoker) -> None:
    begun, gate = asyncio.Event(), asyncio.Event()

    @jobs.task
    async def hold() -> str:
        begun.set()
        await current().stopping
        gate.set()
        return "whole"

    async with working(jobs) as worker:
        job = await hold.enqueue()
        await begun.wait()
        await Admin(jobs).workers.order(worker.id, "stop")
        await asyncio.wait_for(worker.join(), PATIENCE)
        assert worker.stop_ordered
    assert await job.result(PATIENCE) == "whole"
    assert gate.is_set()


@pytest.mark.spec("ORDER-03", "ORDER-05")
async def test_a_worker_tells_where_its_handlers_stand(jobs: Stoker) -> None:
    gate, begun = threading.Event(), list[str]()

    async def deeper(n: int) -> None:
        begun.append(f"deep {n}")
        await asyncio.Event().wait()

    @jobs.task
    async def gathers(password: str) -> None:
        await asyncio.gather(deeper(1), deeper(2))

    @jobs.task
    async def groups() -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(deeper(3), name="third")

    @jobs.task
    def in_thread() -> None:
        begun.append("thread")
        gate.wait(PATIENCE)

    admin = Admin(jobs)
    try:
        async with working(jobs, shutdown_grace=0) as worker:
            assert (await _stack(admin, worker.id)).stands == []
            await gathers.enqueue(password="hunter2")
            await groups.enqueue()
            await in_thread.enqueue()
            await met(lambda: len(begun) == 4)
            told = await _stack(admin, worker.id)
            by_kind = {one.kind.rpartition(".")[2]: one for one in told.stands}
            assert by_kind.keys() == {"gathers", "groups", "in_thread"}
            first = by_kind["gathers"]
            assert first.place == "the event loop"
            assert "await asyncio.gather(deeper(1), deeper(2))" in first.stack
            assert first.stack.count("await asyncio.Event().wait()") == 2
            assert "hunter2" not in first.stack
            assert "Task third:\n" in by_kind["groups"].stack
            assert by_kind["in_thread"].place.startswith("thread stoker-handler-")
            assert by_kind["in_thread"].stack.splitlines()[1].strip() == "gate.wait(PATIENCE)"
            assert all("stoker/worker" not in one.stack for one in told.stands)
            again = await _stack(admin, worker.id)
            assert again.at >= told.at
            assert await admin.workers.last_stack(worker.id) == again
            gate.set()
    finally:
        gate.set()


class Proxy:
    """A callable that raises for every attribute that it lacks, as proxies do that are not bound."""

    def __init__(self, call: Callable[[], object]) -> None:
        self.call = call

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        raise RuntimeError("not bound")

    def __getattr__(self, name: str) -> Any:
        raise RuntimeError("not bound")

    def __call__(self) -> object:
        return self.call()


@pytest.mark.spec("ORDER-03")
async def test_objects_that_cannot_be_looked_at_hide_no_stack(jobs: Stoker) -> None:
    gate, begun = threading.Event(), threading.Event()

    def call() -> None:
        begun.set()
        gate.wait(PATIENCE)

    @jobs.task
    async def elsewhere() -> None:
        await asyncio.to_thread(Proxy(call))

    try:
        async with working(jobs, shutdown_grace=0) as worker:
            await elsewhere.enqueue()
            await met(begun.is_set)
            [told] = (await _stack(Admin(jobs), worker.id)).stands
            assert told.stack.splitlines()[1].strip() == "await asyncio.to_thread(Proxy(call))"
            gate.set()
    finally:
        gate.set()


@pytest.mark.spec("ORDER-03")
async def test_what_looks_like_a_secret_is_masked_in_a_stack(jobs: Stoker) -> None:
    engine = await jobs.engine()
    line = '  File "a.py", line 1, in send\n    login(password="hunter2")'
    stand = Stand(job="j", kind="send", place="the event loop", stack=line)
    async with working(jobs) as worker:
        report = StackReport(worker=worker.id, asked=1, at=await engine.now(), stands=(stand,))
        await engine.documents.swap("stacks", worker.id, None, msgspec.json.encode(report))
        found = await Admin(jobs).workers.last_stack(worker.id)
        assert found is not None
        assert found.stands[0].stack.endswith("login(password=[hidden])")
        assert (await Admin(jobs, redact=None).workers.last_stack(worker.id) or found).stands[0].stack == line


@pytest.mark.spec("ORDER-05", "ORDER-06")
async def test_orders_of_workers_that_are_gone_are_dropped(jobs: Stoker) -> None:
    engine, admin = await jobs.engine(), Admin(jobs)
    async with working(jobs) as former:
        await admin.workers.order(former.id, "quiet")
    old = StackReport(worker="gone", asked=1, at=await engine.now() - KEPT - 1)
    await engine.documents.swap("stacks", "gone", None, msgspec.json.encode(old))
    async with working(jobs) as worker:
        await engine.documents.swap(ORDERS, worker.id, None, b"{}")
        await engine.jobs.wake(["@control"])
        assert (await admin.workers.list())[-1].state != "quiet", "what cannot be read is no order"
        await engine.documents.swap(ORDERS, worker.id, b"{}", None)
        await admin.workers.order(worker.id, "resume")
        assert [one.worker for one in await documents.orders(engine)] == [worker.id]
        assert await documents.stacks(engine) == []


@pytest.mark.spec("ORDER-06")
async def test_a_worker_under_a_new_id_stays_quiet_and_takes_its_own_orders(jobs: Stoker) -> None:
    @jobs.task
    async def quick() -> None: ...

    admin = Admin(jobs)
    async with working(jobs, lease=6) as worker:
        former = worker.id
        await admin.workers.order(former, "quiet")
        await met(lambda: worker.is_quiet)
        await admin.workers.take_back(former)  # it is taken for dead
        await (await jobs.engine()).jobs.wake([CONTROL])
        await met(lambda: worker.id != former)
        await worker.maintenance.show_and_tune()  # as every five seconds
        waiting = await quick.enqueue()
        assert worker.is_quiet
        assert (await admin.workers.get(worker.id)).state == "quiet"
        await admin.workers.order(worker.id, "resume")
        await waiting.result(PATIENCE)
        known = {one.worker: one.work for one in await documents.orders(await jobs.engine())}
        assert known == {former: "quiet", worker.id: "resume"}


async def _stack(admin: Admin, worker: str) -> StackView:
    found = await admin.workers.stack(worker, within=PATIENCE)
    assert found is not None
    return found


# --- real processes -------------------------------------------------------------------------------------------------


def _asked(deployment: Deployment, question: Callable[[Admin], Coroutine[Any, Any, T]]) -> T:
    async def ask() -> T:
        async with Stoker(deployment.url) as jobs:
            return await question(Admin(jobs, by="ann", way="command line"))

    return asyncio.run(ask())


def _tell(deployment: Deployment, worker: str, order: Verb) -> None:
    _asked(deployment, lambda admin: admin.workers.order(worker, order, reason="a trial"))


def _live(deployment: Deployment, n: int) -> list[WorkerView]:
    def found() -> list[WorkerView] | None:
        known = [one for one in _asked(deployment, lambda admin: admin.workers.list()) if one.state == "running"]
        return known if len(known) == n else None

    known: list[WorkerView] = until(found, what=f"{n} workers")
    return known


@pytest.mark.parallel_deployment
@pytest.mark.spec("ORDER-03")
def test_stacks_of_processes_and_of_a_blocked_loop_are_told(deployment: Deployment) -> None:
    """The process of a handler answers for it; a worker whose loop is blocked still answers."""
    flag = Path(deployment.folder) / "flag"
    [alone] = deployment.enqueue("nap_alone", {"seconds": 600})
    with deployment.work("--lease", "300", "--grace", "0") as command:
        [mark] = until(lambda: deployment.marks("start"))
        [one] = _live(deployment, 1)

        def stack() -> StackView:
            return _asked(deployment, lambda admin: _stack(admin, one.worker))

        [stand] = stack().stands
        assert (stand.job, stand.kind) == (alone, "nap_alone")
        assert stand.place.startswith("thread stoker-handler-")
        assert stand.place.endswith(f"of process {mark.pid}")
        assert "time.sleep(seconds)" in stand.stack
        [blocking] = deployment.enqueue("hold", {"flag": str(flag)})
        until(lambda: len(deployment.marks("start")) == 2)
        blocked = {stand.job: stand for stand in stack().stands}
        assert blocked[blocking].place == "the event loop, which it blocks"
        assert "time.sleep(0.005)" in blocked[blocking].stack or "exists()" in blocked[blocking].stack
        assert blocked[alone].stack == NO_ANSWER
        flag.touch()
        command.send(signal.SIGTERM)
        assert command.wait() == 0


@pytest.mark.parallel_deployment
@pytest.mark.spec("ORDER-02", "ORDER-01")
def test_a_supervisor_leaves_the_place_of_a_stopped_worker_empty(deployment: Deployment) -> None:
    """Until HUP; when all of its workers were told to stop, it ends like after TERM."""
    with deployment.work("-p", "2", "--lease", "300") as command:
        first, second = _live(deployment, 2)
        _tell(deployment, first.worker, "quiet")
        _tell(deployment, second.worker, "quiet")
        until(lambda: not deployment.ready_file.exists(), what="not ready")
        _tell(deployment, second.worker, "resume")
        until(deployment.ready_file.exists, what="ready again")
        _tell(deployment, first.worker, "stop")
        until(lambda: command.children == [second.pid], what="one process left")
        until(lambda: f"worker process {first.pid} stopped, as told from afar" in command.log)
        deployment.enqueue("quick", {"n": 1})
        until(lambda: deployment.marks("start"))
        command.send(signal.SIGHUP)
        fresh = until(lambda: pids if len(pids := command.children) == 2 and second.pid not in pids else None)
        for one in _live(deployment, 2):
            assert one.pid in fresh
            _tell(deployment, one.worker, "stop")
        assert command.wait() == 0
