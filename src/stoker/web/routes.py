"""Every address of the dashboard: method, path, the role it needs, and what answers."""

from __future__ import annotations

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from stoker.web import actions, assets, live, tokens, view
from stoker.web.api import document
from stoker.web.api.endpoint import ROOT
from stoker.web.api.endpoints import ENDPOINTS
from stoker.web.board import Way
from stoker.web.pages import (
    audit,
    health,
    job,
    jobs,
    limits,
    lists,
    operations,
    outbox,
    overview,
    queues,
    schedules,
    shared,
)
from stoker.web.problems import TITLES, Problem, details
from stoker.web.visit import Visit


def ways() -> list[Way]:
    """All of them. What is not here does not exist; a role that is too low is refused."""
    return [
        Way("GET", "/static/{version}/{name:path}", "read", _static, "open"),
        Way("GET", "/sign-in", "read", tokens.ask, "open"),
        Way("POST", "/sign-in", "read", tokens.sign_in, "open"),
        Way("POST", "/sign-out", "read", tokens.sign_out, "open"),
        Way("POST", "/theme", "read", actions.theme, "open"),
        Way("GET", "/", "read", overview.show),
        Way("GET", "/points.json", "read", overview.points_json),
        Way("GET", "/live", "read", live.stream),
        Way("GET", "/pieces", "read", live.pieces),
        Way("GET", "/jobs", "read", jobs.show),
        Way("GET", "/jobs/{id}", "read", job.show),
        Way("GET", "/jobs/{id}/edit", "operate", job.edit),
        Way("GET", "/jobs/{id}/move", "operate", job.move),
        Way("POST", "/jobs/{id}/{verb}", "operate", actions.on_job, "action"),
        Way("GET", "/operations/new", "operate", operations.preview),
        Way("POST", "/operations/new", "operate", operations.preview_selection, "action"),
        Way("POST", "/operations", "operate", operations.start, "action"),
        Way("GET", "/operations", "read", operations.everything),
        Way("GET", "/operations/{id}", "read", operations.show),
        Way("POST", "/operations/{id}/{verb}", "operate", operations.steer, "action"),
        Way("GET", "/queues", "read", queues.show),
        Way("GET", "/queues/{name}", "read", queues.one),
        Way("POST", "/queues/{name}/{verb}", "operate", actions.on_queue, "action"),
        Way("GET", "/kinds", "read", lists.kinds),
        Way("GET", "/workers", "read", lists.workers),
        Way("GET", "/schedules", "read", schedules.show),
        Way("GET", "/new-schedule", "operate", schedules.new),
        Way("POST", "/new-schedule", "operate", schedules.create, "action"),
        Way("GET", "/new-schedule/fires", "read", schedules.preview),
        Way("GET", "/schedules/{name}", "read", schedules.one),
        Way("POST", "/schedules/{name}/{verb}", "operate", actions.on_schedule, "action"),
        Way("GET", "/limits", "read", limits.show),
        Way("POST", "/limits/{name}/{verb}", "operate", actions.on_limit, "action"),
        Way("GET", "/outbox", "read", outbox.show),
        Way("GET", "/outbox/{stream}/{consumer}", "read", outbox.cursors),
        Way("POST", "/outbox/letters/{stream}/{verb}", "operate", outbox.on_letters, "action"),
        Way("POST", "/outbox/{stream}/{consumer}/{verb}", "operate", outbox.steer, "action"),
        Way("GET", "/health", "read", health.show),
        Way("GET", "/audit", "read", audit.show),
        Way("GET", f"{ROOT}/openapi.json", "read", document.serve, "api"),
        *(one.way() for one in ENDPOINTS),
    ]


async def _static(visit: Visit) -> Response:
    return await assets.serve(visit.request)


def is_api(request: Request, root: str) -> bool:
    """Is this a call by a program?"""
    return request.url.path.removeprefix(root).startswith("/api/")


async def refusal(visit: Visit, problem: Problem) -> Response:
    """A refusal as a page, or as problem details for programs."""
    if is_api(visit.request, visit.root) or visit.identity is None:
        body = msgspec.json.encode(details(problem, visit.id))
        return Response(body, problem.status, problem.headers, media_type="application/problem+json")
    if problem.code == "store_unavailable":
        return _store_down(visit, problem)
    title = "Nothing is here" if problem.status == 404 else TITLES.get(problem.status, "Refused")
    context = view.common(visit, "", title) | {"problem": problem, "live_url": ""}
    response = view.page(visit, "refusal.html", context, problem.status)
    response.headers.update(problem.headers)
    return response


def _store_down(visit: Visit, problem: Problem) -> Response:
    last = visit.board.hub.last
    context = view.common(visit, "overview", "The store does not answer") | {
        "problem": problem,
        "read_at": None if last is None else last.census.at,
        "queues": [] if last is None else shared.queue_rows(visit, last, {}),
        "limit": f"{visit.board.limits.seconds:g}",
        "live_url": "",
    }
    return view.page(visit, "store-down.html", context, 503)
