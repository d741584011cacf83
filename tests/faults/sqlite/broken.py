"""Engines with a known kind of bug each, and the traffic that must reveal it."""

from __future__ import annotations

import asyncio
import os
import random
import sqlite3
from collections.abc import Sequence
from contextlib import closing
from copy import copy
from pathlib import Path
from typing import Any

import msgspec

from stoker.engines.sqlite import SqliteEngine
from stoker.model.job import Claim, Demand, Draft, Receipt, Settled, Settlement, Status, Stored, Verdict
from stoker.model.time import DAY, SECOND
from stoker.testing.clock import VirtualClock
from stoker.testing.faults import Recorded, survey
from stoker.testing.history import Violation, check, read

LEASE = 30 * SECOND
replaced = msgspec.structs.replace


class Sabotaged(SqliteEngine):
    """An engine with direct access to its database; methods of a subclass replace those of its jobs."""

    def __init__(self, path: str | os.PathLike[str], **options: Any) -> None:
        super().__init__(path, **options)
        self.sound = copy(self.jobs)
        for name in ("insert", "claim", "settle", "reap"):
            if hasattr(self, name):
                setattr(self.jobs, name, getattr(self, name))

    def meddle(self, statement: str, *values: Any) -> list[Any]:
        with closing(sqlite3.connect(self.path, timeout=10, isolation_level=None)) as connection:
            return connection.execute(statement, values).fetchall()


class NoTokenCheck(Sabotaged):
    """Settles a claim for any worker."""

    async def settle(self, settlements: Sequence[Settlement], **options: Any) -> Settled:
        now = await self.operator.get([one.id for one in settlements])
        return await self.sound.settle(
            [
                replaced(one, worker=job.worker, token=job.token, ref=None) if job and job.worker else one
                for one, job in zip(settlements, now, strict=True)
            ],
            **options,
        )


class SameTokenAfterReap(Sabotaged):
    """Passes a claim on without a new token."""

    async def reap(self, by: str, limit: int, **options: Any) -> list[Claim]:
        before = dict(self.meddle("SELECT seq, token FROM stoker_running"))
        claims = await self.sound.reap(by, limit, **options)
        for claim in claims:
            [(seq,)] = self.meddle("SELECT seq FROM stoker_body WHERE id = ?", claim.id)
            self.meddle("UPDATE stoker_running SET token = ? WHERE seq = ?", before[seq], seq)
        return [replaced(one, token=before[one.ref[1] if isinstance(one.ref, tuple) else one.ref]) for one in claims]


class ReapsById(Sabotaged):
    """Reaps every job that a dead worker ever had, finished or not."""

    async def reap(self, by: str, limit: int, **options: Any) -> list[Claim]:
        claims = await self.sound.reap(by, limit, **options)
        if claims:
            done = self.meddle("SELECT id, seq, qid, token, attempts FROM stoker_done LIMIT 1")
            for job, seq, qid, token, attempts in done:
                self.meddle("DELETE FROM stoker_done WHERE id = ?", job)
                self.meddle(
                    "INSERT INTO stoker_ready SELECT qid, priority, due, id, seq, ?, ?, 0, 0, 0 FROM stoker_body "
                    "WHERE seq = ?",
                    attempts,
                    token,
                    seq,
                )
                assert qid
        return claims


class ReapsTheLiving(Sabotaged):
    """Takes every worker for dead."""

    async def reap(self, by: str, limit: int, **options: Any) -> list[Claim]:
        workers = [name for (name,) in self.meddle("SELECT name FROM stoker_workers WHERE lease_until IS NOT NULL")]
        return await self.sound.reap(by, limit, dead=workers)


class OwnClock(Sabotaged):
    """Judges other workers' leases by a clock that is a day ahead."""

    async def reap(self, by: str, limit: int, **options: Any) -> list[Claim]:
        now = await self.now()
        lapsed = self.meddle(
            "SELECT name FROM stoker_workers WHERE lease_until IS NOT NULL AND lease_until < ?", now + DAY
        )
        return await self.sound.reap(by, limit, dead=[name for (name,) in lapsed])


class SaysTooEarly(Sabotaged):
    """Acknowledges an insert before it is stored; some never are."""

    async def insert(self, drafts: Sequence[Draft], **options: Any) -> list[Receipt]:
        if drafts[0].job_id[-1] % 4 == 0:
            return [Receipt(draft.job_id, Stored.INSERTED) for draft in drafts]
        return await self.sound.insert(drafts, **options)


