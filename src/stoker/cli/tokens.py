"""`stoker tokens …`: who may sign in to the dashboard and the REST API."""

from __future__ import annotations

from typing import Any

import click

from stoker.admin.tokens import TokenView
from stoker.cli.command import NearestGroup
from stoker.cli.store import (
    EXIT_CODES,
    act_on,
    as_json_option,
    ask,
    create_option,
    on_store,
    on_target,
    read_time,
    said,
)
from stoker.cli.tables import Columns, as_lines_option, columns, table
from stoker.cli.text import say
from stoker.model.access import ROLES
from stoker.model.time import SECOND

COLUMNS: Columns[TokenView] = {
    **columns("name", "role"),
    "queues": lambda one: ", ".join(one.queues) or "all",
    **columns("created", "expires", "state"),
}


@click.group(cls=NearestGroup)
def tokens() -> None:
    """Make, list and revoke tokens for the dashboard and the REST API."""


@tokens.command(epilog=EXIT_CODES)
@click.argument("name")
@click.option("--role", type=click.Choice(ROLES), default="read", show_default=True, help="What it may do.")
@click.option("--queue", "queues", multiple=True, metavar="QUEUE", help="Limit changes to this queue; repeatable.")
@click.option("--expires", metavar="TIME", help="As in 90d; without it the token lasts until it is revoked.")
@create_option
@as_json_option
@on_store
def create(
    name: str,
    role: Any,
    queues: tuple[str, ...],
    expires: str | None,
    create: bool,
    as_json: bool,
    path: str | None,
    url: str | None,
) -> None:
    """Make a token and print it. It is shown once: the store keeps only its hash."""
    lasts = None if expires is None else read_time("--expires", expires) / SECOND
    secret = ask(path, url, lambda admin: admin.tokens.create(name, role, queues=queues, expires=lasts, create=create))
    said(secret, as_json, name=name, role=role, token=secret)
    say("Keep it now: it cannot be shown again.", err=True)


@tokens.command("list")
@as_lines_option
@on_target
def list_(as_json: bool, path: str | None, url: str | None) -> None:
    """List tokens, without their secrets: those are not stored."""
    table(ask(path, url, lambda admin: admin.tokens.list()), COLUMNS, as_json, empty="No token was made yet.")


_REVOKES = "End a token. Dashboards notice within seconds."
act_on(tokens, "revoke", _REVOKES, "token {name} is revoked", on=["name"], revoked=True)
