"""The app that the files here run: put yours in its place."""

from __future__ import annotations

from stoker import Stoker

jobs = Stoker()  # $STOKER_URL


@jobs.task(attempts=5, timeout=30)
async def greet(name: str) -> str:
    return f"hello {name}"
