"""Jobs that exist if and only if a transaction commits. Leaves a file `shop.db` where it is run."""

from __future__ import annotations

import sqlite3
from contextlib import closing

from stoker import NotFound, Stoker, Worker

jobs = Stoker("sqlite:///shop.db")


@jobs.task
def confirm(order: int) -> str:
    """Stands for a mail that must not be sent for an order that was never stored."""
    return f"order {order} is confirmed"


async def drain() -> None:
    """Run what is due, then stop."""
    worker = Worker(jobs, drain=True)
    async with worker:
        await worker.join()


def main() -> None:
    jobs.run(jobs.open())  # makes Stoker's tables; a transaction of ours uses them as they are
    with closing(sqlite3.connect("shop.db")) as db:
        db.execute("create table if not exists orders (id integer)")
        with db:
            db.execute("insert into orders values (1)")
            kept = confirm.using(tx=db).enqueue_sync(1)
        db.execute("insert into orders values (2)")
        dropped = confirm.using(tx=db).enqueue_sync(2)
        db.rollback()
    jobs.run(drain())
    print(kept.result_sync())
    try:
        dropped.result_sync()
    except NotFound:
        print("order 2 was rolled back, and its job with it")
    jobs.run(jobs.close())


if __name__ == "__main__":
    main()
