"""The laws of the lock-step machine: what must hold after every step, whatever the model decides.

Both engines have the same records and counts. Tokens rise, a key has one active job, statuses change only along the
table, a finished job stays as it finished, counters equal a recount, a group closes at most once and only when all its
members are finished, and the events on the timeline tell of every run's start and end, whichever worker died meanwhile.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias, TypeVar

import msgspec
from hypothesis.stateful import RuleBasedStateMachine, invariant

from stoker.engines.base import Clock, Engine, Feature
from stoker.engines.memory import MemoryEngine
from stoker.model.events import Event, Window, in_flight
from stoker.model.groups import Group
from stoker.model.ids import JobId, Mint
from stoker.model.job import (
    ACTIVE,
    FINISHED,
    Claim,
    Job,
    Status,
)
from stoker.model.lifecycle import TRANSITIONS
from stoker.model.query import (
    Former,
    Query,
)
from stoker.model.steps import Step, is_open
from stoker.testing.clock import VirtualClock
from stoker.testing.machine_values import QUEUES, START

MakeMachineEngine: TypeAlias = Callable[[Clock], Engine]
"""Makes an engine that is not opened yet, on a fresh store of its own, each time it is called."""

SLOTS = 3

_T = TypeVar("_T")
Pair: TypeAlias = tuple[Claim, Claim]
"""One claim as the memory engine and as the other engine handed it out: only `ref` may differ."""


class Laws(RuleBasedStateMachine):
    """Two engines, what was seen of them, and what must hold between two steps. `LockStep` makes the steps."""

    make_engine: MakeMachineEngine

    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        self.clock = VirtualClock(START)
        entropy = itertools.count(1)
        self.mint = Mint(self.clock, lambda n: next(entropy).to_bytes(n))
        self.model: Engine = MemoryEngine(self.clock)
        self.engine: Engine = type(self).make_engine(self.clock)
        self.model.keep_done = self.engine.keep_done
        self.ids: list[JobId] = []
        self.claims: list[Pair] = []
        self.workers = [f"w{slot}.0" for slot in range(SLOTS)]
        self.tokens: dict[JobId, int] = {}
        self.ended: set[tuple[JobId, int]] = set()
        self.records: dict[JobId, Job] = {}
        self.scheduled = False
        self.group_ids: list[JobId] = []
        self.emitting: set[JobId] = set()
        self.groups: dict[JobId, Group] = {}
        self.slots: dict[tuple[str, str], int] = {}
        self.numbers = itertools.count(1)
        self.told: list[Event] = []
        """Events that no call has recorded yet."""

        self.undoable: list[tuple[Former, ...]] = []
        self.restored: set[JobId] = set()
        """Jobs that a step gave back what a cancel or a discard had taken."""

    def both(self, call: Callable[[Engine], Awaitable[_T]]) -> tuple[_T, _T]:
        """The same call on both engines."""

        async def run() -> tuple[_T, _T]:
            return await call(self.model), await call(self.engine)

        answers = self.runner.run(run())
        self.close_groups()
        return answers

    def close_groups(self) -> None:
        """Where closing a group is a write of its own, do it at once, so that both engines close at one instant."""

        async def run() -> None:
            for engine in (self.model, self.engine):
                await engine.groups.sweep()

        if self.group_ids and Feature.CLOSES_AT_ONCE not in self.engine.features:
            self.runner.run(run())

    def same(self, call: Callable[[Engine], Awaitable[_T]]) -> _T:
        """The same call on both engines, with the same result."""
        mine, theirs = self.both(call)
        assert theirs == mine
        return mine

    # --- laws ---------------------------------------------------------------------------------------------------

    @invariant()
    def nothing_differs(self) -> None:
        """Every record, page and count is the same in both, and lawful after what was there a step before."""

        async def look(engine: Engine) -> Any:
            page = await engine.operator.find(Query(order="oldest", limit=1_000))
            census = await engine.operator.census()
            assert page.cursor is None
            return {
                "jobs": {job.id: job for job in page.jobs},
                "order": [job.id for job in page.jobs],
                "got": await engine.operator.get(self.ids[-5:]),
                "counts": {(count.queue, count.kind, count.status): count.n for count in census.counts},
                "census": msgspec.structs.replace(census, counts=()),
                "queues": await engine.control.queues(),
                "budgets": await engine.control.budgets(),
                "groups": await engine.groups.get(self.group_ids),
                "steps": dict(zip(sorted(self.ids), await engine.steps.get(sorted(self.ids)), strict=True)),
                "asking": await engine.steps.asking(limit=1_000),
                "emitted": {job: await engine.steps.emitted(job) for job in self.emitting},
                "schedules": await engine.schedules.read() if self.scheduled else [],
                "in flight": in_flight(await engine.timeline.events(Window(0, self.clock() + 1))),
                "slots": {
                    (queue, view.name): (view.running, view.most, view.holders)
                    for queue in QUEUES
                    for view in await engine.control.subqueues(queue)
                    if view.running
                },
            }

        if not self.records and not self.ids:
            return
        self.record_events()
        seen = self.same(look)
        jobs: dict[JobId, Job] = seen["jobs"]
        assert seen["order"] == sorted(jobs)
        assert seen["counts"] == Counter((job.queue, job.kind, job.status) for job in jobs.values())
        for job in jobs.values():
            self.lawful(self.records.get(job.id), job)
        running = Counter(job.id for job in jobs.values() if job.status is Status.RUNNING)
        assert seen["in flight"] == running, "a start without an end, or an end without a start"
        self.restored.clear()
        keyed = Counter(job.unique.slot(job.kind) for job in jobs.values() if job.unique and job.status in ACTIVE)
        assert all(n == 1 for n in keyed.values()), "two active jobs under one key"
        self.lawful_slots(seen["slots"], jobs)
        groups = {group.id: group for group in seen["groups"] if group is not None}
        for group in groups.values():
            self.lawful_group(self.groups.get(group.id), group, jobs)
        self.groups = groups
        for job in jobs.values():
            if job.suspended:
                self.lawful_suspension(job, seen["steps"][job.id])
        for gone in self.records.keys() - jobs.keys():
            # What is stored under this id from now on is another job.
            self.tokens.pop(gone, None)
            self.ended = {fence for fence in self.ended if fence[0] != gone}
        self.records = jobs

    def record_events(self) -> None:
        """Write what was told since the last time to both timelines."""
        events, self.told = self.told, []
        if events:
            self.same(lambda engine: engine.timeline.record(events, now=self.clock()))

    def lawful_slots(self, slots: dict[tuple[str, str], tuple[int, int | None, tuple[JobId, ...]]], jobs: Any) -> None:
        """A slot is a claim: each subqueue counts the jobs that hold one, and no claim takes more than allowed."""
        claims = Counter(
            (job.queue, job.options.limit.subqueue)
            for job in jobs.values()
            if job.status is Status.RUNNING and job.options.limit is not None
        )
        assert claims.keys() <= slots.keys(), "a claim holds no slot"
        for name, (running, most, holders) in slots.items():
            assert running == len(holders), "a subqueue counts wrong"
            assert running >= claims[name]
            assert most is None or running <= max(most, self.slots.get(name, 0)), "more claims than the limit allows"
            for job in holders:
                limit = jobs[job].options.limit
                assert (jobs[job].queue, limit.subqueue) == name
                assert jobs[job].status is Status.RUNNING or limit.hold == "retrying"
        self.slots = {name: running for name, (running, _, _) in slots.items()}

    def lawful_group(self, before: Group | None, after: Group, jobs: dict[JobId, Job]) -> None:
        """A group closes at most once, and only when all its members are finished; until then it counts them."""
        active = sum(job.options.group == after.id and job.status in ACTIVE for job in jobs.values())
        assert min(after.total, after.done, after.dead, after.canceled, after.waiting) >= 0
        if before is not None and before.closed_at is not None:
            put_off = msgspec.structs.replace(before, expires_at=after.expires_at)
            assert after == put_off, "a closed group changed"
            assert (after.expires_at or 0) >= (before.expires_at or 0), "a closed group is kept more briefly"
        elif after.closed_at is None:
            assert after.waiting == active, "a group counts wrong"
            assert not after.complete
        else:
            assert (after.sealed, after.waiting, active) == (True, 0, 0), "a group closed too early"

    def lawful_suspension(self, job: Job, rows: list[Step]) -> None:
        """A suspended job that has all it waits for is due."""
        waited = [row for row in rows if row.token == job.token]
        assert waited, "suspended on nothing"
        if not any(is_open(row) for row in waited):
            assert job.scheduled_at <= self.clock(), "it has what it waits for and is not due"

    def lawful(self, before: Job | None, after: Job) -> None:
        """What must hold for a record, and between it and what it was one step ago."""
        finished = after.status in FINISHED
        assert (after.finished_at is not None) == finished
        assert (after.expires_at is not None) == finished
        assert (after.worker is not None) == (after.status is Status.RUNNING)
        assert after.attempts >= after.base >= 0
        if before is None:
            return
        assert after.token >= before.token
        if after.status is not before.status:
            steps = TRANSITIONS[before.status]
            # A job can be claimed and ended in one breath.
            if Status.RUNNING in steps and before.status is not Status.RUNNING:
                steps |= TRANSITIONS[Status.RUNNING]
            assert after.status in steps or after.id in self.restored, (before.status, after.status)
        elif finished:
            kept = {name: getattr(before, name) for name in ("successor", *_EDITED)}
            assert msgspec.structs.replace(after, **kept) == before


_EDITED = ("payload", "priority", "budget")
"""What an operator may change of a dead job."""
