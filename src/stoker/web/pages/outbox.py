"""The outbox: streams and their consumers, cursors by partition, letters that wait for a decision."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Any, Final, NamedTuple
from urllib.parse import quote

from starlette.responses import Response

from stoker.engines.base import Engine, Feature
from stoker.model.errors import NotFound
from stoker.model.findings import DELIVERED_WITHIN
from stoker.model.humanize import count, pace, span
from stoker.model.same_error import error_line
from stoker.model.time import Instant, instant
from stoker.outbox.consumers import ConsumerState, StreamState
from stoker.web import view
from stoker.web.hub import Reading, Turns, Want
from stoker.web.pages import shared
from stoker.web.request import RequestContext

SHOWN = 50
LOOKED = 200
"""Letters of parked keys that are looked at."""


class ParkedKey(NamedTuple):
    """A key whose messages wait until it is released: how many, the failed one included, and since when."""

    key: str
    waiting: int
    since: datetime


IN = ""
"""Stands for the messages that come in, where a consumer's name stands for those that it is given."""


class Seen(NamedTuple):
    """Every stream, how many letters wait for a decision about each stream's consumer, and messages per second."""

    streams: list[StreamState]
    letters: dict[tuple[str, str], int]
    pace: dict[tuple[str, str], float]


def wants(visit: RequestContext) -> list[Want]:
    """Streams with their consumers, and their letters, counted consumer by consumer."""
    turns = Turns[tuple[str, str], int](1)

    async def count_of(one: tuple[str, str]) -> int:
        stream, consumer = one
        return await visit.admin.outbox.stream(stream).count_letters(consumer=consumer)

    async def read(engine: Engine) -> tuple[Seen, int]:
        if Feature.OUTBOX not in engine.features:
            return Seen([], {}, {}), 0
        streams = await visit.admin.outbox.list()
        consumers = [(state.name, one.name) for state in streams for one in state.consumers]
        letters, calls = await turns.read(consumers, count_of)
        return Seen(streams, letters, visit.board.pace.take(_numbers(streams))), 1 + calls

    return [Want(("outbox",), read)]


def _numbers(streams: Iterable[StreamState]) -> dict[tuple[str, str], int]:
    """How many messages every stream has, and how many each consumer has passed."""
    found = {(state.name, IN): state.messages for state in streams}
    for state in streams:
        for one in state.consumers:
            found[state.name, one.name] = sum(part.position for part in one.partitions)
    return found


async def show(visit: RequestContext) -> Response:
    """Every stream with its consumers, and the latest letters."""
    reading = await visit.board.hub.reading()
    seen: Seen = await visit.board.hub.wanted(wants(visit)[0])
    letters = (await visit.admin.outbox.letters(limit=SHOWN)).letters if seen.streams else ()
    more = {"letters": letters, "pending": sum(seen.letters.values()), "chosen": NONE_CHOSEN}
    return view.page(visit, "outbox.html", live_context(visit, reading, seen) | more)


NONE_CHOSEN: Final[dict[str, str]] = {}


def live_context(visit: RequestContext, reading: Reading, seen: Seen) -> dict[str, Any]:
    """What changes by itself: the consumers of every stream."""
    now = reading.census.at
    streams: list[dict[str, Any]] = [
        {
            "name": state.name,
            "note": f"{count(state.partitions, 'partition')}, {count(state.messages, 'message')} so far",
            "comes": pace(seen.pace.get((state.name, IN))),
            "consumers": [
                _consumer(visit, state.name, one, seen.letters.get((state.name, one.name), 0), now)
                | {"goes": pace(seen.pace.get((state.name, one.name)))}
                for one in state.consumers
            ],
        }
        for state in seen.streams
    ]
    return view.common(visit, "outbox", "Outbox", shared.found(visit, reading)) | {
        "now": now,
        "streams": streams,
        "sub": _verdict(streams),
        "offered": Feature.OUTBOX in visit.board.store.root().features,
        "may": visit.may("operate") and visit.who.reaches_all,
        "live_url": visit.url("live", page="outbox"),
    }


