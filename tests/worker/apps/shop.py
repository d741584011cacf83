"""An app that delivers an outbox and writes down what it delivered, for tests that kill its processes."""

from __future__ import annotations

import os
import time
from pathlib import Path

from stoker import Outbox, Stoker
from stoker.outbox import Batch, Message, Pace

jobs = Stoker(os.environ["STOKER_URL"])
outbox: Outbox[int] = Outbox(jobs, stream="orders", partitions=8)
QUICK = Pace(batch=20, idle=0.05, retry_base=0.01, retry_max=0.05)
MARKS = Path(os.environ["MARKS"])


def mark(what: str, key: str, number: int) -> None:
    with MARKS.open("ab", buffering=0) as file:
        file.write(f"{what} {key} {number} {os.getpid()} {time.monotonic()}\n".encode())


@outbox.deliver(pace=QUICK, lease=3, headroom=0.5)
async def publish(batch: Batch[int]) -> None:
    for message in batch:
        mark("publish", message.key, message.body)


@outbox.deliver(mode="transactional", pace=QUICK, lease=3, headroom=0.5)
async def effects(batch: Batch[int], tx: object) -> None:
    for message in batch:
        await tx.execute(os.environ["INSERT"], message.body)  # type: ignore[attr-defined]


@outbox.deliver(pace=QUICK, attempts=3)
def deadly(message: Message[int]) -> None:
    if message.headers.get("kill"):
        mark("deadly", message.key, message.body)
        os._exit(9)
