"""Live pages: a stream per viewer that carries the parts of its page that changed, from the shared reading."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from contextlib import aclosing, contextmanager
from string import Formatter
from typing import Any, Final, NamedTuple, TypeAlias, cast
from urllib.parse import quote, urlencode

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from stoker.model.errors import InvalidArgument
from stoker.watching import QUIET, STREAM_HEADERS
from stoker.web import view
from stoker.web.hub import Want
from stoker.web.pages import (
    groups,
    health,
    job,
    job_facts,
    jobs,
    kinds,
    limits,
    lists,
    operations,
    outbox,
    overview,
    queues,
    schedules,
)
from stoker.web.problems import Problem
from stoker.web.request import RequestContext

Make: TypeAlias = Callable[..., dict[str, Any]]


class Live(NamedTuple):
    """A page with parts that change by themselves: its template, what it is made from, and where it is.

    `make` takes the visit, the shared reading and what was read for each of `wants`, and asks the store nothing.
    """

    template: str
    make: Make
    wants: Callable[[RequestContext], list[Want]] = lambda _: []
    path: str = ""

    @property
    def names(self) -> list[str]:
        """The parts of its address that name what it shows."""
        return [name for _, name, _, _ in Formatter().parse(self.path) if name]


PAGES: Final = {
    "overview": Live("overview.html", overview.live_context),
    "jobs": Live("jobs.html", jobs.live_context, jobs.wants, "jobs"),
    "job": Live("job.html", job.live_context, job_facts.wants, "jobs/{id}"),
    "queues": Live("queues.html", queues.live_context, path="queues"),
    "kinds": Live("kinds.html", kinds.live_context, kinds.wants, "kinds"),
    "kind": Live("kind.html", kinds.one_context, kinds.wants, "kinds/{name}"),
    "workers": Live("workers.html", lists.workers_context, lists.workers_wants, "workers"),
    "schedules": Live("schedules.html", schedules.live_context, schedules.wants, "schedules"),
    "limits": Live("limits.html", limits.live_context, limits.wants, "limits"),
    "queue": Live("queue.html", queues.one_context, path="queues/{name}"),
    "outbox": Live("outbox.html", outbox.live_context, outbox.wants, "outbox"),
    "consumer": Live("cursors.html", outbox.consumer_context, outbox.consumer_wants, "outbox/{stream}/{consumer}"),
    "health": Live("health.html", health.live_context, health.wants, "health"),
    "group": Live("group.html", groups.live_context, groups.wants, "groups/{id}"),
    "operation": Live("operation.html", operations.live_context, operations.wants, "operations/{id}"),
}


async def stream(visit: RequestContext) -> Response:
    """The stream of one page."""
    page, shown = _shown(visit)
    with place_of(visit) as place:
        await _parts(shown, page, page.wants(shown))  # what the address names wrongly is refused before it begins
        return Stream(_events(shown, page), place)


class Place(NamedTuple):
    """A place among the streams of one name."""

    streams: Counter[str]
    who: str

    def take(self) -> None:
        self.streams[self.who] += 1

    def leave(self) -> None:
        self.streams[self.who] -= 1
        if not self.streams[self.who]:
            del self.streams[self.who]


@contextmanager
def place_of(visit: RequestContext, otherwise: str = "This one asks from time to time instead.") -> Iterator[Place]:
    """Take a place for a stream, which gives it back at its end; an error before that gives it back at once."""
    board = visit.board
    place = Place(board.streams, visit.who.name)
    if board.streams.total() >= board.limits.streams or board.streams[place.who] >= board.limits.streams_each:
        raise Problem(429, "streams", f"Too many live pages are open. {otherwise}")
    place.take()  # before anything is awaited, so that as many as may be are as many as are
    try:
        yield place
    except BaseException:
        place.leave()
        raise


class Stream(StreamingResponse):
    """A stream that ends its generator with itself, also when its client has gone or takes nothing."""

    def __init__(self, events: AsyncGenerator[str, None], place: Place) -> None:
        super().__init__(events, media_type="text/event-stream", headers=STREAM_HEADERS)
        self._place = place

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send until the end, and give the place back."""
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._place.leave()

    async def stream_response(self, send: Send) -> None:
        """Send until the end."""
        async with aclosing(cast("AsyncGenerator[str, None]", self.body_iterator)):
            await super().stream_response(send)


def _shown(visit: RequestContext) -> tuple[Live, RequestContext]:
    """The live page that the address names, and a visit to it."""
    name = visit.parameter("page")
    if name not in PAGES:
        raise InvalidArgument("page", name, f"must be one of {', '.join(PAGES)}")
    page = PAGES[name]
    named = {part: visit.parameter(part) for part in page.names}
    path = visit.url(page.path.format(**{part: quote(value, safe="") for part, value in named.items()}))
    given = [(key, value) for key, value in visit.request.query_params.multi_items() if key not in {"page", *named}]
    request = _as_page(visit.request, path, urlencode(given), named)
    return page, RequestContext(visit.board, request, visit.id, visit.root, visit.csrf, visit.identity)


async def _parts(shown: RequestContext, page: Live, wants: Sequence[Want]) -> dict[str, str]:
    """The parts of a page as they are now."""
    hub = shown.board.hub
    found = [await hub.wanted(want, live=True) for want in wants]
    return view.pieces(page.template, page.make(shown, await hub.reading(), *found))


async def _events(shown: RequestContext, page: Live) -> AsyncGenerator[str, None]:
    board, hub = shown.board, shown.board.hub
    wants = page.wants(shown)
    hub.enter(wants)
    seen, until = hub.generation, time.monotonic() + board.limits.stream_seconds
    try:
        yield "event: hello\ndata: live\n\n"
        sent = await _parts(shown, page, wants)
        yield _message(sent)  # the store may have changed since the page was made, or while the stream was away
        while time.monotonic() < until:
            now = await hub.news(seen, QUIET)
            if not await board.still_knows(shown):
                return
            if now == seen or hub.last is None:
                yield ": still here\n\n"
                continue
            seen = now
            if hub.away_since is not None:
                yield "event: away\ndata: the store does not answer\n\n"
                continue
            pieces = view.pieces(page.template, page.make(shown, hub.last, *map(hub.known, wants)))
            changed = {name: html for name, html in pieces.items() if sent.get(name) != html}
            sent = pieces
            yield _message(changed) if changed else "event: beat\ndata: 1\n\n"
    finally:
        hub.leave(wants)


def _as_page(request: Request, path: str, query: str, named: dict[str, str]) -> Request:
    """The request as if it had asked for the page itself, so that links and ranges come out the same."""
    scope = {**request.scope, "path": path, "raw_path": path.encode(), "query_string": query.encode()}
    return Request(scope | {"path_params": named})


def _message(changed: dict[str, str]) -> str:
    """The parts as one message; the page puts each in the place of the element with its id."""
    lines = "".join(changed.values()).split("\n")
    return "".join(f"data: {line}\n" for line in lines) + "\n"


async def pieces(visit: RequestContext) -> Response:
    """The same parts once, for a page that may have no stream."""
    page, shown = _shown(visit)
    found = await _parts(shown, page, page.wants(shown))
    return Response("".join(found.values()), media_type="text/html; charset=utf-8")
