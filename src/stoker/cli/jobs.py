"""`stoker jobs …`: list jobs, read one, ask why it does not run, requeue, cancel, delete, enqueue."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar

import click
from msgspec import Raw

from stoker.admin import Bulk, Filter, Operators
from stoker.admin.as_json import plain
from stoker.admin.details import EventView, JobDetail, why
from stoker.admin.errors import ErrorPage
from stoker.admin.jobs import JobPage
from stoker.admin.operations import OperationView
from stoker.admin.workers import WorkerView
from stoker.cli.command import NearestGroup
from stoker.cli.completion import complete_kinds, complete_queues
from stoker.cli.job_arguments import LARGEST_PAGE, FilterCommand, job_argument, terms_argument, whole, whole_id
from stoker.cli.operations import bar, check_failed, finished, tally
from stoker.cli.steps import signal, steps, waits
from stoker.cli.store import (
    EXIT_CODES,
    as_json_option,
    ask,
    confirm,
    create_option,
    hinted,
    on_store,
    read_moment,
    read_time,
    said,
)
from stoker.cli.tables import Columns, Figure, Id, Wrong, as_lines_option, columns, labeled, mark, on_terminal, table
from stoker.cli.text import one_line, safe, say
from stoker.cli.watch import watch
from stoker.codec.signature import display
from stoker.model.actions import MANY, Action, Parameter
from stoker.model.error_records import ErrorGroup
from stoker.model.explain import Explanation
from stoker.model.humanize import count as count_of
from stoker.model.humanize import share, spark
from stoker.model.job import Status
from stoker.model.names import listed
from stoker.model.releases import in_words
from stoker.model.run_origins import ran_on
from stoker.model.same_error import error_line
from stoker.model.time import SECOND
from stoker.views import Job

F = TypeVar("F", bound=Callable[..., Any])

WRONG: dict[Status, Wrong] = {Status.DEAD: "bad", Status.RETRYING: "warn"}
"""The statuses that tell of something wrong."""

COLUMNS: Columns[Job] = {
    "id": lambda job: Id(job.id),
    "status": lambda job: mark(job.status.value, WRONG.get(job.status, "warn"), when=job.status in WRONG),
    **columns("queue", "kind"),
    "attempts": lambda job: Figure(f"{job.attempts} of {job.base + job.budget}"),
    "created": "created_at",
    "error": lambda job: error_line(job.last_error),
}
GOES_FIRST = ("attempts", "queue", "created", "label")
"""What a narrow terminal does without."""


def running_columns(workers: Mapping[str, str]) -> Columns[Job]:
    """What is listed of jobs that run; `workers` are the places of workers by id."""
    return {
        **{name: COLUMNS[name] for name in ("id", "kind", "queue")},
        "started": "started_at",
        "progress": lambda job: "" if job.progress is None else Figure(share(job.progress, 1)),
        "worker": lambda job: workers.get(job.worker or "", job.worker),
        "attempts": COLUMNS["attempts"],
    }


FILTER_HELP = """\b
A filter is a list of terms that must all hold:
  is:dead,retrying either; also ready scheduled waiting running done canceled
                   discarded retried pending active finished (failed: dead)
  queue:mail       kind:send*   (* matches anything; -queue:mail leaves it out)
  kind:bill        the kinds that contain it, where none is called so
  tenant:acme      key:"img:7"   group:ID   meta:customer=42
  since:2h         until:2026-11-16T14:00   (time of enqueueing; UTC)
  finished:1h      finished:3d..1d          (time of the end)
  attempts:>=3     worker:ID                (running there; ID may be its beginning)
  same_error:ID                             (dead and retrying, failed alike; ID of a job or an error)
  error:timeout    payload:ada              ("any text" is looked for in both)
  order:oldest     also finished due        id:0193b0f0-…
