"""`stoker doctor`: the check-up of a store."""

from __future__ import annotations

import asyncio
import json
import logging
from contextlib import suppress

import click
import msgspec

from stoker.admin import Operators
from stoker.cli.store import find_admin, on_target, reported
from stoker.cli.text import one_line, safe, say
from stoker.model.errors import StokerError
from stoker.model.health.check import Check, Grade, summary, worst

EXIT_CODES = """\b
Exit codes:
  0  nothing is wrong; there may be warnings
  1  something is wrong, or the store cannot be used
  2  wrong usage
"""

COLOURS = {Grade.OK: "green", Grade.NOTE: "cyan", Grade.WARNING: "yellow", Grade.WRONG: "red"}


@click.command(epilog=EXIT_CODES)
@click.option("--json", "as_json", is_flag=True, help="One object per check and line.")
@click.option("--quiet", is_flag=True, help="Only warnings and what is wrong.")
@on_target
def doctor(as_json: bool, quiet: bool, path: str | None, url: str | None) -> None:
    """Examine a store: settings, clocks, workers, queues, counters, keys and streams. Changes nothing."""
    logging.getLogger("stoker.engines").setLevel(logging.ERROR)  # what a store warns of is among the checks
    with reported():
        checks = asyncio.run(_examined(find_admin(path, url)))
    shown = [one for one in checks if not quiet or one.verdict in {Grade.WARNING, Grade.WRONG}]
    for check in shown:
        if as_json:
            say(json.dumps(msgspec.to_builtins(check)))
        else:
            _show(check)
    if not as_json:
        say(summary(checks))
    if worst(checks) is Grade.WRONG:
        raise SystemExit(1)


async def _examined(admin: Operators) -> list[Check]:
    """The checks; a store that cannot be opened is one of them."""
    try:
        return await admin.health.check()
    finally:
        with suppress(StokerError):
            await admin.app.close()


def _show(check: Check) -> None:
    say(f"{check.verdict:<7}", nl=False, fg=COLOURS[check.verdict])
    say(f"  {safe(check.name)}: {one_line(check.read, 500)}")
    if check.meaning:
        say(f"         {safe(check.meaning)}")
    if check.remedy:
        say(f"         mend: {safe(check.remedy)}")
