"""The app under measurement: a no-op job of 110 bytes, and jobs that burn CPU, read the clock, take time or wait."""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from datetime import UTC, datetime
from typing import Any

from stoker.app import Stoker
from stoker.context import Context, current
from stoker.engines.base import Engine
from stoker.hooks import Next
from stoker.model.events import Transition
from stoker.model.job import Status

QUEUE = "default"
NOOP, BURN, STAMP, ENDING = "noop", "burn", "stamp", "ending"
NAP, ASK, CALL, CALLED, AFTER = "nap", "ask", "call", "called", "after"
PAYLOAD = (
    b'{"user_id":123456,"email":"someone@example.com","template":"welcome","vars":{"name":"Someone","plan":"pro-2"}}'
)
SWITCH_INTERVAL = 0.0005
"""How often threads of a worker's process may take turns, in seconds: a keeper that waits for long loses its lease."""

stamps: list[float] = []
"""Milliseconds between the enqueue call and the start of each job that was asked to measure them."""

woken: defaultdict[str, list[float]] = defaultdict(list)
"""By kind, milliseconds between what a job waited for and the line behind the wait."""

ends: list[int] = []
"""When the store acknowledged the end of each job, where `note_end` listens."""


def make_app(engine: Engine, *, timeline: bool = False, dressed: bool = False) -> Stoker:
    """An app on an engine. `dressed`: with a timeout, a middleware and a listener, as most jobs have them."""
    extra: dict[str, Any] = {"middleware": [_middleware], "listeners": [_listener]} if dressed else {}
    jobs = Stoker(engine, timeline=timeline, **extra)

    @jobs.task(name=NOOP, timeout=30 if dressed else None)
    async def noop(user_id: int, email: str, template: str, vars: dict[str, str]) -> None:  # noqa: A002
        pass

    @jobs.task(name=BURN)
    async def burn(seconds: float) -> None:
        end = time.thread_time() + seconds
        while time.thread_time() < end:
            pass

    @jobs.task(name=STAMP)
    async def stamp(sent: int) -> None:
        stamps.append((time.monotonic_ns() - sent) / 1e6)

    @jobs.task(name=ENDING)
    async def ending(seconds: float) -> float:
        await asyncio.sleep(seconds)
        return seconds

    _add_durable(jobs)
    return jobs


def _add_durable(jobs: Stoker) -> None:
    """Tasks that wait without a slot, and the callback of a group beside them."""

    @jobs.task(name=NAP)
    async def nap(due: int) -> None:
        await current().sleep_until(datetime.fromtimestamp(due / 1e9, UTC))
        woken[NAP].append((time.time_ns() - due) / 1e6)

    @jobs.task(name=ASK)
    async def ask() -> None:
        sent = await current().wait("go", int)
        woken[ASK].append((time.monotonic_ns() - sent) / 1e6)

    @jobs.task(name=CALLED)
    async def called() -> int:
        return time.monotonic_ns()

    @jobs.task(name=CALL)
    async def call() -> None:
        ended = await current().call(called.draft())
        woken[CALL].append((time.monotonic_ns() - ended) / 1e6)

    @jobs.task(name=AFTER)
    async def after(ended: list[int]) -> None:
        woken[AFTER].append((time.monotonic_ns() - ended[0]) / 1e6)


async def _middleware(call: Next[Context, Any], job: Context) -> Any:
    return await call(job)


def _listener(_event: object) -> None:
    pass


def note_end(event: Transition) -> None:
    """Write down when the store acknowledged the end of a job."""
    if event.after is Status.DONE:
        ends.append(time.monotonic_ns())
