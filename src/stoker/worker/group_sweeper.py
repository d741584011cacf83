"""The group sweeper: a service that does for groups what no other call does.

It closes groups whose last member was ended by a process that died right after, abandons those that their maker left
unsealed, and removes those past their retention.
"""

from __future__ import annotations

import asyncio
import logging
from random import random

from stoker.model.errors import AWAY
from stoker.model.words import count
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
                swept = await context.engine.groups.sweep(MOST)
            except AWAY:  # the store loop logs that once; the next sweep comes in a second
                continue
            if swept.abandoned:
                logger.warning(
                    "abandoned %s not sealed within an hour, because the maker raised or died. A job of on_failure is "
                    "stored when all members are finished",
                    count(swept.abandoned, "group"),
                )
