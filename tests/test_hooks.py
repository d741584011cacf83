from __future__ import annotations

import asyncio
import functools
import logging
import threading
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from stoker.hooks import Listeners, compose
from stoker.model.errors import InvalidInput

Next = Callable[[str], Awaitable[str]]


def noting(name: str, log: list[str]) -> Callable[[Next, str], Awaitable[str]]:
    async def middleware(call: Next, job: str) -> str:
        log.append(f"{name} in")
        try:
            return f"{name}({await call(job)})"
        finally:
            log.append(f"{name} out")

    return middleware


async def handler(job: str) -> str:
    return job


@pytest.mark.spec("HOOK-01")
async def test_the_first_middleware_is_the_outermost() -> None:
    log: list[str] = []
    call = compose([noting("a", log), noting("b", log)], handler)
    assert await call("job") == "a(b(job))"
    assert log == ["a in", "b in", "b out", "a out"]
    assert await call("again") == "a(b(again))"


@pytest.mark.spec("HOOK-02")
async def test_a_middleware_may_return_without_calling_on() -> None:
    log: list[str] = []

    async def gate(call: Next, job: str) -> str:
        return "closed"

    assert await compose([noting("a", log), gate, noting("b", log)], handler)("job") == "a(closed)"
    assert log == ["a in", "a out"]


@pytest.mark.spec("HOOK-03")
async def test_a_middleware_may_change_job_and_result_call_twice_and_see_errors() -> None:
    seen: list[BaseException] = []

    async def twice(call: Next, job: str) -> str:
        return await call(job + "1") + await call(job + "2")

    async def watch(call: Next, job: str) -> str:
        try:
            return await call(job)
        except BaseException as error:
            seen.append(error)
            raise

    async def failing(job: str) -> str:
        raise asyncio.CancelledError if job == "c" else ValueError(job)

    assert await compose([twice], handler)("x") == "x1x2"
    for job, kind in (("v", ValueError), ("c", asyncio.CancelledError)):
        with pytest.raises(kind):
            await compose([watch], failing)(job)
        assert isinstance(seen.pop(), kind)


@pytest.mark.spec("HOOK-04")
def test_an_empty_chain_is_the_handler_itself() -> None:
    assert compose([], handler) is handler
    assert compose(iter(()), handler) is handler


@pytest.mark.spec("HOOK-05")
def test_listeners_hear_events_in_order() -> None:
    received: list[Any] = []
    listeners: Listeners[str] = Listeners([lambda e: received.append(("a", e))])

    @listeners.add
    def b(event: str) -> None:
        received.append(("b", event))

    listeners.emit("started")
    listeners.emit("completed")
    assert received == [("a", "started"), ("b", "started"), ("a", "completed"), ("b", "completed")]
    listeners.remove(b)
    listeners.remove(b)
    listeners.emit("x")
    assert received[-1] == ("a", "x")
    assert len(listeners) == 1


@pytest.mark.spec("HOOK-06")
def test_no_listener_no_effect() -> None:
    listeners: Listeners[object] = Listeners()
    assert not listeners
    listeners.emit(object())
    listeners.add(print)
    assert listeners


@pytest.mark.spec("HOOK-07")
@pytest.mark.parametrize("error", [ValueError("broken"), SystemExit(1), asyncio.CancelledError(), GeneratorExit()])
def test_a_listener_that_raises_is_logged_once_and_changes_nothing(
    error: BaseException, caplog: pytest.LogCaptureFixture
) -> None:
    received: list[str] = []

    def broken(event: str) -> None:
        raise error

    listeners: Listeners[str] = Listeners([broken, received.append])
    with caplog.at_level(logging.DEBUG):
        for event in "abc":
            listeners.emit(event)
    assert received == ["a", "b", "c"]
    (record,) = caplog.records
    assert "broken raised; the job's outcome is stored" in record.getMessage()
    assert record.exc_info is not None
    assert record.exc_info[1] is error
    (name,) = listeners.failures
    assert name.endswith("broken")
    assert listeners.failures[name] == 3


@pytest.mark.spec("HOOK-07")
def test_an_interrupt_from_the_keyboard_is_not_the_listeners_own() -> None:
    def interrupted(event: str) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Listeners([interrupted]).emit("x")


class Callback:
    def __init__(self, fails: bool = False) -> None:
        self.fails = fails
        self.received: list[object] = []

    def __call__(self, event: object) -> None:
        if self.fails:
            raise ValueError
        self.received.append(event)


class AsyncCallback:
    async def __call__(self, event: object) -> None: ...


@pytest.mark.spec("HOOK-08")
def test_listeners_are_plain_functions() -> None:
    async def coroutine(event: object) -> None: ...

    listeners: Listeners[object] = Listeners()
    for wrong in (coroutine, functools.partial(coroutine), AsyncCallback(), "text", None):
        with pytest.raises(InvalidInput, match=r"plain function|function of one event"):
            listeners.add(wrong)  # type: ignore[arg-type]
    assert not listeners
    right = Callback()
    listeners.add(right)
    listeners.add(functools.partial(Callback(fails=True)))
    listeners.emit(1)
    assert right.received == [1]
    assert [name.rpartition(".")[2] for name in listeners.failures] == ["Callback"]


@pytest.mark.spec("HOOK-05")
def test_a_listener_may_add_and_remove_during_an_event() -> None:
    received: list[str] = []
    listeners: Listeners[str] = Listeners()

    def first(event: str) -> None:
        listeners.remove(first)
        listeners.add(received.append)

    listeners.add(first)
    listeners.emit("a")
    listeners.emit("b")
    assert received == ["b"]


@pytest.mark.spec("HOOK-05")
def test_threads_may_add_at_once() -> None:
    listeners: Listeners[int] = Listeners()

    def add() -> None:
        for _ in range(200):
            listeners.add(lambda _: None)

    threads = [threading.Thread(target=add) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(listeners) == 800
