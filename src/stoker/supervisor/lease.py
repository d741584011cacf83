"""The supervisor's own sign of life, where the store knows signs of life.

A reaper anywhere on this host sees at once that a worker process is dead, but not how it died. So the processes of a
supervisor carry its name (`guardian.worker`), and others leave them to it for as long as it lives: every death it
witnessed becomes a crash-end. When the supervisor is gone too, they are anybody's.
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
"""It holds no jobs, so nobody waits for its lease: only its sign of life counts."""


class Guardian:
    """`id` is what its worker processes are named after; None where the store has no use for it."""

    def __init__(self, app: Stoker) -> None:
        self._app = app
        known_at_once = Feature.SIGN_OF_LIFE in app.root().features
        self.id = uuid.uuid4().hex[:12] if known_at_once else None
        self._engine: Engine | None = None
        self._renew_at = 0.0

    async def show(self) -> None:
        """Show life, and go on showing it. A store that is away is asked again next time: until then leases decide."""
        if self.id is None or time.monotonic() < self._renew_at:
            return
        try:
            engine = await self._app.engine()
            await engine.renew(self.id, [], lease=LEASE, first=self._engine is None)
        except StokerError:
            return
        self._engine = engine
        self._renew_at = time.monotonic() + HOUR / SECOND

    async def leave(self) -> None:
        """Say good-bye."""
        if self.id is None or self._engine is None:
            return
        try:
            await self._engine.renew(self.id, [], lease=0)
        except StokerError:  # the sign goes with the process
            return
