"""The schema: created where it is absent, upgraded only on request.

Every migration is one transaction under an advisory lock of that transaction, so two hosts may migrate at once, behind
a pooler too: the second one waits and then finds the work done. All migrations of a new schema are one transaction: a
schema that is made is whole, or absent.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, TypeVar

from stoker.engines.postgres.connection import BEGIN, Connection
from stoker.engines.postgres.statements import MIGRATIONS, placed
from stoker.engines.sql import migrations
from stoker.engines.sql.exchanges import Row
from stoker.engines.sql.migrations import Migration
from stoker.model.errors import EngineRefused, SchemaMismatch

if TYPE_CHECKING:
    from stoker.engines.postgres.store import Options

T = TypeVar("T")

LONGEST = 600.0
"""Seconds a migration may take."""

LOCK = 0x5370_6172_6B
"""The advisory lock of migrations; together with the schema's name it keeps two migrations of one schema apart."""

WHEREABOUTS = "SELECT current_database()::text, (extract(epoch FROM pg_postmaster_start_time()) * 1000000)::bigint"
"""Which database of which server; the statement `whereabouts` asks the same of users' handles."""


def ledger(schema: str) -> str:
    return f'"{schema}".{migrations.LEDGER}'


async def prepare(connection: Connection, options: Options) -> tuple[str, int]:
    """Check that the schema is present and current; create an absent one.

    Answers which database of which server this is, to compare users' handles with.
    """
    exists = await _checked(connection, options)
    [(database, started)] = await connection.run(WHEREABOUTS, (), options.patience)
    identity = (database, started)
    if not exists or options.migrate == "auto":
        await migrate(connection, options)
        return identity
    todo = await pending(connection, options)
    if todo:
        raise SchemaMismatch(
            f"the schema {options.schema} of {options.where} is older than this Stoker: it lacks "
            f"{', '.join(map(str, todo))}. Nothing was changed. Run: stoker migrate (add --plan to see it first), or "
            'open with migrate="auto"'
        )
    return identity


async def _checked(connection: Connection, options: Options) -> bool:
    """Refuse a database that cannot store every text; return whether the schema exists."""
    [(encoding, exists)] = await connection.run(
        "SELECT current_setting('server_encoding'), to_regclass($1) IS NOT NULL",
        (ledger(options.schema),),
        options.patience,
    )
    if encoding != "UTF8":
        raise EngineRefused(
            f"{options.where} stores text as {encoding}; Stoker needs UTF8. Create the database with ENCODING 'UTF8'"
        )
    return bool(exists)


async def whereabouts(options: Options) -> tuple[str, int]:
    """Which database of which server a new connection leads to now; on any loop, without an open engine."""
    connection = await Connection.open(
        options.url, options.where, purpose="schema", settings={}, pooler="transaction", patience=options.patience
    )
    try:
        [(database, started)] = await connection.run(WHEREABOUTS, (), options.patience)
        return database, started
    finally:
        await connection.close()


async def pending(connection: Connection, options: Options) -> list[Migration]:
    """What the schema still needs. Refuses a schema that is newer than this code."""
    table = ledger(options.schema)
    [(exists,)] = await connection.run("SELECT to_regclass($1) IS NOT NULL", (table,), options.patience)
    rows: list[Row] = []
    if exists:
        rows = await connection.run(migrations.read_ledger(table), (), options.patience)
    return migrations.pending(rows, MIGRATIONS)


async def plan(connection: Connection, options: Options) -> list[str]:
    """The statements a migration would run."""
    return [
        placed(statement, options.schema)
        for migration in await pending(connection, options)
        for statement in migration.statements
    ]


async def script(connection: Connection, options: Options) -> str:
    """Return what `migrate` would do as a script for psql."""
    schema = options.schema
    return migrations.sql_text(
        await pending(connection, options),
        ledger(schema),
        first=[f'CREATE SCHEMA IF NOT EXISTS "{schema}"'],
        placed=lambda statement: placed(statement, schema),
    )


async def migrate(connection: Connection, options: Options, *, stopped: bool = False) -> list[str]:
    """Upgrade the schema, one transaction per step; return the statements that were run."""
    done: list[str] = []
    while True:
        await connection.command(BEGIN, options.patience)
        try:
            await connection.command("SET LOCAL lock_timeout = 0", options.patience)
            statements = await _advance(connection, options, stopped=stopped)
            await connection.command("COMMIT", LONGEST)
        except BaseException:
            if connection.usable:
                await connection.rollback()
            raise
        if not statements:
            return done
        done += statements


async def _advance(connection: Connection, options: Options, *, stopped: bool) -> list[str]:
    """Apply the next migration, or all to a new schema, inside the present transaction. Empty: there is none left."""
    schema, table = options.schema, ledger(options.schema)
    await connection.run("SELECT pg_advisory_xact_lock($1, hashtext($2))", (LOCK & 0x7FFFFFFF, schema), LONGEST)
    [(exists,)] = await connection.run("SELECT to_regnamespace($1) IS NOT NULL", (f'"{schema}"',), options.patience)
    if not exists:
        await connection.command(f'CREATE SCHEMA "{schema}"', options.patience)
    await connection.command(migrations.create_ledger(table), options.patience)
    rows = await connection.run(migrations.read_ledger(table), (), options.patience)
    todo = migrations.pending(rows, MIGRATIONS)
    todo = todo[:1] if rows else todo
    migrations.check_stopped(todo, new=not rows, stopped=stopped)
    done: list[str] = []
    for migration in todo:
        statements = [placed(statement, schema) for statement in migration.statements]
        for statement in (*statements, migrations.record(migration, table)):
            await connection.command(statement, LONGEST)
        done += statements
    return done


# --- for people -------------------------------------------------------------------------------------------------


async def connected(options: Options, call: Callable[[Connection, Options], Awaitable[T]]) -> T:
    """Run `plan`, `script` or `migrate` over a connection of its own. Needs no open engine."""
    connection = await Connection.open(
        options.url, options.where, purpose="schema", settings={}, pooler=options.pooler, patience=options.patience
    )
    try:
        await _checked(connection, options)
        return await call(connection, options)
    finally:
        await connection.close()
