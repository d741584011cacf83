"""What a form does to a worker."""

from __future__ import annotations

from typing import Final
from urllib.parse import quote

from starlette.responses import Response

from stoker.model.actions import Question
from stoker.model.humanize import ago, count, span
from stoker.model.orders import Verb
from stoker.model.time import instant
from stoker.web.actions.result import ActionResult, Doing, answer, ask
from stoker.web.pages.shared import needs_everything
from stoker.web.request import RequestContext
from stoker.web.view import Flash

TAKE_BACK = Question(
    "Take back the jobs of this worker?",
    "They run again at once and use no attempt. What their runs have done so far stays done, and may be done again. A "
    "worker that is alive stops these handlers within seconds and goes on.",
    "Take them back",
    "Leave them there",
)


ORDERS: Final[dict[Verb, Question]] = {
    "quiet": Question(
        "Let this worker claim no more jobs?",
        "It finishes what it runs and stays, but starts nothing more until it is resumed. Jobs of its queues go to "
        "other workers, or wait.",
        "Quiet it",
        "Let it go on",
    ),
    "resume": Question(
        "Let this worker claim jobs again?", "It starts jobs of its queues at once.", "Resume it", "Leave it quiet"
    ),
    "stop": Question(
        "Stop this worker?",
        "It claims no more, finishes what it runs within its grace, hands the rest back without a used attempt, and "
        "ends. Its supervisor puts no other process in its place until it gets HUP or starts anew.",
        "Stop it",
        "Leave it running",
    ),
    "stack": Question(
        "Ask this worker where its handlers stand?",
        "It stores the stack of each running handler, without variables, for ten minutes. No run is interrupted.",
        "Ask it",
        "Do not ask",
    ),
}
SAID: Final[dict[Verb, str]] = {
    "quiet": "Told {} to claim no more jobs.",
    "resume": "Told {} to claim jobs again.",
    "stop": "Told {} to stop.",
    "stack": "Asked {} where its handlers stand; it has not answered yet.",
}
KEPT_WHY = "The audit log keeps it."
WAITS = 5.0
"""Seconds that a page waits for the stacks of a worker."""


async def order(verb: Verb, visit: RequestContext) -> Response:
    """Give the worker of the address an order, once its user is sure."""
    worker, form = visit.request.path_params["worker"], await visit.board.form(visit)
    needs_everything(visit)
    page = visit.url(f"workers/{quote(worker, safe='')}")
    if form.get("sure") != "yes":
        path = f"workers/{quote(worker, safe='')}/{verb}"
        name, facts = await _facts(visit, worker)
        return ask(
            visit, "workers", path, name, page, ORDERS[verb], destroys=verb == "stop", facts=facts, reason=KEPT_WHY
        )
    reason = form.get("reason").strip() or None
    if verb == "stack" and await visit.admin.workers.stack(worker, reason=reason, within=WAITS) is not None:
        return answer(visit, ActionResult(Flash(f"{worker} told where its handlers stand.")), page)
    given = None if verb == "stack" else await visit.admin.workers.order(worker, verb, reason=reason)
    note = f" {given.note}" if given is not None and given.note else ""
    return answer(visit, ActionResult(Flash(f"{SAID[verb].format(worker)}{note}")), page)


async def run(verb: str, visit: RequestContext) -> Response:
    """Do one thing to the worker of the address."""
    return answer(visit, await VERBS[verb](visit), visit.url("workers"))


async def _take_back(visit: RequestContext) -> ActionResult | Response:
    worker, form = visit.request.path_params["worker"], await visit.board.form(visit)
    needs_everything(visit)
    if form.get("sure") != "yes":
        path = f"workers/{quote(worker, safe='')}/take-back"
        name, facts = await _facts(visit, worker)
        return ask(visit, "workers", path, name, visit.url("workers"), TAKE_BACK, facts=facts, reason=KEPT_WHY)
    taken = await visit.admin.workers.take_back(worker, reason=form.get("reason").strip() or None)
    return ActionResult(Flash(f"Took back {count(taken, 'job')} of {worker}."))


async def _facts(visit: RequestContext, worker: str) -> tuple[str, list[tuple[str, str]]]:
    """How people know a worker, and what tells it from others: when it was seen, what it runs, and for how long."""
    reading, jobs = await visit.board.hub.reading(), await visit.admin.workers.jobs(worker)
    now = reading.census.at
    place = next((one for one in reading.presences if one.worker == worker), None)
    since = min((instant(one.job.started_at) for one in jobs if one.job.started_at is not None), default=None)
    facts = [
        ("Worker", worker),
        ("Seen", "" if place is None else ago(place.seen_at, now)),
        ("Runs", count(len(jobs), "job")),
        ("The oldest for", "" if since is None else span(max(now - since, 0))),
    ]
    name = worker if place is None else f"{place.host} / {place.pid}"
    return name, [(what, text) for what, text in facts if text]


VERBS: Final[dict[str, Doing[RequestContext]]] = {"take-back": _take_back}
