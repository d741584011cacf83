"""`stoker findings …`: what needs a person; acknowledge one for a while, and withdraw that."""

from __future__ import annotations

import click

from stoker.admin import Operators
from stoker.cli.command import NearestGroup
from stoker.cli.completion import complete_findings
from stoker.cli.store import EXIT_CODES, act_on, as_json_option, ask, on_store, on_target, read_time, said
from stoker.cli.tables import Columns, as_lines_option, mark, table
from stoker.model.findings import Finding
from stoker.model.time import SECOND

MARKS = {"bad": "wrong", "warn": "attention", "plain": "note"}

COLUMNS: Columns[Finding] = {
    "finding": "id",
    "tone": lambda one: MARKS[one.tone] if one.tone == "plain" else mark(MARKS[one.tone], one.tone),
    "note": str,
}


@click.group(cls=NearestGroup)
def findings() -> None:
    """List what needs a person; acknowledge a finding for a while."""


@findings.command("list")
@as_lines_option
@on_target
def list_(as_json: bool, path: str | None, url: str | None) -> None:
    """List findings in the order in which to look; one that was acknowledged is a note."""
    found = ask(path, url, lambda admin: admin.health.findings())
    table(found, COLUMNS, as_json, empty="Everything keeps up.")


@findings.command(epilog=EXIT_CODES)
@click.argument("finding", shell_complete=complete_findings)
@click.option("--reason", required=True, help="Why it may stay as it is, for everyone who looks.")
@click.option("--for", "lasts", default="24h", show_default=True, metavar="TIME", help="How long, at most 24h.")
@as_json_option
@on_store
def acknowledge(finding: str, reason: str, lasts: str, as_json: bool, path: str | None, url: str | None) -> None:
    """Say that a FINDING is known, as `stoker findings` names it: `stoker status --check` passes over it then.

    It counts again after the time, when its tone becomes worse, or when its number doubles.
    """
    for_ = read_time("--for", lasts) / SECOND

    async def call(admin: Operators) -> Finding:
        return await admin.health.acknowledge(finding, reason=reason, for_=for_)

    said(f"finding {finding} is acknowledged for {lasts}", as_json, finding=ask(path, url, call).id, seconds=for_)


act_on(
    findings,
    "withdraw",
    "End an acknowledgement: the finding counts again.",
    "finding {finding} counts again",
    lambda admin, finding: admin.health.withdraw(finding),
    acknowledged=False,
)
