"""An engine that breaks where a test asks for it: the store of every kit, with nothing broken unless asked."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, cast

from stoker.engines.base import Engine, Transaction
from stoker.model.groups import Group
from stoker.model.humanize import count
from stoker.model.job import Claim, Demand, Draft, Receipt, Settled, Settlement, Verdict
from stoker.model.outbox.stream import Entry, Stream
from stoker.model.steps import Save
from stoker.model.time import Span
from stoker.testing.handler_faults import Faults, stored_steps


class FaultyJobs:
    """The jobs of an engine."""

    def __init__(self, inner: Any, faults: Faults) -> None:
        self._inner = inner
        self._faults = faults

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    async def insert(
        self, drafts: Sequence[Draft], *, tx: Transaction | None = None, group: Group | None = None
    ) -> list[Receipt]:
        what = _named(drafts)
        self._faults.reach(f"before {what} enqueued")
        receipts: list[Receipt] = await self._inner.insert(drafts, tx=tx, group=group)
        self._faults.reach(f"after {what} enqueued")
        if tx is None:
            self._faults.committed()
        return receipts

    async def claim(self, demand: Demand) -> list[Claim]:
        if self._faults.seed is None:
            return self._faults.claimed(await self._inner.claim(demand))
        return self._faults.chosen(demand, await self._inner.claim(self._faults.widened(demand)))

    async def settle(
        self, settlements: Sequence[Settlement], *, demand: Demand | None = None, **options: Any
    ) -> Settled:
        if demand is None or self._faults.seed is None:
            settled: Settled = await self._inner.settle(settlements, demand=demand, **options)
            return Settled(settled.verdicts, self._faults.claimed(settled.claims))
        settled = await self._inner.settle(settlements, demand=self._faults.widened(demand), **options)
        return Settled(settled.verdicts, self._faults.chosen(demand, settled.claims))


class FaultyOutbox:
    """The streams of an engine."""

    def __init__(self, inner: Any, faults: Faults) -> None:
        self._inner = inner
        self._faults = faults

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    async def append(self, stream: Stream, entries: Sequence[Entry], *, tx: Transaction | None = None) -> None:
        what = "a message was" if len(entries) == 1 else f"{count(len(entries), 'message')} were"
        self._faults.reach(f"before {what} appended to {stream.name}")
        await self._inner.append(stream, entries, tx=tx)
        self._faults.reach(f"after {what} appended to {stream.name}")
        if tx is None:
            self._faults.committed()

    async def receive(self, source: str, ids: Sequence[str], *, keep: Span, tx: Transaction | None) -> list[bool]:
        what = "a message was" if len(ids) == 1 else f"{count(len(ids), 'message')} were"
        self._faults.reach(f"before {what} received from {source}")
        fresh: list[bool] = await self._inner.receive(source, ids, keep=keep, tx=tx)
        self._faults.reach(f"after {what} received from {source}")
        return fresh

    async def settle_last(self, settlement: Settlement, *, tx: Transaction) -> bool:
        settled: bool = await self._inner.settle_last(settlement, tx=tx)
        self._faults.reach("before the commit of its block")
        return settled


class FaultySteps:
    """The steps of an engine. Those that a run saves by itself die with their worker, see `MortalWorker`."""

    def __init__(self, inner: Any, faults: Faults) -> None:
        self._inner = inner
        self._faults = faults

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    async def save(self, saves: Sequence[Save], *, tx: Transaction | None = None) -> list[Verdict]:
        verdicts: list[Verdict] = await self._inner.save(saves, tx=tx)
        if tx is not None:
            self._faults.step_to_commit = what = stored_steps(saves[0])
            self._faults.reach(f"before {what}")
        return verdicts


class FaultyEngine:
    """Another engine, whose calls are points at which a worker may die."""

    def __init__(self, inner: Engine, faults: Faults) -> None:
        self._inner = inner
        self._faults = faults
        self.jobs = FaultyJobs(inner.jobs, faults)
        self.steps = FaultySteps(inner.steps, faults)
        self.outbox = None if inner.outbox is None else FaultyOutbox(inner.outbox, faults)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def for_loop(self, *, read_limit: float | None = None) -> Engine:
        return faulty(self._inner.for_loop(read_limit=read_limit), self._faults)

    def transaction(self) -> AbstractAsyncContextManager[Transaction]:
        return self._transaction()

    @asynccontextmanager
    async def _transaction(self) -> AsyncIterator[Transaction]:
        async with self._inner.transaction() as tx:
            yield tx
        self._faults.committed()


def faulty(engine: Engine, faults: Faults) -> Engine:
    """The engine, breaking as `faults` say."""
    return cast("Engine", FaultyEngine(engine, faults))


def _named(drafts: Sequence[Draft]) -> str:
    kinds = list(dict.fromkeys(draft.kind for draft in drafts))
    if len(drafts) == 1:
        return f"{kinds[0]} was"
    return f"{count(len(drafts), 'job')} ({', '.join(kinds)}) were"
