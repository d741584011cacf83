"""The contract on Postgres behind a pooler that gives every transaction to whichever session is free."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from stoker.engines.postgres import PostgresEngine
from stoker.testing.conformance import *  # noqa: F403
from stoker.testing.conformance import MakeEngine, Miscount
from tests.harness.shared_schema import SharedSchema, shared_schema

pytestmark = [pytest.mark.engine("postgres"), pytest.mark.variant]


@pytest.fixture(scope="module")
def tables(postgres_url: str) -> Iterator[SharedSchema]:
    with shared_schema(postgres_url) as found:
        yield found


@pytest.fixture
def make_engine(tables: SharedSchema, postgres_url: str, postgres_pooler_url: str) -> MakeEngine:
    schema = tables.empty()
    return lambda clock: PostgresEngine(postgres_pooler_url, clock=clock, schema=schema, direct=postgres_url)


@pytest.fixture
def miscount(tables: SharedSchema) -> Miscount:
    return tables.miscount
