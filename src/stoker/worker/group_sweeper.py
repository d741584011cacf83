"""The group sweeper: a service that does for groups what no other call does.

It closes groups whose last member was ended by a process that died right after, abandons those that their maker left
unsealed, and removes those past their retention.
"""

from __future__ import annotations

import asyncio
import logging
from random import random

from stoker.model.errors import AWAY
from stoker.services import ServiceContext

logger = logging.getLogger("stoker.worker")

PAUSE = 1.0
"""Seconds between two sweeps, on average: as long may a closing be late that a dead process did not do."""

MOST = 1_000
"""Groups of each sort in one sweep."""


class GroupSweeper:
    """Sweeps every second; a random pause keeps workers from sweeping in step."""

    name = "groups"

    async def run(self, context: ServiceContext) -> None:
        """Sweep again and again."""
        while True:
            await asyncio.sleep(PAUSE * (0.5 + random()))
            try:
                swept = await context.engine.sweep_groups(MOST)
            except AWAY:  # the store loop logs that once; the next sweep comes in a second
                continue
            if swept.abandoned:
                logger.warning(
                    "abandoned %d groups that were not sealed within an hour: their makers raised or died. Their "
                    "on_failure jobs are stored when their members are finished",
                    swept.abandoned,
                )
