"""Groups under fire: worker processes that are killed, members that end by many doors, and the closing examined."""

from __future__ import annotations

import asyncio
import logging
import random
import time
from functools import partial
from typing import Any

from stoker.app import Stoker
from stoker.context import current
from stoker.engines.base import Engine
from stoker.engines.url import engine_from_url
from stoker.model import ids
from stoker.model.groups import Group, Standing, standing
from stoker.model.job import FINISHED, Draft, Job, Status
from stoker.model.outcome import Reject
from stoker.model.query import Cancel, Delete, Query, Selection
from stoker.worker import Worker
from tests.faults.members import Members

CALLBACKS = ("then", "on_failure", "on_finish")


def app_on(url: str) -> Stoker:
    """The app that producers and workers share."""
    jobs = Stoker(engine_from_url(url), attempts=1_000, timeline=False)

    @jobs.task(crashes=None)
    async def member(how: str = "done") -> None:
        await asyncio.sleep(random.uniform(0, 0.004))
        if how == "reject":
            raise Reject("no")
        if how == "flaky" and current().attempt < 2:
            raise ValueError("once")
        if how == "split":
            current().join(member.draft(), member.draft())

    for name in CALLBACKS:

        async def called() -> None: ...

        jobs.task(name=name, crashes=None)(called)
    return jobs


async def work(url: str) -> None:
    """A worker for ever; it is killed."""
    jobs = app_on(url)
    async with Worker(jobs, {"default": 20}, lease=1):
        await asyncio.Event().wait()


async def _make(jobs: Stoker, largest: int, chance: random.Random) -> str:
    task = jobs.tasks["member"]
    hows = ["done"] * 20 + ["flaky", "split"] + (["reject"] if chance.random() < 0.3 else [])
    drafts: list[Draft] = [task.draft(chance.choice(hows)) for _ in range(chance.randint(1, largest))]
    callbacks: dict[str, Any] = {name: jobs.draft(name) for name in CALLBACKS}
    group = await jobs.group(drafts, **callbacks)
    if chance.random() < 0.2:
        change = Delete() if chance.random() < 0.5 else Cancel("enough", force=chance.random() < 0.5)
        engine = await jobs.engine()
        await engine.operator.alter(Selection((chance.choice(drafts).job_id,)), change)
    return group.id


async def produce(url: str, groups: int, largest: int, seed: int) -> list[str]:
    """Make groups of many sizes, with members that fail, join others and are canceled meanwhile."""
    chance = random.Random(seed)
    async with app_on(url) as jobs:
        return [await _make(jobs, largest, chance) for _ in range(groups)]


async def finish(url: str, made: list[str]) -> list[str]:
    """Let one worker that lives end everything; returns what is wrong with the groups."""
    jobs = app_on(url)
    wanted = [ids.parse(group) for group in made]
    async with Worker(jobs, {"default": 100}, lease=1):
        engine = await jobs.engine()
        open_ = wanted
        while open_:  # of those that are closed there may be thousands, and reading them costs the worker's time
            found = zip(open_, await _groups(engine, open_[:100]), strict=False)
            closed = {group for group, one in found if one is None or one.closed_at is not None}
            open_ = [group for group in open_ if group not in closed]
            await asyncio.sleep(0 if closed else 0.2)
        while (await engine.groups.sweep()).closed:  # their callbacks died with a process
            pass
        while (await engine.operator.census()).by_status()[Status.PENDING]:
            await asyncio.sleep(0.05)
        wrong = await examined(engine, wanted)
    await jobs.close()
    return wrong


async def _groups(engine: Engine, wanted: list[bytes]) -> list[Group | None]:
    return [one for start in range(0, len(wanted), 100) for one in await engine.groups.get(wanted[start : start + 100])]


async def examined(engine: Engine, wanted: list[bytes]) -> list[str]:
    """Every group closed once, not before its members, and stored what its numbers say."""
    wrong: list[str] = []
    members: dict[bytes, list[Job]] = {group: [] for group in wanted}
    called: dict[bytes, Job] = {}
    cursor = None
    while True:
        page = await engine.operator.find(Query(order="oldest", limit=1_000, cursor=cursor))
        for job in page.jobs:
            if job.options.group is not None:
                members[job.options.group].append(job)
            else:
                called[job.id] = job
        cursor = page.cursor
        if cursor is None:
            break
    for id_, group in zip(wanted, await _groups(engine, wanted), strict=True):
        wrong += [f"{ids.text(id_)} is gone"] if group is None else _judge(group, members[id_], called)
    stored = len(called)
    if stored != 2 * len(wanted):
        wrong.append(f"{stored} callbacks of {len(wanted)} groups")
    return wrong


def _judge(group: Group, members: list[Job], called: dict[bytes, Job]) -> list[str]:
    name, wrong = ids.text(group.id), []
    assert group.then is not None
    assert group.on_failure is not None
    assert group.on_finish is not None
    chosen, other = (group.then, group.on_failure) if group.succeeded else (group.on_failure, group.then)
    if group.closed_at is None or group.waiting:
        return [f"{name} is open: {group}"]
    if any(job.status not in FINISHED for job in members):
        wrong.append(f"{name} is closed and has members that run")
    if chosen.job_id not in called or group.on_finish.job_id not in called or other.job_id in called:
        wrong.append(f"{name} stored the wrong callbacks: {group}")
    late = [job for job in members if (job.finished_at or 0) > group.closed_at]
    if late:
        wrong.append(f"{name} closed before {len(late)} of its members were finished")
    counts = {one: sum(standing(job.status) is one for job in members) for one in Standing}
    numbers = {Standing.DONE: group.done, Standing.DEAD: group.dead, Standing.CANCELED: group.canceled}
    # A member that an operator deleted has no record: canceled if it was waiting, else what it was before.
    gone = {one: n - counts[one] for one, n in numbers.items()}
    if min(gone.values()) < 0 or sum(gone.values()) != group.total - len(members) or sum(gone.values()) > 1:
        wrong.append(f"{name} counts {numbers}, its members are {counts}")
    return wrong


def storm(url: str, groups: int, largest: int, kills: int, workers: int, seed: int) -> dict[str, Any]:
    """Kill worker processes at random while groups are made and run; runs in a process that may fork."""
    logging.disable(logging.CRITICAL)
    chance = random.Random(seed)
    asyncio.run(produce(url, 0, 1, seed))
    members = Members([partial(work, url)] * workers, chance)
    portion = max(1, groups // (2 * kills))
    made: list[str] = []
    for killed in range(kills):
        if len(made) < groups:
            made += asyncio.run(produce(url, min(portion, groups - len(made)), largest, seed + killed))
        time.sleep(chance.uniform(0.0, 0.3))
        members.fault()
    made += asyncio.run(produce(url, groups - len(made), largest, seed - 1))
    members.end()
    began = time.monotonic()
    wrong = asyncio.run(finish(url, made))
    return {"wrong": wrong, "groups": len(made), "kills": kills, "finishing": round(time.monotonic() - began, 1)}
