"""An engine that writes down what it is asked and what it answers, and whose claim replies can be held up.

Every process of a test writes a history of its own beside the store, line by line, so that one that is killed leaves
everything up to its last answer. While the file `hold` exists, claims are stored but the reply does not arrive.
"""

from __future__ import annotations

import asyncio
import os
import uuid
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, cast

from stoker.engines.base import LEASE, Engine
from stoker.engines.sqlite import SqliteEngine
from stoker.model.ids import JobId
from stoker.model.job import Claim, Demand, Draft, Receipt, Renewal, Settled, Settlement
from stoker.model.time import Span
from stoker.testing.faults import Recorded


class Bare:
    """The doors of an engine as they are before calls are recorded."""

    def __init__(self, engine: SqliteEngine) -> None:
        self._engine = engine

    @property
    def jobs(self) -> Any:
        return self

    def __getattr__(self, door: str) -> Any:
        return partial(getattr(SqliteEngine, door), self._engine)


class RecordingEngine(SqliteEngine):
    def __init__(self, path: str | os.PathLike[str], **options: Any) -> None:
        super().__init__(path, **options)
        self._folder = Path(self.path).parent
        self._log = -1
        self._recorder = Recorded(cast(Engine, Bare(self)), f"{os.getpid()}-{uuid.uuid4().hex}", self._write)

    def _write(self, line: bytes) -> None:
        if self._log < 0:
            path = self._folder / f"history-{self._recorder.who}"
            self._log = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        os.write(self._log, line)

    async def close(self) -> None:
        await super().close()
        if self._log >= 0:
            os.close(self._log)
            self._log = -1

    async def insert(self, drafts: Sequence[Draft], **options: Any) -> list[Receipt]:
        return await self._recorder.insert(drafts, **options)

    async def claim(self, demand: Demand) -> list[Claim]:
        claims = await self._recorder.claim(demand)
        await self._arrive(claims)
        return claims

    async def settle(
        self, settlements: Sequence[Settlement], *, demand: Demand | None = None, **options: Any
    ) -> Settled:
        settled = await self._recorder.settle(settlements, demand=demand, **options)
        await self._arrive(settled.claims)
        return settled

    async def renew(
        self, worker: str, held: Sequence[tuple[JobId, int]], *, lease: Span = LEASE, first: bool = False
    ) -> Renewal:
        return await self._recorder.renew(worker, held, lease=lease, first=first)

    async def reap(self, by: str, limit: int, **options: Any) -> list[Claim]:
        return await self._recorder.reap(by, limit, **options)

    async def _arrive(self, claims: Sequence[Claim]) -> None:
        hold = self._folder / "hold"
        if not claims or not hold.exists():
            return
        with (self._folder / "held").open("a", encoding="ascii") as held:
            held.write("".join(f"{claim.id.hex()}\n" for claim in claims))
        while hold.exists():
            await asyncio.sleep(0.005)
