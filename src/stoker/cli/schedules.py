"""`stoker schedules …`: list the schedules of a store; pause, resume, run, edit, reset or drop one."""

from __future__ import annotations

import json
from datetime import UTC
from operator import itemgetter
from typing import Any

import click

from stoker.admin import Operators
from stoker.admin.as_json import plain
from stoker.cli.command import NearestGroup
from stoker.cli.completion import complete_schedules
from stoker.cli.store import EXIT_CODES, act_on, as_json_option, ask, on_store, on_target, read_time, said
from stoker.cli.tables import Columns, Figure, as_lines_option, mark, table, when
from stoker.cli.text import one_line, safe, say
from stoker.codec.signature import display
from stoker.model.humanize import span
from stoker.model.time import SECOND
from stoker.views import Schedule

COLUMNS: Columns[Schedule] = {
    "schedule": "name",
    "fires": lambda one: one.cron if one.tz == "UTC" else f"{one.cron} {one.tz}",
    "kind": "kind",
    "queue": "queue",
    "next": lambda one: mark("paused", "warn") if not one.enabled else one.next_fire or Figure("soon"),
    "last": "last_fire",
}


GOES_FIRST = ("queue", "kind", "last")


@click.group(cls=NearestGroup)
def schedules() -> None:
    """List the schedules of a store; pause, resume, run, edit, reset or drop one."""


@schedules.command("list")
@as_lines_option
@on_target
def list_(as_json: bool, path: str | None, url: str | None) -> None:
    """List schedules: when they fire next, and what happened last time.

    Named by its app, a list marks what no code of that app declares.
    """

    async def look(admin: Operators) -> tuple[list[Schedule], bool]:
        return await admin.schedules.list(), bool(admin.app.tasks)

    found, has_code = ask(path, url, look)
    table(
        found,
        {**COLUMNS, "status": lambda one: _status(one, has_code=has_code)},
        as_json,
        _object,
        goes_first=GOES_FIRST,
        empty="No schedule is in the store.",
    )


def _object(one: Schedule) -> dict[str, Any]:
    found: dict[str, Any] = plain(one)
    return {**found, "payload": display(one.payload)}


def _status(one: Schedule, *, has_code: bool) -> object:
    parts = [] if one.last_status is None else [one.last_status]
    if one.last_missed:
        parts.append(f"missed {one.last_missed}")
    if one.last_error is not None:
        parts.append(one.last_error)
    if one.edited:
        parts.append("edited")
    if has_code and one.source == "code" and not one.declared:
        parts.append("not declared by this app")
    return mark("; ".join(parts), "bad", when=one.last_error is not None)


@schedules.command("show", epilog=EXIT_CODES)
@click.argument("schedule", shell_complete=complete_schedules)
@as_json_option
@on_store
def show_(schedule: str, as_json: bool, path: str | None, url: str | None) -> None:
    """Show one schedule: its timing and policies, its job, its last and its next fire."""
    one = ask(path, url, lambda admin: admin.schedules.get(schedule))
    if as_json:
        say(json.dumps(_object(one)))
        return
    lengths = {"grace": span(one.grace), "jitter": span(one.jitter) if one.jitter else None}
    for name, value in {**_object(one), **lengths}.items():
        if value not in (None, "", {}, False, 0):
            say(f"{name}: {one_line(value if isinstance(value, str) else json.dumps(value))}")


@schedules.command("next", epilog=EXIT_CODES)
@click.argument("schedule", shell_complete=complete_schedules)
@click.option("-n", "count", type=click.IntRange(1, 1_000), default=5, show_default=True, help="How many.")
@as_lines_option
@on_store
def next_(schedule: str, count: int, as_json: bool, path: str | None, url: str | None) -> None:
    """Show the next occurrences, in the schedule's zone and in UTC."""
    found = ask(path, url, lambda admin: admin.schedules.next(schedule, count))
    rows = [{"local": at.isoformat(), "utc": at.astimezone(UTC).isoformat(), "when": when(at)} for at in found]
    table(rows, {name: itemgetter(name) for name in ("local", "utc", "when")}, as_json, empty="It never fires again.")


_PAUSES = "Stop firing a schedule, on every worker, until it is resumed."
_RESUMES = "Fire a schedule again from its next occurrence on; nothing is caught up."
_DROPS = "Remove a schedule; its jobs stay. One that code declares comes back when a worker starts."
act_on(schedules, "pause", _PAUSES, "schedule {schedule} is paused", paused=True)
act_on(schedules, "resume", _RESUMES, "schedule {schedule} is resumed", paused=False)
act_on(schedules, "drop", _DROPS, "schedule {schedule} is dropped", dropped=True)


@schedules.command("run", epilog=EXIT_CODES)
@click.argument("schedule", shell_complete=complete_schedules)
@as_json_option
@on_store
def run_(schedule: str, as_json: bool, path: str | None, url: str | None) -> None:
    """Enqueue one job of a schedule now, beside its timetable; prints the job's id."""
    job = ask(path, url, lambda admin: admin.schedules.run_now(schedule))
    said(job, as_json, schedule=schedule, job=job)


@schedules.command(epilog=EXIT_CODES)
@click.argument("schedule", shell_complete=complete_schedules)
@click.option("--cron", metavar="EXPRESSION", help='When it fires, as in "0 9 * * mon-fri".')
@click.option("--every", metavar="TIME", help="Or how often, as in 90s.")
@click.option("--tz", metavar="ZONE", help="The zone of --cron, as in Europe/Paris.")
@click.option("--misfire", type=click.Choice(["once", "skip", "all"]), help="What to do about missed occurrences.")
@click.option("--overlap", type=click.Choice(["allow", "skip"]), help="While its last job is active.")
@click.option("--grace", metavar="TIME", help="How late --misfire skip still fires.")
@click.option("--jitter", metavar="TIME", help="Delay each job by up to this time.")
@as_json_option
@on_store
def edit(schedule: str, as_json: bool, path: str | None, url: str | None, **given: str | None) -> None:
    """Change a schedule; deployments keep the edit until `reset`. What is not named stays as it is."""
    options: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    if not options:
        raise click.UsageError("name at least one change")
    for name in ("every", "grace", "jitter"):
        if name in options:
            options[name] = read_time(f"--{name}", options[name]) / SECOND
    one = ask(path, url, lambda admin: admin.schedules.edit(schedule, **options))
    if as_json:
        say(json.dumps(_object(one)))
    else:
        say(f"schedule {schedule} is edited: {one.cron} {one.tz}")


@schedules.command(epilog=EXIT_CODES)
@click.argument("schedule", shell_complete=complete_schedules)
@as_json_option
@on_store
def reset(schedule: str, as_json: bool, path: str | None, url: str | None) -> None:
    """Give an edited schedule back to the code that declares it; needs the app."""
    one = ask(path, url, lambda admin: admin.schedules.reset(schedule))
    if as_json:
        say(json.dumps(_object(one)))
    else:
        say(f"schedule {schedule} is as the code declares it: {safe(one.cron)} {safe(one.tz)}")
