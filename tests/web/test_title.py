"""The overview's title follows a worker, a real process, and a pause, both from outside the dashboard."""

from __future__ import annotations

import asyncio
import re
import signal
import sys
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from pathlib import Path

import httpx
import pytest

from stoker.app import Stoker
from stoker.model import findings
from stoker.model.time import SECOND
from stoker.web import Limits, Open, dashboard
from stoker.web import hub as hub_module
from tests.harness.apps import PATIENCE
from tests.web.serving import Served

APP = """
from stoker import Stoker

jobs = Stoker({url!r}, durability="process")

@jobs.task
def send() -> None: ...
"""
WORK = [sys.executable, "-m", "stoker", "work", "live_app:jobs", "--log-level", "error"]


async def titles(url: str) -> AsyncGenerator[str, None]:
    """The titles that a live page gets, one after the other."""
    async with httpx.AsyncClient(timeout=PATIENCE) as http, http.stream("GET", f"{url}/live?page=overview") as stream:
        async for line in stream.aiter_lines():
            for title in re.findall("<h1[^>]*>([^<]+)</h1>", line):
                yield title


async def becomes(shown: AsyncIterator[str], title: str) -> None:
    """Wait for a title."""
    while await anext(shown) != title:
        pass


@pytest.mark.spec("WEB-29")
async def test_the_title_follows_a_worker_that_stops_and_a_pause(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hub_module, "EVERY", 0.2)
    monkeypatch.setattr(findings, "ALONE_AFTER", SECOND)
    url = f"sqlite:///{tmp_path / 'jobs.db'}"
    (tmp_path / "live_app.py").write_text(APP.format(url=url))
    app = Stoker(url, durability="process")
    app.declare("send")
    await app.enqueue(app.draft("send"))
    served = Served(dashboard(Stoker(url, durability="process"), auth=Open(), limits=Limits(seconds=30)))
    try:
        async with asyncio.timeout(PATIENCE), aclosing(titles(served.url)) as shown:
            await becomes(shown, "One thing needs you")  # no worker serves the queue
            worker = await asyncio.create_subprocess_exec(*WORK, cwd=tmp_path)
            try:
                await becomes(shown, "Everything keeps up")
            finally:
                worker.send_signal(signal.SIGTERM)
                await worker.wait()
            await app.enqueue(app.draft("send"))
            await becomes(shown, "One thing needs you")
            await app.queue("default").pause()
            await becomes(shown, "Everything keeps up")
    finally:
        served.close()
        await app.close()
