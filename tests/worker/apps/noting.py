"""Handlers that write metadata and then wait until a file is there: on the loop, in a thread, in chunks."""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path

from stoker.app import Stoker
from stoker.context import current
from stoker.model.chunk import Chunk

jobs = Stoker(f"sqlite:///{os.environ.get('NOTING_DB', 'noting.db')}", timeline=False)


def gone_on(step: str) -> bool:
    return Path(os.environ["NOTING_DB"]).with_name(step).exists()


@jobs.task
async def on_loop() -> None:
    for step in ("one", "two"):
        current().metadata["step"] = step
        while not gone_on(step):
            await asyncio.sleep(0.005)


@jobs.task
def in_thread() -> None:
    for step in ("one", "two"):
        current().metadata["passing"] = step
        current().metadata["count"] = len(step)  # type: ignore[assignment] # as users do
        del current().metadata["passing"]
        current().metadata["step"] = step  # the last one: who sees it sees the others too
        while not gone_on(step):
            time.sleep(0.005)


@jobs.task(chunk=Chunk(2, within=10))
async def in_a_chunk(calls: list[int]) -> list[int]:
    for step in ("one", "two"):
        for item, number in zip(current().items, calls, strict=True):
            item.metadata["step"] = f"{step} of {number}"
        while not gone_on(step):
            await asyncio.sleep(0.005)
    return calls
