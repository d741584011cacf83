"""`stoker jobs steps`, `waits` and `signal`: what durable jobs have stored and wait for."""

from __future__ import annotations

import json

import click

from stoker.admin import Operators
from stoker.admin.jobs import WaitPage, WaitView
from stoker.cli.job_arguments import LARGEST_PAGE, FilterCommand, job_argument, terms_argument, whole, whole_id
from stoker.cli.store import EXIT_CODES, as_json_option, ask, hinted, on_store, said
from stoker.cli.tables import Columns, Id, as_lines_option, columns, labeled, mark, table
from stoker.cli.text import safe, say
from stoker.model.humanize import count as count_of
from stoker.model.job import ACTIVE, Status
from stoker.model.same_error import error_line
from stoker.views import Step

STEPS: Columns[Step] = {
    **columns("name"),
    "state": lambda step: mark(step.state, "bad", when=step.state == "failed"),
    "waits for": lambda step: step.job if step.waits_for == "job" else step.waits_for,
    **columns("stored=at", "until"),
    "value": lambda step: (
        error_line(step.error) or step.ask or ("" if step.state != "done" else json.dumps(step.value))
    ),
}


@click.command(epilog=EXIT_CODES)
@job_argument
@as_lines_option
@on_store
def steps(job: str, as_json: bool, path: str | None, url: str | None) -> None:
    """List what a job has stored by name and what it waits for."""

    async def read(admin: Operators) -> list[Step]:
        return await admin.jobs.steps(await whole_id(admin, job))

    table(ask(path, url, read), STEPS, as_json, goes_first=("stored", "until"), empty="The job has no steps.")


WAITS: Columns[WaitView] = {
    "job": lambda wait: Id(wait.job),
    **columns("kind", "queue", "name", "since", "until", "asks=ask"),
}


@click.command(cls=FilterCommand)
@terms_argument("[FILTER]...")
@click.option("--limit", type=click.IntRange(1), default=25, show_default=True, help="Maximum number of jobs.")
@as_lines_option
@on_store
def waits(terms: tuple[str, ...], limit: int, as_json: bool, path: str | None, url: str | None) -> None:
    """List the signals that jobs wait for, those of the newest job first. `stoker jobs signal` answers one."""

    async def read(admin: Operators) -> WaitPage:
        return await admin.jobs.waits(await whole(admin, terms), limit=min(limit, LARGEST_PAGE))

    page = ask(path, url, read)
    hinted(page.hint)
    shown = labeled(WAITS, page.waits)
    table(page.waits, shown, as_json, goes_first=("queue", "since", "until"), empty="No job waits for a signal.")
    if page.cursor is not None and not as_json:
        say(f"There may be more: {count_of(page.scanned, 'job')} looked at.", err=True)


@click.command(epilog=EXIT_CODES)
@job_argument
@click.argument("name")
@click.argument("value", required=False)
@click.option("--replace", is_flag=True, help="Another answer for a wait that has one.")
@as_json_option
@on_store
def signal(
    job: str, name: str, value: str | None, replace: bool, as_json: bool, path: str | None, url: str | None
) -> None:
    """Answer the wait NAME of a job; the VALUE is JSON, null without one."""
    try:
        given = None if value is None else json.loads(value)
    except ValueError:
        raise click.UsageError(f"VALUE is no JSON: {safe(value or '')}. Text is written as '\"text\"'") from None

    async def send(admin: Operators) -> tuple[str, list[Step], str | None]:
        found = await whole_id(admin, job)
        if await admin.jobs.signal(found, name, given, replace=replace):
            return found, await admin.jobs.steps(found), None
        return found, [], _no_taker(name, (await admin.jobs.get(found)).job.status, replace=replace)

    found, rows, refused = ask(path, url, send)
    taken = refused is None
    if any(row.name == name and row.state == "early" for row in rows):
        waits = [row.name for row in rows if row.waits_for == "signal"]
        now = f" Now it waits for {', '.join(waits)}." if waits else ""
        text = f"job {found} does not wait for {safe(name)}: the signal is kept until it does.{now}"
        said(text, as_json, job=found, name=name, taken=taken)
        return
    if not taken and not as_json:
        say(f"job {found} {refused} Nothing was changed.", err=True)
        raise SystemExit(1)
    said(f"job {found} has its answer to {safe(name)}", as_json, job=found, name=name, taken=taken)
    if not taken:
        raise SystemExit(1)


def _no_taker(name: str, status: Status, *, replace: bool) -> str:
    """Why a signal was not taken."""
    if status not in ACTIVE:
        return f"is {status.value} and takes no answer. `stoker jobs fork` makes a copy that asks again."
    if replace:
        return f"has read its answer to {safe(name)}."
    return f"has its answer to {safe(name)}. --replace gives another, as long as the job has not read it."
