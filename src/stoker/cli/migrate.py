"""`stoker migrate`: bring a store's schema up to date, or show what that would run."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import click

from stoker.cli.text import safe
from stoker.model.errors import StokerError

if TYPE_CHECKING:
    from stoker.engines.base import Engine


@click.command()
@click.argument("store", metavar="[URL|MODULE:APP]", required=False, envvar="STOKER_URL")
@click.option("--url", metavar="URL", help="The store, as other commands name it.")
@click.option("--plan", is_flag=True, help="Only show how many statements are missing; change nothing.")
@click.option("--sql", is_flag=True, help="Only print a script that does it, for review or another tool.")
def migrate(store: str | None, *, url: str | None, plan: bool, sql: bool) -> None:
    """Bring the schema of a store up to date: of a URL, of an app (app:jobs), or of $STOKER_URL.

    Safe to repeat, and to run on two hosts at once.
    """
    named = url or store
    if named is None:
        raise click.UsageError("which store? Give a URL or MODULE:APP, or set $STOKER_URL")
    try:
        text = asyncio.run(_migrated(_engine(named), plan=plan, sql=sql))
    except StokerError as error:
        raise click.ClickException(safe(str(error))) from None
    click.echo(text, nl=not sql)


def _engine(store: str) -> Engine:
    if "://" in store:
        from stoker.engines.url import engine_from_url

        return engine_from_url(store)
    from stoker.cli.work import load_app

    return load_app(store).root()


async def _migrated(engine: Engine, *, plan: bool, sql: bool) -> str:
    if sql:
        return await engine.migration_script() or f"-- {_no_schema(engine)}\n"
    statements = await engine.migrate(plan_only=plan)
    if statements:
        return f"{len(statements)} statements {'are missing' if plan else 'were run'}."
    if await engine.migration_script() is None:
        return _no_schema(engine)
    return "The schema is up to date."


def _no_schema(engine: Engine) -> str:
    return f"A {engine.name} store has no schema. Nothing to do."