In a shell put quotes around a term that has some: 'meta:customer="Ada L."'
"""


@click.group(cls=NearestGroup)
def jobs() -> None:
    """List jobs, read one, ask why it does not run, requeue, cancel, delete."""


for _command in (steps, waits, signal, watch):
    jobs.add_command(_command)


@jobs.command("list", cls=FilterCommand, epilog=FILTER_HELP)
@terms_argument("[FILTER]...")
@click.option("--limit", type=click.IntRange(1), default=25, show_default=True, help="Maximum number of jobs.")
@click.option("--count", is_flag=True, help="Only how many there are: exact, or 10,000+.")
@as_lines_option
@on_store
def list_(terms: tuple[str, ...], limit: int, count: bool, as_json: bool, path: str | None, url: str | None) -> None:
    """List jobs, newest first. On a terminal the last line says how many there are in all.

    Of `is:running` alone it shows since when, how far and on which worker they run.
    """
    if count:
        page = ask(path, url, lambda admin: _counted(admin, terms))
        said(_total(page), as_json, jobs=page.total, complete=page.complete)
        hinted(page.hint)
        return
    found, first, shown = ask(path, url, lambda admin: _listed(admin, terms, limit))
    hinted(first.hint)
    table(found, shown, as_json, as_object, goes_first=GOES_FIRST, empty="No job matches.")
    if not as_json and first.total is not None and len(found) != first.total:
        say(f"{len(found):,} of {_total(first)} jobs")


def met(group: ErrorGroup, page: ErrorPage) -> object:
    """How many jobs have an error; where not all were read so many or more, and a dash where none was met."""
    if page.complete:
        return group.count
    return Figure(f"{group.count:,}+" if group.count else "–")


def error_columns(page: ErrorPage) -> Columns[ErrorGroup]:
    """What is listed of errors."""
    return {"jobs": lambda one: met(one, page), **ERRORS}


ERRORS: Columns[ErrorGroup] = {
    **columns("died 7d=died", "first", "last", "new since=new_in"),
    "releases": lambda one: in_words(one.releases),
    "error": "error",
    "kinds": lambda one: listed(one.kinds),
    "queues": lambda one: listed(one.queues),
    "deaths 24h": lambda one: spark(one.deaths),
    "id": "id",
}
ERRORS_GO_FIRST = ("deaths 24h", "queues", "first", "releases", "died 7d", "kinds", "new since")
"""What a narrow terminal does without."""


@jobs.command("errors", cls=FilterCommand, epilog=FILTER_HELP)
@terms_argument("[FILTER]...")
@as_lines_option
@on_store
def errors_(terms: tuple[str, ...], as_json: bool, path: str | None, url: str | None) -> None:
    """List errors: how many jobs are dead or retrying, how many died in 7 days.

    `stoker jobs requeue same_error:ID` takes the last column.
    """
    page = ask(path, url, lambda admin: _errors(admin, terms))
    hinted(page.hint)
    table(page.groups, error_columns(page), as_json, goes_first=ERRORS_GO_FIRST, empty="No error in the last 7 days.")
    if as_json:
        return
    if not page.complete:
        say(f"jobs are those among the newest {page.looked_at:,} that are dead or retrying: there are older ones")
    if page.other:
        say(f"{count_of(page.other, 'more job')} died in 7 days of errors too many to list")


async def _errors(admin: Operators, terms: tuple[str, ...]) -> ErrorPage:
    return await admin.jobs.errors(await whole(admin, terms))


async def _counted(admin: Operators, terms: tuple[str, ...]) -> JobPage:
    return await admin.jobs.find(await whole(admin, terms), limit=1, total=True)


async def _listed(admin: Operators, terms: tuple[str, ...], limit: int) -> tuple[list[Job], JobPage, Columns[Job]]:
    """The jobs, the first page, which on a terminal has the total, and what to show of them."""
    size, filter_ = min(limit, LARGEST_PAGE), Filter.parse(await whole(admin, terms))
    page = first = await admin.jobs.find(filter_, limit=size, total=on_terminal())
    found = list(page.jobs)
    while page.cursor is not None and len(found) < limit:
        page = await admin.jobs.find(filter_, limit=min(limit - len(found), LARGEST_PAGE), cursor=page.cursor)
        found += page.jobs
    shown = COLUMNS
    if filter_.views == ("running",):
        shown = running_columns({one.worker: place(one) for one in await admin.workers.list()})
    return found, first, labeled(shown, found)


def place(worker: WorkerView) -> str:
    """A worker as people know it: its host and its process."""
    return f"{worker.host} / {worker.pid}"


def _total(page: JobPage) -> str:
    return f"{page.total:,}" if page.complete else f"{page.total:,}+"


def _happened(event: dict[str, Any]) -> str:
    took = "" if event["seconds"] is None else f" after {event['seconds']:.2f} s"
    attempt = f", attempt {event['attempt']}" if event["attempt"] else ""
    return f"{event['at']} {event['type']}{attempt}{took}"


def _failed(one: dict[str, Any]) -> str:
    place = f" {_ran_on(one['origin'])}" if one["origin"] else ""
    return f"{one['at']} attempt {one['attempt']}{place}: {error_line(one['error'])}"


def _ran_on(origin: dict[str, Any]) -> str:
    return ran_on(origin["host"], origin["pid"], origin["release"])


LISTED: dict[str, Callable[[Any], str]] = {"events": _happened, "history": _failed, "log": str}
"""Parts of a job that are lists, and one line of each."""


@jobs.command("show", epilog=EXIT_CODES)
@job_argument
@as_json_option
@on_store
def show_(job: str, as_json: bool, path: str | None, url: str | None) -> None:
    """Show everything about one job: record, arguments, errors, log, events, and what it belongs to."""

    async def read(admin: Operators) -> JobDetail:
        return await admin.jobs.get(await whole_id(admin, job))

    found = detail_object(ask(path, url, read))
    if as_json:
        say(json.dumps(found))
        return
    for name, lines in detail_lines(found):
        say(f"{name}: {lines[0]}" if len(lines) == 1 and name not in LISTED else f"{name}:")
        if len(lines) > 1 or name in LISTED:
            say("\n".join(f"  {line}" for line in lines))


def detail_lines(found: dict[str, Any]) -> Iterator[tuple[str, list[str]]]:
    """What is known about a job, part by part, in lines that are fit for a terminal."""
    for name, value in found.items():
        if value in (None, {}, [], (), "", False) or name == "token":
            continue
        if name == "origin":
            yield name, [one_line(f"{_ran_on(value)}, worker {value['worker']}", 500)]
            continue
        if name in LISTED:
            yield name, [one_line(LISTED[name](one), 500) for one in value]
            continue
        text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        yield name, [safe(line) for line in text.splitlines()] if "\n" in text else [one_line(text, 500)]


@jobs.command(epilog=EXIT_CODES)
@job_argument
@as_json_option
@on_store
def explain(job: str, as_json: bool, path: str | None, url: str | None) -> None:
    """Say why a job does not run, and what to do about it."""

    async def read(admin: Operators) -> Explanation:
        return await admin.jobs.explain(await whole_id(admin, job))

    found = ask(path, url, read)
    if as_json:
        say(json.dumps({"job": job, **plain(why(found))}))
        return
    say(f"{found.reason}: {found.detail}")
    for gate in found.gates:
        say(f"also {gate.reason}: {gate.detail}")
    for line in found.beside:
        say(line)
    if found.remedy:
        say(found.remedy)


@jobs.command(cls=FilterCommand)
@terms_argument("[FILTER]...")
@click.option("--limit", type=click.IntRange(1), metavar="N", help="Stop after N events.")
@click.option("--json", "as_json", is_flag=True, help="One object per line.")
@on_store
def tail(terms: tuple[str, ...], limit: int | None, as_json: bool, path: str | None, url: str | None) -> None:
    """Print what happens to jobs as it happens, until stopped. A filter may have queue: and kind:."""

    async def follow(admin: Operators) -> None:
        left = limit
        hinted((await admin.jobs.find(" ".join(terms), limit=1)).hint)
        async for event in admin.jobs.tail(" ".join(terms)):
            say(_line(event, as_json))
            sys.stdout.flush()
            left = None if left is None else left - 1
            if left == 0:
                return

    try:
        ask(path, url, follow)
    except KeyboardInterrupt:
        return


def _line(event: EventView, as_json: bool) -> str:
    if as_json:
        return json.dumps(plain(event))
    took = "" if event.seconds is None else f"{event.seconds:.2f} s"
    return safe(f"{event.at.isoformat()}\t{event.type}\t{event.queue}\t{event.kind}\t{event.job}\t{took}")


@jobs.command(epilog=EXIT_CODES)
@click.argument("kind", shell_complete=complete_kinds)
@click.argument("payload", required=False)
@click.option("--queue", "-q", metavar="QUEUE", shell_complete=complete_queues, help="Instead of the task's own.")
@click.option("--priority", type=int, metavar="N", help="-1000 to 1000; lower runs first.")
@click.option("--delay", metavar="TIME", help="Not before this time has passed, as in 10m.")
@click.option("--at", metavar="MOMENT", help="Not before then, as in 2026-11-16T14:00; UTC without a zone.")
@click.option("--attempts", type=click.IntRange(1), metavar="N", help="Runs at most.")
@click.option("--key", "unique", metavar="KEY", help="A unique key; an active job with it is kept instead.")
@click.option("--tenant", metavar="NAME", help="The tenant.")
@create_option
@as_json_option
@on_store
def enqueue(
    kind: str,
    payload: str | None,
    as_json: bool,
    path: str | None,
    url: str | None,
    delay: str | None,
    at: str | None,
    create: bool,
    **given: Any,
) -> None:
    """Enqueue a job of a KIND; the PAYLOAD is JSON: an object of keywords or a list. Prints the job's id."""
    options: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    if "queue" in options and not create:
        options["create"] = False
    if delay is not None:
        options["delay"] = read_time("--delay", delay) / SECOND
    if at is not None:
        options["at"] = read_moment("--at", at)
    body = None if payload is None else Raw(payload.encode())
    receipt = ask(path, url, lambda admin: admin.jobs.enqueue(kind, body, **options), creates=True)
    if not as_json and receipt.stored.value != "inserted":
        say(f"an active job has this key already ({receipt.stored.value})", err=True)
    said(receipt.id, as_json, job=receipt.id, stored=receipt.stored.value)


