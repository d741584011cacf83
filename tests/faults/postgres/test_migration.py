"""A schema that is made or upgraded while something goes wrong."""

from __future__ import annotations

import asyncio
import contextlib

import pytest

from stoker.model.errors import EngineError, SchemaMismatch
from tests.faults.postgres.trials import Make
from tests.faults.trial import opened
from tests.harness.proxy import Proxy
from tests.services import PostgresServer

pytestmark = [pytest.mark.engine("postgres"), pytest.mark.timeout(900)]

CATALOGUE = """
select 'column', table_name, column_name, data_type, is_nullable, column_default
  from information_schema.columns where table_schema = '{0}'
union all select 'index', tablename, indexname, replace(indexdef, '{0}', ''), '', ''
  from pg_indexes where schemaname = '{0}'
union all select 'function', proname, replace(prosrc, '{0}', ''), '', '', ''
  from pg_proc join pg_namespace n on n.oid = pronamespace where nspname = '{0}'
union all select 'sequence', sequencename, '', '', '', '' from pg_sequences where schemaname = '{0}'
order by 1, 2, 3, 4
"""


def shape(server: PostgresServer, schema: str) -> list[str]:
    return [str(row).replace(schema, "") for row in server.sql(CATALOGUE.format(schema))]


@pytest.mark.spec("PGFAULT-40")
async def test_killed_after_any_statement_a_migration_is_done_by_the_next(
    server: PostgresServer, schema: str, proxy: Proxy, make: Make, campaign: bool
) -> None:
    async with opened(make()):
        whole = shape(server, schema)
    assert len(whole) > 50
    statement = 0
    while True:
        server.sql(f"drop schema {schema} cascade")
        loss = proxy.lose_reply(skip=statement)
        with contextlib.suppress(EngineError):
            async with opened(make(proxy.url)):
                pass
        proxy.heal()
        async with opened(make()) as engine:
            assert (await engine.describe()).engine == "postgres"
        assert shape(server, schema) == whole, f"after statement {statement}"
        if not loss.happened:
            break
        statement += 1 if campaign else 7
    assert statement > 20


@pytest.mark.spec("PGFAULT-41")
async def test_hosts_that_start_at_once_make_one_schema(server: PostgresServer, schema: str, make: Make) -> None:
    engines = [make(timeout=30.0) for _ in range(8)]
    await asyncio.gather(*(engine.open() for engine in engines))
    await asyncio.gather(*(engine.close() for engine in engines))
    assert server.sql(f"select count(*) from {schema}.stoker_migration where number = 1") == [(1,)]


@pytest.mark.spec("PGFAULT-42")
async def test_a_schema_that_older_code_does_not_survive_is_refused_and_left_alone(
    server: PostgresServer, schema: str, make: Make
) -> None:
    async with opened(make()):
        server.sql(f"insert into {schema}.stoker_migration values (9999, 'from_the_future', 'x', 'stop all workers')")
    before = shape(server, schema)
    for migrate in ("manual", "auto"):
        with pytest.raises(SchemaMismatch, match="upgrade this process"):
            await make(migrate=migrate).open()
    assert shape(server, schema) == before
