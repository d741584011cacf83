"""What an action on many jobs would meet: how many it would change, which it would leave and why, how long it lasts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from datetime import datetime, timedelta
from types import MappingProxyType
from typing import Final, NamedTuple

import msgspec

from stoker.engines.base import Engine
from stoker.model.actions import Action
from stoker.model.humanize import span
from stoker.model.job import ACTIVE, Job, Status
from stoker.model.operator_metrics import keys_taken
from stoker.model.query import Census, Query, chosen_counts, is_counted, matched_at

MOST: Final = 10_000
"""Up to here jobs are counted where no counter knows their number."""

KEYED: Final = 2_000
"""Jobs whose unique keys are looked at."""

PAGE: Final = 1_000

KEY_TAKEN: Final = "key taken"
NONE: Final[Mapping[str, int]] = MappingProxyType({})


class Lasts(msgspec.Struct, frozen=True):
    """How long a queue takes for what waits in it and for more jobs, at the rate of the last 15 closed minutes."""

    queue: str
    time: timedelta

    def __str__(self) -> str:
        return f"At its rate of the last 15 minutes queue {self.queue} needs about {span(self.time)} for them."


class Preview(msgspec.Struct, frozen=True):
    """How many jobs a filter means, at least so many if not `complete`, and when they were counted.

    An action that is given `counted_at` touches none that was created or ended later. `queues` are those they are in.
    Of an action, `skipped` says how many it would leave as they are, by their status or as `key taken`: another job
    has their unique key, as far as it was looked for. `lasts` is the slowest of the queues that get jobs to run.
    """

    count: int
    complete: bool
    counted_at: datetime
    queues: frozenset[str] = frozenset()
    skipped: dict[str, int] = {}
    lasts: Lasts | None = None


class Counted(NamedTuple):
    """What an action would meet: jobs by status, and those whose key is taken, if only among so many (`taken_of`).

    `queues` are those of the jobs that it applies to, with how many there are.
    """

    statuses: Counter[Status]
    complete: bool
    taken: int = 0
    taken_of: int | None = None
    queues: Mapping[str, int] = NONE

    def changeable(self, allowed: frozenset[Status]) -> int:
        """How many of them it would change."""
        return sum(n for status, n in self.statuses.items() if status in allowed) - self.taken

    def skipped(self, allowed: frozenset[Status]) -> dict[str, int]:
        """How many it would leave, by why."""
        found = {status.value: n for status, n in sorted(self.statuses.items()) if n and status not in allowed}
        return found | ({KEY_TAKEN: self.taken} if self.taken else {})


def counted_jobs(jobs: list[Job], whole: bool, action: Action) -> Counted:
    """Jobs that were read, as an action would meet them."""
    queues = Counter(job.queue for job in jobs if job.status in action.statuses)
    return Counted(Counter(job.status for job in jobs), whole, queues=queues)


async def count_for(engine: Engine, query: Query, action: Action, census: Census | None = None) -> Counted:
    """What an action would meet of a question: by a census where counters know it, else by looking at the jobs."""
    if census is None or not is_counted(query):
        looked, whole = await walked(engine, query, MOST)
        return await with_keys(engine, counted_jobs(looked, whole, action), looked, whole, action)
    statuses, queues = Counter[Status](), Counter[str]()
    for one in chosen_counts(query, census):
        statuses[one.status] += one.n
        queues[one.queue] += one.n if one.status in action.statuses else 0
    looked, whole = await walked(engine, query, KEYED) if action.takes_key else ([], True)
    return await with_keys(engine, Counted(statuses, True, queues=+queues), looked, whole, action)


async def walked(engine: Engine, query: Query, most: int) -> tuple[list[Job], bool]:
    """Jobs of a question, up to so many, and whether these are all."""
    query = msgspec.structs.replace(query, cursor=None, limit=PAGE)
    found: list[Job] = []
    at = query.ended_by
    while len(found) < most:
        page = await engine.operator.find(query)
        found += [job for job in page.jobs if at is None or matched_at(job, query, at)]
        if page.cursor is None:
            return found, True
        query = msgspec.structs.replace(query, cursor=page.cursor)
    return found, False


async def with_keys(engine: Engine, counted: Counted, looked: list[Job], whole: bool, action: Action) -> Counted:
    """The same with how many of the jobs have a unique key that another job has."""
    keyed = [job for job in looked if job.unique is not None and job.status in action.statuses]
    if not action.takes_key or not keyed:
        return counted
    everywhere = any(job.unique is not None and job.unique.scope == "global" for job in keyed)
    kinds = frozenset[str]() if everywhere else frozenset(job.kind for job in keyed)
    active, all_active = await walked(engine, Query(statuses=ACTIVE, kinds=kinds), KEYED)
    of = None if whole and all_active else len(looked)
    return counted._replace(taken=keys_taken(keyed, active), taken_of=of)
