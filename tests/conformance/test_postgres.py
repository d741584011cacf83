"""The contract on Postgres: one schema for all cases, emptied before each."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from stoker.engines.postgres import PostgresEngine
from stoker.testing.conformance import *  # noqa: F403
from stoker.testing.conformance import MakeEngine, Miscount
from tests.harness.shared_schema import SharedSchema, shared_schema


@pytest.fixture(scope="module")
def tables(postgres_url: str) -> Iterator[SharedSchema]:
    with shared_schema(postgres_url) as found:
        yield found


@pytest.fixture
def make_engine(tables: SharedSchema) -> MakeEngine:
    schema = tables.empty()
    return lambda clock: PostgresEngine(f"{tables.url}?sslmode=disable", clock=clock, schema=schema)


@pytest.fixture
def miscount(tables: SharedSchema) -> Miscount:
    return tables.miscount
