"""An app whose worker processes are measured."""

from __future__ import annotations

from stoker.app import Stoker
from stoker.context import current

jobs = Stoker()


@jobs.task(queue="mail")
async def quick(ok: bool) -> None:
    if not ok:
        raise ValueError


@jobs.task(queue="mail", isolation="process")
def apart() -> None:
    """Runs in a process of its own."""


@jobs.task(queue="slow")
async def hang() -> None:
    await current().stopping
