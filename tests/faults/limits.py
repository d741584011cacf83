"""Limits under fire: worker processes that are killed, slow and rolled-back transactions, and the runs examined.

Every run writes its beginning and its end to a file, by a clock that all processes share. A killed process ends its
runs. The intervals are counted afterwards, independently of what the store says.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import random
import time
from collections import defaultdict
from functools import partial
from pathlib import Path
from typing import Any

from stoker.app import Stoker
from stoker.context import current
from stoker.engines.base import Feature
from stoker.engines.url import engine_from_url
from stoker.limits import Limit
from stoker.model.job import Draft, Status
from stoker.model.retry import Fixed
from stoker.worker import Worker
from tests.faults.members import Members

NUMBERS = (1, 2, 3, 5)
"""Key k has the limit of its place here."""


LEASE = 4
"""Seconds: a worker that a busy machine keeps from renewing is not taken for dead, as its runs would count twice."""


class Undone(Exception):
    """Rolls a transaction back."""


def _write(path: str, *what: Any) -> None:
    line = json.dumps([time.monotonic(), os.getpid(), *what]) + "\n"
    fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(fd, line.encode())
    os.close(fd)


def app_on(url: str, path: str) -> Stoker:
    """The app that producers and workers share."""
    jobs = Stoker(engine_from_url(url), attempts=1_000, timeline=False)

    async def run(key: str, n: int) -> None:
        _write(path, "start", key, n, current().attempt)
        try:
            await asyncio.sleep(random.uniform(0, 0.01))
            if n % 7 == 0 and current().attempt == 1:
                raise ValueError("once")
        finally:
            _write(path, "end", key, n, current().attempt)

    for number in NUMBERS:
        jobs.task(name=f"at-most-{number}", limit=Limit(number, key="key"), backoff=Fixed(0.05), crashes=None)(run)
    held = Limit(1, key="key", hold="retrying")
    jobs.task(name="in-order", limit=held, backoff=Fixed(0.05), crashes=None)(run)
    return jobs


async def work(url: str, path: str) -> None:
    """A worker for ever; it is killed."""
    jobs = app_on(url, path)
    async with Worker(jobs, {"default": 20}, lease=LEASE):
        await asyncio.Event().wait()


async def produce(url: str, path: str, first: int, n: int, keys: int, seed: int, call: int = 1) -> int:
    """Store jobs, some in transactions that stay open for a while or are rolled back; returns how many were stored.

    A call stores up to `call` of them.
    """
    chance = random.Random(seed)
    async with app_on(url, path) as jobs:
        engine = await jobs.engine()
        # A transaction on SQLite holds up every other write, those of this process and all leases too.
        beside = Feature.BESIDE_TRANSACTIONS in engine.features
        most_open, longest = (3, 2.0) if beside else (1, 0.3)
        often = 0.05 if Feature.OWN_TRANSACTION in engine.features else 0

        def draft(number: int, *, ordered: bool) -> Draft:
            key = chance.randrange(keys)
            if ordered and key % 5 == 4:
                return jobs.tasks["in-order"].draft(f"h{key}", number)
            return jobs.tasks[f"at-most-{NUMBERS[key % len(NUMBERS)]}"].draft(f"k{key}", number)

        async def in_transaction(drafts: list[Draft]) -> int:
            undo, wait = chance.random() < 0.3, chance.uniform(0, longest)
            try:
                async with engine.transaction() as tx:
                    await engine.jobs.insert(drafts, tx=tx)
                    await asyncio.sleep(wait)
                    if undo:
                        raise Undone
            except Undone:
                return 0
            return len(drafts)

        stored, number = 0, first
        open_: list[asyncio.Task[int]] = []
        while number < first + n:
            numbers = range(number, min(number + chance.randint(1, call), first + n))
            number = numbers.stop
            if chance.random() < often:
                open_.append(asyncio.create_task(in_transaction([draft(one, ordered=False) for one in numbers])))
                if len(open_) == most_open:
                    stored += sum([await one for one in open_])
                    open_.clear()
                continue
            await engine.jobs.insert([draft(one, ordered=True) for one in numbers])
            stored += len(numbers)
        return stored + sum([await one for one in open_])


async def finish(url: str, path: str, wanted: int) -> list[str]:
    """Let one worker that lives end everything; returns what is wrong with the store."""
    jobs = app_on(url, path)
    wrong: list[str] = []
    async with Worker(jobs, {"default": 50}, lease=LEASE):
        engine = await jobs.engine()
        deadline = time.monotonic() + 200 + wanted / 50
        while True:
            counts = (await engine.operator.census()).by_status()
            if counts.get(Status.DONE, 0) == wanted:
                break
            if time.monotonic() > deadline:
                return [f"stuck: {dict(counts)} of {wanted}, {await engine.control.subqueues('default')}"]
            await asyncio.sleep(0.05)
        await asyncio.sleep(0.1)
        left = [one for one in await engine.control.subqueues("default") if one.running]
        if left:
            wrong.append(f"slots that no job holds: {left}")
    await jobs.close()
    return wrong


def judged(path: str, killed: dict[int, float]) -> tuple[list[str], int]:
    """What is wrong with the runs, and how many there were."""
    events: list[tuple[float, int, str, int]] = []
    open_: dict[tuple[int, str, int, int], float] = {}
    runs = 0
    seen: dict[str, list[tuple[float, str, int]]] = defaultdict(list)
    rows = sorted(json.loads(line) for line in Path(path).read_text(encoding="utf-8").splitlines())
    for at, pid, what, key, n, attempt in rows:
        one = (pid, key, n, attempt)
        seen[key].append((at, what, n))
        if what == "start":
            runs += 1
            open_[one] = at
            events.append((at, 1, key, n))
        elif open_.pop(one, None) is not None:
            events.append((at, -1, key, n))
    for (pid, key, n, _), at in open_.items():
        events.append((max(at, killed.get(pid, at)), -1, key, n))
    wrong: list[str] = []
    running: dict[str, int] = defaultdict(int)
    for at, change, key, n in sorted(events):
        running[key] += change
        most = 1 if key[0] == "h" else NUMBERS[int(key[1:]) % len(NUMBERS)]
        if running[key] > most:
            wrong.append(f"{running[key]} runs of {key} at {at}, with job {n}: at most {most}")
    for key, steps in seen.items():
        if key[0] == "h":
            numbers = [n for _, what, n in steps if what == "start"]
            if numbers != sorted(numbers):
                wrong.append(f"{key} ran out of order")
    return wrong, runs


def storm(url: str, path: str, jobs: int, keys: int, kills: int, workers: int, seed: int, call: int) -> dict[str, Any]:
    """Kill worker processes at random while jobs are stored and run; runs in a process that may fork."""
    logging.disable(logging.CRITICAL)
    chance = random.Random(seed)
    stored = asyncio.run(produce(url, path, 0, 1, keys, seed))
    members = Members([partial(work, url, path)] * workers, chance)
    portion = max(1, jobs // kills)
    for round_ in range(kills):
        stored += asyncio.run(produce(url, path, 1 + round_ * portion, portion, keys, seed + round_, call))
        time.sleep(chance.uniform(0.0, 0.3))
        members.fault()
    members.end()
    wrong = asyncio.run(finish(url, path, stored))
    more, runs = judged(path, members.killed)
    return {"wrong": [*wrong, *more][:20], "stored": stored, "runs": runs, "kills": len(members.killed)}
