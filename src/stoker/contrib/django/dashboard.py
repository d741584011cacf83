"""The dashboard as a view of Django's, under WSGI and under ASGI, for staff users with permissions.

Under ASGI it runs on the server's loop and its live pages stream. Under WSGI it runs on the loop of Stoker's sync
callers, and live pages ask every 15 seconds. Django knows the user, the session and the host; the dashboard has its own
defence against forged requests, so Django's is off here.
"""

from __future__ import annotations

import asyncio
from typing import Any

from asgiref.sync import sync_to_async
from django.conf import settings
from django.core.exceptions import ImproperlyConfigured, PermissionDenied
from django.core.handlers.asgi import ASGIRequest
from django.http import HttpRequest, HttpResponse, HttpResponseBase, StreamingHttpResponse
from django.shortcuts import resolve_url
from django.views.decorators.csrf import csrf_exempt

from stoker.contrib.django.app import the_app
from stoker.model.access import Identity, Role
from stoker.sync import shared
from stoker.web import Dashboard, dashboard
from stoker.web.bridge import Answer, answer, http_scope, without_streams

ROLES: tuple[tuple[str, Role], ...] = (
    ("stoker.administer_dashboard", "admin"),
    ("stoker.operate_dashboard", "operate"),
    ("stoker.view_dashboard", "read"),
)
"""Permissions, and the role of the dashboard that each gives."""

IDENTITY = "stoker.identity"

_boards: dict[tuple[Any, ...], tuple[Dashboard, Any]] = {}


@csrf_exempt
async def view(request: HttpRequest, path: str, **options: Any) -> HttpResponseBase:
    """Let the dashboard answer; `options` are those of `stoker.web.dashboard`, given in the URL configuration."""
    streams = isinstance(request, ASGIRequest)
    identity, body = await sync_to_async(_visitor)(request)
    root = request.path[: len(request.path) - len(path)].rstrip("/")
    headers = [(name, value) for name, value in request.headers.items() if name != "Host"]
    scope = http_scope(
        method=request.method or "GET",
        scheme=request.scheme or "http",
        path=request.path,
        root=root,
        query=request.META.get("QUERY_STRING", ""),
        headers=[*headers, ("host", request.get_host())],
        client=request.META.get("REMOTE_ADDR") or None,
        **{IDENTITY: identity},
    )
    board = _board(options, streams=streams)
    if streams:
        return _response(await answer(board, scope, body))
    answering = asyncio.run_coroutine_threadsafe(answer(board, scope, body), shared.loop)
    return _response(await asyncio.wrap_future(answering))


view.login_required = False  # the dashboard sends visitors to sign in by itself


def _visitor(request: HttpRequest) -> tuple[Identity | None, bytes]:
    """Who asks, with the role that their permissions give; None: the visitor has not signed in. And the body."""
    user = getattr(request, "user", None)
    if user is None:
        raise ImproperlyConfigured(
            "the dashboard asks Django who the visitor is: add django.contrib.auth's AuthenticationMiddleware to "
            "MIDDLEWARE."
        )
    if not user.is_authenticated:
        return None, request.body
    role = next((role for permission, role in ROLES if user.is_staff and user.has_perm(permission)), None)
    if role is None:
        raise PermissionDenied("The dashboard is for staff users with the permission stoker.view_dashboard.")
    return Identity(str(user.get_username())[:200], role), request.body


def _board(options: dict[str, Any], *, streams: bool) -> Dashboard:
    """The dashboard of these options on the app's present store, made once."""
    app = the_app()
    engine = app.root()
    key = (streams, *sorted((name, id(value)) for name, value in options.items()))
    known = _boards.get(key)
    if known is None or known[1] is not engine:
        given = dict(options)
        login_url = resolve_url(given.pop("login_url", None) or settings.LOGIN_URL)
        if not streams:
            given["limits"] = without_streams(given.get("limits"))
        board = dashboard(app, auth=lambda visit: visit.scope[IDENTITY], login_url=login_url, **given)
        known = _boards[key] = board, engine
    return known[0]


def _response(given: Answer) -> HttpResponseBase:
    made: HttpResponseBase
    if given.rest is None:
        made = HttpResponse(given.body, status=given.status)
    else:
        made = StreamingHttpResponse(given.rest, status=given.status)
    del made.headers["content-type"]
    for name, value in given.headers:
        if name == "location":
            made.url = value  # where Django's own redirects have it
        if name == "set-cookie":
            made.cookies.load(value)
        else:
            made.headers[name] = value
    return made
