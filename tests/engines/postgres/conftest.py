"""What the tests of this engine share."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any

import pytest

from stoker.engines.postgres import PostgresEngine
from tests.engines.postgres.sleepers import Make


@pytest.fixture
async def make(postgres_url: str, postgres_schema: str) -> AsyncIterator[Make]:
    """Opens engines on one schema, and closes them."""
    async with AsyncExitStack() as stack:

        async def opened(url: str = postgres_url, **options: Any) -> PostgresEngine:
            engine = PostgresEngine(url, **{"schema": postgres_schema, **options})
            await engine.open()
            stack.push_async_callback(engine.close)
            return engine

        yield opened
