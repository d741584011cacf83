"""Live pages: a stream per viewer that carries the parts of its page that changed, from the shared reading."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable
from typing import Any, Final
from urllib.parse import urlencode

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from stoker.model.errors import InvalidInput
from stoker.web import view
from stoker.web.hub import Reading
from stoker.web.pages import jobs, lists, overview, queues
from stoker.web.problems import Problem
from stoker.web.visit import Visit

PAGES: Final[dict[str, tuple[str, Callable[[Visit, Reading], dict[str, Any]]]]] = {
    "overview": ("overview.html", overview.live_context),
    "jobs": ("jobs.html", jobs.live_context),
    "queues": ("queues.html", queues.live_context),
    "kinds": ("kinds.html", lists.kinds_context),
}
"""Pages with parts that change by themselves: their template and what it is made from, without a store call."""

QUIET = 15.0
"""Seconds after which a stream without news says that it lives."""


async def stream(visit: Visit) -> Response:
    """The stream of one page."""
    board, page = visit.board, visit.parameter("page")
    if page not in PAGES:
        raise InvalidInput("page", page, f"must be one of {', '.join(PAGES)}")
    who = visit.who.name
    if board.hub.viewers >= board.limits.streams or board.streams.get(who, 0) >= board.limits.streams_each:
        raise Problem(429, "streams", "Too many live pages are open. This one asks from time to time instead.")
    await board.hub.reading()
    return StreamingResponse(_events(visit, page), media_type="text/event-stream", headers={"x-accel-buffering": "no"})


async def _events(visit: Visit, page: str) -> AsyncIterator[str]:
    board, hub = visit.board, visit.board.hub
    template, make = PAGES[page]
    path = visit.url("" if page == "overview" else page)
    given = [(name, value) for name, value in visit.request.query_params.multi_items() if name != "page"]
    shown = Visit(
        board, _as_page(visit.request, path, urlencode(given)), visit.id, visit.root, visit.csrf, visit.identity
    )
    who, sent = visit.who.name, dict[str, str]()
    board.streams[who] = board.streams.get(who, 0) + 1
    hub.enter()
    seen, until = hub.generation, time.monotonic() + board.limits.stream_seconds
    try:
        yield "event: hello\ndata: live\n\n"
        sent = view.pieces(template, make(shown, await hub.reading()))
        yield _message(sent)  # the store may have changed since the page was made, or while the stream was away
        while time.monotonic() < until:
            now = await hub.news(seen, QUIET)
            if now == seen or hub.last is None:
                yield ": still here\n\n"
                continue
            seen = now
            if hub.away_since is not None:
                yield "event: away\ndata: the store does not answer\n\n"
                continue
            pieces = view.pieces(template, make(shown, hub.last))
            changed = {name: html for name, html in pieces.items() if sent.get(name) != html}
            sent = pieces
            yield _message(changed) if changed else "event: beat\ndata: 1\n\n"
    finally:
        hub.leave()
        board.streams[who] -= 1
        if not board.streams[who]:
            del board.streams[who]


def _as_page(request: Request, path: str, query: str) -> Request:
    """The request as if it asked for the page, so that its links are the same."""
    scope = {**request.scope, "path": path, "raw_path": path.encode(), "query_string": query.encode()}
    return Request(scope)


def _message(changed: dict[str, str]) -> str:
    parts = (
        f'<hx-partial hx-target="#{name}" hx-swap="outerMorph">{html}</hx-partial>' for name, html in changed.items()
    )
    lines = "".join(parts).split("\n")
    return "".join(f"data: {line}\n" for line in lines) + "\n"


async def pieces(visit: Visit) -> Response:
    """The same parts once, for a page that may have no stream."""
    page = visit.parameter("page")
    if page not in PAGES:
        raise InvalidInput("page", page, f"must be one of {', '.join(PAGES)}")
    template, make = PAGES[page]
    path = visit.url("" if page == "overview" else page)
    given = [(name, value) for name, value in visit.request.query_params.multi_items() if name != "page"]
    shown = Visit(
        visit.board, _as_page(visit.request, path, urlencode(given)), visit.id, visit.root, visit.csrf, visit.identity
    )
    found = view.pieces(template, make(shown, await visit.board.hub.reading()))
    return Response("".join(found.values()), media_type="text/html; charset=utf-8")
