"""`stoker work app:jobs`: run an app's jobs until stopped, or until nothing is due."""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from collections.abc import Callable
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

import click

from stoker.cli import logs
from stoker.cli.command import app_option
from stoker.cli.text import safe

if TYPE_CHECKING:
    from stoker.app import Stoker
    from stoker.model.scale import Bounds
    from stoker.supervisor.supervisor import Supervisor
    from stoker.worker.fetcher import Order

T = TypeVar("T")

EXIT_CODES = """\b
Exit codes:
  0   stopped as asked, or drained
  1   could not start: the app, the store, a worker process
  2   wrong usage
  70  a worker process had to be killed to stop it

\b
Signals:
  TERM, INT  drain: claim no more, finish running jobs within --grace, put the
             rest back without using an attempt; a second one hurries
  TSTP       quiet: claim no more, but stay
  HUP        replace the worker processes one by one
"""


def _queues(_ctx: click.Context, _param: click.Parameter, given: tuple[str, ...]) -> Any:
    """`-q mail:5,default:20` or `-q mail -q default`."""
    from stoker.model.errors import InvalidName, shown
    from stoker.model.job import check_name
    from stoker.settings import MOST_SLOTS

    found: dict[str, int | None] = {}
    for entry in ",".join(given).split(","):
        if not entry.strip():
            continue
        name, colon, number = entry.strip().rpartition(":")
        if colon and not (number.isascii() and number.isdigit() and len(number) < 20):
            raise click.BadParameter(f"{shown(entry)} is not a queue with a number of slots, as in mail:5,default:20")
        queue = name if colon else number
        try:
            check_name("queue", queue)
        except InvalidName as error:
            raise click.BadParameter(f"{shown(queue)} {error.why}") from None
        found[queue] = int(number) if colon else None
    for queue, slots in found.items():
        if slots is not None and not 1 <= slots <= MOST_SLOTS:
            raise click.BadParameter(f"{queue}:{shown(slots)}: a queue has 1 to {MOST_SLOTS:,} slots")
    return found or None


def _processes(_ctx: click.Context, _param: click.Parameter, given: str) -> int | Bounds:
    """`4` or `auto:1-8`."""
    from stoker.model.errors import InvalidInput
    from stoker.model.scale import MOST_PROCESSES, read_bounds

    if given.isascii() and given.isdigit() and len(given) < 4 and 1 <= int(given) <= MOST_PROCESSES:
        return int(given)
    try:
        return read_bounds(given)
    except InvalidInput as error:
        raise click.BadParameter(safe(f"{given!r} {error.why}")) from None


