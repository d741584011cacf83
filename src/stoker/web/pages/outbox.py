"""The outbox: streams and their consumers, cursors by partition, letters that wait for a decision."""

from __future__ import annotations

from datetime import datetime
from typing import Any
from urllib.parse import quote

from starlette.responses import Response

from stoker.engines.base import Feature
from stoker.model.derived import error_line
from stoker.model.errors import NotFound
from stoker.model.findings import DELIVERED_WITHIN
from stoker.model.time import Instant, instant
from stoker.model.words import count, span
from stoker.outbox.letters import Letter
from stoker.outbox.steering import ConsumerState
from stoker.web import view
from stoker.web.pages import shared
from stoker.web.visit import Visit

SHOWN = 50


async def show(visit: Visit) -> Response:
    """Every stream with its consumers, and the latest letters."""
    reading = await visit.board.hub.reading()
    now = reading.census.at
    offered = Feature.OUTBOX in visit.board.store.root().features
    states = await visit.admin.outbox.list() if offered else []
    streams: list[dict[str, Any]] = []
    letters: list[Letter] = []
    for state in states:
        handle = visit.admin.outbox.stream(state.name)
        page = await handle.letters(limit=SHOWN)
        letters += page.letters
        waiting = {name: await handle.count_letters(consumer=name) for name in (one.name for one in state.consumers)}
        streams.append(
            {
                "name": state.name,
                "note": f"{count(state.partitions, 'partition')}, {count(state.messages, 'message')} so far",
                "consumers": [_consumer(visit, state.name, one, waiting[one.name], now) for one in state.consumers],
            }
        )
    late = [f"{stream['name']} for {one['name']}" for stream in streams for one in stream["consumers"] if one["late"]]
    sub = f"{count(len(streams), 'stream')}. "
    sub += f"Behind: {', '.join(late)}." if late else "Every consumer keeps up."
    context = view.common(visit, "outbox", "Outbox", shared.found(visit, reading)) | {
        "now": now,
        "streams": streams,
        "letters": sorted(letters, key=lambda one: one.failed, reverse=True)[:SHOWN],
        "sub": sub,
        "offered": offered,
        "may": visit.may("operate") and visit.who.reaches_all,
        "live_url": "",
    }
    return view.page(visit, "outbox.html", context)


def _consumer(visit: Visit, stream: str, one: ConsumerState, letters: int, now: Instant) -> dict[str, Any]:
    waits = _waits(one.oldest, now)
    late = waits is not None and waits > DELIVERED_WITHIN and not one.paused
    path = f"outbox/{quote(stream, safe='')}/{quote(one.name, safe='')}"
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


def _waits(oldest: datetime | None, now: Instant) -> int | None:
    return None if oldest is None else max(now - instant(oldest), 0)


async def cursors(visit: Visit) -> Response:
    """One consumer: every partition with its position."""
    stream, name = visit.request.path_params["stream"], visit.request.path_params["consumer"]
    reading = await visit.board.hub.reading()
    state = await visit.admin.outbox.stream(stream).state()
    found = next((one for one in state.consumers if one.name == name), None)
    if found is None:
        raise NotFound(f"Stream {stream} has no consumer {name}.")
    now = reading.census.at
    context = view.common(visit, "outbox", f"{name} of {stream}", shared.found(visit, reading)) | {
        "now": now,
        "stream": stream,
        "c": _consumer(visit, stream, found, 0, now),
        "partitions": found.partitions,
        "may": visit.may("operate") and visit.who.reaches_all,
        "live_url": "",
    }
    return view.page(visit, "cursors.html", context)
