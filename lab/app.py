"""The app of the lab: every kind of work that Stoker does. `stoker work lab.app:jobs` runs it.

Handlers are small: what counts is that each run, step and delivery leaves a line in the ledger. A middleware writes the
beginning and the end of every run, a listener every end that the store accepted.
"""

from __future__ import annotations

import asyncio
import os
import random
import threading
import time
from collections.abc import AsyncIterator
from typing import Any, Final

from lab.ledger import Ledger
from lab.place import BURST, LEASE, LIMITS, RATE, Place
from stoker import Chunk, Context, Inbox, Limit, Outbox, Rate, Stoker, Transition, current
from stoker.errors import StepFailed
from stoker.model.job import FINISHED
from stoker.model.retry import Fixed
from stoker.outbox import Batch, Message, Pace

PLACE: Final = Place.given()
LEDGER: Final = Ledger(PLACE.ledger)

PARTS: Final = 12
"""Steps that a durable job runs side by side."""

WEEK: Final = 7 * 86_400
"""Seconds that jobs are kept: on Redis those of a storm of an hour would be gone before the judge came."""

HUNGER: Final = 1 << 30
"""Bytes that a hungry handler asks for: more than its process may have."""

if bug := os.environ.get("LAB_BUG"):
    from lab.bugs import plant

    plant(bug)

jobs = Stoker(PLACE.url, attempts=1_000, backoff=Fixed(0.05), keep=WEEK, **PLACE.options)


# --- what every run leaves in the ledger ----------------------------------------------------------------------------


async def noted(call: Any, context: Context) -> Any:
    runs = [one.id for one in context.items]
    LEDGER.write("start", context.kind, runs, [one.token for one in context.items])
    returned = False
    try:
        result = await call(context)
        returned = True
        return result
    finally:
        LEDGER.write("end", context.kind, runs, returned)


jobs.middleware.append(noted)


@jobs.listener
def ended(change: Transition) -> None:
    if change.after in FINISHED:
        LEDGER.write("settled", change.job, change.after.value)


@jobs.lifespan
async def stalls() -> AsyncIterator[None]:
    """Note when this process did not get to run for a good part of its lease: it is as good as frozen then."""
    over = threading.Event()

    def watch() -> None:
        before = time.monotonic()
        while not over.wait(0.1):
            now = time.monotonic()
            if now - before > LEASE / 3:
                LEDGER.write("stall", round(now - before, 3))
            before = now

    threading.Thread(target=watch, daemon=True).start()
    yield
    over.set()


async def moment(longest: float = 0.02) -> None:
    """Work for a while."""
    await asyncio.sleep(random.uniform(0, longest))


# --- jobs -----------------------------------------------------------------------------------------------------------


@jobs.task(crashes=None)
async def plain(n: int, flaky: bool = False) -> int:
    await moment(0.05)
    if flaky and current().attempt == 1:
        raise ConnectionError("the first try")
    return 3 * n


@jobs.task(crashes=None)
def threaded(n: int) -> int:
    time.sleep(random.uniform(0, 0.02))
    return 3 * n


@jobs.task(crashes=None, isolation="process", timeout=60)
def hungry(n: int) -> int:
    """Ask for more memory than there is, the first time."""
    if current().attempt == 1:
        return len(bytearray(HUNGER))
    return 3 * n


@jobs.task(crashes=None)
async def stored_with_a_row(n: int) -> int:
    await moment()
    return 3 * n


@jobs.task(crashes=None)
async def once_at_a_time(key: str) -> str:
    await moment(0.1)
    return key


# --- limits and rates -----------------------------------------------------------------------------------------------


async def _limited(key: str, n: int) -> int:  # noqa: ARG001 - its limit's
    await moment(0.05)
    return 3 * n


limited = [
    jobs.task(name=kind, limit=Limit(number, key="key"), queue="limited", crashes=None)(_limited)
    for kind, number in LIMITS.items()
]

jobs.queue("rated", rate=Rate(RATE, per=1, burst=BURST))


@jobs.task(queue="rated", crashes=None)
async def rated(n: int) -> int:
    return 3 * n


# --- chains, groups, chunks, schedules ------------------------------------------------------------------------------


