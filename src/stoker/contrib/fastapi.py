"""Stoker in FastAPI and Starlette: opened and closed with the server, a worker inside it on request, a dependency.

    app = FastAPI(lifespan=lifespan(jobs, worker=True))

Needs Starlette alone, which the extras `web` and `fastapi` bring.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, aclosing, asynccontextmanager
from typing import Any, cast

from starlette.applications import Starlette
from starlette.requests import HTTPConnection
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from stoker.app import Stoker
from stoker.handle import JobHandle
from stoker.model.errors import InvalidInput, NotFound, StokerError
from stoker.watching import EVENT_STREAM, STREAM_HEADERS, over
from stoker.web import Dashboard
from stoker.worker import Worker

__all__ = ["get_jobs", "job_stream", "lifespan"]


def lifespan(
    jobs: Stoker, *, worker: bool | Worker = False, board: Dashboard | None = None
) -> Callable[[Any], AbstractAsyncContextManager[None]]:
    """Open the app's store before the first request and close it after the last one: `FastAPI(lifespan=...)`.

    `worker`: run jobs inside the web process, with a `Worker(jobs, ...)` of yours or, if true, with one that serves the
    queues of all tasks. When the server stops, running jobs have the worker's grace to finish, and the rest is handed
    back. Inside a `TestKit` no worker starts: there the kit runs the jobs. `board`: a mounted dashboard to close.

    A lifespan of your own surrounds it: `async with lifespan(jobs)(app): yield`.
    """
    if not isinstance(jobs, Stoker):
        raise InvalidInput("jobs", jobs, "must be your app, jobs = Stoker(...)")
    if not isinstance(worker, bool | Worker) or (isinstance(worker, Worker) and worker.app is not jobs):
        raise InvalidInput("worker", worker, "must be True, False or a Worker of this very app")
    if board is not None and not isinstance(board, Dashboard):
        raise InvalidInput("board", board, "must be a dashboard that you mount, board = dashboard(jobs, ...)")

    @asynccontextmanager
    async def opened(app: Starlette) -> AsyncIterator[None]:
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(jobs)
            if board is not None:
                stack.push_async_callback(board.close)
            if worker and not jobs.tested:
                await stack.enter_async_context(Worker(jobs) if worker is True else worker)
            app.state.stoker = jobs
            yield

    return opened


def get_jobs(connection: HTTPConnection) -> Stoker:
    """The `Stoker` of the app that serves this request: `Annotated[Stoker, Depends(get_jobs)]`, or called by yourself.

    Raises `StokerError` in an app that was not started with `lifespan(jobs)`.
    """
    found = getattr(connection.app.state, "stoker", None)
    if not isinstance(found, Stoker):
        raise StokerError(
            "this web app has no Stoker: make it with FastAPI(lifespan=lifespan(jobs)), or Starlette(lifespan=...), "
            "and in tests enter its client: `with TestClient(app) as client:`."
        )
    return found


class _JobStream(Response):
    """A response that follows a job. It reads `Last-Event-ID` when it is sent, so a route need not."""

    media_type = EVENT_STREAM

    def __init__(self, job: JobHandle[Any]) -> None:
        super().__init__(headers=STREAM_HEADERS)
        self._job = job

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send events until the end; what is refused is a plain answer."""
        after = HTTPConnection(scope).headers.get("last-event-id") or None
        answer: Response
        try:
            answer = Response(status_code=204) if over(after) else _Sent(await self._job.sse(after))
        except NotFound as error:
            answer = PlainTextResponse(str(error), 404)
        except InvalidInput as error:
            answer = PlainTextResponse(str(error), 400)
        await answer(scope, receive, send)


class _Sent(StreamingResponse):
    """A stream that ends its generator with itself, also when its client has gone."""

    def __init__(self, frames: AsyncGenerator[str, None]) -> None:
        super().__init__(frames, media_type=EVENT_STREAM, headers=STREAM_HEADERS)

    async def stream_response(self, send: Send) -> None:
        async with aclosing(cast("AsyncGenerator[str, None]", self.body_iterator)):
            await super().stream_response(send)


def job_stream(job: JobHandle[Any]) -> Response:
    """A response that follows a job as server-sent events: `new EventSource("/reports/…/stream")` in a browser.

    The events are those of `job.watch()`, named `emitted`, `progressed`, `logged`, `changed`, `missed` and `ended`.
    A browser that loses the connection goes on behind the last event; one that has seen the end gets 204 and stays
    away. 404: there is no such job. Check who asks before you return it.
    """
    return _JobStream(job)
