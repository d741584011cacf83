"""`stoker status` and `stoker workers`: what an operator looks at first."""

from __future__ import annotations

import json

import click
import msgspec

from stoker.admin import Admin
from stoker.cli.queues import COLUMNS, row
from stoker.cli.store import on_store, run, show
from stoker.cli.text import one_line, safe


@click.command()
@click.option("--json", "as_json", is_flag=True, help="As one object.")
@click.option("--check", is_flag=True, help="Exit with 1 when something needs attention.")
@on_store
def status(as_json: bool, check: bool, path: str | None, url: str | None) -> None:
    """Show queues, workers, failing kinds and what needs attention."""
    found = run(path, url, lambda app: Admin(app).overview())
    if as_json:
        click.echo(json.dumps(msgspec.to_builtins(found)))
    else:
        show(COLUMNS, [row(view) for view in found.queues])
        running = sum(one.state == "running" for one in found.workers)
        click.echo(f"\n{running} workers at work, {len(found.workers) - running} silent or stopped")
        for kind, totals in found.kinds.items():
            last = "" if totals.last_error is None else f"; last error: {one_line(totals.last_error)[:120]}"
            click.echo(safe(f"{kind}: {totals.failed:,} dead, {totals.retried:,} retries{last}"))
        for finding in found.findings:
            click.echo(safe(f"attention: {finding}"))
        for note in found.notes:
            click.echo(safe(f"note: {note}"))
    if check and found.findings:
        raise SystemExit(1)


@click.command()
@click.option("--json", "as_json", is_flag=True, help="One object per line.")
@on_store
def workers(as_json: bool, path: str | None, url: str | None) -> None:
    """List workers: where they are, what they serve and how much they run."""
    found = run(path, url, lambda app: Admin(app).workers.list())
    if as_json:
        for one in found:
            click.echo(json.dumps(msgspec.to_builtins(one)))
        return
    columns = ("worker", "host", "pid", "state", "queues", "running", "version", "seen")
    show(
        columns,
        [
            (
                one.worker,
                one.host,
                one.pid,
                one.state,
                ",".join(f"{queue}:{slots}" for queue, slots in sorted(one.queues.items())),
                one.running,
                one.version,
                one.seen_at,
            )
            for one in found
        ],
    )