def _verdict(streams: list[dict[str, Any]]) -> str:
    """The line above the streams; `keeps up` only where no letter waits for a person either."""
    every = [(f"{stream['name']} for {one['name']}", one) for stream in streams for one in stream["consumers"]]
    said = [
        f"{label}: {', '.join(names)}."
        for label, field in (("Behind", "late"), ("Paused", "paused"), ("Retrying", "failing"))
        if (names := [name for name, one in every if one[field]])
    ]
    letters, parked = (sum(one[field] for _, one in every) for field in ("letters", "parked"))
    waiting = [count(n, noun) for n, noun in ((letters, "letter"), (parked, "parked key")) if n]
    if waiting:
        said.append(f"{' and '.join(waiting)} {'waits' if letters + parked == 1 else 'wait'} for a decision.")
    return " ".join([f"{count(len(streams), 'stream')}.", *(said or ["Every consumer keeps up."])])


def _consumer(visit: RequestContext, stream: str, one: ConsumerState, letters: int, now: Instant) -> dict[str, Any]:
    waits = _waits(one.oldest, now)
    late = waits is not None and waits > DELIVERED_WITHIN and not one.paused
    path = consumer_path(stream, one.name)
    return {
        "name": one.name,
        "path": path,
        "url": visit.url(path),
        "paused": one.paused,
        "failing": bool(one.failures),
        "note": error_line(one.last_error) if one.failures else "",
        "waiting": [part.waiting for part in one.partitions],
        "total": one.waiting,
        "oldest": "none" if waits is None else span(waits),
        "late": late,
        "parked": one.parked,
        "letters": letters,
    }


def consumer_path(stream: str, name: str) -> str:
    """Where the page of a consumer is, below the mount."""
    return f"outbox/{quote(stream, safe='')}/{quote(name, safe='')}"


def _waits(oldest: datetime | None, now: Instant) -> int | None:
    return None if oldest is None else max(now - instant(oldest), 0)


def consumer_wants(visit: RequestContext) -> list[Want]:
    """The consumer that the address names; its stream is read."""
    stream, name = visit.request.path_params["stream"], visit.request.path_params["consumer"]

    async def read(_: Engine) -> tuple[ConsumerState, int]:
        state = await visit.admin.outbox.stream(stream).state()
        found = next((one for one in state.consumers if one.name == name), None)
        if found is None:
            raise NotFound(f"Stream {stream} has no consumer {name}.")
        return found, 1

    return [Want(("consumer", stream, name), read)]


async def cursors(visit: RequestContext) -> Response:
    """One consumer: every partition with its position."""
    found: ConsumerState = await visit.board.hub.wanted(consumer_wants(visit)[0])
    keys, all_shown = await _parked(visit, found)
    context = consumer_context(visit, await visit.board.hub.reading(), found)
    return view.page(visit, "cursors.html", context | {"keys": keys, "all_keys": all_shown})


async def _parked(visit: RequestContext, found: ConsumerState) -> tuple[list[ParkedKey], bool]:
    """Keys that are parked, the longest first, and whether these are all."""
    if not found.parked:
        return [], True
    stream = visit.admin.outbox.stream(visit.request.path_params["stream"])
    page = await stream.letters(consumer=found.name, status="parked", limit=LOOKED)
    keys: dict[str, ParkedKey] = {}
    for one in page.letters:
        before = keys.get(one.key, ParkedKey(one.key, 0, one.failed))
        keys[one.key] = ParkedKey(one.key, before.waiting + 1, min(before.since, one.failed))
    return sorted(keys.values(), key=lambda key: key.since), page.next is None


def consumer_context(visit: RequestContext, reading: Reading, found: ConsumerState) -> dict[str, Any]:
    """What is shown of a consumer; all of it changes by itself."""
    stream, now = visit.request.path_params["stream"], reading.census.at
    return view.common(visit, "outbox", f"{found.name} of {stream}", shared.found(visit, reading)) | {
        "now": now,
        "stream": stream,
        "c": _consumer(visit, stream, found, 0, now),
        "partitions": found.partitions,
        "may": visit.may("operate") and visit.who.reaches_all,
        "live_url": visit.url("live", page="consumer", stream=stream, consumer=found.name),
    }
