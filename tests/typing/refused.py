"""What a type checker must refuse, line by line. The comment there names the code of mypy and the rule of pyright."""

from __future__ import annotations

from collections.abc import AsyncIterator

import stoker
from stoker import Chunk, Delays, Inbox, Outbox, Stoker, Unique, current
from stoker.outbox import Batch, Message

jobs = Stoker("memory://")


class Pool:
    size: int = 3


@jobs.lifespan
async def pool() -> AsyncIterator[Pool]:
    yield Pool()


@jobs.task
async def resize(image: int, *, width: int = 800) -> str:
    return f"{image}/{width}"


@jobs.task(queue="mail")
def send(to: str) -> bool:
    return bool(to)


@jobs.task(chunk=Chunk(10))
async def index(docs: list[int]) -> list[str | BaseException] | None:
    return None


numbers: Outbox[int] = Outbox(jobs, stream="numbers")


async def texts(message: Message[str]) -> None: ...


async def text_batch(batch: Batch[str]) -> None: ...


async def main() -> None:
    await index.enqueue([7])  # E: arg-type | reportArgumentType
    await index(7)  # E: arg-type | reportArgumentType
    await resize.enqueue("seven")  # E: arg-type | reportArgumentType
    await resize.enqueue(7, 200)  # E: call-arg | reportCallIssue
    await resize.enqueue(7, wdith=200)  # E: call-arg | reportCallIssue
    await resize.enqueue()  # E: call-arg | reportCallIssue
    resize.using(backoff=Delays("10"))  # E: arg-type | reportArgumentType
    resize.using(unique=Unique("7", mode="replace", longest="60"))  # E: arg-type | reportArgumentType
    resize.using(unique=Unique("7", for_="hour"))  # E: arg-type | reportArgumentType
    resize.using(unique=7)  # E: arg-type | reportArgumentType
    resize.draft(None)  # E: arg-type | reportArgumentType
    jobs.task(print, nmae="show")  # E: call-overload | reportCallIssue
    jobs.enqueue_sync("send")  # E: arg-type | reportArgumentType
    (await resize.enqueue(7)).result_sync(timeout="soon")  # E: arg-type | reportArgumentType
    (await resize.enqueue(7)).cancel_sync(forced=True)  # E: call-arg | reportCallIssue
    jobs.queue("mail").pause_sync(60)  # E: call-arg | reportCallIssue
    jobs.schedule_sync("nightly", resize.draft(7), corn="@daily")  # E: call-arg | reportCallIssue
    send.enqueue_sync(7)  # E: arg-type | reportArgumentType
    await resize.using(quue="mail").enqueue(7)  # E: call-arg | reportCallIssue
    await resize.using(priority="high").enqueue(7)  # E: arg-type | reportArgumentType
    await resize.using(isolation="thread").enqueue(7)  # E: arg-type | reportArgumentType
    await resize.using(label=7).enqueue(7)  # E: arg-type | reportArgumentType
    await resize.using(limit=3).enqueue(7)  # E: arg-type | reportArgumentType
    await resize.using(delay=3).enqueue("seven")  # E: arg-type | reportArgumentType
    width: int = await (await resize.enqueue(7)).result()  # E: assignment | reportAssignmentType
    sent: str = send("a")  # E: assignment | reportAssignmentType
    await send("a")  # E: misc | reportGeneralTypeIssues
    number: int = resize(7)  # E: assignment | reportAssignmentType
    size: str = pool.state.size  # E: assignment | reportAssignmentType
    pool.state.length  # E: attr-defined | reportAttributeAccessIssue
    stoker.Wroker(jobs)  # E: attr-defined | reportAttributeAccessIssue
    print(width, sent, number, size)
    resize.draft(7).then(send)  # E: arg-type | reportArgumentType
    await jobs.group([resize], then=send.draft("a"))  # E: list-item | reportArgumentType
    jobs.group([], than=send.draft("a"))  # E: call-arg | reportCallIssue
    jobs.cron("@daily", misfire="never")  # E: arg-type | reportArgumentType
    jobs.cron("@daily", queu="mail")  # E: call-arg | reportCallIssue
    await jobs.schedule("s", send.draft("a"), crontab="@daily")  # E: call-arg | reportCallIssue
    await jobs.schedule("s", send, cron="@daily")  # E: arg-type | reportArgumentType
    send.draft("a") | send.draft("b")  # E: operator | reportOperatorIssue
    jobs.draft("resize", prioritty=1)  # E: call-arg | reportCallIssue
    jobs.declare("elsewhere", attempts="three")  # E: arg-type | reportArgumentType
    jobs.queue("mail", rate=5)  # E: arg-type | reportArgumentType
    jobs.budget("sms", "10/s")  # E: arg-type | reportArgumentType
    jobs.budget("llm", requests="10/s")  # E: arg-type | reportArgumentType
    await jobs.spend("llm", tokens="many")  # E: arg-type | reportArgumentType
    await jobs.queue("mail").pause(60)  # E: call-arg | reportCallIssue
    jobs.task(atempts=3)  # E: call-overload | reportCallIssue
    jobs.task(attempts="three")  # E: call-overload | reportArgumentType
    Inbox(jobs, "billing")  # E: call-arg | reportCallIssue
    Outbox(jobs, "numbers")  # E: call-arg | reportCallIssue
    await numbers.append("k", "seven")  # E: arg-type | reportArgumentType
    numbers.entry("k", None)  # E: arg-type | reportArgumentType
    numbers.deliver(texts)  # E: arg-type | reportArgumentType+reportCallIssue
    numbers.deliver(batch=10)(text_batch)  # E: arg-type | reportArgumentType+reportCallIssue
    numbers.deliver(bach=10)  # E: call-overload | reportCallIssue
    numbers.deliver(mode="eventual")  # E: call-overload | reportArgumentType
    await numbers.seek("publish", 17)  # E: arg-type | reportArgumentType
    length: int = await current().call(resize.draft(7))  # E: arg-type | reportAssignmentType
    text: str = current().call_sync(send.draft("a"))  # E: assignment | reportAssignmentType
    await current().call(resize)  # E: arg-type | reportArgumentType
    print(length, text)
