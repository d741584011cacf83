"""A store with jobs in every status, and actions on it, each exactly repeatable."""

from __future__ import annotations

import shutil
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from stoker.engines.sqlite import SqliteEngine
from stoker.model.control import Presence
from stoker.model.ids import JobId, compose
from stoker.model.job import Claim, Demand, Draft, Note, Options, Settlement, Status
from stoker.model.query import Cancel, Clone, Delete, Discard, Move, Requeue, Retention, Selection
from stoker.model.time import DAY, HOUR, SECOND
from stoker.model.unique import Unique

START = 1_900_000_000_000_000
NOW = START + 2 * DAY


def job(number: int) -> JobId:
    return compose(START // 1000, number)


def late() -> int:
    return NOW


def draft(number: int, **options: Any) -> Draft:
    return Draft(job(number), "send", b'{"n":%d}' % number, **options)


def ending(claim: Claim, status: Status = Status.DONE, **options: Any) -> Settlement:
    return Settlement(claim.id, claim.worker, claim.token, status, ref=claim.ref, **options)


async def furnish(path: Path) -> dict[str, Claim]:
    """Jobs 1-4 wait (4 under a key), 5 and 6 run under `w`, 7 and 8 under `gone` whose lease is over, 9 is retrying,
    10-12 are dead, 13-15 done and out of date.
    """
    now = START
    engine = SqliteEngine(path, clock=lambda: now, durability="process")
    await engine.open()
    await engine.jobs.renew("gone", [], lease=HOUR, first=True)
    demand = Demand("gone", (("default", 100),))
    await engine.jobs.insert([draft(number) for number in range(13, 16)])
    await engine.jobs.settle([ending(claim, keep=DAY) for claim in await engine.jobs.claim(demand)])
    await engine.jobs.insert([draft(number) for number in range(10, 13)])
    await engine.jobs.settle([ending(claim, Status.DEAD, error="no") for claim in await engine.jobs.claim(demand)])
    await engine.jobs.insert([draft(9)])
    await engine.jobs.settle(
        [ending(one, Status.RETRYING, after=5 * DAY, error="no") for one in await engine.jobs.claim(demand)]
    )
    await engine.jobs.insert([draft(7), draft(8, options=Options(metadata={"a": "b"}))])
    await engine.jobs.claim(demand)
    now = NOW
    await engine.jobs.renew("w", [], lease=HOUR, first=True)
    await engine.jobs.insert([draft(5), draft(6)])
    held = await engine.jobs.claim(Demand("w", (("default", 100),)))
    await engine.jobs.insert([draft(1), draft(2, priority=-1), draft(3, delay=HOUR), draft(4, unique=Unique("k"))])
    await engine.control.beat(Presence(worker="w", host="h", pid=1, queues={"default": 1}))
    await engine.close()
    return {str(claim.id[-1]): claim for claim in held}


def copied(path: Path, folder: Path) -> Path:
    """A copy of a closed store."""
    folder.mkdir(exist_ok=True)
    return Path(shutil.copy(path, folder / path.name))


Action = Callable[[SqliteEngine, dict[str, Claim]], Awaitable[Any]]

ACTIONS: dict[str, Action] = {
    "insert": lambda engine, _: engine.jobs.insert([draft(20), draft(21, queue="new"), draft(22, delay=SECOND)]),
    "insert keyed": lambda engine, _: engine.jobs.insert(
        [draft(23, unique=Unique("k", mode="replace")), draft(24, unique=Unique("other"))]
    ),
    "claim": lambda engine, _: engine.jobs.claim(Demand("w", (("default", 3),))),
    "settle": lambda engine, held: engine.jobs.settle(
        [ending(held["5"], result=b"1"), ending(held["6"])], demand=Demand("w", (("default", 2),))
    ),
    "settle otherwise": lambda engine, held: engine.jobs.settle(
        [
            ending(held["5"], Status.RETRYING, after=HOUR, error="no", crash=True, metadata={"x": "y"}),
            ending(held["6"], Status.DEAD, error="never", followups=(draft(25), draft(26, unique=Unique("f")))),
        ]
    ),
    "settle erasing": lambda engine, held: engine.jobs.settle([ending(held["5"], keep=0), ending(held["6"])]),
    "note": lambda engine, held: engine.jobs.note([Note(job(5), "w", held["5"].token, 0.5, {"m": "n"}, ("line",))]),
    "renew": lambda engine, held: engine.jobs.renew("w", [(one.id, one.token) for one in held.values()]),
    "renew first": lambda engine, _: engine.jobs.renew("newcomer", [], first=True),
    "reap": lambda engine, _: engine.jobs.reap("w", 10),
    "cancel": lambda engine, _: engine.operator.alter(Selection((job(1), job(5), job(9))), Cancel()),
    "requeue": lambda engine, _: engine.operator.alter(Selection((job(10), job(11))), Requeue()),
    "clone": lambda engine, _: engine.operator.alter(Selection((job(10),)), Clone((job(30),))),
    "discard": lambda engine, _: engine.operator.alter(Selection((job(12),)), Discard()),
    "delete": lambda engine, _: engine.operator.alter(Selection((job(2), job(4), job(12))), Delete()),
    "move": lambda engine, _: engine.operator.alter(Selection((job(1), job(9))), Move("elsewhere")),
    "expire": lambda engine, _: engine.operator.expire(Retention()),
}


async def exhaust(engine: SqliteEngine, clock: list[int]) -> None:
    """Reap all claims and run every job to its end."""
    clock[0] += 30 * DAY
    await engine.jobs.renew("heir", [], lease=HOUR, first=True)
    demand = Demand("heir", (("default", 100), ("new", 100), ("elsewhere", 100)))
    for _ in range(6):
        claims = [*await engine.jobs.reap("heir", 100), *await engine.jobs.claim(demand)]
        await engine.jobs.settle(
            [ending(one, Status.CANCELED if one.cancel_requested else Status.DONE) for one in claims]
        )
    left = (await engine.operator.census()).by_status()
    assert (left[Status.PENDING], left[Status.RUNNING], left[Status.RETRYING]) == (0, 0, 0)