@jobs.task(crashes=None)
async def link(n: int, before: int = 0) -> int:
    await moment()
    return n + before


@jobs.task(crashes=None)
async def member(n: int, flaky: bool = False) -> int:
    await moment()
    if flaky and current().attempt == 1:
        raise ConnectionError("the first try")
    return 3 * n


@jobs.task(crashes=None)
async def closing(n: int) -> int:
    return 3 * n


@jobs.task(chunk=Chunk(20, within=0.1), crashes=None)
async def piece(numbers: list[int]) -> list[int | BaseException]:
    await moment()
    return [3 * n for n in numbers]


@jobs.cron(every=1, misfire="all", crashes=None)
async def tick() -> str:
    return str(current().occurrence)


# --- durable jobs ---------------------------------------------------------------------------------------------------


async def effect(job: str, row: str) -> int:
    LEDGER.write("ran", job, row)
    await moment(0.005)
    return random.getrandbits(40)


async def stepped(name: str, key: str | None = None) -> int:
    run, row = current(), name if key is None else f"{name}:{key}"
    value = await run.step(name, effect, run.id, row, key=key)
    LEDGER.write("seen", run.id, row, value)
    return value


def declined(job: str) -> None:
    LEDGER.write("ran", job, "declined")
    raise ValueError(random.getrandbits(40))


def pay(raw: Any, n: int) -> int:
    PLACE.run(raw, "insert into lab_effects values (?, 'step')", n)
    return n


@jobs.task(crashes=None)
async def called(n: int) -> int:
    await stepped("first")
    if n % 2:
        await current().sleep(random.uniform(0.0, 0.3))
    return await stepped("second")


@jobs.task(crashes=None)
async def flow(n: int) -> dict[str, Any]:
    run = current()
    await stepped("first")
    await asyncio.gather(*(stepped("part", str(part)) for part in range(PARTS)))
    error = ""
    try:
        await run.step("declined", declined, run.id)
    except StepFailed as failed:
        error = failed.error.partition("\n")[0]
    await run.sleep(random.uniform(0.05, 0.2))
    try:
        answer = await run.wait("go", int, timeout=2.0)
    except TimeoutError:
        answer = None
    LEDGER.write("seen", run.id, "go", answer)
    if PLACE.transactional:
        await run.step("pay", pay, n, tx=PLACE.begin)
    child = await run.call(called.draft(n))
    LEDGER.write("seen", run.id, "called", child)
    LEDGER.write("seen", run.id, "declined", error)  # a failure that was caught is stored with what comes next
    await stepped("last")
    return {"n": n, "answer": answer}


# --- what needs a transaction of the user's: blocks, outbox, inbox --------------------------------------------------

if PLACE.transactional:

    @jobs.task(crashes=None)
    async def charged(n: int) -> int:
        await moment()
        async with current().transaction() as tx:
            await tx.execute(f"insert into {PLACE.table('lab_effects')} values ({PLACE.own_mark}, 'block')", n)
            await after_charge.enqueue(n)
            tx.result(3 * n)
        return 3 * n

    @jobs.task(crashes=None)
    def charged_in_thread(n: int) -> int:
        with (block := current().transaction(PLACE.begin)) as raw:
            PLACE.run(raw, "insert into lab_effects values (?, 'block')", n)
            after_charge.enqueue_sync(n)
            block.result(3 * n)
        return 3 * n

    @jobs.task(crashes=None)
    async def after_charge(n: int) -> int:
        return 3 * n

    @jobs.task(crashes=None)
    async def after_receipt(n: int) -> int:
        return 3 * n

    inbox = Inbox(jobs, source="lab")
    orders: Outbox[int] = Outbox(jobs, stream="orders", partitions=8)
    pace = Pace(batch=50, idle=0.1)

    @orders.deliver(name="publish", pace=pace, lease=LEASE, headroom=0.1)
    async def publish(message: Message[int]) -> None:
        LEDGER.write("delivered", message.key, message.body)

    @orders.deliver(name="project", pace=pace, lease=LEASE, headroom=0.1, mode="transactional", transaction=PLACE.begin)
    def project(batch: Batch[int], raw: Any) -> None:
        for message in batch:
            PLACE.run(raw, "insert into lab_projected values (?, ?)", message.key, message.body)
