"""What is known of where runs were, for those who look at jobs: read once from the store, then remembered."""

from __future__ import annotations

import time
from collections.abc import Mapping
from math import inf
from typing import TYPE_CHECKING, Final
from weakref import WeakKeyDictionary

from stoker.documents import readable
from stoker.engines.base import ORIGINS
from stoker.model.job import Job
from stoker.model.run_origins import RunOrigin, by_number

if TYPE_CHECKING:
    from stoker.app import Stoker

READ_AGAIN: Final = 10.0
"""Seconds until a number that the store did not know is looked for again."""


class _Known:
    """The origins that an app has read, and the numbers that it did not find then."""

    def __init__(self) -> None:
        self.found: Mapping[int, RunOrigin] = {}
        self.missed: frozenset[int] = frozenset()
        self.read_at = -inf


_known: WeakKeyDictionary[Stoker, _Known] = WeakKeyDictionary()


async def origins_of(app: Stoker, *jobs: Job) -> Mapping[int, RunOrigin]:
    """The origins that the failures and ends of jobs refer to, by number; those that the store forgot are left out."""
    wanted = {job.origin for job in jobs} | {one.origin for job in jobs for one in job.history}
    known = _known.setdefault(app, _Known())
    missing = wanted - {0} - known.found.keys()
    if missing - known.missed or (missing and time.monotonic() - known.read_at > READ_AGAIN):
        engine = await app.engine()
        known.found = by_number(one for one, _ in await readable(engine, ORIGINS, RunOrigin))
        known.missed, known.read_at = frozenset(missing - known.found.keys()), time.monotonic()
    return known.found
