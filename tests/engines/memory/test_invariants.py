"""Whatever happens in whatever order: counters equal a recount, claims come in order, rehearsals leave no trace."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from typing import Any

import hypothesis
import msgspec
import pytest
from hypothesis import strategies as st

from stoker.engines.memory import MemoryEngine
from stoker.engines.memory.ready_queue import SWEEP_AT, Entry, ReadyQueue
from stoker.engines.memory.store import Store
from stoker.model.ids import JobId, compose
from stoker.model.job import ACTIVE, Claim, Demand, Draft, Settlement, Status
from stoker.model.query import Cancel, Change, Clone, Delete, Discard, Move, Prioritize, Requeue, RunNow, Selection
from stoker.model.record import Record
from stoker.model.throttle import Cool
from stoker.model.time import SECOND
from stoker.model.unique import Hold, Mode, Unique
from stoker.testing.clock import VirtualClock

QUEUES = ("a", "b", "c")


def audit(store: Store) -> None:
    """Recount everything from the records alone."""
    counts: Counter[tuple[str, str, Status]] = Counter()
    for job, entry in store.jobs.items():
        record = entry.record
        assert record.id == job
        counts[record.queue, record.kind, record.status] += 1
        assert (record.worker is not None) == (record.status is Status.RUNNING)
        if record.status is Status.RUNNING:
            assert record.worker is not None
            assert store.held[record.worker][job] is entry
        assert (job in store.finished) == (record.status not in ACTIVE)
        if record.unique is not None and record.status in ACTIVE:
            assert store.holders[record.unique.slot(record.kind)] == job
    assert {key: n for key, n in store.counts.items() if n} == counts
    assert store.active == sum(n for (_, _, status), n in counts.items() if status in ACTIVE)
    assert len(store.finished) == len(store.jobs) - store.active
    assert sum(map(len, store.held.values())) == sum(n for key, n in counts.items() if key[2] is Status.RUNNING)
    keyed = [entry for entry in store.jobs.values() if entry.record.held_slot is not None]
    assert len(store.holders) == len(keyed)


def picture(store: Store) -> object:
    """Everything a rehearsal must leave as it was."""
    for waiting in store.waiting.values():
        waiting.promote(store.now())
    return (
        {job: entry.record for job, entry in sorted(store.jobs.items())},
        dict(store.totals),
        dict(store.last_errors),
        dict(store.rows),
        dict(store.holders),
        {name: (waiting.scheduled, waiting._waiting) for name, waiting in store.waiting.items()},
    )


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
            await self.rehearse()

    async def rehearse(self) -> None:
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
def test_counters_always_equal_a_recount(seed: int) -> None:
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


PLACES = st.lists(st.tuples(st.integers(-2, 2), st.integers(0, 20), st.booleans()), max_size=40)


@pytest.mark.spec("MEMORY-13")
@hypothesis.given(PLACES, st.lists(st.integers(0, 39), max_size=10), st.lists(st.integers(5, 20), max_size=5))
def test_a_ready_queue_is_always_in_order(
    wanted: list[tuple[int, int, bool]], leaving: list[int], moments: list[int]
) -> None:
    """Against a sorted list: priority, then time, then id; never one of the future, never one that left."""
    queue = ReadyQueue()
    entries: list[Entry] = []
    for number, (priority, at, retrying) in enumerate(wanted):
        record = Record.drafted(Draft(compose(100 - number, number), "k", priority=priority, at=at), 0)
        status = Status.RETRYING if retrying else Status.PENDING
        entry = Entry(msgspec.structs.replace(record, status=status))
        queue.add(entry, 5)
        entries.append(entry)
    for index in sorted(set(leaving)):
        if index < len(wanted):
            queue.leave(entries[index], 5)
    waiting = [entry for index, entry in enumerate(entries) if index not in leaving]
    for now in sorted([5, *moments, 21]):
        due = sorted((entry for entry in waiting if entry.record.scheduled_at <= now), key=_order)
        pending = [entry.record.scheduled_at for entry in due if entry.record.status is Status.PENDING]
        assert queue.oldest(now) == min(pending, default=None)
        taken = queue.take(3, now)
        assert taken == due[:3]
        waiting = [entry for entry in waiting if entry not in taken]
        later = [one.record for one in waiting if one.record.scheduled_at > now and one.record.status is Status.PENDING]
        assert queue.scheduled == len(later)


def _order(entry: Entry) -> tuple[int, int, JobId]:
    return entry.record.priority, entry.record.scheduled_at, entry.record.id


@pytest.mark.spec("MEMORY-13")
def test_invalid_items_are_removed() -> None:
    queue = ReadyQueue()
    entry = Entry(Record.drafted(Draft(compose(1, 1), "k", at=100), 0))
    for _ in range(3 * SWEEP_AT):
        queue.add(entry, 0)
        queue.leave(entry, 0)
    queue.add(entry, 0)
    assert sum(1 for _ in queue._items()) <= SWEEP_AT + 2
    assert queue.take(1, 100) == [entry]
