"""The supervisor's own lease, on engines that detect dead processes (`Feature.SIGN_OF_LIFE`).

Any worker on this host sees at once that a worker process is dead, but not how it died. Therefore worker ids begin with
the id of their supervisor (`supervisor.worker`), and while the supervisor lives only it releases their jobs: each death
that it sees becomes a crash-end. When the supervisor is dead too, every worker may take the jobs over.
"""

from __future__ import annotations

import time
import uuid
from typing import TYPE_CHECKING

from stoker.engines.base import Engine, Feature
from stoker.model.errors import StokerError
from stoker.model.time import DAY, HOUR, SECOND

if TYPE_CHECKING:
    from stoker.app import Stoker

LEASE = DAY
"""A supervisor holds no jobs, so no worker waits for this lease: only its liveness counts."""


class SupervisorLease:
    """`id` is the prefix of its worker ids; None where the engine cannot detect dead processes."""

    def __init__(self, app: Stoker) -> None:
        self._app = app
        detects_death = Feature.SIGN_OF_LIFE in app.root().features
        self.id = uuid.uuid4().hex[:12] if detects_death else None
        self._engine: Engine | None = None
        self._renew_at = 0.0

    async def renew(self) -> None:
        """Take or renew the lease. If the store is away, the next call tries again."""
        if self.id is None or time.monotonic() < self._renew_at:
            return
        try:
            engine = await self._app.engine()
            await engine.jobs.renew(self.id, [], lease=LEASE, first=self._engine is None)
        except StokerError:
            return
        self._engine = engine
        self._renew_at = time.monotonic() + HOUR / SECOND

    async def release(self) -> None:
        """Give the lease up."""
        if self.id is None or self._engine is None:
            return
        try:
            await self._engine.jobs.renew(self.id, [], lease=0)
        except StokerError:  # the lease ends with the process
            return
