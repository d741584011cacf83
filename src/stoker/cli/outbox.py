"""`stoker outbox …`: streams, what waits for their consumers, letters; steer consumers, and run them."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from operator import attrgetter, itemgetter
from typing import Any, Literal, TypeVar, cast

import click

from stoker.admin import Operators
from stoker.admin.as_json import plain
from stoker.admin.letter_walk import OnLetters
from stoker.cli import logs
from stoker.cli.command import NearestGroup, app_option
from stoker.cli.operations import check_failed, finished
from stoker.cli.store import EXIT_CODES, act_on, as_json_option, ask, confirm, on_store, on_target, read_time, said
from stoker.cli.tables import Columns, as_lines_option, columns, mark, table
from stoker.cli.text import one_line, say
from stoker.cli.work import EXIT_CODES as WORK_EXIT_CODES
from stoker.model.errors import NotFound, shown
from stoker.model.humanize import count
from stoker.model.outbox.letters import LARGEST_PAGE, LetterStatus
from stoker.model.time import SECOND
from stoker.outbox.consumers import ConsumerState, PartitionState, StreamState
from stoker.outbox.letters import Letter

F = TypeVar("F", bound=Callable[..., Any])


@click.group(cls=NearestGroup)
def outbox() -> None:
    """Show streams and letters; replay, release, seek, pause, resume; run consumers."""


def chosen(command: F) -> F:
    """Give a command the options that choose letters."""
    for option in (
        click.option("--type", metavar="TYPE", help="Only letters of this type."),
        click.option("--partition", type=click.IntRange(0), metavar="N", help="Only letters of this partition."),
        click.option("--key", metavar="KEY", help="Only letters of this key."),
        click.option("--consumer", metavar="NAME", help="Only letters of this consumer."),
    ):
        command = option(command)
    return command


# --- looking --------------------------------------------------------------------------------------------------------


@outbox.command("list")
@as_lines_option
@on_target
def list_(as_json: bool, path: str | None, url: str | None) -> None:
    """List streams: how many messages they had, and what waits."""
    table(ask(path, url, lambda admin: admin.outbox.list()), STREAMS, as_json, empty="No stream is in the store.")


@outbox.command("show", epilog=EXIT_CODES)
@click.argument("stream")
@as_lines_option
@on_store
def show_(stream: str, as_json: bool, path: str | None, url: str | None) -> None:
    """Show a stream with its consumers, and the partitions of each that have something to do."""
    found = ask(path, url, lambda admin: admin.outbox.stream(stream).state())
    table([found], STREAMS, as_json)
    if as_json:
        return
    say("")
    table([(found.name, one) for one in found.consumers], CONSUMERS, empty="No consumer reads it yet.")
    rows = [
        (one.name, part)
        for one in found.consumers
        for part in one.partitions
        if part.waiting or part.holder or part.failures or part.parked
    ]
    if rows:
        say("")
        table(rows, PARTITIONS)


@outbox.command(epilog=EXIT_CODES)
@click.argument("stream", required=False)
@as_lines_option
@on_store
def lag(stream: str | None, as_json: bool, path: str | None, url: str | None) -> None:
    """Show how far each consumer is behind, the oldest first."""

    async def look(admin: Operators) -> list[StreamState]:
        return await admin.outbox.list() if stream is None else [await admin.outbox.stream(stream).state()]

    pairs = [(one.name, consumer) for one in ask(path, url, look) for consumer in one.consumers]
    late = datetime.max.replace(tzinfo=UTC)
    pairs.sort(key=lambda pair: (pair[1].oldest or late, pair[0], pair[1].name))
    table(
        pairs,
        CONSUMERS,
        as_json,
        lambda pair: {"stream": pair[0], **_without_partitions(pair[1])},
        empty="No stream has a consumer.",
    )


@outbox.command(epilog=EXIT_CODES)
@click.argument("stream")
@chosen
@click.option(
    "--status",
    type=click.Choice([*(one.value for one in LetterStatus), "all"]),
    default="pending",
    show_default=True,
    help="Only letters of this status.",
)
@click.option("--limit", type=click.IntRange(1), default=25, show_default=True, help="Maximum number of letters.")
@as_lines_option
@on_store
def letters(
    stream: str, status: str, limit: int, as_json: bool, path: str | None, url: str | None, **given: Any
) -> None:
    """List messages that could not be delivered, latest failure first."""

    async def look(admin: Operators) -> list[Letter]:
        handle = admin.outbox.stream(stream)
        _check_chosen(await handle.state(), given)
        found: list[Letter] = []
        before: str | None = None
        while True:
            size = min(limit - len(found), LARGEST_PAGE)
            page = await handle.letters(status=None if status == "all" else status, limit=size, before=before, **given)
            found += page.letters
            before = page.next
            if before is None or len(found) >= limit:
                return found

    found = ask(path, url, look)
    table(found, LETTERS, as_json, _letter_object, goes_first=LETTERS_GO_FIRST, empty="No letter matches.")


# --- letters --------------------------------------------------------------------------------------------------------


def _on_letters(name: OnLetters, text: str, *, asks: bool) -> None:
    """Add a command that changes letters by ids, or those that fail up to now by a filter, in an operation."""

    def command(
        stream: str,
        ids: tuple[str, ...],
        everything: bool,
        yes: bool,
        as_json: bool,
        path: str | None,
        url: str | None,
        **given: Any,
    ) -> None:
        if not ids and not everything and not any(value is not None for value in given.values()):
            raise click.UsageError(f"which letters? Name ids, a filter, or --all to {name} all of them")

        async def change(admin: Operators) -> int:
            handle = admin.outbox.stream(stream)
            _check_chosen(await handle.state(), given)
            if not ids:
                found = await admin.outbox.preview(name, stream=stream, **given)
                if asks:
                    confirm(f"{name} {count(found.count, 'letter')} of stream {stream}?", yes=yes)
                started = await admin.operations.start_on_letters(
                    name, stream=stream, counted_at=found.counted_at, total=found.count, **given
                )
                ended = await finished(admin, started.id)
                check_failed(ended)
                return ended.changed
            do = {"replay": handle.replay, "resolve": handle.resolve, "discard": handle.discard}
            changed: int = await cast("Any", do[name])(ids, **given)
            if not changed:
                raise NotFound(
                    f"no letter of stream {stream} with such an id can be {PAST[name]}: "
                    f"`stoker outbox letters {stream} --status all` shows them. Nothing was changed."
                )
            return changed

        changed = ask(path, url, change)
        said(f"{name}: {count(changed, 'letter')}", as_json, action=name, changed=changed)

    decorated: Any = on_store(as_lines_option(chosen(command)))
    for option in (
        click.option("--yes", is_flag=True, help="Do not ask."),
        click.option("--all", "everything", is_flag=True, help="All letters of the stream."),
        click.argument("ids", metavar="[ID]...", nargs=-1),
        click.argument("stream"),
    ):
        decorated = option(decorated)
    outbox.command(name, help=text, epilog=EXIT_CODES)(decorated)


_on_letters(
    "replay",
    "Have consumers deliver pending letters again, each in the next turn on its partition.",
    asks=False,
)
_on_letters(
    "resolve", "Note that pending and parked letters were dealt with in another way; they stay listed.", asks=True
)
_on_letters("discard", "Give pending and parked letters up; they stay listed as discarded.", asks=True)


@outbox.command(epilog=EXIT_CODES)
@click.argument("stream")
@click.argument("id_", metavar="ID")
@click.option("--consumer", metavar="NAME", help="Of this consumer; by default the one that failed last.")
@click.option("--reveal", is_flag=True, help="Show its body too, which the audit log notes.")
@as_json_option
@on_store
def letter(
    stream: str, id_: str, consumer: str | None, reveal: bool, as_json: bool, path: str | None, url: str | None
) -> None:
    """Show a letter: why it was not delivered, its headers, and the other letters of its key."""

    async def look(admin: Operators) -> tuple[Letter, Sequence[Letter], bytes | None]:
        handle = admin.outbox.stream(stream)
        found = await handle.letter(id_, consumer=consumer)
        near = await handle.letters(consumer=found.consumer, key=found.key, status=None)
        body = await handle.reveal(id_, consumer=found.consumer) if reveal else None
        return found, near.letters, body

    found, near, body = ask(path, url, look)
    if as_json:
        shown = {**_letter_object(found), "letters_of_its_key": [one.id for one in near]}
        del shown["payload"]
        say(json.dumps(shown if body is None else {**shown, "payload": body.decode(errors="replace")}, default=str))
        return
    facts = {name: getattr(found, name) for name in ("id", "stream", "consumer", "partition", "number", "key", "type")}
    facts |= {"status": found.status.value, "attempts": found.attempts, "appended": found.created}
    facts |= {"failed": found.failed, "ended": found.ended, "trace": found.trace_id, **found.headers}
    for name, value in facts.items():
        if value is not None:
            say(f"{name + ':':<12} {value}")
    say(f"\n{found.reason}")
    if body is not None:
        say(f"\n{body.decode(errors='replace')}")
    if len(near) > 1:
        say("")
        table(sorted(near, key=attrgetter("number")), LETTERS, goes_first=LETTERS_GO_FIRST)


@outbox.command(epilog=EXIT_CODES)
@click.argument("stream")
@click.argument("id_", metavar="ID")
@click.option("--payload", required=True, metavar="JSON", help="The new body; - reads it from standard input.")
@click.option("--consumer", metavar="NAME", help="Of this consumer; by default the one that failed last.")
@as_json_option
@on_store
def replace(
    stream: str, id_: str, payload: str, consumer: str | None, as_json: bool, path: str | None, url: str | None
) -> None:
    """Append the message of a pending letter anew with another body, and resolve the letter.

    The new message has an id of its own and the header `replaces`; every consumer of the stream gets it.
    """
    body = sys.stdin.buffer.read() if payload == "-" else payload.encode()
    new = ask(path, url, lambda admin: admin.outbox.stream(stream).replace(id_, body, consumer=consumer))
    text = f"message {new} of stream {stream} was appended in its place; the letter is resolved"
    said(text, as_json, stream=stream, letter=id_, message=new)


@outbox.command(epilog=EXIT_CODES)
@click.argument("stream")
@click.option("--older-than", required=True, metavar="TIME", help="Those that ended longer ago, as in 30d.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@as_json_option
@on_store
def clean(stream: str, older_than: str, yes: bool, as_json: bool, path: str | None, url: str | None) -> None:
    """Delete letters that were resolved or discarded long ago; others are never deleted."""
    age = read_time("--older-than", older_than) / SECOND

    async def call(admin: Operators) -> int:
        handle = admin.outbox.stream(stream)
        await handle.state()
        confirm(f"delete letters of stream {stream} that ended over {older_than} ago?", yes=yes)
        return await handle.clean(age)

    removed = ask(path, url, call)
    said(f"clean: {count(removed, 'letter')}", as_json, action="clean", stream=stream, changed=removed)


@outbox.command(epilog=EXIT_CODES)
@click.argument("stream")
@click.argument("key")
@click.option("--consumer", metavar="NAME", help="Only for this consumer; by default for all.")
@as_json_option
@on_store
def release(stream: str, key: str, consumer: str | None, as_json: bool, path: str | None, url: str | None) -> None:
    """Deliver the letters of a parked key, in order, and then its newer messages."""
    ask(path, url, lambda admin: admin.outbox.stream(stream).release(key, consumer=consumer))
    text = f"key {key} of stream {stream} is released; the next turn delivers its letters"
    said(text, as_json, stream=stream, key=key, consumer=consumer, released=True)


# --- consumers ------------------------------------------------------------------------------------------------------


for _verb, _text, _done, _asks in (
    ("pause", "Deliver nothing more to a consumer; its messages are kept.", "paused", ""),
    ("resume", "Deliver to a consumer again.", "resumed", ""),
    (
        "drop",
        "Forget a consumer with its position, letters and parked keys.",
        "dropped",
        "forget consumer {consumer} of stream {stream} with its position, letters and parked keys?",
    ),
):
    act_on(
        outbox,
        _verb,
        _text,
        f"consumer {{consumer}} of stream {{stream}} is {_done}",
        lambda admin, stream, consumer, verb=_verb: getattr(admin.outbox.stream(stream), verb)(consumer),
        on=["stream", "consumer"],
        asks=_asks,
        **{_done: True},
    )


@outbox.command(epilog=EXIT_CODES)
@click.argument("stream")
@click.argument("consumer")
@click.argument("to", metavar="beginning|end|TIME|PARTITION=NUMBER,...")
@click.option("--yes", is_flag=True, help="Do not ask.")
@as_json_option
@on_store
def seek(stream: str, consumer: str, to: str, yes: bool, as_json: bool, path: str | None, url: str | None) -> None:
    """Move a consumer: to the oldest kept message, behind the newest, to a time, or by partition.

    A time is UTC unless it says otherwise: 2026-11-16T14:00. A number is that of the last message that is passed.
    """
    target = _target(to)
    question = f"messages may come again or be passed over: move consumer {consumer} of stream {stream} to {to}?"
    confirm(question, yes=yes)
    ask(path, url, lambda admin: admin.outbox.stream(stream).seek(consumer, target))
    text = f"consumer {consumer} of stream {stream} goes on at {to}"
    said(text, as_json, stream=stream, consumer=consumer, to=to)


def _target(to: str) -> Literal["beginning", "end"] | datetime | dict[int, int]:
    ends: dict[str, Literal["beginning", "end"]] = {"beginning": "beginning", "end": "end"}
    if to in ends:
        return ends[to]
    try:
        if "=" in to:
            pairs = [one.split("=") for one in to.split(",")]
            return {int(partition): int(number) for partition, number in pairs}
        found = datetime.fromisoformat(to)
    except ValueError:
        why = f"{to!r} is neither beginning nor end, nor a time as 2026-11-16T14:00, nor partitions as 0=17,1=20"
        raise click.BadParameter(why, param_hint="TO") from None
    return found if found.tzinfo is not None else found.replace(tzinfo=UTC)


# --- running --------------------------------------------------------------------------------------------------------


@outbox.command("run", epilog=WORK_EXIT_CODES)
@click.argument("target", metavar="[MODULE:APP]", required=False)
@click.option("-p", "--processes", type=click.IntRange(1, 256), default=1, show_default=True, help="Worker processes.")
@click.option("--drain", is_flag=True, help="Stop when nothing can be delivered any more.")
@click.option("--grace", metavar="TIME", help="How long a batch may finish after a stop, as in 30s.")
@logs.options
@app_option
@click.pass_context
def run_(
    context: click.Context,
    target: str | None,
    path: str | None,
    processes: int,
    drain: bool,
    grace: str | None,
    log_format: str,
    log_level: str,
) -> None:
    """Deliver the outboxes of an app, without running its jobs: `stoker work` without queues.

    `stoker work` delivers them too; this is for processes of their own.
    """
    from stoker.cli.work import load_app, which_app, work

    app = which_app(target, path)
    if not len(load_app(app).services):
        raise click.UsageError(f"{app} has no Outbox, so there is nothing to deliver")
    context.invoke(
        work,
        target=app,
        queues={},
        processes=processes,
        drain=drain,
        grace=grace,
        log_format=log_format,
        log_level=log_level,
    )


# --- rows -----------------------------------------------------------------------------------------------------------


PAST = {"replay": "replayed", "resolve": "resolved", "discard": "discarded"}


def _first_line(text: str | None) -> str:
    return "" if text is None else one_line(text.strip().partition("\n")[0], 80)


def _letter_object(one: Letter) -> dict[str, Any]:
    found: dict[str, Any] = plain(one)
    if not one.raw:
        try:
            found["payload"] = json.loads(one.payload)
        except ValueError:
            found["payload"] = one.payload.decode(errors="replace")
    return found


def _without_partitions(one: ConsumerState) -> dict[str, Any]:
    found: dict[str, Any] = plain(one)
    del found["partitions"]
    return {**found, "error": one.last_error}


def _check_chosen(stream: StreamState, given: dict[str, Any]) -> None:
    """Refuse a consumer or a partition that the stream has not: a typing error would find no letters."""
    consumer, partition, known = given["consumer"], given["partition"], [one.name for one in stream.consumers]
    if consumer is not None and consumer not in known:
        names = ", ".join(known) or "none"
        raise NotFound(f"stream {stream.name!r} has no consumer {shown(consumer)} (known: {names}). Nothing was done.")
    if partition is not None and partition >= stream.partitions:
        raise NotFound(f"stream {stream.name!r} has partitions 0 to {stream.partitions - 1}. Nothing was done.")


def _of_second(*heads: str) -> dict[str, Any]:
    """Columns of a state that stands behind the name of what it belongs to."""
    return {head: lambda pair, get=attrgetter(field): get(pair[1]) for head, field in columns(*heads).items()}


def _state(one: ConsumerState) -> object:
    if one.paused:
        return mark("paused", "warn")
    return mark("failing", "bad") if one.failures else "open"


STREAMS: Columns[StreamState] = {
    **columns("stream=name", "partitions", "messages"),
    "consumers": lambda one: len(one.consumers),
    "waiting": lambda one: max((each.waiting for each in one.consumers), default=0),
    "oldest": lambda one: min((each.oldest for each in one.consumers if each.oldest is not None), default=None),
}
CONSUMERS: Columns[tuple[str, ConsumerState]] = {
    "stream": itemgetter(0),
    **_of_second("consumer=name"),
    "state": lambda pair: _state(pair[1]),
    **_of_second("waiting", "oldest", "failures", "parked"),
    "error": lambda pair: _first_line(pair[1].last_error),
}
PARTITIONS: Columns[tuple[str, PartitionState]] = {
    "consumer": itemgetter(0),
    **_of_second("partition", "position", "last", "waiting", "oldest", "attempts", "holder"),
    "error": lambda pair: _first_line(pair[1].last_error),
}
LETTERS: Columns[Letter] = {
    **columns("id", "consumer", "partition", "number", "key", "type"),
    "status": lambda one: f"{one.status.value}, due" if one.due else one.status.value,
    **columns("attempts", "failed"),
    "reason": lambda one: _first_line(one.reason),
    **columns("body=preview"),
}
LETTERS_GO_FIRST = ("number", "partition", "consumer", "attempts", "failed", "body", "type")
"""What a narrow terminal does without."""
