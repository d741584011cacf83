"""Relays through a worker."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from stoker.app import Stoker
from stoker.engines.base import outbox_of
from stoker.model.outbox.cursor import Cursor
from stoker.model.outbox.letters import LetterFilter
from stoker.model.outcome import Reject, Retry, Throttle
from stoker.model.time import SECOND
from stoker.outbox import Message, Outbox, Pace, Partial
from tests.harness.apps import until, working

QUICK = Pace(batch=4, idle=0.02, retry_base=0.001, retry_max=0.002)


class Sink:
    """A target that accepts what `accepts` says."""

    def __init__(self) -> None:
        self.log: list[str] = []
        self.got: list[int] = []
        self.away = 2
        self.bad: set[int] = set()
        self.partly = True

    async def open(self) -> None:
        self.log.append("open")
        if len(self.log) == 1:
            raise OSError("not there yet")

    async def publish(self, messages: Sequence[Message[Any]]) -> None:
        bodies = [one.body for one in messages]
        if self.bad & {*bodies}:
            raise Reject("refused")
        if self.partly and len(bodies) > 2:
            self.partly = False
            self.got += bodies[:2]
            raise Partial(2)
        self.got += bodies

    async def close(self) -> None:
        self.log.append("close")
        raise OSError("closing failed too")


async def run(jobs: Stoker, sink: Sink, count: int) -> list[tuple[int, str]]:
    outbox = Outbox[int](jobs, stream="orders", partitions=1)
    outbox.relay(sink, name="out", pace=QUICK, batch=None)
    await outbox.append_many([outbox.entry("k", n) for n in range(count)])
    streams = outbox_of(await jobs.engine())
    async with working(jobs, {}):
        await until(lambda: len({*sink.got} | sink.bad) == count)
    [state] = await streams.streams(["orders"])
    assert state.cursors[0].cursor.position == count
    found = await streams.letters(LetterFilter("orders"))
    return sorted((one.number, one.reason) for one in found.letters)


@pytest.mark.spec("DELIVER-18")
async def test_a_relay_is_opened_again_until_it_works_and_closed_once(
    jobs: Stoker, caplog: pytest.LogCaptureFixture
) -> None:
    sink = Sink()
    assert await run(jobs, sink, 10) == []
    assert sink.log == ["open", "open", "close"]
    assert sink.got == list(range(10))
    assert "could not be closed" in caplog.text


@pytest.mark.spec("DELIVER-18")
async def test_only_what_the_target_refuses_becomes_a_letter(jobs: Stoker) -> None:
    sink = Sink()
    sink.bad = {3, 7}
    assert await run(jobs, sink, 12) == [(4, "refused"), (8, "refused")]
    assert sorted({*sink.got}) == [n for n in range(12) if n not in sink.bad]
    first = [sink.got.index(n) for n in sorted({*sink.got})]
    assert first == sorted(first)


class Picky(Sink):
    """Says how far it came before the message it refuses."""

    async def publish(self, messages: Sequence[Message[Any]]) -> None:
        for n, one in enumerate(messages):
            if one.body in self.bad:
                raise Partial(n) from Reject("refused")
            self.got.append(one.body)


@pytest.mark.spec("DELIVER-18")
async def test_a_target_that_says_how_far_it_came_gets_nothing_twice(jobs: Stoker) -> None:
    sink = Picky()
    sink.bad = {0, 5}
    assert await run(jobs, sink, 9) == [(1, "refused"), (6, "refused")]
    assert sink.got == [n for n in range(9) if n not in sink.bad]


class Halting(Sink):
    """Accepts two messages at a time, and gives `cause` as the reason why no more."""

    def __init__(self, cause: BaseException | None) -> None:
        super().__init__()
        self.cause = cause
        self.log.append("made")  # so that opening it works at once

    async def publish(self, messages: Sequence[Message[Any]]) -> None:
        self.got += [one.body for one in messages[:2]]
        if len(messages) > 2:
            raise Partial(2) from self.cause


@pytest.mark.spec("RELAY-13")
@pytest.mark.parametrize(
    ("cause", "after", "why"),
    [
        (None, 0, "snoozed for 0 s"),
        (OSError("cable"), 3600 * SECOND, "only 2 messages were accepted, then OSError: cable"),
        (Retry("busy", delay=7), 7 * SECOND, "busy"),
        (Throttle(9), 9 * SECOND, "throttled"),
    ],
    ids=["time", "error", "retry", "throttle"],
)
async def test_the_rest_of_a_call_waits_as_its_reason_asks(
    jobs: Stoker, caplog: pytest.LogCaptureFixture, cause: BaseException | None, after: int, why: str
) -> None:
    caplog.set_level("DEBUG", "stoker.outbox")
    sink = Halting(cause)
    outbox = Outbox[int](jobs, stream="orders", partitions=1)
    outbox.relay(sink, name="out", pace=Pace(batch=5, idle=0.02, retry_base=3600, retry_max=3600), batch=None)
    await outbox.append_many([outbox.entry("k", n) for n in range(5)])
    engine = await jobs.engine()

    async def state() -> Cursor:
        [found] = await outbox_of(engine).streams(["orders"])
        return found.cursors[0].cursor

    async with working(jobs, {}):
        if cause is None:
            await until(lambda: len(sink.got) == 5)
        else:
            await until(lambda: bool(sink.got))
            while (found := await state()).position < 2:
                await asyncio.sleep(0.01)
            assert abs(found.due - await engine.now() - after) < 60 * SECOND
    assert sink.got == [0, 1] if cause else list(range(5))
    assert why in caplog.text
    assert (await state()).attempts <= 1
