"""Every address of the dashboard: method, path, the role it needs, and what answers."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from stoker.model.actions import ACTIONS
from stoker.web import assets, live, sign_in, view
from stoker.web.actions import health as health_actions
from stoker.web.actions import job as job_actions
from stoker.web.actions import limit, operation, queue, schedule, theme, worker
from stoker.web.actions import outbox as outbox_actions
from stoker.web.actions.result import Run
from stoker.web.api import document
from stoker.web.api.endpoint import ROOT
from stoker.web.api.endpoints import ENDPOINTS
from stoker.web.board import Route
from stoker.web.pages import (
    audit,
    enqueue,
    groups,
    health,
    job,
    job_edit,
    jobs,
    kinds,
    letters,
    limits,
    lists,
    operations,
    outbox,
    overview,
    queues,
    schedules,
    shared,
    steps,
)
from stoker.web.problems import TITLES, Problem, details
from stoker.web.request import RequestContext

AGAIN = 5
"""Seconds after which the page of a store that is away asks again."""


def routes() -> list[Route]:
    """All of them. What is not here does not exist; a role that is too low is refused."""
    return [
        Route("GET", "/static/{version}/{name:path}", "read", _static, "open"),
        Route("GET", "/sign-in", "read", sign_in.ask, "open"),
        Route("POST", "/sign-in", "read", sign_in.sign_in, "open"),
        Route("POST", "/sign-out", "read", sign_in.sign_out, "open"),
        Route("POST", "/theme", "read", theme.choose, "open"),
        Route("GET", "/", "read", overview.show),
        Route("GET", "/points.json", "read", overview.points_json),
        Route("GET", "/live", "read", live.stream),
        Route("GET", "/pieces", "read", live.pieces),
        Route("GET", "/jobs", "read", jobs.show),
        Route("GET", "/jobs/{id}", "read", job.show),
        Route("GET", "/jobs/{id}/edit", "operate", job_edit.edit_form),
        *_forms(),
        *(
            Route("POST", f"/jobs/{{id}}/{verb}", role, partial(job_actions.run, verb), "action")
            for verb, role in job_actions.VERBS.items()
        ),
        Route("GET", "/enqueue", "operate", enqueue.show),
        Route("POST", "/enqueue", "operate", enqueue.create, "action"),
        Route("GET", "/waits", "read", steps.show),
        Route("GET", "/groups", "read", groups.show),
        Route("GET", "/groups/{id}", "read", groups.one),
        Route("GET", "/operations/new", "operate", operations.preview),
        Route("POST", "/operations/new", "operate", operations.preview_selection, "action"),
        Route("POST", "/operations", "operate", operations.start, "action"),
        Route("GET", "/operations/letters/new", "operate", letters.preview),
        Route("POST", "/operations/letters", "operate", letters.start, "action"),
        Route("GET", "/operations", "read", operations.everything),
        Route("GET", "/operations/{id}", "read", operations.show),
        *_acts("/operations/{id}", operation.run, operation.VERBS),
        Route("GET", "/queues", "read", queues.show),
        Route("GET", "/queues/{name}", "read", queues.one),
        *_acts("/queues/{name}", queue.run, queue.VERBS),
        Route("GET", "/kinds", "read", kinds.show),
        Route("GET", "/kinds/{name}", "read", kinds.one),
        Route("GET", "/workers", "read", lists.workers),
        Route("GET", "/workers/{worker}", "read", lists.worker),
        *_acts("/workers/{worker}", worker.run, worker.VERBS),
        *(
            Route("POST", f"/workers/{{worker}}/{verb}", "admin", partial(worker.order, verb), "action")
            for verb in worker.ORDERS
        ),
        Route("GET", "/schedules", "read", schedules.show),
        Route("GET", "/new-schedule", "operate", schedules.new),
        Route("POST", "/new-schedule", "operate", schedules.create, "action"),
        Route("GET", "/new-schedule/fires", "read", schedules.preview),
        Route("GET", "/schedules/{name}", "read", schedules.one),
        *_acts("/schedules/{name}", schedule.run, schedule.VERBS),
        Route("GET", "/limits", "read", limits.show),
        *_acts("/limits/{name}", limit.run, limit.VERBS),
        Route("GET", "/outbox", "read", outbox.show),
        Route("GET", "/outbox/letters", "read", letters.show),
        Route("GET", "/outbox/letters/{stream}/{consumer}/{id}", "read", letters.one),
        Route("GET", "/outbox/{stream}/{consumer}", "read", outbox.cursors),
        *_acts("/outbox/letters/{stream}", outbox_actions.on_letters, outbox_actions.LETTER_VERBS),
        *_acts("/outbox/{stream}/{consumer}", outbox_actions.on_consumer, outbox_actions.CONSUMER_VERBS),
        Route("GET", "/health", "read", health.show),
        Route("POST", "/health/check", "read", health_actions.check, "action", harmless=True),
        *_acts("/findings", health_actions.run, health_actions.FINDING_VERBS),
        Route("GET", "/audit", "read", audit.show),
        Route("GET", f"{ROOT}/openapi.json", "read", document.serve, "api"),
        *(one.route() for one in ENDPOINTS),
    ]


def _forms() -> list[Route]:
    """The forms of the buttons of a job whose action needs to know more."""
    return [
        Route("GET", f"/jobs/{{id}}/{one.name}", one.role, partial(job_edit.parameters, one, button))
        for one in ACTIONS.values()
        for button in one.buttons
        if button.form and one.required
    ]


def _acts(below: str, run: Run, verbs: Iterable[str]) -> list[Route]:
    """An address for each verb of a form below a page."""
    return [Route("POST", f"{below}/{verb}", "operate", partial(run, verb), "action") for verb in verbs]


async def _static(visit: RequestContext) -> Response:
    return await assets.serve(visit.request)


def is_api(request: Request, root: str) -> bool:
    """Is this a call by a program?"""
    return request.url.path.removeprefix(root).startswith("/api/")


async def refusal(visit: RequestContext, problem: Problem) -> Response:
    """A refusal as a page, or as problem details for programs."""
    known = visit.identity is not None
    if is_api(visit.request, visit.root) or not (known or visit.is_browser):
        body = msgspec.json.encode(details(problem, visit.id))
        return Response(body, problem.status, problem.headers, media_type="application/problem+json")
    if known and problem.code == "store_unavailable":
        return _store_down(visit, problem)
    title = "Nothing is here" if problem.status == 404 else TITLES.get(problem.status, "Refused")
    context = view.common(visit, "", title) | {"problem": problem, "live_url": ""}
    response = view.page(visit, "refusal.html" if known else "stranger.html", context, problem.status)
    response.headers.update(problem.headers)
    return response


def _store_down(visit: RequestContext, problem: Problem) -> Response:
    last = visit.board.hub.last
    context = view.common(visit, "overview", "The store does not answer") | {
        "problem": problem,
        "read_at": None if last is None else last.census.at,
        "queues": [] if last is None else shared.queue_rows(visit, last),
        "limit": f"{visit.board.limits.seconds:g}",
        "again": AGAIN,
        "live_url": "",
    }
    return view.page(visit, "store-down.html", context, 503)
