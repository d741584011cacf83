"""An order that waits for a person. Its worker is killed meanwhile, and the order goes on where it was.

    python approval.py

A worker starts the order: it asks the suppliers, then waits for an approval. The program kills that worker with
SIGKILL, sends the approval while no worker runs, and starts another worker. The quote is not asked for again, and the
charge is in the same transaction as its step: the books have one charge. Leaves `approval.db` and `asked.txt` where it
is run.
"""

from __future__ import annotations

import asyncio
import signal
import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stoker import Stoker, Worker, current

HERE = Path.cwd()

jobs = Stoker(f"sqlite:///{HERE / 'approval.db'}")


@dataclass
class Quote:
    cents: int
    boxes: list[str]


@dataclass
class Approval:
    yes: bool


def ask_suppliers(order: int) -> Quote:
    """Stands for a call that takes long and costs money. It writes down that it was asked."""
    with (HERE / "asked.txt").open("a", encoding="utf-8") as file:
        file.write(f"order {order}\n")
    return Quote(cents=100 * order, boxes=["books", "lamp"])


async def charge(tx: Any, order: int, cents: int) -> None:
    """Runs in a transaction in which Stoker stores the step: both are committed, or neither."""
    await tx.execute("insert into charges values (?, ?)", order, cents)


@jobs.task
async def label(box: str) -> str:
    return f"label for {box}"


@jobs.task
async def order(number: int) -> str:
    run = current()
    quote = await run.step("quote", ask_suppliers, number)
    answer = await run.wait("approval", Approval, timeout=3 * 86400, ask=f"May it cost {quote.cents} cents?")
    if not answer.yes:
        return "refused"
    await run.step("charge", charge, number, quote.cents, tx=True)
    labels = await asyncio.gather(*(run.call(label.draft(box)) for box in quote.boxes))
    await run.sleep(0.5)  # stands for two weeks
    return f"order {number} was charged once: {', '.join(labels)}"


async def work() -> None:
    async with jobs, Worker(jobs):
        await asyncio.Event().wait()


def main() -> None:
    with closing(sqlite3.connect(HERE / "approval.db")) as db:
        db.execute("create table if not exists charges (order_id integer not null, cents integer not null)")
    job = order.enqueue_sync(7)
    command = [sys.executable, __file__, "work"]
    worker = subprocess.Popen(command)
    while not any(step.ask for step in job.steps_sync()):
        time.sleep(0.05)
    worker.send_signal(signal.SIGKILL)
    worker.wait()
    print("the order waits, and its worker was killed")
    job.signal_sync("approval", Approval(yes=True))
    print("the approval is stored, and no worker runs")
    worker = subprocess.Popen(command)
    print(job.result_sync(timeout=60))
    worker.terminate()
    worker.wait()
    jobs.run(jobs.close())
    with closing(sqlite3.connect(HERE / "approval.db")) as db:
        charges = db.execute("select * from charges").fetchall()
    asked = (HERE / "asked.txt").read_text(encoding="utf-8").splitlines()
    assert (asked, charges) == (["order 7"], [(7, 700)])


if __name__ == "__main__":
    if sys.argv[1:] == ["work"]:
        asyncio.run(work())
    else:
        main()
