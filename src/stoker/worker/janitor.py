"""The janitor: a service that removes jobs, events and presences past their retention."""

from __future__ import annotations

import asyncio
import logging
import time
from random import random

from stoker.engines.base import Engine
from stoker.model.query import Retention
from stoker.model.time import MINUTE, SECOND
from stoker.services import ServiceContext
from stoker.settings import RetentionSettings

logger = logging.getLogger("stoker.worker")

REST = 2.0
"""The janitor pauses for so many times as long as its last batch took: jobs need the store more."""


class Janitor:
    """Cleans every `clean_every` seconds at most; a random pause keeps workers from cleaning in step."""

    name = "janitor"

    def __init__(self, settings: RetentionSettings) -> None:
        self._pause = settings.clean_every / SECOND
        self._retention = Retention(events=settings.keep_events, points=settings.keep_points, presences=MINUTE)

    async def run(self, context: ServiceContext) -> None:
        """Clean again and again."""
        while True:
            await asyncio.sleep(self._pause * (0.5 + 0.5 * random()))
            await clean(context.engine, self._retention)


async def clean(engine: Engine, retention: Retention) -> int:
    """Remove what is past its retention, batch by batch; returns how many jobs were removed."""
    removed = 0
    while True:
        began = time.monotonic()
        expired = await engine.expire(retention)
        removed += expired.jobs
        if expired.jobs < retention.limit and expired.events < retention.limit:
            break
        await asyncio.sleep((time.monotonic() - began) * REST)
    if removed:
        logger.info("removed %d finished jobs whose retention has passed", removed)
    return removed
