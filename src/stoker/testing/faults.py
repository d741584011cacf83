"""For tests of faults: an engine that records a history, and the check of the store at the end.

`Recorded` wraps an engine. Every call is announced before it is made and its result is written after it was awaited, by
`write`, which should outlive the process: `os.write` to a file keeps every line of a process that is killed. The laws
of `history` judge what was written.

    engine = Recorded(SqliteEngine(path), who="p1", write=lambda line: os.write(fd, line))
    ...
    violations = check([*entries, *await survey(engine.engine)])
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from stoker.engines.base import LEASE, Clock, Engine
from stoker.model.ids import JobId
from stoker.model.job import Claim, Demand, Draft, Receipt, Renewal, Settled, Settlement, Stored, Verdict
from stoker.model.query import Query
from stoker.model.time import Span
from stoker.testing.entries import Entry, Operation

_encode = msgspec.json.Encoder().encode


class Recorded:
    """An engine that records its calls and their results. `who` must be the process's own name."""

    def __init__(self, engine: Engine, who: str, write: Callable[[bytes], object], clock: Clock | None = None) -> None:
        self.engine = engine
        self.who = who
        self._write = write
        self._clock = clock or (lambda: time.time_ns() // 1000)
        self._calls = itertools.count(1)

    def note(self, op: Operation, call: int | None = None, **fields: Any) -> None:
        """Write an entry of the test's own."""
        number = next(self._calls) if call is None else call
        entry = Entry(who=self.who, call=number, op=op, mono=time.monotonic_ns(), **fields)
        self._write(_encode(entry) + b"\n")

    def begin(self, op: Operation, rows: Sequence[dict[str, Any]] = ({},)) -> int:
        """Announce a call about these; its number is for the results."""
        call = next(self._calls)
        for row in rows:
            self.note(op, call, phase="begun", **row)
        return call

    def leaves_open(self, settlement: Settlement, verdict: Verdict) -> bool:
        """Whether a verdict does not show that this call did it: it may have been repeated on its way."""
        return verdict is Verdict.REPEATED

    async def insert(self, drafts: Sequence[Draft], **options: Any) -> list[Receipt]:
        rows = [{"job": draft.job_id.hex(), "key": draft.unique.key if draft.unique else ""} for draft in drafts]
        call = self.begin("insert", rows)
        receipts = await self.engine.jobs.insert(drafts, **options)
        for row, receipt in zip(rows, receipts, strict=True):
            phase = "refused" if receipt.id.hex() != row["job"] else "done"
            if receipt.stored is not Stored.REPLACED:
                self.note("insert", call, phase=phase, **row)
        return receipts

    async def claim(self, demand: Demand) -> list[Claim]:
        call = self.begin("claim")
        claims = await self.engine.jobs.claim(demand)
        self._claimed("claim", call, claims)
        return claims

    async def reap(self, by: str, limit: int, **options: Any) -> list[Claim]:
        call = self.begin("reap")
        claims = await self.engine.jobs.reap(by, limit, **options)
        self._claimed("reap", call, claims)
        return claims

    async def settle(
        self, settlements: Sequence[Settlement], *, demand: Demand | None = None, **options: Any
    ) -> Settled:
        rows = [
            {
                "job": one.id.hex(),
                "worker": one.worker,
                "token": one.token,
                "status": one.status.value,
                "refund": one.refund,
            }
            for one in settlements
        ]
        call = self.begin("settle", rows)
        fused = None if demand is None else self.begin("claim")
        settled = await self.engine.jobs.settle(settlements, demand=demand, **options)
        for one, row, verdict in zip(settlements, rows, settled.verdicts, strict=True):
            if not self.leaves_open(one, verdict):
                self.note("settle", call, phase="done" if verdict is Verdict.APPLIED else "refused", **row)
        if fused is not None:
            self._claimed("claim", fused, settled.claims)
        return settled

    async def renew(
        self, worker: str, held: Sequence[tuple[JobId, int]], *, lease: Span = LEASE, first: bool = False
    ) -> Renewal:
        # The store's now is not before this moment: so long the lease lasts at least.
        until = self._clock() + lease
        call = self.begin("renew", [{"worker": worker}])
        renewal = await self.engine.jobs.renew(worker, held, lease=lease, first=first)
        if renewal.known:
            self.note("renew", call, worker=worker, until=until)
        self._claimed("orphan", call, renewal.orphaned)
        return renewal

    def _claimed(self, op: Operation, call: int, claims: Sequence[Claim]) -> None:
        for claim in claims:
            self.note(
                op,
                call,
                job=claim.id.hex(),
                worker=claim.worker,
                token=claim.token,
                at=claim.claimed_at,
                attempt=claim.attempt,
                budget=claim.base + claim.budget,
                key=claim.unique.key if claim.unique else "",
                former=claim.former or "" if op == "reap" else "",
                former_at=claim.former_at or 0 if op == "reap" else 0,
            )


async def survey(engine: Engine) -> list[Entry]:
    """Everything that is stored, as the last entries of a history."""
    found: list[Entry] = []
    cursor: JobId | None = None
    while True:
        page = await engine.operator.find(Query(order="oldest", limit=1000, cursor=cursor))
        found += (
            Entry(
                who="survey",
                call=0,
                op="stored",
                mono=time.monotonic_ns(),
                job=job.id.hex(),
                status=job.status.value,
                token=job.token,
                attempt=job.attempts,
                key=job.unique.key if job.unique else "",
            )
            for job in page.jobs
        )
        if page.cursor is None:
            return found
        cursor = page.cursor
