"""`stoker workers`: where workers are, what they run and where it stands; quiet, resume and stop one."""

from __future__ import annotations

import json
import sys
from collections import Counter
from contextlib import nullcontext
from typing import Any, Final

import click

from stoker.admin import Operators
from stoker.admin.as_json import plain
from stoker.admin.workers import ANSWERS_WITHIN, RunningJob, StackView, WorkerDetail, WorkerView
from stoker.cli.command import NearestGroup
from stoker.cli.completion import COMPLETERS
from stoker.cli.jobs import as_object
from stoker.cli.store import EXIT_CODES, aimed, as_json_option, ask, confirm, on_store, said
from stoker.cli.tables import Columns, Figure, Id, as_lines_option, columns, mark, table
from stoker.cli.text import say
from stoker.model import humanize
from stoker.model.control import QUIET, queues_in_words
from stoker.model.humanize import count
from stoker.model.orders import Verb

MARKED: Final = frozenset({"silent", QUIET})
WORKERS: Columns[WorkerView] = {
    **columns("worker", "host"),
    "pid": lambda one: Figure(one.pid),
    "state": lambda one: mark(one.state, "bad" if one.state == "silent" else "warn", when=one.state in MARKED),
    "queues": lambda one: queues_in_words(one.queues),
    **columns("running", "version", "release", "seen=seen_at"),
}
GOES_FIRST: Final = ("version", "pid", "release", "host")
"""What a narrow terminal does without."""
EMPTY: Final = "No worker has shown itself."


class WorkersGroup(NearestGroup):
    """A group whose commands may be left out: `stoker workers WORKER` shows one."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Take a first word that is no command, with none behind it, for the id of a worker."""
        at = self.first_word(ctx, args)
        known = {*self.commands, *ctx.help_option_names}
        if args[at:] and args[at] not in known and all(one.startswith("-") for one in args[at + 1 : at + 2]):
            args = [*args[:at], "list", *args[at:]]
        return super().parse_args(ctx, args)


@click.group(cls=WorkersGroup)
def workers() -> None:
    """List workers, read one, quiet, resume and stop it, and see the stacks of its handlers.

    Alone it lists them; `stoker workers WORKER` shows one. An id may be shortened as long as it fits one worker.
    """


@workers.command("list", epilog=EXIT_CODES)
@click.argument("worker", metavar="[WORKER|MODULE:APP|URL]", required=False)
@click.option("--take-back", is_flag=True, help="Hand the jobs of WORKER back now, for any live worker.")
@click.option("--reason", help="Why they are taken back, for the audit log.")
@as_lines_option
@on_store
def list_(
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
        _runs(found.worker, found.jobs, as_json)
        return
    table(ask(path, url, lambda admin: admin.workers.list()), WORKERS, as_json, goes_first=GOES_FIRST, empty=EMPTY)


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
    table(
        found,
        columns,
        as_json,
        lambda one: {**as_object(one.job), "worker": worker, "long": one.long},
        empty="It runs nothing.",
    )


def _order(name: Verb, text: str, done: str, asks: str = "") -> None:
    """Add a command that gives a worker an order."""

    def command(
        worker: str, reason: str | None, as_json: bool, path: str | None, url: str | None, yes: bool = False
    ) -> None:
        if asks:
            confirm(asks.format(worker), yes=yes)
        given = ask(path, url, lambda admin: admin.workers.order(worker, name, reason=reason))
        said(" ".join([done.format(given.worker), given.note]).strip(), as_json, **plain(given))

    decorated: Any = as_json_option(on_store(command))
    if asks:
        decorated = click.option("--yes", is_flag=True, help="Do not ask.")(decorated)
    decorated = click.option("--reason", help="Why, for the audit log.")(decorated)
    decorated = click.argument("worker", shell_complete=COMPLETERS["worker"])(decorated)
    workers.command(name, help=text, epilog=EXIT_CODES)(decorated)


_order("quiet", "Let a worker claim no more jobs; running ones go on.", "Worker {} was told to claim no more jobs.")
_order("resume", "Let a quiet worker claim jobs again.", "Worker {} was told to claim jobs again.")
_order(
    "stop",
    "Let a worker finish its running jobs within its grace, hand the rest back and end. Its supervisor puts no other "
    "process in its place until it gets HUP or restarts.",
    "Worker {} was told to stop.",
    "Stop worker {}?",
)


@workers.command(epilog=EXIT_CODES)
@click.argument("worker", shell_complete=COMPLETERS["worker"])
@click.option("--reason", help="Why, for the audit log.")
@click.option("--wait", type=click.FloatRange(0, 600), default=ANSWERS_WITHIN, show_default=True, metavar="SECONDS")
@as_json_option
@on_store
def stack(worker: str, reason: str | None, wait: float, as_json: bool, path: str | None, url: str | None) -> None:
    """Show the stack of every running handler of a worker: on the event loop, in its thread or its process.

    Nothing is interrupted. Variables are not shown, and what looks like a secret is masked.
    """

    async def look(admin: Operators) -> tuple[StackView | None, str]:
        with _spinner():
            found = await admin.workers.stack(worker, reason=reason, within=wait)
        one = await admin.workers.get(worker)
        return found, "" if found is not None else f"{one.worker} is {one.state}, seen {humanize.iso(one.seen_at)}"

    found, state = ask(path, url, look)
    if found is None:
        late = f"worker {state}, and did not answer within {wait:g} s. It takes the order when it renews its lease; ask"
        raise click.ClickException(f"{late} again, or see its page.")
    if as_json:
        say(json.dumps(plain(found)))
        return
    for one in found.stands:
        more = f" and {count(one.more, 'more job')} of its chunk" if one.more else ""
        say(f"{one.kind} {one.job}{more}, for {humanize.span(one.elapsed)}, on {one.place}")
        say(f"{one.stack or '  in no code of the app'}\n")
    if found.left_out:
        say(f"{count(found.left_out, 'more handler')} did not fit.")
    if not found.stands:
        say(f"worker {found.worker} ran nothing.")


def _spinner() -> Any:
    """A sign on a terminal that the answer is on its way."""
    if not sys.stderr.isatty():
        return nullcontext()
    from rich.console import Console

    return Console(stderr=True).status("waiting for the worker")
