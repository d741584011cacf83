"""Handlers that spend from a budget: on the loop, in a thread, and each of them in a process of its own."""

from __future__ import annotations

import os

from stoker.app import Stoker
from stoker.context import current
from stoker.model.throttle import Rate

jobs = Stoker(f"sqlite:///{os.environ.get('SPENDING_DB', 'spending.db')}")
jobs.budget("sms", Rate(1, per=3600, burst=4))


@jobs.task
async def on_loop() -> int:
    await current().spend("sms")
    return os.getpid()


@jobs.task
def in_thread() -> int:
    current().spend_sync("sms")
    return os.getpid()


@jobs.task
def emptied() -> list[bool]:
    return [current().drain_sync("sms"), current().drain_sync("unknown")]
