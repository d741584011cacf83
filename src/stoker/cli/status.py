"""`stoker status` and `stoker kinds`: what an operator looks at first."""

from __future__ import annotations

import json

import click

from stoker.admin import Operators
from stoker.admin.as_json import plain
from stoker.admin.errors import ErrorPage
from stoker.admin.history import RECENT
from stoker.admin.kinds import SORTS, KindView
from stoker.admin.overview import Overview
from stoker.cli.findings import MARKS
from stoker.cli.jobs import met
from stoker.cli.queues import COLUMNS, GOES_FIRST
from stoker.cli.store import ask, on_target
from stoker.cli.tables import STYLES, Columns, Figure, as_lines_option, columns, mark, show, table, wide_option
from stoker.cli.text import say
from stoker.engines.base import Description
from stoker.model import humanize
from stoker.model.control import QUIET
from stoker.model.names import listed
from stoker.model.same_error import error_line

GROUPS = 10
"""How many groups of failures are shown."""

KINDS: Columns[KindView] = {
    **columns("kind", "pending", "running", "retrying"),
    "dead": lambda one: mark(one.dead, "bad", when=one.dead),
    "failed": lambda one: "" if one.failure_ratio is None else Figure(humanize.share(one.failure_ratio, 1)),
    **columns("p50=run_p50", "p95=run_p95", "p99=run_p99", "wait p50=wait_p50", "wait p95=wait_p95"),
    **columns("wait p99=wait_p99", "runs 1h=runs"),
    "bars": lambda one: humanize.spark(one.bars),
    **columns("completed", "deaths=failed"),
    "worker": lambda one: "yes" if one.known else mark("no", "warn", when=one.pending),
    "last error": lambda one: error_line(one.last_error),
}
KINDS_GO_FIRST = (
    "bars",
    "wait p50",
    "wait p99",
    "wait p95",
    "p99",
    "completed",
    "deaths",
    "runs 1h",
    "worker",
    "p50",
    "pending",
    "running",
)
"""What a narrow terminal does without."""


@click.command()
@click.option("--json", "as_json", is_flag=True, help="As one object.")
@click.option("--check", is_flag=True, help="Exit with 1 when something is wrong.")
@click.option("--quiet", "-q", is_flag=True, help="Print only what needs attention, and notes.")
@wide_option
@on_target
def status(as_json: bool, check: bool, quiet: bool, path: str | None, url: str | None) -> None:
    """Show problems, queues, workers and errors on one screen."""

    async def look(admin: Operators) -> tuple[Overview, ErrorPage, Description]:
        return await admin.overview(RECENT * 60), await admin.jobs.errors(past=False), await admin.describe()

    found, errors, store = ask(path, url, look)
    if as_json:
        parts = {"errors": errors.groups, "warnings": store.warnings}
        say(json.dumps({**plain(found), **plain(parts)}))
    elif quiet:
        _attention(found)
    else:
        say(found.verdict, fg="red" if found.wrong else "yellow" if found.needs_attention else None)
        _attention(found)
        say()
        table(found.worst_first, COLUMNS, goes_first=GOES_FIRST, empty="No queue has been used yet.")
        running = sum(one.state == "running" for one in found.workers)
        resting = sum(one.state == QUIET for one in found.workers)
        others = f"{len(found.workers) - running - resting} silent or stopped{f', {resting} quiet' if resting else ''}"
        say(f"\n{humanize.count(running, 'worker')} at work, {others}")
        _wrong(errors)
        for note in store.warnings:
            say(f"note: {note}")
    if check and found.wrong:
        raise SystemExit(1)


def _attention(found: Overview) -> None:
    for finding in found.findings:
        say(f"{MARKS[finding.tone]}: {finding}", fg=STYLES.get(finding.tone))


def _wrong(errors: ErrorPage) -> None:
    """The largest errors of jobs that are dead or retrying."""
    if errors.groups:
        say()
        rows = [(met(one, errors), one.error, listed(one.kinds), one.last) for one in errors.groups[:GROUPS]]
        show(("jobs", "error", "kinds", "last"), rows)


@click.command()
@click.option("--sort", type=click.Choice(list(SORTS)), default="trouble", show_default=True, help="What is first.")
@as_lines_option
@on_target
def kinds(sort: str, as_json: bool, path: str | None, url: str | None) -> None:
    """List kinds: their jobs now, run times and failures of the last hour, and totals."""
    table(
        ask(path, url, lambda admin: admin.kinds.list(sort=sort)),
        KINDS,
        as_json,
        goes_first=KINDS_GO_FIRST,
        empty="No kind has jobs yet.",
    )
