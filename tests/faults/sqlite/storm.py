"""The storm: producers and workers on one file, killed at random instants, frozen and thawed, over and over.

Runs in a child of the fork server, which forks the members itself. Every member opens an engine of its own and writes
its history to a file of its own, line by line after each awaited answer. Whatever is written there was acknowledged.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stoker.engines.sqlite import SqliteEngine
from stoker.model.ids import Mint
from stoker.model.job import Claim, Demand, Draft, Settlement, Status
from stoker.model.time import MILLISECOND, Span
from stoker.model.unique import Unique
from stoker.testing.faults import Recorded
from tests.faults.fork_server import forked

LEASE: Span = 250 * MILLISECOND
FROZEN = 0.4
"""Seconds: longer than a lease, so that others reap what a frozen one held."""

ATTEMPTS = 1_000
LONGEST_LOG = 6_000
LONGEST_MOMENT = 0.01
MEMBERS = 4
QUEUES = ("a", "b")


@dataclass
class Member:
    """A process of the storm. It is killed once its log has so many bytes: slow machines give it more time."""

    pid: int
    log: Path
    target: int
    moment: float
    freezes: bool
    hour: float = float("inf")
    thaws: float = float("inf")

    def size(self) -> int:
        try:
            return self.log.stat().st_size
        except FileNotFoundError:
            return -1


def storm(folder: str, kills: int, seed: int, durability: Any = "process", journal: Any = "wal") -> dict[str, int]:
    """Kill so many members; returns how many were killed and frozen."""
    chance = random.Random(seed)
    report = {"killed": 0, "frozen": 0}
    members: list[Member] = []
    born = 0
    while report["killed"] < kills:
        while len(members) < min(MEMBERS, kills - report["killed"]):
            members.append(bear(chance, born, folder, durability, journal))
            born += 1
        time.sleep(0.001)
        for member in list(members):
            fate = meet(member, time.monotonic())
            if fate:
                report[fate] += 1
            if fate == "killed":
                members.remove(member)
    return report


def meet(member: Member, now: float) -> str | None:
    """Kill or freeze a member whose time has come."""
    if os.waitpid(member.pid, os.WNOHANG)[0]:
        raise RuntimeError(f"{member.log.stem} ended by itself")
    if now >= member.thaws:
        os.kill(member.pid, signal.SIGCONT)
        member.thaws, member.target = float("inf"), member.size() + 2 * LONGEST_LOG
    elif member.hour == float("inf") and member.thaws == float("inf") and member.size() >= member.target:
        member.hour = now + member.moment
    elif now >= member.hour and member.freezes:
        os.kill(member.pid, signal.SIGSTOP)
        member.freezes, member.hour, member.thaws = False, float("inf"), now + FROZEN
        return "frozen"
    elif now >= member.hour:
        Recorded(None, member.log.stem, lambda line: append(member.log, line)).note("death", 0)  # type: ignore[arg-type]
        os.kill(member.pid, signal.SIGKILL)
        os.waitpid(member.pid, 0)
        return "killed"
    return None


def append(log: Path, line: bytes) -> None:
    with log.with_suffix(".death.jsonl").open("ab") as file:
        file.write(line)


def bear(chance: random.Random, number: int, folder: str, durability: Any, journal: Any) -> Member:
    name = f"m{number}"
    seed = chance.getrandbits(32)
    producer = number % 3 == 0
    target = round(chance.triangular(-1, LONGEST_LOG, 0))
    role = produce if producer else work
    pid = forked(lambda: asyncio.run(live(role, name, seed, folder, durability, journal)))
    log = Path(folder) / f"{name}.jsonl"
    member = Member(pid, log, target, LONGEST_MOMENT * chance.random(), not producer and chance.random() < 0.1)
    if chance.random() < 0.1:
        # Also while it is only just being born.
        member.hour = time.monotonic() + member.moment
    return member


async def live(role: Any, name: str, seed: int, folder: str, durability: Any, journal: Any) -> None:
    engine = SqliteEngine(Path(folder) / "jobs.db", durability=durability, journal=journal)
    await engine.open()
    fd = os.open(Path(folder) / f"{name}.jsonl", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    await role(Recorded(engine, name, lambda line: os.write(fd, line)), random.Random(seed))


async def produce(engine: Recorded, chance: random.Random) -> None:
    """Insert for ever, several batches at once."""
    mint = Mint(lambda: time.time_ns() // 1000, os.urandom)
    while True:
        batches = [
            [
                Draft(
                    mint(),
                    chance.choice(("send", "push")),
                    queue=chance.choice(QUEUES),
                    priority=chance.choice((0, 0, 5)),
                    delay=chance.choice((0, 0, 0, 20 * MILLISECOND)),
                    attempts=ATTEMPTS,
                    unique=Unique(f"{mint().hex()}") if chance.random() < 0.2 else None,
                )
                for _ in range(chance.randint(1, 4))
            ]
            for _ in range(chance.randint(1, 3))
        ]
        await asyncio.gather(*(engine.insert(batch) for batch in batches))
        if chance.random() < 0.2:
            await in_transaction(
                engine, [Draft(mint(), "push", attempts=ATTEMPTS, queue="a") for _ in range(3)], chance
            )
        await asyncio.sleep(0.004 * chance.random())


async def in_transaction(engine: Recorded, batch: list[Draft], chance: random.Random) -> None:
    """Insert in a user's transaction: acknowledged if it commits, never stored if it rolls back."""
    rows = [{"job": draft.job_id.hex()} for draft in batch]
    commit = chance.random() < 0.7
    call = engine.begin("insert", rows) if commit else 0
    try:
        async with engine.engine.transaction() as tx:
            await engine.engine.jobs.insert(batch, tx=tx)
            if not commit:
                raise LookupError("thought better of it")
    except LookupError:
        return
    for row in rows:
        engine.note("insert", call, **row)


async def work(engine: Recorded, chance: random.Random) -> None:
    """Claim, settle, renew and reap for ever, under a short lease."""
    worker = f"{engine.who}.{os.getpid()}"
    demand = Demand(worker, tuple((queue, 6) for queue in QUEUES))
    await engine.renew(worker, [], lease=LEASE, first=True)
    held: list[Claim] = []
    while True:
        match chance.choice(("claim", "settle", "settle", "fused", "renew", "reap")):
            case "claim" if len(held) < 24:
                held += await engine.claim(demand)
            case "settle":
                batch, held = held[:8], held[8:]
                await engine.settle([ended(claim, chance) for claim in batch])
            case "fused":
                batch, held = held[:8], held[8:]
                held += (await engine.settle([ended(claim, chance) for claim in batch], demand=demand)).claims
            case "renew":
                renewal = await engine.renew(worker, [(one.id, one.token) for one in held], lease=LEASE)
                if not renewal.known:
                    # It keeps what it held and tries to settle it all the same: that is what the fence is for.
                    worker += "+"
                    demand = Demand(worker, demand.queues)
                    await engine.renew(worker, [], lease=LEASE, first=True)
            case "reap":
                held += await engine.reap(worker, 20)


def ended(claim: Claim, chance: random.Random) -> Settlement:
    """Return mostly a success; sometimes a retry, a release or a rejection."""
    end = chance.random()
    if end < 0.75:
        status, error, refund = Status.DONE, None, False
    elif end < 0.85:
        status, error, refund = Status.RETRYING, "again", False
    elif end < 0.95:
        status, error, refund = Status.PENDING, None, True
    else:
        status, error, refund = Status.DEAD, "enough", False
    return Settlement(claim.id, claim.worker, claim.token, status, error=error, refund=refund, ref=claim.ref)
