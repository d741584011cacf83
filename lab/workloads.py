"""The table of workloads: what producers put into the store, one call at a time, and what the ledger learns of it.

Before a call the ledger says `asked`, with the ids that the jobs will have; after it returned, `acked`. A store that is
away is asked again with the same drafts, as callers are told to. A producer may be killed anywhere in between.
"""

from __future__ import annotations

import asyncio
import itertools
import random
import sqlite3
import time
import uuid
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from typing import Any, Final

import psycopg

from lab.place import BURST, KEYS, RATE, Place
from stoker import PREVIOUS, Draft, Unique, chain
from stoker.errors import EngineError

REFUSALS: Final = (EngineError, psycopg.Error, sqlite3.Error)
"""What a caller is told by a store that is away, by Stoker or by the driver of its own transaction."""

SHOULD_COMMIT: Final = 0.8
"""The other transactions are rolled back."""


class Producer:
    """One process that puts work. `app` is the module `lab.app`, which reads where it is from the environment."""

    def __init__(self, app: Any, seed: int) -> None:
        self.app = app
        self.jobs = app.jobs
        self.place: Place = app.PLACE
        self.chance = random.Random(seed)
        self.note = app.LEDGER.write
        self.spawn: Callable[[Coroutine[Any, Any, None]], Any] = asyncio.ensure_future
        self._numbers = itertools.count(self.chance.getrandbits(31) << 20)

    def number(self) -> int:
        """A number that no other producer has."""
        return next(self._numbers)

    async def put(self, workload: str, drafts: Sequence[Draft], call: Callable[[], Awaitable[Any]], *more: Any) -> None:
        """Make a call until the store accepts it."""
        ids = [draft.id for draft in drafts]
        self.note("asked", workload, ids, *more)
        while True:
            try:
                await call()
            except EngineError:
                await asyncio.sleep(0.05)
            else:
                break
        self.note("acked", workload, ids, *more)

    async def within(self, work: Callable[[Any], None]) -> bool:
        """Do this in a transaction of the user's, and say whether it was committed; none of it exists otherwise.

        After an error it is not known: the answer to a COMMIT may have been lost.
        """
        return await asyncio.to_thread(self._within, work, self.chance.random() < SHOULD_COMMIT, self.chance.random())

    def _within(self, work: Callable[[Any], None], commits: bool, late: float) -> bool:
        with suppress(*REFUSALS), closing(self.place.connect()) as raw:
            if not self.place.schema:
                raw.execute("begin immediate")
            work(raw)
            time.sleep(0.005 * late)
            raw.commit() if commits else raw.rollback()
            return commits
        return False


# --- jobs -----------------------------------------------------------------------------------------------------------


async def put_jobs(by: Producer) -> None:
    app, chance = by.app, by.chance
    drafts: list[Draft] = []
    for _ in range(chance.choice((1, 1, 1, 5, 20))):
        task = app.threaded if chance.random() < 0.2 else app.plain
        task = task.using(priority=chance.choice((0, 0, 5)), delay=chance.choice((0, 0, 0, 0.5)))
        drafts.append(task.draft(by.number()) if chance.random() < 0.9 else app.plain.draft(by.number(), flaky=True))
    await by.put("jobs", drafts, lambda: by.jobs.enqueue_many(drafts))


async def put_unique(by: Producer) -> None:
    """The handle that comes back may be that of a job which another producer put."""
    key = f"u{by.chance.randrange(5)}"
    draft = by.app.once_at_a_time.using(unique=Unique(key, hold="retrying")).draft(key)
    by.note("asked", "unique", [draft.id], key)
    while True:
        with suppress(EngineError):
            [receipt] = await by.jobs.enqueue_many([draft])
            by.note("acked", "unique", [receipt.id], key, draft.id)
            return
        await asyncio.sleep(0.05)


async def put_hungry(by: Producer) -> None:
    drafts = [by.app.hungry.draft(by.number())]
    await by.put("memory", drafts, lambda: by.jobs.enqueue_many(drafts))


async def put_in_transaction(by: Producer) -> None:
    draft, n = by.app.stored_with_a_row.draft(by.number()), by.number()

    def store(raw: Any) -> None:
        by.place.run(raw, "insert into lab_orders values (?, ?)", n, draft.id)
        by.app.jobs.enqueue_many_sync([draft], tx=raw)

    by.note("asked", "tx", [draft.id])
    if await by.within(store):
        by.note("acked", "tx", [draft.id])


# --- limits, rates, chains, groups, chunks --------------------------------------------------------------------------


async def put_limited(by: Producer) -> None:
    drafts = [
        task.draft(f"{task.name}/{by.chance.randrange(3)}", by.number())
        for task in by.chance.choices(by.app.limited, k=by.chance.choice((1, 6)))
    ]
    await by.put("limits", drafts, lambda: by.jobs.enqueue_many(drafts))


async def put_rated(by: Producer) -> None:
    drafts = [by.app.rated.draft(by.number()) for _ in range(by.chance.choice((1, 2 * BURST)))]
    await by.put("rates", drafts, lambda: by.jobs.enqueue_many(drafts))


