"""A program for fault tests: inserts, claims and settles, and logs what was acknowledged.

    python -m tests.faults.sqlite.acknowledged_work FOLDER ROUNDS DURABILITY JOURNAL [alone]

With "alone" there is one engine instead of two, and the log is never checkpointed by itself.

Lines of the file `acknowledged`: "insert <id>", "done <id>", "error <class>"; written after the await came back.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from pathlib import Path
from typing import Any

from stoker.engines.sqlite import SqliteEngine, connection
from stoker.model.errors import StokerError
from stoker.model.ids import Mint
from stoker.model.job import Demand, Draft, Settlement, Status
from stoker.model.time import HOUR

PAGES = 24
"""Pages of log before a checkpoint: few, so that a short run has many of them."""


async def main(folder: Path, rounds: int, durability: Any, journal: Any, tell: int, *, alone: bool) -> None:
    connection.WAL_PAGES = 0 if alone else PAGES
    mint = Mint(lambda: time.time_ns() // 1000, os.urandom)
    engine = SqliteEngine(folder / "jobs.db", durability=durability, journal=journal)
    await engine.open()
    other = engine if alone else engine.for_loop()
    await other.open()
    await asking(tell, engine.jobs.renew("w", [], lease=HOUR, first=True))
    demand = Demand("w", (("default", 5),))
    for number in range(rounds):
        drafts = [Draft(mint(), "send", b'{"text":"%s"}' % (b"x" * 700)) for _ in range(3)]
        for some in (drafts[:2], drafts[2:]):
            stored = await asking(tell, (other if number % 2 else engine).jobs.insert(some))
            say(tell, *(f"insert {receipt.id.hex()}" for receipt in stored or ()))
        claims = await asking(tell, engine.jobs.claim(demand))
        endings = [Settlement(one.id, "w", one.token, Status.DONE, ref=one.ref) for one in claims or ()]
        settled = await asking(tell, engine.jobs.settle(endings, demand=demand))
        if settled:
            applied = zip(endings, settled.verdicts, strict=True)
            say(tell, *(f"done {one.id.hex()}" for one, verdict in applied if verdict == "applied"))
            more = [Settlement(one.id, "w", one.token, Status.DONE, ref=one.ref) for one in settled.claims]
            await asking(tell, engine.jobs.settle(more))
    await other.close()
    await engine.close()


async def asking(tell: int, question: Any) -> Any:
    """Return the result, or write a line and return None for an error of Stoker's; every call has a time limit."""
    try:
        async with asyncio.timeout(60):
            return await question
    except StokerError as error:
        say(tell, f"error {type(error).__name__}")
        return None


def say(tell: int, *lines: str) -> None:
    if lines:
        os.write(tell, "".join(f"{line}\n" for line in lines).encode())


def begin(folder: str, rounds: str, durability: str, journal: str, how: str = "") -> None:
    tell = os.open(Path(folder) / "acknowledged", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    asyncio.run(main(Path(folder), int(rounds), durability, journal, tell, alone=how == "alone"))


if __name__ == "__main__":
    begin(*sys.argv[1:])
