"""Durable jobs in processes of their own, on the store that the environment names."""

from __future__ import annotations

import asyncio
import os
from typing import Any

from stoker import StepFailed, Stoker, current

jobs = Stoker(os.environ.get("FLOWS_URL", "memory://"))


def where() -> int:
    return os.getpid()


def declined() -> None:
    raise ValueError("declined")


@jobs.task(isolation="process")
def double(n: int) -> int:
    return 2 * n


@jobs.task(isolation="process")
async def awaiting(n: int) -> dict[str, Any]:
    run = current()
    first, kind = await run.step("where", where), ""
    try:
        await run.step("charge", declined)
    except StepFailed as failed:
        kind = failed.kind
    await run.sleep(0.2)
    answer = await run.wait("go", int)
    called = await asyncio.gather(*(run.call(double.draft(m)) for m in range(n)))
    return {"first": first, "kind": kind, "answer": answer, "called": called}


@jobs.task(isolation="process")
def plain(n: int) -> dict[str, Any]:
    run = current()
    first, kind = run.step_sync("where", where), ""
    try:
        run.step_sync("charge", declined)
    except StepFailed as failed:
        kind = failed.kind
    run.sleep_sync(0.2)
    answer = run.wait_sync("go", int)
    called = [run.call_sync(double.draft(m)) for m in range(n)]
    return {"first": first, "kind": kind, "answer": answer, "called": called}


@jobs.task(isolation="process")
async def telling(n: int) -> None:
    for m in range(n):
        current().emit(m)
        await asyncio.sleep(0.002)


@jobs.task(isolation="process")
def telling_plainly(n: int) -> None:
    for m in range(n):
        current().emit(m)


@jobs.task(isolation="process")
async def telling_in_a_block(n: int) -> None:
    """Some before the block, long enough ago to be stored by the worker; the rest in it."""
    for m in range(n // 2):
        current().emit(m)
    await asyncio.sleep(0.2)
    async with current().transaction():
        for m in range(n // 2, n):
            current().emit(m)
