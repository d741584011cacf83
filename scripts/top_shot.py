"""Draws the picture of `stoker top` in the documentation, from a store in memory with made-up jobs."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

from stoker.admin import Admin
from stoker.app import Stoker
from stoker.cli.terminal import Top
from stoker.model.control import Presence, Tuning
from stoker.model.events import Point
from stoker.model.job import Demand, Settlement, Status
from stoker.model.time import MINUTE

PICTURE = Path(__file__).resolve().parent.parent / "docs" / "reference" / "top.svg"
SIZE = (132, 30)
QUEUES = {"billing": 40, "images": 320, "mail": 18, "reports": 6}


async def fill(app: Stoker) -> None:
    """Jobs in four queues: waiting, running, done and dead ones."""
    engine = await app.engine()
    for queue, n in QUEUES.items():
        kind = f"{queue}.run"
        app.declare(kind)
        await app.enqueue_many(app.draft(kind, queue=queue) for _ in range(n))
    await engine.jobs.renew("web-1.1", [], first=True)
    claims = await engine.jobs.claim(Demand("web-1.1", (("mail", 14), ("billing", 8), ("images", 12)), 34))
    ends = [
        Settlement(one.id, one.worker, one.token, Status.DEAD, error="SMTPServerDisconnected: timed out after 30 s")
        for one in claims
        if one.queue == "mail"
    ]
    await engine.jobs.settle(ends)
    served = {"billing": 8, "images": 16, "mail": 20}
    for n in (1, 2):
        await engine.control.beat(
            Presence(worker=f"web-{n}.1", host=f"web-{n}", pid=4_200 + n, queues=served, running=20)
        )
    minute = (await engine.now()) // MINUTE * MINUTE - MINUTE
    for queue, n in QUEUES.items():
        flows = [Point(queue, "enqueued", minute, n * 40), Point(queue, "completed", minute, n * 38)]
        times = Point(queue, "total", minute, n * 38, 1e6 * n, 2e5, 9e5, 2e6, 4e6)
        await engine.timeline.record([], [*flows, times], now=minute)
    await engine.control.tune("reports", Tuning(paused=True, reason="bad file", by="maria"))


async def picture() -> str:
    """The view as SVG, without fonts from elsewhere."""
    app = Stoker("memory://")
    async with app:
        await fill(app)
        top = Top(Admin(app))
        async with top.run_test(size=SIZE) as pilot:
            await pilot.pause(1)
            drawn = top.export_screenshot(title="stoker top")
    return re.sub(r"@font-face \{.*?\}\s*", "", drawn, flags=re.DOTALL)


if __name__ == "__main__":
    PICTURE.write_text(asyncio.run(picture()), encoding="utf-8")
    print(f"wrote {PICTURE.name}")
