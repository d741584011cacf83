"""`stoker cron …`: list the schedules of a store; pause, resume, run, reset or drop one."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import click
import msgspec

from stoker.app import Stoker
from stoker.cli.store import EXIT_CODES, ago, on_store, run, show
from stoker.cli.text import safe
from stoker.model.errors import NotFound
from stoker.records import Schedule

COLUMNS = ("schedule", "fires", "kind", "queue", "next", "last", "status")


@click.group()
def cron() -> None:
    """List the schedules of a store; pause, resume, run, reset or drop one."""


@cron.command("list")
@click.option("--json", "as_json", is_flag=True, help="One object per line, with every field.")
@on_store
def list_(as_json: bool, path: str | None, url: str | None) -> None:
    """List schedules: when they fire next, and what became of the last time.

    Named by its app, a list marks what no code of that app declares.
    """

    async def look(app: Stoker) -> tuple[list[Schedule], bool]:
        return await app.schedules(), bool(app.tasks)

    found, has_code = run(path, url, look)
    if as_json:
        for one in found:
            click.echo(json.dumps({**msgspec.to_builtins(one), "payload": json.loads(one.payload)}))
    else:
        show(COLUMNS, [_row(one, has_code=has_code) for one in found])


def _row(one: Schedule, *, has_code: bool) -> tuple[Any, ...]:
    fires = one.cron if one.tz == "UTC" else f"{one.cron} {one.tz}"
    upcoming: datetime | str = "paused" if not one.enabled else one.next_fire or "soon"
    return one.name, fires, one.kind, one.queue, upcoming, one.last_fire, _status(one, has_code=has_code)


def _status(one: Schedule, *, has_code: bool) -> str:
    parts = [] if one.last_status is None else [one.last_status]
    if one.last_missed:
        parts.append(f"missed {one.last_missed}")
    if one.last_error is not None:
        parts.append(one.last_error)
    if one.edited:
        parts.append("edited")
    if has_code and one.source == "code" and not one.declared:
        parts.append("not declared by this app")
    return "; ".join(parts)


@cron.command("next", epilog=EXIT_CODES)
@click.argument("schedule")
@click.option("-n", "count", type=click.IntRange(1, 1_000), default=5, show_default=True, help="How many.")
@click.option("--json", "as_json", is_flag=True, help="One object per line.")
@on_store
def next_(schedule: str, count: int, as_json: bool, path: str | None, url: str | None) -> None:
    """Show the next occurrences, in the schedule's zone and in UTC."""
    found = run(path, url, lambda app: app.schedule_handle(schedule).next(count))
    rows = [(at.isoformat(), at.astimezone(UTC).isoformat(), ago(at)) for at in found]
    show(("local", "utc", "when"), rows, as_json=as_json)


@cron.command(epilog=EXIT_CODES)
@click.argument("schedule")
@on_store
def pause(schedule: str, path: str | None, url: str | None) -> None:
    """Stop firing a schedule, on every worker, until it is resumed."""
    run(path, url, lambda app: app.schedule_handle(schedule).pause())
    click.echo(f"schedule {schedule} is paused")


@cron.command(epilog=EXIT_CODES)
@click.argument("schedule")
@on_store
def resume(schedule: str, path: str | None, url: str | None) -> None:
    """Fire a schedule again from its next occurrence on; nothing is caught up."""
    run(path, url, lambda app: app.schedule_handle(schedule).resume())
    click.echo(f"schedule {schedule} is resumed")


@cron.command("run", epilog=EXIT_CODES)
@click.argument("schedule")
@on_store
def run_(schedule: str, path: str | None, url: str | None) -> None:
    """Enqueue one job of a schedule now, beside its timetable; prints the job's id."""
    job = run(path, url, lambda app: app.schedule_handle(schedule).run_now())
    click.echo(job.id)


@cron.command(epilog=EXIT_CODES)
@click.argument("schedule")
@on_store
def reset(schedule: str, path: str | None, url: str | None) -> None:
    """Give an edited schedule back to the code that declares it; needs the app."""
    found = run(path, url, lambda app: app.schedule_handle(schedule).reset())
    click.echo(f"schedule {schedule} is as the code declares it: {safe(found.cron)} {safe(found.tz)}")


@cron.command(epilog=EXIT_CODES)
@click.argument("schedule")
@on_store
def drop(schedule: str, path: str | None, url: str | None) -> None:
    """Remove a schedule; its jobs stay. One that code declares comes back when a worker starts."""

    async def remove(app: Stoker) -> None:
        if not await app.unschedule(schedule):
            raise NotFound(f"schedule {schedule!r} is not in the store")

    run(path, url, remove)
    click.echo(f"schedule {schedule} is dropped")
