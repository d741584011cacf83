"""The memory engine as oracle: the same calls must return the same on both engines, step by step."""

from __future__ import annotations

import itertools
import random
from pathlib import Path
from typing import Any

import msgspec
import pytest

from stoker.engines.memory import MemoryEngine
from stoker.engines.sqlite import SqliteEngine
from stoker.model.control import Queue, Tuning
from stoker.model.ids import JobId, Mint
from stoker.model.job import Claim, Demand, Draft, Note, Options, Receipt, Settled, Status
from stoker.model.lifecycle import PLAIN_RULES, conclude
from stoker.model.outcome import (
    Canceled,
    Crashed,
    Done,
    Failed,
    HandedBack,
    Lost,
    Outcome,
    Rejected,
    Snoozed,
    Throttled,
)
from stoker.model.query import (
    Cancel,
    Change,
    Clone,
    Delete,
    Discard,
    Move,
    Prioritize,
    Query,
    Requeue,
    Retention,
    RunNow,
    Selection,
)
from stoker.model.retry import Curve
from stoker.model.time import DAY, HOUR, MINUTE, SECOND
from stoker.model.unique import Unique
from stoker.testing.clock import VirtualClock

pytestmark = pytest.mark.engine("sqlite")

QUEUES = ("a", "b", "c")
WORKERS = ("w1", "w2", "w3")


class Pair:
    """Two engines with one clock and one random generator."""

    def __init__(self, chance: random.Random, memory: MemoryEngine, sqlite: SqliteEngine, clock: VirtualClock) -> None:
        self.chance = chance
        self.engines: tuple[Any, Any] = (memory, sqlite)
        self.clock = clock
        numbers = itertools.count(1)
        self.mint = Mint(clock, lambda n: next(numbers).to_bytes(n))
        self.jobs: list[JobId] = []
        self.claims: list[tuple[Claim, Claim]] = []
        self.spent: list[tuple[Any, Any]] = []
        self.generation = 0

    async def both(self, method: str, *args: Any, **kwargs: Any) -> tuple[Any, Any]:
        results: list[Any] = []
        for engine in self.engines:
            try:
                results.append(await getattr(engine, method)(*args, **kwargs))
            except Exception as error:
                results.append((type(error), str(error)))
        assert plain(results[0]) == plain(results[1]), (method, args)
        return results[0], results[1]

    def pick(self, n: int) -> tuple[JobId, ...]:
        return tuple(self.chance.sample(self.jobs, min(len(self.jobs), n)))

    async def step(self) -> None:
        step = self.chance.choice(
            [self.insert] * 4 + [self.claim] * 4 + [self.settle] * 6 + [self.alter] * 4 + [self.rest] * 3
        )
        await step()
        if self.chance.random() < 0.5:
            self.clock.set(self.clock() + self.chance.choice([1, MINUTE, SECOND, 10 * SECOND, HOUR]))

    async def insert(self) -> None:
        chance, drafts = self.chance, []
        for _ in range(chance.randint(1, 4)):
            key = chance.choice([None, None, None, "k1", "k2"])
            unique = key and Unique(
                key,
                chance.choice(["kind", "global"]),
                chance.choice(["existing", "existing", "replace", "raise"]),
                chance.choice(["active", "active", "retrying"]),
            )
            delay = chance.choice([0, 0, 0, SECOND, HOUR])
            drafts.append(
                msgspec.convert(
                    {
                        "id": self.mint() if not self.jobs or chance.random() < 0.95 else chance.choice(self.jobs),
                        "kind": chance.choice(["send", "push"]),
                        "payload": b'{"n":%d}' % chance.randint(0, 9),
                        "queue": chance.choice(QUEUES),
                        "priority": chance.choice([0, 0, 0, -1, 5]),
                        "delay": delay,
                        "at": None if delay else chance.choice([None, None, self.clock() - SECOND]),
                        "attempts": chance.choice([1, 2, 5]),
                        "unique": unique or None,
                        "tenant": chance.choice([None, "acme"]),
                        "options": chance.choice([Options(), Options(keep=0), Options(timeout=SECOND, keep=HOUR)]),
                    },
                    Draft,
                )
            )
        receipts, _ = await self.both("insert", drafts)
        if receipts and isinstance(receipts[0], Receipt):
            self.jobs += [receipt.id for receipt in receipts if receipt.id not in self.jobs]

    async def claim(self) -> None:
        worker = self.chance.choice(WORKERS) + str(self.generation)
        await self.both("renew", worker, [], first=True)
        await self.take(await self.both("claim", self.demand(worker)))

    def demand(self, worker: str) -> Demand:
        queues = self.chance.sample(QUEUES, self.chance.randint(1, 3))
        total = self.chance.choice([None, None, 2])
        return Demand(worker, tuple((queue, self.chance.randint(0, 3)) for queue in queues), total)

    async def take(self, pairs: tuple[list[Claim], list[Claim]]) -> None:
        self.claims += zip(*pairs, strict=True)

    async def settle(self) -> None:
        chance, settlements = self.chance, []
        for _ in range(chance.randint(1, 4)):
            if self.claims and chance.random() < 0.85:
                one = self.claims.pop(chance.randrange(len(self.claims)))
                outcome = chance.choice(OUTCOMES)
                metadata = chance.choice([None, None, {"page": str(chance.randint(0, 9))}])
                first, second = (conclude(claim, outcome, PLAIN_RULES, metadata) for claim in one)
                if chance.random() < 0.2:
                    second = msgspec.structs.replace(second, ref=None)
                settlements.append((first, second))
                self.spent.append((first, second))
            elif self.spent:
                settlements.append(chance.choice(self.spent))
        worker = chance.choice(WORKERS) + str(self.generation)
        demand = self.demand(worker) if chance.random() < 0.3 else None
        results: list[Settled] = []
        for engine, mine in zip(self.engines, ([pair[n] for pair in settlements] for n in (0, 1)), strict=True):
            results.append(await engine.settle(mine, demand=demand))
        assert plain(results[0]) == plain(results[1]), settlements
        await self.take((results[0].claims, results[1].claims))

    async def alter(self) -> None:
        ids = (*self.pick(self.chance.randint(0, 4)), *([self.mint()] if self.chance.random() < 0.1 else []))
        changes: list[Change] = [
            Cancel(),
            Cancel("hung", force=True),
            Requeue(),
            Requeue(),
            Clone(tuple(self.mint() for _ in ids)),
            Discard(),
            Delete(),
            RunNow(),
            Move(self.chance.choice(QUEUES)),
            Prioritize(self.chance.choice([-1, 0, 5])),
        ]
        statuses = self.chance.choice([frozenset(), frozenset(), frozenset({Status.DEAD, Status.PENDING})])
        tally, _ = await self.both("alter", Selection(ids, statuses), self.chance.choice(changes))
        self.jobs += [job for job in getattr(tally, "created", ()) if job not in self.jobs]

    async def rest(self) -> None:
        chance = self.chance
        worker = chance.choice(WORKERS) + str(self.generation)
        match chance.randrange(6):
            case 0:
                held = [(pair[0].id, pair[0].token) for pair in self.claims if pair[0].worker == worker]
                renewals = await self.both("renew", worker, held[: chance.randint(0, 9)])
                known = {pair[0].id for pair in self.claims}
                mine, theirs = (
                    sorted((claim for claim in one.orphaned if claim.id not in known), key=lambda claim: claim.id)
                    for one in renewals
                )
                await self.take((mine, theirs))
            case 1:
                await self.both("renew", "reaper" + str(self.generation), [], first=True)
                dead = chance.choice([(), (worker,)])
                await self.take(
                    await self.both("reap", "reaper" + str(self.generation), chance.randint(1, 5), dead=dead)
                )
                self.generation += chance.random() < 0.5
            case 2:
                tuning = Tuning(
                    paused=chance.choice([None, True, False, False]),
                    curve=chance.choice([None, Curve(on=True)]),
                    keep_done=chance.choice([None, 0, DAY]),
                )
                await self.both("tune", chance.choice(QUEUES), tuning)
            case 3 if self.claims:
                notes = [
                    Note(claim.id, claim.worker, claim.token, 0.5, {"x": "y"}, ("line",))
                    for claim, _ in self.claims[:2]
                ]
                await self.both("note", notes)
            case 4:
                await self.both("expire", Retention(limit=3))
            case _:
                self.clock.set(self.clock() + MINUTE)

    async def compare(self) -> None:
        await self.both("get", self.jobs)
        await self.both("census")
        await self.both("budgets")
        queues = [await engine.queues() for engine in self.engines]
        # A draft whose id is known already may leave the name of its queue behind; the queue is as if untouched.
        assert [queue for queue in queues[1] if queue in queues[0] or queue != Queue(name=queue.name)] == queues[0]
        for statuses in ((), (Status.DEAD,), (Status.PENDING, Status.RETRYING), (Status.RUNNING,), (Status.DONE,)):
            order = self.chance.choice(["newest", "oldest"])
            query = Query(statuses=frozenset(statuses), order=order, limit=1000, queues=frozenset())  # type: ignore[arg-type]
            await self.both("find", query)


