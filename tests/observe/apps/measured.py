"""An app whose worker processes are measured."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from stoker.app import Stoker
from stoker.context import current
from stoker.model.errors import StepFailed
from stoker.model.retry import Fixed

jobs = Stoker()


@jobs.task(queue="mail")
async def quick(ok: bool) -> None:
    if not ok:
        raise ValueError


@jobs.task(queue="mail", isolation="process")
def apart() -> None:
    """Runs in a process of its own."""


@jobs.task(queue="slow")
async def hang() -> None:
    await current().stopping


def refuse() -> None:
    raise ValueError


def with_transaction(tx: Any) -> None:
    """Writes nothing of its own."""


@jobs.task(queue="mail")
async def in_steps() -> None:
    run = current()
    await run.step("one", int)
    await run.step("two", with_transaction, tx=True)
    with suppress(StepFailed):
        await run.step("caught", refuse)
    with suppress(StepFailed):
        await run.step("twice", refuse, attempts=2, backoff=Fixed(0))
    await run.sleep(0.2)  # the next run finds all that is stored
    with suppress(StepFailed):
        await run.step("last", refuse)


def _in_steps_sync() -> None:
    run = current()
    run.step_sync("one", int)
    run.step_sync("two", with_transaction, tx=True)
    with suppress(StepFailed):
        run.step_sync("caught", refuse)
    with suppress(StepFailed):
        run.step_sync("twice", refuse, attempts=2, backoff=Fixed(0))
    run.sleep_sync(0.2)
    with suppress(StepFailed):
        run.step_sync("last", refuse)


@jobs.task(queue="mail")
def in_steps_in_thread() -> None:
    _in_steps_sync()


@jobs.task(queue="mail", isolation="process")
def in_steps_apart() -> None:
    _in_steps_sync()


@jobs.task(queue="mail", attempts=1)
async def lets_out() -> None:
    await current().step("only", refuse)
