"""What a type checker must accept, and the types it must see. Read by `test_typing.py`, never run."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, assert_type

from starlette.requests import HTTPConnection, Request

from stoker import (
    PREVIOUS,
    RESULTS,
    Chunk,
    Curve,
    Delays,
    Draft,
    Exponential,
    Inbox,
    Job,
    JobHandle,
    Limit,
    Outbox,
    Rate,
    Receipt,
    Stoker,
    Task,
    Unique,
    chain,
    current,
)
from stoker.outbox import Batch, Message, Pace
from stoker.transaction_block import Block
from stoker.web import Identity, dashboard

jobs = Stoker("memory://", modules=["app.tasks"], router={"mail.": "mail"}, give_up_on=KeyError, keep_dead=60)


class Pool:
    size: int = 3


@jobs.lifespan
async def pool() -> AsyncIterator[Pool]:
    yield Pool()


@jobs.task
async def resize(image: int, *, width: int = 800) -> str:
    assert_type(pool.state, Pool)
    assert_type(pool.state.size, int)
    current().progress(0.5)
    return f"{image}/{width}"


@jobs.task(queue="mail", attempts=5, backoff=Exponential(base=2, max=600), timeout=30, retry_on=(OSError, KeyError))
def send(to: str) -> bool:
    return bool(to)


@jobs.task(backoff=Delays(10, timedelta(minutes=1), limit=3))
def ask(bank: str) -> None: ...


@jobs.task(unique=lambda image, width=1: f"img:{image}:{width}")
def crop(image: int, width: int = 1) -> None: ...


@jobs.task(queue="index", chunk=Chunk(100, within=timedelta(seconds=1)), attempts=3)
async def index(docs: list[int]) -> list[str | BaseException] | None:
    assert_type(current().items[0].canceled, bool)
    return [str(doc) for doc in docs]


@jobs.task
def plain_total(numbers: list[str | None]) -> int:
    return len(numbers)


@jobs.task(chunk=Chunk(10))
def count(docs: list[int]) -> None: ...


def plain(n: float) -> list[float]:
    return [n]


@jobs.cron(
    "0 9 * * mon-fri", tz="Europe/Paris", queue="mail", attempts=3, retry_on=OSError, jitter=timedelta(seconds=5)
)
async def digest(region: str = "eu") -> int:
    return len(region)


@jobs.cron(every=90, overlap="skip")
def poll() -> bool:
    return True


twice = jobs.cron("@daily", name="second")(poll)
registered = jobs.task(plain)
renamed = jobs.task(name="other")(plain)
at_once = jobs.task(plain, name="third", queue="mail", retry_on=OSError)


async def main() -> None:
    running = resize(1, width=2)
    coroutine: Coroutine[Any, Any, str] = running
    assert_type(await coroutine, str)
    assert_type(send("a"), bool)
    assert_type(registered(1.5), list[float])
    assert_type(renamed(1.5), list[float])
    assert_type(at_once(1.5), list[float])
    assert_type(await at_once.enqueue(n=1.5), JobHandle[list[float]])

    job = await resize.enqueue(7, width=200)
    assert_type(job, JobHandle[str])
    assert_type(await job.result(timeout=timedelta(seconds=3)), str)
    assert_type(await (await registered.enqueue(1)).result(), list[float])
    assert_type(send.enqueue_sync("a"), JobHandle[bool])
    assert_type(jobs.run(send.enqueue_sync("a").result()), bool)
    assert_type(send.enqueue_sync("a").result_sync(timeout=timedelta(seconds=3)), bool)
    assert_type(job.refresh_sync(), Job)
    assert_type(job.cancel_sync(force=True, reason="late"), bool)
    assert_type(jobs.enqueue_sync(send.draft("a"), tx=object()), JobHandle[Any])
    with jobs.joining(Pool()) as joined:
        assert_type(joined, Pool)
        assert_type(send.using(tx=False).enqueue_sync("a"), JobHandle[bool])
    assert_type(jobs.enqueue_many_sync(send.draft(one) for one in "ab"), list[Receipt])

    assert_type(await index.enqueue(7), JobHandle[str])
    assert_type(await index([7]), Sequence[str | BaseException] | None)
    assert_type(count.enqueue_sync(7), JobHandle[None])
    await index.using(priority=1, unique=lambda doc: f"doc:{doc}").enqueue(7)

    other = resize.using(delay=60, priority=1, unique="img:7", tenant="acme", keep=0, isolation="process")
    resize.using(limit=Limit(3, key="image", hold="retrying"))
    resize.using(limit=False, label="image {image}")
    assert_type(await other.enqueue(7), JobHandle[str])
    assert_type(await other(7), str)
    await resize.using(unique=lambda image, *, width=800: Unique(f"img:{image}")).enqueue(7)
    await crop.using(unique=lambda image, width=1: f"{image}").enqueue(7)
    await crop.using(unique=True).enqueue(7)
    await crop.using(unique=False).enqueue(7)
    await crop.using(unique=Unique(for_=3600)).enqueue(7)
    await crop.using(unique=Unique("7", for_=3600)).enqueue(7)
    await crop.using(unique=Unique("7", mode="replace", longest=timedelta(minutes=5)), delay=30).enqueue(7)
    await jobs.enqueue(jobs.draft("crop", {"image": 7}, priority=1, delay=timedelta(minutes=1), metadata={"by": "me"}))
    await jobs.enqueue_many(resize.draft(n) for n in range(3))
    await jobs.enqueue(chain(resize.draft(1).then(send.draft("a")), crop.draft(1)))
    group = await jobs.group([resize.draft(n) for n in range(3)], then=send.draft("a"), on_finish=crop.draft(1))
    assert_type((await group.wait(timeout=timedelta(minutes=1))).done, int)
    async with jobs.group(on_failure=send.draft("a")) as more:
        await more.add(resize.draft(7), (resize.draft(n) for n in range(3)))
    assert_type(current().parent, str | None)
    await jobs.enqueue(chain(resize.draft(1, width=2), send.draft(PREVIOUS), resize.draft(PREVIOUS, width=PREVIOUS)))
    await jobs.group([resize.draft(1)], then=send.draft(RESULTS), on_finish=plain_total.draft(RESULTS))
    assert_type(await group.results(timeout=5), list[Any])
    assert_type((await group.failed())[0], Job)
    async for member in group.as_completed():
        assert_type(member, JobHandle[Any])
    for member in group.as_completed_sync(timeout=5):
        assert_type(member.result_sync(), Any)
    if (callback := current().group) is not None:
        assert_type(await callback.results(), list[Any])
        assert_type(callback.id, str)

    assert_type(await digest("us"), int)
    assert_type(await digest.enqueue("us"), JobHandle[int])
    assert_type(poll(), bool)
    assert_type(twice.enqueue_sync(), JobHandle[bool])
    handle = await jobs.schedule("poll", poll.draft(), every=timedelta(minutes=1), misfire="skip", grace=5)
    assert_type((await handle.edit(digest.draft("us"), cron="@daily", tz="Europe/Paris")).name, str)

    def by_any_name(task: Task[..., Any]) -> str:
        return task.name

    by_any_name(resize)
    by_any_name(send)
    wider: JobHandle[object] = job
    assert_type(wider.id, str)

    mail = jobs.queue("mail", workers=3, rate=Rate(100, per=timedelta(minutes=1), burst=5), curve=Curve(base=1, max=60))
    await mail.pause(for_=60, reason="deploy")
    await mail.tune(rate=Rate(0.5, burst=1), keep_done=timedelta(days=1))
    assert_type((await mail.settings()).rate, Rate | None)
    jobs.budget("sms", Rate(10))
    assert_type((await jobs.spend("sms", 3)).granted, bool)
    await current().spend("sms")
    llm = jobs.budget("llm", requests=Rate(500, per=60), tokens=Rate(200_000, per=60), keyed=True)
    assert_type((await llm.spend(requests=1, tokens=600, key="acme")).measure, str | None)
    async with current().reserve("llm", key="acme", requests=1, tokens=600) as reserved:
        reserved.used(tokens=500)
    with current().reserve("sms", 3) as several:
        several.used(2)
    inbox = Inbox(jobs, source="billing", keep=timedelta(days=30))
    assert_type(await inbox.receive("evt_1", tx=object()), bool)
    assert_type(await inbox.receive(["evt_1", "evt_2"], tx=object()), list[bool])
    assert_type(inbox.receive_sync("evt_1", tx=object()), bool)


@contextmanager
def session() -> Iterator[Pool]:
    yield Pool()


class Placed:
    order: int = 1


class Paid:
    order: int = 1


orders: Outbox[Placed | Paid] = Outbox(jobs, stream="orders", partitions=4, keep=timedelta(days=1))


@orders.deliver
async def publish(message: Message[Placed | Paid]) -> None:
    assert_type(message.body, Placed | Paid)
    assert_type(message.id, str)


@orders.deliver(batch=100, lanes=2, start="end", attempts=3, then="park", pace=Pace(idle=timedelta(seconds=1)))
def walk(batch: Batch[Placed | Paid]) -> None:
    for message in batch:
        assert_type(message, Message[Placed | Paid])
    assert_type(batch.next(), Message[Placed | Paid] | None)
    with batch.transaction(session) as handle:
        assert_type(handle, Pool)


@orders.deliver(chunk=50, pace="low_latency")
async def chunks(messages: list[Message[Placed | Paid]]) -> None:
    assert_type(messages[0].number, int)


@orders.deliver(mode="transactional", transaction=session, keep_writes=True)
def project(batch: Batch[Placed | Paid], handle: Pool) -> None:
    assert_type(handle.size, int)


@orders.deliver
async def anything(message: Message[object]) -> None: ...


async def steer() -> None:
    assert_type(await orders.append("k", Placed(), headers={"a": "b"}), str)
    assert_type(await orders.append_many([orders.entry("k", Paid())]), list[str])
    assert_type((await orders.letters(status="parked")).letters[0].reason, str)
    assert_type(await orders.replay(["id"], here=True), int)
    assert_type((await orders.state()).consumers[0].waiting, int)
    await orders.seek("publish", {0: 17})


async def exactly_once() -> None:
    async with current().transaction(session) as handle:
        assert_type(handle, Pool)
    assert_type(current().transaction(), Block[Any, Any])
    async with current().transaction() as tx:  # the app's factory opens it: `tx` may be a session of the user's
        await tx.execute("select ?", 1)
        tx.add(Pool())


def exactly_once_in_a_thread() -> None:
    with (block := current().transaction(session)) as handle:
        assert_type(handle, Pool)
        block.result(1)
    with current().transaction() as tx:
        tx.add(Pool())


async def durably() -> None:
    run = current()
    draft = resize.draft(7)
    assert_type(draft, Draft[str])
    assert_type(await run.call(draft), str)
    assert_type(await run.call(index.using(priority=1).draft(7), key="seven"), str)
    assert_type(await run.call(jobs.draft("crop", {"image": 7})), Any)
    assert_type(await run.call(draft.then(send.draft("a"))), str)
    assert_type(run.call_sync(send.draft("a")), bool)
    assert_type(await asyncio.gather(*(run.call(resize.draft(n)) for n in range(3))), list[str])
    some: list[Draft] = [draft, send.draft("a")]
    wider: Sequence[Draft[object]] = some
    await jobs.enqueue_many(wider)


def by_session(request: Request) -> Identity | None:
    return Identity(request.session["name"], role="read") if "name" in request.session else None


async def by_header(request: HTTPConnection) -> Identity | None:
    return None


dashboard(jobs, auth=by_session, login_url="/login")
dashboard(jobs, auth=by_header)