OUTCOMES: list[Outcome] = [
    Done(),
    Done(),
    Done(b"1"),
    Failed("boom", after=SECOND),
    Failed("boom", after=0),
    Rejected("no"),
    Snoozed(SECOND),
    HandedBack(),
    Lost(),
    Crashed("signal 9"),
    Canceled(),
    Throttled(SECOND),
    Throttled(SECOND, queue=False),
]


def plain(result: Any) -> Any:
    """Return a result without an engine's private fields and without the length of a walk."""
    if isinstance(result, Claim):
        return msgspec.structs.replace(result, ref=None)
    if isinstance(result, Settled):
        return result.verdicts, plain(result.claims)
    if isinstance(result, list | tuple):
        return [plain(one) for one in result]
    if hasattr(result, "orphaned"):
        return result.known, result.lost, result.canceling, sorted(map(plain, result.orphaned), key=lambda c: c.id)
    if hasattr(result, "scanned"):
        return result.jobs, result.cursor
    return result


@pytest.mark.spec("SQLITE-01")
@pytest.mark.parametrize("seed", range(25))
async def test_both_engines_tell_the_same_story(tmp_path: Path, campaign: bool, seed: int) -> None:
    for run in range(20 if campaign else 1):
        clock = VirtualClock()
        memory = MemoryEngine(clock=clock)
        sqlite = SqliteEngine(tmp_path / f"jobs{run}.db", clock=clock, durability="process")
        await memory.open()
        await sqlite.open()
        try:
            pair = Pair(random.Random(f"{seed}-{run}"), memory, sqlite, clock)
            for number in range(120):
                await pair.step()
                if number % 4 == 0:
                    await pair.compare()
            await pair.compare()
        finally:
            await memory.close()
            await sqlite.close()
