from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from scripts import shop
from stoker.admin import Admin
from tests.harness.apps import PATIENCE


def test_what_a_killed_shop_left_is_removed_and_nothing_else(tmp_path: Path) -> None:
    for name in ("shop.db", "shop.db-wal", "shop.db-shm", "shop.db.backup"):
        (tmp_path / name).touch()
    (tmp_path / "shop.db-stoker" / "live").mkdir(parents=True)
    shop.remove(tmp_path / "shop.db")
    assert [one.name for one in tmp_path.iterdir()] == ["shop.db.backup"]
    shop.remove(tmp_path / "shop.db")


async def becomes(seen: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(PATIENCE):
        while not await seen():
            await asyncio.sleep(0.05)


async def test_the_served_shop_really_works(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Resume, requeue, take back and undo change what one sees; nothing is worked before."""
    path = tmp_path / "shop.db"
    await shop.fill(path)
    caplog.set_level(logging.CRITICAL, "stoker")  # some of its jobs fail on purpose
    async with shop.working(path, pace=0.02) as jobs:
        admin = Admin(jobs, by="maria")

        async def count(filter_: str) -> int:
            return (await admin.jobs.preview(filter_)).count

        waiting = await count("is:ready queue:imports")
        dead = await count("is:dead queue:webhooks")
        assert waiting >= 31, "it is paused"
        assert dead >= 40
        await admin.queues.resume("imports")

        async def empty() -> bool:
            return await count("is:ready queue:imports") < 5

        await becomes(empty)
        ended = await admin.operations.finish((await admin.operations.start("requeue", "is:dead queue:webhooks")).id)
        assert ended.changed >= 40

        async def fewer() -> bool:
            return await count("is:ready queue:webhooks") < 40 and await count("is:dead queue:webhooks") < 20

        await becomes(fewer)
        await admin.queues.pause("imports")
        assert (await admin.queues.get("imports")).paused
        [silent] = [one for one in await admin.workers.list() if one.worker == shop.STUCK]
        assert silent.running == 6
        assert await admin.workers.take_back(shop.STUCK) == 6
        others = [one for one in await admin.workers.list() if one.worker != shop.STUCK]
        assert {one.state for one in others} == {"running", "stopped"}
        [canceled, *_] = (await admin.jobs.find("is:scheduled", limit=1)).jobs
        await admin.jobs.cancel(canceled.id)
        [entry, *_] = await admin.audit.list(action="jobs.cancel")
        assert (await admin.jobs.restore(entry.id)).changed == 1
