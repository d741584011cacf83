"""Responses that follow a job as server-sent events, under WSGI and under ASGI."""

from __future__ import annotations

from typing import Any

from asgiref.sync import async_to_sync
from django.core.handlers.asgi import ASGIRequest
from django.http import HttpRequest, HttpResponse, HttpResponseBase, StreamingHttpResponse

from stoker.handle import JobHandle
from stoker.model.errors import InvalidInput, NotFound
from stoker.watching import EVENT_STREAM, STREAM_HEADERS, over


def job_stream(request: HttpRequest, job: JobHandle[Any]) -> HttpResponseBase:
    """A response of a plain view that follows a job: `new EventSource("/reports/…/stream")` in a browser.

    The events are those of `job.watch()`; a browser that loses the connection goes on behind the last event. Under WSGI
    a stream keeps a thread of the server busy; under ASGI it does not. 404: there is no such job.
    """
    if isinstance(request, ASGIRequest):
        return async_to_sync(ajob_stream)(request, job)  # on the server's loop, which sends it
    after = request.headers.get("last-event-id") or None
    try:
        return HttpResponse(status=204) if over(after) else _response(job.sse_sync(after))
    except (NotFound, InvalidInput) as error:
        return _refused(error)


async def ajob_stream(request: HttpRequest, job: JobHandle[Any]) -> HttpResponseBase:
    """`job_stream` for an async view, under ASGI."""
    after = request.headers.get("last-event-id") or None
    try:
        return HttpResponse(status=204) if over(after) else _response(await job.sse(after))
    except (NotFound, InvalidInput) as error:
        return _refused(error)


def _response(frames: Any) -> HttpResponseBase:
    return StreamingHttpResponse(frames, content_type=EVENT_STREAM, headers=STREAM_HEADERS)


def _refused(error: Exception) -> HttpResponse:
    status = 404 if isinstance(error, NotFound) else 400
    return HttpResponse(str(error), status=status, content_type="text/plain")