@click.command(epilog=EXIT_CODES)
@click.argument("target", metavar="[MODULE:APP]", required=False)
@click.option("-q", "--queues", multiple=True, callback=_queues, help="Queues and slots per process: mail:5,default:20")
@click.option("--strict", is_flag=True, help="Share the slots; serve queues in the order given.")
@click.option("--weighted", is_flag=True, help="Share the slots; larger numbers are served more.")
@click.option(
    "-p",
    "--processes",
    callback=_processes,
    default="1",
    show_default=True,
    metavar="N|auto:1-8",
    help="Worker processes; auto follows the work.",
)
@click.option("--drain", is_flag=True, help="Stop when nothing is due any more.")
@click.option("--reload/--no-reload", help="For development: replace the processes when a .py file here changes.")
@click.option("--grace", metavar="TIME", help="How long running jobs may finish after a stop, as in 30s.")
@click.option("--lease", metavar="TIME", help="How long a worker that does not renew its lease keeps its jobs.")
@click.option("--max-jobs", type=click.IntRange(1), metavar="N", help="Replace a process after about N jobs.")
@click.option("--max-rss", type=click.IntRange(1), metavar="MIB", help="Replace a process that has grown beyond this.")
@click.option("--child-memory", metavar="MIB", help='Memory of a handler\'s own process (isolation="process").')
@click.option("--health-file", metavar="PATH", help="A file that exists only while ready.")
@click.option("--health-port", type=click.IntRange(0, 65535), metavar="PORT", help="HTTP: 200 while ready, else 503.")
@click.option("--health-host", default="127.0.0.1", show_default=True, metavar="HOST", help="Address of that port.")
@click.option(
    "--metrics-port", type=click.IntRange(0, 65535), metavar="PORT", help="Prometheus metrics of all processes."
)
@click.option("--metrics-host", default="127.0.0.1", show_default=True, metavar="HOST", help="Address of that port.")
@click.option("--release", metavar="NAME", help="Release of the app. Or $STOKER_RELEASE, or the git revision here.")
@logs.options
@app_option
def work(
    target: str | None,
    path: str | None,
    queues: dict[str, int | None] | None,
    strict: bool,
    weighted: bool,
    processes: int | Bounds,
    drain: bool,
    reload: bool,
    grace: str | None,
    lease: str | None,
    max_jobs: int | None,
    max_rss: int | None,
    child_memory: str | None,
    health_file: str | None,
    health_port: int | None,
    health_host: str,
    metrics_port: int | None,
    metrics_host: str,
    release: str | None,
    log_format: logs.Format,
    log_level: str,
) -> NoReturn:
    """Run the jobs of an app: `stoker work app:jobs` for `jobs = Stoker(...)` in app.py.

    Without -q the queues of the app's tasks are served, ten slots each.
    """
    if drain and not isinstance(processes, int):
        raise click.UsageError("--processes auto follows the work, and --drain ends with it: give --drain a number")
    if strict and weighted:
        raise click.UsageError("--strict and --weighted are two orders of queues: give one of them")
    if release is not None:
        os.environ["STOKER_RELEASE"] = release  # worker processes inherit it
    order: Order = "strict" if strict else "weighted" if weighted else "own"
    app = which_app(target, path)
    for option, text in (("--grace", grace), ("--lease", lease)):
        if text is not None:
            from stoker.cli.store import read_time

            read_time(option, text)
    given = {"shutdown_grace": grace, "lease": lease, "child_memory": child_memory}
    settings = {key: value for key, value in given.items() if value is not None}
    live = sys.stderr.isatty() and log_format == "plain"
    logs.configure(log_format, log_level)
    if os.geteuid() == 0:
        logging.getLogger("stoker.cli").warning(
            "this worker runs as root, and so does every handler. Run it as a user of its own, as in User= of systemd"
        )
    found = load_app(app)
    served = _slots(found, queues, settings)
    if not _shared(found):
        beyond_one = (health_file, health_port, metrics_port)
        if processes != 1 or reload or any(option is not None for option in beyond_one):
            raise click.UsageError(
                f"{found.root().name}:// lives in one process: --processes, --health-*, --metrics-port and --reload "
                "need a shared store"
            )
        _alone(found, served, order, drain, settings)
    if metrics_port is not None:
        _check_metrics()
    from stoker.subprocesses import set_title

    number = str(processes) if isinstance(processes, int) else f"{processes.least} to {processes.most}"
    set_title(f"supervisor of {app}, {number} {'process' if processes == 1 else 'processes'}")
    screen = None
    if live:
        from stoker.cli.screen import Screen

        screen = Screen(drain=drain)
        logs.configure(log_format, log_level, screen.line)
    supervisor = _supervisor(
        app,
        processes,
        queues=served,
        order=order,
        drain=drain,
        max_jobs=max_jobs,
        max_rss=None if max_rss is None else max_rss << 20,
        reload=reload,
        health_file=health_file,
        health_port=health_port,
        health_host=health_host,
        metrics_port=metrics_port,
        metrics_host=metrics_host,
        entry="stoker.cli.child",
        extra={"log_format": log_format, "level": log_level},
        output=None if screen is None else screen.line,
        **settings,
    )
    sys.exit(supervisor.run() if screen is None else asyncio.run(_watched(supervisor, screen)))


