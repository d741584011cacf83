"""Whatever happens in whatever order: lines and lists equal a recount, claims come in order, copies leave no trace."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import hypothesis
import pytest
from hypothesis import strategies as st

from stoker.engines.memory import MemoryEngine
from stoker.engines.memory.ready_queue import ReadyQueue, head_of
from stoker.engines.memory.store import Store
from stoker.model.ids import JobId, compose
from stoker.model.job import ACTIVE, Claim, Demand, Draft, Settlement, Status
from stoker.model.query import Cancel, Change, Clone, Delete, Discard, Move, Prioritize, Requeue, RunNow, Selection
from stoker.model.record import WAITING
from stoker.model.subqueues import Look
from stoker.model.throttle import Cool
from stoker.model.time import SECOND
from stoker.model.unique import Hold, Mode, Unique
from stoker.testing.clock import VirtualClock

QUEUES = ("a", "b", "c")


def audit(store: Store) -> None:
    """Compare every line and list with the records alone."""
    records = list(store.jobs.values())
    assert [record.id for record in records] == list(store.jobs)
    for record in records:
        assert (record.worker is not None) == (record.status is Status.RUNNING)
        if record.unique is not None and record.status in ACTIVE:
            assert store.holders[record.unique.slot(record.kind)] == record.id
    assert len(store.holders) == sum(record.held_slot is not None for record in records)
    for name, line in store.waiting.items():
        assert line.heads == sorted(head_of(one) for one in records if one.queue == name and one.status in WAITING)
    finished = [(record.expires_at or 0, record.id) for record in records if record.status not in ACTIVE]
    assert sorted(store.finished) == sorted(finished)
    assert [at for at, _ in store.finished] == sorted(at for at, _ in finished)
    assert store.active == len(records) - len(finished)


def picture(store: Store) -> object:
    """Everything a copy must leave as it was."""
    lines = {name: list(line.heads) for name, line in store.waiting.items()}
    return [dict(part) for part in (store.jobs, store.totals, store.last_errors, store.rows, store.holders)], lines


class Storm:
    """A worker, an operator and a producer who do anything at any time."""

    def __init__(self, seed: int, engine: MemoryEngine, clock: VirtualClock) -> None:
        self.dice = random.Random(seed)
        self.engine = engine
        self.clock = clock
        self.claims: list[Claim] = []
        self.ids: list[JobId] = []

    def draft(self) -> Draft:
        number = len(self.ids) + 1
        self.ids.append(compose(self.dice.randrange(1_000), number))
        options: dict[str, Any] = {"queue": self.dice.choice(QUEUES), "priority": self.dice.choice((-1, 0, 0, 5))}
        options["delay"] = self.dice.choice((0, 0, SECOND, 5 * SECOND))
        if self.dice.random() < 0.5:
            mode: Mode = self.dice.choice(("existing", "replace"))
            hold: Hold = self.dice.choice(("active", "retrying"))
            options["unique"] = Unique(self.dice.choice("xyz"), self.dice.choice(("kind", "global")), mode, hold)
        return Draft(self.ids[-1], self.dice.choice(("k1", "k2")), **options)

    def settlement(self) -> Settlement:
        claim = self.claims.pop(self.dice.randrange(len(self.claims)))
        status = self.dice.choice((Status.DONE, Status.DEAD, Status.RETRYING, Status.PENDING, Status.CANCELED))
        return Settlement(
            claim.id,
            claim.worker,
            claim.token,
            status,
            after=self.dice.choice((0, SECOND)),
            refund=self.dice.random() < 0.3,
            error=self.dice.choice((None, "boom")),
            keep=self.dice.choice((None, 0)),
            cool=self.dice.choice((None, None, Cool(claim.cool_count, SECOND), Cool(claim.cool_count))),
            followups=tuple(self.draft() for _ in range(self.dice.choice((0, 0, 2)))),
        )

    def change(self) -> tuple[Selection, Change]:
        ids = tuple(self.dice.choice(self.ids) for _ in range(3))
        kinds: list[Change] = [Cancel(), Cancel(force=True), Requeue(), Discard(), Delete(), RunNow(), Prioritize(3)]
        kinds += [Move(self.dice.choice(QUEUES)), Clone(tuple(self.draft().job_id for _ in ids))]
        return Selection(ids), self.dice.choice(kinds)

    async def step(self) -> None:
        self.clock.advance(self.dice.choice((0, 0, 1, 3)))
        await self.engine.jobs.renew("w", [], first=True)
        kind = self.dice.randrange(6)
        if kind <= 1:
            await self.engine.jobs.insert([self.draft() for _ in range(3)])
        elif kind == 2:
            demand = Demand("w", tuple((queue, 2) for queue in QUEUES), 4)
            self.claims += await self.engine.jobs.claim(demand)
        elif kind == 3 and self.claims:
            await self.engine.jobs.settle([self.settlement() for _ in range(self.dice.randint(1, len(self.claims)))])
        elif kind == 4 and self.ids:
            await self.engine.operator.alter(*self.change())
        else:
            await self.copy()

    async def copy(self) -> None:
        store = self.engine._store
        commit = self.dice.random() < 0.5
        before = None
        try:
            async with self.engine.transaction() as tx:
                before = picture(store)
                for _ in range(3):
                    if self.claims and self.dice.random() < 0.5:
                        await self.engine.jobs.settle([self.settlement()], tx=tx)
                    else:
                        await self.engine.jobs.insert([self.draft(), self.draft()], tx=tx)
                    audit(store)
                    assert picture(store) == before
                if not commit:
                    raise InterruptedError
        except InterruptedError:
            assert picture(store) == before


@pytest.mark.spec("MEMORY-13")
@hypothesis.given(st.integers(0, 10**9))
@hypothesis.settings(max_examples=40)
def test_lines_and_lists_always_equal_a_recount(seed: int) -> None:
    async def run() -> None:
        clock = VirtualClock()
        engine = MemoryEngine(clock, history=10)
        await engine.open()
        storm = Storm(seed, engine, clock)
        for _ in range(60):
            await storm.step()
            audit(engine._store)
            assert len(engine._store.finished) <= 10
        await engine.close()

    asyncio.run(run())


PLACES = st.lists(st.tuples(st.integers(-2, 2), st.integers(0, 20)), max_size=40)


@pytest.mark.spec("MEMORY-13")
@hypothesis.given(PLACES, st.lists(st.integers(0, 39), max_size=10), st.lists(st.integers(5, 20), max_size=5))
def test_a_ready_queue_is_always_in_order(
    wanted: list[tuple[int, int]], leaving: list[int], moments: list[int]
) -> None:
    """Priority, then time, then id; never one of the future, never one that left."""
    queue = ReadyQueue()
    heads = [(priority, at, compose(100 - number, number)) for number, (priority, at) in enumerate(wanted)]
    for head in heads:
        queue.add(head)
    for index in sorted(set(leaving)):
        if index < len(heads):
            queue.leave(heads[index])
    waiting = [head for index, head in enumerate(heads) if index not in leaving]
    for now in sorted([5, *moments, 21]):
        due = sorted(head for head in waiting if head[1] <= now)
        later = [head[1] for head in waiting if head[1] > now]
        assert queue.look(now) == Look(due[0] if due else None, min(later, default=None))
        assert queue.first_due(now) == min((head[1] for head in waiting), default=None)
        assert queue.due(3, now) == due[:3]
        queue.take(due[:3])
        waiting = [head for head in waiting if head not in due[:3]]
