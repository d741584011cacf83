"""`stoker operations …`: bulk actions and how far they came; stop and resume them."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Generator
from contextlib import contextmanager

import click

from stoker.admin import Operators
from stoker.admin.as_json import plain
from stoker.admin.operations import OperationView, Progress
from stoker.cli.command import NearestGroup
from stoker.cli.completion import complete_operations
from stoker.cli.store import EXIT_CODES, as_json_option, ask, on_store, on_target
from stoker.cli.tables import Columns, Figure, as_lines_option, columns, mark, table
from stoker.cli.text import safe, say
from stoker.model.errors import NotFound
from stoker.model.humanize import count, pace, share, span
from stoker.model.operations import GONE

COLUMNS: Columns[OperationView] = {
    "operation": "id",
    "state": lambda one: mark(one.state, "bad", when=one.state in {"failed", "interrupted"}),
    "done": lambda one: "" if one.share is None else Figure(share(one.share, 1)),
    **columns("action", "filter", "by=who", "started=started_at", "changed"),
    "left": lambda one: one.missing + one.blocked + sum(one.refused.values()),
}
GOES_FIRST = ("by", "filter", "left")
EMPTY = "No action on many jobs was started yet."


@click.group(cls=NearestGroup)
def operations() -> None:
    """List bulk actions; watch, stop and resume them."""


@operations.command("list")
@as_lines_option
@on_target
def list_(as_json: bool, path: str | None, url: str | None) -> None:
    """List operations, the latest first."""
    table(ask(path, url, lambda admin: admin.operations.list()), COLUMNS, as_json, goes_first=GOES_FIRST, empty=EMPTY)


@operations.command("show", epilog=EXIT_CODES)
@click.argument("operation", shell_complete=complete_operations)
@as_json_option
@on_store
def show_(operation: str, as_json: bool, path: str | None, url: str | None) -> None:
    """Show one operation."""
    _print(ask(path, url, lambda admin: admin.operations.get(operation)), as_json)


@operations.command(epilog=EXIT_CODES)
@click.argument("operation", required=False, shell_complete=complete_operations)
@click.option("--json", "as_json", is_flag=True, help="One object per line, whenever it has come further.")
@on_store
def watch(operation: str | None, as_json: bool, path: str | None, url: str | None) -> None:
    """Watch an operation of any process until it ends: how far it is, how fast, and what it did to the jobs.

    Without an id it watches the latest one. Ctrl-C ends the watching, not the operation.
    """

    async def look(admin: Operators) -> OperationView:
        if operation is not None:
            return await _watched(admin, await admin.operations.get(operation), as_json)
        found = await admin.operations.list()
        if not found:
            raise NotFound("there is no operation in the store")
        return await _watched(admin, found[0], as_json)

    try:
        ended = ask(path, url, look)
    except KeyboardInterrupt:
        return
    if not as_json:
        _print(ended, as_json=False)
    check_failed(ended)


async def _watched(admin: Operators, one: OperationView, as_json: bool) -> OperationView:
    """Look again and again until an operation ends."""
    with bar(one.noun, quiet=as_json) as progress:
        before: OperationView | None = None
        while True:
            progress(one)
            if (before is None or (one.seen, one.state) != (before.seen, before.state)) and (as_json or not shown()):
                say(json.dumps(plain(one)) if as_json else f"{one.state}: {how_far(one)}")
            if one.ended:
                return one
            before = one
            await asyncio.sleep(LOOK_AGAIN)
            one = await admin.operations.get(one.id)


@operations.command(epilog=EXIT_CODES)
@click.argument("operation", shell_complete=complete_operations)
@as_json_option
@on_store
def stop(operation: str, as_json: bool, path: str | None, url: str | None) -> None:
    """Ask an operation to stop; its process does so within one page."""
    _print(ask(path, url, lambda admin: admin.operations.stop(operation)), as_json)


@operations.command(epilog=EXIT_CODES)
@click.argument("operation", shell_complete=complete_operations)
@as_json_option
@on_store
def resume(operation: str, as_json: bool, path: str | None, url: str | None) -> None:
    """Go on with an operation that was stopped, failed or interrupted, and wait for its end."""

    async def go_on(admin: Operators) -> OperationView:
        await admin.operations.resume(operation)
        return await finished(admin, operation)

    _print(ask(path, url, go_on), as_json)


LOOK_AGAIN = 0.5
"""Seconds between two looks at an operation of another process."""


def shown() -> bool:
    """Is there a terminal for a bar?"""
    return sys.stderr.isatty()


def how_far(one: OperationView) -> str:
    """How far an operation is, and how fast."""
    of = f"{one.seen:,} {one.noun}s" if one.total is None else f"{one.seen:,} of {count(one.total, one.noun)}"
    rate = "" if one.rate is None or one.ended else f", {pace(one.rate)} a second"
    left = f", about {span(one.lasts)} left" if one.lasts else ""
    return f"{of}{rate}{left}"


@contextmanager
def bar(noun: str, *, quiet: bool = False) -> Generator[Progress, None, None]:
    """A bar on a terminal, which shows what it is called with."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn

    columns = TextColumn("{task.fields[state]}"), BarColumn(), TextColumn("{task.fields[far]}")
    with Progress(*columns, console=Console(stderr=True), transient=True, disable=quiet or not shown()) as live:
        task = live.add_task(noun, total=None, state="", far="")

        def progress(one: OperationView) -> None:
            live.update(task, total=one.total, completed=one.seen, state=one.state, far=how_far(one))

        yield progress


async def finished(admin: Operators, operation: str, progress: Progress | None = None) -> OperationView:
    """Wait for an operation of this process; Ctrl-C stops it after its present page."""
    try:
        return await admin.operations.finish(operation, progress)
    except asyncio.CancelledError:
        await admin.operations.close()
        say(f"Stopped. `stoker operations resume {operation}` goes on from there.", err=True)
        raise


def check_failed(one: OperationView) -> None:
    """End the command with an error if an operation failed, and say how it goes on."""
    if one.state == "failed":
        say(f"Error: {safe(one.error or '')} `stoker operations resume {one.id}` goes on from there.", err=True)
        raise SystemExit(1)


def _print(one: OperationView, as_json: bool) -> None:
    if as_json:
        say(json.dumps(plain(one)))
        return
    say(f"{one.id} {one.state}: {safe(one.action)} {safe(one.filter)}")
    say(how_far(one))
    say(tally(one))
    if one.error is not None:
        say(one.error)


def tally(one: OperationView) -> str:
    """What an operation did, in a sentence."""
    parts = [f"{one.action}: {count(one.changed, one.noun)}"]
    if one.cancel_requested:
        parts.append(f"asked {count(one.cancel_requested, 'running job')} to stop")
    if one.blocked:
        parts.append(f"{one.blocked:,} left: unique key held by another job")
    parts += [f"{n:,} left: {status.value}" for status, n in one.refused.items()]
    if one.missing:
        parts.append(f"{one.missing:,} no longer there")
    if gone := one.fates.get(GONE):
        parts.append(f"{gone:,} of the {one.total:,} that were counted had changed before")
    if one.later:
        parts.append(f"{one.later:,} left: created or ended after the count at {one.counted_at:%H:%M:%S} UTC")
    return "; ".join(parts)
