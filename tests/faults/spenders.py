"""Spends from budgets in a process of its own: `python -m tests.faults.spenders`, and jobs that die at it."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import sys

from stoker import Rate, Stoker, current

jobs = Stoker(os.environ.get("SPENDERS_URL", "memory://"))
REQUESTS, TOKENS = 60, 1_200
requests, tokens = Rate(1, per=86_400, burst=REQUESTS), Rate(1, per=86_400, burst=TOKENS)
jobs.budget("llm", requests=requests, tokens=tokens)
jobs.budget("tenants", requests=requests, tokens=tokens, keyed=True)


@jobs.task(isolation="process", crashes=1)
async def killed(key: str | None) -> None:
    async with current().reserve("tenants" if key else "llm", key=key, requests=1, tokens=400) as reserved:
        reserved.used(tokens=1)
        os.kill(os.getpid(), signal.SIGKILL)


@jobs.task(isolation="process")
def counted(key: str | None) -> None:
    with current().reserve("tenants" if key else "llm", key=key, requests=1, tokens=400) as reserved:
        reserved.used(tokens=100)


async def spend_all() -> list[int]:
    """Spend a request and some tokens at a time, of each budget, until not even one token goes with a request."""
    taken = [0, 0, 0, 0]
    async with jobs:
        await (await jobs.engine()).control.budgets()
        print("ready", flush=True)
        sys.stdin.readline()
        for place, (budget, key) in enumerate(((jobs.budget("llm"), None), (jobs.budget("tenants"), "acme"))):
            for most in (40, 1):
                while await budget.spend(requests=1, tokens=(n := random.randint(1, most)), key=key):
                    taken[2 * place] += 1
                    taken[2 * place + 1] += n
    return taken


if __name__ == "__main__":
    print(*asyncio.run(spend_all()))
