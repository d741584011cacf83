"""A shop that is killed while it works, and charges every order exactly once.

    python shop.py             # 60 orders, a handful of kills
    python shop.py 5000        # as many as you like

An order is one transaction: its row, the message that it was placed, and the job that charges it. The job charges in
a block: the charge, the new status, the message and the job's success are one commit. The workers are killed with
SIGKILL over and over. In the end the books are compared. Leaves `shop.db` and `published.txt` where it is run.
"""

from __future__ import annotations

import asyncio
import random
import signal
import sqlite3
import subprocess
import sys
import time
from collections import Counter
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from stoker import Fixed, Stoker, Worker, current
from stoker.outbox import Message, Outbox

HERE = Path.cwd()
TABLES = """
    create table if not exists orders (id integer primary key, cents integer not null, paid integer not null default 0);
    create table if not exists charges (order_id integer not null, cents integer not null);
"""


@dataclass
class Placed:
    order: int


@dataclass
class Paid:
    order: int


jobs = Stoker(f"sqlite:///{HERE / 'shop.db'}?durability=process", attempts=1_000, backoff=Fixed(0.05))
orders: Outbox[Placed | Paid] = Outbox(jobs, stream="orders", partitions=4)


@jobs.task(crashes=None)
async def charge(order: int) -> None:
    await asyncio.sleep(random.random() / 50)  # slow work comes before the block: SQLite has one writer
    async with current().transaction() as tx:
        [(cents,)] = await tx.execute("select cents from orders where id = ?", order)
        await tx.execute("insert into charges values (?, ?)", order, cents)
        await tx.execute("update orders set paid = 1 where id = ?", order)
        await orders.append(str(order), Paid(order))
        tx.result(cents)


@orders.deliver
async def publish(message: Message[Placed | Paid]) -> None:
    """Stands for a broker. It may see a message twice, under the same id."""
    with (HERE / "published.txt").open("a", encoding="utf-8") as file:
        file.write(f"{message.id} {message.type} {message.key}\n")


def place(db: sqlite3.Connection, order: int) -> None:
    with db:  # commits all three, or none
        db.execute("insert into orders (id, cents) values (?, ?)", (order, 100 + order))
        orders.append_sync(str(order), Placed(order), tx=db)
        charge.using(tx=db).enqueue_sync(order)


async def work() -> None:
    async with jobs, Worker(jobs, {"default": 4}, lease=2):
        await asyncio.Event().wait()


def storm(many: int) -> int:
    """Kill workers until every order is paid and published; returns how many."""
    command = [sys.executable, __file__, "work"]
    workers = [subprocess.Popen(command) for _ in range(2)]
    kills = 0
    while not finished(many):
        time.sleep(random.uniform(0.5, 1.0))
        if kills < 5 or unpaid():
            victim = random.choice(workers)
            victim.send_signal(signal.SIGKILL)
            victim.wait()
            workers[workers.index(victim)] = subprocess.Popen(command)
            kills += 1
            time.sleep(1)  # the next one needs a moment to begin
    for worker in workers:
        worker.terminate()
        worker.wait()
    return kills


def unpaid() -> int:
    with closing(sqlite3.connect(HERE / "shop.db", timeout=30)) as db:
        return int(db.execute("select count(*) from orders where paid = 0").fetchone()[0])


def published() -> Counter[str]:
    path = HERE / "published.txt"
    return Counter(path.read_text(encoding="utf-8").split()[::3]) if path.exists() else Counter()


def finished(many: int) -> bool:
    return unpaid() == 0 and len(published()) >= 2 * many


def main(many: int) -> None:
    jobs.run(jobs.open())
    with closing(sqlite3.connect(HERE / "shop.db", timeout=30)) as db:
        db.executescript(TABLES)
        for order in range(many):
            place(db, order)
    jobs.run(jobs.close())
    kills = storm(many)
    with closing(sqlite3.connect(HERE / "shop.db")) as db:
        charged = Counter(order for (order,) in db.execute("select order_id from charges"))
    assert charged == Counter(range(many)), "an order was not charged exactly once"
    messages = published()
    again = messages.total() - len(messages)
    print(f"{many} orders, {charged.total()} charges, {len(messages)} messages ({again} told again), {kills} kills")


if __name__ == "__main__":
    if sys.argv[1:] == ["work"]:
        asyncio.run(work())
    else:
        main(int(sys.argv[1]) if sys.argv[1:] else 60)
