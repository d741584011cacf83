"""`stoker jobs …`: list jobs, read one, ask why it does not run, requeue, cancel, delete."""

from __future__ import annotations

import json
import sys
from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias

import click
import msgspec

from stoker.admin import Bulk, Filter, Operators
from stoker.cli.store import EXIT_CODES, ask, on_store, show
from stoker.cli.text import one_line, safe
from stoker.model.errors import StokerError
from stoker.records import Job

COLUMNS = ("id", "status", "queue", "kind", "attempts", "created", "error")
LARGEST_PAGE = 200

FILTER_HELP = """\b
A filter is a list of terms that must all hold:
  is:dead          also ready scheduled running retrying done canceled
                   discarded retried pending active finished
  queue:mail       kind:send*   (* matches anything; -queue:mail leaves it out)
  tenant:acme      key:"img:7"
  since:2h         until:2026-11-16T14:00   (time of enqueueing; UTC)
  order:oldest     id:0193b0f0-…
  "any text"       looked for in payloads and errors
"""


@click.group()
def jobs() -> None:
    """List jobs, read one, ask why it does not run, requeue, cancel, delete."""


@jobs.command("list", epilog=FILTER_HELP)
@click.argument("terms", metavar="[FILTER]...", nargs=-1)
@click.option("--limit", type=click.IntRange(1), default=25, show_default=True, help="At most so many jobs.")
@click.option("--json", "as_json", is_flag=True, help="One object per line, with every field.")
@on_store
def list_(terms: tuple[str, ...], limit: int, as_json: bool, path: str | None, url: str | None) -> None:
    """List jobs, newest first."""
    found = ask(path, url, lambda admin: _listed(admin, " ".join(terms), limit))
    if as_json:
        for job in found:
            click.echo(json.dumps(as_object(job)))
    else:
        show(COLUMNS, [_row(job) for job in found])


async def _listed(admin: Operators, terms: str, limit: int) -> list[Job]:
    found: list[Job] = []
    cursor: str | None = None
    while True:
        page = await admin.jobs.find(terms, limit=min(limit - len(found), LARGEST_PAGE), cursor=cursor)
        found += page.jobs
        cursor = page.cursor
        if cursor is None or len(found) >= limit:
            return found


def _row(job: Job) -> tuple[Any, ...]:
    allowed = f"{job.attempts} of {job.base + job.budget}"
    error = (job.last_error or "").strip().partition("\n")[0]
    return job.id, job.status.value, job.queue, job.kind, allowed, job.created_at, error[:80]


@jobs.command("show", epilog=EXIT_CODES)
@click.argument("job")
@click.option("--json", "as_json", is_flag=True, help="As one object.")
@on_store
def show_(job: str, as_json: bool, path: str | None, url: str | None) -> None:
    """Show everything about one job."""
    found = (ask(path, url, lambda admin: admin.jobs.get(job))).job
    if as_json:
        click.echo(json.dumps(as_object(found)))
        return
    for name, value in as_object(found).items():
        if value in (None, {}, [], (), ""):
            continue
        text = value if isinstance(value, str) else json.dumps(value)
        if name == "last_error" or "\n" in text:
            click.echo(f"{name}:")
            click.echo("\n".join(f"  {safe(line)}" for line in text.splitlines()))
        else:
            click.echo(f"{name}: {one_line(text)}")


@jobs.command(epilog=EXIT_CODES)
@click.argument("job")
@click.option("--json", "as_json", is_flag=True, help="As one object.")
@on_store
def explain(job: str, as_json: bool, path: str | None, url: str | None) -> None:
    """Say why a job does not run, and what to do about it."""
    found = ask(path, url, lambda admin: admin.jobs.explain(job))
    if as_json:
        click.echo(json.dumps({"job": job, "gates": msgspec.to_builtins([found.first, *found.gates])}))
        return
    click.echo(safe(f"{found.reason}: {found.detail}"))
    for gate in found.gates:
        click.echo(safe(f"also {gate.reason}: {gate.detail}"))
    if found.remedy:
        click.echo(safe(found.remedy))


# --- actions --------------------------------------------------------------------------------------------------------

Action: TypeAlias = Callable[..., Awaitable[Bulk]]
"""Takes the admin, the target, a progress callback and the command's own options."""


