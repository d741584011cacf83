"""An engine that writes down what it is asked and what it answers, and whose claim replies can be held up.

Every process of a test writes a history of its own beside the store, line by line, so that one that is killed leaves
everything up to its last answer. While the file `hold` exists, claims are stored but the reply does not arrive.
"""

from __future__ import annotations

import asyncio
import os
import uuid
from collections.abc import Sequence
from copy import copy
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from stoker.engines.base import Engine
from stoker.engines.sqlite import SqliteEngine
from stoker.model.job import Claim, Demand, Settled, Settlement
from stoker.testing.faults import Recorded


class RecordingEngine(SqliteEngine):
    def __init__(self, path: str | os.PathLike[str], **options: Any) -> None:
        super().__init__(path, **options)
        self._folder = Path(self.path).parent
        self._log = -1
        bare = cast(Engine, SimpleNamespace(jobs=copy(self.jobs)))
        self._recorder = Recorded(bare, f"{os.getpid()}-{uuid.uuid4().hex}", self._write)
        jobs: Any = self.jobs
        jobs.insert, jobs.renew, jobs.reap = self._recorder.insert, self._recorder.renew, self._recorder.reap
        jobs.claim, jobs.settle = self._claim, self._settle

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

    async def _claim(self, demand: Demand) -> list[Claim]:
        claims = await self._recorder.claim(demand)
        await self._arrive(claims)
        return claims

    async def _settle(
        self, settlements: Sequence[Settlement], *, demand: Demand | None = None, **options: Any
    ) -> Settled:
        settled = await self._recorder.settle(settlements, demand=demand, **options)
        await self._arrive(settled.claims)
        return settled

    async def _arrive(self, claims: Sequence[Claim]) -> None:
        hold = self._folder / "hold"
        if not claims or not hold.exists():
            return
        with (self._folder / "held").open("a", encoding="ascii") as held:
            held.write("".join(f"{claim.id.hex()}\n" for claim in claims))
        while hold.exists():
            await asyncio.sleep(0.005)
