"""`stoker queues …`: counts and settings of queues; pause, resume and tune them."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import click

from stoker.admin import Operators
from stoker.admin.as_json import plain
from stoker.admin.queues import QueueView, purged
from stoker.cli.command import NearestGroup
from stoker.cli.completion import complete_queues
from stoker.cli.store import (
    EXIT_CODES,
    act_on,
    as_json_option,
    ask,
    confirm,
    create_option,
    on_store,
    on_target,
    read,
    read_curve,
    read_moment,
    read_rate,
    read_time,
    said,
)
from stoker.cli.tables import Columns, Figure, as_lines_option, cells, columns, mark, on_screen, table, when
from stoker.cli.text import say
from stoker.model import humanize
from stoker.model.control import SETTINGS, Tuning
from stoker.model.job import FINISHED
from stoker.model.time import SECOND, instant, moment, span


@click.group(cls=NearestGroup)
def queues() -> None:
    """Show queues; pause, resume and tune them."""


@queues.command("list")
@as_lines_option
@on_target
def list_(as_json: bool, path: str | None, url: str | None) -> None:
    """List queues with their counts, and what went through them in the last 15 closed minutes."""
    found = ask(path, url, lambda admin: admin.queues.list())
    table(found, {**COLUMNS, **FLOW}, as_json, goes_first=GOES_FIRST, empty="No queue has been used yet.")


def flow(view: QueueView) -> tuple[object, ...]:
    """Jobs per minute in and out, how soon the queue is clear, and how long jobs take."""
    clear: object = "" if view.clear_in is None or not view.ready else view.clear_in
    if view.ready and view.flow.growing:
        clear = mark(Figure("growing"), "warn")
    total = "" if view.total is None else timedelta(seconds=view.total.p95)
    rates = (Figure(humanize.pace(view.flow.per_minute(n))) for n in (view.flow.enqueued, view.flow.completed))
    return *rates, clear, total


def state(view: QueueView) -> str:
    """Why a queue hands out nothing, or how it is limited."""
    found: list[str] = []
    if view.paused:
        until = "" if view.paused_until is None else f", ends {when(view.paused_until)}"
        by = "" if view.paused_by is None else f" by {view.paused_by}"
        why = "" if view.paused_why is None else f" ({view.paused_why})"
        found.append(f"paused{by}{why}{until}")
    if view.cooling_until is not None:
        found.append(f"cooling, ends {when(view.cooling_until)}")
    if view.limit is not None:
        found.append(f"at most {view.limit} at once")
    if view.rate is not None:
        found.append(f"at most {view.rate.in_words}")
    return "; ".join(found) or "open"


COLUMNS: Columns[QueueView] = {
    **columns("queue=name", "ready", "scheduled", "waiting", "running", "retrying"),
    "dead": lambda view: mark(view.dead, "bad", when=view.dead),
    "oldest waits": lambda view: view.lag if view.ready else "",
    **columns("workers", "slots"),
    "state": lambda view: mark(state(view), "warn", when=view.paused or view.cooling_until is not None),
}
GOES_FIRST = (
    "95 % done in",
    "workers",
    "waiting",
    "scheduled",
    "in/min",
    "out/min",
    "clear in",
    "slots",
    "retrying",
    "running",
)
"""What a narrow terminal does without."""

FLOW: Columns[QueueView] = {
    "in/min": lambda view: flow(view)[0],
    "out/min": lambda view: flow(view)[1],
    "clear in": lambda view: flow(view)[2],
    "95 % done in": lambda view: flow(view)[3],
}


@queues.command("show", epilog=EXIT_CODES)
@click.argument("queue", shell_complete=complete_queues)
@as_json_option
@on_store
def show_(queue: str, as_json: bool, path: str | None, url: str | None) -> None:
    """Show one queue."""
    view = ask(path, url, lambda admin: admin.queues.get(queue))
    if as_json:
        say(json.dumps(plain(view)))
        return
    for name, value in zip((*COLUMNS, *FLOW), cells(view, {**COLUMNS, **FLOW}), strict=True):
        say(f"{name}: {on_screen(value, instant(datetime.now(UTC)))}")
    say(f"done jobs are kept: {humanize.span(view.keep_done)}")
    say(f"dead jobs are kept: {humanize.span(view.keep_dead)}")
    if view.curve is not None:
        base, longest = (humanize.span(span(each)) for each in (view.curve.base, view.curve.max))
        say(f"waits before retries: {base}, doubled each time, up to {longest}")


@queues.command(epilog=EXIT_CODES)
@click.argument("queue", shell_complete=complete_queues)
@click.option("--for", "lasts", metavar="TIME", help="Resume by itself after this time, as in 30m.")
@click.option("--until", metavar="MOMENT", help="Resume by itself then, as in 2026-11-16T14:00; UTC without a zone.")
@click.option("--reason", help="Shown to operators and by `stoker jobs explain`.")
@create_option
@as_json_option
@on_store
def pause(
    queue: str,
    lasts: str | None,
    until: str | None,
    reason: str | None,
    create: bool,
    as_json: bool,
    path: str | None,
    url: str | None,
) -> None:
    """Stop workers from claiming jobs of a queue; running jobs and enqueueing go on."""
    if lasts is not None and until is not None:
        raise click.UsageError("--for and --until exclude each other")
    for_ = None if lasts is None else read_time("--for", lasts) / SECOND
    end = None if until is None else read_moment("--until", until)
    ask(path, url, lambda admin: admin.queues.pause(queue, for_=for_, until=end, reason=reason, create=create))
    ends = f" for {lasts}" if lasts else f" until {until}" if until else ""
    said(f"queue {queue} is paused{ends}", as_json, queue=queue, paused=True)


_REOPENS = "End the cool-down of a queue, so that workers claim from it at once."
act_on(queues, "resume", "Let workers claim jobs of a queue again.", "queue {queue} is resumed", paused=False)
act_on(queues, "reopen", _REOPENS, "queue {queue} is open", cooling=False)


@queues.command(epilog=EXIT_CODES)
@click.argument("queue", shell_complete=complete_queues)
@click.option("--workers", type=click.IntRange(0), metavar="N", help="At most N jobs at once, over all workers.")
@click.option("--fair/--not-fair", "fair", default=None, help="Whether tenants take turns.")
@click.option("--rate", metavar="N/TIME", help="At most N starts per time, as in 100/1m.")
@click.option("--keep-done", metavar="TIME", help="How long done jobs are kept, as in 2d.")
@click.option("--keep-dead", metavar="TIME", help="How long dead jobs are kept.")
@click.option("--curve", metavar="BASE..MAX", help="Waits before retries and after throttles, as in 5s..10m.")
@click.option("--clear", multiple=True, type=click.Choice(SETTINGS), help="Back to the default. Repeatable.")
@create_option
@as_json_option
@on_store
def tune(
    queue: str,
    workers: int | None,
    fair: bool | None,
    rate: str | None,
    keep_done: str | None,
    keep_dead: str | None,
    curve: str | None,
    clear: tuple[str, ...],
    create: bool,
    as_json: bool,
    path: str | None,
    url: str | None,
) -> None:
    """Change settings of a queue; what is not named stays as it is."""
    settings: dict[str, Any] = {
        "workers": workers,
        "fair": fair,
        "rate": None if rate is None else read_rate("--rate", rate),
        "keep_done": None if keep_done is None else read_time("--keep-done", keep_done),
        "keep_dead": None if keep_dead is None else read_time("--keep-dead", keep_dead),
        "curve": None if curve is None else read(read_curve("--curve", curve).stored),
        "clear": frozenset(clear),
    }
    tuning = read(lambda: Tuning(**settings))
    if tuning == Tuning():
        raise click.UsageError("name at least one setting")
    ask(path, url, lambda admin: admin.queues.tune(queue, tuning, create=create))
    said(f"queue {queue} is tuned", as_json, queue=queue, tuned=True)


@queues.command(epilog=EXIT_CODES)
@click.argument("queue", required=False, shell_complete=complete_queues)
@click.option(
    "--status",
    type=click.Choice(sorted(status.value for status in FINISHED)),
    default="done",
    show_default=True,
    help="Which jobs.",
)
@click.option("--older-than", required=True, metavar="TIME", help="Those that ended longer ago, as in 7d.")
@click.option("--yes", "-y", is_flag=True, help="Do not ask.")
@click.option("--dry-run", is_flag=True, help="Only count the jobs.")
@as_json_option
@on_store
def purge(
    queue: str | None,
    status: str,
    older_than: str,
    yes: bool,
    dry_run: bool,
    as_json: bool,
    path: str | None,
    url: str | None,
) -> None:
    """Remove finished jobs of a QUEUE, or of all, before their retention ends."""
    age = read_time("--older-than", older_than)
    where = "all queues" if queue is None else f"queue {queue}"

    async def call(admin: Operators) -> int | None:
        now = await (await admin.app.engine()).now()
        found = await admin.jobs.preview(purged(queue, status, age, now), counted_at=moment(now))
        jobs = humanize.count(found.count, f"{status} job")
        shown = f"{'' if found.complete else 'more than '}{jobs} of {where} ended over {older_than} ago"
        if dry_run or not found.count:
            said(f"{shown}. Nothing was removed.", as_json, matching=found.count, removed=0)
            return None
        confirm(f"{shown}. Remove them?", yes=yes)
        done = await admin.queues.purge(queue, status=status, older_than=age / SECOND, counted_at=found.counted_at)
        return done.changed

    removed = ask(path, url, call)
    if removed is not None:
        said(f"removed {humanize.count(removed, f'{status} job')} of {where}", as_json, removed=removed)