def _supervisor(*args: Any, **options: Any) -> Supervisor:
    """Make the supervisor; an option that it refuses is a usage error."""
    from stoker.model.errors import InvalidOption
    from stoker.supervisor.supervisor import Supervisor

    try:
        return Supervisor(*args, **options)
    except InvalidOption as error:
        raise click.UsageError(safe(str(error))) from None


def _check_metrics() -> None:
    if find_spec("prometheus_client") is None:
        raise click.ClickException("--metrics-port needs prometheus-client: install stoker[prometheus]")


async def _watched(supervisor: Supervisor, screen: Any) -> int:
    showing = asyncio.ensure_future(screen.show(supervisor))
    try:
        return await supervisor.serve()
    finally:
        showing.cancel()
        await asyncio.gather(showing, return_exceptions=True)
        screen.close(supervisor)


def which_app(target: str | None, path: str | None) -> str:
    """Where the app is whose tasks are run, named like the store of every other command."""
    from stoker.cli.store import aimed, app_named

    path, url = aimed(target, path, click.get_current_context().meta.get("stoker.url"))
    found = None if url is not None else app_named(path)
    if found is None:
        raise click.UsageError(
            "which app? A worker needs its tasks, so a URL is not enough: give it as in `stoker work app:jobs` or with "
            '-A, set $STOKER_APP, or write [tool.stoker] app = "app:jobs" in pyproject.toml'
        )
    return found


def load_app(path: str) -> Stoker:
    """Import the app, or end the command with the reason why not."""
    from stoker.app_path import load

    return imported(path, load)


def imported(path: str, load: Callable[[str], T]) -> T:
    """Import what is at a path, or end the command with the reason why not."""
    from stoker.app_path import NotImportable
    from stoker.codec.error_text import describe_error
    from stoker.model.errors import InvalidOption

    try:
        return load(path)
    except NotImportable as error:
        raise click.ClickException(safe(str(error))) from None
    except BaseException as error:  # noqa: BLE001 - also a SystemExit: an import may do anything
        if isinstance(error, InvalidOption) and error.field.startswith("the environment variable "):
            raise click.UsageError(safe(f"{path} was not started. {error}")) from None
        text = f"{path} cannot be imported, so nothing was started. Fix this first:\n{describe_error(error)}"
        raise click.ClickException(safe(text)) from None


def _slots(app: Stoker, queues: dict[str, int | None] | None, settings: dict[str, Any]) -> dict[str, int] | None:
    """Fill in the slots of queues that were named without a number; bad settings are usage errors."""
    from stoker.model.errors import StokerError
    from stoker.settings import WorkerSettings, resolve

    try:
        slots = resolve(WorkerSettings, settings, environ=app.environ).slots
    except StokerError as error:
        raise click.UsageError(safe(str(error))) from None
    return None if queues is None else {name: number or slots for name, number in queues.items()}


def _shared(app: Stoker) -> bool:
    from stoker.engines.base import Feature
    from stoker.model.errors import StokerError

    try:
        return Feature.SHARED in app.root().features
    except StokerError as error:
        raise click.ClickException(safe(str(error))) from None


def _alone(app: Stoker, queues: dict[str, int] | None, order: Order, drain: bool, settings: dict[str, Any]) -> NoReturn:
    """Run the worker in this process, for a store that only this process has."""
    from stoker.model.errors import StokerError
    from stoker.supervisor.child import SWITCH_INTERVAL
    from stoker.worker import Worker
    from stoker.worker.main import run_worker

    sys.setswitchinterval(SWITCH_INTERVAL)
    try:
        run_worker(Worker(app, queues, order=order, drain=drain, **settings))
    except StokerError as error:
        raise click.ClickException(safe(str(error))) from None
    sys.exit(0)
