"""`stoker status` and `stoker workers`: what an operator looks at first."""

from __future__ import annotations

import json
from collections import Counter

import click

from stoker.admin import Operators
from stoker.admin.as_json import plain
from stoker.admin.errors import ErrorPage
from stoker.admin.history import RECENT
from stoker.admin.kinds import SORTS, KindView
from stoker.admin.overview import Overview
from stoker.admin.workers import RunningJob, WorkerDetail, WorkerView
from stoker.cli.findings import MARKS
from stoker.cli.jobs import as_object
from stoker.cli.queues import COLUMNS, GOES_FIRST
from stoker.cli.store import aimed, ask, on_store, on_target, said
from stoker.cli.tables import STYLES, Columns, Figure, Id, as_lines_option, columns, mark, show, table, wide_option
from stoker.cli.text import say
from stoker.engines.base import Description
from stoker.model import humanize
from stoker.model.control import queues_in_words
from stoker.model.humanize import count
from stoker.model.names import listed
from stoker.model.same_error import error_line

GROUPS = 10
"""How many groups of failures are shown."""

WORKERS: Columns[WorkerView] = {
    **columns("worker", "host"),
    "pid": lambda one: Figure(one.pid),
    "state": lambda one: mark(one.state, "bad", when=one.state == "silent"),
    "queues": lambda one: queues_in_words(one.queues),
    **columns("running", "version", "release", "seen=seen_at"),
}
KINDS: Columns[KindView] = {
    **columns("kind", "pending", "running", "retrying"),
    "dead": lambda one: mark(one.dead, "bad", when=one.dead),
    "failed": lambda one: "" if one.failure_ratio is None else Figure(humanize.share(one.failure_ratio, 1)),
    **columns("p50=run_p50", "p95=run_p95", "p99=run_p99", "wait p95=wait_p95", "runs 1h=runs"),
    **columns("completed", "deaths=failed"),
    "worker": lambda one: "yes" if one.known else mark("no", "warn", when=one.pending),
    "last error": lambda one: error_line(one.last_error),
}
KINDS_GO_FIRST = ("wait p95", "p99", "completed", "deaths", "runs 1h", "worker", "p50", "pending", "running")
"""What a narrow terminal does without."""


@click.command()
@click.option("--json", "as_json", is_flag=True, help="As one object.")
@click.option("--check", is_flag=True, help="Exit with 1 when something is wrong.")
@click.option("--quiet", "-q", is_flag=True, help="Print only what needs attention, and notes.")
@wide_option
@on_target
def status(as_json: bool, check: bool, quiet: bool, path: str | None, url: str | None) -> None:
    """Show what needs attention, queues, workers and what goes wrong, on one screen."""

    async def look(admin: Operators) -> tuple[Overview, ErrorPage, Description]:
        return await admin.overview(RECENT * 60), await admin.jobs.errors(past=False), await admin.describe()

    found, errors, store = ask(path, url, look)
    if as_json:
        parts = {"errors": errors.groups, "warnings": store.warnings}
        say(json.dumps({**plain(found), **plain(parts)}))
    elif quiet:
        _attention(found)
    else:
        say(found.verdict, fg="red" if found.wrong else "yellow" if found.needs_attention else None)
        _attention(found)
        say()
        table(found.worst_first, COLUMNS, goes_first=GOES_FIRST, empty="No queue has been used yet.")
        running = sum(one.state == "running" for one in found.workers)
        say(f"\n{humanize.count(running, 'worker')} at work, {len(found.workers) - running} silent or stopped")
        _wrong(errors)
        for note in store.warnings:
            say(f"note: {note}")
    if check and found.wrong:
        raise SystemExit(1)


def _attention(found: Overview) -> None:
    for finding in found.findings:
        say(f"{MARKS[finding.tone]}: {finding}", fg=STYLES.get(finding.tone))


def _wrong(errors: ErrorPage) -> None:
    """The largest errors of jobs that are dead or retrying."""
    if errors.groups:
        say()
        rows = [(one.count, one.error, listed(one.kinds), one.last) for one in errors.groups[:GROUPS]]
        show(("jobs", "error", "kinds", "last"), rows)


@click.command()
@click.argument("worker", metavar="[WORKER|MODULE:APP|URL]", required=False)
@click.option("--take-back", is_flag=True, help="Hand the jobs of WORKER back now, for any live worker.")
@click.option("--reason", help="Why they are taken back, for the audit log.")
@as_lines_option
@on_store
def workers(
    worker: str | None, take_back: bool, reason: str | None, as_json: bool, path: str | None, url: str | None
) -> None:
    """List workers: where they are, what they serve and how much they run; or how one WORKER is and what it runs."""
    if worker is not None and ":" in worker:  # no id has one
        worker, (path, url) = None, aimed(worker, path, url)
    if take_back:
        if worker is None:
            raise click.UsageError("--take-back needs the id of a worker: `stoker workers` lists them")
        taken = ask(path, url, lambda admin: admin.workers.take_back(worker, reason=reason))
        said(f"{count(taken, 'job')} of worker {worker} handed back", as_json, worker=worker, jobs=taken)
        return
    if reason is not None:
        raise click.UsageError("--reason belongs to --take-back")
    if worker is not None:
        found = ask(path, url, lambda admin: admin.workers.get(worker))
        if not as_json:
            _facts(found)
        _runs(worker, found.jobs, as_json)
        return
    table(ask(path, url, lambda admin: admin.workers.list()), WORKERS, as_json)


def _facts(one: WorkerDetail) -> None:
    """Print where a worker is, how it is, and what became of the jobs of a silent one."""
    done, failed = (sum(minute[at] for minute in one.hour) for at in (0, 1))
    up, memory = humanize.span(one.uptime), humanize.size(one.memory)
    of_app = f", release {one.release}" if one.release else ""
    say(f"{one.host} / {one.pid} is {one.state}; up for {up}, with {memory} of memory; Stoker {one.version}{of_app}")
    say(f"serves {queues_in_words(one.queues)}")
    say(f"{count(done + failed, 'run')} ended in the last {count(len(one.hour), 'minute')}, {failed:,} of them failed")
    fates = Counter(former.became for former in one.former)
    if fates:
        told = ", ".join(f"{n:,} {what}" for what, n in fates.most_common())
        say(f"what became of the {count(len(one.former), 'job')} that it ran when it was seen last: {told}")
    say()


def _runs(worker: str, found: list[RunningJob], as_json: bool) -> None:
    """Print the jobs that a worker runs, the longest running first."""
    columns: Columns[RunningJob] = {
        "id": lambda one: Id(one.job.id),
        "kind": lambda one: one.job.kind,
        "queue": lambda one: one.job.queue,
        "started": lambda one: one.job.started_at,
        "note": lambda one: mark("over five minutes", "warn") if one.long else "",
    }
    table(found, columns, as_json, lambda one: {**as_object(one.job), "worker": worker, "long": one.long})


@click.command()
@click.option("--sort", type=click.Choice(list(SORTS)), default="trouble", show_default=True, help="What is first.")
@as_lines_option
@on_target
def kinds(sort: str, as_json: bool, path: str | None, url: str | None) -> None:
    """List kinds: their jobs now, how long runs of the last hour took and which part failed, and what became of all."""
    table(
        ask(path, url, lambda admin: admin.kinds.list(sort=sort)),
        KINDS,
        as_json,
        goes_first=KINDS_GO_FIRST,
        empty="No kind has jobs yet.",
    )
