"""Stoker in FastAPI and Starlette: opened and closed with the server, a worker inside it on request, a dependency.

    app = FastAPI(lifespan=lifespan(jobs, worker=True))

Needs Starlette alone, which the extras `web` and `fastapi` bring.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from typing import Any

from starlette.applications import Starlette
from starlette.requests import HTTPConnection

from stoker.app import Stoker
from stoker.model.errors import InvalidInput, StokerError
from stoker.web import Dashboard
from stoker.worker import Worker

__all__ = ["get_jobs", "lifespan"]


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