@jobs.command(epilog=EXIT_CODES)
@job_argument
@click.option("--payload", metavar="JSON", help="Another payload; checked against the task where the app is known.")
@click.option("--priority", type=int, metavar="N", help="-1000 to 1000; lower runs first.")
@click.option("--at", metavar="MOMENT", help="Due then, as in 2026-11-16T14:00; UTC without a zone.")
@click.option("--attempts", type=click.IntRange(1), metavar="N", help="Runs at most.")
@click.option("--requeue", "requeues", is_flag=True, help="Requeue it afterwards.")
@as_json_option
@on_store
def edit(
    job: str,
    payload: str | None,
    priority: int | None,
    at: str | None,
    attempts: int | None,
    requeues: bool,
    as_json: bool,
    path: str | None,
    url: str | None,
) -> None:
    """Change what a waiting or dead job was enqueued with; what is not named stays as it is."""
    if not any(given is not None for given in (payload, priority, at, attempts)):
        raise click.UsageError("name at least one change")
    body = None if payload is None else payload.encode()
    due = None if at is None else read_moment("--at", at)

    async def change(admin: Operators) -> str:
        found = await whole_id(admin, job)
        await admin.jobs.edit(found, payload=body, priority=priority, at=due, attempts=attempts)
        if requeues:
            await admin.jobs.requeue(found)
        return found

    edited = ask(path, url, change)
    said(f"job {edited} is edited{' and requeued' if requeues else ''}", as_json, job=edited, edited=True)


