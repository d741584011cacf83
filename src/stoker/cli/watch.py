"""`stoker jobs watch`: what a job emits, its progress, log and status, as it happens."""

from __future__ import annotations

import json
from contextlib import aclosing

import click
import msgspec

from stoker.admin import Operators
from stoker.cli.job_arguments import job_argument, whole_id
from stoker.cli.store import EXIT_CODES, as_json_option, ask, on_store
from stoker.cli.text import one_line, say
from stoker.model.humanize import count
from stoker.watching import Changed, Emitted, Logged, Missed, News, Progressed


@click.command(epilog=EXIT_CODES)
@job_argument
@click.option("--after", metavar="CURSOR", help="Go on behind the event with this number or cursor.")
@as_json_option
@on_store
def watch(job: str, after: str | None, as_json: bool, path: str | None, url: str | None) -> None:
    """Follow a job until it has ended: values, progress, log and status."""

    async def follow(admin: Operators) -> None:
        async with aclosing(admin.jobs.watch(await whole_id(admin, job), after)) as events:
            async for event in events:
                if event is not None:
                    say(_as_json(event) if as_json else _as_text(event))

    ask(path, url, follow)


def _as_json(event: News) -> str:
    return json.dumps({"event": type(event).__name__.lower(), **msgspec.to_builtins(event)}, ensure_ascii=False)


def _as_text(event: News) -> str:
    match event:
        case Emitted():
            return one_line(f"{event.n}: {json.dumps(event.value, ensure_ascii=False)}")
        case Progressed():
            data = "" if event.data is None else f" {json.dumps(event.data, ensure_ascii=False)}"
            return one_line(f"{event.fraction:.0%} {event.text or ''}{data}".rstrip())
        case Logged():
            return "\n".join(one_line(f"log: {line}") for line in event.lines)
        case Missed():
            why = "no longer kept, or sealed with a key that is not here"
            return f"{count(event.count, 'value')} cannot be shown: {why}"
        case Changed():
            attempt = f", attempt {event.attempt}" if event.attempt else ""
            return f"{event.status}{attempt}"
