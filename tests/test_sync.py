from __future__ import annotations

import asyncio
import inspect
import os
import threading
import time
from pathlib import Path

import pytest

from stoker import sync
from stoker.app import Stoker
from stoker.context import Context
from stoker.controls import BudgetHandle, LockHandle, QueueHandle
from stoker.engines.memory import MemoryEngine
from stoker.groups import GroupHandle
from stoker.handle import JobHandle
from stoker.model.errors import StokerError
from stoker.model.job import Draft
from stoker.schedules import ScheduleHandle
from stoker.task import Task
from stoker.testing import TestKit
from tests.harness.apps import PATIENCE, working


@pytest.mark.spec("SYNC-01")
def test_any_coroutine_runs_from_code_without_a_loop(tmp_path: Path) -> None:
    app = Stoker(f"sqlite:///{tmp_path}/jobs.db", durability="process")

    @app.task
    def double(n: int) -> int:
        return 2 * n

    async def serve() -> int:
        async with app, working(app):
            return await asyncio.to_thread(lambda: app.run(double.enqueue_sync(4).result(PATIENCE)))

    assert asyncio.run(serve()) == 8
    app.run(app.close())


@pytest.mark.spec("SYNC-02")
async def test_inside_a_loop_it_is_refused_and_names_the_await_form() -> None:
    app = Stoker(MemoryEngine())

    @app.task
    async def resize(n: int) -> None: ...

    with pytest.raises(StokerError, match=r"use `await resize\.enqueue\(\.\.\.\)` here"):
        resize.enqueue_sync(1)
    job = await resize.enqueue(1)
    with pytest.raises(StokerError, match="use `await` here"):
        app.run(job.result())
    await app.close()


@pytest.mark.spec("SYNC-02")
async def test_every_sync_form_is_refused_inside_a_loop_and_names_its_await_form() -> None:
    app = Stoker(MemoryEngine())
    with pytest.raises(StokerError, match=r"use `await pause\(\.\.\.\)` of <QueueHandle mail> here"):
        app.queue("mail").pause_sync(for_=60)
    with pytest.raises(StokerError, match=r"use `await jobs\.enqueue_many\(\.\.\.\)` here"):
        app.enqueue_many_sync([Draft(app.mint(), "resize", b"[]")])
    with pytest.raises(StokerError, match=r"use `await jobs\.enqueue\(\.\.\.\)` here"):
        app.enqueue_sync(Draft(app.mint(), "resize", b"[]"))
    await app.close()


@pytest.mark.spec("SYNC-06")
@pytest.mark.parametrize(
    "owner",
    [Stoker, JobHandle, GroupHandle, QueueHandle, BudgetHandle, LockHandle, ScheduleHandle, Context, Task, TestKit],
)
def test_a_sync_form_has_the_arguments_of_its_async_form(owner: type) -> None:
    forms = [name for name in vars(owner) if name.endswith("_sync") and not name.startswith("_")]
    assert forms
    for name in forms:
        form, original = getattr(owner, name), getattr(owner, name.removesuffix("_sync"))
        expected = inspect.signature(original)
        if expected.return_annotation.startswith("AsyncGenerator["):  # returned, or the function is one
            items = expected.return_annotation.removeprefix("AsyncGenerator[").removesuffix(", None]")
            returned = inspect.signature(form).return_annotation
            assert returned in {f"Iterator[{items}]", f"Generator[{items}, None, None]"}
            expected = expected.replace(return_annotation=returned)
        elif expected.return_annotation.startswith("Awaitable["):
            expected = expected.replace(return_annotation=expected.return_annotation[len("Awaitable[") : -1])
        elif expected.return_annotation == "NewGroup":  # which is awaited
            expected = expected.replace(return_annotation="GroupHandle")
        assert inspect.signature(form) == expected, name
        assert not inspect.iscoroutinefunction(form)
        assert (form.__name__, form.__qualname__) == (name, f"{owner.__name__}.{name}")
        assert form.__doc__.startswith(f"`{name.removesuffix('_sync')}` ")


@pytest.mark.spec("SYNC-01")
def test_many_threads_share_one_loop_thread() -> None:
    app = Stoker(MemoryEngine())

    async def where() -> str:
        return threading.current_thread().name

    names: list[str] = []
    threads = [threading.Thread(target=lambda: names.append(app.run(where()))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert names == ["stoker-sync"] * 8
    assert sum(thread.name == "stoker-sync" for thread in threading.enumerate()) == 1


@pytest.mark.spec("SYNC-03")
def test_interrupting_the_wait_cancels_the_awaitable(monkeypatch: pytest.MonkeyPatch) -> None:
    ended = threading.Event()

    async def wait() -> None:
        try:
            await asyncio.sleep(60)
        finally:
            ended.set()

    class Impatient:
        """A future whose waiter is interrupted, as by Ctrl-C."""

        def __init__(self, future: object) -> None:
            self.future = future
            self.cancel = future.cancel  # type: ignore[attr-defined]

        def result(self) -> None:
            time.sleep(0.05)
            raise KeyboardInterrupt

    real = asyncio.run_coroutine_threadsafe
    monkeypatch.setattr(asyncio, "run_coroutine_threadsafe", lambda *args: Impatient(real(*args)))
    with pytest.raises(KeyboardInterrupt):
        sync.LoopThread().run(wait(), "await")
    assert ended.wait(PATIENCE)


@pytest.mark.spec("SYNC-01")
def test_errors_come_back_as_they_are() -> None:
    async def fail() -> None:
        raise ValueError("as it is")

    with pytest.raises(ValueError, match="as it is"):
        sync.shared.run(fail(), "await")

    async def awaitable() -> int:
        return os.getpid()

    assert sync.shared.run(asyncio.wait_for(awaitable(), PATIENCE), "await") == os.getpid()
