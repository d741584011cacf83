"""How a parent finds out why its child is gone."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from stoker import subprocesses
from stoker.subprocesses import ChildProcess


@pytest.fixture
def late(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """The thread that waits for the exit is held up until this is set, as on a busy machine."""
    go_on = threading.Event()
    monkeypatch.setattr(subprocesses, "EXIT_WITHIN", 0.0)
    monkeypatch.setattr(subprocesses, "_kill_marked", lambda _mark: go_on.wait(20))
    return go_on


@asynccontextmanager
async def gone(order: bytes) -> AsyncIterator[ChildProcess]:
    """A child that has closed its socket, one way or another."""
    child = await ChildProcess.spawn("tests.worker.apps.dying")
    try:
        assert await child.receive() == b"ready\n"
        child.send(order)
        assert await child.receive() is None
        yield child
    finally:
        await child.end()


@pytest.mark.spec("PROCESS-04")
@pytest.mark.parametrize("number", [signal.SIGSEGV, signal.SIGKILL], ids=lambda number: number.name)
async def test_the_cause_of_an_exit_is_right_however_late_it_is_noticed(
    number: signal.Signals, late: threading.Event
) -> None:
    async with gone(b"kill %d" % number) as child:
        while child._runs():  # the socket closes a moment before the exit
            await asyncio.sleep(0)
        cause = asyncio.create_task(child.cause_of_exit())
        await asyncio.sleep(0.01)
        assert not cause.done()
        late.set()
        assert await cause == f"killed by {number.name} ({number.value})"
        assert not child.killed


@pytest.mark.spec("PROCESS-04")
async def test_a_child_that_closed_its_socket_and_runs_on_is_killed(late: threading.Event) -> None:
    late.set()
    async with gone(b"hang up") as child:
        assert await child.cause_of_exit() == "it closed its connection and had to be killed"
        assert child.exited.result() == -signal.SIGKILL
