"""`stoker migrate`: bring a store's schema up to date, or show what that would run."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

import click

from stoker.app import Stoker
from stoker.cli.store import EXIT_CODES, as_json_option, named, on_target, reported
from stoker.cli.text import say
from stoker.model.humanize import count

if TYPE_CHECKING:
    from stoker.engines.base import Engine


@click.command(epilog=EXIT_CODES)
@click.option("--plan", is_flag=True, help="Only show how many statements are missing; change nothing.")
@click.option("--sql", is_flag=True, help="Only print a script that does it, for review or another tool.")
@click.option("--stopped", is_flag=True, help="Older processes have stopped: apply what they do not survive, too.")
@as_json_option
@on_target
def migrate(*, plan: bool, sql: bool, stopped: bool, as_json: bool, path: str | None, url: str | None) -> None:
    """Bring the schema of a store up to date: of a URL, of an app (app:jobs), or of the one that is configured.

    Safe to repeat, and to run on two hosts at once.
    """
    with reported():
        found = named(path, url)
        engine = (found if isinstance(found, Stoker) else found.app).root()
        if sql:
            say(asyncio.run(engine.migration_script()) or f"-- {_no_schema(engine)}\n", nl=False)
            return
        text, facts = asyncio.run(_migrated(engine, plan=plan, stopped=stopped))
    say(json.dumps(facts) if as_json else text)


async def _migrated(engine: Engine, *, plan: bool, stopped: bool) -> tuple[str, dict[str, Any]]:
    statements = len(await engine.migrate(plan_only=plan, stopped=stopped))
    facts = {"engine": engine.name, "missing" if plan else "run": statements}
    if statements:
        one = statements == 1
        done = f"{'is' if one else 'are'} missing" if plan else f"{'was' if one else 'were'} run"
        return f"{count(statements, 'statement')} {done}.", facts
    if await engine.migration_script() is None:
        return _no_schema(engine), facts
    return "The schema is up to date.", facts


def _no_schema(engine: Engine) -> str:
    return f"A {engine.name} store has no schema. Nothing to do."
