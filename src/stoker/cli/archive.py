"""`stoker export` and `stoker import`: jobs as lines of JSON, out of a store and into another one."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

import click

from stoker.admin import Operators
from stoker.admin.archive import Imported
from stoker.admin.as_json import plain
from stoker.cli.job_arguments import FilterCommand, terms_argument, whole
from stoker.cli.store import EXIT_CODES, as_json_option, ask, on_store
from stoker.cli.text import safe, say
from stoker.model.humanize import count
from stoker.model.seal import JSON_CLOSED

SHOWN = 10
"""The most jobs that a terminal names of those that were left out."""


@click.command(cls=FilterCommand, epilog=EXIT_CODES)
@terms_argument("[FILTER]...")
@click.option("--output", "-o", metavar="FILE", help="Write there, for its owner only, instead of to stdout.")
@click.option("--force", is_flag=True, help="Overwrite the FILE of -o if it is there already.")
@on_store
def export(terms: tuple[str, ...], output: str | None, force: bool, path: str | None, url: str | None) -> None:
    """Write jobs as lines of JSON, oldest first, with history, log, metadata, result, steps and emitted values.

    Nothing is masked.

    A running job is written as pending. Groups, events, schedules and settings are not in it. The filter is that of
    `stoker jobs list`. If a sealed app lacks the key of some values, the jobs are written without these values, and the
    exit code is 4.
    """

    async def call(admin: Operators, file: BinaryIO, progress: Callable[[int], None]) -> tuple[int, int]:
        written = closed = 0
        async for lines in admin.jobs.export(await whole(admin, terms)):
            file.write(b"".join(line + b"\n" for line in lines))
            written += len(lines)
            closed += sum(JSON_CLOSED in line for line in lines)
            progress(written)
        file.flush()
        return written, closed

    if output is not None and not force and os.path.lexists(output):
        raise click.ClickException(safe(f"{output} is there already, and stays as it is; --force overwrites it"))
    with _progress("exported") as progress, _file(output) as file:
        written, closed = ask(path, url, lambda admin: call(admin, file, progress))
    say(f"exported {count(written, 'job')}{'' if output is None else f' to {safe(output)}'}", err=True)
    if closed:
        said = f"{closed:,} of them came without values that this app has no key for; `stoker doctor` names the key"
        say(f"{said}. Export them again with it.", err=True)
        raise SystemExit(4)


@contextmanager
def _file(output: str | None) -> Generator[BinaryIO, None, None]:
    """The file, which has its name only when it is whole; without one stdout."""
    if output is None:
        yield sys.stdout.buffer
        return
    part = Path(f"{output}.part")
    try:
        with os.fdopen(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600), "wb") as file:
            yield file
        part.replace(output)
    except OSError as error:
        raise click.ClickException(
            safe(f"{output} cannot be written: {error.strerror}. Nothing was exported.")
        ) from None
    finally:
        part.unlink(missing_ok=True)


@click.command("import", epilog=EXIT_CODES)
@click.argument("file", type=click.File("rb"))
@as_json_option
@on_store
def import_(file: BinaryIO, as_json: bool, path: str | None, url: str | None) -> None:
    """Store the jobs of a FILE that `stoker export` wrote, with their ids; - is stdin.

    A job that is stored already is left as it is, so a file can be imported again after an interruption. A job whose
    unique key another active job has is left out and named; the exit code is then 4.
    """

    async def call(admin: Operators, progress: Callable[[int], None]) -> Imported:
        found = Imported()
        async for found in admin.jobs.import_(file):
            progress(found.stored + found.existing + found.blocked)
        return found

    with _progress("read") as progress:
        found = ask(path, url, lambda admin: call(admin, progress), creates=True)
    if as_json:
        say(json.dumps(plain(found)))
    else:
        say(_told(found))
    if found.blocked:
        raise SystemExit(4)


def _told(found: Imported) -> str:
    parts = [f"stored {count(found.stored, 'job')}"]
    if found.existing:
        parts.append(f"{found.existing:,} were there already")
    if found.members:
        parts.append(f"{found.members:,} came without their group")
    if found.blocked:
        more = "" if found.blocked <= SHOWN else " …"
        parts.append(
            f"{found.blocked:,} left out: unique key held by another job: {' '.join(found.left[:SHOWN])}{more}"
        )
    return "; ".join(parts)


@contextmanager
def _progress(did: str) -> Generator[Callable[[int], None], None, None]:
    """How many jobs so far, on a terminal; nothing in a pipe."""
    if not sys.stderr.isatty():
        yield lambda _: None
        return
    from rich.console import Console
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn()
    with Progress(*columns, console=Console(stderr=True), transient=True) as live:
        task = live.add_task(did)
        yield lambda n: live.update(task, description=f"{did} {count(n, 'job')}")