@jobs.command(epilog=EXIT_CODES)
@click.argument("entry")
@as_json_option
@on_store
def restore(entry: str, as_json: bool, path: str | None, url: str | None) -> None:
    """Undo a cancel or discard, by its ENTRY in `stoker audit`.

    Jobs to which anything happened since are refused.
    """
    done = ask(path, url, lambda admin: admin.jobs.restore(entry))
    facts = {"changed": done.changed, "refused": done.refused.total(), "blocked": done.blocked, "missing": done.missing}
    others = ", ".join(f"{n:,} {name}" for name, n in facts.items() if n and name != "changed")
    said(
        f"restore: {count_of(done.changed, 'job')}" + (f"; {others}" if others else ""),
        as_json,
        action="restore",
        **facts,
    )


# --- actions --------------------------------------------------------------------------------------------------------


ASKS_ABOVE = 100
"""An action on more jobs asks before; a deletion always does."""


async def _still(admin: Operators, job: str, done: Bulk) -> str:
    """What keeps the job, or its copy, from running all the same."""
    return (await admin.jobs.explain(done.created[0] if done.created else job)).still


async def act_on_many(
    admin: Operators,
    action: Action,
    filter_: Filter,
    given: dict[str, Any],
    *,
    yes: bool,
    dry_run: bool,
    as_json: bool,
) -> OperationView | None:
    """Count the jobs of a filter, ask about them, and do an action to them as an operation; None: nothing was done."""
    found = await admin.jobs.preview(filter_, action=action.name)
    shown = count_of(found.count, "job") if found.complete else f"more than {found.count:,} jobs"
    skipped = "".join(f" {n:,} would be left: {why}." for why, n in found.skipped.items())
    lasts = "" if found.lasts is None else f" {found.lasts}"
    if dry_run or not found.count:
        said(
            f"{shown} {'matches' if found.count == 1 else 'match'} {filter_}.{skipped}{lasts} Nothing was changed.",
            as_json,
            action=action.name,
            matching=found.count,
            complete=found.complete,
            counted_at=found.counted_at.isoformat(),
            changed=0,
            skipped=found.skipped,
            lasts=plain(found.lasts),
        )
        return None
    if action.destroys or found.count > ASKS_ABOVE or not found.complete:
        confirm(f"{action.name} {shown} of {filter_}?{skipped}{lasts}", yes=yes)
    if action.readies:
        for note in await admin.queues.notes(found.queues):
            say(f"note: {safe(note)}", err=True)
    total = found.count if found.complete else None
    started = await admin.operations.start(action.name, filter_, given, counted_at=found.counted_at, total=total)
    return await _shown_progress(admin, started)