async def put_chain(by: Producer) -> None:
    links = [by.app.link.draft(1), by.app.link.draft(2, PREVIOUS), by.app.link.draft(3, PREVIOUS)]
    whole = chain(*links)
    await by.put("chains", links, lambda: by.jobs.enqueue(whole))


async def put_group(by: Producer) -> None:
    members = [
        by.app.member.draft(by.number(), flaky=by.chance.random() < 0.1)
        for _ in range(by.chance.choice((1, 3, 10, 30)))
    ]
    then = by.app.closing.draft(by.number())
    if by.chance.random() < 0.3:  # the same call goes on after an error, and is stored in steps
        group = str(uuid.uuid4())
        await by.put("groups by id", [*members, then], lambda: by.jobs.group(members, then=then, id=group))
        return
    ids = [draft.id for draft in (*members, then)]
    by.note("asked", "groups", ids)
    with suppress(EngineError):  # one write: what became of it is seen in the store
        await by.jobs.group(members, then=then)
        by.note("acked", "groups", ids)


async def put_pieces(by: Producer) -> None:
    drafts = [by.app.piece.draft(by.number()) for _ in range(by.chance.choice((1, 10, 30)))]
    await by.put("chunks", drafts, lambda: by.jobs.enqueue_many(drafts))


# --- durable jobs ---------------------------------------------------------------------------------------------------


async def put_flows(by: Producer) -> None:
    """Some get their signal, at any moment: before they run, while they do, while they wait, or too late."""
    for _ in range(by.chance.choice((1, 3))):
        n = by.number()
        draft = by.app.flow.draft(n)
        await by.put("durable", [draft], lambda draft=draft: by.jobs.enqueue(draft), n)  # type: ignore[misc]
        if by.chance.random() < 0.7:
            by.spawn(_signal(by, draft.id, n, by.chance.choice((0.0, 0.2, 0.5, 2.0))))


async def _signal(by: Producer, job: str, n: int, pause: float) -> None:
    await asyncio.sleep(pause)
    with suppress(EngineError):
        if await by.jobs.handle(job).signal("go", 7 * n):
            by.note("signaled", job, 7 * n)


# --- blocks, outbox, inbox ------------------------------------------------------------------------------------------


async def put_charges(by: Producer) -> None:
    task = by.app.charged if by.chance.random() < 0.7 else by.app.charged_in_thread
    drafts = [task.draft(n := by.number())]
    await by.put("blocks", drafts, lambda: by.jobs.enqueue_many(drafts), n)


async def put_messages(by: Producer) -> None:
    """Raise counters and append their values, so that the values of a key tell the order of its commits."""
    keys = sorted(f"k{by.chance.randrange(KEYS)}" for _ in range(by.chance.choice((1, 3))))

    def store(raw: Any) -> None:
        for key in keys:
            [(value,)] = by.place.run(
                raw, "update lab_counters set value = value + 1 where key = ? returning value", key
            )
            by.place.run(raw, "insert into lab_sent values (?, ?)", key, value)
            by.app.orders.append_sync(key, value, tx=raw)

    await by.within(store)


async def put_receipts(by: Producer) -> None:
    """A message comes three times, also at the same moment."""
    n = by.number()
    drafts = [by.app.after_receipt.draft(n) for _ in range(3)]

    def store(raw: Any, draft: Draft) -> None:
        if by.app.inbox.receive_sync(f"m{n}", tx=raw):
            by.place.run(raw, "insert into lab_received values (?)", n)
            by.jobs.enqueue_many_sync([draft], tx=raw)

    by.note("asked", "inbox", [draft.id for draft in drafts], n)
    answers = await asyncio.gather(*(by.within(lambda raw, one=one: store(raw, one)) for one in drafts))  # type: ignore[misc]
    if any(answers):
        by.note("received", n)


# --- the table ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Workload:
    """`share`: how often it is chosen."""

    name: str
    what: str
    share: int
    put: Callable[[Any], Awaitable[None]] | None
    transactional: bool = False


WORKLOADS: Final = (
    Workload("jobs", "jobs on the loop and in threads, by priority, delayed, some fail once", 10, put_jobs),
    Workload("unique", "jobs with one of five keys: at most one of a key runs", 2, put_unique),
    Workload("memory", "a handler's own process asks for more memory than it may have", 1, put_hungry),
    Workload("limits", "at most 1, 2 or 3 jobs of a key at once", 4, put_limited),
    Workload("rates", f"a queue that starts at most {RATE} jobs a second and {BURST} at once", 2, put_rated),
    Workload("chains", "three jobs, each with the result of the one before", 4, put_chain),
    Workload("groups", "up to 30 jobs, and one that follows when all are done", 3, put_group),
    Workload("chunks", "jobs that one call handles by the dozen", 2, put_pieces),
    Workload("schedules", "an occurrence every second, and none may be left out", 0, None),
    Workload("durable", "16 steps, a caught failure, a sleep, a signal, a called job", 8, put_flows),
    Workload("tx", "a job and a row in one transaction, committed or rolled back", 4, put_in_transaction, True),
    Workload("blocks", "a row, the job's success and a job that follows in one commit", 4, put_charges, True),
    Workload("outbox", "messages in a transaction, to a handler and to a projection", 6, put_messages, True),
    Workload("inbox", "messages that come three times, also at the same moment", 3, put_receipts, True),
)
