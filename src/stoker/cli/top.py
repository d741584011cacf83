"""`stoker top`: watch a store live, and steer it by keys."""

from __future__ import annotations

import sys

import click

from stoker.admin import Operators
from stoker.cli.store import ask, on_target


@click.command()
@click.option(
    "--every", type=click.FloatRange(0.5, 60), default=2.0, show_default=True, help="Seconds between updates."
)
@on_target
def top(every: float, path: str | None, url: str | None) -> None:
    """Watch queues, jobs, failures and workers live; `?` shows the keys."""
    if not sys.stdout.isatty():
        raise click.UsageError("top needs a terminal. In a pipe use `stoker status`, with --json for programs.")
    try:
        from stoker.cli.terminal import Top
    except ImportError:
        raise click.ClickException("top needs textual: install stoker[top]") from None

    async def watch(admin: Operators) -> None:
        await Top(admin, every=every).run_async()

    ask(path, url, watch)