def acting(action: Action, command: F, *, of_one: bool = False) -> F:
    """Give a command the options of an action on many jobs; `of_one`: also those that go with one id."""
    for option in (
        *(option_of(one) for one in reversed(action.parameters) if of_one or not one.one_job),
        click.option("--json", "as_json", is_flag=True, help="The tally as one object."),
        click.option("--dry-run", is_flag=True, help="Only count the jobs."),
        click.option("--yes", "-y", is_flag=True, help="Do not ask."),
    ):
        command = option(command)
    return command


def _add_command(action: Action) -> None:
    """Add the command of an action of the table: it changes the jobs which a filter or ids name."""
    name = action.name

    def command(
        terms: tuple[str, ...], yes: bool, dry_run: bool, as_json: bool, path: str | None, url: str | None, **given: Any
    ) -> None:
        if not "".join(terms).strip():  # most likely a variable of a script that is not set
            raise click.UsageError(f"the filter is empty: name the jobs to {name}, as in is:dead, or kind:* for all")
        wanted = {key: value for key, value in given.items() if value not in (None, False)}

        async def call(admin: Operators) -> Bulk | OperationView | None:
            filter_ = Filter.parse(await whole(admin, terms))
            if filter_.id is not None:
                if dry_run or action.destroys:
                    await admin.jobs.get(filter_.id)
                if not dry_run:
                    if action.destroys:
                        confirm(f"{name} job {filter_.id}?", yes=yes)
                    done = await admin.jobs.act(name, filter_.id, wanted)
                    if action.readies and done and (still := await _still(admin, filter_.id, done)):
                        say(f"note: {safe(still)}", err=True)
                    return done
                said(f"1 job matches {filter_}. Nothing was changed.", as_json, action=name, matching=1, changed=0)
                return None
            return await act_on_many(admin, action, filter_, wanted, yes=yes, dry_run=dry_run, as_json=as_json)

        done = ask(path, url, call)
        if isinstance(done, OperationView):
            report_operation(done, as_json)
        elif done is not None:
            _report(name, done, as_json=as_json)

    decorated = terms_argument("ID|FILTER...", required=True)(acting(action, on_store(command), of_one=True))
    asks = "It always asks." if action.destroys else f"It asks above {ASKS_ABOVE} jobs."
    text = f"{action.help}\n\n{asks} `stoker jobs list --help` explains filters."
    jobs.command(name, cls=FilterCommand, help=text, epilog=EXIT_CODES)(decorated)


