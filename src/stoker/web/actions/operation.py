"""What a form does to an operation that is under way or was interrupted."""

from __future__ import annotations

from typing import Final

from starlette.responses import Response

from stoker.web.actions.result import ActionResult, Doing, answer
from stoker.web.pages import operations
from stoker.web.pages.shared import needs_everything
from stoker.web.request import RequestContext
from stoker.web.view import Flash


async def run(verb: str, visit: RequestContext) -> Response:
    """Do one thing to the operation of the address."""
    await visit.board.form(visit)
    needs_everything(visit)
    return answer(visit, await VERBS[verb](visit), visit.url(f"operations/{visit.request.path_params['id']}"))


async def _stop(visit: RequestContext) -> ActionResult:
    await visit.admin.operations.stop(visit.request.path_params["id"])
    return ActionResult(Flash("It stops after the jobs it is at."))


async def _resume(visit: RequestContext) -> ActionResult:
    await operations.go_on(visit, visit.request.path_params["id"])
    return ActionResult(Flash("It goes on from where it came to."))


VERBS: Final[dict[str, Doing[RequestContext]]] = {"stop": _stop, "resume": _resume}
