"""`stoker operations …`: bulk actions and how far they came; stop and resume them."""

from __future__ import annotations

import asyncio
import json

import click

from stoker.admin import Operators
from stoker.admin.as_json import plain
from stoker.admin.operations import OperationView, Progress
from stoker.cli.command import NearestGroup
from stoker.cli.completion import complete_operations
from stoker.cli.store import EXIT_CODES, as_json_option, ask, on_store, on_target
from stoker.cli.tables import Columns, as_lines_option, columns, mark, table
from stoker.cli.text import safe, say
from stoker.model.humanize import count

COLUMNS: Columns[OperationView] = {
    "operation": "id",
    "state": lambda one: mark(one.state, "bad", when=one.state in {"failed", "interrupted"}),
    **columns("action", "filter", "by=who", "started=started_at", "changed"),
    "left": lambda one: one.missing + one.blocked + sum(one.refused.values()),
}
GOES_FIRST = ("by", "filter", "left")


@click.group(cls=NearestGroup)
def operations() -> None:
    """List bulk actions; stop and resume them."""


@operations.command("list")
@as_lines_option
@on_target
def list_(as_json: bool, path: str | None, url: str | None) -> None:
    """List operations, the one that was started last first."""
    table(ask(path, url, lambda admin: admin.operations.list()), COLUMNS, as_json, goes_first=GOES_FIRST)


@operations.command("show", epilog=EXIT_CODES)
@click.argument("operation", shell_complete=complete_operations)
@as_json_option
@on_store
def show_(operation: str, as_json: bool, path: str | None, url: str | None) -> None:
    """Show one operation."""
    _print(ask(path, url, lambda admin: admin.operations.get(operation)), as_json)


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
        parts.append(f"{one.missing:,} gone")
    if one.later:
        parts.append(f"{one.later:,} left: created or ended after the count at {one.counted_at:%H:%M:%S} UTC")
    return "; ".join(parts)
