"""A process that fans out is killed between two steps, and the same call goes on in another one."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path

import pytest

from stoker.app import Stoker
from stoker.model.ids import parse
from stoker.model.query import Query
from tests.harness.apps import PATIENCE

GROUP = "0193b0f0-0000-7000-8000-000000000038"
MEMBERS, STORED = 4_500, 2_000
SCRIPT = f"""
import asyncio, sys
from stoker.app import Stoker

jobs = Stoker(sys.argv[1])
jobs.declare("send")
insert, steps = jobs.insert_drafts, []


async def two_steps(drafts, tx=None, group=None):
    steps.append(len(drafts))
    if len(steps) > 2:
        await asyncio.Event().wait()  # until it is killed
    return await insert(drafts, tx, group)


jobs.insert_drafts = two_steps


async def main() -> None:
    async with jobs:
        await jobs.group([jobs.draft("send", [n]) for n in range({MEMBERS})], id="{GROUP}")


asyncio.run(main())
"""


async def placed(app: Stoker) -> int:
    [group] = await (await app.engine()).groups.get([parse(GROUP)])
    return 0 if group is None else group.placed


async def payloads(app: Stoker) -> list[bytes]:
    engine, found = await app.engine(), list[bytes]()
    page = await engine.operator.find(Query(group=parse(GROUP), limit=1_000))
    found += [job.payload for job in page.jobs]
    while page.cursor is not None:
        page = await engine.operator.find(Query(group=parse(GROUP), limit=1_000, cursor=page.cursor))
        found += [job.payload for job in page.jobs]
    return found


@pytest.mark.engine("sqlite")
@pytest.mark.spec("GROUP-38")
async def test_a_fan_out_that_is_killed_goes_on_in_another_process(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'jobs.db'}"
    app = Stoker(url)
    app.declare("send")
    async with app:
        await app.open()
        child = subprocess.Popen([sys.executable, "-c", SCRIPT, url])
        try:
            async with asyncio.timeout(PATIENCE):
                while await placed(app) < STORED:
                    await asyncio.sleep(0.01)
        finally:
            child.kill()
            child.wait()
        assert await placed(app) == len(await payloads(app)) == STORED
        group = await app.group([app.draft("send", [n]) for n in range(MEMBERS)], id=GROUP)
        assert (await group.progress()).total == MEMBERS
        found = await payloads(app)
        assert sorted(found) == sorted(b"[%d]" % n for n in range(MEMBERS))
