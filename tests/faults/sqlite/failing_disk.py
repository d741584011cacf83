"""Use a store while its disk fails, in a forked child; report what it acknowledged, raised and did after."""

from __future__ import annotations

import asyncio
import errno
import os
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any

from stoker.engines.sqlite import SqliteEngine, connection
from stoker.model.errors import StokerError
from stoker.model.ids import Mint
from stoker.model.job import Demand, Draft, Settlement, Status
from stoker.model.query import Cancel, Retention, Selection
from stoker.model.time import HOUR
from tests.faults.sqlite.syscalls import Saboteur

PAGES = 10
PATIENCE = 60.0
"""Seconds after which a call hangs rather than takes its time."""


class Log:
    """What a run acknowledged, and its errors."""

    def __init__(self) -> None:
        self.inserted: list[str] = []
        self.done: list[str] = []
        self.errors: list[str] = []
        self.words: list[str] = []

    async def asking(self, question: Any) -> Any:
        """Return the result, or None for an error of Stoker's. Any other error, or a call that hangs, ends the run."""
        try:
            async with asyncio.timeout(PATIENCE):
                return await question
        except StokerError as error:
            self.errors.append(type(error).__name__)
            self.words.append(str(error))
            return None

    def report(self) -> dict[str, Any]:
        return {"inserted": self.inserted, "done": self.done, "errors": self.errors, "words": self.words}


async def use(engine: SqliteEngine, log: Log, rounds: int, mint: Mint) -> None:
    """Insert, claim, settle, renew and read, round after round."""
    demand = Demand("w", (("default", 4),))
    for _ in range(rounds):
        await log.asking(engine.jobs.renew("w", [], lease=HOUR, first=True))
        drafts = [Draft(mint(), "send", b'{"text":"%s"}' % (b"x" * 900)) for _ in range(3)]
        receipts = await log.asking(engine.jobs.insert(drafts))
        log.inserted += [receipt.id.hex() for receipt in receipts or ()]
        claims = await log.asking(engine.jobs.claim(demand)) or []
        for _ in range(2):
            endings = [Settlement(one.id, "w", one.token, Status.DONE, ref=one.ref) for one in claims]
            settled = await log.asking(engine.jobs.settle(endings, demand=demand))
            if settled is None:
                break
            pairs = zip(endings, settled.verdicts, strict=True)
            log.done += [ending.id.hex() for ending, verdict in pairs if verdict == "applied"]
            claims = settled.claims
        await log.asking(engine.jobs.settle([Settlement(one.id, "w", one.token, Status.PENDING) for one in claims]))
        await log.asking(engine.jobs.reap("w", 10))
        await log.asking(engine.operator.census())
        await log.asking(engine.operator.alter(Selection((os.urandom(16),)), Cancel()))
        await log.asking(engine.operator.expire(Retention()))


def use_failing_disk(
    folder: str, calls: list[str], at: int, times: int, error: str, journal: Any, *, opening: bool = False
) -> dict[str, Any]:
    """Let SQLite's n-th call fail so many times; afterwards the same engine must work again."""
    return asyncio.run(
        _use_failing_disk(Path(folder), calls, at, times, getattr(errno, error), journal, opening=opening)
    )


async def _use_failing_disk(
    folder: Path, calls: list[str], at: int, times: int, error: int, journal: Any, *, opening: bool
) -> dict[str, Any]:
    connection.WAL_PAGES = PAGES
    saboteur = Saboteur(calls)
    mint = Mint(lambda: time.time_ns() // 1000, os.urandom)
    log, after = Log(), Log()
    engine = SqliteEngine(folder / "jobs.db", journal=journal, busy_timeout=2)
    if opening:
        saboteur.arm(at, times, error=error)
        await log.asking(engine.open())
        struck = saboteur.struck
        saboteur.disarm()
        await engine.open()
    else:
        await engine.open()
        saboteur.arm(at, times, error=error)
        await use(engine, log, 4, mint)
        struck = saboteur.struck
        saboteur.disarm()
    await use(engine, after, 2, mint)
    await asyncio.wait_for(engine.close(), PATIENCE)
    return {"struck": struck, "calls": saboteur.count, "during": log.report(), "after": after.report()}


def mounting() -> list[str] | None:
    """Return a command whose mounts vanish with the process; None where that is not allowed."""
    if not shutil.which("unshare"):
        return None
    way = ["unshare", "--mount", "--fork"] if os.geteuid() == 0 else ["unshare", "--user", "--map-root-user", "--mount"]
    tried = subprocess.run([*way, "mount", "-t", "tmpfs", "tmpfs", "/mnt"], capture_output=True, check=False)
    return way if tried.returncode == 0 else None