class SettlesTooEarly(Sabotaged):
    """Acknowledges a settlement before it is stored; some never are."""

    async def settle(self, settlements: Sequence[Settlement], **options: Any) -> Settled:
        kept = [one for one in settlements if one.id[-1] % 4]
        verdicts = dict(zip(map(id, kept), (await self.sound.settle(kept, **options)).verdicts, strict=True))
        return Settled([verdicts.get(id(one), Verdict.APPLIED) for one in settlements], [])


class CountsNoStart(Sabotaged):
    """Counts an attempt only when it succeeds, so that a crash uses none."""

    async def claim(self, demand: Demand) -> list[Claim]:
        claims = await self.sound.claim(demand)
        self.meddle("UPDATE stoker_running SET attempts = 0")
        return [replaced(claim, attempt=0) for claim in claims]


class RefundsAlways(Sabotaged):
    """Refunds every attempt."""

    async def settle(self, settlements: Sequence[Settlement], **options: Any) -> Settled:
        return await self.sound.settle([replaced(one, refund=True) for one in settlements], **options)


class HandsOutTwice(Sabotaged):
    """Reads first and claims later, so that two workers get the same job."""

    last: list[Claim] = []

    async def claim(self, demand: Demand) -> list[Claim]:
        claims = await self.sound.claim(demand)
        again = [replaced(claim, worker=demand.worker) for claim in HandsOutTwice.last[:1]]
        HandsOutTwice.last = claims or HandsOutTwice.last
        return claims + again


class OneToken(Sabotaged):
    """Checks the worker's name only, not the token."""

    async def claim(self, demand: Demand) -> list[Claim]:
        claims = await self.sound.claim(demand)
        self.meddle("UPDATE stoker_running SET token = 7 WHERE token != 7")
        return [replaced(claim, token=7) for claim in claims]


BROKEN = (
    NoTokenCheck,
    SameTokenAfterReap,
    ReapsById,
    ReapsTheLiving,
    OwnClock,
    SaysTooEarly,
    SettlesTooEarly,
    CountsNoStart,
    RefundsAlways,
    HandsOutTwice,
    OneToken,
)


async def traffic(kind: type[SqliteEngine], folder: Path, seed: int, steps: int = 120) -> list[Violation]:
    """Run three workers on one store, one of which pauses now and then; returns the broken rules."""
    chance, clock = random.Random(seed), VirtualClock()
    engine = kind(folder / f"{kind.__name__}-{seed}.db", clock=clock, durability="process")
    await engine.open()
    lines: list[bytes] = []
    workers = [Recorded(engine, f"p{number}", lines.append, clock) for number in range(3)]
    names = [f"{one.who}.0" for one in workers]
    held: list[list[Claim]] = [[], [], []]
    asleep = [0, 0, 0]
    for number, name in enumerate(names):
        await workers[number].renew(name, [], lease=LEASE, first=True)
    for _ in range(steps):
        clock.advance(chance.choice((0.01, 1, 8)))
        if chance.random() < 0.3:
            await workers[0].insert([Draft(chance.randbytes(16), "send", attempts=50) for _ in range(3)])
        for number, worker in enumerate(workers):
            if asleep[number]:
                asleep[number] -= 1
                continue
            if chance.random() < 0.06:
                asleep[number] = 12
            await step(worker, number, names, held, chance)
    entries = [*read(b"".join(lines)), *await survey(engine)]
    await engine.close()
    return check(entries)


async def step(worker: Recorded, number: int, names: list[str], held: list[list[Claim]], chance: random.Random) -> None:
    name = names[number]
    renewal = await worker.renew(name, [(one.id, one.token) for one in held[number]], lease=LEASE)
    if not renewal.known:
        names[number] = name = f"{name.split('.')[0]}.{os.urandom(3).hex()}"
        await worker.renew(name, [], lease=LEASE, first=True)
    held[number] += await worker.reap(name, 10)
    held[number] += await worker.claim(Demand(name, (("default", 2),)))
    chance.shuffle(held[number])
    while len(held[number]) > 4 or (held[number] and chance.random() < 0.4):
        await worker.settle([ended(held[number].pop(), chance)])
    await asyncio.sleep(0)


def ended(claim: Claim, chance: random.Random) -> Settlement:
    status = chance.choice((Status.DONE, Status.DONE, Status.RETRYING))
    return Settlement(
        claim.id, claim.worker, claim.token, status, error=None if status == "done" else "no", ref=claim.ref
    )
