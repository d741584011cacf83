"""The contract on Postgres: one schema for all cases, emptied before each."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from stoker.engines.postgres import PostgresEngine
from stoker.testing.conformance import *  # noqa: F403
from stoker.testing.conformance import MakeEngine
from tests.postgres_house import House, house


@pytest.fixture(scope="module")
def premises(postgres_url: str) -> Iterator[House]:
    with house(postgres_url) as found:
        yield found


@pytest.fixture
def make_engine(premises: House) -> MakeEngine:
    schema = premises.empty()
    return lambda clock: PostgresEngine(f"{premises.url}?sslmode=disable", clock=clock, schema=schema)