def option_of(one: Parameter) -> Callable[[F], F]:
    """The option of a parameter."""
    names = f"--{one.option or one.name}", one.name
    if one.plain is bool:
        return click.option(*names, is_flag=True, help=one.help)
    completes = complete_queues if one.name == "queue" else None
    return click.option(
        *names, type=one.plain, required=one.required, metavar=one.metavar, help=one.help, shell_complete=completes
    )


async def _shown_progress(admin: Operators, started: OperationView) -> OperationView:
    """Wait for an operation, with a bar on a terminal."""
    with bar(started.noun) as progress:
        return await finished(admin, started.id, progress)


def report_operation(one: OperationView, as_json: bool) -> None:
    """Say what was done, and what was left and why."""
    say(json.dumps({**plain(one), "operation": one.id}) if as_json else tally(one))
    check_failed(one)


def _report(action: str, bulk: Bulk, *, as_json: bool) -> None:
    """Say what was done to one job."""
    text = (
        f"{action}: {count_of(bulk.changed, 'job')}"
        if bulk
        else f"{action}: the job waits or runs already; nothing was changed"
    )
    if bulk.cancel_requested:
        text += "; it runs and is asked to stop"
    made = "".join(f"\n{job}" for job in bulk.created)
    facts = {"changed": bulk.changed, "cancel_requested": bulk.cancel_requested, "created": bulk.created}
    said(f"{text}{made}", as_json, action=action, **facts)


for _one in MANY.values():
    _add_command(_one)


def as_object(job: Job) -> dict[str, Any]:
    """A record as JSON can carry it; payload and result as the values they encode."""
    found: dict[str, Any] = plain(job)
    first = {name: found[name] for name in ("id", "kind", "queue", "payload")}  # what a reader looks for first
    return {**first, **found, "payload": _shown(job.payload), "result": _shown(job.result)}


def detail_object(detail: JobDetail) -> dict[str, Any]:
    """Everything about a job as one flat object."""
    more: dict[str, Any] = plain(detail)
    for name in ("job", "arguments", "value"):
        more.pop(name)
    group = more.pop("group")
    return {**as_object(detail.job), **more, **({} if group is None else {"group": group})}


def _shown(raw: bytes | None) -> Any:
    """The value of a JSON text; the text itself where it is no JSON."""
    if raw is None:
        return None
    value = display(raw)
    return raw.decode(errors="replace") if value is None and raw != b"null" else value
