"""`stoker migrate`: bring a store's schema up to date, or show what that would run."""

from __future__ import annotations

import asyncio

import click

from stoker.engines.url import engine_from_url
from stoker.model.errors import StokerError


@click.command()
@click.argument("url", envvar="STOKER_URL")
@click.option("--plan", is_flag=True, help="Only say how many statements are missing; change nothing.")
@click.option("--sql", is_flag=True, help="Only print the missing statements, for review or another tool.")
def migrate(url: str, *, plan: bool, sql: bool) -> None:
    """Bring the schema of the store at URL (or $STOKER_URL) up to date.

    Safe to repeat, and to run on two hosts at once.
    """
    try:
        statements = asyncio.run(engine_from_url(url).migrate(plan_only=plan or sql))
    except StokerError as error:
        raise click.ClickException(str(error)) from error
    if sql:
        for statement in statements:
            click.echo(f"{statement.rstrip(';')};")
    elif not statements:
        click.echo("The schema is up to date.")
    else:
        click.echo(f"{len(statements)} statements {'are missing' if plan else 'were run'}.")
