"""`stoker queues …`: counts and settings of queues; pause, resume and tune them."""

from __future__ import annotations

import json
from typing import Any

import click
import msgspec

from stoker.admin.queues import QueueView
from stoker.cli.store import EXIT_CODES, ago, ask, length, on_store, show
from stoker.model.control import SETTINGS, Tuning
from stoker.model.errors import StokerError
from stoker.model.throttle import Rate
from stoker.model.time import SECOND, Span
from stoker.settings import read_span

COLUMNS = ("queue", "ready", "scheduled", "running", "retrying", "dead", "oldest waits", "workers", "slots", "state")


@click.group()
def queues() -> None:
    """Show queues; pause, resume and tune them."""


@queues.command("list")
@click.option("--json", "as_json", is_flag=True, help="One object per line, with every field.")
@on_store
def list_(as_json: bool, path: str | None, url: str | None) -> None:
    """List queues with their counts."""
    found = ask(path, url, lambda admin: admin.queues.list())
    if as_json:
        for view in found:
            click.echo(json.dumps(msgspec.to_builtins(view)))
    else:
        show(COLUMNS, [row(view) for view in found])


def row(view: QueueView) -> tuple[Any, ...]:
    """One line of a table of queues."""
    lag = length(view.lag) if view.ready else ""
    counts = (view.ready, view.scheduled, view.running, view.retrying, view.dead)
    return view.name, *counts, lag, view.workers, view.slots, state(view)


def state(view: QueueView) -> str:
    """Why a queue hands out nothing, or how it is limited."""
    found: list[str] = []
    if view.paused:
        until = "" if view.paused_until is None else f", ends {ago(view.paused_until)}"
        by = "" if view.paused_by is None else f" by {view.paused_by}"
        why = "" if view.paused_why is None else f" ({view.paused_why})"
        found.append(f"paused{by}{why}{until}")
    if view.cooling_until is not None:
        found.append(f"cooling, ends {ago(view.cooling_until)}")
    if view.limit is not None:
        found.append(f"at most {view.limit} at once")
    if view.rate is not None:
        found.append(f"at most {view.rate.n:g} per {view.rate.per:g} s")
    return "; ".join(found) or "open"


@queues.command("show", epilog=EXIT_CODES)
@click.argument("queue")
@click.option("--json", "as_json", is_flag=True, help="As one object.")
@on_store
def show_(queue: str, as_json: bool, path: str | None, url: str | None) -> None:
    """Show one queue."""
    view = ask(path, url, lambda admin: admin.queues.get(queue))
    if as_json:
        click.echo(json.dumps(msgspec.to_builtins(view)))
        return
    for name, value in zip(COLUMNS, row(view), strict=True):
        click.echo(f"{name}: {value}")
    click.echo(f"done jobs are kept: {length(view.keep_done)}")
    click.echo(f"dead jobs are kept: {length(view.keep_dead)}")


@queues.command(epilog=EXIT_CODES)
@click.argument("queue")
@click.option("--for", "lasts", metavar="TIME", help="Resume by itself after this time, as in 30m.")
@click.option("--reason", help="Shown to operators and by `stoker jobs explain`.")
@click.option("--by", envvar="USER", help="Who pauses it; $USER by default.")
@on_store
def pause(queue: str, lasts: str | None, reason: str | None, by: str | None, path: str | None, url: str | None) -> None:
    """Stop workers from claiming jobs of a queue; running jobs finish."""
    pause_for = None if lasts is None else _span("--for", lasts)
    tuning = _tuning(paused=True, pause_for=pause_for, reason=reason, by=by or None)
    ask(path, url, lambda admin: admin.queues.tune(queue, tuning))
    click.echo(f"queue {queue} is paused" + ("" if lasts is None else f" for {lasts}"))


@queues.command(epilog=EXIT_CODES)
@click.argument("queue")
@on_store
def resume(queue: str, path: str | None, url: str | None) -> None:
    """Let workers claim jobs of a queue again."""
    ask(path, url, lambda admin: admin.queues.tune(queue, _tuning(paused=False)))
    click.echo(f"queue {queue} is resumed")


@queues.command(epilog=EXIT_CODES)
@click.argument("queue")
@click.option("--workers", type=click.IntRange(0), metavar="N", help="At most N jobs at once, over all workers.")
@click.option("--rate", metavar="N/TIME", help="At most N starts per time, as in 100/1m.")
@click.option("--keep-done", metavar="TIME", help="How long done jobs are kept, as in 2d.")
@click.option("--keep-dead", metavar="TIME", help="How long dead jobs are kept.")
@click.option("--clear", multiple=True, type=click.Choice(SETTINGS), help="Back to the default. Repeatable.")
@on_store
def tune(
    queue: str,
    workers: int | None,
    rate: str | None,
    keep_done: str | None,
    keep_dead: str | None,
    clear: tuple[str, ...],
    path: str | None,
    url: str | None,
) -> None:
    """Change settings of a queue; what is not named stays as it is."""
    tuning = _tuning(
        workers=workers,
        rate=None if rate is None else _rate(rate),
        keep_done=None if keep_done is None else _span("--keep-done", keep_done),
        keep_dead=None if keep_dead is None else _span("--keep-dead", keep_dead),
        clear=frozenset(clear),
    )
    if tuning == Tuning():
        raise click.UsageError("name at least one setting")
    ask(path, url, lambda admin: admin.queues.tune(queue, tuning))
    click.echo(f"queue {queue} is tuned")


def _tuning(**settings: Any) -> Tuning:
    try:
        return Tuning(**settings)
    except StokerError as error:
        raise click.UsageError(str(error)) from None


def _span(option: str, text: str) -> Span:
    try:
        return read_span(text)
    except ValueError as error:
        raise click.BadParameter(f"{text!r} {error}", param_hint=option) from None


def _rate(text: str) -> Rate:
    number, slash, per = text.partition("/")
    try:
        n = float(number)
        if not slash:
            raise ValueError
    except ValueError:
        raise click.BadParameter(
            f"{text!r} is not a number of starts per time, as in 100/1m", param_hint="--rate"
        ) from None
    try:
        return Rate(n, _span("--rate", per if per[:1].isdigit() else f"1{per}") / SECOND)
    except StokerError as error:
        raise click.UsageError(str(error)) from None
