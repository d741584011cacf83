"""Enqueue a few jobs, run a worker beside them, read the results. Leaves a file `jobs.db` where it is run."""

from __future__ import annotations

import asyncio

from stoker import Fixed, Stoker, Worker, current

jobs = Stoker("sqlite:///jobs.db")


@jobs.task
async def resize(image: int, *, width: int = 800) -> str:
    """A coroutine runs on the worker's loop."""
    return f"image {image}, {width} wide"


@jobs.task(queue="mail", attempts=3, backoff=Fixed(0.1), timeout=30)
def send(to: str) -> int:
    """A plain function runs in a thread. This one fails once, and is tried again."""
    if not current().is_retry:
        raise ConnectionError(f"the mail server of {to} does not answer")
    return current().attempt


async def main() -> None:
    async with jobs, Worker(jobs, queues={"mail": 5, "default": 20}):
        small = await resize.using(priority=-1).enqueue(7, width=200)
        mail = await send.enqueue("ada@example.org")
        receipts = await jobs.enqueue_many(resize.draft(n) for n in range(100))
        print(await small.result(timeout=10))
        print("sent at attempt", await mail.result(timeout=10))
        print(len(receipts), "more were enqueued in one step")
        assert (await small.result(), await mail.result()) == ("image 7, 200 wide", 2)


if __name__ == "__main__":
    asyncio.run(main())