def _action(name: str, text: str, do: Action, *, asks: bool = False, params: tuple[Any, ...] = ()) -> None:
    """Add a command that changes the jobs which a filter or ids name."""

    def command(
        terms: tuple[str, ...], yes: bool, dry_run: bool, as_json: bool, path: str | None, url: str | None, **given: Any
    ) -> None:
        filter_ = _filter(terms)

        async def call(admin: Operators) -> Bulk | None:
            if filter_.id is not None:
                return None if dry_run else await do(admin, filter_.id, None, **given)
            count, all_of_them = await admin.jobs.preview(filter_)
            shown = f"{count:,}" if all_of_them else f"more than {count:,}"
            if dry_run or not count:
                click.echo(f"{shown} jobs match {filter_}. Nothing was changed.")
                return None
            if asks and not yes:
                if not sys.stdin.isatty():
                    raise click.UsageError(f"{shown} jobs match {filter_}; say --yes to {name} them")
                click.confirm(f"{name} {shown} jobs that match {filter_}?", abort=True)
            return await _with_bar(lambda progress: do(admin, filter_, progress, **given), count)

        bulk = ask(path, url, call)
        if bulk is not None:
            _report(name, bulk, as_json=as_json)

    decorated: Any = on_store(command)
    for option in (
        *params,
        click.option("--json", "as_json", is_flag=True, help="The tally as one object."),
        click.option("--dry-run", is_flag=True, help="Only count the jobs."),
        click.option("--yes", is_flag=True, help="Do not ask."),
        click.argument("terms", metavar="ID|FILTER...", nargs=-1, required=True),
    ):
        decorated = option(decorated)
    jobs.command(name, help=f"{text}\n\n`stoker jobs list --help` explains filters.", epilog=EXIT_CODES)(decorated)


def _filter(terms: tuple[str, ...]) -> Filter:
    try:
        return Filter.parse(" ".join(terms))
    except StokerError as error:
        raise click.UsageError(safe(str(error))) from None


async def _with_bar(call: Callable[[Callable[[Bulk], bool | None]], Awaitable[Bulk]], count: int) -> Bulk:
    """Show progress on a terminal."""
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True, disable=not sys.stderr.isatty()) as bar:
        task = bar.add_task("jobs", total=count)

        def progress(bulk: Bulk) -> None:
            bar.update(task, completed=bulk.seen)

        return await call(progress)


def _report(action: str, bulk: Bulk, *, as_json: bool) -> None:
    if as_json:
        tally = {
            "action": action,
            "changed": bulk.changed,
            "cancel_requested": bulk.cancel_requested,
            "missing": bulk.missing,
            "blocked": bulk.blocked,
            "refused": {status.value: n for status, n in bulk.refused.items()},
            "created": bulk.created,
        }
        click.echo(json.dumps(tally))
        return
    parts = [f"{action}: {bulk.changed:,} jobs"]
    if bulk.cancel_requested:
        parts.append(f"{bulk.cancel_requested:,} running ones are asked to stop")
    if bulk.blocked:
        parts.append(f"{bulk.blocked:,} left: another active job holds their unique key")
    parts += [f"{n:,} left: they are {status.value}" for status, n in bulk.refused.items()]
    if bulk.missing:
        parts.append(f"{bulk.missing:,} are gone")
    click.echo("; ".join(parts))


_action(
    "requeue",
    "Put jobs back, due now, with a fresh budget of attempts.",
    lambda admin, target, progress: admin.jobs.requeue(target, progress),
)
_action(
    "retry",
    "Enqueue copies of dead jobs under new ids.",
    lambda admin, target, progress: admin.jobs.retry(target, progress),
)
_action(
    "cancel",
    "Cancel waiting jobs; ask running ones to stop.",
    lambda admin, target, progress, **given: admin.jobs.cancel(target, progress=progress, **given),
    asks=True,
    params=(
        click.option("--reason", help="Becomes the last error of the jobs."),
        click.option("--force", is_flag=True, help="Take running jobs away from handlers that ignore the request."),
    ),
)
_action(
    "discard",
    "Take dead jobs off the dead list without running them again.",
    lambda admin, target, progress: admin.jobs.discard(target, progress),
    asks=True,
)
_action(
    "delete",
    "Remove jobs and their events.",
    lambda admin, target, progress: admin.jobs.delete(target, progress),
    asks=True,
)
_action(
    "run-now",
    "Make scheduled jobs due now.",
    lambda admin, target, progress: admin.jobs.run_now(target, progress),
)
_action(
    "move",
    "Put waiting jobs into another queue.",
    lambda admin, target, progress, to: admin.jobs.move(target, to, progress),
    params=(click.option("--to", required=True, metavar="QUEUE", help="The other queue."),),
)
_action(
    "prioritize",
    "Give waiting jobs another priority; lower runs first.",
    lambda admin, target, progress, priority: admin.jobs.prioritize(target, priority, progress),
    params=(click.option("--priority", required=True, type=int, metavar="N", help="-1000 to 1000."),),
)


def as_object(job: Job) -> dict[str, Any]:
    """A record as JSON can carry it; payload and result as the values they encode."""
    found: dict[str, Any] = msgspec.to_builtins(job)
    for name in ("payload", "result"):
        raw: bytes | None = getattr(job, name)
        found[name] = None if raw is None else _value(raw)
    return found


def _value(raw: bytes) -> Any:
    try:
        return json.loads(raw)
    except ValueError:
        return raw.decode(errors="replace")
