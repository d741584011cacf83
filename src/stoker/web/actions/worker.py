"""What a form does to a worker."""

from __future__ import annotations

from typing import Final
from urllib.parse import quote

from starlette.responses import Response

from stoker.model.actions import Question
from stoker.model.humanize import count
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


async def run(verb: str, visit: RequestContext) -> Response:
    """Do one thing to the worker of the address."""
    return answer(visit, await VERBS[verb](visit), visit.url("workers"))


async def _take_back(visit: RequestContext) -> ActionResult | Response:
    worker, form = visit.request.path_params["worker"], await visit.board.form(visit)
    needs_everything(visit)
    if form.get("sure") != "yes":
        path = f"workers/{quote(worker, safe='')}/take-back"
        return ask(visit, "workers", path, worker, visit.url("workers"), TAKE_BACK)
    taken = await visit.admin.workers.take_back(worker)
    return ActionResult(Flash(f"Took back {count(taken, 'job')} of {worker}."))


VERBS: Final[dict[str, Doing[RequestContext]]] = {"take-back": _take_back}
